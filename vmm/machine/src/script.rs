//! Inputs that do not use the host. A script takes the place of the person at the console. The script waits for a text
//! on the console and then types. Each run gets the typed text at the same instruction. So runs with the same script
//! are equal.

use std::collections::VecDeque;

use crate::error::Error;
use crate::inputs::{Event, Idle, Inputs, View};
use crate::position::{Count, Instructions, Moment};

/// Input comes in at multiples of this number of steps, or while the guest idles. So the point of typing does not
/// depend on where a run stops.
const POLL_STEPS: u64 = 100_000;
/// The virtual time that passes between two inputs of the script while the guest is idle.
const TYPING_NS: u64 = 1_000_000;
/// If the guest is idle after this virtual time, the script ends the run.
const PATIENCE_NS: u64 = 3_600_000_000_000;

/// A scripted console, which also stores all output of the guest.
#[derive(Clone, Default)]
pub struct Script {
    lines: VecDeque<(String, String)>,
    typing: VecDeque<u8>,
    output: Vec<u8>,
    searched: usize,
    room: usize,
    idle_at: Option<Instructions>,
    limit: Option<Instructions>,
}

impl Script {
    /// A script that types nothing.
    pub fn silent() -> Script {
        Script::default()
    }

    /// Waits for the first text of each pair on the console, then types the second. If the first text is empty, the
    /// script waits only until the guest reads the console.
    pub fn new(lines: &[(&str, &str)]) -> Script {
        let lines = lines.iter().map(|(wait, text)| (wait.to_string(), text.to_string())).collect();
        Script { lines, ..Script::default() }
    }

    /// Types each command, and Enter, at the prompt of a root shell of busybox.
    pub fn shell(commands: &[&str]) -> Script {
        let lines = commands.iter().map(|command| ("/ # ".to_string(), format!("{command}\n"))).collect();
        Script { lines, ..Script::default() }
    }

    /// Makes the script end the run at the count `limit`, unless the run ends before.
    pub fn with_limit(mut self, limit: Instructions) -> Script {
        self.limit = Some(limit);
        self
    }

    /// The guest's output so far.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The output as text, without carriage returns.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).replace('\r', "")
    }

    fn look_for_text(&mut self) {
        let Some((wait, _)) = self.lines.front() else { return };
        let new = &self.output[self.searched..];
        let found = new.windows(wait.len().max(1)).position(|window| window == wait.as_bytes());
        let Some(at) = found.or(wait.is_empty().then_some(0)) else { return };
        self.searched += at + wait.len();
        let (_, text) = self.lines.pop_front().expect("it was just looked at");
        self.typing.extend(text.bytes());
    }
}

impl Inputs<Instructions> for Script {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        let here = view.moment.count;
        if self.limit.is_some_and(|limit| here >= limit) {
            return Ok(Some(Event::Ended));
        }
        self.room = view.console_room;
        if !here.number().is_multiple_of(POLL_STEPS) && self.idle_at != Some(here) {
            return Ok(None);
        }
        if self.typing.is_empty() {
            self.look_for_text();
        }
        let count = self.typing.len().min(view.console_room);
        Ok((count > 0).then(|| Event::ConsoleInput(self.typing.drain(..count).collect())))
    }

    fn next_poll(&self, now: Moment<Instructions>) -> Instructions {
        let limit = self.limit.unwrap_or(Instructions::MAX);
        if self.lines.is_empty() && self.typing.is_empty() {
            return limit;
        }
        limit.min(Instructions((now.count.number() / POLL_STEPS + 1) * POLL_STEPS))
    }

    fn idle(&mut self, now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.idle_at = Some(now.count);
        if now.time_ns > PATIENCE_NS {
            return Ok(Idle::Forever);
        }
        if self.typing.is_empty() {
            self.look_for_text();
        }
        if self.typing.is_empty() || self.room == 0 {
            return Ok(deadline_ns.map_or(Idle::Forever, Idle::Until));
        }
        Ok(Idle::Until(deadline_ns.unwrap_or(u64::MAX).min(now.time_ns + TYPING_NS)))
    }

    fn console_output(&mut self, _now: Moment<Instructions>, bytes: &[u8]) -> Result<(), Error> {
        self.output.extend_from_slice(bytes);
        Ok(())
    }
}
