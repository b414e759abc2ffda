//! `ttvm verify`: checks that a recording is whole and replays exactly.

use std::io::IsTerminal;
use std::path::PathBuf;

use history::replay::bisect::Parting;
use history::replay::registers;
use history::replay::verify::{Difference, Origin, Verification, compare, compare_tiers, verify};
use history::replay::{Fault, last_place};
use machine::error::{Error, exit_code};
use machine::position::{Count, Instructions, Length};
use machine::unit::Unit;
use recording::log::Log;
use recording::with_recording;
use recording::{Opened, Recording};
use serde::Serialize;

use crate::progress;
use crate::travel::in_instructions;

/// Check that a recording is whole and replays exactly
///
/// If something differs, this verb finds the first difference.
///
/// Examples:
///   ttvm verify R.ttvm
///   ttvm verify R.ttvm --against OTHER.ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "against")]
    json: bool,
    /// Compare with another recording of the same run, and find the first instruction that differs
    #[arg(long, value_name = "RECORDING")]
    against: Option<PathBuf>,
    /// Compare the software CPU's interpreter and translator every N instructions.
    ///
    /// Both replay the run side by side. ttvm compares registers, devices, RAM and disk, and finds the first instruction that
    /// differs.
    #[arg(long, value_name = "N", conflicts_with_all = ["json", "against"], value_parser = clap::value_parser!(u64).range(1..))]
    tiers: Option<u64>,
    /// Flip bit BIT of the RAM byte at OFFSET after STEPS instructions (for tests)
    #[arg(long, value_name = "STEPS:OFFSET:BIT", value_parser = parse_fault, hide = true)]
    inject_fault: Option<FaultArgs>,
}

impl Args {
    fn fault<U: Unit>(&self) -> Option<Fault<U>> {
        self.inject_fault.map(|FaultArgs { at, offset, bit }| Fault { at: U::new(at), offset, bit })
    }
}

/// A bit of RAM that fails, for tests.
#[derive(Clone, Copy)]
struct FaultArgs {
    at: u64,
    offset: u64,
    bit: u8,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let opened = Opened::open(&args.recording)?;
    if let Some(stride) = args.tiers {
        return check_tiers(args, &in_instructions(opened, false)?, stride);
    }
    let Some(other) = &args.against else {
        return with_recording!(opened, recording => check(args, &recording));
    };
    match (opened, Opened::open(other)?) {
        (Opened::ByInstructions(left), Opened::ByInstructions(right)) => print_parting(&left, &right),
        (Opened::ByExits(left), Opened::ByExits(right)) => print_parting(&left, &right),
        _ => {
            let why =
                "one of the recordings counts instructions and the other exits: they cannot be compared";
            Err(Error::Unsupported(why.to_string()))
        }
    }
}

/// The first difference between two recordings, while a bar shows the progress. `None` if the replays of both are equal.
pub fn find_parting<U: Unit>(left: &Recording<U>, right: &Recording<U>) -> Result<Option<Parting>, Error> {
    let bar = progress::bar(last_place(left).number(), std::io::stderr().is_terminal());
    let parting = compare(left, right, |at| bar.set_position(at.number()))?;
    bar.finish_and_clear();
    Ok(parting)
}

fn print_parting<U: Unit>(left: &Recording<U>, right: &Recording<U>) -> Result<i32, Error> {
    let Some(parting) = find_parting(left, right)? else {
        crate::output::print("the replays of both recordings are equal")?;
        return Ok(exit_code::DONE);
    };
    crate::output::print(&parting_lines(&parting).join("\n"))?;
    Ok(exit_code::DIVERGED)
}

fn check_tiers(args: &Args, recording: &Recording<Instructions>, stride: u64) -> Result<i32, Error> {
    let last = last_place(recording);
    let bar = progress::bar(last.number(), std::io::stderr().is_terminal());
    bar.set_message("comparing interpreter and translator");
    let parting =
        compare_tiers(recording, args.fault(), stride, |at: Instructions| bar.set_position(at.number()))?;
    bar.finish_and_clear();
    let Some(parting) = parting else {
        crate::output::print(&format!(
            "interpreter and translator are equal at all of {} places, {stride} instructions apart, up to instruction \
             {last}",
            last.number() / stride + 1
        ))?;
        return Ok(exit_code::DONE);
    };
    crate::output::print(&parting_lines(&parting).join("\n"))?;
    Ok(exit_code::DIVERGED)
}

fn check<U: Unit>(args: &Args, recording: &Recording<U>) -> Result<i32, Error> {
    let bar = progress::bar(last_place(recording).number(), std::io::stderr().is_terminal());
    if !args.json {
        crate::output::print(&log_line(&recording.log))?;
    }
    let found = verify(recording, args.fault(), |what, at| {
        bar.set_message(what);
        bar.set_position(at.number());
    })?;
    bar.finish_and_clear();
    crate::output::print(&if args.json { json(recording, &found) } else { lines(&found).join("\n") })?;
    Ok(if found.equal() { exit_code::DONE } else { exit_code::DIVERGED })
}

fn log_line<C: Count>(log: &Log<C>) -> String {
    format!(
        "store: {} bytes of log whole: {} events, {} checks{}",
        log.bytes,
        log.event_count(),
        log.check_count(),
        if log.torn { "; the last record was cut off while it was written" } else { "" }
    )
}

#[derive(Serialize)]
struct Report {
    equal: bool,
    complete: bool,
    /// The length of the replay, in the recording's unit.
    #[serde(flatten)]
    length: Length,
    events: usize,
    checks: usize,
    log_bytes: u64,
    checkpoints_compared: usize,
    /// The differences as sentences.
    difference: Option<String>,
    checkpoint_difference: Option<String>,
    /// The number of the first instruction that is known to differ.
    first_different_instruction: Option<u64>,
}

fn json<U: Unit>(recording: &Recording<U>, found: &Verification<U>) -> String {
    let origin = found.difference.as_ref().map(|difference| &difference.origin);
    let report = Report {
        equal: found.equal(),
        complete: found.complete,
        length: U::length(found.at.count.number()),
        events: recording.log.event_count(),
        checks: recording.log.check_count(),
        log_bytes: recording.log.bytes,
        checkpoints_compared: found.checkpoints,
        difference: match &found.difference {
            Some(difference) => Some(difference.divergence.to_string()),
            None => found.did_not_recur.as_deref().map(did_not_recur),
        },
        checkpoint_difference: found.checkpoint_difference.as_ref().map(ToString::to_string),
        first_different_instruction: match origin {
            Some(Origin::ReplaysPart(parting)) => Some(parting.at.number()),
            _ => None,
        },
    };
    serde_json::to_string_pretty(&report).expect("plain data always serializes")
}

/// The message for a difference that a replay on several cores found, and a replay on one core did not find.
fn did_not_recur(what: &str) -> String {
    format!(
        "a replay on several cores differed: {what}. A replay on one core did not: test this host's memory, or \
         report a bug in ttvm"
    )
}

fn lines<U: Unit>(found: &Verification<U>) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(found.did_not_recur.as_deref().map(did_not_recur));
    match &found.checkpoint_difference {
        Some(difference) => {
            lines.push(format!(
                "checkpoints: {} compared, and the last of them differs: {difference}",
                found.checkpoints
            ));
        }
        None if found.checkpoints > 0 => {
            lines.push(format!("checkpoints: {} compared, all equal to the replay", found.checkpoints));
        }
        None => {}
    }
    match (&found.difference, found.complete) {
        (Some(difference), _) => lines.extend(difference_lines(difference)),
        (None, true) => lines.push(format!(
            "replay: equal to the end: registers, devices, RAM, disk and console, at {}",
            U::length(found.at.count.number())
        )),
        (None, false) => lines.push(format!(
            "replay: equal at every check up to where the recording was cut off, at {}",
            U::length(found.at.count.number())
        )),
    }
    lines
}

fn difference_lines<C: Count>(difference: &Difference<C>) -> Vec<String> {
    let mut lines = Vec::new();
    let divergence = &difference.divergence;
    lines.push(divergence.to_string());
    lines.push(format!("registers of the replay at {}:", divergence.at));
    lines.extend(registers::lines(&difference.registers));
    for (number, record) in &difference.events {
        lines.push(format!(
            "event {number} in between: {} at {}",
            record.event.kind(),
            record.at.count.position()
        ));
    }
    match &difference.origin {
        Origin::Between => lines.push(format!(
            "A second replay differs in the same way. The first instruction that differs lies between {} and {}. \
             This recording has no state to find it exactly. With a second recording of the same run, `ttvm \
             verify --against` finds it.",
            divergence.last_good, divergence.at
        )),
        Origin::DidNotRecur => lines.push(
            "A second and a third replay were equal to the recording. Test this host's memory, or report a bug in ttvm."
                .to_string(),
        ),
        Origin::ReplaysPart(parting) => {
            lines.push("A second replay was equal to the recording.".to_string());
            lines.extend(parting_lines(parting));
        }
    }
    lines
}

fn parting_lines(parting: &Parting) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(format!(
        "first instruction that differs: {} at rip {:#x}",
        parting.at.short(),
        parting.before.rip
    ));
    let code: Vec<String> = parting.code.iter().map(|byte| format!("{byte:02x}")).collect();
    lines.push(format!("bytes there: {}", code.join(" ")));
    lines.push("registers before it:".to_string());
    lines.extend(registers::lines(&parting.before));
    lines.push("different after it (first, second):".to_string());
    lines.extend(parting.differences.iter().map(|line| format!("  {line}")));
    lines
}

fn parse_fault(text: &str) -> Result<FaultArgs, String> {
    let numbers: Vec<u64> = text
        .split(':')
        .map(|part| part.parse().map_err(|_| "write STEPS:OFFSET:BIT".to_string()))
        .collect::<Result<_, _>>()?;
    match numbers[..] {
        [at, offset, bit @ 0..=7] => Ok(FaultArgs { at, offset, bit: bit as u8 }),
        _ => Err("write STEPS:OFFSET:BIT".to_string()),
    }
}
