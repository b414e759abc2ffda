//! Several processors on a board: start-up messages, interrupts that wake a halted processor, and registers that stay
//! with their processor.

use cpu::{
    Bus, BusSignals, Cpu, CpuState, EmptyBus, FpuState, ProcessorSignals, SegReg, Segment, SpinState,
    Startup, Stop, Turn, TurnPolicy, TurnRules,
};
use iced_x86::code_asm::*;

use crate::harness::*;

/// A board with lines to each processor.
#[derive(Default)]
struct Board {
    lines: [ProcessorSignals; 3],
    /// The page of a start-up message.
    page: u8,
    seat: usize,
}

/// The vector of all interrupts of [`Board`].
const VECTOR: u8 = 0x40;

impl Bus for Board {
    fn port_read(&mut self, _: u64, _: u16, _: u8) -> u32 {
        u32::MAX
    }
    fn port_write(&mut self, _: u64, _: u16, _: u8, _: u32) {}
    fn mmio_read(&mut self, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&mut self, _: u64, _: u64, _: &[u8]) {}
    fn signals(&mut self) -> BusSignals {
        let ProcessorSignals { interrupt, nmi, .. } = self.lines[self.seat];
        BusSignals { interrupt, nmi, stop: false }
    }
    fn processor_signals(&mut self, processor: usize) -> ProcessorSignals {
        self.lines[processor]
    }
    fn take_seat(&mut self, processor: usize) {
        self.seat = processor;
    }
    fn take_start(&mut self) -> Option<u8> {
        let startup = &mut self.lines[self.seat].startup;
        (std::mem::take(startup) == Startup::Due).then_some(self.page)
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.lines[self.seat].interrupt).then_some(VECTOR)
    }
    fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.lines[self.seat].nmi)
    }
    fn read_msr(&mut self, _: u64, _: u32) -> Option<u64> {
        None
    }
    fn write_msr(&mut self, _: u64, _: u32, _: u64) -> Option<()> {
        None
    }
    fn cr8(&mut self) -> u64 {
        0
    }
    fn set_cr8(&mut self, _: u64, _: u64) {}
    fn tsc(&mut self, steps: u64) -> u64 {
        steps
    }
}

const IF: u64 = 1 << 9;

/// A machine whose processors have these states. The first processor has the seat.
fn with(machine: Machine, states: &[CpuState]) -> Cpu {
    let mut cpu = machine.cpu;
    cpu.set_processors(states.len());
    cpu.set_parked(0, &states[1..]);
    cpu.set_state(&states[0]);
    cpu
}

/// A machine whose code at [`CODE`] counts rounds in RAX, and yields in each round.
fn yielding() -> Machine {
    let mut machine = Machine::long();
    machine.code(64, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rax).unwrap();
        a.pause().unwrap();
        a.jmp(again).unwrap();
    });
    machine
}

#[test]
fn a_start_up_message_starts_a_processor_in_real_mode() {
    const PAGE: u8 = 0x9a;
    let start = u64::from(PAGE) << 12;
    let machine = yielding();
    machine.code_at(16, start, 0, |a| {
        a.mov(bx, cs).unwrap();
        a.mov(word_ptr(0x800), bx).unwrap();
        a.hlt().unwrap();
    });
    let mut code = [0; 16];
    machine.ram().read_bytes(start, &mut code);
    let first = machine.state.clone();
    // The registers from before the message do not matter.
    let before = CpuState { rip: 0x1234, cr2: 5, ..first.clone() };
    let mut cpu = with(machine, &[first, before]);
    let mut board = Board { page: PAGE, ..Board::default() };
    board.lines[1].startup = Startup::Awaited;
    assert_eq!(cpu.run(&mut board, 300, 0), Stop::Budget);
    assert_eq!((cpu.seat(), cpu.gpr()[0], cpu.state_of(1).rip), (0, 100, 0x1234));
    assert!(!cpu.another_can_run(&mut board));

    board.lines[1].startup = Startup::Due;
    assert!(cpu.another_can_run(&mut board));
    // INC, PAUSE, and the three instructions of the other processor. After HLT, the first processor goes on.
    assert_eq!(cpu.run(&mut board, 305, 300), Stop::Budget);
    assert_eq!((cpu.seat(), cpu.gpr()[0], board.lines[1].startup), (0, 101, Startup::Done));
    let reset = CpuState::reset();
    let started = cpu.state_of(1);
    let mut segments = reset.segments;
    let (selector, base) = (u16::from(PAGE) << 8, start);
    segments[SegReg::Cs as usize] = Segment { selector, base, limit: 0xffff, attributes: 0x9b };
    let mut expected = CpuState { segments, rip: code_length(&code), halted: true, ..reset };
    expected.gpr[3] = selector.into();
    // Firmware has switched the MTRRs on, with write-back memory.
    expected.msrs.mtrr_def_type = 0xc06;
    assert_eq!(started, expected);
    assert_eq!(cpu.ram().load_u16(0x800), selector);
}

/// The number of bytes up to HLT, with HLT.
fn code_length(code: &[u8]) -> u64 {
    code.iter().position(|byte| *byte == 0xf4).unwrap() as u64 + 1
}

#[test]
fn a_processor_can_run_if_it_is_awake_or_something_wakes_it() {
    let state = Machine::long().state;
    for (what, startup, halted, flag, interrupt, nmi, nmi_blocked, expected) in [
        ("awake", Startup::Done, false, 0, false, false, false, true),
        ("halted", Startup::Done, true, IF, false, false, false, false),
        ("an interrupt", Startup::Done, true, IF, true, false, false, true),
        ("an interrupt without IF", Startup::Done, true, 0, true, false, false, false),
        ("an NMI", Startup::Done, true, 0, false, true, false, true),
        ("an NMI in an NMI", Startup::Done, true, IF, false, true, true, false),
        ("both", Startup::Done, true, IF, true, true, true, true),
        ("before the message", Startup::Awaited, false, IF, true, true, false, false),
        ("a message", Startup::Due, true, 0, false, false, false, true),
    ] {
        let other = CpuState { halted, nmi_blocked, rflags: 2 | flag, ..state.clone() };
        let never = CpuState { halted: true, ..state.clone() };
        for number in [1, 2] {
            let mut states = vec![state.clone(), never.clone(), never.clone()];
            states[number] = other.clone();
            let cpu = with(Machine::long(), &states);
            let mut board = Board::default();
            board.lines[number] = ProcessorSignals { interrupt, nmi, startup };
            assert_eq!(cpu.another_can_run(&mut board), expected, "{what}, processor {number}");
        }
    }
    // The processor in the seat does not count.
    let never = CpuState { halted: true, ..state.clone() };
    assert!(!with(Machine::long(), &[state, never.clone(), never]).another_can_run(&mut Board::default()));
}

#[test]
fn any_processor_may_accept_interrupts() {
    let state = |flags: u64| CpuState { rflags: 2 | flags, ..Machine::long().state };
    for (flags, expected) in [
        ([0, 0, 0], false),
        ([IF, 0, 0], true),
        ([0, IF, 0], true),
        ([0, 0, IF], true),
        // All flags but IF.
        ([0xcd5, 0xcd5, 0xcd5], false),
    ] {
        let cpu = with(Machine::long(), &flags.map(state));
        assert_eq!(cpu.accepts_interrupts(), expected, "{flags:x?}");
    }
}

#[test]
fn an_interrupt_wakes_a_halted_processor_that_has_not_the_seat() {
    let halted = CpuState { halted: true, rflags: 2 | IF, ..Machine::long().state };
    let mut cpu = with(Machine::long(), &vec![halted; 3]);
    let mut board = Board::default();
    assert_eq!(cpu.run(&mut board, 100, 0), Stop::Halted);
    assert_eq!((cpu.seat(), cpu.steps()), (0, 0));
    board.lines[2].interrupt = true;
    // The delivery is one step, and the handler's HLT is another step.
    assert_eq!(cpu.run(&mut board, 100, 0), Stop::Halted);
    assert_eq!((cpu.seat(), cpu.steps(), cpu.rip()), (2, 2, handler(VECTOR) + 1));
    assert!(!board.lines[2].interrupt);
    // The other processors have not moved.
    assert_eq!((cpu.state_of(0).rip, cpu.state_of(1).rip), (CODE, CODE));

    // A run that ends before the delivery has not waited for anything.
    board.lines[2].nmi = true;
    assert_eq!(cpu.run(&mut board, 2, 2), Stop::Budget);
    assert_eq!((cpu.seat(), cpu.steps(), board.lines[2].nmi), (2, 2, true));
    assert_eq!(cpu.run(&mut board, 3, 2), Stop::Budget);
    assert_eq!((cpu.seat(), cpu.rip(), board.lines[2].nmi), (2, handler(2), false));
}

/// After STI, an interrupt comes after one more instruction of the same processor, also if other processors have turns in
/// between.
#[test]
fn an_interrupt_shadow_stays_with_its_processor() {
    let mut machine = Machine::long();
    machine.code(64, |a| {
        a.sti().unwrap();
        a.inc(ebx).unwrap();
        a.inc(ebx).unwrap();
        a.hlt().unwrap();
    });
    let other = yielding();
    let mut code = [0; 16];
    other.ram().read_bytes(CODE, &mut code);
    machine.put(DATA, &code);
    let mut first = machine.state.clone();
    first.gpr[3] = 0;
    let second = CpuState { rip: DATA, ..first.clone() };
    let mut cpu = with(machine, &[first, second]);
    let mut board = Board::default();
    board.lines[0].interrupt = true;
    let turn = |processor, steps| Turn { processor, steps };
    cpu.give_turns(&mut board, &[turn(0, 1), turn(1, 3), turn(0, 3), turn(1, 100)]);
    while cpu.steps() < 6 {
        let origin = cpu.steps();
        cpu.run(&mut board, 6, origin);
    }
    // One step of the first processor, three of the second, then INC and the delivery.
    let first = cpu.state_of(0);
    assert_eq!((first.gpr[3], first.rip, cpu.state_of(1).gpr[0]), (1, handler(VECTOR), 1));
    // STI has one byte, and INC EBX has two.
    assert_eq!(cpu.ram().load_u64(first.gpr[4]), CODE + 3);
}

#[test]
fn breakpoints_of_the_guest_hold_for_their_processor_only() {
    let machine = yielding();
    let free = machine.state.clone();
    let mut stopped = machine.state.clone();
    // Instruction breakpoint 0 at PAUSE, which comes after INC RAX with three bytes.
    stopped.dr[0] = CODE + 3;
    stopped.dr7 = 0x402;
    for order in [[0, 1], [1, 0]] {
        let states = order.map(|number| if number == 0 { free.clone() } else { stopped.clone() });
        let mut cpu = with(yielding(), &states);
        while cpu.steps() < 3000 {
            let origin = cpu.steps();
            cpu.run(&mut EmptyBus::default(), 3000, origin);
        }
        let [free, stopped] = [0, 1].map(|number| cpu.state_of(order[number]));
        // The debug exception pushes the address of the instruction with the breakpoint.
        assert_eq!((stopped.rip, stopped.gpr[0], stopped.dr6 & 0xf), (handler(1) + 1, 1, 1));
        assert_eq!(cpu.ram().load_u64(stopped.gpr[4]), CODE + 3);
        // The stopped processor made INC, the delivery and HLT.
        assert_eq!((free.gpr[0], free.dr6 & 0xf), ((3000 - 3) / 3, 0));
    }
}

/// A state whose registers all have different values.
fn distinct(number: u64) -> CpuState {
    let base = number << 32;
    let mut state = Machine::long().state;
    state.gpr = std::array::from_fn(|register| base + register as u64);
    state.rip = base + 0x100;
    state.rflags = 2 | [0x8d5, 0x240, 0x11][number as usize];
    state.xmm = std::array::from_fn(|register| u128::from(base) << 64 | register as u128);
    for (register, segment) in state.segments.iter_mut().enumerate() {
        segment.base = base + 0x1000 * register as u64;
        segment.selector = (0x10 * number as u16) + 8 * register as u16;
    }
    state.cr2 = base + 0x200;
    state.mxcsr = 0x1f80 | number as u32;
    state.fpu = FpuState { control: 0x37f - number as u16, ..state.fpu };
    state.msrs.star = base + 0x300;
    state.nmi_blocked = number == 1;
    state
}

#[test]
fn parked_processors_keep_all_their_registers() {
    let states = [0, 1, 2].map(distinct);
    let mut cpu = with(Machine::long(), &states);
    assert_eq!(cpu.parked_states(), states[1..]);
    for seat in [2, 0, 1, 2, 0] {
        cpu.lend_seat(seat);
        assert_eq!((cpu.seat(), cpu.core().processor), (seat, seat));
        assert_eq!(cpu.state(), states[seat]);
        for (number, state) in states.iter().enumerate() {
            assert_eq!(cpu.state_of(number), *state, "processor {number}, seat {seat}");
        }
    }
    // Another processor may have the seat from the beginning.
    cpu.set_parked(1, &[states[2].clone(), states[0].clone()]);
    cpu.set_registers(&states[1]);
    assert_eq!([0, 1, 2].map(|number| cpu.state_of(number)), [2, 1, 0].map(|number| states[number].clone()));
}

/// Recordings store the hash of the registers that the search for spins makes, so the hash never changes.
#[test]
fn the_hash_of_a_spins_registers_never_changes() {
    let mut machine = Machine::long();
    machine.code(64, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.jmp(again).unwrap();
    });
    let mut state = machine.state.clone();
    state.gpr = std::array::from_fn(|register| 0x1111_1111_1111_1111 * register as u64);
    // The carry flag and the zero flag.
    state.rflags = 0x43;
    let halted = CpuState { halted: true, ..state.clone() };
    let mut cpu = with(machine, &[state, halted]);
    cpu.set_turn_rules(TurnRules { spins_yield: true, ..TurnRules::new(TurnPolicy::Ring) });
    cpu.run(&mut EmptyBus::default(), 9_999, 0);
    let spins = |cpu: &Cpu| cpu.turn_state().unwrap().spins;
    assert_eq!(spins(&cpu), Some(SpinState { next_look: Some(1), registers: None }));
    cpu.run(&mut EmptyBus::default(), 10_001, 9_999);
    let registers = Some(0x8247_97d3_756e_852d);
    assert_eq!(spins(&cpu), Some(SpinState { next_look: Some(5039), registers }));
}

#[test]
fn one_processor_has_no_turns() {
    let mut machine = yielding();
    machine.load();
    assert_eq!(machine.cpu.turn_state_from_zero(), None);
    machine.cpu.give_turns(&mut EmptyBus::default(), &[Turn { processor: 0, steps: 5 }]);
    assert_eq!(machine.cpu.waiting_turns(), 0);
    assert_eq!(machine.cpu.run(&mut EmptyBus::default(), 30, 0), Stop::Budget);
    assert_eq!((machine.cpu.gpr()[0], machine.cpu.turn_state_from_zero()), (10, None));
    // With two processors, the turn that has begun has a state.
    let states = vec![machine.state.clone(); 2];
    let mut cpu = with(yielding(), &states);
    cpu.run(&mut EmptyBus::default(), 30, 0);
    let state = cpu.turn_state_from_zero().unwrap();
    assert_eq!((state.left, state.phase), (cpu::TURN_STEPS - 30, cpu::TURN_STEPS - 30));
}

#[test]
fn the_policy_may_change_between_two_runs() {
    let states = vec![yielding().state; 3];
    let mut cpu = with(yielding(), &states);
    cpu.run(&mut EmptyBus::default(), 30, 0);
    assert_eq!(cpu.turn_state(), None);
    cpu.change_turn_policy(TurnPolicy::Random { seed: 1_234_567 });
    // The seed's first turn has 535 steps.
    assert_eq!(cpu.turn_state().unwrap().left, 535);
    cpu.change_turn_policy(TurnPolicy::Ring);
    assert_eq!(cpu.turn_state(), None);
}
