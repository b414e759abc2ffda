//! `ttvm record`: a guest, recorded.

use std::path::PathBuf;

use checkpoint::{Policy, StoreError, StoreErrorKind};
use vmm::engine::EngineKind;
use vmm::error::Error;
use vmm::live::{LiveClock, LiveInputs, RawTerminal};
use vmm::machine::inputs::{Inputs, PowerOn};
use vmm::machine::unit::Unit;
use vmm::machine::{Machine, Outcome, RunStop};
use vmm::notation;
use vmm::position::{Exits, Instructions};
use vmm::recording::Recording;
use vmm::recording::checkpointer;
use vmm::recording::pace::CheckpointOptions;
use vmm::recording::recorder::Recorder;

use crate::machine_args::MachineArgs;
use crate::output::say;
use crate::sandbox_arg::{self, SandboxArgs};
use crate::stats::{Marks, StatsArgs, WithStats};

#[derive(clap::Args)]
pub struct Args {
    /// The recording to make: a directory NAME.ttvm that does not exist yet
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: PathBuf,
    /// Guest time between two checkpoints, like 1s or 250ms; 0 for none
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = notation::time)]
    checkpoint_interval: u64,
    /// Disk space that checkpoints may take; older ones get sparser to stay below it
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = notation::bytes)]
    max_size: u64,
    /// Keep only the checkpoints of the last stretch of guest time, like 10s
    #[arg(long, value_name = "TIME", value_parser = notation::time)]
    last: Option<u64>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    stats: StatsArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let power_on = args.machine.power_on()?;
    // A file that may not grow is to be an error of writing, which can be said in a sentence.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default())
        .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
    match args.machine.engine() {
        EngineKind::Soft => record_from::<Instructions, _>(args, power_on, |live| live),
        EngineKind::Kvm => {
            record_from::<Exits, _>(args, power_on, |live| LiveClock::new(live, args.machine.clock()))
        }
    }
}

/// Builds the machine and its inputs, and records it.
fn record_from<U: Unit, I: Inputs<U>>(
    args: &Args,
    power_on: PowerOn,
    inputs: impl FnOnce(LiveInputs<U>) -> I,
) -> Result<i32, Error> {
    let built = args.machine.build::<U>(&power_on)?;
    let config = built.config.clone();
    let (machine, live) = args.machine.live(built)?;
    let marks = args.stats.marks()?;
    let log = Recording::<U>::create(&args.output, &config)?;
    args.sandbox.lock_in(&sandbox_arg::of_recording(&config, args.machine.engine(), &args.output))?;
    say(&format!("ttvm: {}", live.pacing()));
    let inputs = WithStats::new(inputs(live), marks.clone());
    record_to_end(args, machine, Recorder::new(inputs, log, power_on), &marks)
}

fn record_to_end<U: Unit, I: Inputs<U>>(
    args: &Args,
    mut machine: Machine<U>,
    mut recorder: Recorder<U, I>,
    marks: &Marks,
) -> Result<i32, Error> {
    if let Some(told) = too_small(args, &machine) {
        say(&format!("ttvm: {told}"));
    }
    let terminal = RawTerminal::enter()?;
    let result = record(args, &mut machine, &mut recorder);
    drop(terminal);
    let result = result.and_then(|outcome| recorder.finish(&mut machine).map(|_| outcome));
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => return Err(cut_off(error, args, &machine)),
    };
    let code = crate::output::report_outcome(&machine, &outcome);
    say(&format!("ttvm: recorded in {}", args.output.display()));
    args.stats.write(marks, &machine)?;
    Ok(code)
}

/// Runs the machine to its end.
fn record<U: Unit, I: Inputs<U>>(
    args: &Args,
    machine: &mut Machine<U>,
    recorder: &mut Recorder<U, I>,
) -> Result<Outcome, Error> {
    if args.checkpoint_interval == 0 {
        return match machine.run(U::MAX, recorder)? {
            RunStop::Ended(outcome) => Ok(outcome),
            _ => unreachable!("nothing else ends a run without limits"),
        };
    }
    let options = CheckpointOptions {
        interval_ns: args.checkpoint_interval,
        policy: Policy { max_bytes: Some(args.max_size), keep_last_ns: args.last, ..Policy::default() },
        ..CheckpointOptions::default()
    };
    checkpointer::record(machine, recorder, &args.output, options)
}

/// What to say at the start of too small a `--max-size`.
fn too_small<U: Unit>(args: &Args, machine: &Machine<U>) -> Option<String> {
    let (max, memory) = (args.max_size, machine.ram().size_bytes());
    let least = checkpointer::least_bytes(machine);
    if args.checkpoint_interval == 0 || max >= memory.max(least) {
        return None;
    }
    Some(if max < least {
        format!(
            "--max-size of {max} bytes is too small: a checkpoint takes more than {least} bytes, so there will be none"
        )
    } else {
        format!(
            "--max-size of {max} bytes is less than the guest's memory of {memory}: once a checkpoint does not fit, there \
             will be no more of them"
        )
    })
}

/// What to say when the recording could not be carried on: what is there is not lost.
fn cut_off<U: Unit>(error: Error, args: &Args, machine: &Machine<U>) -> Error {
    let cause = match error {
        Error::Checkpoints(StoreError { path, kind: StoreErrorKind::Io { what, source } }) => {
            let source = std::io::Error::new(source.kind(), source);
            Error::File { action: what, path, source }
        }
        other => other,
    };
    match &cause {
        Error::File { path, .. } if !path.starts_with(&args.output) => return cause,
        Error::File { .. } | Error::Disk { .. } | Error::Kvm(_) => {}
        _ => return cause,
    }
    Error::CutOff {
        cause: Box::new(cause),
        recording: args.output.clone(),
        at: machine.moment().count.position(),
    }
}
