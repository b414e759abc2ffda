//! Tests with made-up stacks and tables, in both formats of the entries.

use super::{BASE, DIRECT_MAP, Pages, Types, found};
use crate::modules::{Missing, Module};
use crate::orc::{Backtrace, End, Frame, MAX_FRAMES, Registers, Unwinder};
use crate::sections::{Access, Section};
use crate::symbols::Symbols;

const TYPES: u64 = BASE + 0x10_0000;
const ADDRESSES: u64 = BASE + 0x20_0000;
pub(super) const ENTRIES: u64 = BASE + 0x21_0000;
const MODULES: u64 = BASE + 0x2_0000;
const MODULE: u64 = 0xffff_ffff_c020_8000;
const OTHER: u64 = 0xffff_ffff_c030_8000;
pub(super) const MODULE_CODE: u64 = 0xffff_ffff_c020_0000;
const STACK: u64 = DIRECT_MAP + 0x10_0000;
/// The addresses of functions, named after their use of the stack.
pub(super) const LEAF: u64 = BASE;
pub(super) const FRAMED: u64 = BASE + 0x1000;
pub(super) const HANDLER: u64 = BASE + 0x2000;
const ENTRY: u64 = BASE + 0x3000;
pub(super) const FIRST: u64 = BASE + 0x4000;
/// An address in the code that interrupts enter.
pub(super) const IRET: u64 = BASE + 0x3800;
const END: u64 = BASE + 0x5000;
const USER: u64 = 0x40_1000;
/// The address of the entry that shows how registers are numbered.
const EXAMPLE: u64 = BASE + 0x22_0000;

const SP: u16 = 5;
const BP: u16 = 4;
const PREV_SP: u16 = 1;

/// The type of an entry, as the two formats number it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Call,
    Registers,
    InterruptFrame,
    Nothing,
}

pub(super) fn entry(
    is_old: bool,
    (sp, sp_offset): (u16, i16),
    (bp, bp_offset): (u16, i16),
    kind: Kind,
) -> [u8; 6] {
    let kind = match (kind, is_old) {
        (Kind::Call, true) => 0,
        (Kind::Registers, true) => 1,
        (Kind::InterruptFrame, true) => 2,
        (Kind::Nothing, true) => 0b100,
        (Kind::Call, false) => 2,
        (Kind::Registers, false) => 3,
        (Kind::InterruptFrame, false) => 4,
        (Kind::Nothing, false) => 1,
    };
    let words = [sp_offset as u16, bp_offset as u16, sp | bp << 4 | kind << 8];
    words.map(u16::to_le_bytes).concat().try_into().unwrap()
}

/// Writes a table; returns the number of its entries.
fn table(memory: &mut Pages, addresses: u64, entries: u64, rows: &[(u64, [u8; 6])]) -> u32 {
    for (number, (code, entry)) in (0..).zip(rows) {
        let place = addresses + 4 * number;
        memory.write(place, &(code.wrapping_sub(place) as i32).to_le_bytes());
        memory.write(entries + 6 * number, entry);
    }
    rows.len() as u32
}

fn types(is_old: bool) -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let last = if is_old { "end" } else { "signal" };
    types.structure("orc_entry", 6, &[("sp_offset", 1, 0), ("bp_offset", 1, 2), (last, 1, 4)]);
    let fields = [("num_orcs", 1, 0), ("orc_unwind_ip", 1, 8), ("orc_unwind", 1, 16)];
    let arch = types.structure("mod_arch_specific", 24, &fields);
    types.structure("module", 0x100, &[("list", 1, 8), ("name", 1, 0x18), ("arch", arch, 0x40)]);
    types
}

/// A kernel with these functions, and a module with a function that keeps 16 bytes on its stack.
fn kernel(is_old: bool) -> (Pages, Unwinder) {
    let (memory, unwinder, _) = kernel_and_symbols(is_old);
    (memory, unwinder)
}

/// The kernel of [`kernel`], and its symbols.
pub(super) fn kernel_and_symbols(is_old: bool) -> (Pages, Unwinder, Symbols) {
    let mut memory = Pages::default();
    let bytes = types(is_old).bytes();
    memory.write(TYPES, &bytes);
    let rows = [
        (LEAF, entry(is_old, (SP, 8), (0, 0), Kind::Call)),
        (FRAMED, entry(is_old, (BP, 16), (PREV_SP, -16), Kind::Call)),
        (HANDLER, entry(is_old, (SP, 0), (0, 0), Kind::Registers)),
        (ENTRY, entry(is_old, (SP, 0), (0, 0), Kind::Registers)),
        (FIRST, entry(is_old, (0, 0), (0, 0), Kind::Nothing)),
    ];
    let count = table(&mut memory, ADDRESSES, ENTRIES, &rows);
    memory.write_u64(MODULES, OTHER + 8);
    memory.write_u64(OTHER + 8, MODULE + 8);
    memory.write_u64(MODULE + 8, MODULES);
    let keeps = entry(is_old, (SP, 24), (0, 0), Kind::Call);
    let rows = [(MODULE_CODE, keeps), (MODULE_CODE + 0x100, entry(is_old, (0, 0), (0, 0), Kind::Nothing))];
    write_module(&mut memory, MODULE, b"desk\0", &rows);
    // The freed init code of this module had addresses at which the other module's code is now.
    let nothing = entry(is_old, (0, 0), (0, 0), Kind::Nothing);
    write_module(
        &mut memory,
        OTHER,
        b"other\0",
        &[(MODULE_CODE - 0x100, nothing), (MODULE_CODE + 0x200, nothing)],
    );
    let symbols = vec![
        found(BASE, 'T', "_stext"),
        found(IRET, 't', "native_irq_return_iret"),
        found(END, 'T', "_etext"),
        found(MODULES, 'd', "modules"),
        found(TYPES, 'R', "__start_BTF"),
        found(TYPES + bytes.len() as u64, 'R', "__stop_BTF"),
        found(ADDRESSES, 'R', "__start_orc_unwind_ip"),
        found(ADDRESSES + 4 * u64::from(count), 'R', "__stop_orc_unwind_ip"),
        found(ENTRIES, 'R', "__start_orc_unwind"),
        found(EXAMPLE, 'r', "null_orc_entry"),
    ];
    let section = Section::new(".text.desk", MODULE_CODE, 0x100, Access::Code);
    let desk = Module { name: "desk".into(), sections: section.into_iter().collect(), symbols: Vec::new() };
    let symbols = Symbols::new(symbols, vec![desk]);
    let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
    (memory, unwinder, symbols)
}

/// Writes the fields of `struct module` that describe its tables.
fn write_module(memory: &mut Pages, at: u64, name: &[u8], rows: &[(u64, [u8; 6])]) {
    let count = table(memory, at + 0x1000, at + 0x1100, rows);
    memory.write(at + 0x18, name);
    memory.write(at + 0x40, &count.to_le_bytes());
    memory.write_u64(at + 0x48, at + 0x1000);
    memory.write_u64(at + 0x50, at + 0x1100);
}

fn here(address: u64) -> Frame {
    Frame { address, is_return: false, stack: 0 }
}

fn returns(address: u64) -> Frame {
    Frame { address, is_return: true, stack: 0 }
}

/// Walks a stack, and leaves out the stack pointers of the frames.
fn walk(unwinder: &Unwinder, memory: &Pages, registers: Registers) -> Backtrace {
    let mut found = unwinder.walk(memory, registers);
    found.frames.iter_mut().for_each(|frame| frame.stack = 0);
    found
}

/// Writes a `struct pt_regs` to an address.
fn write_registers(memory: &mut Pages, at: u64, rip: u64, cs: u64, rsp: u64, rbp: u64) {
    (0..21).for_each(|number| memory.write_u64(at + 8 * number, 0));
    for (offset, value) in [(32, rbp), (128, rip), (136, cs), (152, rsp)] {
        memory.write_u64(at + offset, value);
    }
}

#[test]
fn a_stack_is_followed_through_calls_a_module_and_an_exception_to_the_program() {
    for is_old in [true, false] {
        let (mut memory, unwinder) = kernel(is_old);
        // A leaf. The leaf's caller has a frame pointer; that function's caller is an exception handler.
        let (frame, handler) = (STACK + 0x40, STACK + 0x50);
        memory.write_u64(STACK, FRAMED + 0x20);
        memory.write_u64(frame, 0x1234);
        memory.write_u64(frame + 8, HANDLER + 5);
        // The handler interrupted the module. The entry code of a system call had called the module.
        let interrupted = STACK + 0x200;
        write_registers(&mut memory, handler, MODULE_CODE + 0x80, 0x10, interrupted, 0x77);
        memory.write_u64(interrupted + 16, ENTRY + 9);
        write_registers(&mut memory, interrupted + 24, USER, 0x33, 0x7fff_0000, 0);
        let registers = Registers { rip: LEAF + 3, rsp: STACK, rbp: frame, ..Registers::default() };
        let frames = vec![
            here(LEAF + 3),
            returns(FRAMED + 0x20),
            returns(HANDLER + 5),
            here(MODULE_CODE + 0x80),
            returns(ENTRY + 9),
        ];
        let expected = Backtrace { frames, end: End::Program(USER) };
        assert_eq!(walk(&unwinder, &memory, registers), expected, "{is_old}");
        let stacks: Vec<u64> =
            unwinder.walk(&memory, registers).frames.iter().map(|frame| frame.stack).collect();
        assert_eq!(stacks, [STACK, STACK + 8, handler, interrupted, interrupted + 24], "{is_old}");
    }
}

#[test]
fn a_walk_ends_at_the_stack_s_beginning_in_a_program_and_where_memory_ends() {
    for is_old in [true, false] {
        let (mut memory, unwinder) = kernel(is_old);
        memory.write_u64(STACK, FIRST + 2);
        let leaf = Registers { rip: LEAF, rsp: STACK, ..Registers::default() };
        let expected = Backtrace { frames: vec![here(LEAF), returns(FIRST + 2)], end: End::Stack };
        assert_eq!(walk(&unwinder, &memory, leaf), expected);
        let program = Registers { rip: USER, is_user: true, ..leaf };
        let expected = Backtrace { frames: Vec::new(), end: End::Program(USER) };
        assert_eq!(walk(&unwinder, &memory, program), expected);
        let nowhere = Registers { rsp: 0x1000, ..leaf };
        assert_eq!(walk(&unwinder, &memory, nowhere), Backtrace { frames: vec![here(LEAF)], end: End::Lost });
    }
}

#[test]
fn registers_have_the_numbers_of_linux_7() {
    let (mut memory, _, symbols) = kernel_and_symbols(false);
    const NEW_SP: u16 = 3;
    const NEW_PREV_SP: u16 = 8;
    memory.write(EXAMPLE, &entry(false, (NEW_SP, 8), (0, 0), Kind::Call));
    memory.write(ENTRIES, &entry(false, (NEW_SP, 8), (0, 0), Kind::Call));
    memory.write(ENTRIES + 6, &entry(false, (BP, 16), (NEW_PREV_SP, -16), Kind::Call));
    let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
    let frame = STACK + 0x40;
    memory.write_u64(STACK, FRAMED + 0x20);
    memory.write_u64(frame, 0x1234);
    memory.write_u64(frame + 8, FIRST + 2);
    let leaf = Registers { rip: LEAF, rsp: STACK, rbp: frame, ..Registers::default() };
    let frames = vec![here(LEAF), returns(FRAMED + 0x20), returns(FIRST + 2)];
    assert_eq!(walk(&unwinder, &memory, leaf), Backtrace { frames, end: End::Stack });
}

/// Two functions with frame pointers: the second is found by the frame pointer that the first has saved.
#[test]
fn a_saved_frame_pointer_is_restored_in_both_numberings() {
    const NEW_SP: u16 = 3;
    const NEW_PREV_SP: u16 = 8;
    for (is_new, prev_sp) in [(false, PREV_SP), (true, NEW_PREV_SP)] {
        let (mut memory, _, symbols) = kernel_and_symbols(false);
        if is_new {
            memory.write(EXAMPLE, &entry(false, (NEW_SP, 8), (0, 0), Kind::Call));
        }
        memory.write(ENTRIES + 6, &entry(false, (BP, 16), (prev_sp, -16), Kind::Call));
        let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
        let (first, second) = (STACK + 0x40, STACK + 0x80);
        for (at, value) in [(first, second), (first + 8, FRAMED + 0x20), (second, 0), (second + 8, FIRST + 2)]
        {
            memory.write_u64(at, value);
        }
        let registers = Registers { rip: FRAMED + 5, rsp: STACK, rbp: first, ..Registers::default() };
        let frames = vec![here(FRAMED + 5), returns(FRAMED + 0x20), returns(FIRST + 2)];
        assert_eq!(walk(&unwinder, &memory, registers), Backtrace { frames, end: End::Stack }, "{is_new}");
    }
}

#[test]
fn a_stack_that_leads_in_circles_ends() {
    let (mut memory, unwinder) = kernel(true);
    let frame = STACK + 0x100;
    memory.write_u64(frame, frame);
    memory.write_u64(frame + 8, FRAMED + 1);
    let registers = Registers { rip: FRAMED + 1, rsp: frame, rbp: frame, ..Registers::default() };
    let found = walk(&unwinder, &memory, registers);
    assert_eq!((found.frames.len(), found.end), (2, End::Lost));
}

/// The last instruction of a function may be a call that never returns. The call's return address is then the start of
/// the next function, which has another row.
#[test]
fn a_call_that_is_the_last_instruction_of_a_function_belongs_to_it() {
    for is_old in [true, false] {
        let (mut memory, unwinder) = kernel(is_old);
        // The callers are a kernel function whose call is its last instruction, and the last function of a module.
        let frame = STACK + 0x40;
        memory.write_u64(STACK, HANDLER);
        memory.write_u64(frame, 0x1234);
        memory.write_u64(frame + 8, MODULE_CODE + 0x100);
        memory.write_u64(frame + 32, FIRST + 2);
        let leaf = Registers { rip: LEAF + 3, rsp: STACK, rbp: frame, ..Registers::default() };
        let frames = vec![here(LEAF + 3), returns(HANDLER), returns(MODULE_CODE + 0x100), returns(FIRST + 2)];
        let expected = Backtrace { frames, end: End::Stack };
        assert_eq!(walk(&unwinder, &memory, leaf), expected, "{is_old}");
        // Here the same address is the next instruction of a function and not a return address. So the row for this
        // address applies. By this row, the stack has saved registers.
        write_registers(&mut memory, STACK, FIRST + 2, 0x10, 0, 0);
        let begun = Registers { rip: HANDLER, ..leaf };
        let expected = Backtrace { frames: vec![here(HANDLER), here(FIRST + 2)], end: End::Stack };
        assert_eq!(walk(&unwinder, &memory, begun), expected, "{is_old}");
    }
}

#[test]
fn a_frame_has_the_name_of_the_function_that_called() {
    let symbols = super::symbols();
    let name = |frame: Frame| frame.name(&symbols);
    let begin = super::CODE + 0x40;
    assert_eq!(name(here(begin)).unwrap(), "sys_5+0x0/0xfc0 [tokens]");
    assert_eq!(name(returns(begin)).unwrap(), "take+0x30/0x30 [tokens]");
    assert_eq!(name(returns(begin + 1)).unwrap(), "sys_5+0x1/0xfc0 [tokens]");
    assert_eq!((here(begin).inside(), returns(begin).inside()), (begin, begin - 1));
}

/// Of a caller, only the stack pointer and RBP are known. Of interrupted code, all registers are known.
#[test]
fn registers_that_nobody_saved_lead_nowhere() {
    const R10: u16 = 6;
    let (mut memory, _, symbols) = kernel_and_symbols(false);
    memory.write(ENTRIES + 6, &entry(false, (R10, 0), (0, 0), Kind::Call));
    let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
    let (called, interrupted) = (STACK, STACK + 0x200);
    memory.write_u64(interrupted - 8, FIRST + 2);
    memory.write_u64(called, FRAMED + 0x20);
    let leaf = Registers { rip: LEAF, rsp: called, r10: interrupted, ..Registers::default() };
    let frames = vec![here(LEAF), returns(FRAMED + 0x20)];
    assert_eq!(walk(&unwinder, &memory, leaf), Backtrace { frames, end: End::Lost });
    write_registers(&mut memory, STACK, FRAMED + 0x20, 0x10, 0, 0);
    memory.write_u64(STACK + 56, interrupted);
    let handler = Registers { rip: HANDLER, rsp: STACK, ..Registers::default() };
    let frames = vec![here(HANDLER), here(FRAMED + 0x20), returns(FIRST + 2)];
    assert_eq!(walk(&unwinder, &memory, handler), Backtrace { frames, end: End::Stack });
}

#[test]
fn a_walk_has_a_limit() {
    let (mut memory, unwinder) = kernel(false);
    (0..2 * MAX_FRAMES as u64).for_each(|number| memory.write_u64(STACK + 8 * number, LEAF + 1));
    let found = walk(&unwinder, &memory, Registers { rip: LEAF, rsp: STACK, ..Registers::default() });
    assert_eq!((found.frames.len(), found.end), (MAX_FRAMES, End::Lost));
}

#[test]
fn a_table_out_of_order_is_refused() {
    let (mut memory, _, symbols) = kernel_and_symbols(false);
    // The second address now lies before the first.
    memory.write(ADDRESSES + 4, &((LEAF - 1).wrapping_sub(ADDRESSES + 4) as i32).to_le_bytes());
    let refused = Unwinder::of_kernel(&memory, &symbols).unwrap_err();
    assert_eq!(refused, Missing::Symbol("__start_orc_unwind_ip"));
}

/// The frame of an interrupt has only RIP, CS, RFLAGS, RSP and SS, so RBP keeps its value.
#[test]
fn a_frame_of_an_interrupt_keeps_the_frame_pointer() {
    for is_old in [true, false] {
        let (mut memory, _, symbols) = kernel_and_symbols(is_old);
        memory.write(ENTRIES + 12, &entry(is_old, (SP, 8), (0, 0), Kind::InterruptFrame));
        let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
        let frame = STACK + 0x100;
        for (number, word) in (1..).zip([FRAMED + 0x20, 0x10, 0, STACK + 0x80, 0]) {
            memory.write_u64(STACK + 8 * number, word);
        }
        memory.write_u64(frame, 0x1234);
        memory.write_u64(frame + 8, FIRST + 2);
        let handler = Registers { rip: HANDLER, rsp: STACK, rbp: frame, ..Registers::default() };
        let frames = vec![here(HANDLER), here(FRAMED + 0x20), returns(FIRST + 2)];
        assert_eq!(walk(&unwinder, &memory, handler), Backtrace { frames, end: End::Stack }, "{is_old}");
        // A program was interrupted.
        memory.write_u64(STACK + 16, 0x33);
        let expected = Backtrace { frames: vec![here(HANDLER)], end: End::Program(FRAMED + 0x20) };
        assert_eq!(walk(&unwinder, &memory, handler), expected, "{is_old}");
    }
}

/// Each case has a register's number in Linux 6 and in Linux 7, an offset, and the caller's stack pointer.
#[test]
fn each_register_can_lead_to_the_caller() {
    const NEW_SP: u16 = 3;
    let (target, indirect) = (STACK + 0x100, STACK + 0x80);
    let registers = |rip| Registers {
        rip,
        rsp: STACK,
        rbp: STACK + 0x40,
        rdx: target,
        rdi: target + 0x10,
        r10: target + 0x20,
        r13: target + 0x30,
        is_user: false,
    };
    for (old, new, offset, at) in [
        (2, 2, 0, target),
        (3, 5, 0, target + 0x10),
        (4, 4, 0x30, STACK + 0x70),
        (5, 3, 0x18, STACK + 0x18),
        (6, 6, 0, target + 0x20),
        (7, 7, 0, target + 0x30),
        (8, 10, 8, STACK + 0x200),
        (9, 9, 0x10, indirect + 0x10),
    ] {
        for (is_new, number) in [(false, old), (true, new)] {
            let (mut memory, _, symbols) = kernel_and_symbols(false);
            if is_new {
                memory.write(EXAMPLE, &entry(false, (NEW_SP, 8), (0, 0), Kind::Call));
            }
            memory.write(ENTRIES, &entry(false, (number, offset), (0, 0), Kind::Call));
            let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
            memory.write_u64(STACK, indirect);
            memory.write_u64(STACK + 0x48, STACK + 0x200);
            memory.write_u64(at - 8, FIRST + 2);
            let found = walk(&unwinder, &memory, registers(LEAF));
            let expected = Backtrace { frames: vec![here(LEAF), returns(FIRST + 2)], end: End::Stack };
            assert_eq!(found, expected, "register {number}, {is_new}");
        }
    }
    // A number that stands for no register.
    let (mut memory, _, symbols) = kernel_and_symbols(false);
    memory.write(ENTRIES, &entry(false, (12, 0), (0, 0), Kind::Call));
    let unwinder = Unwinder::of_kernel(&memory, &symbols).unwrap();
    let expected = Backtrace { frames: vec![here(LEAF)], end: End::Stack };
    assert_eq!(walk(&unwinder, &memory, registers(LEAF)), expected);
}
