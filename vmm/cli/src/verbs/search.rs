//! `ttvm search`: where in a recording something happens.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::{CONDITIONS, Cause, Condition, Hit, Timeline, TravelStop};
use machine::Machine;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use serde::Serialize;
use views::guest_kernel::{Backtrace, GuestKernel};

use crate::engine_arg::EngineArgs;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

#[derive(clap::Args)]
#[command(after_help = format!("Conditions: {CONDITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// What to look for; ADDR is a number or the name of a kernel symbol
    condition: String,
    /// Look for the first place after --from instead of the last one before it
    #[arg(long, conflicts_with = "all")]
    forward: bool,
    /// Look for the last place before --from (this is what is done anyway)
    #[arg(long, conflicts_with_all = ["forward", "all"])]
    backward: bool,
    /// List all places between --from and --to
    #[arg(long)]
    all: bool,
    /// Where to begin [default: end, with --forward or --all start]
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    from: Option<PositionSpec>,
    /// Where to end, with --all; +N is so far after --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end", requires = "all")]
    to: PositionSpec,
    /// Show at each place which functions of the guest's kernel have called one another, by the kernel's own tables (ORC)
    #[arg(long)]
    backtrace: bool,
    /// List no more places than this
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// Cores that a long search may use [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Found {
    hits: Vec<Place>,
    /// Steps that were executed to find them.
    replayed: u64,
    interrupted: bool,
    /// Where an interrupted search goes on: nothing before it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    goes_on_at: Option<u64>,
}

#[derive(Serialize)]
struct Place {
    instruction: u64,
    what: String,
    guest_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rip: Option<String>,
    /// The thread that runs there, where that is known, and its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backtrace: Option<Backtrace>,
}

impl Found {
    /// The user pressed ^C before anything was searched.
    fn interrupted_before(from: Instructions) -> Found {
        Found { hits: Vec::new(), replayed: 0, interrupted: true, goes_on_at: Some(from.number()) }
    }
}

impl Place {
    /// Where a machine stands, which is at what is named by `instruction`.
    fn of(
        machine: &Machine<Instructions>,
        instruction: Instructions,
        cause: Cause,
        kernel: Option<&GuestKernel>,
        with_backtrace: bool,
    ) -> Place {
        let thread = kernel.and_then(|kernel| kernel.thread(machine));
        Place {
            instruction: instruction.number(),
            what: cause.told(kernel.map(|kernel| &kernel.symbols)),
            guest_seconds: machine.moment().time_ns as f64 / 1e9,
            rip: None,
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            backtrace: kernel.filter(|_| with_backtrace).and_then(|kernel| kernel.backtrace(machine).ok()),
        }
    }
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let mut timeline = match args.threads {
        Some(threads) => Timeline::open_with(&recording, threads.get())?,
        None => Timeline::open(&recording)?,
    };
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    let from =
        args.from.unwrap_or(if args.forward || args.all { PositionSpec::Start } else { PositionSpec::End });
    let (from, to) = stretch(&mut timeline, from, args.to, &mut wait)?;
    let found = search(args, &mut timeline, (from, to), &mut wait)?;
    drop(wait);
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&found).expect("plain data always serializes")
    } else {
        text(&found)
    })?;
    if !args.json {
        let billions = found.replayed as f64 / 1e9;
        eprintln!("ttvm: {} found, {billions:.3}e9 instructions replayed", found.hits.len());
    }
    Ok(match (found.interrupted, found.hits.is_empty()) {
        (true, _) => exit_code::INTERRUPTED,
        (false, true) => exit_code::FAILED,
        (false, false) => exit_code::DONE,
    })
}

fn search(
    args: &Args,
    timeline: &mut Timeline,
    (from, to): (Instructions, Instructions),
    wait: &mut Wait,
) -> Result<Found, Error> {
    let condition = args.condition.parse::<Condition>();
    let mut kernel = None;
    if args.all || args.backtrace || condition.is_err() {
        // What the guest's kernel says of itself. At the very start there is no kernel yet that could be asked.
        let place = if from == Instructions(0) { timeline.end() } else { from };
        if timeline.seek(place, &mut || wait.poll())? == TravelStop::Interrupted {
            return Ok(Found::interrupted_before(from));
        }
        kernel = GuestKernel::of_guest(timeline.machine()).ok();
    }
    if args.backtrace {
        can_trace_back(timeline, kernel.as_ref())?;
    }
    let named = |kernel: &GuestKernel| Condition::parse(&args.condition, &kernel.symbols);
    let condition = condition.or_else(|why| kernel.as_ref().map_or(Err(why), named));
    timeline.set_stops(condition.map_err(Error::Position)?.0);
    if args.all {
        all(args, timeline, (from, to), kernel.as_ref(), wait)
    } else {
        one(args, timeline, from, kernel.as_ref(), wait)
    }
}

/// Refuses what no place could show.
fn can_trace_back(timeline: &Timeline, kernel: Option<&GuestKernel>) -> Result<(), Error> {
    let none =
        |why: &dyn std::fmt::Display| Error::Position(format!("there are no backtraces to show: {why}"));
    let kernel = kernel.ok_or_else(|| none(&guest_symbols::NoKernel))?;
    kernel.backtrace(timeline.machine()).map(drop).map_err(|missing| none(&missing))
}

fn all(
    args: &Args,
    timeline: &mut Timeline,
    (from, to): (Instructions, Instructions),
    kernel: Option<&GuestKernel>,
    wait: &mut Wait,
) -> Result<Found, Error> {
    let before = timeline.replayed_steps();
    let look = |machine: &Machine<Instructions>, hit: Hit| {
        Place::of(machine, hit.before, hit.cause, kernel, args.backtrace)
    };
    let hits = timeline.hits_seen(from, to, args.limit.get(), &look, &mut || wait.poll())?;
    let edge = hits.interrupted_at.map(Count::number);
    let replayed = timeline.replayed_steps() - before;
    Ok(Found { hits: hits.found, replayed, interrupted: edge.is_some(), goes_on_at: edge })
}

fn one(
    args: &Args,
    timeline: &mut Timeline,
    from: Instructions,
    kernel: Option<&GuestKernel>,
    wait: &mut Wait,
) -> Result<Found, Error> {
    // A search backward restores states before `from` and need not stand there; a checkpoint at the end is
    // enough.
    if timeline.seek(from, &mut || wait.poll())? == TravelStop::Interrupted {
        return Ok(Found::interrupted_before(from));
    }
    let before = timeline.replayed_steps();
    let stop = if args.forward {
        timeline.run_forward(&mut || wait.poll())?
    } else {
        timeline.run_backward(&mut || wait.poll())?
    };
    let replayed = timeline.replayed_steps() - before;
    let hits = match stop {
        TravelStop::Hit(cause) => vec![place_here(args, timeline, cause, kernel)],
        _ => Vec::new(),
    };
    let interrupted = stop == TravelStop::Interrupted;
    let goes_on_at = interrupted.then(|| timeline.position().number());
    Ok(Found { hits, replayed, interrupted, goes_on_at })
}

fn place_here(args: &Args, timeline: &Timeline, cause: Cause, kernel: Option<&GuestKernel>) -> Place {
    let machine = timeline.machine();
    let place = Place::of(machine, timeline.position(), cause, kernel, args.backtrace);
    Place { rip: Some(format!("{:#x}", machine.cpu().rip())), ..place }
}

fn text(found: &Found) -> String {
    let mut lines: Vec<String> = found.hits.iter().flat_map(lines_of).collect();
    if let Some(at) = found.goes_on_at {
        lines.push(format!("interrupted: --from insn:{at} goes on"));
    } else if lines.is_empty() {
        lines.push("nowhere in that part of the recording".to_string());
    }
    lines.join("\n")
}

fn lines_of(place: &Place) -> Vec<String> {
    let rip = place.rip.as_ref().map(|rip| format!("rip {rip}, ")).unwrap_or_default();
    let mut line = format!("insn:{}  {}  {rip}{:.9} s", place.instruction, place.what, place.guest_seconds);
    if let (Some(pid), Some(name)) = (place.pid, &place.name) {
        line += &format!("  {pid} ({name})");
    }
    let calls = place.backtrace.iter().flat_map(Backtrace::lines).map(|call| format!("    {call}"));
    [line].into_iter().chain(calls).collect()
}
