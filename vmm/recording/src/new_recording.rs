//! A recording that is being made: its files are there, and the machine has not run yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::{StoreError, StoreErrorKind};
use machine::checks::Intervals;
use machine::error::Error;
use machine::inputs::{Inputs, PowerOn};
use machine::unit::Unit;
use machine::{Format, Machine, RunStop};

use crate::checkpointer;
use crate::cursor::Logged;
use crate::files::EVENTS;
use crate::log::{EndRecord, LogWriter, read_log};
use crate::opened::forget_beginning;
use crate::pace::CheckpointOptions;
use crate::recorder::Recorder;

/// See the module. Without further choices it takes a checkpoint about once a second of guest time, and keeps all that fit
/// below the default policy.
pub struct NewRecording<'a, U> {
    machine: &'a mut Machine<U>,
    folder: PathBuf,
    log: LogWriter,
    power_on: PowerOn,
    checks: Intervals,
    checkpoints: Option<CheckpointOptions>,
}

impl<'a, U: Unit> NewRecording<'a, U> {
    pub(crate) fn new(
        machine: &'a mut Machine<U>,
        folder: &Path,
        log: LogWriter,
        power_on: PowerOn,
    ) -> NewRecording<'a, U> {
        NewRecording {
            machine,
            folder: folder.to_path_buf(),
            log,
            power_on,
            checks: U::CHECKS,
            checkpoints: Some(CheckpointOptions::default()),
        }
    }

    /// The machine that is to be recorded.
    pub fn machine(&self) -> &Machine<U> {
        self.machine
    }

    /// The format that the recording is written in.
    pub fn format(&self) -> Format {
        self.log.format()
    }

    /// Takes checkpoints so far apart in guest time. A guest that writes a lot gets fewer.
    pub fn checkpoint_every(self, interval: Duration) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.checkpoints(Some(CheckpointOptions { interval_ns, ..CheckpointOptions::default() }))
    }

    /// Takes these checkpoints, or none.
    pub fn checkpoints(self, options: Option<CheckpointOptions>) -> Self {
        NewRecording { checkpoints: options, ..self }
    }

    /// Takes checks of the machine, which replays compare, at other distances than the usual ones.
    pub fn checks(self, intervals: Intervals) -> Self {
        NewRecording { checks: intervals, ..self }
    }

    /// Runs the machine to its end and records what the inputs give. If the disk fills up, or the engine fails, the error is
    /// [`Error::CutOff`], and the recording replays up to its last check. If nothing of the run could be recorded, nothing is left
    /// in the folder.
    pub fn run(self, inputs: impl Inputs<U>) -> Result<EndRecord<U>, Error> {
        let NewRecording { machine, folder, log, power_on, checks, checkpoints } = self;
        let mut recorder = Recorder::new(inputs, log, power_on);
        recorder.check_every(checks);
        let ended = run_to_end(machine, &mut recorder, &folder, checkpoints);
        let format = recorder.format();
        ended.and_then(|()| recorder.finish(machine)).map_err(|error| {
            let log = read_log::<U>(&folder.join(EVENTS), format);
            if log.is_ok_and(|log| log.event_count() == 0) {
                forget_beginning(&folder);
                return error;
            }
            cut_off(error, &folder, machine)
        })
    }
}

fn run_to_end<U: Unit, I: Inputs<U>>(
    machine: &mut Machine<U>,
    recorder: &mut Recorder<U, I>,
    folder: &Path,
    checkpoints: Option<CheckpointOptions>,
) -> Result<(), Error> {
    match checkpoints {
        Some(options) => checkpointer::record(machine, recorder, folder, options).map(drop),
        None => {
            while !matches!(machine.run(U::MAX, recorder)?, RunStop::Ended(_)) {}
            Ok(())
        }
    }
}

/// What to say when the recording could not be carried on: what is there is not lost.
fn cut_off<U: Unit>(error: Error, folder: &Path, machine: &Machine<U>) -> Error {
    let cause = match error {
        Error::Checkpoints(StoreError { path, kind: StoreErrorKind::Io { what, source } }) => {
            let source = std::io::Error::new(source.kind(), source);
            Error::File { action: what, path, source }
        }
        other => other,
    };
    match &cause {
        Error::File { path, .. } if !path.starts_with(folder) => return cause,
        Error::File { .. } | Error::Disk { .. } | Error::Engine(_) => {}
        _ => return cause,
    }
    Error::CutOff {
        cause: Box::new(cause),
        recording: folder.to_path_buf(),
        at: machine.moment().count.position(),
    }
}
