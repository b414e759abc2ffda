//! Recordings made through the library.

use std::path::Path;

use vmm::machine::Machine;
use vmm::recording::Recording;
use vmm::recording::checkpointer::{self, CheckpointOptions};
use vmm::recording::log::EndRecord;
use vmm::recording::recorder::Recorder;

use crate::guests::{Guest, power_on};
use crate::run::{STEP_LIMIT, run_until};
use crate::script::Script;

/// Records a guest from its first instruction to its end.
pub fn record(guest: &Guest, path: &Path, script: &mut Script) -> (Machine, EndRecord) {
    let mut machine = guest.machine();
    let log = Recording::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    let outcome = run_until(&mut machine, STEP_LIMIT, &mut recorder);
    assert!(outcome.is_some(), "the guest is still running at {:?}", machine.moment());
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// As [`record`], with checkpoints.
pub fn record_with_checkpoints(
    guest: &Guest,
    path: &Path,
    script: &mut Script,
    options: CheckpointOptions,
) -> (Machine, EndRecord) {
    let mut machine = guest.machine();
    let log = Recording::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    checkpointer::record(&mut machine, &mut recorder, path, options)
        .unwrap_or_else(|error| panic!("{error}"));
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// Opens a recording that is known to be good.
pub fn open(path: &Path) -> Recording {
    Recording::open(path).unwrap_or_else(|error| panic!("{error}"))
}
