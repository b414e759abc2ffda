//! The observers of a search forward.
//!
//! While only memory holds the value, [`Waiting`] lets the guest run at full speed to the next access. While registers
//! hold the value, [`Closely`] looks at every step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cpu::{At, Core, CpuState, Happening, Observer, Places, Wants};
use iced_x86::{Instruction, InstructionInfoFactory};
use rustc_hash::FxHashMap;

use super::followed::{Registers, register_bit, touched_registers};
use super::trace::{STACK_POINTER, Trace};
use crate::rules::Access;
use crate::seen::{Delivery, MOST_INSTRUCTION_BYTES, Step, decode, linear_rip, whole_steps};

/// The number of steps without a use of the value after which the search waits for the next access again. A change of
/// the observer costs as much as some thousand steps.
const QUIET_STEPS: u64 = 20_000;

/// Waits for the first access to memory that holds the value.
pub struct Waiting {
    pub trace: Trace,
    /// The number of steps before the step of the access.
    pub touched_at: Option<u64>,
}

impl Observer for Waiting {
    fn wants(&self) -> Wants {
        let held = self.trace.followed.ranges();
        let stores = held.iter().chain(self.trace.outputs.registers()).cloned().collect();
        Wants { loads: Places::In(held), stores: Places::In(stores), ..Wants::default() }
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        match happening {
            Happening::Store { physical, .. } if self.trace.outputs.is_register(*physical) => {
                self.trace.notified(at.step, at.rip, core);
            }
            _ => self.touched_at = Some(self.touched_at.unwrap_or(at.step)),
        }
        if self.touched_at.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Looks at every step.
pub struct Closely {
    pub trace: Trace,
    /// Set from outside to end the observation.
    stop: Arc<AtomicBool>,
    open: Option<Open>,
    /// The loads and stores of the open step.
    accesses: Vec<Happening>,
    decoded: FxHashMap<(u64, u32), Decoded>,
    factory: InstructionInfoFactory,
}

/// A decoded instruction, its code, and the registers that it may read or write.
#[derive(Clone, Copy)]
struct Decoded {
    code: [u8; MOST_INSTRUCTION_BYTES],
    instruction: Instruction,
    registers: Registers,
}

/// A step whose happenings are not all known yet.
struct Open {
    number: u64,
    step: Step,
    /// The instruction, and the processor's registers before it.
    fetched: Option<Fetched>,
    /// Whether the step touches memory that holds the value.
    is_touched: bool,
}

struct Fetched {
    decoded: Decoded,
    gpr: [u64; 16],
    /// The XMM registers, if they hold bytes of the value.
    xmm: Option<[u128; 16]>,
    rflags: u64,
}

impl Closely {
    pub fn from(trace: Trace, number: u64, stop: Arc<AtomicBool>) -> Closely {
        let trace = trace.begin_at(number);
        Closely {
            trace,
            stop,
            open: None,
            accesses: Vec::new(),
            decoded: FxHashMap::default(),
            factory: InstructionInfoFactory::new(),
        }
    }

    /// Ends the observation. `state` is the state of a processor at the end.
    pub fn ended(mut self, state: &CpuState) -> Trace {
        self.finish(|| state.clone());
        self.trace
    }

    fn decoded(&mut self, core: &Core) -> Decoded {
        let mut code = [0; MOST_INSTRUCTION_BYTES];
        let known = core.peek(linear_rip(core), &mut code);
        let key = (core.rip, core.code_size.bits());
        if let Some(decoded) = self.decoded.get(&key).filter(|decoded| decoded.code == code) {
            return *decoded;
        }
        let instruction = decode(key.1, core.rip, &code[..known]);
        let registers = touched_registers(&mut self.factory, &instruction);
        let decoded = Decoded { code, instruction, registers };
        self.decoded.insert(key, decoded);
        decoded
    }

    /// The step with this number. Finishes the step before it.
    fn open(&mut self, at: At, core: &Core) -> &mut Open {
        if self.open.as_ref().is_some_and(|open| open.number != at.step) {
            self.finish(|| core.save_state());
        }
        self.open.get_or_insert_with(|| Open {
            number: at.step,
            step: Step { processor: core.processor, rip: at.rip, ..Step::default() },
            fetched: None,
            is_touched: false,
        })
    }

    /// Follows the value through the open step. `state` gives the parts of a processor's state that the rules need
    /// and that instructions seldom change.
    fn finish(&mut self, state: impl FnOnce() -> CpuState) {
        let Some(Open { number, mut step, fetched, is_touched }) = self.open.take() else { return };
        let registers = fetched.as_ref().map_or(0, |fetched| fetched.decoded.registers)
            | if step.delivery.is_some() { register_bit(STACK_POINTER) } else { 0 };
        if is_touched || registers & self.trace.registers_of(step.processor) != 0 {
            for access in &self.accesses {
                match access {
                    Happening::Load { address, physical, value } => {
                        step.loads.push(Access::of(*address, *physical, value));
                    }
                    Happening::Store { address, physical, after, .. } => {
                        step.stores.push(Access::of(*address, *physical, after));
                    }
                    _ => {}
                }
            }
            step.executed = fetched.map(|fetched| {
                let mut before = state();
                before.gpr = fetched.gpr;
                before.xmm = fetched.xmm.unwrap_or(before.xmm);
                before.rflags = fetched.rflags;
                (fetched.decoded.instruction, Box::new(before))
            });
            self.trace.pass(number, &step);
        }
        self.accesses.clear();
    }

    fn is_done(&self, number: u64) -> bool {
        let is_quiet = !self.trace.followed.has_registers() && self.trace.quiet_steps(number) > QUIET_STEPS;
        is_quiet || self.trace.is_full || self.trace.followed.is_empty() || self.stop.load(Ordering::Relaxed)
    }
}

impl Observer for Closely {
    fn wants(&self) -> Wants {
        whole_steps()
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        match happening {
            Happening::Fetch => {
                self.open(at, core);
                let decoded = self.decoded(core);
                let holds_xmm = self.trace.registers_of(core.processor) > Registers::from(u16::MAX);
                let mut gpr = [0; 16];
                gpr.copy_from_slice(&core.frame.regs[..16]);
                let xmm = holds_xmm.then_some(core.frame.xmm);
                let open = self.open(at, core);
                open.fetched = Some(Fetched { decoded, gpr, xmm, rflags: core.rflags_bits() });
                open.step.is_user = core.cpl == 3;
            }
            Happening::Load { physical, value, .. } => {
                let is_touched = self.trace.followed.touches(*physical, value.len());
                self.open(at, core).is_touched |= is_touched;
                self.accesses.push(*happening);
            }
            Happening::Store { physical, after, .. } => {
                let is_touched = self.trace.followed.touches(*physical, after.len());
                self.open(at, core).is_touched |= is_touched;
                self.accesses.push(*happening);
                if self.trace.outputs.is_register(*physical) {
                    self.trace.notified(at.step, at.rip, core);
                }
            }
            Happening::Delivery { vector, error_code } => {
                self.open(at, core).step.delivery = Some(Delivery::on(core, *vector, *error_code));
            }
            _ => {}
        }
        if self.is_done(at.step) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
