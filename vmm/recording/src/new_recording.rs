//! A recording that is being made: its files exist, and the machine has not run yet.

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

/// A recording whose files exist, and whose machine has not run yet. By default the recorder takes a checkpoint about
/// four times a second of guest time, and the default policy decides which checkpoints are kept.
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

    /// The machine to record.
    pub fn machine(&self) -> &Machine<U> {
        self.machine
    }

    /// The recording's format.
    pub fn format(&self) -> Format {
        self.log.format()
    }

    /// Takes a checkpoint at each interval of guest time. A guest that writes a lot gets fewer checkpoints.
    pub fn checkpoint_every(self, interval: Duration) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.checkpoints(Some(CheckpointOptions { interval_ns, ..CheckpointOptions::default() }))
    }

    /// Takes checkpoints with these options. `None` means no checkpoints.
    pub fn checkpoints(self, options: Option<CheckpointOptions>) -> Self {
        NewRecording { checkpoints: options, ..self }
    }

    /// Takes checks of the machine at these intervals. Replays compare the checks.
    pub fn checks(self, intervals: Intervals) -> Self {
        NewRecording { checks: intervals, ..self }
    }

    /// Runs the machine to its end and records the inputs. If the disk fills up or the engine fails, the error is
    /// [`Error::CutOff`], and the recording replays up to its last check. If not even the beginning could be recorded,
    /// the folder is empty afterwards.
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

/// The error for a recording that stopped early. The message says that the part recorded so far is not lost.
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

#[cfg(test)]
mod tests {
    use std::io::{Error as HostError, ErrorKind};
    use std::sync::Arc;

    use machine::config::MachineConfig;
    use machine::position::{Count, Instructions};

    use super::*;

    #[test]
    fn a_run_is_cut_off_by_trouble_with_its_own_files_the_disk_or_the_engine() {
        let directory = tempfile::tempdir().unwrap();
        let options = tiny_guest::options(tiny_guest::write_kernel(directory.path(), 10));
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let machine = Machine::<Instructions>::new(&config, &images, &PowerOn::default()).unwrap();
        let (folder, elsewhere) = (directory.path().join("r.ttvm"), directory.path().join("disk"));
        let full = || HostError::from(ErrorKind::StorageFull);
        let checkpoints =
            |path: &Path, kind| Error::Checkpoints(StoreError { path: path.to_path_buf(), kind });
        let io = || StoreErrorKind::Io { what: "write", source: Arc::new(full()) };
        let offset = 7;
        for (error, is_cut_off) in [
            (Error::file("write", folder.join(EVENTS))(full()), true),
            (Error::file("write", &elsewhere)(full()), false),
            (checkpoints(&folder.join("checkpoints"), io()), true),
            (checkpoints(&elsewhere, io()), false),
            (checkpoints(&folder, StoreErrorKind::Busy), false),
            (Error::Disk { path: elsewhere.clone(), offset, source: full() }, true),
            (Error::Engine("it is gone".to_string()), true),
            (Error::Usage("no".to_string()), false),
        ] {
            let text = error.to_string();
            match cut_off(error, &folder, &machine) {
                Error::CutOff { cause, recording, at } => {
                    assert!(is_cut_off && recording == folder, "{text}");
                    assert_eq!(at, Instructions(0).position());
                    // The cause of the error is a file's error, even if the store of checkpoints reported it.
                    assert!(matches!(*cause, Error::File { .. } | Error::Disk { .. } | Error::Engine(_)));
                }
                _ => assert!(!is_cut_off, "{text}"),
            }
        }
    }
}
