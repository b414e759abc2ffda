//! The state of a search: the bytes that hold the value, and the passages found so far.

use machine::Machine;
use machine::position::Instructions;
use rustc_hash::FxHashMap;

use cpu::Core;
use iced_x86::{Mnemonic, Register};

use super::followed::{Followed, Registers, Use};
use super::outputs::Outputs;
use super::passage::Kind;
use crate::cell::{Cell, Reg};
use crate::seen::Step;

/// The number of processors that a machine can have at most.
const MOST_PROCESSORS: usize = 64;

/// The value's bytes, and its way so far.
#[derive(Clone, Default)]
pub struct Trace {
    pub followed: Followed,
    pub outputs: Outputs,
    /// The passages, in order.
    pub found: Vec<Found>,
    /// Whether a passage was found that `found` has no room for.
    pub is_full: bool,
    /// The number of steps before the last step that used the value.
    last_use: u64,
    known: FxHashMap<Key, usize>,
    registers: Vec<Registers>,
    choices: Choices,
}

/// The user's choices for a search.
#[derive(Clone, Copy, Default)]
pub struct Choices {
    /// Whether the results of computations are followed too.
    pub through_computations: bool,
    /// Whether copies to registers and to the stack are passages too.
    pub with_registers: bool,
    /// The largest number of passages.
    pub limit: usize,
}

/// What makes two passages equal: the kind, the code (the address space and RIP), and the bytes.
type Key = (Kind, u64, u64, Vec<Cell>, Vec<Cell>);

/// A step that copied or used the value.
#[derive(Clone)]
pub struct Found {
    pub kind: Kind,
    /// The number of steps before the step.
    pub step: u64,
    pub processor: usize,
    pub rip: u64,
    pub is_user: bool,
    pub code: String,
    pub from: Vec<Cell>,
    pub value: Vec<u8>,
    pub to: Vec<Cell>,
    /// The virtual addresses of the first bytes.
    pub linear_from: Option<u64>,
    pub linear_to: Option<u64>,
    pub device: Option<String>,
    pub times: u64,
}

impl Trace {
    /// A search for the way of a value that is in these bytes at a machine's present place.
    pub fn of(machine: &Machine<Instructions>, cells: &[(Cell, u8)], choices: Choices) -> Trace {
        let mut trace = Trace { choices, outputs: Outputs::of(machine), ..Trace::default() };
        cells.iter().for_each(|(cell, value)| trace.followed.add(*cell, *value));
        trace.changed();
        trace
    }

    /// The trace, for an observation that begins at this step.
    pub fn begin_at(mut self, number: u64) -> Trace {
        self.last_use = number;
        self
    }

    /// The registers of a processor that hold bytes of the value.
    pub fn registers_of(&self, processor: usize) -> Registers {
        self.registers.get(processor).copied().unwrap_or(0)
    }

    /// The number of steps after which nothing holds the value, if nothing does.
    pub fn gone_at(&self) -> Option<u64> {
        self.followed.is_empty().then_some(self.last_use + 1)
    }

    /// The number of steps since the last step that used the value.
    pub fn quiet_steps(&self, number: u64) -> u64 {
        number.saturating_sub(self.last_use)
    }

    fn changed(&mut self) {
        self.registers = (0..MOST_PROCESSORS).map(|number| self.followed.registers_of(number)).collect();
    }

    /// Follows the value through a step that touches followed bytes.
    pub fn pass(&mut self, number: u64, step: &Step) {
        self.last_use = number;
        let uses = self.followed.pass(step, self.choices.through_computations);
        self.changed();
        for used in uses {
            if self.choices.with_registers || !is_hidden(step, &used) {
                self.add(number, step, used);
            }
        }
    }

    fn add(&mut self, number: u64, step: &Step, used: Use) {
        let (from, value): (Vec<Cell>, Vec<u8>) = used.from.into_iter().unzip();
        let space = match &step.executed {
            Some((_, before)) if step.is_user => before.cr3,
            _ => 0,
        };
        let key = (used.kind, space, step.rip, from.clone(), used.to.clone());
        if let Some(index) = self.known.get(&key) {
            self.found[*index].times += 1;
            return;
        }
        if let Some(last) =
            self.found.last_mut().filter(|last| last.goes_on_with(step, used.kind, &from, &used.to))
        {
            last.from.extend(from);
            last.to.extend(used.to);
            last.value.extend(value);
            return;
        }
        let linear = |cells: &[Cell]| match cells.first() {
            Some(Cell::Memory(physical)) => step.linear_of(*physical),
            _ => None,
        };
        self.keep(
            key,
            Found {
                kind: used.kind,
                step: number,
                processor: step.processor,
                rip: step.rip,
                is_user: step.is_user,
                code: step.code(),
                linear_from: linear(&from),
                linear_to: linear(&used.to),
                from,
                value,
                to: used.to,
                device: None,
                times: 1,
            },
        );
    }

    fn keep(&mut self, key: Key, found: Found) {
        if self.found.len() >= self.choices.limit {
            self.is_full = true;
            return;
        }
        self.known.insert(key, self.found.len());
        self.found.push(found);
    }

    /// Looks at the requests to devices after a store to one of the devices' registers.
    pub fn notified(&mut self, number: u64, rip: u64, core: &Core) {
        for sent in self.outputs.new_requests(&core.ram, &self.followed) {
            let value = sent.cells.iter().map(|cell| self.followed.value_of(*cell)).collect();
            let key = (Kind::Sent, number, rip, sent.cells.clone(), Vec::new());
            self.keep(
                key,
                Found {
                    kind: Kind::Sent,
                    step: number,
                    processor: core.processor,
                    rip,
                    is_user: core.cpl == 3,
                    code: "notification of the device".to_string(),
                    from: sent.cells,
                    value,
                    to: Vec::new(),
                    linear_from: None,
                    linear_to: None,
                    device: Some(sent.text),
                    times: 1,
                },
            );
        }
    }
}

impl Found {
    /// Whether a copy continues this one with the next bytes, as an iteration of a loop does.
    fn goes_on_with(&self, step: &Step, kind: Kind, from: &[Cell], to: &[Cell]) -> bool {
        let is_next = |all: &[Cell], more: &[Cell]| match (all.last(), more.first()) {
            (Some(Cell::Memory(last)), Some(Cell::Memory(next))) => last.checked_add(1) == Some(*next),
            _ => false,
        };
        kind == Kind::Copied
            && self.kind == kind
            && (self.processor, self.rip) == (step.processor, step.rip)
            && is_next(&self.from, from)
            && is_next(&self.to, to)
    }
}

/// Whether a use is only a copy to a register or to the stack, which compilers make all the time.
fn is_hidden(step: &Step, used: &Use) -> bool {
    let is_register = |cell: &Cell| matches!(cell, Cell::Register { .. });
    let is_stack = step.executed.as_ref().is_some_and(|(instruction, _)| {
        let base = instruction.memory_base().full_register();
        matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Pop) || base == Register::RSP
    });
    used.kind == Kind::Copied && (is_stack || used.to.iter().all(is_register))
}

/// The stack pointer, which a delivery changes.
pub const STACK_POINTER: Reg = Reg::General(4);

#[cfg(test)]
mod tests;
