//! `monitor` commands that ask about the whole run: calls, values, objects, where a value or a call came from, and the
//! difference between two positions.

use std::fmt::Write;
use std::ops::Range;

use gdb::{Poll, Refusal};
use history::timeline::{Cause, Hit, Timeline};
use machine::error::Error;
use machine::position::Instructions;
use origins::{Location, WhereTo, WhoArmed, WhoSet};
use views::debug_files::DebugFiles;
use views::difference::Side;
use views::filters::Filters;
use views::{calls, object, profile, tree, values};

use super::{GdbTarget, refused};

/// The largest number of calls or values in one list.
const MAX_LISTED: usize = 1000;
/// The largest number of writes that `who-set` shows.
const MAX_LINKS: usize = 100;
/// The largest number of copies and uses that `where-to` shows.
const MAX_PASSAGES: usize = 100;
/// The largest number of callbacks that `origin` shows.
const MAX_CALLBACKS: usize = 5;
/// The largest number of variables and disk blocks that a difference lists.
const MAX_CHANGES: usize = 40;
/// The largest number of functions in a profile.
const MAX_FUNCTIONS: usize = 40;
/// The depth of a tree of calls.
const TREE_DEPTH: usize = 8;
/// The word before a variable whose values are listed as bytes, because gdb shows them by its own types.
const AS_BYTES: &str = "bytes ";

impl GdbTarget<'_> {
    pub(super) fn calls(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (rest, part) = self.part(text, poll);
        let (function, filters) = Filters::behind(&rest).map_err(Refusal::new)?;
        if function.is_empty() {
            return Err(Refusal::new("write: monitor calls FUNCTION [FILTER...] [FROM TO]"));
        }
        let question = calls::Question { function, filters: &filters, limit: MAX_LISTED };
        let found = self.ask(|timeline| question.answer(timeline, part, poll))?;
        let lines = found.calls.iter().map(|call| (call.at.instruction, call.at.processor, call.to_string()));
        Ok(self.listed(lines.collect(), found.goes_on_at))
    }

    pub(super) fn values(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (rest, part) = self.part(text, poll);
        let (variable, filters) = Filters::behind(&rest).map_err(Refusal::new)?;
        let (variable, as_bytes) = match variable.strip_prefix(AS_BYTES) {
            Some(variable) => (variable, true),
            None => (variable, false),
        };
        if variable.is_empty() {
            return Err(Refusal::new("write: monitor values VARIABLE [FILTER...] [FROM TO]"));
        }
        let files = &DebugFiles::default();
        let question = values::Question {
            variable,
            files,
            filters: &filters,
            all_writes: false,
            as_bytes,
            limit: MAX_LISTED,
        };
        let found = self.ask(|timeline| question.answer(timeline, part, poll))?;
        let lines =
            found.writes.iter().map(|write| (write.at.instruction, write.at.processor, write.to_string()));
        Ok(found.heading() + "\n" + &self.listed(lines.collect(), found.goes_on_at))
    }

    pub(super) fn tree(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (from, to) = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [to] => (self.timeline.position(), self.place(to, poll)?),
            [from, to] => (self.place(from, poll)?, self.place(to, poll)?),
            _ => return Err(Refusal::new("write: monitor tree [FROM] TO")),
        };
        let question = tree::Question { thread: None, depth: TREE_DEPTH, with_programs: false };
        let found = self.ask(|timeline| question.answer(timeline, from..to, poll))?;
        Ok(format!("{found}\n"))
    }

    pub(super) fn profile(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (from, to) = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [to] => (self.timeline.position(), self.place(to, poll)?),
            [from, to] => (self.place(from, poll)?, self.place(to, poll)?),
            _ => return Err(Refusal::new("write: monitor profile [FROM] TO")),
        };
        let question = profile::Question { order: profile::Order::Own, limit: MAX_FUNCTIONS };
        let found = self.ask(|timeline| question.answer(timeline, from..to, poll))?;
        Ok(format!("{found}\n"))
    }

    pub(super) fn diff(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (from, to) = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [from, to] => (self.place(from, poll)?, self.place(to, poll)?),
            [from] => (self.place(from, poll)?, self.timeline.position()),
            _ => return Err(Refusal::new("write: monitor diff POS [POS]")),
        };
        let difference = self.ask(|timeline| {
            timeline.seek(from, poll)?.unless_interrupted()?;
            let before = Side::of(timeline.machine_mut())?;
            timeline.seek(to, poll)?.unless_interrupted()?;
            before.to(timeline.machine_mut(), MAX_CHANGES)
        })?;
        Ok(format!("{difference}\n"))
    }

    pub(super) fn object(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let usage = || Refusal::new("write: monitor object ADDRESS [N]");
        let (address, earlier) = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [address] => (address, 1),
            [address, earlier] => (address, earlier.parse().map_err(|_| usage())?),
            _ => return Err(usage()),
        };
        let processor = Some(self.shown_processor);
        let question = object::Question { address, processor, earlier, count: false };
        let found = self.ask(|timeline| question.answer(timeline, poll))?;
        Ok(format!("{found}\n"))
    }

    pub(super) fn who_set(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let location: Location = text.parse().map_err(Refusal::new)?;
        let (processor, at) = (Some(self.shown_processor), self.timeline.position());
        let question = WhoSet { location: &location, processor, at, limit: MAX_LINKS };
        let answer = self.ask(|timeline| question.run(timeline, poll))?;
        Ok(format!("{answer}\n"))
    }

    pub(super) fn where_to(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (location, until) = text.split_once(' ').unwrap_or((text, "end"));
        let location: Location = location.parse().map_err(Refusal::new)?;
        let question = WhereTo {
            location: &location,
            processor: Some(self.shown_processor),
            at: self.timeline.position(),
            until: self.place(until.trim(), poll)?,
            through_computations: false,
            with_registers: false,
            limit: MAX_PASSAGES,
        };
        let answer = self.ask(|timeline| question.run(timeline, poll))?;
        Ok(format!("{answer}\n"))
    }

    pub(super) fn origin(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let function = Some(text.trim()).filter(|function| !function.is_empty());
        let (processor, at) = (Some(self.shown_processor), self.timeline.position());
        let question = WhoArmed { function, processor, at, limit: MAX_CALLBACKS };
        let answer = self.ask(|timeline| question.run(timeline, poll))?;
        Ok(format!("{answer}\n"))
    }

    /// Asks a question that may move the timeline and change its stops, and returns to the present position.
    fn ask<A>(&mut self, question: impl FnOnce(&mut Timeline) -> Result<A, Error>) -> Result<A, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let answer = question(self.timeline);
        self.points_changed();
        self.timeline.return_to(&here).map_err(refused)?;
        answer.map_err(refused)
    }

    /// Splits off two positions at the end of `text`. Returns the text before them, and the part of the recording
    /// between the positions. Without two positions, the part is the whole recording.
    fn part(&mut self, text: &str, poll: &mut Poll<'_>) -> (String, Range<Instructions>) {
        let mut words = text.trim().rsplitn(3, ' ');
        if let (Some(to), Some(from), Some(rest)) = (words.next(), words.next(), words.next())
            && let (Ok(from), Ok(to)) = (self.place(from, poll), self.place(to, poll))
        {
            return (rest.to_string(), from..to);
        }
        (text.trim().to_string(), Instructions(0)..self.timeline.end())
    }

    /// A list of events, to whose places `goto hit:N` goes.
    fn listed(&mut self, lines: Vec<(u64, Option<usize>, String)>, goes_on_at: Option<u64>) -> String {
        let hit = |&(at, processor, _): &(u64, Option<usize>, String)| Hit {
            before: Instructions(at),
            after: Instructions(at),
            cause: Cause::Return,
            processor: processor.unwrap_or(0),
        };
        self.hits = lines.iter().map(hit).collect();
        let mut answer = String::new();
        for (number, (_, _, line)) in lines.iter().enumerate() {
            let _ = writeln!(answer, "hit:{number:<4} {line}");
        }
        answer += &match (goes_on_at, lines.len()) {
            (Some(edge), _) => format!("interrupted: the places after insn:{edge} were not searched\n"),
            (None, 0) => "nowhere in that part of the recording\n".to_string(),
            (None, MAX_LISTED) => format!("these are the first {MAX_LISTED}; goto hit:N goes to one\n"),
            (None, _) => "goto hit:N goes to one\n".to_string(),
        };
        answer
    }
}
