//! Going to a position, for the verbs that look at one.

use vmm::error::Error;
use vmm::position::PositionSpec;
use vmm::recording::Recording;
use vmm::timeline::{Timeline, TravelStop};

use super::interrupt::Interrupt;

/// Opens a recording at a position; `None` when ^C was pressed on the way.
pub fn open_at(recording: &Recording, position: PositionSpec) -> Result<Option<Timeline>, Error> {
    let mut timeline = Timeline::open(recording)?;
    let mut interrupt = Interrupt::catch()?;
    let target = timeline.resolve(position, &mut || interrupt.poll())?;
    let stop = timeline.seek(target, &mut || interrupt.poll())?;
    Ok((stop != TravelStop::Interrupted).then_some(timeline))
}
