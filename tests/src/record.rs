//! Functions with which tests record a guest through the library `recording`, and open the recording.

use std::path::Path;

use machine::Machine;
use machine::position::Instructions;
use recording::checkpointer;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::recorder::Recorder;
use recording::{Opened, Recording};

use crate::guests::{Guest, power_on};
use crate::run::{STEP_LIMIT, run_until};
use machine::script::Script;

/// Records a guest from its first instruction to its end. Returns the machine at the end, and the recording's last
/// record.
pub fn record(
    guest: &Guest,
    path: &Path,
    script: &mut Script,
) -> (Machine<Instructions>, EndRecord<Instructions>) {
    let mut machine = guest.machine();
    let log =
        Recording::<Instructions>::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    let outcome = run_until(&mut machine, STEP_LIMIT, &mut recorder);
    assert!(outcome.is_some(), "the guest is still running at {:?}", machine.moment());
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// Does the same as [`record`], and also takes checkpoints.
pub fn record_with_checkpoints(
    guest: &Guest,
    path: &Path,
    script: &mut Script,
    options: CheckpointOptions,
) -> (Machine<Instructions>, EndRecord<Instructions>) {
    let mut machine = guest.machine();
    let log =
        Recording::<Instructions>::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    checkpointer::record(&mut machine, &mut recorder, path, options)
        .unwrap_or_else(|error| panic!("{error}"));
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// Opens a recording that is known to be good and to count instructions.
pub fn open(path: &Path) -> Recording<Instructions> {
    match Opened::open(path).unwrap_or_else(|error| panic!("{error}")) {
        Opened::ByInstructions(recording) => recording,
        Opened::ByExits(_) => panic!("{} counts exits", path.display()),
    }
}
