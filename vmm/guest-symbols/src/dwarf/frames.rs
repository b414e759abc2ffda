//! How to get from a function to its caller, as debuggers take it (`.debug_frame`), of the kernel's own tables (ORC).
//!
//! What is where is in [`orc`](crate::orc). Of a caller's registers the tables know the stack pointer, RBP and the address,
//! so that the others are said to be lost. What was interrupted has all of its registers saved, or still has them: code
//! that handles an interrupt is described as if the kernel's IRET had called it, which is where it goes to. IRET itself
//! leads on to what was interrupted, and it alone is what debuggers call a signal handler's frame: the address there is
//! not one that a call returns to. So functions have their names, and breakpoints that `finish` sets are reached.
//!
//! ```text
//! #0  __sysvec_apic_timer_interrupt ()
//! #1  sysvec_apic_timer_interrupt ()
//! #2  asm_sysvec_apic_timer_interrupt ()
//! #3  <signal handler called>                 native_irq_return_iret
//! #4  default_idle ()
//! ```
//!
//! Programs have an entry too, which says that nothing called them: debuggers would guess.

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

/// Where interrupts and exceptions return.
const IRET: &str = "native_irq_return_iret";
/// IRET has two bytes. Debuggers look for what a call returns to one byte before it.
const IRET_BYTES: u64 = 2;
/// Where programs are. gdb looks for what begins at the first address, and warns if that is a variable's, which an
/// offset may be: none is odd.
const PROGRAMS: Range<u64> = 0x1001..0x7fff_ffff_f000;
/// Debuggers go through all rows up to the one that they look for.
const MAX_ROWS: usize = 64;
/// What of `struct pt_regs` the processor saves begins there.
const PROCESSORS: i32 = saved::RIP as i32;
/// What the kernel's entry code saves, and where.
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
/// The registers that the processor saves, and where.
const BY_PROCESSOR: [(Register, i32); 5] =
    [(X86_64::RA, 0), (X86_64::CS, 8), (X86_64::RFLAGS, 16), (X86_64::RSP, 24), (X86_64::SS, 32)];
/// What calls do not keep, as far as the tables know.
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

/// No more rows are taken: a kernel has fewer.
const MAX_ROWS_OF_ALL: usize = 1 << 20;
/// That nothing called programs, byte by byte because a program may be anywhere, and `gimli` takes no such length.
const PROGRAMS_ENTRIES: [&[u8]; 2] = [
    // Version 4, no augmentation, addresses of 8 bytes, no segments, factors 1 and -1, what returns in RIP. Then
    // DW_CFA_def_cfa(RSP, 8), DW_CFA_undefined(RIP), and zeroes.
    &[20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 4, 0, 8, 0, 1, 0x7f, 16, 0x0c, 7, 8, 0x07, 16, 0, 0, 0, 0],
    &[20, 0, 0, 0],
];

/// The section's name.
pub(super) const SECTION: &str = ".debug_frame";

/// The section for a kernel with its modules.
pub(crate) fn of_kernel(unwinder: &Unwinder, symbols: &Symbols) -> Sections {
    vec![(SECTION, Frames::of(unwinder, symbols).bytes())]
}

/// Adds that nothing called programs to a section.
pub(crate) fn add_programs(bytes: &mut Vec<u8>) {
    let common = bytes.len() as u32;
    bytes.extend(PROGRAMS_ENTRIES.concat());
    bytes.extend(common.to_le_bytes());
    bytes.extend([PROGRAMS.start, PROGRAMS.end - PROGRAMS.start].map(u64::to_le_bytes).concat());
}

/// The section that is being written.
struct Frames {
    table: FrameTable,
    /// Of code that is called, that is entered by interrupts, that returns from them, and that nothing called.
    called: CieId,
    entered: CieId,
    returning: CieId,
    first: CieId,
    /// Where IRET is.
    iret: Option<u64>,
    /// The entry to which rows are added.
    open: Option<Open>,
}

/// An entry for code that is called.
struct Open {
    code: Range<u64>,
    /// From which distance on what holds.
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

    /// Adds what the tables say of a stretch of code.
    fn add(&mut self, code: Range<u64>, entry: Entry) {
        // The format has 32 bits for it, and no table of a kernel has such a hole in it.
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

    /// An entry of its own for a stretch of code.
    fn add_whole(&mut self, common: CieId, code: Range<u64>, rules: Vec<Rule>) {
        self.close();
        let mut entry = description(&code);
        rules.into_iter().for_each(|rule| entry.add_instruction(0, rule));
        self.table.add_fde(common, entry);
    }

    /// A row for code that is called, in the entry of the code before it if there is one.
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

    /// Ends the entry to which rows are added.
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

/// What is left of a stretch of code without a part of it.
fn without(code: Range<u64>, part: Option<Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let part = part.unwrap_or(code.end..code.end);
    let pieces = [code.start..part.start.min(code.end), part.end.max(code.start)..code.end];
    pieces.into_iter().filter(|piece| !piece.is_empty())
}

/// Where the caller's stack begins, which debuggers know frames by, so many bytes above what the table says. `None`
/// where it says nothing.
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

/// Where RBP is saved, if it is: in the frame, or by what RBP itself says.
fn base(entry: &Entry) -> Option<Rule> {
    let offset = i32::from(entry.bp_offset);
    match entry.bp_register {
        // In a frame of saved registers what the table says is from their beginning on.
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

/// What is in memory at a register with an offset, and another offset from that.
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
