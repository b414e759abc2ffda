//! Compares the software CPU with the processor it runs on: random user-mode instructions from random
//! registers and memory, executed on both, everything visible compared.
//!
//! [`catalogue`] knows which encodings there are, [`case`] makes random cases of them, [`native`] and
//! [`soft`] execute one each, [`compare`] and [`allowed`] judge. A run is repeated by its seed; one case by
//! its batch and number. It does not test privileged instructions, other modes than 64-bit user mode, or
//! time.

#![deny(unsafe_code)]

pub mod allowed;
pub mod case;
pub mod catalogue;
pub mod compare;
pub mod layout;
pub mod native;
pub mod process;
pub mod report;
pub mod rng;
pub mod runner;
pub mod soft;
pub mod state;
pub mod text;
pub mod values;

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use iced_x86::Code;

use crate::catalogue::Catalogue;
use crate::layout::BATCH;
use crate::process::{Child, Ended};
use crate::report::Report;
use crate::runner::Runner;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Executions, rounded up to whole batches.
    pub count: u64,
    /// Chooses the cases.
    pub seed: u64,
    /// Only these mnemonics; all when empty.
    pub only: Vec<String>,
    /// Processes.
    pub jobs: u64,
    /// Only this batch.
    pub batch: Option<u64>,
    /// Of that batch, only the cases up to this one.
    pub case: Option<u64>,
    /// Differences shown in full for each mnemonic and process.
    pub show: u64,
    /// Whether to show progress on stderr.
    pub progress: bool,
}

/// Result of a run.
pub struct Summary {
    /// Counts.
    pub report: Report,
    /// Processes that died, in words.
    pub died: Vec<String>,
}

impl Summary {
    /// Nothing differed, nothing that should be offered was undefined, and nothing died.
    pub fn passed(&self) -> bool {
        self.report.differences() == 0 && self.report.not_offered.is_empty() && self.died.is_empty()
    }
}

/// Why this host cannot run the comparison, if it cannot.
pub fn unsupported() -> Option<String> {
    let vendor = std::arch::x86_64::__cpuid(0);
    if [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() != b"GenuineIntel" {
        return Some(
            "not an Intel processor, which the CPU follows where the manuals leave room".to_string(),
        );
    }
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

/// Runs the comparison. The caller must have one thread only, since this forks.
pub fn run(options: &Options) -> io::Result<Summary> {
    let only = options.only.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
    let wanted =
        |code: Code| only.is_empty() || only.contains(&format!("{:?}", code.mnemonic()).to_lowercase());
    let catalogue = Catalogue::collect(wanted);
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
    let only = options.only.iter().map(|name| format!(" --only {name}")).collect::<String>();
    let repeat = format!("cargo run --release -p silicon -- --seed {}{only}", options.seed);
    let mut runner = match Runner::new(catalogue, options.seed, repeat, options.show) {
        Ok(runner) => runner,
        Err(error) => {
            eprintln!("cannot set up: {error}");
            std::process::exit(2);
        }
    };
    for batch in batches {
        process::watchdog(120);
        progress.batch.store(batch, Ordering::Relaxed);
        let count = options.case.map_or(BATCH, |case| case + 1);
        runner.batch(batch, count, |number| {
            progress.case.store(number, Ordering::Relaxed);
            progress.done.fetch_add(1, Ordering::Relaxed);
        });
    }
    serde_json::to_vec(&runner.report).expect("a report is plain data")
}

/// Shows progress until all cases are done or no more get done.
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
