//! `ttvm verify`: is this recording whole, and does it replay exactly?

use std::io::IsTerminal;
use std::path::PathBuf;

use serde::Serialize;
use vmm::error::{Error, exit_code};
use vmm::position::Length;
use vmm::recording::Recording;
use vmm::recording::log::Log;
use vmm::replay::bisect::Parting;
use vmm::replay::registers;
use vmm::replay::verify::{Difference, Origin, Verification, compare, verify};
use vmm::replay::{Fault, last_step};

use crate::progress;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "against")]
    json: bool,
    /// Compare with another recording of the same run instead, and find the first instruction that differs
    #[arg(long, value_name = "RECORDING")]
    against: Option<PathBuf>,
    /// Let bit BIT of the byte at offset OFFSET of RAM fail after STEPS instructions (for tests)
    #[arg(long, value_name = "STEPS:OFFSET:BIT", value_parser = parse_fault, hide = true)]
    inject_fault: Option<Fault>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let bar = progress::bar(last_step(&recording), std::io::stderr().is_terminal());
    if let Some(other) = &args.against {
        let parting = compare(&recording, &Recording::open(other)?, |steps| bar.set_position(steps))?;
        bar.finish_and_clear();
        let Some(parting) = parting else {
            crate::output::print("the two recordings replay alike")?;
            return Ok(exit_code::DONE);
        };
        crate::output::print(&parting_lines(&parting).join("\n"))?;
        return Ok(exit_code::DIVERGED);
    }
    if !args.json {
        crate::output::print(&log_line(&recording.log))?;
    }
    let found = verify(&recording, args.inject_fault, |what, steps| {
        bar.set_message(what);
        bar.set_position(steps);
    })?;
    bar.finish_and_clear();
    crate::output::print(&if args.json {
        json(&recording, &found)
    } else {
        lines(&recording, &found).join("\n")
    })?;
    Ok(if found.equal() { exit_code::DONE } else { exit_code::DIVERGED })
}

fn log_line(log: &Log) -> String {
    format!(
        "store: {} bytes of log whole: {} events, {} checks{}",
        log.bytes,
        log.events.len(),
        log.checks.len(),
        if log.torn { "; the last record was cut off while it was written" } else { "" }
    )
}

#[derive(Serialize)]
struct Report {
    equal: bool,
    complete: bool,
    /// How long the replay was, in what the recording counts.
    #[serde(flatten)]
    length: Length,
    events: usize,
    checks: usize,
    log_bytes: u64,
    checkpoints_compared: usize,
    /// Sentences.
    difference: Option<String>,
    checkpoint_difference: Option<String>,
    /// The first instruction that is known to differ.
    first_different_instruction: Option<u64>,
}

fn json(recording: &Recording, found: &Verification) -> String {
    let origin = found.difference.as_ref().map(|difference| &difference.origin);
    let report = Report {
        equal: found.equal(),
        complete: found.complete,
        length: recording.counting.length(found.at.steps),
        events: recording.log.events.len(),
        checks: recording.log.checks.len(),
        log_bytes: recording.log.bytes,
        checkpoints_compared: found.checkpoints,
        difference: found.difference.as_ref().map(|difference| difference.divergence.to_string()),
        checkpoint_difference: found.checkpoint_difference.as_ref().map(ToString::to_string),
        first_different_instruction: match origin {
            Some(Origin::ReplaysPart(parting)) => Some(parting.steps),
            _ => None,
        },
    };
    serde_json::to_string_pretty(&report).expect("plain data always serializes")
}

fn lines(recording: &Recording, found: &Verification) -> Vec<String> {
    let mut lines = Vec::new();
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
            recording.counting.length(found.at.steps)
        )),
        (None, false) => lines.push(format!(
            "replay: equal at every check up to where the recording was cut off, at {}",
            recording.counting.length(found.at.steps)
        )),
    }
    lines
}

fn difference_lines(difference: &Difference) -> Vec<String> {
    let mut lines = Vec::new();
    let divergence = &difference.divergence;
    let counted = divergence.counting.one();
    lines.push(divergence.to_string());
    lines.push(format!("registers of the replay at {counted} {}:", divergence.at.steps));
    lines.extend(registers::lines(&difference.registers));
    for (number, record) in &difference.events {
        lines.push(format!(
            "event {number} in between: {} at {counted} {}",
            record.event.kind(),
            record.at.steps
        ));
    }
    match &difference.origin {
        Origin::Between => lines.push(format!(
            "A second replay differs in the same way. The recording holds no states to compare with, so the first \
             instruction that differs lies between {counted} {} and {}, and cannot be told more closely from this recording \
             alone; with a second recording of the same run, 'ttvm verify --against' finds it.",
            divergence.last_good.steps, divergence.at.steps
        )),
        Origin::DidNotRecur => lines.push("A second and a third replay were equal to the recording: the difference did not come again. Suspect \
             this host's memory, or report a bug in ttvm.".to_string()),
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
        "first instruction that differs: insn:{} at rip {:#x}",
        parting.steps, parting.before.rip
    ));
    let code: Vec<String> = parting.code.iter().map(|byte| format!("{byte:02x}")).collect();
    lines.push(format!("bytes there: {}", code.join(" ")));
    lines.push("registers before it:".to_string());
    lines.extend(registers::lines(&parting.before));
    lines.push("different after it (first, second):".to_string());
    lines.extend(parting.differences.iter().map(|line| format!("  {line}")));
    lines
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    let numbers: Vec<u64> = text
        .split(':')
        .map(|part| part.parse().map_err(|_| "write STEPS:OFFSET:BIT".to_string()))
        .collect::<Result<_, _>>()?;
    match numbers[..] {
        [steps, offset, bit @ 0..=7] => Ok(Fault { steps, offset, bit: bit as u8 }),
        _ => Err("write STEPS:OFFSET:BIT".to_string()),
    }
}
