//! The shared parts of x87 instructions: checks, stack, exceptions, pointers.
//!
//! An instruction first computes an [`Outcome`] without changing anything. Then the instruction makes its
//! store, if it has a store. Finally the instruction commits the outcome. So a memory fault leaves the
//! unit unchanged.

use cpu_model::registers::cr0;
use softfloat::x87::{C1, F80, X87Env};

use crate::bus::Bus;
use crate::core::Core;
use crate::exception;
use crate::exception::{Break, Res};
use crate::op::Op;
use crate::state::FpuState;

/// Bit IE: invalid operation.
pub(super) const IE: u16 = 1;
/// Bit SF, stack fault: distinguishes stack overflow and underflow from other invalid operations.
pub(super) const SF: u16 = 1 << 6;
/// Bit ES: error summary.
pub(super) const ES: u16 = 1 << 7;
/// Bit B: busy, a copy of ES.
pub(super) const BUSY: u16 = 1 << 15;
/// The six exception flags, and their masks in the control word.
pub(super) const EXCEPTIONS: u16 = 0x3f;
const TOP: u16 = 7 << 11;
/// A control word that masks all exceptions.
pub(super) const ALL_MASKED: u16 = 0x37f;

/// The effects of an instruction, before any of these effects is written to the x87 state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome<T> {
    /// The result; `None` if an unmasked exception prevents one.
    pub value: Option<T>,
    /// Exception flags and SF, to be or-ed into the status word.
    flags: u16,
    /// The new value of the condition code C1.
    c1: bool,
}

impl<T> Outcome<T> {
    /// A result without any exception.
    pub fn exact(value: T) -> Outcome<T> {
        Outcome { value: Some(value), flags: 0, c1: false }
    }

    /// Runs a computation. The outcome has the computation's result and exceptions.
    pub fn compute(fpu: &FpuState, computation: impl FnOnce(&mut X87Env) -> Option<T>) -> Outcome<T> {
        let mut env = X87Env::new(fpu.control);
        let value = computation(&mut env);
        Outcome { value, flags: env.raised() as u16, c1: env.c1() }
    }

    /// The outcome of a stack underflow: an operand's register is empty. `response` is the result if #IS is masked.
    #[cold]
    pub fn underflow(fpu: &FpuState, response: T) -> Outcome<T> {
        Outcome { value: fpu.masks_invalid().then_some(response), flags: IE | SF, c1: false }
    }

    /// The outcome of a stack overflow: the register for the push is not empty.
    #[cold]
    pub fn overflow(fpu: &FpuState, response: T) -> Outcome<T> {
        Outcome { c1: true, ..Outcome::underflow(fpu, response) }
    }
}

impl FpuState {
    /// Number of the physical register that is ST(i).
    #[inline(always)]
    pub(super) fn physical(&self, st: u8) -> usize {
        (self.top() + usize::from(st)) & 7
    }

    /// Whether ST(i) is tagged empty.
    #[inline(always)]
    pub(super) fn is_empty(&self, st: u8) -> bool {
        self.valid >> self.physical(st) & 1 == 0
    }

    /// Contents of ST(i), empty or not.
    #[inline(always)]
    pub(super) fn st(&self, st: u8) -> F80 {
        let register = self.physical(st);
        F80 { mantissa: self.mantissas[register], sign_exponent: self.sign_exponents[register] }
    }

    /// Contents of ST(i); `None` if the register is empty.
    #[inline(always)]
    pub(super) fn operand(&self, st: u8) -> Option<F80> {
        (!self.is_empty(st)).then(|| self.st(st))
    }

    /// The contents of two registers; `None` if one of the registers is empty.
    #[inline(always)]
    pub(super) fn operands(&self, a: u8, b: u8) -> Option<(F80, F80)> {
        Some((self.operand(a)?, self.operand(b)?))
    }

    /// Writes ST(i) and tags it as not empty.
    #[inline(always)]
    pub(super) fn set_st(&mut self, st: u8, value: F80) {
        let register = self.physical(st);
        self.mantissas[register] = value.mantissa;
        self.sign_exponents[register] = value.sign_exponent;
        self.valid |= 1 << register;
    }

    /// Tags ST(i) as empty.
    #[inline(always)]
    pub(super) fn free(&mut self, st: u8) {
        self.valid &= !(1 << self.physical(st));
    }

    /// Adds to TOP.
    #[inline(always)]
    pub(super) fn rotate(&mut self, by: u16) {
        self.status = self.status & !TOP | self.status.wrapping_add(by << 11) & TOP;
    }

    /// Pushes a value.
    #[inline(always)]
    pub(super) fn push(&mut self, value: F80) {
        self.rotate(7);
        self.set_st(0, value);
    }

    /// Pops `count` registers.
    #[inline(always)]
    pub(super) fn pop(&mut self, count: u8) {
        for _ in 0..count {
            self.free(0);
            self.rotate(1);
        }
    }

    fn masks_invalid(&self) -> bool {
        self.control & IE != 0
    }

    /// Replaces some of the status word's bits.
    #[inline(always)]
    pub(super) fn set_codes(&mut self, mask: u16, codes: u16) {
        self.status = self.status & !mask | codes;
    }

    /// Sets an outcome's exceptions and C1 in the status word, and returns the outcome's value.
    #[inline(always)]
    pub(super) fn commit<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        self.set_codes(C1, outcome.flags | if outcome.c1 { C1 } else { 0 });
        if outcome.flags & !self.control & EXCEPTIONS != 0 {
            self.status |= ES | BUSY;
        }
        outcome.value
    }

    /// Does the same as [`FpuState::commit`] for instructions that change C1 only on a stack underflow.
    #[inline(always)]
    pub(super) fn commit_keeping_c1<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        let kept = if outcome.flags & SF == 0 { self.status & C1 } else { 0 };
        let value = self.commit(outcome);
        self.set_codes(0, kept);
        value
    }

    /// Commits an outcome. If the outcome has a value, writes the value to ST(i), then pops `pops` registers.
    #[inline(always)]
    pub(super) fn commit_to(&mut self, st: u8, outcome: Outcome<F80>, pops: u8) {
        if let Some(value) = self.commit(outcome) {
            self.set_st(st, value);
            self.pop(pops);
        }
    }

    /// Commits an outcome and pushes its value, if it has one.
    #[inline(always)]
    pub(super) fn commit_push(&mut self, outcome: Outcome<F80>) {
        if let Some(value) = self.commit(outcome) {
            self.push(value);
        }
    }
}

impl Core {
    /// The checks of a waiting instruction: #NM, then #MF for an earlier instruction's exception.
    #[inline(always)]
    pub(super) fn x87_waiting(&mut self) -> Res<()> {
        self.x87_available()?;
        if self.state.fpu.exception_pending() { self.x87_report() } else { Ok(()) }
    }

    /// The check of an instruction that does not wait: #NM.
    #[inline(always)]
    pub(super) fn x87_available(&mut self) -> Res<()> {
        if self.state.cr0 & (cr0::EM | cr0::TS) == 0 { Ok(()) } else { Err(self.x87_unavailable()) }
    }

    #[cold]
    #[inline(never)]
    fn x87_unavailable(&mut self) -> Break {
        self.fault(exception::NM)
    }

    /// Raises #MF. If CR0.NE is clear, raises nothing (see the parent module).
    #[cold]
    #[inline(never)]
    pub(super) fn x87_report(&mut self) -> Res<()> {
        if self.state.cr0 & cr0::NE == 0 {
            return Ok(());
        }
        Err(self.fault(exception::MF))
    }

    /// The value of FIP for the running instruction: the address of its first byte, which may be a prefix.
    #[inline(always)]
    fn x87_instruction_pointer(&self, op: &Op) -> u64 {
        self.next_rip(self.block_rip(), op.start)
    }

    #[inline(always)]
    fn x87_enter_pointer(&mut self, op: &Op) {
        self.state.fpu.instruction_pointer = self.x87_instruction_pointer(op);
        self.state.fpu.instruction_selector = 0;
    }

    /// If the instruction left an unmasked exception pending, sets FOP and, for a memory operand, FDP.
    #[inline(always)]
    fn x87_leave<const MEMORY: bool>(&mut self, op: &Op) {
        if !self.state.fpu.exception_pending() {
            return;
        }
        self.state.fpu.opcode = op.imm as u16 & 0x7ff;
        if MEMORY {
            self.state.fpu.data_pointer = self.effective_address(op);
            self.state.fpu.data_selector = 0;
        }
    }

    /// Executes a non-control instruction without memory operand.
    #[inline(always)]
    pub(super) fn x87_run(&mut self, op: &Op, body: impl FnOnce(&mut Core)) -> Res<()> {
        self.x87_waiting()?;
        self.x87_enter_pointer(op);
        body(self);
        self.x87_leave::<false>(op);
        Ok(())
    }

    /// Executes a non-control instruction that reads memory with `load` and uses the value in `body`.
    #[inline(always)]
    pub(super) fn x87_run_load<T>(
        &mut self,
        bus: &mut dyn Bus,
        op: &Op,
        size_bytes: u64,
        load: impl FnOnce(&mut Core, &mut dyn Bus, u64) -> Res<T>,
        body: impl FnOnce(&mut FpuState, T),
    ) -> Res<()> {
        self.x87_waiting()?;
        let address = self.linear(op, size_bytes)?;
        let value = load(self, bus, address)?;
        self.x87_enter_pointer(op);
        body(&mut self.state.fpu, value);
        self.x87_leave::<true>(op);
        Ok(())
    }

    /// Executes a non-control instruction that uses `store` to write the result of `compute`. Without a result there is
    /// no store and no pop.
    #[inline(always)]
    pub(super) fn x87_run_store<T: Copy>(
        &mut self,
        bus: &mut dyn Bus,
        op: &Op,
        size_bytes: u64,
        compute: impl FnOnce(&FpuState) -> Outcome<T>,
        store: impl FnOnce(&mut Core, &mut dyn Bus, u64, T) -> Res<()>,
    ) -> Res<()> {
        self.x87_waiting()?;
        let address = self.linear_write(op, size_bytes)?;
        let outcome = compute(&self.state.fpu);
        if let Some(value) = outcome.value {
            store(self, bus, address, value)?;
        }
        self.x87_enter_pointer(op);
        let fpu = &mut self.state.fpu;
        if fpu.commit(outcome).is_some() {
            fpu.pop(op.aux);
        }
        self.x87_leave::<true>(op);
        Ok(())
    }
}
