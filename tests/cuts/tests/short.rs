//! A short campaign, and one over a CPU that does make a difference of cuts: the fuzzer must find it.

use std::sync::Arc;

use cpu::{Bus, Cpu, CpuState, Stop};
use cuts::campaign::{self, Options};
use cuts::explain;
use cuts::tier::Tier;
use guest_ram::GuestRam;

const OPTIONS: Options = Options { seed: 20_261, first: 0, steps: 1_500_000, jobs: 2, differences: 3 };

#[test]
fn cuts_and_restores_change_nothing() {
    let summary = campaign::run::<Cpu>(&OPTIONS, |_| {});
    for found in &summary.differences {
        print!("{}", explain::difference::<Cpu>(OPTIONS.seed, found));
    }
    assert_eq!(summary.differences, []);
    assert!(summary.steps >= OPTIONS.steps, "{} steps", summary.steps);
    assert!(summary.modes.len() >= 12, "every mode and paging is begun in: {:?}", summary.modes);
}

/// A CPU that forgets the interrupt shadow where it is cut.
struct Forgetful(Cpu);

impl Tier for Forgetful {
    fn new(ram: Arc<GuestRam>) -> Forgetful {
        Forgetful(Cpu::new(ram))
    }
    fn set_state(&mut self, state: &CpuState) {
        self.0.set_state(state);
    }
    fn restore_state(&mut self, state: &CpuState) {
        self.0.restore_state(state);
    }
    fn state(&self) -> CpuState {
        self.0.state()
    }
    fn steps(&self) -> u64 {
        self.0.steps()
    }
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop {
        let stop = Tier::run(&mut self.0, bus, until_steps);
        let state = CpuState { interrupt_shadow: false, ..self.0.state() };
        self.0.set_registers(&state);
        stop
    }
}

#[test]
fn a_cpu_that_is_not_exact_under_cuts_is_found_out() {
    let summary = campaign::run::<Forgetful>(&OPTIONS, |_| {});
    assert!(!summary.differences.is_empty(), "nothing was found in {} steps", summary.steps);
    let text = explain::difference::<Forgetful>(OPTIONS.seed, &summary.differences[0]);
    assert!(text.contains("after step"), "{text}");
}
