//! Far JMP, CALL and RET (SDM vol. 2, and vol. 3, 5.8): direct, through call gates, to tasks.

use super::descriptor::{Descriptor, Located, null_segment, system_type};
use super::stack::NewStack;
use super::task::TaskSwitch;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{GP, NP, Res, TS};
use crate::state::{SegReg, Segment};

/// A far transfer: its target, its operand size, and whether it is a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarTransfer {
    pub selector: u16,
    pub offset: u64,
    /// Operand size in bytes: 2, 4 or 8.
    pub size_bytes: u64,
    pub call: bool,
    /// RIP of the instruction after the transfer. A call returns to this address, and after a task switch the old
    /// task resumes there.
    pub next_rip: u64,
}

impl Core {
    /// Executes a far JMP or CALL; sets RIP.
    pub(crate) fn far_transfer(&mut self, bus: &mut dyn Bus, to: FarTransfer) -> Res<()> {
        let offset = match to.size_bytes {
            2 => to.offset & 0xffff,
            4 => to.offset & 0xffff_ffff,
            _ => to.offset,
        };
        let to = FarTransfer { offset, ..to };
        if !self.protected_mode() {
            return self.far_real(bus, to);
        }
        if to.selector & !3 == 0 {
            return Err(self.gp(0));
        }
        let located = self.descriptor(bus, to.selector, GP)?;
        if located.descriptor.is_system() {
            self.far_system(bus, to, located)
        } else {
            self.far_direct(bus, to, located)
        }
    }

    fn far_real(&mut self, bus: &mut dyn Bus, to: FarTransfer) -> Res<()> {
        let code = self.real_segment(SegReg::Cs, to.selector);
        if to.offset > u64::from(code.limit) {
            return Err(self.gp(0));
        }
        let mut stack = NewStack::current(self);
        if to.call {
            self.push_return(bus, &mut stack, to.size_bytes, to.next_rip)?;
        }
        self.set_stack_pointer(stack.sp);
        self.set_segment(SegReg::Cs, code);
        self.rip = to.offset;
        Ok(())
    }

    fn push_return(&mut self, bus: &mut dyn Bus, stack: &mut NewStack, size: u64, rip: u64) -> Res<()> {
        let cs = u64::from(self.segment(SegReg::Cs).selector);
        stack.push(self, bus, size, cs)?;
        stack.push(self, bus, size, rip)
    }

    /// Executes a transfer to a code segment without a gate. The privilege level stays.
    fn far_direct(&mut self, bus: &mut dyn Bus, to: FarTransfer, mut located: Located) -> Res<()> {
        let descriptor = located.descriptor;
        let rpl = (to.selector & 3) as u8;
        let allowed = descriptor.is_code()
            && !(self.long_mode() && descriptor.long() && descriptor.big())
            && if descriptor.is_conforming() {
                descriptor.dpl() <= self.cpl
            } else {
                rpl <= self.cpl && descriptor.dpl() == self.cpl
            };
        if !allowed {
            return Err(self.selector_fault(GP, to.selector));
        }
        if !descriptor.present() {
            return Err(self.selector_fault(NP, to.selector));
        }
        let selector = to.selector & !3 | u16::from(self.cpl);
        let mut stack = NewStack::current(self);
        self.check_target(&descriptor.segment(selector), to.offset)?;
        if to.call {
            self.push_return(bus, &mut stack, to.size_bytes, to.next_rip)?;
        }
        self.mark_accessed(bus, &mut located)?;
        if to.call {
            self.set_stack_pointer(stack.sp);
        }
        self.set_segment(SegReg::Cs, located.descriptor.segment(selector));
        self.rip = to.offset;
        Ok(())
    }

    /// Executes a transfer through a gate or to a task.
    fn far_system(&mut self, bus: &mut dyn Bus, to: FarTransfer, located: Located) -> Res<()> {
        let gate = located.descriptor;
        let rpl = (to.selector & 3) as u8;
        let known = match gate.kind() {
            system_type::CALL_GATE32 => true,
            system_type::CALL_GATE16
            | system_type::TASK_GATE
            | system_type::TSS16_AVAILABLE
            | system_type::TSS32_AVAILABLE => !self.long_mode(),
            _ => false,
        };
        if !known || gate.dpl() < self.cpl.max(rpl) {
            return Err(self.selector_fault(GP, to.selector));
        }
        if !gate.present() {
            return Err(self.selector_fault(NP, to.selector));
        }
        let reason = if to.call { TaskSwitch::Call } else { TaskSwitch::Jump };
        match gate.kind() {
            system_type::TASK_GATE => self.task_switch(bus, gate.gate_selector(), reason, to.next_rip, None),
            system_type::TSS16_AVAILABLE | system_type::TSS32_AVAILABLE => {
                self.task_switch(bus, to.selector, reason, to.next_rip, None)
            }
            _ => self.through_call_gate(bus, to, located),
        }
    }

    fn through_call_gate(&mut self, bus: &mut dyn Bus, to: FarTransfer, located: Located) -> Res<()> {
        let gate = located.descriptor;
        let mut offset = gate.gate_offset();
        if self.long_mode() {
            offset |= self.upper_half(bus, to.selector, &located)? << 32;
        } else if gate.kind() == system_type::CALL_GATE16 {
            offset &= 0xffff;
        }
        let selector = gate.gate_selector();
        if selector & !3 == 0 {
            return Err(self.gp(0));
        }
        let mut target = self.descriptor(bus, selector, GP)?;
        let code = target.descriptor;
        let inward = to.call && !code.is_conforming() && code.dpl() < self.cpl;
        let allowed = code.is_code()
            && (inward || if code.is_conforming() { code.dpl() <= self.cpl } else { code.dpl() == self.cpl })
            && (!self.long_mode() || (code.long() && !code.big()));
        if !allowed {
            return Err(self.selector_fault(GP, selector));
        }
        if !code.present() {
            return Err(self.selector_fault(NP, selector));
        }
        let size = match (self.long_mode(), gate.kind()) {
            (true, _) => 8,
            (_, system_type::CALL_GATE16) => 2,
            _ => 4,
        };
        let cpl = if inward { code.dpl() } else { self.cpl };
        let new_cs = |descriptor: Descriptor| descriptor.segment(selector & !3 | u16::from(cpl));
        self.check_target(&new_cs(code), offset)?;
        let mut stack = NewStack::current(self);
        if self.long_mode() {
            stack = NewStack::flat(stack.segment, stack.sp, self.cpl);
        }
        if inward {
            let parameters = if size == 8 { 0 } else { (gate.0 >> 32 & 31) as u32 };
            stack = self.stack_of_level(bus, cpl)?;
            self.push_outer_stack(bus, &mut stack, size, parameters)?;
        }
        if to.call {
            self.push_return(bus, &mut stack, size, to.next_rip)?;
        }
        self.mark_accessed(bus, &mut target)?;
        if inward {
            self.set_segment(SegReg::Ss, stack.segment);
        }
        self.set_segment(SegReg::Cs, new_cs(target.descriptor));
        if inward {
            self.frame.regs[4] = stack.sp;
        } else {
            self.set_stack_pointer(stack.sp);
        }
        self.rip = offset;
        Ok(())
    }

    /// For a call gate, pushes the caller's SS:ESP on the new stack and copies parameters from the caller's stack.
    fn push_outer_stack(
        &mut self,
        bus: &mut dyn Bus,
        stack: &mut NewStack,
        size: u64,
        parameters: u32,
    ) -> Res<()> {
        let (old_ss, old_sp) = (self.segment(SegReg::Ss).selector, self.frame.regs[4]);
        stack.push(self, bus, size, u64::from(old_ss))?;
        stack.push(self, bus, size, old_sp)?;
        for n in (0..u64::from(parameters)).rev() {
            let sp = old_sp.wrapping_add(n * size) & self.stack_mask;
            let value = self.load_stack(bus, sp, size)?;
            stack.push(self, bus, size, value)?;
        }
        Ok(())
    }

    /// The stack pointer that the TSS has for a privilege level.
    pub(crate) fn stack_of_level(&mut self, bus: &mut dyn Bus, cpl: u8) -> Res<NewStack> {
        if self.long_mode() {
            let rsp = self.tss_field(bus, 4 + 8 * u64::from(cpl), 8)?;
            return Ok(NewStack::flat(null_segment(u16::from(cpl), cpl), rsp, cpl));
        }
        let wide = self.state.tr.kind() & 8 != 0;
        let (esp, ss) = if wide {
            let at = 4 + 8 * u64::from(cpl);
            // Check the limit for both fields at once, so that the fault does not depend on which field is read
            // first.
            self.check_tss_limit(at, 6)?;
            (self.tss_field(bus, at, 4)?, self.tss_field(bus, at + 4, 2)?)
        } else {
            let at = 2 + 4 * u64::from(cpl);
            self.check_tss_limit(at, 4)?;
            (self.tss_field(bus, at, 2)?, self.tss_field(bus, at + 2, 2)?)
        };
        if ss & !3 == 0 {
            return Err(self.fault_with_code(TS, 0));
        }
        let segment = self.stack_segment_for(bus, ss as u16, cpl, TS)?;
        Ok(NewStack::inner(segment, esp as u32, cpl))
    }

    fn check_tss_limit(&mut self, offset: u64, size_bytes: u64) -> Res<()> {
        if offset + size_bytes - 1 > u64::from(self.state.tr.limit) {
            let selector = self.state.tr.selector;
            return Err(self.selector_fault(TS, selector));
        }
        Ok(())
    }

    /// Reads a field of the current TSS. Raises #TS if the field is beyond the TSS's limit.
    pub(crate) fn tss_field(&mut self, bus: &mut dyn Bus, offset: u64, size_bytes: u64) -> Res<u64> {
        self.check_tss_limit(offset, size_bytes)?;
        let address = self.table_address(self.state.tr.base, offset);
        self.load_system(bus, address, size_bytes)
    }

    /// Executes a far return; sets RIP. After the return address, `release` bytes are removed from the stack.
    pub(crate) fn far_return(&mut self, bus: &mut dyn Bus, size: u64, release: u64) -> Res<()> {
        let sp = self.frame.regs[4];
        let rip = self.load_stack(bus, sp & self.stack_mask, size)?;
        let selector = self.load_stack(bus, sp.wrapping_add(size) & self.stack_mask, size)? as u16;
        let after = sp.wrapping_add(2 * size).wrapping_add(release);
        if !self.protected_mode() {
            let code = self.real_segment(SegReg::Cs, selector);
            if rip > u64::from(code.limit) {
                return Err(self.gp(0));
            }
            self.set_segment(SegReg::Cs, code);
            self.set_stack_pointer(after);
            self.rip = rip;
            return Ok(());
        }
        let code = self.returned_code_segment(bus, selector)?;
        self.check_target(&code, rip)?;
        let cpl = (selector & 3) as u8;
        if cpl == self.cpl {
            self.set_stack_pointer(after);
            self.set_segment(SegReg::Cs, code);
            self.rip = rip;
            return Ok(());
        }
        let outer_sp = self.load_stack(bus, after & self.stack_mask, size)?;
        let ss = self.load_stack(bus, after.wrapping_add(size) & self.stack_mask, size)? as u16;
        let stack = self.returned_stack_segment(bus, ss, cpl, &code)?;
        self.return_outward(code, rip, stack, outer_sp);
        self.set_stack_pointer(self.frame.regs[4].wrapping_add(release));
        Ok(())
    }

    /// The code segment that a far return or IRET loads. Raises #GP if the return would lead to a more privileged
    /// level.
    pub(super) fn returned_code_segment(&mut self, bus: &mut dyn Bus, selector: u16) -> Res<Segment> {
        if selector & !3 == 0 {
            return Err(self.gp(0));
        }
        let mut located = self.descriptor(bus, selector, GP)?;
        let descriptor = located.descriptor;
        let rpl = (selector & 3) as u8;
        let allowed = descriptor.is_code()
            && !(self.long_mode() && descriptor.long() && descriptor.big())
            && rpl >= self.cpl
            && if descriptor.is_conforming() { descriptor.dpl() <= rpl } else { descriptor.dpl() == rpl };
        if !allowed {
            return Err(self.selector_fault(GP, selector));
        }
        if !descriptor.present() {
            return Err(self.selector_fault(NP, selector));
        }
        self.mark_accessed(bus, &mut located)?;
        Ok(located.descriptor.segment(selector))
    }

    /// The stack segment that a return to level `cpl` loads. In 64-bit code, the selector may be null if the level
    /// is not 3.
    pub(super) fn returned_stack_segment(
        &mut self,
        bus: &mut dyn Bus,
        selector: u16,
        cpl: u8,
        code: &Segment,
    ) -> Res<Segment> {
        if selector & !3 == 0 {
            let allowed = self.long_mode() && code.long() && cpl != 3 && (selector & 3) as u8 == cpl;
            return if allowed { Ok(null_segment(selector, cpl)) } else { Err(self.gp(0)) };
        }
        self.stack_segment_for(bus, selector, cpl, GP)
    }

    /// Loads CS:RIP and SS:RSP for a return that may change the privilege level. For a 16-bit stack segment, only
    /// SP is loaded, and the upper part of the register stays. All processors do this.
    pub(super) fn return_outward(&mut self, code: Segment, rip: u64, stack: Segment, rsp: u64) {
        let old_cpl = self.cpl;
        self.set_segment(SegReg::Ss, stack);
        self.set_segment(SegReg::Cs, code);
        if !self.is_64bit() && !stack.big() {
            self.frame.regs[4] = self.frame.regs[4] & !0xffff | rsp & 0xffff;
        } else {
            self.frame.regs[4] = rsp;
        }
        self.rip = rip;
        if self.cpl != old_cpl {
            self.drop_private_segments();
        }
    }
}
