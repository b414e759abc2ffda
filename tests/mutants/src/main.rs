//! Changes the source in the ways that cargo-mutants lists, and counts what the tests catch.
//!
//! One build has all mutants; an environment variable says which is active ([`rewrite`], `switch.rs`). Of the tests of a
//! package only those are run that execute the changed place ([`run`]). What a build cannot hold, such as a constant,
//! is left to cargo-mutants itself.

mod build;
mod list;
mod rewrite;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::resource::{Resource, setrlimit};

use crate::build::Built;
use crate::list::{Genre, Mutant};
use crate::run::Verdict;

/// What a mutant may take of memory before it counts as caught.
const MEMORY_BYTES: u64 = 6 << 30;

#[derive(Parser)]
struct Arguments {
    /// Where the copy of the tree, the build and the results go.
    #[arg(long)]
    work: PathBuf,
    /// Only the mutants that the last run missed, by their names.
    #[arg(long)]
    missed: bool,
    /// Processes that run tests at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// What cargo-mutants is told about which mutants to list.
    #[arg(last = true)]
    list_options: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    fs::create_dir_all(&arguments.work)?;
    let results = arguments.work.join("results.txt");
    let mut mutants = list::list(&std::env::current_dir()?, &arguments.list_options)?;
    if arguments.missed {
        let names = missed_before(&fs::read_to_string(&results).context("there is no earlier run")?);
        mutants.retain(|mutant| names.contains(&mutant.name));
    }
    let lines = verdicts(&arguments, &mutants)?;
    let mut text = String::new();
    for (mutant, verdict) in mutants.iter().zip(&lines) {
        writeln!(text, "{verdict}\t{}", mutant.name)?;
    }
    fs::write(&results, text)?;
    print!("{}", table(&mutants, &lines));
    Ok(())
}

fn missed_before(results: &str) -> BTreeSet<String> {
    let lines = results.lines().filter_map(|line| line.split_once('\t'));
    lines
        .filter(|(verdict, _)| matches!(*verdict, "missed" | "not reached"))
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// The packages whose tests are asked about a mutant of `package`.
fn testers(package: &str) -> &[&str] {
    match package {
        "vmm" => &["vmm", "ttvm"],
        "cpu" => &["cpu"],
        "checkpoint" => &["checkpoint"],
        other => unreachable!("{other} has no mutants in the list of files"),
    }
}

/// A word for each mutant.
fn verdicts(arguments: &Arguments, mutants: &[Mutant]) -> Result<Vec<&'static str>> {
    let repository = std::env::current_dir()?;
    let packages: BTreeSet<String> = mutants
        .iter()
        .flat_map(|mutant| testers(&mutant.package))
        .map(|&package| package.to_owned())
        .collect();
    let work = repository.join(&arguments.work);
    let built = build::build(&repository, &work, mutants, &packages)?;
    setrlimit(Resource::RLIMIT_DATA, MEMORY_BYTES, MEMORY_BYTES)?;
    let numbered: Vec<(u32, &Mutant)> = (1..).zip(mutants).collect();
    let mut words = Vec::new();
    // The list has the mutants of a package together.
    for mutants in numbered.chunk_by(|(_, one), (_, next)| one.package == next.package) {
        words.extend(words_of(arguments, &work, &built, mutants)?);
    }
    Ok(words)
}

/// A word for each of the mutants of one package.
fn words_of(
    arguments: &Arguments,
    work: &Path,
    built: &Built,
    mutants: &[(u32, &Mutant)],
) -> Result<Vec<&'static str>> {
    let package = &mutants[0].1.package;
    let programs =
        built.programs.iter().filter(|program| testers(package).contains(&program.package.as_str()));
    let tests = run::tests(work, &programs.collect::<Vec<_>>(), arguments.jobs)?;
    eprintln!("{package}: {} mutants, {} tests", mutants.len(), tests.len());
    let done = AtomicUsize::new(0);
    let words = run::in_parallel(arguments.jobs, mutants, |worker, &(number, mutant)| {
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
        Ok(word)
    });
    words.into_iter().collect()
}

/// Whether a mutant is not in the build because of how we write it, and not because the compiler would refuse it alone:
/// it is in a constant, or has the compiler lose track of a type or of a borrow.
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
        // Where a pattern is tested by `let`, nothing but `&&` can stand.
        None => !matches!(mutant.genre, Genre::BinaryOperator),
    }
}

fn table(mutants: &[Mutant], verdicts: &[&str]) -> String {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (mutant, verdict) in mutants.iter().zip(verdicts) {
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
        let _ = writeln!(
            text,
            "{row:<40} {caught:5} caught ({:3} endless) {missed:4} missed ({:3} not reached) {percent:5.1} % {:4} not \
             built {:3} not tried",
            count("endless"),
            count("not reached"),
            count("not built"),
            count("not tried"),
        );
    }
    text
}
