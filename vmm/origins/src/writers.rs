//! Finds the step that last wrote each of some bytes.
//!
//! Memory is searched in intervals that grow with the distance, as other searches backward do. An observer remembers
//! the last store to each byte. Devices write memory without a store. So each interval also compares the bytes. If no
//! store explains a byte's value, a bisection finds the step in which the byte changed.
//!
//! Most registers change every few steps, so their intervals are short at first. In a short interval, an observer decodes
//! each instruction. In a longer interval the register is rarely written. There the observer sees only the
//! instructions that may write the register, and all other code runs as fast as without an observer.

use std::ops::ControlFlow;
use std::sync::Arc;

use cpu::{AddressKind, At, Core, Happening, InstructionFilter, Observer, Places, Traps, Vectors, Wants};
use history::timeline::{Interval, Poll, Stops, Timeline, TravelStop};
use iced_x86::{Instruction, InstructionInfoFactory};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};
use rustc_hash::FxHashMap;

use crate::cell::{Cell, Reg};
use crate::rules::{self, Executed, Place, Source};
use crate::seen::{MOST_INSTRUCTION_BYTES, Origin, Step, decode, linear_rip};

/// The length in steps of the first interval of a search in memory.
const FIRST_STEPS: u64 = 100_000;
/// Each later interval is as long as the part that is already searched, divided by this number.
const PARTS: u64 = 8;
/// The length in steps of the first interval of a search for a register, and the factor by which the intervals
/// grow. The timeline keeps snapshots at these distances.
const FIRST_REGISTER_STEPS: u64 = 128;
const REGISTER_FACTOR: u64 = 8;
/// The longest interval in which an observer sees each instruction.
const MOST_WHOLE_STEPS: u64 = 1 << 16;
/// Intervals of at least this length in steps grow by [`PARTS`], also in a search for a register.
const LONG_REGISTER_STEPS: u64 = 1 << 20;
/// If a processor's turns have more than one in this number of an interval's steps, the interval is searched as a whole.
/// Otherwise the turns are searched one by one.
const PARTS_OF_TURNS: u64 = 8;

/// What wrote a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// Nothing since the beginning of the recording.
    Start,
    /// A device, an event or the processor's page walk, in this step or just before it.
    Device(Instructions),
    /// The instruction or the delivery in this step.
    Step(Instructions),
}

impl Writer {
    /// The position of the writer.
    pub fn at(self) -> Instructions {
        match self {
            Writer::Start => Instructions(0),
            Writer::Device(at) | Writer::Step(at) => at,
        }
    }
}

/// A byte and its value.
pub type Wanted = (Cell, u8);

/// The last writer of each byte before a place where the bytes have these values. `None` if the poll function returned
/// true.
pub fn last_writers(
    timeline: &mut Timeline,
    wanted: &[Wanted],
    before: Instructions,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Writer>>, Error> {
    let mut found = vec![None; wanted.len()];
    let mut from = vec![before; wanted.len()];
    // All bytes that are searched from the same place on are searched at once.
    while let Some(end) = (0..wanted.len()).filter(|at| found[*at].is_none()).map(|at| from[at]).max() {
        let open: Vec<usize> =
            (0..wanted.len()).filter(|at| found[*at].is_none() && from[*at] == end).collect();
        let bytes: Vec<Wanted> = open.iter().map(|at| wanted[*at]).collect();
        let Some(writers) = search(timeline, &bytes, end, poll)? else { return Ok(None) };
        for (at, writer) in open.into_iter().zip(writers) {
            let Writer::Step(step) = writer else {
                found[at] = Some(writer);
                continue;
            };
            let Some(seen) = Step::replay(timeline, step, poll)? else { return Ok(None) };
            let effects = seen.effects();
            match seen.origin(&effects, wanted[at].0) {
                // The instruction wrote the old value back, or did not write.
                Some(Origin::Rule(Source::Kept)) => from[at] = step,
                _ => found[at] = Some(writer),
            }
        }
    }
    Ok(Some(found.into_iter().flatten().collect()))
}

fn search(
    timeline: &mut Timeline,
    wanted: &[Wanted],
    before: Instructions,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Writer>>, Error> {
    let is_memory = |at: &usize| matches!(wanted[*at].0, Cell::Memory(_));
    let (memory, registers): (Vec<usize>, Vec<usize>) = (0..wanted.len()).partition(is_memory);
    let mut found = vec![Writer::Start; wanted.len()];
    let parts: [(Vec<usize>, bool); 2] = [(memory, true), (registers, false)];
    for (places, is_memory) in parts {
        let bytes: Vec<Wanted> = places.iter().map(|at| wanted[*at]).collect();
        if bytes.is_empty() {
            continue;
        }
        let writers = if is_memory {
            search_memory(timeline, &bytes, before, poll)?
        } else {
            search_registers(timeline, &bytes, before, poll)?
        };
        let Some(writers) = writers else { return Ok(None) };
        places.into_iter().zip(writers).for_each(|(at, writer)| found[at] = writer);
    }
    Ok(Some(found))
}

/// The byte at a physical address; zero outside RAM.
fn byte_at(machine: &Machine<Instructions>, cell: Cell) -> u8 {
    let mut byte = [0];
    if let Cell::Memory(address) = cell {
        machine.read_physical(address, &mut byte);
    }
    byte[0]
}

fn search_memory(
    timeline: &mut Timeline,
    wanted: &[Wanted],
    before: Instructions,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Writer>>, Error> {
    let mut found: Vec<Option<Writer>> = vec![None; wanted.len()];
    let mut end = before;
    while end > Instructions(0) && found.contains(&None) {
        let length = ((before - end) / PARTS).max(FIRST_STEPS);
        let start = timeline.restorable_before(end.saturating_back(length));
        if timeline.seek(start, poll)? == TravelStop::Interrupted {
            return Ok(None);
        }
        let at_start: Vec<u8> = wanted.iter().map(|(cell, _)| byte_at(timeline.machine(), *cell)).collect();
        let stores = Stores::to(wanted);
        let Some(stores) = timeline.observe(Interval { start, end }, stores, poll)? else { return Ok(None) };
        let at_end: Vec<u8> = wanted.iter().map(|(cell, _)| byte_at(timeline.machine(), *cell)).collect();
        let mut changed = None;
        for (at, (_, value)) in wanted.iter().enumerate() {
            if found[at].is_some() {
                continue;
            }
            match stores.last[at] {
                // An event changed the byte at the position `before`, right before the step that reads the byte.
                _ if end == before && at_end[at] != *value => changed = changed.max(Some(end)),
                Some((step, stored)) if stored == *value => found[at] = Some(Writer::Step(step)),
                None if at_start[at] == *value => {}
                last => {
                    let from = last.map_or(start, |(step, _)| step + 1);
                    let Some(place) = bisect(timeline, wanted[at], Interval { start: from, end }, poll)?
                    else {
                        return Ok(None);
                    };
                    changed = changed.max(Some(place));
                }
            }
        }
        // A device writes a whole block. Some of its bytes may have had the same value before.
        if let Some(place) = changed {
            for writer in &mut found {
                if writer.is_none_or(|writer| writer.at() < place) {
                    *writer = Some(Writer::Device(place));
                }
            }
        }
        if start > Instructions(0) && poll() {
            return Ok(None);
        }
        end = start;
    }
    Ok(Some(found.into_iter().map(|writer| writer.unwrap_or(Writer::Start)).collect()))
}

/// Finds the step in an interval that changed a byte to its value. At the interval's start, the byte must have
/// another value.
fn bisect(
    timeline: &mut Timeline,
    (cell, value): Wanted,
    interval: Interval,
    poll: &mut Poll<'_>,
) -> Result<Option<Instructions>, Error> {
    let Interval { start: mut low, end: mut high } = interval;
    while high.saturating_since(low) > 1 {
        let middle = low + (high - low) / 2;
        if timeline.seek(middle, poll)? == TravelStop::Interrupted {
            return Ok(None);
        }
        if byte_at(timeline.machine(), cell) == value {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(low))
}

/// An observer that remembers the last store to each byte, with the stored value.
struct Stores {
    cells: Vec<u64>,
    last: Vec<Option<(Instructions, u8)>>,
}

impl Stores {
    fn to(wanted: &[Wanted]) -> Stores {
        let address = |(cell, _): &Wanted| match cell {
            Cell::Memory(address) => *address,
            Cell::Register { .. } => u64::MAX,
        };
        Stores { cells: wanted.iter().map(address).collect(), last: vec![None; wanted.len()] }
    }
}

impl Observer for Stores {
    fn wants(&self) -> Wants {
        let place =
            |address: &u64| cpu::Place { space: AddressKind::Physical, addresses: *address..=*address };
        Wants { stores: Places::In(self.cells.iter().map(place).collect()), ..Wants::default() }
    }

    fn happened(&mut self, at: At, happening: &Happening, _: &Core) -> ControlFlow<()> {
        if let Happening::Store { physical, after, .. } = happening {
            for (cell, last) in self.cells.iter().zip(&mut self.last) {
                let offset = usize::try_from(cell.wrapping_sub(*physical)).unwrap_or(usize::MAX);
                if let Some(byte) = after.get(offset) {
                    *last = Some((Instructions(at.step), *byte));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

fn search_registers(
    timeline: &mut Timeline,
    wanted: &[Wanted],
    before: Instructions,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Writer>>, Error> {
    let processor = wanted.iter().find_map(|(cell, _)| match cell {
        Cell::Register { processor, .. } => Some(*processor),
        Cell::Memory(_) => None,
    });
    let mut found: Vec<Option<Writer>> = vec![None; wanted.len()];
    let (mut end, mut length) = (before, FIRST_REGISTER_STEPS);
    while end > Instructions(0) && found.contains(&None) {
        let mut start = end.saturating_back(length);
        if length >= LONG_REGISTER_STEPS {
            start = timeline.restorable_before(start);
        }
        let Some(parts) = parts(timeline, Interval { start, end }, processor, poll)? else { return Ok(None) };
        for part in parts.into_iter().rev() {
            let writes = RegisterWrites::to(wanted, part.end - part.start);
            let Some(writes) = timeline.observe(part, writes, poll)? else { return Ok(None) };
            for (at, writer) in found.iter_mut().enumerate().filter(|(_, writer)| writer.is_none()) {
                *writer = writes.last[at].map(Writer::Step);
            }
            if !found.contains(&None) {
                break;
            }
        }
        if start > Instructions(0) && poll() {
            return Ok(None);
        }
        end = start;
        length = if length < LONG_REGISTER_STEPS {
            length * REGISTER_FACTOR
        } else {
            ((before - end) / PARTS).max(LONG_REGISTER_STEPS)
        };
    }
    Ok(Some(found.into_iter().map(|writer| writer.unwrap_or(Writer::Start)).collect()))
}

/// The parts of an interval to search for writes of a processor's registers, in order. If the processor had few turns
/// in the interval, the parts are these turns. `None` if the poll function returned true.
fn parts(
    timeline: &mut Timeline,
    interval: Interval,
    processor: Option<usize>,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Interval>>, Error> {
    let length = interval.end - interval.start;
    if timeline.machine().processors() == 1 || length <= MOST_WHOLE_STEPS {
        return Ok(Some(vec![interval]));
    }
    let Some(turns) = turns(timeline, interval, processor, poll)? else { return Ok(None) };
    let steps: u64 = turns.iter().map(|turn| turn.end - turn.start).sum();
    Ok(Some(if steps > length / PARTS_OF_TURNS { vec![interval] } else { turns }))
}

/// The parts of an interval that are turns of one processor, in order. `None` if the poll function returned true.
fn turns(
    timeline: &mut Timeline,
    interval: Interval,
    processor: Option<usize>,
    poll: &mut Poll<'_>,
) -> Result<Option<Vec<Interval>>, Error> {
    let Interval { start, end } = interval;
    let traps = Traps { turns: true, ..Traps::default() };
    timeline.set_stops(Stops { traps, ..Stops::default() });
    let hits = timeline.hits(start, end, usize::MAX, poll);
    timeline.set_stops(Stops::default());
    let hits = hits?;
    if hits.interrupted_at.is_some() {
        return Ok(None);
    }
    let (mut begin, mut parts) = (start, Vec::new());
    for hit in hits.found {
        if Some(hit.processor) == processor && hit.after > begin {
            parts.push(Interval { start: begin, end: hit.after });
        }
        begin = hit.after;
    }
    // No turn ends at the end of the interval, so the processor there is not known.
    if begin < end {
        parts.push(Interval { start: begin, end });
    }
    Ok(Some(parts))
}

/// A decoded instruction, and its code.
struct Decoded {
    code: [u8; MOST_INSTRUCTION_BYTES],
    /// `None` if the instruction writes none of the registers.
    instruction: Option<Instruction>,
}

/// An observer that remembers the last write to each byte of some registers of a processor.
struct RegisterWrites {
    cells: Vec<Cell>,
    processor: usize,
    registers: Arc<[Reg]>,
    /// Whether the observer sees each instruction, and not only the instructions that may write the registers.
    sees_all: bool,
    last: Vec<Option<Instructions>>,
    /// `last` before the step whose fetch was reported last. A fault undoes the writes of this step.
    undo: Option<(u64, Vec<Option<Instructions>>)>,
    decoded: FxHashMap<(u64, u32), Decoded>,
}

impl RegisterWrites {
    fn to(wanted: &[Wanted], steps: u64) -> RegisterWrites {
        let cells: Vec<Cell> = wanted.iter().map(|(cell, _)| *cell).collect();
        let mut registers = Vec::new();
        let mut number = 0;
        for cell in &cells {
            if let Cell::Register { processor, register, .. } = cell {
                number = *processor;
                registers.push(*register);
            }
        }
        registers.dedup();
        RegisterWrites {
            last: vec![None; cells.len()],
            cells,
            processor: number,
            registers: registers.into(),
            sees_all: steps <= MOST_WHOLE_STEPS,
            undo: None,
            decoded: FxHashMap::default(),
        }
    }

    /// The instruction at RIP, if it may write one of the registers.
    fn instruction(&mut self, core: &Core) -> Option<Instruction> {
        let mut code = [0; MOST_INSTRUCTION_BYTES];
        let known = core.peek(linear_rip(core), &mut code);
        let key = (core.rip, core.code_size.bits());
        if let Some(decoded) = self.decoded.get(&key).filter(|decoded| decoded.code == code) {
            return decoded.instruction;
        }
        let instruction = decode(key.1, core.rip, &code[..known]);
        let instruction = Some(instruction).filter(|instruction| may_write(instruction, &self.registers));
        self.decoded.insert(key, Decoded { code, instruction });
        instruction
    }

    fn fetched(&mut self, step: u64, core: &Core) {
        let Some(instruction) = self.instruction(core) else { return };
        self.undo = Some((step, self.last.clone()));
        let before = core.save_state();
        let executed = Executed { instruction: &instruction, before: &before, loads: &[], stores: &[] };
        let effects = rules::effects(&executed);
        for (cell, last) in self.cells.iter().zip(&mut self.last) {
            let Cell::Register { register, byte, .. } = *cell else { continue };
            let source = rules::source_of(&effects, Place::Register(register, byte));
            if source.is_some_and(|source| source != Source::Kept) {
                *last = Some(Instructions(step));
            }
        }
    }

    /// A delivery changes only the stack pointer.
    fn delivered(&mut self, step: u64) {
        if let Some((_, last)) = self.undo.take().filter(|(fetched, _)| *fetched == step) {
            self.last = last;
        }
        for (cell, last) in self.cells.iter().zip(&mut self.last) {
            if matches!(cell, Cell::Register { register: Reg::General(4), .. }) {
                *last = Some(Instructions(step));
            }
        }
    }
}

/// Whether an instruction may write one of the registers.
fn may_write(instruction: &Instruction, registers: &[Reg]) -> bool {
    let written = rules::written_registers(&mut InstructionInfoFactory::new(), instruction);
    let writes = written.iter().any(|register| registers.iter().any(|wanted| wanted.is(*register)));
    let restores = rules::restores_vectors(instruction)
        && registers.iter().any(|register| matches!(register, Reg::Vector(_)));
    writes || restores
}

impl Observer for RegisterWrites {
    fn wants(&self) -> Wants {
        let (fetches, instructions) = if self.sees_all {
            (Places::All, None)
        } else {
            let registers = self.registers.clone();
            let filter = InstructionFilter::new(move |instruction| may_write(instruction, &registers));
            (Places::None, Some(filter))
        };
        Wants { fetches, instructions, deliveries: Vectors::All, ..Wants::default() }
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        if core.processor == self.processor {
            match happening {
                Happening::Fetch => self.fetched(at.step, core),
                Happening::Delivery { .. } => self.delivered(at.step),
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
