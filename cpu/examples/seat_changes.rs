//! Measures what a change of the seat costs: two processors execute the same loop, with PAUSE, which ends the turn, and
//! with NOP. `cargo run --release -p ttvm-cpu --example seat_changes`

#[allow(dead_code)]
#[path = "../tests/system/harness.rs"]
mod harness;

use std::time::Instant;

use cpu::{EmptyBus, TurnPolicy, TurnRules};
use harness::{CODE, Machine};
use iced_x86::code_asm::*;

const STEPS: u64 = 20_000_000;
/// The number of steps in one round of the loop. Each instruction of the loop is one step.
const ROUND_STEPS: u64 = 4;

/// The number of seconds in which the CPU executes [`STEPS`] steps.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the host's clock")]
fn run(pauses: bool) -> f64 {
    let machine = Machine::long();
    machine.code_at(64, CODE, CODE, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rax).unwrap();
        a.add(rbx, rax).unwrap();
        if pauses {
            a.pause().unwrap();
        } else {
            a.nop().unwrap();
        }
        a.jmp(again).unwrap();
    });
    let state = machine.state.clone();
    let mut cpu = machine.cpu;
    cpu.set_processors(2);
    cpu.set_turn_rules(TurnRules { spins_yield: true, ..TurnRules::new(TurnPolicy::Ring) });
    cpu.set_parked(0, std::slice::from_ref(&state));
    cpu.set_state(&state);
    let mut to = |steps| {
        while cpu.steps() < steps {
            let origin = cpu.steps();
            cpu.run(&mut EmptyBus::default(), steps, origin);
        }
    };
    to(1_000_000);
    let begun = Instant::now();
    to(1_000_000 + STEPS);
    begun.elapsed().as_secs_f64()
}

fn main() {
    let median = |pauses| {
        let mut seconds: Vec<f64> = (0..5).map(|_| run(pauses)).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[2]
    };
    let [changing, staying] = [true, false].map(median);
    let changes = STEPS / ROUND_STEPS;
    let cost_us = (changing - staying) * 1e6 / changes as f64;
    println!(
        "{changes} changes of the seat: {cost_us:.3} us each ({changing:.3} s with PAUSE, {staying:.3} s with NOP)"
    );
}
