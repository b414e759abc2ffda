//! System calls of Linux for x86-64 as text: arguments with paths and strings read from the guest's memory, and
//! results.
//!
//! A call that is not in the table shows its first arguments as numbers. Guest memory is not trusted: every text has a
//! limit.

use machine::Processor;
use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;
use syscalls::Errno;
use syscalls::x86_64::Sysno;

use crate::saved_registers::SavedRegisters;

/// Longer texts are cut to this length.
const MOST_TEXT_BYTES: usize = 128;
/// `AT_FDCWD`: the working directory in place of a file descriptor.
const WORKING_DIRECTORY: i32 = -100;
/// Results from this value to -1 are errors.
const LOWEST_ERROR: i64 = -4095;

/// A system call that was entered.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SystemCall {
    /// The call's name, or its number if unknown.
    pub name: String,
    /// The call's arguments as text.
    pub arguments: Vec<String>,
    /// The call's result, with the name of an error. `None` if the call does not return in the searched part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The call's duration in the guest's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl std::fmt::Display for SystemCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name, self.arguments.join(", "))?;
        self.result.iter().try_for_each(|result| write!(f, " = {result}"))?;
        self.seconds.iter().try_for_each(|seconds| write!(f, " in {seconds:.9} s"))
    }
}

/// The kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number of 64 bits.
    Number,
    /// A signed number of 32 bits. The upper half of the register may contain anything.
    Int,
    Address,
    Descriptor,
    Flags,
    Octal,
    /// A NUL-terminated text.
    Text,
    /// A buffer of bytes. The argument with this index is the number of bytes.
    Bytes(usize),
    LockCommand,
}

use Kind::{Address, Bytes, Descriptor, Flags, Int, LockCommand, Number, Octal, Text};

/// The calls with known arguments.
const CALLS: &[(Sysno, &[Kind])] = &[
    (Sysno::read, &[Descriptor, Address, Number]),
    (Sysno::write, &[Descriptor, Bytes(2), Number]),
    (Sysno::pread64, &[Descriptor, Address, Number, Number]),
    (Sysno::pwrite64, &[Descriptor, Bytes(2), Number, Number]),
    (Sysno::open, &[Text, Flags, Octal]),
    (Sysno::openat, &[Descriptor, Text, Flags, Octal]),
    (Sysno::creat, &[Text, Octal]),
    (Sysno::close, &[Descriptor]),
    (Sysno::stat, &[Text, Address]),
    (Sysno::lstat, &[Text, Address]),
    (Sysno::fstat, &[Descriptor, Address]),
    (Sysno::newfstatat, &[Descriptor, Text, Address, Flags]),
    (Sysno::statx, &[Descriptor, Text, Flags, Flags, Address]),
    (Sysno::access, &[Text, Octal]),
    (Sysno::faccessat, &[Descriptor, Text, Octal]),
    (Sysno::faccessat2, &[Descriptor, Text, Octal, Flags]),
    (Sysno::execve, &[Text, Address, Address]),
    (Sysno::execveat, &[Descriptor, Text, Address, Address, Flags]),
    (Sysno::chdir, &[Text]),
    (Sysno::chroot, &[Text]),
    (Sysno::mkdir, &[Text, Octal]),
    (Sysno::mkdirat, &[Descriptor, Text, Octal]),
    (Sysno::rmdir, &[Text]),
    (Sysno::unlink, &[Text]),
    (Sysno::unlinkat, &[Descriptor, Text, Flags]),
    (Sysno::rename, &[Text, Text]),
    (Sysno::renameat, &[Descriptor, Text, Descriptor, Text]),
    (Sysno::renameat2, &[Descriptor, Text, Descriptor, Text, Flags]),
    (Sysno::link, &[Text, Text]),
    (Sysno::linkat, &[Descriptor, Text, Descriptor, Text, Flags]),
    (Sysno::symlink, &[Text, Text]),
    (Sysno::symlinkat, &[Text, Descriptor, Text]),
    (Sysno::readlink, &[Text, Address, Number]),
    (Sysno::readlinkat, &[Descriptor, Text, Address, Number]),
    (Sysno::chmod, &[Text, Octal]),
    (Sysno::fchmodat, &[Descriptor, Text, Octal]),
    (Sysno::chown, &[Text, Int, Int]),
    (Sysno::fchownat, &[Descriptor, Text, Int, Int, Flags]),
    (Sysno::mknod, &[Text, Octal, Number]),
    (Sysno::mknodat, &[Descriptor, Text, Octal, Number]),
    (Sysno::truncate, &[Text, Number]),
    (Sysno::ftruncate, &[Descriptor, Number]),
    (Sysno::statfs, &[Text, Address]),
    (Sysno::mount, &[Text, Text, Text, Flags, Address]),
    (Sysno::umount2, &[Text, Flags]),
    (Sysno::swapon, &[Text, Flags]),
    (Sysno::getxattr, &[Text, Text, Address, Number]),
    (Sysno::utimensat, &[Descriptor, Text, Address, Flags]),
    (Sysno::lseek, &[Descriptor, Number, Int]),
    (Sysno::fcntl, &[Descriptor, LockCommand, Address]),
    (Sysno::flock, &[Descriptor, Int]),
    (Sysno::ioctl, &[Descriptor, Flags, Address]),
    (Sysno::fsync, &[Descriptor]),
    (Sysno::fdatasync, &[Descriptor]),
    (Sysno::dup, &[Descriptor]),
    (Sysno::dup2, &[Descriptor, Descriptor]),
    (Sysno::dup3, &[Descriptor, Descriptor, Flags]),
    (Sysno::pipe2, &[Address, Flags]),
    (Sysno::mmap, &[Address, Number, Flags, Flags, Descriptor, Number]),
    (Sysno::munmap, &[Address, Number]),
    (Sysno::mprotect, &[Address, Number, Flags]),
    (Sysno::brk, &[Address]),
    (Sysno::sendto, &[Descriptor, Bytes(2), Number, Flags, Address, Number]),
    (Sysno::recvfrom, &[Descriptor, Address, Number, Flags, Address, Address]),
    (Sysno::connect, &[Descriptor, Address, Int]),
    (Sysno::accept4, &[Descriptor, Address, Address, Flags]),
    (Sysno::poll, &[Address, Int, Int]),
    (Sysno::futex, &[Address, Flags, Int, Address, Address, Number]),
    (Sysno::nanosleep, &[Address, Address]),
    (Sysno::clock_nanosleep, &[Int, Flags, Address, Address]),
    (Sysno::clone, &[Flags, Address, Address, Address, Address]),
    (Sysno::wait4, &[Int, Address, Flags, Address]),
    (Sysno::kill, &[Int, Int]),
    (Sysno::tgkill, &[Int, Int, Int]),
    (Sysno::exit, &[Int]),
    (Sysno::exit_group, &[Int]),
    (Sysno::fork, &[]),
    (Sysno::vfork, &[]),
    (Sysno::getpid, &[]),
    (Sysno::getppid, &[]),
    (Sysno::gettid, &[]),
    (Sysno::getuid, &[]),
    (Sysno::geteuid, &[]),
    (Sysno::getgid, &[]),
    (Sysno::getegid, &[]),
    (Sysno::sync, &[]),
    (Sysno::pause, &[]),
    (Sysno::sched_yield, &[]),
];

/// The names of fcntl commands that are shown as names.
const LOCK_COMMANDS: [(u64, &str); 11] = [
    (0, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (3, "F_GETFL"),
    (4, "F_SETFL"),
    (5, "F_GETLK"),
    (6, "F_SETLK"),
    (7, "F_SETLKW"),
    (37, "F_OFD_SETLK"),
    (38, "F_OFD_SETLKW"),
    (1030, "F_DUPFD_CLOEXEC"),
];

impl SystemCall {
    /// The system call with this number that a processor has just entered by SYSCALL, without its result.
    pub fn entered(processor: &Processor<'_, Instructions>, number: u64) -> SystemCall {
        let gpr = processor.state().gpr;
        // The registers of arguments: RDI, RSI, RDX, R10, R8, R9.
        let values = [7, 6, 2, 10, 8, 9].map(|register: usize| gpr[register]);
        let call = known(number);
        SystemCall {
            name: call.map_or_else(|| number.to_string(), |call| call.name().to_string()),
            arguments: in_words(processor, kinds_of(call), values),
            result: None,
            seconds: None,
        }
    }

    /// Adds the result and the duration. `arguments` are the arguments at the return ([`arguments_at_return`]).
    pub fn returned(mut self, result: u64, seconds: f64, arguments: &[String]) -> SystemCall {
        for (entered, returned) in self.arguments.iter_mut().zip(arguments) {
            if !is_text(entered) && is_text(returned) {
                entered.clone_from(returned);
            }
        }
        let address = ["mmap", "brk", "mremap"].contains(&self.name.as_str());
        SystemCall { result: Some(result_in_words(result, address)), seconds: Some(seconds), ..self }
    }
}

/// The arguments of a system call that is about to return. At the call's entry, a text may not have been in memory yet: the
/// kernel loads the page when it reads the text. Empty if the call has no texts.
pub(crate) fn arguments_at_return(
    processor: &Processor<'_, Instructions>,
    number: u64,
    saved: &SavedRegisters,
) -> Vec<String> {
    let kinds = kinds_of(known(number));
    if !kinds.iter().any(|kind| matches!(kind, Text | Bytes(_))) {
        return Vec::new();
    }
    in_words(processor, kinds, saved.arguments)
}

fn known(number: u64) -> Option<Sysno> {
    usize::try_from(number).ok().and_then(Sysno::new)
}

fn kinds_of(call: Option<Sysno>) -> &'static [Kind] {
    let known = CALLS.iter().find(|(known, _)| Some(*known) == call).map(|(_, kinds)| *kinds);
    known.unwrap_or(&[Address; 3])
}

fn in_words(processor: &Processor<'_, Instructions>, kinds: &[Kind], values: [u64; 6]) -> Vec<String> {
    let read = |address: u64, to: &mut [u8]| processor.peek(address, to);
    kinds.iter().zip(values).map(|(kind, value)| argument(*kind, value, &values, &read)).collect()
}

fn is_text(argument: &str) -> bool {
    argument.starts_with('"')
}

fn argument(kind: Kind, value: u64, all: &[u64; 6], read: &dyn Fn(u64, &mut [u8]) -> usize) -> String {
    match kind {
        Number => (value as i64).to_string(),
        Address if value == 0 => "NULL".to_string(),
        Address | Flags => format!("{value:#x}"),
        Descriptor if value as i32 == WORKING_DIRECTORY => "AT_FDCWD".to_string(),
        Descriptor | Int => (value as i32).to_string(),
        Octal => format!("{:#o}", value as u32),
        LockCommand => {
            let known = LOCK_COMMANDS.iter().find(|(command, _)| *command == value);
            known.map_or_else(|| value.to_string(), |(_, name)| name.to_string())
        }
        Text => text(value, None, read),
        Bytes(length) => text(value, Some(all[length]), read),
    }
}

/// A quoted text of the given length or up to a NUL. Shows the address if the text cannot be read.
fn text(address: u64, length: Option<u64>, read: &dyn Fn(u64, &mut [u8]) -> usize) -> String {
    let wanted = length.map_or(MOST_TEXT_BYTES, |length| length.min(MOST_TEXT_BYTES as u64) as usize);
    let mut bytes = vec![0; wanted];
    let count = read(address, &mut bytes);
    let end = match length {
        Some(_) => None,
        None => bytes[..count].iter().position(|&byte| byte == 0),
    };
    if count == 0 && wanted > 0 {
        return format!("{address:#x}");
    }
    let is_whole = end.is_some() || length == Some(count as u64);
    let rest = if is_whole { "" } else { "..." };
    // In double quotes, a single quote needs no escape.
    let escaped = bytes[..end.unwrap_or(count)].escape_ascii().to_string().replace("\\'", "'");
    format!("\"{escaped}\"{rest}")
}

/// A result as text: the name of an error, or a number.
pub(crate) fn result_in_words(result: u64, is_address: bool) -> String {
    let value = result as i64;
    if (LOWEST_ERROR..0).contains(&value) {
        let name = Errno::new(-value as i32).name();
        return name.map_or_else(|| value.to_string(), |name| format!("-{name}"));
    }
    if is_address { format!("{result:#x}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory with quotes at 5 and `/etc/passwd` at 16. Nothing after 64 is readable.
    fn read(address: u64, to: &mut [u8]) -> usize {
        let mut memory = [b'x'; 64];
        memory[5..7].copy_from_slice(b"'\"");
        memory[16..28].copy_from_slice(b"/etc/passwd\0");
        let from = (address as usize).min(64);
        let count = to.len().min(64 - from);
        to[..count].copy_from_slice(&memory[from..from + count]);
        count
    }

    #[test]
    fn arguments_are_told_by_their_kinds() {
        let all = [0, 40, 3, 0, 0, 0];
        for (kind, value, words) in [
            (Descriptor, 0xffff_ffff_ffff_ff9c, "AT_FDCWD"),
            (Descriptor, 3, "3"),
            (Number, u64::MAX, "-1"),
            (Int, 0xffff_ffff, "-1"),
            (Octal, 0o644, "0o644"),
            (Address, 0, "NULL"),
            (LockCommand, 7, "F_SETLKW"),
            (Text, 16, "\"/etc/passwd\""),
            (Text, 40, "\"xxxxxxxxxxxxxxxxxxxxxxxx\"..."),
            (Text, 64, "0x40"),
            (Bytes(2), 26, "\"d\\x00x\""),
            (Bytes(2), 4, "\"x'\\\"\""),
            (Bytes(3), 64, "\"\""),
        ] {
            assert_eq!(argument(kind, value, &all, &read), words, "{kind:?} {value}");
        }
    }

    #[test]
    fn errors_have_names_and_other_results_are_numbers() {
        for (result, words) in [
            (3, "3"),
            (-2_i64 as u64, "-ENOENT"),
            (-512_i64 as u64, "-ERESTARTSYS"),
            (0x7fff_0000, "2147418112"),
        ] {
            assert_eq!(result_in_words(result, false), words);
        }
        assert_eq!(result_in_words(0x7fff_0000, true), "0x7fff0000");
    }

    #[test]
    fn a_text_that_was_not_in_memory_at_the_entry_is_read_at_the_return() {
        let entered = |arguments: &[&str]| SystemCall {
            name: "readlink".to_string(),
            arguments: arguments.iter().map(|text| text.to_string()).collect(),
            result: None,
            seconds: None,
        };
        let later = ["\"/proc\"".to_string(), "0x10".to_string(), "\"x\"".to_string()];
        let call = entered(&["0x40", "0x8", "\"/\""]).returned(3, 0.5, &later);
        assert_eq!(call.to_string(), "readlink(\"/proc\", 0x8, \"/\") = 3 in 0.500000000 s");
        let call = entered(&["0x40"]).returned(-2_i64 as u64, 0.5, &[]);
        assert_eq!(call.to_string(), "readlink(0x40) = -ENOENT in 0.500000000 s");
    }

    /// The kernel has saved the arguments of a write of `hello` on its stack.
    #[test]
    fn the_arguments_at_a_return_are_the_saved_ones() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _, kernel) = tiny_guest::linux::record(directory.path(), "r.ttvm", 1, None);
        let mut timeline = history::timeline::Timeline::open(&recording).unwrap();
        timeline.set_breakpoints(vec![kernel.address_of("do_syscall_64")]);
        timeline.run_forward(&mut history::never).unwrap();
        timeline.set_breakpoints(Vec::new());
        let call_return = crate::guest_kernel::GuestKernel::of_guest(timeline.machine()).unwrap().call_return;
        timeline.set_breakpoints(vec![call_return.unwrap()]);
        timeline.run_forward(&mut history::never).unwrap();
        let processor = timeline.machine().running_processor();
        let saved = SavedRegisters::at_return(&processor).unwrap();
        let told = |number| arguments_at_return(&processor, number, &saved);
        assert_eq!(told(Sysno::write as u64), ["1", "\"hello\"", "5"]);
        // Only calls with a text need to be read again.
        assert!(told(Sysno::close as u64).is_empty() && told(Sysno::read as u64).is_empty());
        assert!(told(100_000).is_empty() && told(u64::MAX).is_empty());
        let entered = SystemCall::entered(&processor, 100_000);
        assert_eq!((entered.name.as_str(), entered.arguments.len()), ("100000", 3));
    }

    #[test]
    fn no_call_is_in_the_table_twice() {
        let mut numbers: Vec<_> = CALLS.iter().map(|(call, _)| call.id()).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
