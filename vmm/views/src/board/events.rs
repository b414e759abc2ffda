//! The next events: timers that expire, and the next event or the end of the recording.

use std::fmt::{Display, Formatter, Result as Written};

use history::timeline::Timeline;
use machine::error::Error;
use machine::position::Count;
use schemars::JsonSchema;
use serde::Serialize;

use super::processors::LocalApic;
use super::words::seconds;

/// An event that will happen by itself.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct NextEvent {
    /// The guest time of the event.
    pub guest_seconds: f64,
    /// The time from here to the event, in nanoseconds. 0 means that the event is due.
    pub in_ns: u64,
    /// The instruction before which the event happens, for an event or the end of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<u64>,
    /// A description of the event.
    pub what: String,
}

/// The next event of each source, in order of time.
pub(super) fn after(timeline: &Timeline, lapics: &[LocalApic]) -> Result<Vec<NextEvent>, Error> {
    let machine = timeline.machine();
    let (now_ns, board) = (machine.moment().time_ns, machine.board());
    let timers = lapics.iter().filter_map(|lapic| {
        let source = lapic.source("timer")?;
        let effect = if source.is_masked { "masked".to_string() } else { source.vector.to_string() };
        Some((
            lapic.timer.expires_ns?,
            format!("the timer of processor {} expires: {effect}", lapic.processor),
        ))
    });
    let chips = [
        (board.pit().next_deadline_ns(now_ns), "the output of PIT channel 0 changes"),
        (board.rtc().next_deadline_ns(now_ns), "the real-time clock interrupts"),
        (board.pm().next_deadline_ns(now_ns), "the ACPI timer interrupts"),
    ];
    let chips = chips.into_iter().filter_map(|(at, what)| Some((at?, what.to_string())));
    let event = |(at_ns, what, instruction): (u64, String, Option<u64>)| NextEvent {
        guest_seconds: seconds(at_ns),
        in_ns: at_ns.saturating_sub(now_ns),
        instruction,
        what,
    };
    let recorded = match timeline.next_event()? {
        Some(record) => Some((record.at, format!("recorded event: {}", record.event.kind()))),
        None => timeline.recorded_end().map(|end| (end.at, format!("the recording ends: {}", end.outcome))),
    };
    let recorded = recorded.map(|(at, what)| (at.time_ns, what, Some(at.count.number())));
    let mut all: Vec<_> = timers.chain(chips).map(|(at, what)| (at, what, None)).chain(recorded).collect();
    all.sort_by_key(|&(at_ns, ..)| at_ns);
    Ok(all.into_iter().map(event).collect())
}

impl Display for NextEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let at = self.instruction.map(|instruction| format!(", insn:{instruction}")).unwrap_or_default();
        write!(f, "{:.9} s, in {:.9} s{at}: {}", self.guest_seconds, seconds(self.in_ns), self.what)
    }
}
