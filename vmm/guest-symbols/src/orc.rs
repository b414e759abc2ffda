//! Unwinds the kernel's stack by the kernel's own tables (ORC). For each range of code, the tables describe how to
//! compute the caller's stack pointer and where registers are saved.
//!
//! The kernel's own tables are between symbols such as `__start_orc_unwind_ip`. A module's `struct mod_arch_specific`
//! points to its tables. There is a table of addresses, each relative to its own place, and a table of entries:
//!
//! ```text
//! i16 sp_offset, i16 bp_offset, u16: sp_reg 4 bits, bp_reg 4 bits, then
//!                                     up to 6.3   type 2 bits (call, registers, interrupt frame), ..., end
//!                                     from 6.4    type 3 bits (2: call, 3: registers, 4: interrupt frame)
//! ```
//!
//! Linux 7 has renumbered the registers. The kernel's entry for calls to address 0, `null_orc_entry`, uses the stack
//! pointer. The number of the stack pointer in this entry shows which numbers the kernel uses.
//!
//! Follows Linux 6.1 to 7.2: `arch/x86/include/asm/orc_types.h`, `arch/x86/kernel/unwind_orc.c`,
//! `arch/x86/include/asm/ptrace.h`. Guest memory is not trusted: tables and walks have limits.

use std::ops::Range;
use std::sync::Arc;

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{self, Missing, types};
use super::sections::{Access, Section};
use super::symbols::Symbols;

/// The largest number of entries. A kernel with its modules has fewer entries.
const MAX_ENTRIES: u64 = 1 << 22;
/// The largest number of frames in a backtrace.
pub const MAX_FRAMES: usize = 256;
/// The size of an entry in memory.
const ENTRY_BYTES: usize = 6;

/// The registers of a stopped CPU that a walk needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct Registers {
    pub rip: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rdx: u64,
    pub rdi: u64,
    pub r10: u64,
    pub r13: u64,
    /// Whether the CPU runs a program and not the kernel.
    pub is_user: bool,
}

/// A function that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The next instruction, or the return address of a call.
    pub address: u64,
    /// Whether the address is a return address.
    pub is_return: bool,
    /// The stack pointer with which the function continues at `address`.
    pub stack: u64,
}

impl Frame {
    /// An address inside the function. A call may be the last instruction of a function, so a return address may be the
    /// address after the function's end.
    pub fn inside(&self) -> u64 {
        self.address.wrapping_sub(u64::from(self.is_return))
    }

    /// The function in the kernel's notation: `vfs_write+0xc7/0x3f0`. For a function of a module, `[name]` follows.
    pub fn name(&self, symbols: &Symbols) -> Option<String> {
        let (symbol, offset) = symbols.at(self.inside())?;
        let offset = offset + u64::from(self.is_return);
        let module = symbols.module_of(symbol).map(|module| format!(" [{module}]")).unwrap_or_default();
        Some(format!("{}+{offset:#x}/{:#x}{module}", symbol.name, symbol.size))
    }
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The walk ends at a program's instruction, which entered the kernel or is running.
    Program(u64),
    /// The walk ends at the base of a kernel stack, where the stack of a kernel thread or of the kernel's boot code
    /// begins.
    Stack,
    /// The kernel's tables do not describe this code, or memory is not readable.
    Lost,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Program(at) => write!(f, "a program at {at:#x}"),
            End::Stack => f.write_str("the beginning of the stack"),
            End::Lost => f.write_str("a place where the kernel's tables end"),
        }
    }
}

/// The result of a walk, the innermost function first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backtrace {
    /// The functions that have not returned.
    pub frames: Vec<Frame>,
    /// How the walk ended, after the last function.
    pub end: End,
}

/// How to unwind from an address in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub sp_offset: i16,
    pub bp_offset: i16,
    pub sp_register: u16,
    pub bp_register: u16,
    pub kind: Kind,
}

/// The data on the stack directly below the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Registers,
    InterruptFrame,
    /// No data, or unknown data.
    None,
}

/// The numbers of registers in the tables: `ORC_REG_*` of Linux.
pub(super) mod register {
    pub const PREV_SP: u16 = 1;
    pub const DX: u16 = 2;
    pub const DI: u16 = 3;
    pub const BP: u16 = 4;
    pub const SP: u16 = 5;
    pub const R10: u16 = 6;
    pub const R13: u16 = 7;
    pub const BP_INDIRECT: u16 = 8;
    pub const SP_INDIRECT: u16 = 9;
}

/// The encoding of a kernel's entries.
#[derive(Clone, Copy, Debug)]
struct Format {
    /// Whether the type has two bits, not three.
    is_old: bool,
    /// Whether registers have the numbers of Linux 7.
    is_renumbered: bool,
}

impl Format {
    /// The format of the kernel with these symbols and types.
    fn of(view: KernelView<'_>, symbols: &Symbols, btf: &Btf<'_>) -> Result<Format, Missing> {
        let entry = btf.structure("orc_entry");
        let entry = entry.ok_or(Missing::Field { structure: "orc_entry", field: "type" })?;
        let is_old = btf.field(entry, "end").is_some();
        let example =
            symbols.address_of("null_orc_entry").and_then(|at| view.number::<1>(at.wrapping_add(4)));
        let stack_pointer = example.map(|bits| bits as u16 & 0xf);
        Ok(Format { is_old, is_renumbered: stack_pointer == Some(RENUMBERED_SP) })
    }

    /// Converts a register's number to the number up to Linux 6. The numbers of Linux 7.2 are in its
    /// `arch/x86/include/asm/orc_types.h`. In the numbers of Linux 7.2, 1 is RAX, for which earlier kernels have no
    /// number.
    fn register(self, number: u16) -> u16 {
        match number {
            _ if !self.is_renumbered => number,
            RENUMBERED_SP => register::SP,
            5 => register::DI,
            8 => register::PREV_SP,
            10 => register::BP_INDIRECT,
            // DX, BP, R10, R13 and SP_INDIRECT have kept their numbers.
            2 | 4 | 6 | 7 | 9 => number,
            _ => 0,
        }
    }
}

/// The number of the stack pointer in Linux 7.
const RENUMBERED_SP: u16 = 3;

/// The entry for code that the tables do not describe. The entry assumes that the code uses a frame pointer.
const FRAME_POINTER: Entry = Entry {
    sp_offset: 16,
    bp_offset: -16,
    sp_register: register::BP,
    bp_register: register::PREV_SP,
    kind: Kind::Call,
};

impl Entry {
    fn of(bytes: &[u8; ENTRY_BYTES], format: Format) -> Entry {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let bits = word(4);
        let kind = match (format.is_old, bits >> 8) {
            (true, bits) => (bits & 3) + 2,
            (false, bits) => bits & 7,
        };
        Entry {
            sp_offset: word(0) as i16,
            bp_offset: word(2) as i16,
            sp_register: format.register(bits & 0xf),
            bp_register: format.register(bits >> 4 & 0xf),
            kind: match kind {
                2 => Kind::Call,
                3 => Kind::Registers,
                4 => Kind::InterruptFrame,
                _ => Kind::None,
            },
        }
    }
}

/// The tables of a kernel or a module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    /// The first address of each entry's code, in ascending order.
    addresses: Vec<u64>,
    entries: Vec<Entry>,
}

impl Table {
    /// Reads `count` addresses and `count` entries. Returns `None` if `count` is greater than `room`, and otherwise
    /// subtracts it from `room`.
    fn read(
        view: KernelView<'_>,
        (addresses, entries): (u64, u64),
        count: u64,
        format: Format,
        room: &mut u64,
    ) -> Option<Table> {
        if count == 0 {
            return None;
        }
        *room = room.checked_sub(count)?;
        let read = |at: u64, each: usize| {
            let mut bytes = vec![0; count as usize * each];
            (view.read(at, &mut bytes) == bytes.len()).then_some(bytes)
        };
        let (places, bytes) = (read(addresses, 4)?, read(entries, ENTRY_BYTES)?);
        let address = |(number, offset): (u64, &[u8; 4])| {
            addresses.wrapping_add(4 * number).wrapping_add_signed(i32::from_le_bytes(*offset).into())
        };
        let table = Table {
            addresses: (0..).zip(places.as_chunks::<4>().0).map(address).collect(),
            entries: bytes.as_chunks().0.iter().map(|bytes| Entry::of(bytes, format)).collect(),
        };
        table.addresses.is_sorted().then_some(table)
    }

    fn find(&self, address: u64) -> Option<Entry> {
        let after = self.addresses.partition_point(|&start| start <= address);
        self.entries.get(after.checked_sub(1)?).copied()
    }
}

/// The tables of a kernel with its modules, read at one position of the run. The tables also unwind at any other
/// position where the kernel and these modules are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwinder {
    /// Ranges of code and their tables. The kernel's range comes first.
    tables: Vec<(Range<u64>, Arc<Table>)>,
}

impl Unwinder {
    /// The tables of the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Unwinder, Missing> {
        KernelView::first_with(guest, |view| Unwinder::find(view, symbols))
    }

    fn find(view: KernelView<'_>, symbols: &Symbols) -> Result<Unwinder, Missing> {
        let address = |name: &'static str| symbols.address_of(name).ok_or(Missing::Symbol(name));
        let bytes = types(view, &|name| symbols.address_of(name))?;
        let btf = Btf::parse(&bytes).ok_or(Missing::Types)?;
        let format = Format::of(view, symbols, &btf)?;
        let (start, stop) = (address("__start_orc_unwind_ip")?, address("__stop_orc_unwind_ip")?);
        let entries = address("__start_orc_unwind")?;
        let (mut room, count) = (MAX_ENTRIES, stop.saturating_sub(start) / 4);
        let table = Table::read(view, (start, entries), count, format, &mut room);
        let code = address("_stext")?..address("_einittext").or_else(|_| address("_etext"))?;
        let table = table.ok_or(Missing::Symbol("__start_orc_unwind_ip"))?;
        let mut tables = vec![(code, Arc::new(table))];
        tables.extend(of_modules(view, symbols, &btf, format, room).unwrap_or_default());
        Ok(Unwinder { tables })
    }

    /// Unwinds the stack from a CPU's registers.
    pub fn walk(&self, guest: &dyn GuestView, registers: Registers) -> Backtrace {
        let mut walk = Walk { guest, registers, whole: true };
        let (mut frames, mut is_return) = (Vec::new(), false);
        let end = loop {
            let now = walk.registers;
            if now.is_user {
                break End::Program(now.rip);
            }
            let frame = Frame { address: now.rip, is_return, stack: now.rsp };
            frames.push(frame);
            if frames.len() == MAX_FRAMES {
                break End::Lost;
            }
            match walk.step(self.entry(frame.inside())) {
                Ok(returned) => is_return = returned,
                Err(end) => break end,
            }
            // Stacks grow down. A step that changes no register would repeat for ever.
            if walk.registers == now {
                break End::Lost;
            }
        };
        Backtrace { frames, end }
    }

    /// The rows of the tables, range by range of the code: for the kernel and the modules.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Range<u64>, Entry)> {
        self.tables.iter().flat_map(|(code, table)| {
            let ends = table.addresses.iter().skip(1).copied().chain([u64::MAX]);
            let stretch = |(&start, end): (&u64, u64)| start.max(code.start)..end.min(code.end);
            let stretches = table.addresses.iter().zip(ends).map(stretch);
            stretches.zip(table.entries.iter().copied()).filter(|(stretch, _)| !stretch.is_empty())
        })
    }

    fn entry(&self, address: u64) -> Entry {
        let table = self.tables.iter().find(|(code, _)| code.contains(&address));
        table.and_then(|(_, table)| table.find(address)).unwrap_or(FRAME_POINTER)
    }
}

/// The code ranges of all modules that have tables, and their tables.
fn of_modules(
    view: KernelView<'_>,
    symbols: &Symbols,
    btf: &Btf<'_>,
    format: Format,
    mut room: u64,
) -> Option<Vec<(Range<u64>, Arc<Table>)>> {
    let (module, arch) = (btf.structure("module")?, btf.structure("mod_arch_specific")?);
    let (list, name) = (btf.field(module, "list")?.offset, btf.field(module, "name")?.offset);
    let inner = btf.field(module, "arch")?.offset;
    let field = |name: &str| Some(inner + btf.field(arch, name)?.offset);
    let (count, places, entries) = (field("num_orcs")?, field("orc_unwind_ip")?, field("orc_unwind")?);
    let table = |at: u64| {
        let pointer = |offset: u64| view.number::<8>(at.wrapping_add(offset));
        let count = view.number::<4>(at.wrapping_add(count))?;
        let tables = (pointer(places)?, pointer(entries)?);
        let table = Table::read(view, tables, count, format, &mut room)?;
        Some((view.text(at.wrapping_add(name), modules::MAX_MODULE_NAME_BYTES)?, Arc::new(table)))
    };
    let modules = modules::addresses(view, symbols.address_of("modules")?, list);
    // A table also has entries for freed init code. Other modules may now use the memory of this code.
    let code = |(name, table): (String, Arc<Table>)| {
        let is_its = move |section: &&Section| {
            section.access == Access::Code && section.name.ends_with(&format!(".text.{name}"))
        };
        let sections = symbols.sections().iter().filter(is_its);
        sections.map(|section| (section.start..section.end(), table.clone())).collect::<Vec<_>>()
    };
    Some(modules.into_iter().filter_map(table).flat_map(code).collect())
}

/// A walk along a stack.
struct Walk<'a> {
    guest: &'a dyn GuestView,
    /// The registers of the current function.
    registers: Registers,
    /// Whether all registers are known, and not only the stack pointer and RBP.
    whole: bool,
}

impl Walk<'_> {
    fn read(&self, address: u64) -> Result<u64, End> {
        KernelView::all(self.guest).find_map(|view| view.number::<8>(address)).ok_or(End::Lost)
    }

    /// Unwinds one frame: to the caller, or to the interrupted function. Returns whether the new function is
    /// a caller.
    fn step(&mut self, entry: Entry) -> Result<bool, End> {
        let now = self.registers;
        let known = |value: u64| if self.whole { Ok(value) } else { Err(End::Lost) };
        let plus = |base: u64, offset: i16| base.wrapping_add_signed(offset.into());
        let sp = match entry.sp_register {
            register::SP => plus(now.rsp, entry.sp_offset),
            register::BP => plus(now.rbp, entry.sp_offset),
            register::SP_INDIRECT => plus(self.read(now.rsp)?, entry.sp_offset),
            register::BP_INDIRECT => self.read(plus(now.rbp, entry.sp_offset))?,
            register::R10 => known(now.r10)?,
            register::R13 => known(now.r13)?,
            register::DI => known(now.rdi)?,
            register::DX => known(now.rdx)?,
            _ => return Err(End::Stack),
        };
        let mut next = now;
        match entry.kind {
            Kind::Call => {
                (next.rip, next.rsp) = (self.read(sp.wrapping_sub(8))?, sp);
            }
            Kind::Registers => {
                next = self.saved(sp, sp.wrapping_add(saved::RIP))?;
                next.rbp = self.read(sp.wrapping_add(saved::RBP))?;
            }
            Kind::InterruptFrame => next = Registers { rbp: now.rbp, ..self.interrupted(sp)? },
            Kind::None => return Err(End::Stack),
        }
        next.rbp = match entry.bp_register {
            register::PREV_SP => self.read(plus(sp, entry.bp_offset))?,
            register::BP => self.read(plus(now.rbp, entry.bp_offset))?,
            _ => next.rbp,
        };
        // The tables do not describe the caller's other registers.
        self.whole = entry.kind == Kind::Registers;
        self.registers = next;
        Ok(entry.kind == Kind::Call)
    }

    /// The registers that the processor saved: RIP, CS, RFLAGS, RSP, SS.
    fn interrupted(&self, frame: u64) -> Result<Registers, End> {
        let word = |number: u64| self.read(frame.wrapping_add(8 * number));
        Ok(Registers { rip: word(0)?, rsp: word(3)?, is_user: word(1)? & 3 == 3, ..Registers::default() })
    }

    /// The `struct pt_regs` at an address, with the processor's part at `frame`.
    fn saved(&self, at: u64, frame: u64) -> Result<Registers, End> {
        let word = |offset: u64| self.read(at.wrapping_add(offset));
        Ok(Registers {
            rdx: word(saved::RDX)?,
            rdi: word(saved::RDI)?,
            r10: word(saved::R10)?,
            r13: word(saved::R13)?,
            ..self.interrupted(frame)?
        })
    }
}

/// Offsets in `struct pt_regs`, in which the kernel's entry code saves registers.
pub(super) mod saved {
    pub const R15: u64 = 0;
    pub const R14: u64 = 8;
    pub const R13: u64 = 16;
    pub const R12: u64 = 24;
    pub const RBP: u64 = 32;
    pub const RBX: u64 = 40;
    pub const R11: u64 = 48;
    pub const R10: u64 = 56;
    pub const R9: u64 = 64;
    pub const R8: u64 = 72;
    pub const RAX: u64 = 80;
    pub const RCX: u64 = 88;
    pub const RDX: u64 = 96;
    pub const RSI: u64 = 104;
    pub const RDI: u64 = 112;
    pub const RIP: u64 = 128;
}
