//! Sets of followed bytes, and single steps.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::*;
use crate::seen::tests::{access, step};

fn register(processor: usize, register: Reg, byte: u8) -> Cell {
    Cell::Register { processor, register, byte }
}

fn general(number: u8, byte: u8) -> Cell {
    register(1, Reg::General(number), byte)
}

#[test]
fn each_register_has_a_bit_of_its_own() {
    let general = (0..16).map(Reg::General).map(register_bit);
    let vectors = (0..16).map(Reg::Vector).map(register_bit);
    let bits: Vec<Registers> = general.chain(vectors).collect();
    let expected: Vec<Registers> = (0..32).map(|bit| 1 << bit).collect();
    assert_eq!(bits, expected);
}

#[test]
fn the_registers_of_an_instruction_include_those_of_its_address_and_of_areas() {
    let touched = |assemble: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let (instruction, _) = step(assemble, Vec::new(), Vec::new()).executed.unwrap();
        touched_registers(&mut InstructionInfoFactory::new(), &instruction)
    };
    assert_eq!(touched(|a| a.mov(rax, rbx)), 1 | 1 << 3);
    assert_eq!(touched(|a| a.mov(cl, byte_ptr(rdx + r15 * 8))), 1 << 1 | 1 << 2 | 1 << 15);
    assert_eq!(touched(|a| a.movaps(xmm1, xmm15)), 1 << 17 | 1 << 31);
    assert_eq!(touched(|a| a.add(rax, rax)), 1);
    for areas in [|a: &mut CodeAssembler| a.fxsave(ptr(rbx)), |a: &mut CodeAssembler| a.fxrstor(ptr(rbx))] {
        assert_eq!(touched(areas), 0xffff_0000 | 1 << 3);
    }
}

#[test]
fn a_set_has_the_bytes_that_were_added_and_not_removed() {
    let mut followed = Followed::default();
    assert!(followed.is_empty() && !followed.has_registers());
    let vector = register(2, Reg::Vector(3), 15);
    for cell in [general(0, 0), general(0, 7), vector, register(1, Reg::General(5), 2)] {
        followed.add(cell, 9);
        assert!(followed.holds(cell));
    }
    assert!(!followed.is_empty() && followed.has_registers());
    assert!(!followed.holds(general(0, 1)) && !followed.holds(general(1, 0)));
    assert!(!followed.holds(register(0, Reg::General(0), 0)));
    assert_eq!([0, 1, 2].map(|number| followed.registers_of(number)), [0, 1 | 1 << 5, 1 << 19]);
    followed.remove(general(0, 7));
    assert!(followed.holds(general(0, 0)) && !followed.holds(general(0, 7)));
    assert_eq!(followed.registers_of(1), 1 | 1 << 5);
    followed.remove(general(0, 0));
    followed.remove(general(0, 0));
    assert_eq!(followed.registers_of(1), 1 << 5);
    followed.add(Cell::Memory(0x5000), 0x33);
    followed.remove(vector);
    followed.remove(register(1, Reg::General(5), 2));
    assert!(!followed.is_empty() && !followed.has_registers());
    followed.remove(Cell::Memory(0x5000));
    assert!(followed.is_empty());
}

#[test]
fn a_set_knows_the_bytes_of_memory() {
    let mut followed = Followed::default();
    for (address, value) in [(0x1fff, 1), (0x2000, 2), (0x2001, 3), (0x7008, 4), (0x2000, 5)] {
        followed.add(Cell::Memory(address), value);
    }
    followed.add(general(3, 1), 0);
    let expected: Vec<(Cell, Option<u8>)> = vec![
        (general(3, 1), None),
        (Cell::Memory(0x1fff), Some(1)),
        (Cell::Memory(0x2000), Some(5)),
        (Cell::Memory(0x2001), Some(3)),
        (Cell::Memory(0x7008), Some(4)),
    ];
    assert_eq!(followed.cells(), expected);
    assert_eq!(followed.value_of(Cell::Memory(0x2001)), 3);
    assert_eq!((followed.value_of(Cell::Memory(0x2002)), followed.value_of(general(3, 1))), (0, 0));
    assert_eq!(followed.memory_in(0x1fff, 2), [0x1fff, 0x2000]);
    assert_eq!(followed.memory_in(0x2000, 1), [0x2000]);
    assert!(followed.memory_in(0x2002, 0x5006).is_empty());
    let mut ranges: Vec<u64> = followed.ranges().into_iter().map(|range| *range.addresses.start()).collect();
    ranges.sort_unstable();
    assert_eq!(ranges, [0x1fff, 0x2000, 0x2001, 0x7008]);
    for range in followed.ranges() {
        assert_eq!((range.space, range.addresses.start()), (AddressKind::Physical, range.addresses.end()));
    }

    // The last byte of an access may be in the next page.
    for (physical, bytes, touches) in [
        (0x1ff8, 8, true),
        (0x1ff7, 8, false),
        (0x2002, 0x10, false),
        (0x6fff, 10, true),
        (0x6fff, 9, false),
        (0x7008, 1, true),
        (0x7009, 8, false),
        (0x9000, 8, false),
    ] {
        assert_eq!(followed.touches(physical, bytes), touches, "{physical:#x} {bytes}");
    }
    // A page is touched until its last byte is removed.
    followed.remove(Cell::Memory(0x2000));
    assert!(followed.touches(0x2001, 1) && !followed.touches(0x2000, 1));
    followed.remove(Cell::Memory(0x2001));
    followed.remove(Cell::Memory(0x2001));
    assert!(!followed.touches(0x2000, 8) && followed.touches(0x1fff, 1) && followed.touches(0x7008, 1));
    followed.add(Cell::Memory(0x2001), 3);
    assert!(followed.touches(0x2000, 8));
}

/// RDX and eight bytes at the physical address 0x17000 hold the value. The bytes there are 0x10, 0x11 and so on.
fn following() -> Followed {
    let mut followed = Followed::default();
    for byte in 0..8 {
        followed.add(general(2, byte), 0);
        followed.add(Cell::Memory(0x17000 + u64::from(byte)), 0x10 + byte);
    }
    followed
}

/// The kinds of the uses in a step, with the numbers of bytes that the step read and wrote.
fn uses(step: &Step, through: bool) -> (Vec<(Kind, usize, usize)>, Followed) {
    let mut followed = following();
    let uses = followed.pass(step, through);
    (uses.iter().map(|used| (used.kind, used.from.len(), used.to.len())).collect(), followed)
}

/// Checks rows of an instruction, the physical addresses of its load and its store, and its uses of the value.
macro_rules! table {
    ($($assemble:expr, $load:expr, $store:expr => $uses:expr;)*) => {$(
        let part = |physical: u64, first| match physical {
            0 => Vec::new(),
            _ => vec![access(physical - 0x10000, physical, first, 8)],
        };
        let replayed = step($assemble, part($load, 0x10), part($store, 0x20));
        assert_eq!(uses(&replayed, false).0, $uses, "{}", stringify!($assemble, $load, $store));
    )*};
}

/// The address of the followed bytes. The next constant is the address of other bytes.
const HELD: u64 = 0x17000;
const OTHER: u64 = 0x28000;

#[test]
fn a_step_copies_compares_computes_sends_or_jumps() {
    use Kind::{Address, Compared, Computed, Copied, Jumped, Sent};
    const NONE: [(Kind, usize, usize); 0] = [];
    table! {
        |a| a.mov(rax, qword_ptr(rbx)), HELD, 0 => [(Copied, 8, 8)];
        |a| a.mov(rax, qword_ptr(rbx)), OTHER, 0 => NONE;
        |a| a.mov(eax, dword_ptr(rbx)), OTHER, 0 => NONE;
        |a| a.mov(rax, qword_ptr(rdx)), OTHER, 0 => [(Address, 8, 0)];
        |a| a.mov(rax, qword_ptr(rbx + rdx * 2)), OTHER, 0 => [(Address, 8, 0)];
        |a| a.mov(rax, qword_ptr(rdx)), HELD, 0 => [(Copied, 8, 8), (Address, 8, 0)];
        |a| a.mov(qword_ptr(rbx), rdx), 0, OTHER => [(Copied, 8, 8)];
        |a| a.mov(qword_ptr(rdx), rbx), 0, OTHER => [(Address, 8, 0)];
        |a| a.mov(qword_ptr(rdx), rdx), 0, OTHER => [(Copied, 8, 8)];
        |a| a.mov(rbx, rcx), 0, 0 => NONE;
        |a| a.mov(eax, edx), 0, 0 => [(Copied, 4, 4)];
        |a| a.add(rax, rdx), 0, 0 => [(Computed, 8, 8)];
        |a| a.add(rax, rcx), 0, 0 => NONE;
        |a| a.lea(rax, ptr(rdx + 8)), 0, 0 => [(Computed, 8, 8)];
        |a| a.xor(edx, edx), 0, 0 => NONE;
        |a| a.cmp(rdx, rax), 0, 0 => [(Compared, 8, 0)];
        |a| a.test(dl, dl), 0, 0 => [(Compared, 1, 0)];
        |a| a.test(dh, 1), 0, 0 => [(Compared, 1, 0)];
        |a| a.cmpsq(), HELD, 0 => [(Compared, 8, 0)];
        |a| a.scasq(), HELD, 0 => [(Compared, 8, 0)];
        |a| a.ucomisd(xmm1, qword_ptr(rbx)), HELD, 0 => [(Compared, 8, 0)];
        |a| a.ptest(xmm1, xmmword_ptr(rbx)), HELD, 0 => [(Compared, 8, 0)];
        |a| a.pcmpistri(xmm1, xmmword_ptr(rbx), 0), HELD, 0 => [(Compared, 8, 0)];
        // CMPSD of SSE2 has the name of a string instruction. The instruction computes a mask.
        |a| a.cmpsd_3(xmm1, qword_ptr(rbx), 0), HELD, 0 => [(Computed, 8, 16)];
        |a| a.jmp(rdx), 0, 0 => [(Jumped, 8, 0)];
        |a| a.call(qword_ptr(rbx)), HELD, OTHER => [(Jumped, 8, 0)];
        |a| a.ret(), HELD, 0 => [(Jumped, 8, 0)];
        |a| a.out(dx, eax), 0, 0 => [(Sent, 2, 0)];
        // DX has the port.
        |a| a.outsb(), HELD, 0 => [(Sent, 10, 0)];
        |a| a.movsq(), HELD, OTHER => [(Copied, 8, 8)];
        |a| a.cmpxchg(rcx, rdx), 0, 0 => NONE;
        |a| a.nop(), 0, 0 => NONE;
    }
    // RSI, RDI and RCX of string instructions are no values.
    let mut followed = Followed::default();
    for number in [1, 6, 7] {
        followed.add(general(number, 0), 0);
    }
    let copy =
        step(|a| a.rep().movsq(), vec![access(0x18000, OTHER, 0, 8)], vec![access(0x8000, 0x9000, 0, 8)]);
    let uses = followed.pass(&copy, false);
    assert_eq!(uses.iter().map(|used| (used.kind, used.from.len())).collect::<Vec<_>>(), [(Address, 3)]);
}

#[test]
fn a_step_ends_what_it_overwrites_and_adds_its_copies() {
    let (_, followed) = uses(&step(|a| a.mov(rcx, rdx), Vec::new(), Vec::new()), false);
    assert!(followed.holds(general(1, 7)) && followed.holds(general(2, 7)));
    let (_, followed) = uses(&step(|a| a.mov(edx, ecx), Vec::new(), Vec::new()), false);
    assert!(!followed.has_registers());
    let (_, followed) = uses(&step(|a| a.mov(dl, cl), Vec::new(), Vec::new()), false);
    assert!(!followed.holds(general(2, 0)) && followed.holds(general(2, 1)));
    let (_, followed) = uses(&step(|a| a.cmovb(rdx, rcx), Vec::new(), Vec::new()), false);
    assert!(followed.holds(general(2, 0)), "the condition is false, so the register is kept");
    let (_, followed) = uses(&step(|a| a.xchg(rdx, rcx), Vec::new(), Vec::new()), false);
    assert!(followed.holds(general(1, 0)) && !followed.holds(general(2, 0)));
    let store = || vec![access(0x8000, OTHER, 0x77, 8)];
    let (_, followed) = uses(&step(|a| a.mov(qword_ptr(rbx), rdx), Vec::new(), store()), false);
    // The register's bytes are 0x2000.
    assert_eq!(followed.memory_in(OTHER, 8).len(), 8);
    assert_eq!([0, 1].map(|byte| followed.value_of(Cell::Memory(OTHER + byte))), [0, 0x20]);
    // Results of computations count only if the user wants so.
    let sum = || step(|a| a.add(qword_ptr(rbx), rdx), vec![access(0x8000, OTHER, 0x66, 8)], store());
    let (found, followed) = uses(&sum(), false);
    assert_eq!((found, followed.memory_in(OTHER, 8).len()), (vec![(Kind::Computed, 8, 8)], 0));
    let (_, followed) = uses(&sum(), true);
    assert_eq!(followed.value_of(Cell::Memory(OTHER + 7)), 0x7e);
    // A device wrote the third byte before this load.
    let mut bytes = access(0x7000, HELD, 0x10, 8);
    bytes.bytes[2] = 0xff;
    let (found, followed) = uses(&step(|a| a.mov(rax, qword_ptr(rbx)), vec![bytes], Vec::new()), false);
    assert_eq!(found, [(Kind::Copied, 7, 7)]);
    assert!(!followed.holds(general(0, 2)) && !followed.holds(Cell::Memory(HELD + 2)));
    assert!(followed.holds(general(0, 1)) && followed.holds(Cell::Memory(HELD + 1)));
}
