//! Compares the software CPU with the host's processor. Processor and software CPU execute random user-mode
//! instructions with random contents of registers and memory. The package compares all registers and all memory
//! that such an instruction can write.
//!
//! [`catalogue`] lists the encodings, and [`case`] makes random cases from these. [`native`] and [`soft`] execute a
//! case, and [`compare`] and [`allowed`] judge the results. With the same seed, a run has the same cases. The
//! numbers of a batch and a case select one case. Results that the manuals leave open ([`open`]) are compared on
//! Intel's processors only; [`golden`] has an Intel processor's results for all other hosts. The package does not
//! test privileged instructions, other modes than 64-bit user mode, and the time of instructions.

#![deny(unsafe_code)]

pub mod allowed;
pub mod case;
pub mod catalogue;
pub mod compare;
pub mod golden;
pub mod layout;
pub mod native;
pub mod open;
pub mod process;
pub mod reference;
pub mod report;
pub mod runner;
pub mod soft;
pub mod state;
pub mod sweep;
pub mod text;
pub mod values;

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use crate::catalogue::Catalogue;
use crate::golden::{Golden, Recorder};
use crate::layout::BATCH;
use crate::native::Native;
use crate::open::Compared;
use crate::process::{Child, Ended};
use crate::reference::{Disturbed, Reference};
use crate::report::Report;
use crate::runner::{Runner, Showing};

/// The cases to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of cases to execute, rounded up to whole batches.
    pub count: u64,
    /// The seed that determines the cases.
    pub seed: u64,
    /// Run only instructions with these mnemonics; all if the list is empty.
    pub only: Vec<String>,
    /// Number of child processes.
    pub jobs: u64,
    /// Run only this batch.
    pub batch: Option<u64>,
    /// Run only the cases of the batch up to the case with this number.
    pub case: Option<u64>,
    /// Number of differences that are shown in full for each mnemonic and process.
    pub show: u64,
    /// Whether to show progress on stderr.
    pub progress: bool,
    /// The vendor of the processor with which the software CPU is compared.
    pub vendor: Vendor,
}

/// The vendor of the processor with which the software CPU is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// The vendor of this host's processor. On an Intel processor all results are compared, on another processor
    /// only results that the manuals define.
    OfThisHost,
    /// A vendor other than the host's. The comparison uses this host's processor, but changes every result that the
    /// manuals leave open ([`Disturbed`]).
    Other,
}

/// Result of a run.
pub struct Summary {
    /// The counts of the run.
    pub report: Report,
    /// An error message for each child process that died.
    pub died: Vec<String>,
}

impl Summary {
    /// Whether nothing differed, the software CPU knew every instruction, and no child process died.
    pub fn passed(&self) -> bool {
        self.report.differences() == 0 && self.report.not_offered.is_empty() && self.died.is_empty()
    }
}

/// The reason why this host cannot run the comparison; `None` if it can.
pub fn unsupported() -> Option<String> {
    let missing = missing_features();
    (!missing.is_empty()).then(|| format!("the processor has no {}", missing.join(", ")))
}

fn missing_features() -> Vec<&'static str> {
    macro_rules! missing {
        ($($name:tt)*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let features = missing!(
        "aes" "pclmulqdq" "sse4.2" "ssse3" "popcnt" "lzcnt" "bmi1" "bmi2" "movbe" "cmpxchg16b" "fxsr"
    );
    features.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
}

/// Runs the comparison. The calling process must have only one thread, because the function forks.
pub fn run(options: &Options) -> io::Result<Summary> {
    let catalogue = Catalogue::of(&options.only);
    if catalogue.entries.is_empty() {
        return Err(io::Error::other("no such instruction"));
    }
    let batches = match options.batch {
        Some(batch) => batch..batch + 1,
        None => 0..options.count.div_ceil(BATCH),
    };
    let jobs = options.jobs.clamp(1, (batches.end - batches.start).max(1));
    let mut children = Vec::new();
    for job in 0..jobs {
        let mine = batches.clone().skip(job as usize).step_by(jobs as usize);
        children.push(Child::spawn(|progress| work(&catalogue, options, mine, progress))?);
    }
    if options.progress {
        watch(&children, options);
    }
    collect(children)
}

fn work(
    catalogue: &Catalogue,
    options: &Options,
    batches: impl Iterator<Item = u64>,
    progress: &process::Progress,
) -> Vec<u8> {
    let report = match (options.vendor, Native::new()) {
        (_, Err(error)) => Err(error),
        (Vendor::OfThisHost, Ok(native)) => {
            compare_with(native, Compared::here(), catalogue, options, batches, progress)
        }
        (Vendor::Other, Ok(native)) => {
            compare_with(Disturbed(native), Compared::Defined, catalogue, options, batches, progress)
        }
    };
    serde_json::to_vec(&report.unwrap_or_else(|error| give_up(&error))).expect("a report is plain data")
}

/// Ends a child process with an error.
fn give_up(error: &io::Error) -> ! {
    eprintln!("cannot set up: {error}");
    std::process::exit(2)
}

fn compare_with(
    reference: impl Reference,
    compared: Compared,
    catalogue: &Catalogue,
    options: &Options,
    batches: impl Iterator<Item = u64>,
    progress: &process::Progress,
) -> io::Result<Report> {
    let mut repeat = format!("cargo run --release -p silicon -- --seed {}", options.seed);
    options.only.iter().for_each(|name| repeat += &format!(" --only {name}"));
    if options.vendor == Vendor::Other {
        repeat += " --as-other-vendor";
    }
    let showing = Showing { repeat, each: options.show };
    let mut runner = Runner::new(catalogue, options.seed, reference, compared, showing)?;
    for batch in batches {
        process::watchdog(120);
        progress.batch.store(batch, Ordering::Relaxed);
        let count = options.case.map_or(BATCH, |case| case + 1);
        runner.batch(batch, count, |number| {
            progress.case.store(number, Ordering::Relaxed);
            progress.done.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    Ok(runner.report)
}

/// Records golden vectors on this processor, and compares the software CPU with the vectors. The calling process
/// must have only one thread, because the function forks.
pub fn record() -> io::Result<(Golden, Summary)> {
    if !open::is_intel() {
        return Err(io::Error::other("golden vectors are recorded on an Intel processor"));
    }
    let child = Child::spawn(|progress| {
        process::watchdog(600);
        let golden =
            Native::new().and_then(|native| record_here(native, progress)).and_then(|golden| golden.encode());
        golden.unwrap_or_else(|error| give_up(&error))
    })?;
    match child.finish()? {
        Ended::Died(how) => Err(io::Error::other(format!("the process that recorded died: {how}"))),
        Ended::Result(bytes) => {
            let golden = Golden::decode(&bytes)?;
            let report = replay(&golden, Which::default(), 2)?;
            Ok((golden, Summary { report, died: Vec::new() }))
        }
    }
}

fn record_here(native: Native, progress: &process::Progress) -> io::Result<Golden> {
    let (fs_base, mut native) = (native.fs_base, Some(native));
    golden::record(fs_base, |catalogue, seed, batches| {
        let recorder = Recorder::new(native.take().expect("it is given back"));
        let showing = Showing { repeat: String::new(), each: 0 };
        let mut runner = Runner::new(catalogue, seed, recorder, Compared::Everything, showing)?;
        for batch in batches {
            progress.batch.store(batch, Ordering::Relaxed);
            runner.batch(batch, BATCH, |number| progress.case.store(number, Ordering::Relaxed))?;
        }
        let (recorded, reference) = runner.reference.finish();
        native = Some(reference);
        Ok(recorded)
    })
}

/// The golden vectors to compare with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Which {
    /// Run only this part.
    pub part: Option<usize>,
    /// Run only this batch.
    pub batch: Option<usize>,
    /// Run the cases of each batch only up to this case.
    pub case: Option<u64>,
}

/// Compares the software CPU with golden vectors, and shows a number of differences of each mnemonic in full.
pub fn replay(golden: &Golden, which: Which, show: u64) -> io::Result<Report> {
    let mut report = Report::default();
    for part in (0..golden.parts.len()).filter(|part| which.part.is_none_or(|only| only == *part)) {
        let which = Which { part: Some(part), ..which };
        report.merge(&replay_part(golden, which, golden.results(part), Compared::Everything, show)?);
    }
    Ok(report)
}

/// Compares the software CPU with one part of the golden vectors, or with a wrapper of its results.
pub fn replay_part(
    golden: &Golden,
    which: Which,
    results: impl Reference,
    compared: Compared,
    show: u64,
) -> io::Result<Report> {
    let part = which.part.unwrap_or_default();
    let catalogue = golden.catalogue(part)?;
    let repeat = format!("cargo run --release -p silicon -- replay --part {part}");
    let showing = Showing { repeat, each: show };
    let mut runner = Runner::new(&catalogue, golden.seed(), results, compared, showing)?;
    let count = which.case.map_or(BATCH, |case| case + 1);
    for batch in (0..golden.parts[part].batches.len()).filter(|b| which.batch.is_none_or(|only| only == *b)) {
        runner.batch(batch as u64, count, |_| {})?;
    }
    Ok(runner.report)
}

/// Shows progress until all cases are done, or the number of done cases no longer grows.
fn watch(children: &[Child], options: &Options) {
    let mut last = 0;
    loop {
        std::thread::sleep(std::time::Duration::from_secs(2));
        let done = children.iter().map(|c| c.progress.done.load(Ordering::Relaxed)).sum::<u64>();
        eprint!("\r{done} of {} executions", options.count);
        let _ = io::stderr().flush();
        if done >= options.count || done == last {
            break eprintln!();
        }
        last = done;
    }
}

fn collect(children: Vec<Child>) -> io::Result<Summary> {
    let mut summary = Summary { report: Report::default(), died: Vec::new() };
    for child in children {
        match child.finish()? {
            Ended::Result(bytes) => {
                let part: Report = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
                summary.report.merge(&part);
            }
            Ended::Died(how) => summary.died.push(how),
        }
    }
    Ok(summary)
}
