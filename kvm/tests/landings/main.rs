//! Landings of a KVM vCPU by counted branches, from random places to random later ones. The counter's overflows come
//! late, much too late, or never. Each landing must give the software CPU's state.
//!
//! `TTVM_LANDINGS` is the number of landings. Without a KVM that executes as hardware does, the test says so,
//! and fails if `TTVM_LANDINGS` is set. `kvm/src/landing/tests.rs` tests the algorithm on the software CPU.

mod guest;

use std::collections::VecDeque;
use std::time::Instant;

use cpu::{CpuModel, CpuState, EmptyBus, fold_registers};
use engine_contract::{End, LandingPlace, Leave};
use guest::{Random, Reference, Snapshot};
use kvm::{Behaviour, Counter, KvmCpu};

/// The largest number of steps between two places.
const FARTHEST: u64 = 400_000;
/// Number of places at which landings may begin.
const KEPT: usize = 8;
const TRIES: u32 = 40;

struct Lander {
    cpu: KvmCpu,
    bus: EmptyBus,
    retries: u64,
    most_tries: u32,
}

impl Lander {
    fn new(model: CpuModel, seed: u64) -> Lander {
        let mut cpu = KvmCpu::new(guest::ram(), model).expect("KVM is there");
        let behaviour = Behaviour::default();
        cpu.count_branches(Counter::Simulated { behaviour, seed }).expect("nothing is needed for it");
        Lander { cpu, bus: EmptyBus::default(), retries: 0, most_tries: 0 }
    }

    fn restore(&mut self, to: &Snapshot) {
        to.put_ram(self.cpu.cpu().ram());
        self.cpu.set_state(&to.state);
        self.cpu.set_counts(to.counts);
    }

    /// The first difference between the vCPU and the state at `place`.
    fn difference(&self, place: &Snapshot) -> Option<String> {
        let mut ram = vec![0; place.ram.len()];
        self.cpu.cpu().ram().read_bytes(0, &mut ram);
        if let Some(at) = (0..ram.len()).find(|&at| ram[at] != place.ram[at]) {
            return Some(format!("RAM at {at:#x}: {:#x} instead of {:#x}", ram[at], place.ram[at]));
        }
        let cpu = self.cpu.cpu();
        let actual = (comparable(&cpu.state()), cpu.branches());
        let expected = (comparable(&place.state), place.counts.branches);
        (actual != expected).then(|| format!("{actual:x?}\ninstead of\n{expected:x?}"))
    }

    /// Lands at `to`. The vCPU stands at `from`, or is first put there.
    fn travel(&mut self, from: &Snapshot, stands_there: bool, to: &Snapshot) {
        let (CpuState { rip, gpr, .. }, branches) = (&to.state, to.counts.branches);
        for tries in 1..=TRIES {
            if tries > 1 || !stands_there {
                self.restore(from);
            }
            let registers = fold_registers(gpr);
            let mut goal =
                LandingPlace { rip: *rip, registers, branches: Some(branches), ..LandingPlace::default() };
            loop {
                match self.cpu.run(&mut self.bus, Leave::At(goal)).expect("KVM goes on") {
                    End::LandingPlace => {}
                    End::Overshot => break,
                    other => panic!("an end that nothing is there for: {other:?}"),
                }
                match self.difference(to) {
                    None => {
                        self.most_tries = self.most_tries.max(tries);
                        return;
                    }
                    // Same registers and count of branches, but other RAM: another call of the same function.
                    Some(why) if why.starts_with("RAM") => goal.not_here = true,
                    Some(why) => panic!("landed elsewhere: {why}"),
                }
            }
            self.retries += 1;
        }
        panic!("overshot {TRIES} times on the way to {rip:#x} after {branches} branches");
    }
}

/// A state without the parts that KVM does not keep or that differ between processors.
fn comparable(state: &CpuState) -> CpuState {
    const RESUME_FLAG: u64 = 1 << 16;
    let mut state = state.clone();
    state.rflags &= !RESUME_FLAG;
    state
}

/// The CPU model of this host's KVM, if it executes as hardware does. A busy host may need several tries.
fn model() -> Result<CpuModel, kvm::Error> {
    kvm::capabilities()?;
    let tries = 10;
    (1..tries).find_map(|_| kvm::refuse_imitation().ok()).map_or_else(kvm::refuse_imitation, Ok)?;
    kvm::model()
}

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("it is a number"))
}

#[test]
fn landings_are_exact() {
    let asked = number("TTVM_LANDINGS");
    let model = match model() {
        Ok(model) => model,
        Err(why) => {
            assert_eq!(asked, None, "there can be no landings here: {why}");
            return skip::test(why);
        }
    };
    let (landings, seed) = (asked.unwrap_or(100), number("TTVM_SEED").unwrap_or(1));
    println!("{landings} landings, TTVM_SEED={seed}");
    let mut random = Random(seed);
    let mut reference = Reference::new();
    let mut lander = Lander::new(model, seed);
    let mut places = VecDeque::from([reference.snapshot()]);
    let before = Instant::now();
    for done in 1..=landings {
        reference.advance(random.magnitude(FARTHEST));
        let to = reference.snapshot();
        let newest = places.len() - 1;
        // Half of the landings begin at the last place, the others at any earlier place.
        let number = if random.below(2) == 0 { newest } else { random.below(places.len() as u64) as usize };
        let stands_there = number == newest && done > 1;
        lander.travel(&places[number], stands_there, &to);
        places.push_back(to);
        if places.len() > KEPT {
            places.pop_front();
        }
        if done % 500 == 0 {
            println!("{done} landings after {} s", before.elapsed().as_secs());
        }
    }
    let seen = lander.cpu.statistics().landings;
    println!(
        "{landings} landings in {:.1} s: {} retries ({} tries at most), {:.1} hits each, {} lost overflows, largest skid {}",
        before.elapsed().as_secs_f64(),
        lander.retries,
        lander.most_tries,
        seen.hits as f64 / landings as f64,
        seen.lost_overflows,
        seen.largest_skid
    );
    refuse_shadow(&mut reference, &mut lander);
    assert_eq!(seen.overshot, lander.retries);
    assert!(seen.landed >= landings);
    if landings >= 100 {
        assert!(seen.overshot > 0, "the counter was too good for a test");
    }
}

/// No landing is possible while interrupts are held back.
fn refuse_shadow(reference: &mut Reference, lander: &mut Lander) {
    let from = reference.snapshot();
    reference.advance_to_shadow();
    let Snapshot { state: CpuState { rip, gpr, .. }, counts, .. } = reference.snapshot();
    lander.restore(&from);
    let goal = LandingPlace {
        rip,
        registers: fold_registers(&gpr),
        branches: Some(counts.branches),
        ..LandingPlace::default()
    };
    assert_eq!(lander.cpu.run(&mut lander.bus, Leave::At(goal)).expect("KVM goes on"), End::Overshot);
}
