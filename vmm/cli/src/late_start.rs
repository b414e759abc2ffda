//! A recording that begins while the machine runs.

use std::path::Path;

use machine::config::MachineConfig;
use machine::error::Error;
use machine::unit::Unit;
use machine::{Machine, StartingState};
use recording::Recording;
use recording::log::LogWriter;

/// Makes a recording in this empty folder that begins where the machine stands, and lets the machine begin there as a replay
/// will: its counts are zero from here on.
pub fn begin_here<U: Unit>(
    machine: &mut Machine<U>,
    config: &MachineConfig,
    folder: &Path,
) -> Result<LogWriter, Error> {
    let start = StartingState::of(machine)?;
    let log = Recording::<U>::begin_from(folder, config, &start)?;
    machine.begin_at(&start)?;
    // Nothing of it is held in memory any more.
    machine.begin_written()?;
    Ok(log)
}
