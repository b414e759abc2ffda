//! Unwind information for debuggers (`.debug_frame`), made from the kernel's own tables (ORC).
//!
//! [`orc`](crate::orc) has the format of these tables. The tables give only a caller's stack pointer, RBP and return
//! address, so the caller's other registers are marked as lost. Of an interrupted function all registers are known,
//! because the entry code saved them. Interrupt handling code returns to the kernel's IRET instruction. So this section
//! describes the handling code as if the IRET had called it. Only the IRET's own entry leads to the interrupted
//! function. The entry is marked as a signal handler's frame, because the interrupted function made no call. So gdb
//! names each function correctly, and breakpoints of `finish` are reached.
//!
//! ```text
//! #0  __sysvec_apic_timer_interrupt ()
//! #1  sysvec_apic_timer_interrupt ()
//! #2  asm_sysvec_apic_timer_interrupt ()
//! #3  <signal handler called>                 native_irq_return_iret
//! #4  default_idle ()
//! ```
//!
//! User programs have an entry without a caller, because debuggers would otherwise guess a caller.

use std::iter;
use std::ops::Range;

use gimli::write::{
    Address, CallFrameInstruction as Rule, CieId, CommonInformationEntry, DebugFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{DW_OP_plus, LittleEndian, Register, X86_64};

use super::types::ENCODING;
use super::written::Sections;
use crate::kallsyms::IMAGE;
use crate::orc::{Entry, Kind, Unwinder, register, saved};
use crate::symbols::Symbols;

/// The symbol of the instruction with which interrupts and exceptions return.
const IRET: &str = "native_irq_return_iret";
/// IRET has two bytes. Debuggers look up a caller's function by the byte before the return address.
const IRET_BYTES: u64 = 2;
/// The addresses of user programs. gdb looks up the symbol at the first address, and warns if the symbol is a
/// variable. The offset of a per-CPU variable may be equal to such an address. The first address is odd, because no
/// such offset is odd.
const PROGRAMS: Range<u64> = 0x1001..0x7fff_ffff_f000;
/// The largest number of rows in one entry. Entries are short, because debuggers read all rows up to the row that they
/// look for.
const MAX_ROWS: usize = 64;
/// Offset of the part of `struct pt_regs` that the processor saves.
const PROCESSORS: i32 = saved::RIP as i32;
/// The registers that the kernel's entry code saves, and their offsets.
const SAVED: [(Register, u64); 15] = [
    (X86_64::R15, saved::R15),
    (X86_64::R14, saved::R14),
    (X86_64::R13, saved::R13),
    (X86_64::R12, saved::R12),
    (X86_64::RBP, saved::RBP),
    (X86_64::RBX, saved::RBX),
    (X86_64::R11, saved::R11),
    (X86_64::R10, saved::R10),
    (X86_64::R9, saved::R9),
    (X86_64::R8, saved::R8),
    (X86_64::RAX, saved::RAX),
    (X86_64::RCX, saved::RCX),
    (X86_64::RDX, saved::RDX),
    (X86_64::RSI, saved::RSI),
    (X86_64::RDI, saved::RDI),
];
/// The registers that the processor saves, and their offsets.
const BY_PROCESSOR: [(Register, i32); 5] =
    [(X86_64::RA, 0), (X86_64::CS, 8), (X86_64::RFLAGS, 16), (X86_64::RSP, 24), (X86_64::SS, 32)];
/// The registers of a caller that the tables do not describe, so that their values count as lost.
const LOST: [Register; 14] = [
    X86_64::RAX,
    X86_64::RDX,
    X86_64::RCX,
    X86_64::RBX,
    X86_64::RSI,
    X86_64::RDI,
    X86_64::R8,
    X86_64::R9,
    X86_64::R10,
    X86_64::R11,
    X86_64::R12,
    X86_64::R13,
    X86_64::R14,
    X86_64::R15,
];

/// The largest number of rows in the section. A kernel has fewer rows.
const MAX_ROWS_OF_ALL: usize = 1 << 20;
/// The entry for user programs, which ends the stack at a program. The entry is given as bytes, because its range is
/// the whole address space of user programs, and `gimli` does not accept such a length.
const PROGRAMS_ENTRIES: [&[u8]; 2] = [
    // Version 4, no augmentation, addresses of 8 bytes, no segments, factors 1 and -1, return address in RIP. Then
    // DW_CFA_def_cfa(RSP, 8), DW_CFA_undefined(RIP), and zeroes.
    &[20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 4, 0, 8, 0, 1, 0x7f, 16, 0x0c, 7, 8, 0x07, 16, 0, 0, 0, 0],
    &[20, 0, 0, 0],
];

/// The name of the section with unwind information.
pub(super) const SECTION: &str = ".debug_frame";

/// The section for a kernel with its modules.
pub(crate) fn of_kernel(unwinder: &Unwinder, symbols: &Symbols) -> Sections {
    vec![(SECTION, Frames::of(unwinder, symbols).bytes())]
}

/// Adds the entry for user programs to a frame section.
pub(crate) fn add_programs(bytes: &mut Vec<u8>) {
    let common = bytes.len() as u32;
    bytes.extend(PROGRAMS_ENTRIES.concat());
    bytes.extend(common.to_le_bytes());
    bytes.extend([PROGRAMS.start, PROGRAMS.end - PROGRAMS.start].map(u64::to_le_bytes).concat());
}

/// The section with unwind information while it is being written.
struct Frames {
    table: FrameTable,
    /// The common entries (CIEs). There is one for called code, one for interrupt entry code, one for returns from
    /// interrupts, and one for code without a caller.
    called: CieId,
    entered: CieId,
    returning: CieId,
    first: CieId,
    /// The address of IRET.
    iret: Option<u64>,
    /// The entry to which new rows are added, if there is one.
    open: Option<Open>,
}

/// An entry for called code.
struct Open {
    code: Range<u64>,
    /// The rules, each with the offset in the code from which it applies.
    rules: Vec<(u32, Rule)>,
    rows: usize,
    last: Entry,
}

impl Frames {
    fn of(unwinder: &Unwinder, symbols: &Symbols) -> Frames {
        let mut frames = Frames::new(symbols.address_of(IRET).filter(|iret| IMAGE.contains(iret)));
        let around = frames.iret.map(|iret| iret - 1..iret + IRET_BYTES);
        for (code, entry) in unwinder.rows().take(MAX_ROWS_OF_ALL) {
            for part in without(code, around.clone()) {
                frames.add(part, entry);
            }
        }
        frames.close();
        if let Some(around) = around {
            frames.add_whole(frames.returning, around, Vec::new());
        }
        frames
    }

    fn new(iret: Option<u64>) -> Frames {
        let mut table = FrameTable::default();
        let mut add = |rules: Vec<Rule>, is_signal: bool| {
            let mut common = CommonInformationEntry::new(ENCODING, 1, -1, X86_64::RA);
            common.signal_trampoline = is_signal;
            rules.into_iter().for_each(|rule| common.add_instruction(rule));
            table.add_cie(common)
        };
        let of_caller = [Rule::Cfa(X86_64::RSP, 8), Rule::Offset(X86_64::RA, -8)];
        let called = add(of_caller.into_iter().chain(LOST.map(Rule::Undefined)).collect(), false);
        let by_processor = BY_PROCESSOR.map(|(register, at)| Rule::Offset(register, at));
        let by_processor: Vec<Rule> = iter::once(Rule::Cfa(X86_64::RSP, 0)).chain(by_processor).collect();
        let returning = add(by_processor, true);
        let entered = match iret {
            Some(iret) => {
                let mut address = Expression::new();
                address.op_addr(Address::Constant(iret));
                add(vec![Rule::Cfa(X86_64::RSP, 0), Rule::ValExpression(X86_64::RA, address)], false)
            }
            None => returning,
        };
        let first = add(vec![Rule::Cfa(X86_64::RSP, 8), Rule::Undefined(X86_64::RA)], false);
        Frames { table, called, entered, returning, first, iret, open: None }
    }

    /// Adds the rule from the kernel's tables for a range of code.
    fn add(&mut self, code: Range<u64>, entry: Entry) {
        // The format has 32 bits for the length of a range. No kernel's table has a longer range.
        if code.end - code.start > u64::from(u32::MAX) {
            return;
        }
        let above = match entry.kind {
            Kind::Call => 0,
            Kind::Registers => PROCESSORS,
            Kind::InterruptFrame => 0,
            Kind::None => return self.add_whole(self.first, code, Vec::new()),
        };
        let Some(frame) = frame(&entry, above) else { return self.add_whole(self.first, code, Vec::new()) };
        if entry.kind == Kind::Call {
            return self.add_row(code, entry, frame);
        }
        let registers = SAVED.map(|(register, at)| Rule::Offset(register, at as i32 - PROCESSORS));
        let registers = registers.into_iter().filter(|_| entry.kind == Kind::Registers);
        let rules = iter::once(frame).chain(registers).chain(base(&entry)).collect();
        self.add_whole(self.entered, code, rules);
    }

    /// Adds an entry for a range of code, with these rules for the whole range.
    fn add_whole(&mut self, common: CieId, code: Range<u64>, rules: Vec<Rule>) {
        self.close();
        let mut entry = description(&code);
        rules.into_iter().for_each(|rule| entry.add_instruction(0, rule));
        self.table.add_fde(common, entry);
    }

    /// Adds a row for called code: to the open entry if the code follows that entry's code, otherwise to a new entry.
    fn add_row(&mut self, code: Range<u64>, entry: Entry, frame: Rule) {
        let follows = |open: &Open| {
            open.code.end == code.start
                && open.rows < MAX_ROWS
                && code.end - open.code.start <= u64::from(u32::MAX)
        };
        if !self.open.as_ref().is_some_and(follows) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| Open {
            code: code.start..code.start,
            rules: Vec::new(),
            rows: 0,
            last: Entry { bp_register: 0, ..entry },
        });
        let at = (code.start - open.code.start) as u32;
        if open.rows == 0
            || (entry.sp_register, entry.sp_offset) != (open.last.sp_register, open.last.sp_offset)
        {
            open.rules.push((at, frame));
        }
        if (entry.bp_register, entry.bp_offset) != (open.last.bp_register, open.last.bp_offset) {
            open.rules.push((at, base(&entry).unwrap_or(Rule::SameValue(X86_64::RBP))));
        }
        open.code.end = code.end;
        open.rows += 1;
        open.last = entry;
    }

    /// Closes the open entry.
    fn close(&mut self) {
        if let Some(Open { code, rules, .. }) = self.open.take() {
            let mut entry = description(&code);
            rules.into_iter().for_each(|(at, rule)| entry.add_instruction(at, rule));
            self.table.add_fde(self.called, entry);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut section = DebugFrame(EndianVec::new(LittleEndian));
        self.table.write_debug_frame(&mut section).expect("vectors take any number of bytes");
        section.0.into_vec()
    }
}

fn description(code: &Range<u64>) -> FrameDescriptionEntry {
    FrameDescriptionEntry::new(Address::Constant(code.start), (code.end - code.start) as u32)
}

/// The pieces of a range of code that remain without `part`.
fn without(code: Range<u64>, part: Option<Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let part = part.unwrap_or(code.end..code.end);
    let pieces = [code.start..part.start.min(code.end), part.end.max(code.start)..code.end];
    pieces.into_iter().filter(|piece| !piece.is_empty())
}

/// The rule for the frame's address (CFA). The address is `above` bytes higher than the stack pointer that the kernel's
/// tables give. `None` if the tables do not describe the function.
fn frame(entry: &Entry, above: i32) -> Option<Rule> {
    let offset = i32::from(entry.sp_offset);
    Some(match entry.sp_register {
        register::SP => Rule::Cfa(X86_64::RSP, offset + above),
        register::BP => Rule::Cfa(X86_64::RBP, offset + above),
        register::R10 => Rule::Cfa(X86_64::R10, above),
        register::R13 => Rule::Cfa(X86_64::R13, above),
        register::DI => Rule::Cfa(X86_64::RDI, above),
        register::DX => Rule::Cfa(X86_64::RDX, above),
        register::SP_INDIRECT => Rule::CfaExpression(indirect(X86_64::RSP, 0, offset + above)),
        register::BP_INDIRECT => Rule::CfaExpression(indirect(X86_64::RBP, offset, above)),
        _ => return None,
    })
}

/// The rule for RBP, if it is saved: in the frame, or at an address relative to RBP.
fn base(entry: &Entry) -> Option<Rule> {
    let offset = i32::from(entry.bp_offset);
    match entry.bp_register {
        // In a frame of saved registers, the tables' offsets are from the start of the frame.
        register::PREV_SP if entry.kind == Kind::Registers => {
            Some(Rule::Offset(X86_64::RBP, offset - PROCESSORS))
        }
        register::PREV_SP => Some(Rule::Offset(X86_64::RBP, offset)),
        register::BP => {
            let mut place = Expression::new();
            place.op_breg(X86_64::RBP, offset.into());
            Some(Rule::Expression(X86_64::RBP, place))
        }
        _ => None,
    }
}

/// An expression: loads from a register plus an offset, then adds another offset.
fn indirect(register: Register, offset: i32, then: i32) -> Expression {
    let mut expression = Expression::new();
    expression.op_breg(register, offset.into());
    expression.op_deref();
    if then != 0 {
        expression.op_consts(then.into());
        expression.op(DW_OP_plus);
    }
    expression
}
