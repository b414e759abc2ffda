//! `ttvm search`: where in a recording something happens.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use guest_symbols::Symbols;
use serde::Serialize;
use vmm::error::{Error, exit_code};
use vmm::notation::PositionSpec;
use vmm::position::{Count, Instructions};
use vmm::timeline::{CONDITIONS, Cause, Condition, Timeline, TravelStop};

use crate::interrupt::Interrupt;
use crate::machine_args::EngineArgs;
use crate::travel::{PartArgs, stretch};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rip: Option<String>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let mut timeline = match args.threads {
        Some(threads) => Timeline::open_with(&recording, threads.get())?,
        None => Timeline::open(&recording)?,
    };
    timeline.use_engine(engine)?;
    let mut interrupt = Interrupt::catch()?;
    let from =
        args.from.unwrap_or(if args.forward || args.all { PositionSpec::Start } else { PositionSpec::End });
    let (from, to) = stretch(&mut timeline, from, args.to, &mut interrupt)?;
    let condition = condition(args, &mut timeline, from, &mut interrupt)?;
    timeline.set_stops(condition.0);
    let found = if args.all {
        all(args, &mut timeline, from, to, &mut interrupt)?
    } else {
        one(args, &mut timeline, from, &mut interrupt)?
    };
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

/// The condition, with the names that the guest's kernel knows where the search begins.
fn condition(
    args: &Args,
    timeline: &mut Timeline,
    from: Instructions,
    interrupt: &mut Interrupt,
) -> Result<Condition, Error> {
    if let Ok(condition) = args.condition.parse() {
        return Ok(condition);
    }
    // At the very start there is no kernel yet that could be asked.
    let place = if from == Instructions(0) { timeline.end() } else { from };
    timeline.seek(place, &mut || interrupt.poll())?.unless_interrupted()?;
    let parsed = match Symbols::of_guest(timeline.machine()) {
        Ok(symbols) => Condition::parse(&args.condition, &symbols),
        Err(_) => args.condition.parse(),
    };
    parsed.map_err(Error::Position)
}

fn all(
    args: &Args,
    timeline: &mut Timeline,
    from: Instructions,
    to: Instructions,
    interrupt: &mut Interrupt,
) -> Result<Found, Error> {
    let before = timeline.replayed_steps();
    let hits = timeline.hits(from, to, args.limit.get(), &mut || interrupt.poll())?;
    let edge = hits.interrupted_at.map(Count::number);
    let place = |hit: vmm::timeline::Hit| Place {
        instruction: hit.before.number(),
        what: hit.cause.to_string(),
        guest_seconds: None,
        rip: None,
    };
    let hits = hits.found.into_iter().map(place).collect();
    let replayed = timeline.replayed_steps() - before;
    Ok(Found { hits, replayed, interrupted: edge.is_some(), goes_on_at: edge })
}

fn one(
    args: &Args,
    timeline: &mut Timeline,
    from: Instructions,
    interrupt: &mut Interrupt,
) -> Result<Found, Error> {
    // A search backward restores states before `from` and need not stand there; a checkpoint at the end is
    // enough.
    if timeline.seek(from, &mut || interrupt.poll())? == TravelStop::Interrupted {
        return Ok(Found {
            hits: Vec::new(),
            replayed: 0,
            interrupted: true,
            goes_on_at: Some(from.number()),
        });
    }
    let before = timeline.replayed_steps();
    let stop = if args.forward {
        timeline.run_forward(&mut || interrupt.poll())?
    } else {
        timeline.run_backward(&mut || interrupt.poll())?
    };
    let replayed = timeline.replayed_steps() - before;
    let hits = match stop {
        TravelStop::Hit(cause) => vec![place_here(timeline, cause)],
        _ => Vec::new(),
    };
    let interrupted = stop == TravelStop::Interrupted;
    let goes_on_at = interrupted.then(|| timeline.position().number());
    Ok(Found { hits, replayed, interrupted, goes_on_at })
}

fn place_here(timeline: &Timeline, cause: Cause) -> Place {
    let machine = timeline.machine();
    let now = machine.moment();
    Place {
        instruction: now.count.number(),
        what: cause.to_string(),
        guest_seconds: Some(now.time_ns as f64 / 1e9),
        rip: Some(format!("{:#x}", machine.cpu().rip())),
    }
}

fn text(found: &Found) -> String {
    let line = |place: &Place| {
        let mut line = format!("insn:{}  {}", place.instruction, place.what);
        if let (Some(seconds), Some(rip)) = (place.guest_seconds, &place.rip) {
            line += &format!("  rip {rip}, {seconds:.9} s");
        }
        line
    };
    let mut lines: Vec<String> = found.hits.iter().map(line).collect();
    if let Some(at) = found.goes_on_at {
        lines.push(format!("interrupted: --from insn:{at} goes on"));
    } else if lines.is_empty() {
        lines.push("nowhere in that part of the recording".to_string());
    }
    lines.join("\n")
}
