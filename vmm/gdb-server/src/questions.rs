//! `monitor` commands that ask about the whole run: calls, values, objects, and the difference between two positions.

use std::fmt::Write;
use std::ops::Range;

use gdb::{Poll, Refusal};
use history::timeline::{Cause, Hit};
use machine::position::Instructions;
use views::difference::Side;
use views::filters::Filters;
use views::{calls, object, tree, values};

use super::{GdbTarget, refused};

/// The largest number of calls or values in one list.
const MAX_LISTED: usize = 1000;
/// The largest number of variables and disk blocks that a difference lists.
const MAX_CHANGES: usize = 40;
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
        let here = self.timeline.snapshot().map_err(refused)?;
        let found = question.answer(self.timeline, part, poll);
        self.points_changed();
        self.timeline.return_to(&here).map_err(refused)?;
        let found = found.map_err(refused)?;
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
        let question =
            values::Question { variable, filters: &filters, all_writes: false, as_bytes, limit: MAX_LISTED };
        let here = self.timeline.snapshot().map_err(refused)?;
        let found = question.answer(self.timeline, part, poll);
        self.points_changed();
        self.timeline.return_to(&here).map_err(refused)?;
        let found = found.map_err(refused)?;
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
        let here = self.timeline.snapshot().map_err(refused)?;
        let found = question.answer(self.timeline, from..to, poll);
        self.points_changed();
        self.timeline.return_to(&here).map_err(refused)?;
        Ok(found.map_err(refused)?.to_string() + "\n")
    }

    pub(super) fn diff(&mut self, text: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        let (from, to) = match text.split_whitespace().collect::<Vec<_>>()[..] {
            [from, to] => (self.place(from, poll)?, self.place(to, poll)?),
            [from] => (self.place(from, poll)?, self.timeline.position()),
            _ => return Err(Refusal::new("write: monitor diff POS [POS]")),
        };
        let here = self.timeline.snapshot().map_err(refused)?;
        let mut compare = || {
            self.timeline.seek(from, poll)?.unless_interrupted()?;
            let before = Side::of(self.timeline.machine_mut())?;
            self.timeline.seek(to, poll)?.unless_interrupted()?;
            before.to(self.timeline.machine_mut(), MAX_CHANGES)
        };
        let difference = compare();
        self.timeline.return_to(&here).map_err(refused)?;
        Ok(difference.map_err(refused)?.to_string() + "\n")
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
        let here = self.timeline.snapshot().map_err(refused)?;
        let found = question.answer(self.timeline, poll);
        self.points_changed();
        self.timeline.return_to(&here).map_err(refused)?;
        Ok(found.map_err(refused)?.to_string() + "\n")
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
