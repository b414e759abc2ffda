//! Makes the changes of the source (*mutants*) that cargo-mutants lists, and counts the mutants that tests catch.
//!
//! One build has all mutants. An environment variable says which mutant is active ([`rewrite`], `switch.rs`). For
//! each mutant, only the package's tests that execute the changed code are run ([`run`]). Mutants that a build
//! cannot hold, such as changed constants, are left to cargo-mutants itself.

mod build;
mod list;
mod rewrite;
mod run;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::resource::{Resource, setrlimit};

use crate::build::{Built, Program};
use crate::list::{Genre, Mutant};
use crate::run::Verdict;

/// The memory that a mutant may use. If a mutant needs more memory, the script counts this mutant as caught.
const MEMORY_BYTES: u64 = 6 << 30;

#[derive(Parser)]
struct Arguments {
    /// The folder for the copy of the tree, the build and the results.
    #[arg(long)]
    work: PathBuf,
    /// Try only every Nth mutant, from the Kth on: K/N.
    #[arg(long, value_parser = shard, default_value = "0/1")]
    shard: (usize, usize),
    /// Try only the mutants that no test caught when they were tried last.
    #[arg(long)]
    missed: bool,
    /// Try only the mutants that have not been tried yet. This continues an earlier run.
    #[arg(long, conflicts_with = "missed")]
    untried: bool,
    /// Packages whose tests are run too. The tests of a mutant's own package always run.
    #[arg(long, value_delimiter = ',')]
    also: Vec<String>,
    /// In the packages of --also, run only tests whose names contain this text.
    #[arg(long, default_value = "")]
    also_tests: String,
    /// Number of processes that run tests at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Patterns of the source files that are changed.
    #[arg(required = true)]
    files: Vec<String>,
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts.filter(|&(k, n)| k < n).ok_or_else(|| "it has the form K/N, such as 0/20".to_owned())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let repository = std::env::current_dir()?;
    let work = repository.join(&arguments.work);
    fs::create_dir_all(&work)?;
    let mutants = list::list(&repository, &arguments.files)?;
    let own = mutants.iter().map(|mutant| mutant.package.clone());
    let packages = own.chain(arguments.also.iter().cloned()).collect();
    let built = build::build(&repository, &work, &mutants, &packages)?;
    setrlimit(Resource::RLIMIT_DATA, MEMORY_BYTES, MEMORY_BYTES)?;

    let results = Results::open(work.join("results.txt"))?;
    let (first, step) = arguments.shard;
    let numbered: Vec<(u32, &Mutant)> = (1..).zip(&mutants).collect();
    let chosen: Vec<(u32, &Mutant)> = numbered
        .into_iter()
        .skip(first)
        .step_by(step)
        .filter(|(_, mutant)| !arguments.missed || results.is_missed(&mutant.name))
        .filter(|(_, mutant)| !arguments.untried || !results.earlier.contains_key(&mutant.name))
        .collect();
    // In the list, all mutants of a package come one after the other.
    for mutants in chosen.chunk_by(|(_, one), (_, next)| one.package == next.package) {
        judge(&work, &built, &results, &arguments, mutants)?;
    }
    print!("{}", table(&mutants, &results.latest()?));
    Ok(())
}

/// A file with a line `VERDICT TAB NAME` for each mutant that was tried. If a mutant has several lines, the last
/// line is valid.
struct Results {
    path: PathBuf,
    earlier: BTreeMap<String, String>,
}

impl Results {
    fn open(path: PathBuf) -> Result<Results> {
        let mut results = Results { path, earlier: BTreeMap::new() };
        if results.path.exists() {
            results.earlier = results.latest()?;
        }
        Ok(results)
    }

    fn latest(&self) -> Result<BTreeMap<String, String>> {
        let text = fs::read_to_string(&self.path).with_context(|| self.path.display().to_string())?;
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(lines.map(|(verdict, name)| (name.to_owned(), verdict.to_owned())).collect())
    }

    fn is_missed(&self, name: &str) -> bool {
        self.earlier.get(name).is_some_and(|verdict| matches!(verdict.as_str(), "missed" | "not reached"))
    }

    fn add(&self, verdict: &str, name: &str) -> Result<()> {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&self.path)?;
        Ok(file.write_all(format!("{verdict}\t{name}\n").as_bytes())?)
    }
}

/// Tries mutants of one package. Runs the tests of this package and of the packages of `--also`.
fn judge(
    work: &Path,
    built: &Built,
    results: &Results,
    arguments: &Arguments,
    mutants: &[(u32, &Mutant)],
) -> Result<()> {
    let (package, jobs) = (&mutants[0].1.package, arguments.jobs);
    let is_tried = |of: &String| of == package || arguments.also.contains(of);
    let programs = built.programs.iter().filter(|program| is_tried(&program.package));
    let is_wanted = |program: &Program, name: &str| {
        program.package == *package || name.contains(arguments.also_tests.as_str())
    };
    let tests = run::tests(work, &programs.collect::<Vec<_>>(), &is_wanted, jobs)?;
    eprintln!("{package}: {} mutants, {} tests", mutants.len(), tests.len());
    let done = AtomicUsize::new(0);
    let judged = run::in_parallel(jobs, mutants, |worker, &(number, mutant)| {
        let word = match built.places.get(&number) {
            Some(&place) => match run::judge(work, worker, &tests, number, place)? {
                Verdict::Caught => "caught",
                Verdict::Endless => "endless",
                Verdict::Missed => "missed",
                Verdict::NotReached => "not reached",
            },
            None if left_to_cargo_mutants(mutant, built.refused.get(&number)) => "not tried",
            None => "not built",
        };
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("{done}/{}\t{word}\t{}", mutants.len(), mutant.name);
        results.add(word, &mutant.name)
    });
    judged.into_iter().collect()
}

/// Whether the compiler might accept this mutant by itself, but rejects our rewritten code. The mutant is in a
/// constant, or the rewritten code makes the compiler lose a type or a borrow.
fn left_to_cargo_mutants(mutant: &Mutant, error: Option<&String>) -> bool {
    const OURS: [&str; 13] = [
        build::TWO_TYPES,
        "E0015",
        "E0282",
        "E0283",
        "E0382",
        "E0499",
        "E0502",
        "E0503",
        "E0505",
        "E0506",
        "E0507",
        "E0597",
        "E0716",
    ];
    match error {
        Some(code) => OURS.contains(&code.as_str()),
        // Next to a `let` pattern, Rust allows no other operator than `&&`.
        None => !matches!(mutant.genre, Genre::BinaryOperator),
    }
}

/// The table of verdicts: a line for each file, for each package, and for all packages.
fn table(mutants: &[Mutant], verdicts: &BTreeMap<String, String>) -> String {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for mutant in mutants {
        let Some(verdict) = verdicts.get(&mutant.name) else { continue };
        for row in [mutant.file.as_str(), mutant.package.as_str(), "all"] {
            *counts.entry(row).or_default().entry(verdict).or_default() += 1;
        }
    }
    let mut text = String::new();
    for (row, counts) in counts {
        let count = |verdict| counts.get(verdict).copied().unwrap_or(0);
        let caught = count("caught") + count("endless");
        let missed = count("missed") + count("not reached");
        let percent = 100.0 * caught as f64 / (caught + missed).max(1) as f64;
        text += &format!(
            "{row:<36} {percent:5.1} %: {caught:4} caught ({:3} endless) {missed:4} missed ({:3} not reached) {:4} not \
             built {:3} not tried\n",
            count("endless"),
            count("not reached"),
            count("not built"),
            count("not tried"),
        );
    }
    text
}
