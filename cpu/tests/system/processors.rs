//! Several processors that take turns: a run that is cut and restored at any step gives the same result as an uncut
//! run.

use cpu::{
    Counts, Cpu, CpuState, EmptyBus, Hit, Met, Stop, TURN_STEPS, Trap, Traps, Turn, TurnPolicy, TurnRules,
    TurnState,
};
use iced_x86::code_asm::*;
use seeded::Rng;

use crate::harness::*;

const COUNT: usize = 3;
/// Distance between the code, and between the stacks, of two processors.
const APART: u64 = 0x400;
/// A word that all processors write.
const SHARED: u64 = DATA;
/// The words in which the processors count their rounds.
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

/// Steps that the first processor of [`spinning`] works.
const WORK_STEPS: u64 = 3 * 500_000;

/// The first processor works, and then sets a word in memory. The other processors spin without PAUSE until this
/// word is set. Each processor halts at its end. The loop of the second processor has two steps, and the loop of
/// the third has six, with a call.
fn spinning() -> Machine {
    let machine = Machine::long();
    let code = |number: u64| CODE + APART * number;
    machine.code_at(64, code(0), code(0), |a| {
        let mut again = a.create_label();
        a.mov(ecx, WORK_STEPS as u32 / 3).unwrap();
        a.set_label(&mut again).unwrap();
        a.inc(qword_ptr(ROUNDS)).unwrap();
        a.dec(ecx).unwrap();
        a.jne(again).unwrap();
        a.mov(dword_ptr(SHARED), 1).unwrap();
        a.hlt().unwrap();
    });
    machine.code_at(64, code(1), code(1), |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.cmp(dword_ptr(SHARED), 0).unwrap();
        a.je(again).unwrap();
        a.hlt().unwrap();
    });
    machine.code_at(64, code(2), code(2), |a| {
        let (mut again, mut look) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.call(look).unwrap();
        a.test(eax, eax).unwrap();
        a.nop().unwrap();
        a.je(again).unwrap();
        a.hlt().unwrap();
        a.set_label(&mut look).unwrap();
        a.mov(eax, dword_ptr(SHARED)).unwrap();
        a.ret().unwrap();
    });
    machine
}

/// The states of all processors and of their turns, and the memory that the processors write.
#[derive(Debug, PartialEq, Eq)]
struct All {
    seat: usize,
    current: CpuState,
    parked: Vec<CpuState>,
    counts: Counts,
    turns: Option<TurnState>,
    memory: Vec<u64>,
}

fn all(cpu: &Cpu) -> All {
    let memory = (0..=COUNT as u64).map(|n| if n == 0 { SHARED } else { ROUNDS + 8 * (n - 1) });
    All {
        seat: cpu.seat(),
        current: cpu.state(),
        parked: cpu.parked_states(),
        counts: cpu.counts(),
        turns: cpu.turn_state(),
        memory: memory.map(|address| cpu.ram().load_u64(address)).collect(),
    }
}

/// A CPU at the beginning of [`racing`], with the default policy.
fn begin() -> Cpu {
    begin_with(TurnPolicy::Ring)
}

fn begin_with(policy: TurnPolicy) -> Cpu {
    begin_of(racing(), TurnRules::new(policy))
}

fn begin_of(machine: Machine, rules: TurnRules) -> Cpu {
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
    cpu.set_turn_rules(rules);
    cpu.set_parked(0, &states[1..]);
    cpu.set_state(&states[0]);
    cpu
}

/// Runs to a step count, although all processors may halt on the way.
fn run_to(cpu: &mut Cpu, steps: u64) {
    while cpu.steps() < steps {
        let origin = cpu.steps();
        let stop = cpu.run(&mut EmptyBus::default(), steps, origin);
        // A CPU that needs further given turns stops early, with `Stop::Bus`.
        assert!(matches!(stop, Stop::Budget | Stop::Bus), "{stop:?} at {}", cpu.steps());
    }
}

/// Turns to give to the CPU, with random processors and lengths.
fn random_turns(count: usize) -> Vec<Turn> {
    let mut random = Rng::new(&[48]);
    let turns = (0..count).map(|_| {
        let longest = 1 << (1 + random.below(16));
        Turn { processor: random.below(COUNT as u64) as u8, steps: 1 + random.below(longest) as u32 }
    });
    turns.collect()
}

#[test]
fn cuts_move_no_turn() {
    cuts_move_no_turn_of(TurnPolicy::Ring, &[]);
    cuts_move_no_turn_of(TurnPolicy::Random { seed: 7 }, &[]);
    cuts_move_no_turn_of(TurnPolicy::Ring, &random_turns(100));
    cuts_move_no_turn_of(TurnPolicy::Random { seed: 8 }, &random_turns(100));
}

fn cuts_move_no_turn_of(policy: TurnPolicy, given: &[Turn]) {
    let rules = TurnRules::new(policy);
    let expected = must_be_the_same_in_pieces(racing, rules, given, 25 * TURN_STEPS + 12_345);
    let rounds = &expected.memory[1..];
    assert!(rounds.iter().all(|&rounds| rounds > 1_000), "each processor runs: {rounds:?}");
    if policy == TurnPolicy::Ring && given.is_empty() {
        let halted = |state: &CpuState| state.halted;
        assert!(expected.parked.iter().chain([&expected.current]).any(halted), "the last one halts");
    }
}

#[test]
fn cuts_move_no_end_of_a_spin() {
    for policy in [TurnPolicy::Ring, TurnPolicy::Random { seed: 9 }] {
        for given in [&[][..], &random_turns(40)] {
            let rules = TurnRules { spins_yield: true, ..TurnRules::new(policy) };
            must_be_the_same_in_pieces(spinning, rules, given, WORK_STEPS);
        }
    }
}

/// Runs a machine twice: in one piece, and cut into random pieces. Both runs must reach the same state. Returns the
/// state after `steps` steps.
fn must_be_the_same_in_pieces(machine: fn() -> Machine, rules: TurnRules, given: &[Turn], steps: u64) -> All {
    let mut whole = begin_of(machine(), rules);
    whole.give_turns(&mut EmptyBus::default(), given);
    run_to(&mut whole, steps);
    let expected = all(&whole);

    let mut random = Rng::new(&[47]);
    let mut cut = begin_of(machine(), rules);
    cut.give_turns(&mut EmptyBus::default(), given);
    while cut.steps() < steps {
        let to = match random.below(4) {
            // Cut where the turn ends, or where the CPU next checks for a spin loop, or one step before or after
            // that.
            0 => {
                let next = (cut.steps() / TURN_STEPS + 1) * TURN_STEPS;
                let distance =
                    |state: TurnState| state.spins.and_then(|spins| spins.next_look).unwrap_or(state.left);
                let end = cut.turn_state().map_or(next, |state| cut.steps() + distance(state));
                end + random.below(3) - 1
            }
            1 => cut.steps() + 1 + random.below(3),
            _ => cut.steps() + 1 + random.below(TURN_STEPS),
        };
        let to = to.clamp(cut.steps() + 1, steps);
        run_to(&mut cut, to);
        if random.percent(50) {
            // The CPU goes on from its saved states, with empty caches.
            let (seat, parked, state) = (cut.seat(), cut.parked_states(), cut.state());
            let (turns, counts) = (cut.turn_state(), cut.counts());
            cut.set_turn_rules(rules);
            cut.set_counts(Counts::default());
            cut.set_parked(seat, &parked);
            cut.set_turn_state(turns.as_ref());
            cut.set_state(&state);
            cut.set_counts(counts);
        }
    }
    assert_eq!(all(&cut), expected);
    expected
}

#[test]
fn processors_that_spin_without_pause_yield() {
    let all_halted = |cpu: &Cpu| (0..COUNT).all(|number| cpu.state_of(number).halted);
    let steps_of = |spins_yield| {
        let mut cpu = begin_of(spinning(), TurnRules { spins_yield, ..TurnRules::new(TurnPolicy::Ring) });
        while !all_halted(&cpu) {
            let origin = cpu.steps();
            cpu.run(&mut EmptyBus::default(), origin + TURN_STEPS, origin);
        }
        assert_eq!(cpu.ram().load_u64(ROUNDS), WORK_STEPS / 3, "the work is done");
        cpu.steps()
    };
    // The two spinning processors do not yield, so they take as many turns as the processor that works.
    assert!(steps_of(false) > 2 * WORK_STEPS, "{}", steps_of(false));
    // The CPU finds a spin loop after 15,040 steps. Without that, each turn would have 100,000 steps.
    assert!(steps_of(true) < WORK_STEPS * 3 / 2, "{}", steps_of(true));
}

/// Runs to a step count. Returns the turns on the way: their processors and their lengths.
fn turns_to(cpu: &mut Cpu, steps: u64) -> Vec<Turn> {
    cpu.set_traps(Traps { turns: true, ..Traps::default() });
    let (mut turns, mut begun) = (Vec::new(), cpu.steps());
    let mut end = |processor: usize, at: u64| {
        turns.push(Turn { processor: processor as u8, steps: (at - begun) as u32 });
        begun = at;
    };
    while cpu.steps() < steps {
        let origin = cpu.steps();
        if let Stop::Met(Met::Trap(Trap::Turn(from))) = cpu.run(&mut EmptyBus::default(), steps, origin) {
            end(from, cpu.steps());
        }
    }
    end(cpu.seat(), cpu.steps());
    cpu.set_traps(Traps::default());
    turns
}

#[test]
fn the_turns_of_a_seed_can_be_given_to_another_machine() {
    const STEPS: u64 = 60 * TURN_STEPS;
    let seeded = |seed| {
        let mut cpu = begin_with(TurnPolicy::Random { seed });
        let turns = turns_to(&mut cpu, STEPS);
        (turns, all(&cpu))
    };
    let (turns, expected) = seeded(5);
    let (again, same) = seeded(5);
    assert_eq!((&again, &same), (&turns, &expected));
    let (turns_of_another, found) = seeded(6);
    assert!(turns != turns_of_another && found.memory != expected.memory);
    assert!(turns.len() > 80 && turns.iter().any(|turn| turn.steps < 10), "{}", turns.len());

    let mut given = begin();
    let mut longer = turns.clone();
    longer.last_mut().expect("there are some").steps += 1;
    given.give_turns(&mut EmptyBus::default(), &longer);
    assert_eq!(turns_to(&mut given, STEPS), turns);
    assert_eq!(All { turns: None, ..all(&given) }, All { turns: None, ..expected });
    // After the last given turn, the turn policy chooses the processors.
    run_to(&mut given, STEPS + 1);
    assert_eq!((given.waiting_turns(), given.turn_state()), (0, None));
}

#[test]
fn runs_stop_to_ask_for_more_given_turns() {
    let mut cpu = begin();
    let turns = vec![Turn { processor: 1, steps: 1000 }; Turn::FEW_WAITING + 3];
    cpu.give_turns(&mut EmptyBus::default(), &turns);
    let mut stops = Vec::new();
    while cpu.steps() < 6000 {
        let origin = cpu.steps();
        match cpu.run(&mut EmptyBus::default(), 6000, origin) {
            Stop::Budget => assert_eq!(cpu.steps(), 6000),
            stop => stops.push((stop, cpu.steps(), cpu.waiting_turns())),
        }
    }
    let expected = [3000, 4000, 5000, 6000]
        .map(|steps| (Stop::Bus, steps, Turn::FEW_WAITING + 2 - steps as usize / 1000));
    assert_eq!(stops, expected);
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
    // Some turns end at PAUSE or HLT.
    assert!(turns.iter().any(|turn| turn.0 % TURN_STEPS != 0), "{turns:?}");

    let mut trapped = begin();
    trapped.set_traps(Traps { turns: true, ..Traps::default() });
    let mut seen = Vec::new();
    while trapped.steps() < STEPS {
        let origin = trapped.steps();
        if let Stop::Met(met) = trapped.run(&mut EmptyBus::default(), STEPS, origin) {
            let Met::Trap(Trap::Turn(from)) = met else { panic!("{met:?}") };
            assert_eq!((trapped.hits(), trapped.stepped_by()), (&[Hit::Trap(Trap::Turn(from))][..], from));
            // `lend_seat` makes the CPU show the state of the processor whose turn has just ended. The call changes
            // no state.
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

    // A run of one step also stops at the end of the turn.
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
