//! `ttvm verify`: is this recording whole, and does it replay exactly?

use std::io::IsTerminal;
use std::path::PathBuf;

use vmm::bisect::Parting;
use vmm::error::{Error, exit_code};
use vmm::recording::Recording;
use vmm::registers;
use vmm::replay::{Fault, last_step};
use vmm::verify::{Difference, Origin, compare, verify};

use super::progress;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
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
            super::print("the two recordings replay alike")?;
            return Ok(exit_code::DONE);
        };
        super::print(&parting_lines(&parting).join("\n"))?;
        return Ok(exit_code::DIVERGED);
    }
    let log = &recording.log;
    super::print(&format!(
        "store: {} bytes of log whole: {} events, {} checks{}",
        log.bytes,
        log.events.len(),
        log.checks.len(),
        if log.torn { "; the last record was cut off while it was written" } else { "" }
    ))?;
    let found = verify(&recording, args.inject_fault, |what, steps| {
        bar.set_message(what);
        bar.set_position(steps);
    })?;
    bar.finish_and_clear();
    if let Some(difference) = &found.difference {
        super::print(&difference_lines(difference).join("\n"))?;
        return Ok(exit_code::DIVERGED);
    }
    let what = match found.complete {
        true => "replay: equal to the end: registers, devices, RAM, disk and console",
        false => "replay: equal at every check up to where the recording was cut off",
    };
    super::print(&format!("{what}, at {} instructions", found.at.steps))?;
    Ok(exit_code::DONE)
}

fn difference_lines(difference: &Difference) -> Vec<String> {
    let mut lines = Vec::new();
    let divergence = &difference.divergence;
    lines.push(divergence.to_string());
    lines.push(format!("registers of the replay at instruction {}:", divergence.at.steps));
    lines.extend(registers::lines(&difference.registers));
    for (number, record) in &difference.events {
        lines.push(format!(
            "event {number} in between: {} at instruction {}",
            record.event.kind(),
            record.at.steps
        ));
    }
    match &difference.origin {
        Origin::Between => lines.push(format!(
            "A second replay differs in the same way. The recording holds no states to compare with, so the first \
             instruction that differs lies between {} and {}, and cannot be told more closely from this recording \
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
