//! The search forward: from a value to its copies and uses.

mod followed;
mod outputs;
mod passage;
mod trace;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use history::timeline::{Interval, Poll, Timeline};
use machine::error::Error;
use machine::position::{Count, Instructions};
use views::guest_kernel::GuestKernels;
use views::moment::Moment;
use views::processors;

pub use passage::{End, Kind, Onward, Passage};

use crate::answer::Span;
use crate::cell::{Cell, number_of};
use crate::location::Location;
use trace::{Choices, Found, Trace};
use watch::{Closely, Waiting};

/// The largest number of places with the value that an answer lists.
const MOST_LEFT: usize = 20;

/// A question: where did a value go?
#[derive(Clone, Copy, Debug)]
pub struct WhereTo<'a> {
    /// The location of the value.
    pub location: &'a Location,
    /// The number of the processor whose registers and address space the location means. By default, the running
    /// processor.
    pub processor: Option<usize>,
    /// The position at which the location has the value.
    pub at: Instructions,
    /// The position at which the search ends.
    pub until: Instructions,
    /// Whether the results of computations with the value are followed too.
    pub through_computations: bool,
    /// Whether copies to registers and to the stack are in the answer too.
    pub with_registers: bool,
    /// The largest number of passages.
    pub limit: usize,
}

impl WhereTo<'_> {
    /// Finds the copies and the uses. Changes the timeline's position.
    pub fn run(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Onward, Error> {
        let until = timeline.part(self.at..self.until)?.end;
        let replayed = timeline.replayed_steps();
        timeline.seek(self.at, poll)?.unless_interrupted()?;
        let kernels = GuestKernels::of(timeline, self.at, poll)?;
        let wanted = self.location.values(timeline.machine(), self.processor, &kernels)?;
        let (with_registers, through_computations) = (self.with_registers, self.through_computations);
        let choices = Choices { through_computations, with_registers, limit: self.limit };
        let trace = Trace::of(timeline.machine(), &wanted, choices);
        let (trace, end) = Search { timeline, until }.run(trace, poll)?;
        let position = timeline.position().number();
        // The search learns only from the following steps that the value is gone.
        let end_instruction = trace.gone_at().filter(|_| end == End::Gone).unwrap_or(position);
        let (left, has_more_left) = left(timeline, &trace);
        let mut passages = Vec::new();
        for found in &trace.found {
            timeline.seek(Instructions(found.step), poll)?.unless_interrupted()?;
            passages.push(found.passage(timeline, &kernels)?);
        }
        let value: Vec<u8> = wanted.iter().map(|(_, value)| *value).collect();
        Ok(Onward {
            location: self.location.to_string(),
            instruction: self.at.number(),
            value: hex(&value),
            bytes: value.len(),
            passages,
            end,
            end_instruction,
            left,
            has_more_left,
            replayed: timeline.replayed_steps() - replayed,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    format!("{:#x}", number_of(bytes))
}

struct Search<'a> {
    timeline: &'a mut Timeline,
    until: Instructions,
}

impl Search<'_> {
    fn run(&mut self, mut trace: Trace, poll: &mut Poll<'_>) -> Result<(Trace, End), Error> {
        let mut closely = trace.followed.has_registers();
        loop {
            let start = self.timeline.position();
            if trace.is_full {
                return Ok((trace, End::Limit));
            }
            if trace.followed.is_empty() {
                return Ok((trace, End::Gone));
            }
            if start >= self.until {
                return Ok((trace, End::Searched));
            }
            let part = Interval { start, end: self.until };
            if closely {
                let (more, is_interrupted) = self.closely(part, trace, poll)?;
                trace = more;
                if is_interrupted {
                    return Ok((trace, End::Interrupted));
                }
                closely = trace.followed.has_registers();
            } else {
                let waiting = Waiting { trace: trace.clone(), touched_at: None };
                let Some(waiting) = self.timeline.observe(part, waiting, poll)? else {
                    return Ok((trace, End::Interrupted));
                };
                trace = waiting.trace;
                let Some(step) = waiting.touched_at else { return Ok((trace, End::Searched)) };
                self.timeline.seek(Instructions(step), poll)?.unless_interrupted()?;
                closely = true;
            }
        }
    }

    /// Looks at every step. Also returns whether the poll function returned true.
    fn closely(&mut self, part: Interval, trace: Trace, poll: &mut Poll<'_>) -> Result<(Trace, bool), Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let observer = Closely::from(trace, part.start.number(), stop.clone());
        // An interrupted observation would lose its trace. So the observer itself ends the observation.
        let mut ask = || {
            if poll() {
                stop.store(true, Ordering::Relaxed);
            }
            false
        };
        let observer = self.timeline.observe(part, observer, &mut ask)?.ok_or(Error::Interrupted)?;
        let machine = self.timeline.machine();
        let trace = observer.ended(machine.running_processor().state());
        Ok((trace, stop.load(Ordering::Relaxed)))
    }
}

/// The places that hold the value at a timeline's present position, and whether there are more.
fn left(timeline: &Timeline, trace: &Trace) -> (Vec<Span>, bool) {
    let machine = timeline.machine();
    let is_there = |(cell, value): &(Cell, Option<u8>)| match (cell, value) {
        (Cell::Memory(address), Some(value)) => {
            let mut byte = [0];
            machine.read_physical(*address, &mut byte) == 1 && byte[0] == *value
        }
        _ => true,
    };
    let cells: Vec<Cell> =
        trace.followed.cells().into_iter().filter(is_there).map(|(cell, _)| cell).collect();
    let follows = |one: &Cell, next: &Cell| match (one, next) {
        (Cell::Memory(one), Cell::Memory(next)) => one.checked_add(1) == Some(*next),
        (
            Cell::Register { processor, register, .. },
            Cell::Register { processor: same, register: other, .. },
        ) => (processor, register) == (same, other),
        _ => false,
    };
    let mut spans = cells.chunk_by(follows);
    let left = spans.by_ref().take(MOST_LEFT).map(|cells| Span::of(cells, None)).collect();
    (left, spans.next().is_some())
}

impl Found {
    /// The passage for an answer. The timeline is at the step.
    fn passage(&self, timeline: &Timeline, kernels: &GuestKernels) -> Result<Passage, Error> {
        let machine = timeline.machine();
        let kernel = kernels.at(machine);
        let processor = processors::find(machine, self.processor)?;
        let of_code = kernel.filter(|_| !self.is_user);
        Ok(Passage {
            kind: self.kind,
            moment: Moment::of(&processor, Instructions(self.step), kernel),
            rip: format!("{:#x}", self.rip),
            function: of_code.and_then(|kernel| kernel.symbols.place_of(self.rip)),
            code: self.code.clone(),
            from: Span::of(&self.from, self.linear_from),
            to: (!self.to.is_empty()).then(|| Span::of(&self.to, self.linear_to)),
            device: self.device.clone(),
            value: hex(&self.value),
            times: self.times,
        })
    }
}
