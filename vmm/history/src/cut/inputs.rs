//! The inputs after a cut, for a machine whose counts are zero at the cut. The cut is the point where the short
//! recording begins.

use cpu::Counts;
use devices::passthrough::{AskV1, DeviceInputV1};
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, View};
use machine::position::{Count, Instructions, Moment};
use recording::Recording;
use recording::checkpoints::Snapshot;
use recording::cursor::Cursor;
use recording::player::{Player, Scrutiny};

/// Plays the rest of a recording's log. A log that was cut off ends as if a signal had ended the run.
pub struct Remaining {
    player: Player<Instructions>,
    /// The counts of the longer recording at the cut.
    before: Counts,
    /// The count of the new machine at which the run ends if no event of the log ends it.
    end: Option<Instructions>,
}

impl Remaining {
    /// The inputs from a snapshot up to the recording's end.
    pub fn new(
        recording: &Recording<Instructions>,
        here: &Snapshot<Instructions>,
        end: Instructions,
    ) -> Result<Remaining, Error> {
        let mut player = Player::new(recording.log.clone())?;
        player.set_cursor(behind_power_on(here.cursor))?;
        // The machine's counts differ from the log's, so the player cannot compare the machine with the log.
        player.set_scrutiny(Scrutiny::Nothing);
        let before = here.state.counts;
        let end = recording.log.end.is_none().then(|| Instructions(end.number() - before.steps));
        Ok(Remaining { player, before, end })
    }

    fn in_player(&self, now: Moment<Instructions>) -> Moment<Instructions> {
        Moment { count: now.count + self.before.steps, ..now }
    }
}

/// Moves a cursor past the power-on event. The new recording has its own power-on event.
fn behind_power_on(cursor: Cursor<Instructions>) -> Cursor<Instructions> {
    match cursor.events() {
        0 => Cursor::after(1, cursor.checks(), Moment::default(), 0),
        _ => cursor,
    }
}

impl Inputs<Instructions> for Remaining {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        let moment = self.in_player(view.moment);
        self.player.pass_checks(moment)?;
        let event = self.player.poll(&View { moment, ..*view })?;
        let is_over = event.is_none() && self.end.is_some_and(|end| view.moment.count >= end);
        Ok(if is_over { Some(Event::Interrupted) } else { event })
    }

    fn next_poll(&self, now: Moment<Instructions>) -> Instructions {
        let next = self.player.next_poll(self.in_player(now));
        let next =
            if next == Instructions::MAX { next } else { Instructions(next.number() - self.before.steps) };
        self.end.filter(|&end| end > now.count).map_or(next, |end| end.min(next))
    }

    fn idle(&mut self, now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.player.idle(self.in_player(now), deadline_ns)
    }

    fn ask_devices(&mut self, at: AskedAt<Instructions>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.player.ask_devices(AskedAt { at: self.in_player(at.at), ..at }, ask)
    }
}
