//! `ttvm replay`: a recording once more.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use vmm::error::{Error, exit_code};
use vmm::position::PositionSpec;
use vmm::recording::Recording;
use vmm::replay::{ReplayEnd, last_step, replay};
use vmm::timeline::Timeline;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Stop at this position: end, panic, event:N, insn:N, branch:N, 12.5s, 37%
    #[arg(long, value_name = "POS")]
    to: Option<PositionSpec>,
    /// Do not print the console's output
    #[arg(long)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let until = match args.to {
        Some(PositionSpec::Instruction(steps)) => Some(steps),
        Some(spec) => Some(Timeline::open(&recording)?.resolve(spec, &mut || false)?),
        None => None,
    };
    let quiet = args.quiet;
    let last = last_step(&recording).max(1);
    // A progress line and the guest's console on one terminal would write into each other.
    let show_progress = quiet && std::io::stderr().is_terminal();
    let print = move |bytes: &[u8]| {
        if quiet {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|source| Error::Host { what: "cannot write the console's output".to_string(), source })
    };
    let (machine, end) = replay(&recording, until, print, |steps| {
        if show_progress {
            eprint!("\rttvm: {:3} %", steps.min(last) * 100 / last);
        }
    })?;
    let now = machine.moment();
    let what = match end {
        ReplayEnd::Verified => "replayed to the end: console, counts and hashes are equal",
        ReplayEnd::Stopped => "replayed without a difference, and stopped",
    };
    eprintln!(
        "\nttvm: {what}, at {} instructions, {} branches, {:.6} s guest time",
        now.steps,
        machine.cpu().branches(),
        now.time_ns as f64 / 1e9
    );
    Ok(exit_code::DONE)
}
