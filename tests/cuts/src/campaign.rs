//! Runs many programs on several threads, and counts programs, steps and differences.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::program::{Program, stream};
use crate::tier::{Interpreted, Tier};
use crate::ways::{self, Snapshot, Steps, Way};

/// A kind of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Short programs in every mode, with any instruction. Each run is compared with single steps.
    Anything,
    /// Programs as of [`Kind::Anything`], but with several processors that run in turn.
    Several,
    /// Long programs of hot loops. Each run is compared with the interpreter's run from cut to cut.
    Loops,
}

impl Kind {
    /// The program that a seed and a number determine.
    pub fn program(self, seed: u64, number: u64) -> Program {
        match self {
            Kind::Anything => Program::random(seed, number),
            Kind::Several => Program::several(seed, number),
            Kind::Loops => Program::looping(seed, number),
        }
    }

    /// The ways to run the program with this number. A program of hot loops runs in two ways: without cuts, and in
    /// one other way. A program of another kind runs in all ways.
    fn ways(self, number: u64) -> Vec<Way> {
        match self {
            Kind::Anything | Kind::Several => Way::ALL.to_vec(),
            Kind::Loops => vec![Way::Whole, [Way::Cut, Way::Cold, Way::Warm][number as usize % 3]],
        }
    }

    /// Returns the reference run: the snapshots with which every other run of the program is compared.
    pub fn reference(self, program: &Program) -> Vec<Snapshot> {
        let steps = if self == Kind::Loops { Steps::Many } else { Steps::Single };
        ways::reference::<Interpreted>(program, steps)
    }
}

/// The programs to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of the programs.
    pub kind: Kind,
    /// The seed that determines the programs.
    pub seed: u64,
    /// The number of the first program.
    pub first: u64,
    /// Number of steps after which no new program begins. The steps of a program count once, although it runs in
    /// several ways.
    pub steps: u64,
    /// Number of threads.
    pub jobs: usize,
    /// Number of differences after which no new program begins.
    pub differences: usize,
}

/// A program whose result differed when it was run in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The program's number.
    pub program: u64,
    /// The way of running whose result differed from the reference.
    pub way: Way,
    /// The number of the cut at which the difference was seen.
    pub cut: usize,
}

/// Progress of a campaign.
#[derive(Clone, Copy, Debug)]
pub enum News {
    /// The number of steps so far.
    Steps(u64),
    /// A difference was found just now.
    Found(Difference),
}

/// The results of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of programs that were run.
    pub programs: u64,
    /// Number of steps of the programs. The steps of a program count once, although it runs in several ways.
    pub steps: u64,
    /// The number of programs by the mode in which they began.
    pub modes: BTreeMap<String, u64>,
    /// The differences.
    pub differences: Vec<Difference>,
}

/// Runs one program in all its ways. Returns the program, its number of steps, and the first difference, if there is
/// one.
pub fn check<T: Tier>(kind: Kind, seed: u64, number: u64) -> (Program, u64, Option<Difference>) {
    let program = kind.program(seed, number);
    let expected = kind.reference(&program);
    let steps = expected.last().map_or(0, |last| last.counts.steps);
    let mut rng = stream(seed ^ 1, number);
    let difference = kind.ways(number).into_iter().find_map(|way| {
        let (cut, _) = ways::compare::<T>(&program, &expected, way, &mut rng)?;
        Some(Difference { program: number, way, cut })
    });
    (program, steps, difference)
}

/// Runs programs until there are enough steps or differences. `tell` is called for each difference when it is
/// found, and from time to time with the number of steps so far.
pub fn run<T: Tier>(options: &Options, mut tell: impl FnMut(News)) -> Summary {
    let next = AtomicU64::new(options.first);
    let steps = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    let found = AtomicU64::new(0);
    let (teller, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            let teller = teller.clone();
            scope.spawn(|| {
                let teller = teller;
                while steps.load(Ordering::Relaxed) < options.steps
                    && found.load(Ordering::Relaxed) < options.differences as u64
                {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (program, count, difference) = check::<T>(options.kind, options.seed, number);
                    steps.fetch_add(count, Ordering::Relaxed);
                    if let Some(difference) = difference {
                        found.fetch_add(1, Ordering::Relaxed);
                        teller.send(difference).expect("it is received until every thread is done");
                    }
                    let mut summary = summary.lock().unwrap_or_else(|e| e.into_inner());
                    summary.programs += 1;
                    summary.steps += count;
                    let mode = format!("{:?}, paging {:?}", program.mode, program.paging);
                    *summary.modes.entry(mode).or_default() += 1;
                    summary.differences.extend(difference);
                }
            });
        }
        drop(teller);
        loop {
            match told.recv_timeout(Duration::from_secs(2)) {
                Ok(difference) => tell(News::Found(difference)),
                Err(RecvTimeoutError::Timeout) => tell(News::Steps(steps.load(Ordering::Relaxed))),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(|e| e.into_inner());
    summary.differences.sort_by_key(|difference| difference.program);
    summary
}
