//! Going to a position, for the verbs that look at one.

use std::io::IsTerminal;
use std::path::Path;

use vmm::engine::EngineKind;
use vmm::error::Error;
use vmm::position::{Counting, PositionSpec};
use vmm::recording::Recording;
use vmm::timeline::{Timeline, TravelStop};
use vmm::translate;

use super::interrupt::Interrupt;
use super::progress;

/// Opens a recording whose positions are instruction counts.
pub fn open(path: &Path) -> Result<Recording, Error> {
    translated(Recording::open(path)?)
}

/// A recording with instruction counts for positions: one that counts exits is replayed once to find them.
pub fn translated(recording: Recording) -> Result<Recording, Error> {
    if recording.counting == Counting::Instructions {
        return Ok(recording);
    }
    let exits = recording.log.last_moment().steps;
    let bar = progress::bar(exits, std::io::stderr().is_terminal());
    bar.set_message("counting instructions");
    let translated = translate::in_instructions(recording, |exits| bar.set_position(exits));
    bar.finish_and_clear();
    translated
}

/// Opens a recording at a position; `None` when ^C was pressed on the way. The engine goes along long stretches.
pub fn open_at(
    recording: &Recording,
    position: PositionSpec,
    engine: EngineKind,
) -> Result<Option<Timeline>, Error> {
    let mut timeline = Timeline::open(recording)?;
    timeline.use_engine(engine)?;
    let mut interrupt = Interrupt::catch()?;
    let target = timeline.resolve(position, &mut || interrupt.poll())?;
    let stop = timeline.seek(target, &mut || interrupt.poll())?;
    Ok((stop != TravelStop::Interrupted).then_some(timeline))
}
