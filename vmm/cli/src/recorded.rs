//! What is the same for every run that is recorded, whether from its first instruction or from some moment on.

use std::path::Path;

use checkpoint::{Policy, StoreError, StoreErrorKind};
use host::RawTerminal;
use machine::error::Error;
use machine::inputs::Inputs;
use machine::notation;
use machine::unit::Unit;
use machine::{Format, Machine, Outcome, RunStop};
use recording::checkpointer;
use recording::cursor::Logged;
use recording::pace::CheckpointOptions;
use recording::recorder::Recorder;

use crate::output::say;

/// Which checkpoints are taken and kept.
#[derive(clap::Args)]
pub struct CheckpointArgs {
    /// Guest time between two checkpoints, like 1s or 250ms; 0 for none
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = notation::time, requires = "output")]
    checkpoint_interval: u64,
    /// Disk space that checkpoints may take; older ones get sparser to stay below it
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = notation::bytes, requires = "output")]
    max_size: u64,
    /// Keep only the checkpoints of the last stretch of guest time, like 10s
    #[arg(long, value_name = "TIME", value_parser = notation::time, requires = "output")]
    last: Option<u64>,
}

/// A file that may not grow is to be an error of writing, which can be said in a sentence.
pub fn say_when_files_may_not_grow() -> Result<(), Error> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default())
        .map(drop)
        .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })
}

/// Records a machine to its end in the folder `output`, and gives the exit code.
pub fn record_to_end<U: Unit, I: Inputs<U>>(
    args: &CheckpointArgs,
    output: &Path,
    machine: &mut Machine<U>,
    mut recorder: Recorder<U, I>,
) -> Result<i32, Error> {
    if let Some(told) = too_small(args, machine, recorder.format()) {
        say(&format!("ttvm: {told}\r"));
    }
    let terminal = RawTerminal::enter()?;
    let result = record(args, output, machine, &mut recorder);
    drop(terminal);
    let result = result.and_then(|outcome| recorder.finish(machine).map(|_| outcome));
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => return Err(cut_off(error, output, machine)),
    };
    let code = crate::output::report_outcome(machine, &outcome);
    say(&format!("ttvm: recorded in {}", output.display()));
    Ok(code)
}

/// Runs the machine to its end.
fn record<U: Unit, I: Inputs<U>>(
    args: &CheckpointArgs,
    output: &Path,
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
    checkpointer::record(machine, recorder, output, options)
}

/// What to say at the start of too small a `--max-size`.
fn too_small<U: Unit>(args: &CheckpointArgs, machine: &Machine<U>, format: Format) -> Option<String> {
    let (max, memory) = (args.max_size, machine.ram().size_bytes());
    let least = checkpointer::least_bytes(machine, format);
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
fn cut_off<U: Unit>(error: Error, output: &Path, machine: &Machine<U>) -> Error {
    let cause = match error {
        Error::Checkpoints(StoreError { path, kind: StoreErrorKind::Io { what, source } }) => {
            let source = std::io::Error::new(source.kind(), source);
            Error::File { action: what, path, source }
        }
        other => other,
    };
    match &cause {
        Error::File { path, .. } if !path.starts_with(output) => return cause,
        Error::File { .. } | Error::Disk { .. } | Error::Engine(_) => {}
        _ => return cause,
    }
    Error::CutOff {
        cause: Box::new(cause),
        recording: output.to_path_buf(),
        at: machine.moment().count.position(),
    }
}
