//! What the notations of positions mean in a recording.

use super::walker::Poll;
use super::{Timeline, TravelStop};
use crate::checkpoints::CheckpointHead;
use crate::error::Error;
use crate::machine::Machine;
use crate::position::PositionSpec;

/// Something that only grows along a run, in a machine and in the head of a checkpoint.
struct Measure {
    of_machine: fn(&Machine) -> u64,
    of_head: fn(&CheckpointHead) -> u64,
}

const BRANCHES: Measure =
    Measure { of_machine: |machine| machine.cpu().branches(), of_head: |head| head.branches };
const SYSTEM_CALLS: Measure =
    Measure { of_machine: |machine| machine.cpu().system_calls(), of_head: |head| head.system_calls };
const TIME: Measure =
    Measure { of_machine: |machine| machine.moment().time_ns, of_head: |head| head.at.time_ns };

impl Timeline {
    /// The step count that a notation means. Notations that count something else run to find it.
    pub fn resolve(&mut self, spec: PositionSpec, poll: &mut Poll<'_>) -> Result<u64, Error> {
        let end = self.end();
        let beyond = |what: String| Err(Error::Position(format!("the recording ends before {what}")));
        let (measure, wanted, what) = match spec {
            PositionSpec::Start => return Ok(0),
            PositionSpec::End => return Ok(end),
            PositionSpec::Panic => {
                let none = || Error::Position("the guest did not panic in this recording".into());
                return self.panic.ok_or_else(none);
            }
            PositionSpec::Event(number) => {
                let events = self.walker.player.events();
                return match events.get(usize::try_from(number).unwrap_or(usize::MAX)) {
                    Some(event) => Ok(event.at.steps),
                    None => beyond(format!("event {number}: it has {}", events.len())),
                };
            }
            PositionSpec::Instruction(steps) if steps <= end => return Ok(steps),
            PositionSpec::Instruction(steps) => return beyond(format!("instruction {steps}: it has {end}")),
            PositionSpec::Percent(percent) => return Ok((end as f64 * percent / 100.0) as u64),
            PositionSpec::Branch(count) => (BRANCHES, count, format!("branch {count}")),
            PositionSpec::SystemCall(count) => (SYSTEM_CALLS, count, format!("system call {count}")),
            PositionSpec::Nanoseconds(ns) => (TIME, ns, format!("{} s", ns as f64 / 1e9)),
        };
        match self.find(&measure, wanted, poll)? {
            Some(steps) => Ok(steps),
            None => beyond(what),
        }
    }

    /// The first step count at which a measure has reached `wanted`: between two checkpoints by their heads, and
    /// from there by bisection.
    fn find(&mut self, measure: &Measure, wanted: u64, poll: &mut Poll<'_>) -> Result<Option<u64>, Error> {
        let back_to = self.position();
        let (mut low, mut high) = (0, None);
        if wanted == 0 {
            return Ok(Some(0));
        }
        for (&steps, head) in self.checkpoints().into_iter().flat_map(|checkpoints| checkpoints.heads()) {
            if (measure.of_head)(head) < wanted {
                low = steps;
            } else {
                high = Some(steps);
                break;
            }
        }
        let reached =
            |timeline: &mut Timeline, steps: u64, poll: &mut Poll<'_>| match timeline.seek(steps, poll)? {
                TravelStop::Interrupted => Err(Error::Position("interrupted".to_string())),
                _ => Ok((measure.of_machine)(timeline.machine()) >= wanted),
            };
        let mut high = match high {
            Some(high) => high,
            None if reached(self, self.end(), poll)? => self.end(),
            None => {
                self.seek(back_to, poll)?;
                return Ok(None);
            }
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if reached(self, middle, poll)? {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.seek(back_to, poll)?;
        Ok(Some(high))
    }
}
