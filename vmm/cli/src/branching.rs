//! `--branches`: many live machines from one place in a recording, each in a copy of this process.
//!
//! ```text
//!   replay to the place ──► the template: one thread, which never runs the guest again
//!                             ├─ fork ─► branch 1: differs, runs to its end, reports
//!                             ├─ fork ─► branch 2 ...
//!                             └─ waits, and prints a line for each
//! ```
//!
//! The branches share the template's memory until they write to it. The branches also share the template's
//! translated code.

mod memory;

use std::fs::File;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use branches::{Ending, OneThread, Plan, Start, run_all};
use clap::ValueEnum;
use cpu::TurnPolicy;
use host::{LiveConsole, LiveInputs};
use machine::error::{Error, exit_code};
use machine::hashes::hex;
use machine::position::{Count, Instructions};
use machine::{Machine, RunStop};
use recording::create_folder;
use sandbox::Needs;
use serde::{Deserialize, Serialize};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::companion::{Companion, Leftovers};
use crate::go_live::Source;
use crate::machine_args::MachineArgs;
use crate::output::{end_in_words, exit_code_of, print, say};
use crate::panic_watch::PanicWatch;
use crate::run_listener::WithListener;
use crate::sandbox_arg::SandboxArgs;
use memory::Memory;

/// The largest number of branches in one run. The limit exists because each branch has a file.
const MOST_BRANCHES: i64 = 100_000;

/// How many branches there are, and what they report.
#[derive(clap::Args)]
pub struct BranchArgs {
    /// With --snapshot-from: run this number of live branches from the position, and print a line for each.
    ///
    /// Each branch has its own memory and disk, and nobody types. The consoles are files in the new folder of -o. The options
    /// that end a run hold for each branch. The exit code is 1 if a guest panicked.
    #[arg(long, help_heading = "Branches", value_name = "N", requires_all = ["snapshot_from", "output"],
        conflicts_with_all = ["control", "record_when", "net", "console_log", "stats_json", "checkpoint_interval",
            "checkpoint_overhead", "max_size", "last"],
        value_parser = clap::value_parser!(u32).range(1..=MOST_BRANCHES))]
    branches: Option<u32>,
    /// Number of branches that run at once [default: the host's cores]
    #[arg(long, help_heading = "Branches", value_name = "N", requires = "branches")]
    jobs: Option<NonZeroU32>,
    /// How the branches differ from one another
    #[arg(long, help_heading = "Branches", value_name = "WHAT", requires = "branches", value_enum, default_value_t = Vary::Entropy)]
    vary: Vary,
    /// Also print a hash of each branch's last state: equal hashes mean equal states. For one run, say --branches 1
    #[arg(long, help_heading = "Branches", requires = "branches")]
    state_hash: bool,
    /// Print JSON
    #[arg(long, help_heading = "Branches", requires = "branches")]
    json: bool,
    /// Measure each branch's memory before its first instruction and after these numbers of instructions. The script
    /// bench-branches uses this
    #[arg(long, hide = true, value_name = "N", value_delimiter = ',', requires_all = ["branches", "no_sandbox"])]
    measure_at: Vec<u64>,
}

/// How the branches differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Vary {
    /// Each branch has another seed of the entropy device
    Entropy,
    /// Each branch gives turns to its processors as --turns random:K, where K is the branch's number
    Turns,
    /// All branches do the same
    Nothing,
}

impl Vary {
    /// Changes the machine so that it becomes the machine of branch `number`. Only this function makes branches differ
    /// from the recorded run. A new kind of difference must be added here.
    fn apply(self, machine: &mut Machine<Instructions>, number: u32) {
        match self {
            Vary::Entropy => _ = machine.vary_entropy(number),
            Vary::Turns => machine.change_turn_policy(TurnPolicy::Random { seed: number.into() }),
            Vary::Nothing => {}
        }
    }
}

/// The report of a branch at its end.
#[derive(Serialize, Deserialize)]
struct Report {
    ended: String,
    exit_code: i32,
    instructions: u64,
    guest_seconds: f64,
    /// The first line of the kernel's panic.
    #[serde(skip_serializing_if = "Option::is_none")]
    panic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_hash: Option<String>,
    /// Milliseconds from the fork of the branch to the branch's first instruction.
    stood_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    memory: Vec<Memory>,
}

/// A branch that has ended.
#[derive(Serialize)]
struct Row {
    branch: u32,
    console: PathBuf,
    #[serde(flatten)]
    report: Option<Report>,
    /// Why the branch sent no report, if it sent none.
    #[serde(skip_serializing_if = "Option::is_none")]
    died: Option<String>,
}

/// The state that all branches share.
struct Template<'a> {
    args: &'a BranchArgs,
    machine_args: &'a MachineArgs,
    machine: Machine<Instructions>,
    folder: &'a Path,
    /// Whether a signal came in that ends all branches.
    terminated: Arc<AtomicBool>,
    /// The handler that ends this process at a second ^C.
    at_second: SigId,
}

impl BranchArgs {
    /// The number of branches, if the user wants branches.
    pub fn count(&self) -> Option<u32> {
        self.branches
    }
}

/// Runs `count` branches. Returns the exit code.
pub fn run(
    args: &BranchArgs,
    count: u32,
    machine_args: &MachineArgs,
    sandbox: SandboxArgs,
    source: Source,
    folder: &Path,
) -> Result<i32, Error> {
    if source.engine == host::KVM {
        let why = "branches need the software CPU, and KVM runs this machine: leave --branches out";
        return Err(Error::Unsupported(why.to_string()));
    }
    if args.vary == Vary::Turns && source.processors().count() == 1 {
        let why = "--vary turns needs a recording with several processors: use --vary entropy";
        return Err(Error::Usage(why.to_string()));
    }
    let one_thread = OneThread::watch().map_err(failed)?;
    create_folder(folder)?;
    let _companion =
        Companion::start(&Leftovers { empty_folder: Some(folder), ..Leftovers::default() }, None)?;
    let mut needs = Needs { branches: true, helper: true, ..source.needs() };
    needs.written.push(folder.to_path_buf());
    sandbox.lock_in(&needs)?;
    let mut machine = source.go_live_unrecorded()?;
    machine_args.prepare(&mut machine);
    let (terminated, at_second) = signals()?;
    let mut template =
        Template { args, machine_args, machine, folder, terminated: terminated.clone(), at_second };
    let cores = u32::try_from(history::timeline::cores()).ok().and_then(NonZeroU32::new);
    let at_once = args.jobs.or(cores).unwrap_or(NonZeroU32::MIN);
    let plan = Plan { count, at_once, is_over: &|| terminated.load(Ordering::Relaxed) };
    let mut rows = Vec::new();
    let mut ended = |number, ending| {
        let row = Row::of(number, folder, ending);
        if !args.json {
            // Ignores a failure. Even if no one reads the lines any more, the branches write their consoles.
            let _ = print(&row.line());
        }
        rows.push(row);
    };
    let begun = run_all(&one_thread, &plan, &mut |number, start| template.live(number, start), &mut ended);
    rows.sort_by_key(|row| row.branch);
    if args.json {
        print(&serde_json::to_string_pretty(&rows).expect("plain data always serializes"))?;
    }
    say(&summary(&rows));
    let begun = begun.map_err(failed)?;
    if begun < count {
        say(&format!("ttvm: a signal ended this after {begun} of {count} branches had begun"));
    }
    Ok(if rows.iter().all(Row::is_good) { exit_code::DONE } else { exit_code::FAILED })
}

fn failed(error: branches::Error) -> Error {
    Error::Host { what: "cannot begin a branch".to_string(), source: std::io::Error::other(error) }
}

/// Returns a flag that is set when a signal that ends the run comes in. A second ^C ends the process at once: the
/// second value is the handler that does this.
fn signals() -> Result<(Arc<AtomicBool>, SigId), Error> {
    let terminated = Arc::new(AtomicBool::new(false));
    let watch = || {
        let at_second = signal_hook::flag::register_conditional_shutdown(
            SIGINT,
            exit_code::INTERRUPTED,
            terminated.clone(),
        )?;
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            signal_hook::flag::register(signal, terminated.clone())?;
        }
        Ok(at_second)
    };
    let at_second =
        watch().map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
    Ok((terminated, at_second))
}

impl Template<'_> {
    /// Runs a branch in its own process, from the fork to the branch's end. Returns the branch's report as JSON.
    fn live(&mut self, number: u32, start: &mut Start) -> Vec<u8> {
        let report = self.run(number, start).map_err(|error| error.to_string());
        serde_json::to_vec(&report).expect("plain data always serializes")
    }

    fn run(&mut self, number: u32, start: &mut Start) -> Result<Report, Error> {
        // At ^C, a branch gets the terminal's SIGINT and the template's SIGTERM. The two are one wish to end.
        signal_hook::low_level::unregister(self.at_second);
        let path = self.folder.join(file_name(number));
        let file = File::create_new(&path).map_err(Error::file("create", &path))?;
        // The guest runs next. From here on the branch opens no files and starts no processes.
        sandbox::narrow(&Needs::default()).map_err(|error| Error::Unsupported(error.to_string()))?;
        self.args.vary.apply(&mut self.machine, number);
        let options = self.machine_args.console();
        let console = LiveConsole::unattended(options, (path, file), self.terminated.clone());
        let panics = PanicWatch::default();
        let mut inputs = WithListener { inner: LiveInputs::new(console), listener: panics.clone() };
        let stood_ms = start.stands().as_secs_f64() * 1e3;
        let mut memory = Vec::new();
        for &at in &self.args.measure_at {
            if self.machine.run(Instructions(at), &mut inputs)? == RunStop::Reached {
                memory.push(Memory::now(at)?);
            }
        }
        let RunStop::Ended(outcome) = self.machine.run(Instructions::MAX, &mut inputs)? else {
            unreachable!("nothing else ends a run without limits");
        };
        let now = self.machine.moment();
        let panic = panics.panic(&self.machine, &outcome);
        Ok(Report {
            ended: end_in_words(&outcome, panic.is_some()),
            exit_code: exit_code_of(&outcome, panic.is_some()),
            instructions: now.count.0,
            guest_seconds: now.time_ns as f64 / 1e9,
            panic,
            state_hash: self.args.state_hash.then(|| state_hash(&mut self.machine)),
            stood_ms,
            memory,
        })
    }
}

/// A hash of the machine's whole state.
fn state_hash(machine: &mut Machine<Instructions>) -> String {
    let hashes = machine.hashes();
    let all = [&hashes.cpu[..], &hashes.devices, &hashes.ram, &hashes.disk].concat();
    hex(&blake3::hash(&all).as_bytes()[..16])
}

/// The file of a branch's console.
fn file_name(number: u32) -> String {
    format!("branch-{number:03}.log")
}

impl Row {
    fn of(branch: u32, folder: &Path, ending: Ending) -> Row {
        let (report, died) = match ending {
            Ending::Reported(bytes) => match serde_json::from_slice::<Result<Report, String>>(&bytes) {
                Ok(Ok(report)) => (Some(report), None),
                Ok(Err(why)) => (None, Some(why)),
                Err(_) => (None, Some("its report cannot be read".to_string())),
            },
            Ending::Exited(code) => (None, Some(format!("its process ended with exit code {code}"))),
            Ending::Killed(signal) => (None, Some(format!("{signal} ended its process"))),
            Ending::Lost => (None, Some("the host does not say how its process ended".to_string())),
        };
        Row { branch, console: folder.join(file_name(branch)), report, died }
    }

    fn is_good(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.exit_code == exit_code::DONE)
    }

    /// How the branch ended, in words.
    fn end(&self) -> &str {
        self.report.as_ref().map_or("died", |report| &report.ended)
    }

    fn line(&self) -> String {
        let Some(report) = &self.report else {
            return format!("branch {}: died: {}", self.branch, self.died.as_deref().unwrap_or_default());
        };
        let (count, seconds) = (report.instructions, report.guest_seconds);
        let mut line = format!(
            "branch {}: {} after {count} instructions, {seconds:.6} s guest time",
            self.branch, report.ended
        );
        for (name, text) in [("panic", &report.panic), ("state", &report.state_hash)] {
            if let Some(text) = text {
                line += &format!("; {name}: {text}");
            }
        }
        line
    }
}

/// A sentence that says how many branches ended in each way.
fn summary(rows: &[Row]) -> String {
    let mut ends = std::collections::BTreeMap::<&str, u32>::new();
    rows.iter().for_each(|row| *ends.entry(row.end()).or_default() += 1);
    let ends: Vec<String> = ends.iter().map(|(end, count)| format!("{count} times: {end}")).collect();
    format!("ttvm: {} branches ended. {}", rows.len(), ends.join("; "))
}
