//! Runs tests with each mutant, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::build::Program;

/// The tests' verdict on a mutant.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Verdict {
    Caught,
    /// A test ran much longer than without the mutant.
    Endless,
    Missed,
    /// No test executes the code with the mutant.
    NotReached,
}

/// A test that passes as long as no mutant is active.
pub struct Test<'a> {
    program: &'a Program,
    name: String,
    time: Duration,
    /// The numbers of the locations with mutants that the test executes. `None` if they are unknown, because the test
    /// starts a program that cannot list its locations. Such a program closes all files that were open at its start.
    reached: Option<BTreeSet<u32>>,
}

impl Test<'_> {
    fn may_reach(&self, place: u32) -> bool {
        self.reached.as_ref().is_none_or(|reached| reached.contains(&place))
    }
}

enum Outcome {
    Passed,
    Failed,
    Endless,
}

/// Does `job` for each of the items on `jobs` threads, and returns the results in the items' order.
pub fn in_parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    job: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for worker in 0..jobs {
            let (next, results, job) = (&next, &results, &job);
            scope.spawn(move || {
                while let Some((number, item)) =
                    items.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = job(worker, item);
                    results.lock().expect("no job panics").insert(number, result);
                }
            });
        }
    });
    results.into_inner().expect("no job panics").into_values().collect()
}

/// Runs every wanted test of the programs twice, each time in a new process. The first run measures the test's
/// time. The second run finds the locations with mutants that the test executes.
pub fn tests<'a>(
    work: &Path,
    programs: &[&'a Program],
    is_wanted: &dyn Fn(&Program, &str) -> bool,
    jobs: usize,
) -> Result<Vec<Test<'a>>> {
    let mut names = Vec::new();
    for &program in programs {
        let ignored = list(program, &["--ignored"])?;
        let all = list(program, &[])?;
        let wanted = all.difference(&ignored).filter(|name| is_wanted(program, name));
        names.extend(wanted.map(|name| (program, name.clone())));
    }
    let tests = in_parallel(jobs, &names, |worker, (program, name)| first_run(work, worker, program, name));
    let tests = tests.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(tests.into_iter().flatten().collect())
}

fn list(program: &Program, options: &[&str]) -> Result<BTreeSet<String>> {
    let output = Command::new(&program.path).args(["--list", "--format=terse"]).args(options).output()?;
    ensure!(output.status.success(), "{} lists no tests", program.path.display());
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn first_run<'a>(work: &Path, worker: usize, program: &'a Program, name: &str) -> Result<Option<Test<'a>>> {
    let patience = Duration::from_secs(120);
    let started = Instant::now();
    let outcome = run(work, worker, program, &[name], ("MUTANT", "0".as_ref()), patience)?;
    let time = started.elapsed();
    let file = work.join(format!("reached.{worker}"));
    let _ = fs::remove_file(&file);
    if !matches!(outcome, Outcome::Passed) {
        eprintln!("left out, because it fails without any mutant: {name} of {}", program.package);
        return Ok(None);
    }
    // A program that cannot list its locations may keep the test waiting.
    let recorded = run(work, worker, program, &[name], ("MUTANTS_REACHED", file.as_ref()), time)?;
    let reached = matches!(recorded, Outcome::Passed).then(|| {
        let lines = fs::read_to_string(&file).unwrap_or_default();
        lines.lines().filter_map(|line| line.parse().ok()).collect()
    });
    Ok(Some(Test { program, name: name.to_owned(), time, reached }))
}

/// Runs the tests that execute a mutant's location, the fastest test first, until a test fails.
pub fn judge(work: &Path, worker: usize, tests: &[Test], mutant: u32, place: u32) -> Result<Verdict> {
    let mut reaching: Vec<&Test> = tests.iter().filter(|test| test.may_reach(place)).collect();
    if reaching.is_empty() {
        return Ok(Verdict::NotReached);
    }
    reaching.sort_by_key(|test| test.time);
    let number = mutant.to_string();
    for chunk in chunks(&reaching) {
        let names: Vec<&str> = chunk.iter().map(|test| test.name.as_str()).collect();
        let usual: Duration = chunk.iter().map(|test| test.time).sum();
        match run(work, worker, chunk[0].program, &names, ("MUTANT", number.as_ref()), usual)? {
            Outcome::Passed => {}
            Outcome::Failed => return Ok(Verdict::Caught),
            Outcome::Endless => return Ok(Verdict::Endless),
        }
    }
    Ok(Verdict::Missed)
}

/// Splits the tests into groups. Each group runs in one process. The first groups have few and fast tests, because
/// a fast test catches most mutants.
fn chunks<'a, 't>(tests: &[&'a Test<'t>]) -> Vec<Vec<&'a Test<'t>>> {
    let mut chunks = Vec::new();
    let mut budget = Duration::from_millis(20);
    let mut rest = tests;
    while !rest.is_empty() {
        let mut spent = Duration::ZERO;
        let count = rest.iter().take_while(|test| {
            let fits = spent < budget;
            spent += test.time;
            fits
        });
        let (now, later) = rest.split_at(count.count());
        let mut programs: BTreeMap<&PathBuf, Vec<&Test>> = BTreeMap::new();
        for test in now {
            programs.entry(&test.program.path).or_default().push(test);
        }
        chunks.extend(programs.into_values());
        rest = later;
        budget *= 4;
    }
    chunks
}

/// Runs some tests of a program in a process of its own. Stops the process and its children if it computes much
/// longer than `usual`, or waits for an event that does not come.
fn run(
    work: &Path,
    worker: usize,
    program: &Program,
    names: &[&str],
    (variable, value): (&str, &std::ffi::OsStr),
    usual: Duration,
) -> Result<Outcome> {
    let most_computing = Duration::from_secs(2) + usual * 3;
    let patience = Duration::from_secs(5) + usual * 10;
    // Use a temporary folder of our own, because a stopped test does not remove its files.
    let temporary = work.join(format!("tmp.{worker}"));
    let _ = fs::remove_dir_all(&temporary);
    fs::create_dir_all(&temporary)?;
    let mut child = Command::new("prlimit")
        // At the first limit, the program gets SIGXCPU. At the second limit, the kernel kills the program.
        .arg(format!("--cpu={}:{}", most_computing.as_secs(), most_computing.as_secs() + 5))
        .arg(&program.path)
        .args(["--exact", "--test-threads=1", "--quiet"])
        .args(names)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("TMPDIR", &temporary)
        .env(variable, value)
        // Nobody reads the tests' output, so do not spend time on backtraces or on smaller examples.
        .env("RUST_BACKTRACE", "0")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| program.path.display().to_string())?;
    let started = Instant::now();
    let outcome = loop {
        match child.try_wait()? {
            Some(status) if status.success() => break Outcome::Passed,
            Some(status) if status.signal() == Some(Signal::SIGXCPU as i32) => break Outcome::Endless,
            Some(_) => break Outcome::Failed,
            None if started.elapsed() > patience => break Outcome::Endless,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    child.wait()?;
    Ok(outcome)
}
