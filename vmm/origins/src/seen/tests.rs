//! Steps whose loads and stores are written by hand.

use iced_x86::Register;
use iced_x86::code_asm::*;

use super::*;

/// A step of processor 1 that executes the first assembled instruction. Register N is 0x1000 * N.
pub fn step(
    assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    loads: Vec<Access>,
    stores: Vec<Access>,
) -> Step {
    let mut a = CodeAssembler::new(64).unwrap();
    assemble(&mut a).unwrap();
    let code = a.assemble(0x100).unwrap();
    let mut before = CpuState::reset();
    before.gpr = std::array::from_fn(|number| 0x1000 * number as u64);
    before.rflags = 2;
    let executed = Some((decode(64, 0x100, &code), Box::new(before)));
    Step { processor: 1, rip: 0x100, executed, loads, stores, ..Step::default() }
}

/// An access whose bytes are `first`, `first + 1` and so on.
pub fn access(linear: u64, physical: u64, first: u8, bytes: u8) -> Access {
    Access { linear, physical, bytes: (first..first + bytes).collect() }
}

fn register(processor: usize, number: u8, byte: u8) -> Cell {
    Cell::Register { processor, register: Reg::General(number), byte }
}

#[test]
fn the_bytes_of_a_step_have_linear_and_physical_addresses() {
    // The store crosses a page, and the pages are not neighbours in physical memory.
    let loads = vec![access(0x7000, 0x17000, 0x10, 8)];
    let stores = vec![access(0x8ffc, 0x28ffc, 0x20, 4), access(0x9000, 0x39000, 0x24, 4)];
    let step = step(|a| a.movsq(), loads, stores);
    for (linear, physical, value) in
        [(0x8ffc, 0x28ffc, 0x20), (0x8fff, 0x28fff, 0x23), (0x9000, 0x39000, 0x24), (0x9003, 0x39003, 0x27)]
    {
        assert_eq!(step.physical_of_store(linear), Some(physical), "{linear:#x}");
        assert_eq!(step.linear_of(physical), Some(linear), "{linear:#x}");
        assert_eq!(step.stored_at(Cell::Memory(physical)), Some(value), "{linear:#x}");
    }
    for (linear, physical) in [(0x8ffb, 0x28ffb), (0x9004, 0x39004)] {
        assert_eq!(step.physical_of_store(linear), None, "{linear:#x}");
        assert_eq!((step.linear_of(physical), step.stored_at(Cell::Memory(physical))), (None, None));
    }
    assert_eq!(step.stored_at(register(1, 0, 0)), None);
    // The load is known by its linear address, too.
    assert_eq!([0x17000, 0x17007, 0x17008].map(|at| step.linear_of(at)), [Some(0x7000), Some(0x7007), None]);
    let effects = step.effects();
    let origin = |cell| step.origin(&effects, cell);
    assert_eq!(
        origin(Cell::Memory(0x39001)),
        Some(Origin::Cell(Cell::Memory(0x17005), 0x15)),
        "byte 5 of the copied word"
    );
    assert_eq!(origin(Cell::Memory(0x17005)), None, "the step only loads this byte");
    assert_eq!(origin(register(1, 6, 0)), Some(Origin::Rule(Source::Computed)));
    assert_eq!(origin(register(0, 6, 0)), None, "a register of another processor");
}

#[test]
fn bytes_that_come_from_registers_have_the_values_before_the_step() {
    let stores = vec![access(0x8000, 0x28000, 0, 8)];
    let moved = step(|a| a.mov(qword_ptr(rbx), rdx), Vec::new(), stores);
    let effects = moved.effects();
    let origin = |byte: u8| moved.origin(&effects, Cell::Memory(0x28000 + u64::from(byte)));
    assert_eq!(origin(0), Some(Origin::Cell(register(1, 2, 0), 0)));
    assert_eq!(origin(1), Some(Origin::Cell(register(1, 2, 1), 0x20)));
    // The rules need the load's bytes. A copy from memory without the load is only computed.
    let unknown = step(|a| a.mov(rax, qword_ptr(rbx)), Vec::new(), Vec::new());
    let effects = unknown.effects();
    assert_eq!(unknown.origin(&effects, register(1, 0, 0)), Some(Origin::Rule(Source::Computed)));
}

/// The processor's state before the delivery of an interrupt is not recorded. The pushed stack pointer is its own value.
#[test]
fn a_delivery_stores_the_interrupted_stack_pointer() {
    let mut delivery = Delivery { vector: 0x20, has_error_code: false, rsp: 0x8000, is_64_bit: true };
    let stores =
        (0..5).map(|slot| access(0x8000 + 8 * slot, 0x28000 + 8 * slot, 0x10 * slot as u8, 8)).collect();
    let mut step = Step { processor: 1, stores, delivery: Some(delivery), ..Step::default() };
    let effects = step.effects();
    let origin = |byte: u64| step.origin(&effects, Cell::Memory(0x28000 + byte));
    assert_eq!(origin(24), Some(Origin::Cell(register(1, 4, 0), 0x30)));
    assert_eq!(origin(31), Some(Origin::Cell(register(1, 4, 7), 0x37)));
    assert_eq!(origin(8), Some(Origin::Rule(Source::Unfollowed("cs".to_string()))));
    assert_eq!(step.code(), "delivery of vector 32");
    delivery.has_error_code = true;
    step.delivery = Some(delivery);
    let effects = step.effects();
    let origin = |byte: u64| step.origin(&effects, Cell::Memory(0x28000 + byte));
    assert_eq!(origin(32), Some(Origin::Cell(register(1, 4, 0), 0x40)));
    assert!(Step::default().effects().is_empty());
    assert_eq!(Step::default().code(), "no instruction");
}

#[test]
fn all_iterations_of_a_repetition_have_the_same_identity() {
    let of = |step: Step| step.repetition();
    let copy = || step(|a| a.rep().movsq(), Vec::new(), Vec::new());
    // RCX is 0x1000, RSI is 0x6000 and RDI is 0x7000.
    assert_eq!(of(copy()), Some((1, 0x100, 0xe000, 0xf000)));
    let mut next = copy();
    let (_, before) = next.executed.as_mut().unwrap();
    before.gpr[1] -= 1;
    before.gpr[6] += 8;
    before.gpr[7] += 8;
    assert_eq!(of(next), Some((1, 0x100, 0xe000, 0xf000)));
    let mut down = copy();
    down.executed.as_mut().unwrap().1.rflags |= DIRECTION;
    assert_eq!(of(down), Some((1, 0x100, 0x6000_u64.wrapping_sub(0x8000), 0x7000_u64.wrapping_sub(0x8000))));
    // A fill has no source.
    assert_eq!(of(step(|a| a.rep().stosb(), Vec::new(), Vec::new())), Some((1, 0x100, 0, 0x8000)));
    let mut interrupted = copy();
    interrupted.delivery = Some(Delivery { vector: 0x20, has_error_code: false, rsp: 0, is_64_bit: true });
    assert_eq!(of(interrupted), None);
    for none in [
        step(|a| a.movsq(), Vec::new(), Vec::new()),
        step(|a| a.rep().lodsq(), Vec::new(), Vec::new()),
        step(|a| a.repe().cmpsb(), Vec::new(), Vec::new()),
        // MOVSD of SSE2 has the same name as the string instruction, and its encoding begins with the byte of REPNE.
        step(|a| a.movsd_2(xmm1, xmm2), Vec::new(), Vec::new()),
        Step::default(),
    ] {
        assert_eq!(none.repetition(), None, "{}", none.code());
    }
}

#[test]
fn registers_and_their_parts_belong_together() {
    assert!(
        [Register::RAX, Register::EAX, Register::AX, Register::AL, Register::AH]
            .iter()
            .all(|part| Reg::General(0).is(*part))
    );
    assert!(Reg::General(4).is(Register::SPL) && Reg::Vector(3).is(Register::XMM3));
    for (reg, other) in [
        (Reg::General(0), Register::RCX),
        (Reg::General(0), Register::CL),
        (Reg::General(4), Register::AH),
        (Reg::General(3), Register::XMM3),
        (Reg::Vector(0), Register::XMM1),
        (Reg::General(0), Register::CR0),
        (Reg::General(0), Register::None),
    ] {
        assert!(!reg.is(other), "{reg:?} {other:?}");
    }
}

#[test]
fn steps_that_write_ports_are_known() {
    let writes = |step: Step| step.writes_port();
    assert!(writes(step(|a| a.out(dx, al), Vec::new(), Vec::new())));
    assert!(writes(step(|a| a.outsb(), Vec::new(), Vec::new())));
    assert!(!writes(step(|a| a.in_(al, dx), Vec::new(), Vec::new())));
    assert!(!writes(Step::default()));
}
