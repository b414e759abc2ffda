//! Panics, oopses, BUG, WARNING, KASAN and lockdep reports of a kernel, found by their first lines.
//!
//! An oops has several lines that could each begin a report ("BUG: kernel NULL pointer dereference", then "Oops:
//! 0000 [#1]"). A [`Sifter`] reads one line after the other, and says for each line whether the line begins a
//! report.
//!
//! Follows Linux 6.1 to 7.2: `kernel/panic.c`, `arch/x86/kernel/{dumpstack,traps}.c`, `arch/x86/mm/fault.c`,
//! `mm/kasan/report.c`, `kernel/locking/lockdep.c`.

use std::fmt::{Display, Formatter};

/// The kind of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The kernel panicked, and has stopped.
    Panic,
    /// A processor raised an exception that the kernel cannot handle.
    Oops,
    /// The kernel found a fault and continued.
    Bug,
    /// WARN().
    Warning,
    /// A bad access to memory, found by KASAN or KFENCE.
    Kasan,
    /// Locks were taken in a wrong order, or in a context that does not allow these locks.
    Lockdep,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Panic => "panic",
            Kind::Oops => "oops",
            Kind::Bug => "bug",
            Kind::Warning => "warning",
            Kind::Kasan => "kasan",
            Kind::Lockdep => "lockdep",
        })
    }
}

/// The beginnings of lines that begin reports, with the kinds of these reports. The first entry that matches a line
/// gives the kind.
const BEGINNINGS: [(&str, Kind); 33] = [
    ("Kernel panic - not syncing", Kind::Panic),
    ("BUG: unable to handle", Kind::Oops),
    ("BUG: kernel NULL pointer dereference", Kind::Oops),
    ("BUG: stack guard page was hit", Kind::Oops),
    ("BUG: TASK stack guard page was hit", Kind::Oops),
    ("BUG: IRQ stack guard page was hit", Kind::Oops),
    ("kernel BUG at ", Kind::Oops),
    ("kernel tried to execute ", Kind::Oops),
    ("Oops: ", Kind::Oops),
    ("Oops[", Kind::Oops),
    ("general protection fault", Kind::Oops),
    ("invalid opcode: ", Kind::Oops),
    ("divide error: ", Kind::Oops),
    ("stack segment: ", Kind::Oops),
    ("double fault: ", Kind::Oops),
    ("int3: ", Kind::Oops),
    ("traps: PANIC: double fault", Kind::Oops),
    ("PANIC: double fault", Kind::Oops),
    ("BUG: KASAN: ", Kind::Kasan),
    ("BUG: KFENCE: ", Kind::Kasan),
    ("KASAN: ", Kind::Kasan),
    ("WARNING: possible circular locking", Kind::Lockdep),
    ("WARNING: possible recursive locking", Kind::Lockdep),
    ("WARNING: possible irq lock inversion", Kind::Lockdep),
    ("WARNING: inconsistent lock state", Kind::Lockdep),
    ("WARNING: bad unlock balance", Kind::Lockdep),
    ("WARNING: held lock freed", Kind::Lockdep),
    ("WARNING: lock held when returning to user space", Kind::Lockdep),
    ("WARNING: Nested lock was not taken", Kind::Lockdep),
    ("WARNING: suspicious RCU usage", Kind::Lockdep),
    ("BUG: ", Kind::Bug),
    ("watchdog: BUG: ", Kind::Bug),
    ("WARNING: ", Kind::Warning),
];
/// Lockdep warnings whose beginnings name a state: "WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected".
const LOCK_ORDER: [&str; 2] = ["lock order detected", "lock dependency detected"];
/// The beginning of the line that ends an oops.
const END_OF_TRACE: &str = "---[ end trace";
/// The number of an oops, in one of its lines: "[#1]".
const NUMBERED: &str = "[#";

/// Reads a kernel's lines one after the other, and detects the beginnings of reports.
#[derive(Clone, Debug, Default)]
pub struct Sifter {
    /// `Some` while the last report is an unfinished oops. The value says whether the oops's number has been seen.
    oops: Option<bool>,
}

impl Sifter {
    /// The kind of the report that begins with this line. `None` if no report begins. The line must not begin with
    /// the kernel's time.
    pub fn begins(&mut self, line: &str) -> Option<Kind> {
        if line.starts_with(END_OF_TRACE) {
            self.oops = None;
            return None;
        }
        let numbered = line.contains(NUMBERED);
        let kind = kind_of(line)?;
        match (kind, &mut self.oops) {
            // The current oops continues, unless a second oops starts inside the first.
            (Kind::Oops, Some(has_number)) if !(*has_number && numbered) => {
                *has_number |= numbered;
                return None;
            }
            // Inside an oops, this line of KASAN is a detail of the oops and not a report of its own.
            (Kind::Kasan, Some(_)) if line.starts_with("KASAN: ") => return None,
            _ => {}
        }
        self.oops = (kind == Kind::Oops).then_some(numbered);
        Some(kind)
    }
}

fn kind_of(line: &str) -> Option<Kind> {
    let (_, kind) = BEGINNINGS.into_iter().find(|(beginning, _)| line.starts_with(beginning))?;
    let is_of_locks = kind == Kind::Warning && LOCK_ORDER.iter().any(|words| line.contains(words));
    Some(if is_of_locks { Kind::Lockdep } else { kind })
}

/// A console's line without the kernel's prefix: `[    1.234567] `, or `[    1.234567][    T1] `.
pub fn without_time(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    let mut rest = line;
    while let Some((head, tail)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let head = head.trim_start();
        let digits = head.strip_prefix(['T', 'C']).unwrap_or(head);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return line;
        }
        rest = tail;
    }
    rest.strip_prefix(' ').unwrap_or(line)
}
