//! Several processors that take turns: a run that is cut anywhere, and restored there, is the same run.

use cpu::{Counts, Cpu, CpuState, EmptyBus, Hit, Met, Stop, TURN_STEPS, Trap, Traps};
use iced_x86::code_asm::*;
use seeded::Rng;

use crate::harness::*;

const COUNT: usize = 3;
/// Distance between the code, and between the stacks, of two processors.
const APART: u64 = 0x400;
/// A word that all processors write.
const SHARED: u64 = DATA;
/// The words that each processor counts its rounds in.
const ROUNDS: u64 = DATA + 0x100;

/// Processors that add to one word with different operations, and yield now and then. The last one halts.
fn racing() -> Machine {
    let machine = Machine::long();
    for number in 0..COUNT as u64 {
        let code = CODE + APART * number;
        machine.code_at(64, code, code, |a| {
            let (mut again, mut on) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(SHARED)).unwrap();
            a.imul_3(rax, rax, 5 + 2 * number as i32).unwrap();
            a.lock().xadd(qword_ptr(SHARED), rax).unwrap();
            a.rol(qword_ptr(SHARED), 7 + number as u32).unwrap();
            a.inc(qword_ptr(ROUNDS + 8 * number)).unwrap();
            a.inc(ecx).unwrap();
            a.test(ecx, 0xffff).unwrap();
            a.jnz(on).unwrap();
            a.pause().unwrap();
            if number + 1 == COUNT as u64 {
                a.hlt().unwrap();
            }
            a.set_label(&mut on).unwrap();
            a.jmp(again).unwrap();
        });
    }
    machine
}

/// All processors and the memory that they write.
#[derive(Debug, PartialEq, Eq)]
struct All {
    seat: usize,
    current: CpuState,
    parked: Vec<CpuState>,
    counts: Counts,
    memory: Vec<u64>,
}

fn all(cpu: &Cpu) -> All {
    let memory = (0..=COUNT as u64).map(|n| if n == 0 { SHARED } else { ROUNDS + 8 * (n - 1) });
    All {
        seat: cpu.seat(),
        current: cpu.state(),
        parked: cpu.parked_states(),
        counts: cpu.counts(),
        memory: memory.map(|address| cpu.ram().load_u64(address)).collect(),
    }
}

/// A CPU at the beginning of [`racing`].
fn begin() -> Cpu {
    let machine = racing();
    let states: Vec<CpuState> = (0..COUNT as u64)
        .map(|number| {
            let mut state = machine.state.clone();
            state.rip = CODE + APART * number;
            state.gpr[4] -= APART * number;
            state
        })
        .collect();
    let mut cpu = machine.cpu;
    cpu.set_processors(COUNT);
    cpu.set_parked(0, &states[1..]);
    cpu.set_state(&states[0]);
    cpu
}

/// Runs to a step count, although all processors may halt on the way.
fn run_to(cpu: &mut Cpu, steps: u64) {
    while cpu.steps() < steps {
        let origin = cpu.steps();
        let stop = cpu.run(&mut EmptyBus::default(), steps, origin);
        assert_eq!(stop, Stop::Budget, "at {}", cpu.steps());
    }
}

#[test]
fn cuts_move_no_turn() {
    const STEPS: u64 = 25 * TURN_STEPS + 12_345;
    let mut whole = begin();
    run_to(&mut whole, STEPS);
    let expected = all(&whole);
    let rounds = &expected.memory[1..];
    assert!(rounds.iter().all(|&rounds| rounds > 1_000), "each processor runs: {rounds:?}");
    assert!(
        expected.parked.iter().chain([&expected.current]).any(|state| state.halted),
        "the last one halts"
    );

    let mut random = Rng::new(&[47]);
    let mut cut = begin();
    while cut.steps() < STEPS {
        let to = match random.below(4) {
            // The end of a turn, and its neighbours.
            0 => (cut.steps() / TURN_STEPS + 1) * TURN_STEPS + random.below(3) - 1,
            1 => cut.steps() + 1 + random.below(3),
            _ => cut.steps() + 1 + random.below(TURN_STEPS),
        };
        let to = to.clamp(cut.steps() + 1, STEPS);
        run_to(&mut cut, to);
        if random.percent(50) {
            // The CPU goes on from its saved states, with empty caches.
            let (seat, parked, state) = (cut.seat(), cut.parked_states(), cut.state());
            cut.set_parked(seat, &parked);
            cut.set_state(&state);
        }
    }
    assert_eq!(all(&cut), expected);
}

#[test]
fn a_trap_stops_behind_the_last_step_of_every_turn() {
    const STEPS: u64 = 25 * TURN_STEPS;
    let mut stepped = begin();
    let mut turns = Vec::new();
    while stepped.steps() < STEPS {
        let (seat, to) = (stepped.seat(), stepped.steps() + 1);
        run_to(&mut stepped, to);
        assert_eq!(stepped.stepped_by(), seat, "the turn ends behind the step");
        if stepped.seat() != seat {
            turns.push((to, seat, stepped.seat()));
        }
    }
    // Also at PAUSE and at HLT.
    assert!(turns.iter().any(|turn| turn.0 % TURN_STEPS != 0), "{turns:?}");

    let mut trapped = begin();
    trapped.set_traps(Traps { turns: true, ..Traps::default() });
    let mut seen = Vec::new();
    while trapped.steps() < STEPS {
        let origin = trapped.steps();
        if let Stop::Met(met) = trapped.run(&mut EmptyBus::default(), STEPS, origin) {
            let Met::Trap(Trap::Turn(from)) = met else { panic!("{met:?}") };
            assert_eq!((trapped.hits(), trapped.stepped_by()), (&[Hit::Trap(Trap::Turn(from))][..], from));
            // A look as the processor that has just left changes nothing.
            let (before, parked) = (all(&trapped), trapped.state_of(from));
            let seat = trapped.lend_seat(from);
            assert_eq!((trapped.seat(), trapped.state()), (from, parked));
            trapped.lend_seat(seat);
            assert_eq!(all(&trapped), before);
            seen.push((trapped.steps(), from, trapped.seat()));
        }
    }
    assert_eq!(seen, turns);
    assert_eq!(all(&trapped), all(&stepped));

    // A run of one step stops there, too.
    let mut one = begin();
    run_to(&mut one, turns[0].0 - 1);
    one.set_traps(Traps { turns: true, ..Traps::default() });
    let stop = one.run(&mut EmptyBus::default(), turns[0].0, turns[0].0 - 1);
    assert_eq!(stop, Stop::Met(Met::Trap(Trap::Turn(turns[0].1))));
}

#[test]
fn a_processor_that_yields_runs_on_where_no_other_can() {
    let machine = Machine::long();
    machine.code_at(64, CODE, CODE, |a| {
        a.pause().unwrap();
        a.inc(ebx).unwrap();
        a.hlt().unwrap();
    });
    let mut state = machine.state.clone();
    state.gpr[3] = 0;
    let halted = CpuState { halted: true, ..state.clone() };
    let mut cpu = machine.cpu;
    cpu.set_processors(2);
    cpu.set_parked(0, &[halted]);
    cpu.set_state(&state);
    assert_eq!(cpu.run(&mut EmptyBus::default(), 10, 0), Stop::Halted);
    assert_eq!((cpu.seat(), cpu.steps(), cpu.gpr()[3]), (0, 3, 1));
}
