//! The walk: from a value back through copies to its origin.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use history::timeline::{Poll, Timeline, TravelStop};
use machine::error::Error;
use machine::position::{Count, Instructions};
use views::guest_kernel::GuestKernels;

use crate::answer::{Answer, End, EndKind, Link, Part, Span};
use crate::cell::{Cell, number_of};
use crate::location::Location;
use crate::outside;
use crate::rules::{Effect, Source};
use crate::seen::{Origin, Step};
use crate::writers::{Wanted, Writer, last_writers};

/// A question: where did a value come from?
#[derive(Clone, Copy, Debug)]
pub struct WhoSet<'a> {
    /// The location of the value.
    pub location: &'a Location,
    /// The number of the processor whose registers and address space the location means. By default, the running
    /// processor.
    pub processor: Option<usize>,
    /// The position at which the location has the value.
    pub at: Instructions,
    /// The largest number of links.
    pub limit: usize,
}

impl WhoSet<'_> {
    /// Finds the chain of writes. Changes the timeline's position.
    pub fn run(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Answer, Error> {
        let replayed = timeline.replayed_steps();
        if timeline.seek(self.at, poll)? == TravelStop::Interrupted {
            return Err(Error::Interrupted);
        }
        let kernels = Arc::new(GuestKernels::of(timeline, self.at, poll)?);
        let wanted: Vec<Wanted> = self.location.values(timeline.machine(), self.processor, &kernels)?;
        let (instruction, bytes) = (self.at.number(), wanted.len());
        let shown = hex(&wanted);
        let mut walk = Walk { timeline, kernels, links: Vec::new(), wanted, before: self.at };
        let end = walk.until_the_end(self.limit, poll)?;
        let Walk { links, timeline, .. } = walk;
        Ok(Answer {
            location: self.location.to_string(),
            instruction,
            value: shown,
            bytes,
            links,
            end,
            replayed: timeline.replayed_steps() - replayed,
        })
    }
}

/// The value of some bytes in hex.
fn hex(wanted: &[Wanted]) -> String {
    let bytes: Vec<u8> = wanted.iter().map(|(_, value)| *value).collect();
    format!("{:#x}", number_of(&bytes))
}

fn cells(wanted: &[Wanted]) -> Vec<Cell> {
    wanted.iter().map(|(cell, _)| *cell).collect()
}

impl End {
    fn of(kind: EndKind, text: impl Into<String>) -> End {
        End { kind, text: text.into(), event: None, parts: Vec::new() }
    }

    fn outside(source: outside::Source) -> End {
        End { event: source.event, ..End::of(EndKind::Outside, format!("from outside: {}", source.text)) }
    }

    fn interrupted() -> End {
        End::of(EndKind::Interrupted, "interrupted: the chain goes on before this place")
    }
}

/// The result of a step for all bytes of a value.
enum Verdict {
    /// The step copied these bytes.
    Copied(Vec<Wanted>),
    Ends(End),
}

struct Walk<'a> {
    timeline: &'a mut Timeline,
    kernels: Arc<GuestKernels>,
    links: Vec<Link>,
    /// The followed bytes, and their values before the step `before`.
    wanted: Vec<Wanted>,
    before: Instructions,
}

impl Walk<'_> {
    fn until_the_end(&mut self, limit: usize, poll: &mut Poll<'_>) -> Result<End, Error> {
        while self.links.len() < limit {
            let Some(writers) = last_writers(self.timeline, &self.wanted, self.before, poll)? else {
                return Ok(End::interrupted());
            };
            let Some(writer) =
                writers.first().copied().filter(|first| writers.iter().all(|one| one == first))
            else {
                match self.repetition(&writers, poll)? {
                    Some(true) => continue,
                    Some(false) => return Ok(self.parts(&writers)),
                    None => return Ok(End::interrupted()),
                }
            };
            let end = match writer {
                Writer::Start => Some(End::of(
                    EndKind::Start,
                    "unchanged since the start of the recording: the initial contents of registers and memory",
                )),
                Writer::Device(at) => Some(self.device(at, poll)?),
                Writer::Step(at) => self.step(at, poll)?,
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
        Ok(End::of(EndKind::Limit, format!("the chain goes on before insn:{}; raise --limit", self.before)))
    }

    /// Adds the link of a repeated string instruction whose iterations copied the bytes. Returns false if the steps are
    /// no such iterations, and `None` if the poll function returned true.
    fn repetition(&mut self, writers: &[Writer], poll: &mut Poll<'_>) -> Result<Option<bool>, Error> {
        let mut steps: BTreeMap<Instructions, Step> = BTreeMap::new();
        for writer in writers {
            let Writer::Step(at) = *writer else { return Ok(Some(false)) };
            if let Entry::Vacant(place) = steps.entry(at) {
                let Some(step) = Step::replay(self.timeline, at, poll)? else { return Ok(None) };
                if step.repetition().is_none() {
                    return Ok(Some(false));
                }
                place.insert(step);
            }
        }
        let mut repetitions = steps.values().map(Step::repetition);
        let first = repetitions.next().flatten();
        if !repetitions.all(|other| other == first) {
            return Ok(Some(false));
        }
        let mut copied: Vec<Wanted> = Vec::new();
        for ((cell, value), writer) in self.wanted.iter().zip(writers) {
            let Some(step) = steps.get(&writer.at()) else { return Ok(Some(false)) };
            match step.origin(&step.effects(), *cell) {
                Some(Origin::Cell(from, was)) if was == *value => copied.push((from, was)),
                _ => return Ok(Some(false)),
            }
        }
        // If an iteration reads bytes that another iteration wrote, the iterations repeat a pattern and do not copy
        // one value.
        if copied.iter().any(|(from, _)| self.wanted.iter().any(|(to, _)| to == from)) {
            return Ok(Some(false));
        }
        copied.dedup();
        let (Some((first, _)), Some((last, step))) = (steps.first_key_value(), steps.last_key_value()) else {
            return Ok(Some(false));
        };
        let mut whole = step.clone();
        whole.loads = steps.values().flat_map(|step| step.loads.clone()).collect();
        whole.stores = steps.values().flat_map(|step| step.stores.clone()).collect();
        let link = self.link(*last, &whole, Some(&copied));
        self.links.push(link);
        (self.wanted, self.before) = (copied, *first);
        Ok(Some(true))
    }

    /// The chain's end for a value whose parts different steps wrote.
    fn parts(&self, writers: &[Writer]) -> End {
        let mut parts: Vec<Part> = Vec::new();
        let mut first = 0;
        for group in writers.chunk_by(|one, next| one == next) {
            let wanted = &self.wanted[first..first + group.len()];
            let instruction = match group[0] {
                Writer::Start => None,
                Writer::Device(at) | Writer::Step(at) => Some(at.number()),
            };
            let span = Span::of(&cells(wanted), None);
            parts.push(Part { first, bytes: group.len(), instruction, span, value: hex(wanted) });
            first += group.len();
        }
        End { parts, ..End::of(EndKind::Parts, "put together from parts that different steps wrote:") }
    }

    /// The chain's end if a device wrote the value.
    fn device(&mut self, at: Instructions, poll: &mut Poll<'_>) -> Result<End, Error> {
        let Some((source, step)) = outside::wrote(self.timeline, at, &self.wanted, poll)? else {
            return Ok(End::interrupted());
        };
        let link = self.link(at, &step, None);
        self.links.push(link);
        Ok(End::outside(source))
    }

    /// Adds the link of a step. Returns the chain's end if the chain ends at this step. Otherwise the walk
    /// continues with the bytes that the step copied.
    fn step(&mut self, at: Instructions, poll: &mut Poll<'_>) -> Result<Option<End>, Error> {
        let Some(step) = Step::replay(self.timeline, at, poll)? else { return Ok(Some(End::interrupted())) };
        let effects = step.effects();
        let verdict = self.verdict(at, &step, &effects)?;
        let copied = match &verdict {
            Verdict::Copied(copied) => Some(copied.as_slice()),
            Verdict::Ends(_) => None,
        };
        let link = self.link(at, &step, copied);
        self.links.push(link);
        Ok(match verdict {
            Verdict::Copied(copied) => {
                (self.wanted, self.before) = (copied, at);
                let outside = self.wanted.iter().find_map(|(cell, _)| match cell {
                    Cell::Memory(address) if !outside::is_ram(self.timeline.machine(), *address) => {
                        Some(*address)
                    }
                    _ => None,
                });
                outside.map(|address| End::outside(outside::register(self.timeline.machine(), address)))
            }
            Verdict::Ends(end) => Some(end),
        })
    }

    fn verdict(&self, at: Instructions, step: &Step, effects: &[Effect]) -> Result<Verdict, Error> {
        let origins: Vec<Option<Origin>> =
            self.wanted.iter().map(|(cell, _)| step.origin(effects, *cell)).collect();
        let code = step.code();
        let by = |what: &str| format!("{what} by insn:{at}  {code}");
        let ends = |kind, text| Ok(Verdict::Ends(End::of(kind, text)));
        let mut copied = Vec::new();
        let mut rules = Vec::new();
        for (origin, (_, value)) in origins.into_iter().zip(&self.wanted) {
            match origin {
                Some(Origin::Cell(cell, was)) if was == *value => copied.push((cell, was)),
                Some(Origin::Rule(rule)) => rules.push((rule, *value)),
                _ => return ends(EndKind::Unexplained, by("no rule explains the value that was written")),
            }
        }
        let fills = |(rule, _): &(Source, u8)| matches!(rule, Source::Zeros | Source::Signs);
        if !copied.is_empty() && rules.iter().all(fills) {
            return Ok(Verdict::Copied(copied));
        }
        if !copied.is_empty() {
            return ends(EndKind::Computed, by("put together from several values"));
        }
        let Some((rule, value)) = rules.into_iter().find(|rule| !fills(rule) || rule.0 == Source::Signs)
        else {
            return ends(EndKind::Constant, by("constant: zeros that fill the register, written"));
        };
        match rule {
            Source::Constant(what) => ends(EndKind::Constant, by(&format!("constant: {what}, written"))),
            Source::Outside(outside) => {
                Ok(Verdict::Ends(End::outside(outside::read(self.timeline, at, &outside, value)?)))
            }
            Source::Unfollowed(register) => {
                ends(EndKind::Unfollowed, by(&format!("from {register}, which is not followed, written")))
            }
            _ => ends(EndKind::Computed, by("computed")),
        }
    }

    /// Describes a step that has just been replayed.
    fn link(&mut self, at: Instructions, step: &Step, copied: Option<&[Wanted]>) -> Link {
        let kernels = self.kernels.clone();
        let (guest_seconds, thread, function, are_several) = self.timeline.look_as_stepped(|machine| {
            let kernel = kernels.at(machine);
            let thread = machine
                .processor_at(step.processor)
                .and_then(|processor| kernel.and_then(|kernel| kernel.thread(&processor)));
            let of_code = kernel.filter(|_| !step.is_user);
            let function = of_code.and_then(|kernel| kernel.symbols.place_of(step.rip));
            (machine.moment().time_ns as f64 / 1e9, thread, function, machine.processors() > 1)
        });
        let span = |wanted: &[Wanted]| {
            let linear = match wanted.first() {
                Some((Cell::Memory(address), _)) => step.linear_of(*address),
                _ => None,
            };
            Span::of(&cells(wanted), linear)
        };
        Link {
            instruction: at.number(),
            guest_seconds,
            processor: are_several.then_some(step.processor),
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            rip: format!("{:#x}", step.rip),
            function,
            code: step.code(),
            to: span(&self.wanted),
            from: copied.map(span),
            value: hex(&self.wanted),
        }
    }
}
