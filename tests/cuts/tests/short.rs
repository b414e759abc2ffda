//! Runs short campaigns, and campaigns with faulty CPUs whose results depend on the cuts. The fuzzer must find the
//! differences that these CPUs make.

use std::num::NonZeroUsize;

use cpu::{Bus, Counts, Cpu, CpuState, Stop, TurnState};
use cuts::campaign::{self, Kind, News, Options};
use cuts::tier::{Interpreted, Inverted, Tier, Translated};
use cuts::{digests, explain};
use guest_ram::GuestRam;

const OPTIONS: Options =
    Options { kind: Kind::Anything, seed: 20_261, first: 0, steps: 750_000, jobs: 2, differences: 3 };

/// A campaign of hot loops.
const LOOPS: Options =
    Options { kind: Kind::Loops, seed: 20_262, first: 0, steps: 50_000_000, jobs: 2, differences: 3 };

/// A campaign of several processors.
const SEVERAL: Options =
    Options { kind: Kind::Several, seed: 20_265, first: 0, steps: 500_000, jobs: 2, differences: 3 };

fn is_exact<T: Tier>(options: &Options) -> campaign::Summary {
    let summary = campaign::run::<T>(options, |_| {});
    for found in &summary.differences {
        print!("{}", explain::difference::<T>(options.kind, options.seed, found));
    }
    assert_eq!(summary.differences, []);
    assert!(summary.steps >= options.steps, "{} steps", summary.steps);
    summary
}

fn is_exact_in_every_mode<T: Tier>(options: &Options) {
    let modes = is_exact::<T>(options).modes;
    assert!(modes.len() >= 12, "every mode and paging is begun in: {modes:?}");
}

#[test]
fn cuts_and_restores_change_nothing_for_the_interpreter() {
    is_exact_in_every_mode::<Interpreted>(&OPTIONS);
}

#[test]
fn translated_code_does_what_the_interpreter_does() {
    is_exact_in_every_mode::<Translated>(&OPTIONS);
}

#[test]
fn cuts_and_restores_change_nothing_for_several_processors() {
    is_exact_in_every_mode::<Interpreted>(&SEVERAL);
    is_exact_in_every_mode::<Translated>(&Options { seed: 20_266, ..SEVERAL });
}

/// A faulty CPU that forgets the given turns when its state is restored.
struct Impatient(Cpu);

impl Tier for Impatient {
    fn new(ram: GuestRam) -> Impatient {
        Impatient(Cpu::new(ram))
    }
    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        let turns = self.0.turn_state().map(|turns| TurnState { waiting: Vec::new(), ..turns });
        self.0.set_turn_state(turns.as_ref());
        self.0.set_state(state);
        self.0.set_counts(counts);
    }
    fn inner(&mut self) -> &mut Cpu {
        &mut self.0
    }
    fn cpu(&self) -> &Cpu {
        &self.0
    }
}

#[test]
fn a_cpu_that_forgets_turns_is_found_out() {
    let summary = campaign::run::<Impatient>(&SEVERAL, |_| {});
    assert!(!summary.differences.is_empty(), "nothing was found in {} steps", summary.steps);
}

#[test]
fn translated_loops_do_what_the_interpreter_does() {
    is_exact::<Translated>(&LOOPS);
}

#[test]
fn translated_code_shows_nothing_of_what_the_hosts_instructions_leave_undefined() {
    is_exact_in_every_mode::<Inverted>(&Options { seed: 20_263, ..OPTIONS });
    is_exact::<Inverted>(&Options { seed: 20_264, steps: 20_000_000, ..LOOPS });
}

/// Compares two texts line by line. The first line that differs shows the program whose result differs.
fn same_lines(what: &str, expected: &str, found: &str) {
    let difference = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert_eq!(difference, None, "{what}");
    assert_eq!(expected.lines().count(), found.lines().count(), "{what}");
}

#[test]
fn every_vendors_processors_come_to_the_same() {
    const ALL: NonZeroUsize = NonZeroUsize::MIN;
    let (interpreted, translated) = (digests::every::<Interpreted>(ALL), digests::every::<Translated>(ALL));
    same_lines("interpreter and translator", &interpreted, &translated);
    let files =
        std::fs::read_dir(digests::folder()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    assert!(!files.is_empty(), "`cuts --digests` makes them");
    for file in files {
        let golden = std::fs::read_to_string(&file).unwrap();
        let what = "on a change of the programs, and of nothing else, each vendor's are made anew by `cuts --digests`";
        same_lines(&format!("{}: {what}", file.display()), &golden, &translated);
    }
}

/// A faulty CPU that forgets the interrupt shadow at a cut.
struct Forgetful(Cpu);

impl Tier for Forgetful {
    fn new(ram: GuestRam) -> Forgetful {
        Forgetful(Cpu::new(ram))
    }
    fn inner(&mut self) -> &mut Cpu {
        &mut self.0
    }
    fn cpu(&self) -> &Cpu {
        &self.0
    }
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop {
        let origin = self.0.steps();
        let stop = self.0.run(bus, until_steps, origin);
        let state = CpuState { interrupt_shadow: false, ..self.0.state() };
        self.0.set_registers(&state);
        stop
    }
}

#[test]
fn a_cpu_that_is_not_exact_under_cuts_is_found_out() {
    let mut told = Vec::new();
    let summary = campaign::run::<Forgetful>(&OPTIONS, |news| {
        if let News::Found(difference) = news {
            told.push(difference);
        }
    });
    told.sort_by_key(|difference| difference.program);
    assert_eq!(told, summary.differences, "each is told when it is found");
    assert!(!summary.differences.is_empty(), "nothing was found in {} steps", summary.steps);
    let text = explain::difference::<Forgetful>(OPTIONS.kind, OPTIONS.seed, &summary.differences[0]);
    assert!(text.contains("after step"), "{text}");
}
