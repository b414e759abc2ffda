//! Passages of steps that are written by hand.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::*;
use crate::seen::tests::{access, step};

/// The physical addresses of the value and of a copy.
const VALUE: u64 = 0x17000;
const COPY: u64 = 0x28000;

fn choices(with_registers: bool, limit: usize) -> Choices {
    Choices { with_registers, limit, through_computations: false }
}

/// A search for a value of eight bytes at [`VALUE`]: 0x10, 0x11 and so on.
fn trace(choices: Choices) -> Trace {
    let mut trace = Trace { choices, ..Trace::default() };
    (0..8).for_each(|byte: u8| trace.followed.add(Cell::Memory(VALUE + u64::from(byte)), 0x10 + byte));
    trace.changed();
    trace
}

/// An instruction that copies byte number `byte` of the value. The load's linear address is 0x10000 below the physical
/// address, and the store's 0x20000.
fn moved(byte: u8) -> Step {
    let place = u64::from(byte);
    let load = access(VALUE - 0x10000 + place, VALUE + place, 0x10 + byte, 1);
    let store = access(COPY - 0x20000 + place, COPY + place, 0x10 + byte, 1);
    step(|a| a.movsb(), vec![load], vec![store])
}

#[test]
fn the_iterations_of_a_loop_are_one_passage() {
    let mut trace = trace(choices(false, 10));
    assert_eq!(trace.gone_at(), None);
    (0..8).for_each(|byte| trace.pass(100 + u64::from(byte), &moved(byte)));
    assert_eq!(trace.found.len(), 1);
    let found = &trace.found[0];
    let cells = |first: u64| (first..first + 8).map(Cell::Memory).collect::<Vec<_>>();
    assert_eq!((&found.from, &found.to), (&cells(VALUE), &cells(COPY)));
    assert_eq!(found.value, (0x10..0x18).collect::<Vec<u8>>());
    assert_eq!((found.linear_from, found.linear_to), (Some(VALUE - 0x10000), Some(COPY - 0x20000)));
    assert_eq!((found.kind, found.step, found.processor, found.rip), (Kind::Copied, 100, 1, 0x100));
    assert_eq!((found.code.as_str(), found.times, found.is_user), ("movsb [rdi],[rsi]", 1, false));
    assert_eq!((trace.quiet_steps(107), trace.quiet_steps(110), trace.quiet_steps(50)), (0, 3, 0));

    // The same step once more is no new passage.
    trace.pass(200, &moved(0));
    assert_eq!((trace.found.len(), trace.found[0].times), (1, 2));
    trace.pass(201, &moved(0));
    assert_eq!((trace.found.len(), trace.found[0].times), (1, 3));
}

#[test]
fn only_the_next_bytes_on_the_same_processor_continue_a_passage() {
    let cells = |first: u64, bytes: u64| (first..first + bytes).map(Cell::Memory).collect::<Vec<_>>();
    let mut trace = trace(choices(false, 10));
    trace.pass(100, &moved(0));
    let found = trace.found[0].clone();
    let next = moved(1);
    let goes_on =
        |step: &Step, kind, from, to| found.goes_on_with(step, kind, &cells(from, 1), &cells(to, 1));
    assert!(goes_on(&next, Kind::Copied, VALUE + 1, COPY + 1));
    assert!(!goes_on(&next, Kind::Copied, VALUE + 2, COPY + 1));
    assert!(!goes_on(&next, Kind::Copied, VALUE + 1, COPY + 2));
    assert!(!goes_on(&next, Kind::Copied, VALUE, COPY));
    assert!(!goes_on(&next, Kind::Computed, VALUE + 1, COPY + 1));
    assert!(!goes_on(&Step { rip: 0x101, ..moved(1) }, Kind::Copied, VALUE + 1, COPY + 1));
    assert!(!goes_on(&Step { processor: 0, ..moved(1) }, Kind::Copied, VALUE + 1, COPY + 1));
    let computed = Found { kind: Kind::Computed, ..found.clone() };
    for kind in [Kind::Computed, Kind::Copied] {
        assert!(!computed.goes_on_with(&next, kind, &cells(VALUE + 1, 1), &cells(COPY + 1, 1)));
    }
    assert!(!found.goes_on_with(&next, Kind::Copied, &cells(VALUE + 1, 1), &[]));
    let register = Cell::Register { processor: 1, register: Reg::General(0), byte: 1 };
    assert!(!found.goes_on_with(&next, Kind::Copied, &cells(VALUE + 1, 1), &[register]));
}

#[test]
fn copies_to_registers_and_to_the_stack_are_hidden() {
    type Assemble = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let rows: [(Assemble, bool); 8] = [
        (|a| a.mov(rax, qword_ptr(rbx)), true),
        (|a| a.push(qword_ptr(rbx)), true),
        (|a| a.movsq(), false),
        (|a| a.cmp(rax, qword_ptr(rbx)), false),
        (|a| a.cmp(rax, qword_ptr(rsp)), false),
        (|a| a.add(rax, qword_ptr(rbx)), false),
        (|a| a.mov(rax, qword_ptr(rsp + 8)), true),
        (|a| a.pop(qword_ptr(rbx)), true),
    ];
    for (assemble, is_hidden) in rows {
        let step = || {
            let stores = vec![access(COPY - 0x20000, COPY, 0x10, 8)];
            step(assemble, vec![access(VALUE - 0x10000, VALUE, 0x10, 8)], stores)
        };
        let (mut hidden, mut shown) = (trace(choices(false, 10)), trace(choices(true, 10)));
        hidden.pass(1, &step());
        shown.pass(1, &step());
        let code = step().code();
        assert_eq!((hidden.found.is_empty(), shown.found.len()), (is_hidden, 1), "{code}");
        // The bytes are followed in any case.
        assert_eq!(hidden.followed.cells(), shown.followed.cells(), "{code}");
        assert_eq!(hidden.registers_of(1), hidden.followed.registers_of(1), "{code}");
    }
}

#[test]
fn programs_in_two_address_spaces_have_passages_of_their_own() {
    let in_space = |root: u64, is_user: bool| {
        let mut step = Step { is_user, ..moved(0) };
        step.executed.as_mut().unwrap().1.cr3 = root;
        step
    };
    let mut users = trace(choices(false, 10));
    users.pass(1, &in_space(0x1000, true));
    users.pass(2, &in_space(0x2000, true));
    users.pass(3, &in_space(0x1000, true));
    assert_eq!(users.found.iter().map(|found| found.times).collect::<Vec<_>>(), [2, 1]);
    // The kernel has the same code in all address spaces.
    let mut kernel = trace(choices(false, 10));
    kernel.pass(1, &in_space(0x1000, false));
    kernel.pass(2, &in_space(0x2000, false));
    assert_eq!(kernel.found.iter().map(|found| found.times).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_search_ends_when_it_is_full_or_the_value_is_gone() {
    let mut limited = trace(choices(false, 1)).begin_at(50);
    assert_eq!(limited.quiet_steps(60), 10);
    limited.pass(100, &moved(0));
    assert!(!limited.is_full);
    limited.pass(101, &moved(2));
    assert!(limited.is_full && limited.found.len() == 1);

    let mut ended = trace(choices(false, 10));
    let overwrite = |first: u8| step(|a| a.stosb(), Vec::new(), vec![access(0x7000, VALUE, first, 8)]);
    ended.pass(300, &overwrite(0));
    assert_eq!(ended.gone_at(), Some(301));
    assert!(ended.found.is_empty());
}
