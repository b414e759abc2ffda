//! Replays one step, and records everything that the step reads and writes.

use std::ops::ControlFlow;

use cpu::{At, CodeSize, Core, CpuState, Happening, Observer, Places, Vectors, Wants};
use history::timeline::{Interval, Poll, Timeline};
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use machine::error::Error;
use machine::position::Instructions;

use crate::cell::{Cell, Reg};
use crate::rules::{self, Access, Effect, Executed, Place, Source};

/// The largest number of bytes of an instruction.
pub const MOST_INSTRUCTION_BYTES: usize = 15;
/// RFLAGS.DF: string instructions go down.
const DIRECTION: u64 = 1 << 10;

/// One step of the run.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The processor that executed the step.
    pub processor: usize,
    /// RIP before the step.
    pub rip: u64,
    /// Whether a program executed the step, and not the kernel.
    pub is_user: bool,
    /// The instruction and the processor before it; `None` if the step is the delivery of an interrupt.
    pub executed: Option<(Instruction, Box<CpuState>)>,
    /// The step's loads, in order.
    pub loads: Vec<Access>,
    /// The step's stores, in order.
    pub stores: Vec<Access>,
    /// The interrupt or exception that was delivered.
    pub delivery: Option<Delivery>,
}

/// The delivery of an interrupt or exception.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The number of the entry in the interrupt table.
    pub vector: u8,
    has_error_code: bool,
    rsp: u64,
    is_64_bit: bool,
}

impl Delivery {
    /// The delivery that has just happened on a processor.
    pub fn on(core: &Core, vector: u8, error_code: Option<u32>) -> Delivery {
        Delivery {
            vector,
            has_error_code: error_code.is_some(),
            rsp: core.frame.regs[4],
            is_64_bit: core.code_size == CodeSize::Bits64,
        }
    }
}

/// Where a written byte comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The written byte is a copy of this byte, which has this value before the step.
    Cell(Cell, u8),
    /// A rule for the instruction gives the source.
    Rule(Source),
}

/// Decodes an instruction.
pub fn decode(bits: u32, rip: u64, code: &[u8]) -> Instruction {
    Decoder::with_ip(bits, code, rip, DecoderOptions::NONE).decode()
}

/// The linear address of the processor's next instruction.
pub fn linear_rip(core: &Core) -> u64 {
    let address = core.rip.wrapping_add(core.frame.seg_base[1]);
    if core.code_size == CodeSize::Bits64 { address } else { address & 0xffff_ffff }
}

impl Step {
    /// Replays the step after a place. `None` if the poll function returned true.
    pub fn replay(
        timeline: &mut Timeline,
        at: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Step>, Error> {
        let part = Interval { start: at, end: at + 1 };
        Ok(timeline.observe(part, Recorder::default(), poll)?.map(|recorder| recorder.step))
    }

    /// The effects of the step, for [`rules::source_of`].
    pub fn effects(&self) -> Vec<Effect> {
        match (&self.delivery, &self.executed) {
            (Some(delivery), _) => {
                let Delivery { rsp, has_error_code, is_64_bit, .. } = *delivery;
                rules::of_delivery(rsp, has_error_code, is_64_bit, &self.stores)
            }
            (None, Some((instruction, before))) => {
                let (loads, stores) = (&*self.loads, &*self.stores);
                rules::effects(&Executed { instruction, before, loads, stores })
            }
            (None, None) => Vec::new(),
        }
    }

    /// Where a byte that the step writes comes from; `None` if the step does not write the byte.
    pub fn origin(&self, effects: &[Effect], cell: Cell) -> Option<Origin> {
        let place = match cell {
            Cell::Register { processor, register, byte } => {
                (processor == self.processor).then_some(Place::Register(register, byte))?
            }
            Cell::Memory(physical) => Place::Memory(linear_in(&self.stores, physical)?),
        };
        Some(match rules::source_of(effects, place)? {
            Source::Copy(Place::Register(register, byte)) => {
                let cell = Cell::Register { processor: self.processor, register, byte };
                let value = self.executed.as_ref().map(|(_, before)| register.byte_in(before, byte));
                // The CPU state before a delivery is not recorded. The old value of the pushed stack pointer is the
                // stored value itself.
                value
                    .or_else(|| self.stored(cell_address(place)?))
                    .map_or_else(|| Origin::Rule(Source::Computed), |value| Origin::Cell(cell, value))
            }
            Source::Copy(Place::Memory(linear)) => match self.loaded(linear) {
                Some((physical, value)) => Origin::Cell(Cell::Memory(physical), value),
                None => Origin::Rule(Source::Computed),
            },
            other => Origin::Rule(other),
        })
    }

    /// The physical address and the value of a byte that the step loads.
    fn loaded(&self, linear: u64) -> Option<(u64, u8)> {
        self.loads.iter().find_map(|load| {
            let offset = linear.wrapping_sub(load.linear);
            let value = *load.bytes.get(usize::try_from(offset).ok()?)?;
            Some((load.physical.wrapping_add(offset), value))
        })
    }

    fn stored(&self, linear: u64) -> Option<u8> {
        self.stores.iter().rev().find_map(|store| {
            store.bytes.get(usize::try_from(linear.wrapping_sub(store.linear)).ok()?).copied()
        })
    }

    /// The physical address of a byte that the step stores.
    pub fn physical_of_store(&self, linear: u64) -> Option<u64> {
        self.stores.iter().rev().find_map(|store| {
            let offset = linear.wrapping_sub(store.linear);
            (offset < store.bytes.len() as u64).then(|| store.physical.wrapping_add(offset))
        })
    }

    /// The value that the step stores in a byte of memory.
    pub fn stored_at(&self, cell: Cell) -> Option<u8> {
        let Cell::Memory(physical) = cell else { return None };
        self.stored(linear_in(&self.stores, physical)?)
    }

    /// The linear address through which the step reads or writes the byte at a physical address.
    pub fn linear_of(&self, physical: u64) -> Option<u64> {
        linear_in(&self.stores, physical).or_else(|| linear_in(&self.loads, physical))
    }
}

fn cell_address(place: Place) -> Option<u64> {
    match place {
        Place::Memory(linear) => Some(linear),
        Place::Register(..) => None,
    }
}

fn linear_in(accesses: &[Access], physical: u64) -> Option<u64> {
    accesses.iter().rev().find_map(|access| {
        let offset = physical.wrapping_sub(access.physical);
        (offset < access.bytes.len() as u64).then(|| access.linear.wrapping_add(offset))
    })
}

/// The happenings that a [`Step`] consists of.
pub fn whole_steps() -> Wants {
    Wants {
        fetches: Places::All,
        loads: Places::All,
        stores: Places::All,
        deliveries: Vectors::All,
        ..Wants::default()
    }
}

/// An observer that records a step.
#[derive(Default)]
struct Recorder {
    step: Step,
}

impl Observer for Recorder {
    fn wants(&self) -> Wants {
        whole_steps()
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        let step = &mut self.step;
        (step.processor, step.rip) = (core.processor, at.rip);
        match happening {
            Happening::Fetch => {
                let mut code = [0; MOST_INSTRUCTION_BYTES];
                let known = core.peek(linear_rip(core), &mut code);
                let instruction = decode(core.code_size.bits(), core.rip, &code[..known]);
                step.executed = Some((instruction, Box::new(core.save_state())));
                step.is_user = core.cpl == 3;
            }
            Happening::Load { address, physical, value } => {
                step.loads.push(Access::of(*address, *physical, value));
            }
            Happening::Store { address, physical, after, .. } => {
                step.stores.push(Access::of(*address, *physical, after));
            }
            Happening::Delivery { vector, error_code } => {
                step.delivery = Some(Delivery::on(core, *vector, *error_code));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Reg {
    /// Whether a register of the decoder is this register, or a part of this register.
    pub fn is(self, register: iced_x86::Register) -> bool {
        Reg::of(register).is_some_and(|(same, _)| same == self)
    }
}

impl Step {
    /// Identifies the repeated MOVS or STOS of which the step is an iteration. The result has the processor, RIP, and the
    /// addresses at which the repetition ends. These values are the same in all iterations, also after an interrupt.
    pub fn repetition(&self) -> Option<(usize, u64, u64, u64)> {
        use iced_x86::Mnemonic as M;
        let (instruction, before) = self.executed.as_ref()?;
        let is_copy = matches!(instruction.mnemonic(), M::Movsb | M::Movsw | M::Movsd | M::Movsq);
        let is_fill = matches!(instruction.mnemonic(), M::Stosb | M::Stosw | M::Stosd | M::Stosq);
        let is_string = instruction.is_string_instruction() && (is_copy || is_fill);
        (is_string && instruction.has_rep_prefix() && self.delivery.is_none()).then_some(())?;
        let [count, from, to] = [1, 6, 7].map(|number| before.gpr[number]);
        let length = count.wrapping_mul(instruction.memory_size().size() as u64);
        let is_down = before.rflags & DIRECTION != 0;
        let end =
            |address: u64| if is_down { address.wrapping_sub(length) } else { address.wrapping_add(length) };
        Some((self.processor, self.rip, if is_copy { end(from) } else { 0 }, end(to)))
    }

    /// The step as text: its instruction, or the interrupt or exception that it delivers.
    pub fn code(&self) -> String {
        if let Some(delivery) = &self.delivery {
            return format!("delivery of vector {}", delivery.vector);
        }
        let Some((instruction, _)) = &self.executed else { return "no instruction".to_string() };
        let mut text = String::new();
        IntelFormatter::new().format(instruction, &mut text);
        text
    }

    /// Whether the step writes to a port.
    pub fn writes_port(&self) -> bool {
        use iced_x86::Mnemonic as M;
        let mnemonic = self.executed.as_ref().map(|(instruction, _)| instruction.mnemonic());
        matches!(mnemonic, Some(M::Out | M::Outsb | M::Outsw | M::Outsd))
    }
}

#[cfg(test)]
pub mod tests;
