//! Delivery of exceptions and interrupts (SDM vol. 3, chapter 6). Real mode uses the interrupt vector table. Protected
//! and long mode use gates, with their privilege and stack switches.
//!
//! A delivery writes its frame first and loads registers last. If a delivery faults half-way, memory below
//! the stack pointer may have changed, but registers have not.

use cpu_model::PushedRf;
use cpu_model::registers::cr0;

use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{self, Delivery, Exception, Res};
use crate::flags;
use crate::memory::canonical;
use crate::segmentation::descriptor::{Descriptor, Located, null_segment, system_type};
use crate::segmentation::stack::NewStack;
use crate::segmentation::task::TaskSwitch;
use crate::state::{SegReg, Segment};

/// The CPU shuts down because of a triple fault.
pub(crate) struct Shutdown;

/// The error-code bit IDT: the index in the error code is a vector.
const IDT: u32 = 2;
/// The error-code bit EXT: an event outside the program caused the fault.
const EXT: u32 = 1;

/// An event that is being delivered through the descriptor table.
#[derive(Clone, Copy, Debug)]
struct Event {
    vector: u8,
    error_code: Option<u32>,
    /// Whether INT n, INT3 or INTO caused the event. For such an event only, the gate's DPL is checked against the
    /// CPL. Faults during its delivery have error codes without the bit `EXT`.
    software: bool,
    /// The RFLAGS image to push.
    rflags: u64,
}

/// The class of an exception. The classes of two exceptions decide whether the two become a double fault (SDM vol.
/// 3, table 6-4).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

fn class(vector: u8) -> Class {
    match vector {
        exception::DE | exception::TS | exception::NP | exception::SS | exception::GP => Class::Contributory,
        exception::PF => Class::PageFault,
        exception::DF => Class::DoubleFault,
        _ => Class::Benign,
    }
}

impl Core {
    /// Delivers an exception or interrupt through the IDT. If the delivery faults, the CPU delivers that fault or a
    /// double fault in place of the event, or shuts down.
    pub(crate) fn deliver(&mut self, bus: &mut dyn Bus, delivery: Delivery) -> Result<(), Shutdown> {
        let (mut event, mut severity) = match delivery {
            Delivery::Exception(raised) => (self.exception_event(raised), class(raised.vector)),
            Delivery::Interrupt(vector) => (self.external_event(vector), Class::Benign),
            Delivery::Nmi => (self.external_event(exception::NMI), Class::Benign),
        };
        while self.deliver_event(bus, event).is_err() {
            let mut second = self.exception;
            if let Some(address) = second.cr2 {
                self.state.cr2 = address;
            }
            second.error_code = second.error_code.map(|code| mark_external(second.vector, code));
            let second_class = class(second.vector);
            let combine = match severity {
                Class::Benign => false,
                Class::Contributory => second_class == Class::Contributory,
                Class::PageFault => second_class != Class::Benign,
                Class::DoubleFault if second_class == Class::Benign => false,
                Class::DoubleFault => return Err(Shutdown),
            };
            if combine {
                second = Exception { vector: exception::DF, error_code: Some(0), ..Exception::default() };
            }
            severity = class(second.vector);
            event = self.exception_event(second);
        }
        Ok(())
    }

    /// Executes INT n, INT3, INTO or INT1. RIP must already be the return address. `checked` says whether the gate's
    /// DPL is checked against the CPL, which INT1 does not do.
    pub(crate) fn software_interrupt(&mut self, bus: &mut dyn Bus, vector: u8, checked: bool) -> Res<()> {
        let rflags = self.rflags_bits();
        self.deliver_event(bus, Event { vector, error_code: None, software: checked, rflags })
    }

    /// The event for a raised exception. A fault pushes RF set, so that returning to the instruction does not hit its
    /// breakpoint. #DB pushes RF unchanged (SDM vol. 3, 18.3.1.1), as do aborts.
    fn exception_event(&mut self, raised: Exception) -> Event {
        if let Some(address) = raised.cr2 {
            self.state.cr2 = address;
        }
        let fault = !matches!(raised.vector, exception::DB | exception::DF);
        let rflags = self.rflags_bits() | if fault { flags::RF } else { 0 };
        Event { vector: raised.vector, error_code: raised.error_code, software: false, rflags }
    }

    fn external_event(&self, vector: u8) -> Event {
        let rflags = match self.quirks.interrupts_push_rf {
            PushedRf::Kept => self.rflags_bits(),
            PushedRf::Cleared => self.rflags_bits() & !flags::RF,
            PushedRf::Set => self.rflags_bits() | flags::RF,
        };
        Event { vector, error_code: None, software: false, rflags }
    }

    fn deliver_event(&mut self, bus: &mut dyn Bus, event: Event) -> Res<()> {
        if self.state.cr0 & cr0::PE == 0 {
            self.deliver_real(bus, event)?;
        } else if self.long_mode() {
            self.deliver_long(bus, event)?;
        } else {
            self.deliver_protected(bus, event)?;
        }
        if event.vector == exception::DB {
            // Debug exceptions clear GD and BTF (SDM vol. 3, 18.2.4 and 18.4.1).
            self.state.dr7 &= !(1 << 13);
            self.state.msrs.debugctl &= !2;
        }
        self.state.interrupt_shadow = false;
        self.state.mov_ss_shadow = false;
        self.attention &= !attention::SHADOW;
        self.entered_vector(event.vector, event.error_code);
        Ok(())
    }

    /// Delivers an event in real mode: the table has a far pointer for each vector, and no error code is pushed
    /// (SDM vol. 3, 21.1.4).
    fn deliver_real(&mut self, bus: &mut dyn Bus, event: Event) -> Res<()> {
        let offset = u64::from(event.vector) * 4;
        if offset + 3 > u64::from(self.state.idtr.limit) {
            return Err(self.idt_fault(exception::GP, event));
        }
        let address = self.table_address(self.state.idtr.base, offset);
        let pointer = self.load_system(bus, address, 4)?;
        let mut stack = NewStack::current(self);
        let cs = u64::from(self.segment(SegReg::Cs).selector);
        for value in [event.rflags, cs, self.rip] {
            stack.push(self, bus, 2, value & 0xffff)?;
        }
        let code = self.real_segment(SegReg::Cs, (pointer >> 16) as u16);
        self.set_stack_pointer(stack.sp);
        self.set_segment(SegReg::Cs, code);
        self.rip = pointer & 0xffff;
        self.set_rflags(self.rflags_bits() & !(flags::IF | flags::TF | flags::RF | flags::AC));
        Ok(())
    }

    fn idt_fault(&mut self, vector: u8, event: Event) -> crate::exception::Break {
        self.fault_with_code(vector, u32::from(event.vector) << 3 | IDT)
    }

    /// Reads a gate and makes the checks that all modes share.
    fn gate(&mut self, bus: &mut dyn Bus, event: Event, size_bytes: u64) -> Res<Located> {
        let offset = u64::from(event.vector) * size_bytes;
        if offset + size_bytes - 1 > u64::from(self.state.idtr.limit) {
            return Err(self.idt_fault(exception::GP, event));
        }
        let address = self.table_address(self.state.idtr.base, offset);
        let gate = Descriptor(self.load_system(bus, address, 8)?);
        let known = gate.is_system()
            && match gate.kind() {
                system_type::INTERRUPT_GATE32 | system_type::TRAP_GATE32 => true,
                system_type::TASK_GATE | system_type::INTERRUPT_GATE16 | system_type::TRAP_GATE16 => {
                    !self.long_mode()
                }
                _ => false,
            };
        if !known || (event.software && gate.dpl() < self.cpl) {
            return Err(self.idt_fault(exception::GP, event));
        }
        if !gate.present() {
            return Err(self.idt_fault(exception::NP, event));
        }
        Ok(Located { descriptor: gate, address })
    }

    /// The handler's code segment; its DPL decides the new privilege level.
    fn handler_segment(&mut self, bus: &mut dyn Bus, selector: u16) -> Res<(Segment, u8)> {
        if selector & !3 == 0 {
            return Err(self.gp(0));
        }
        let mut located = self.descriptor(bus, selector, exception::GP)?;
        let code = located.descriptor;
        let long_ok = !self.long_mode() || (code.long() && !code.big());
        if !code.is_code() || code.dpl() > self.cpl || !long_ok {
            return Err(self.selector_fault(exception::GP, selector));
        }
        if !code.present() {
            return Err(self.selector_fault(exception::NP, selector));
        }
        let cpl = if code.is_conforming() { self.cpl } else { code.dpl() };
        self.mark_accessed(bus, &mut located)?;
        Ok((located.descriptor.segment(selector & !3 | u16::from(cpl)), cpl))
    }

    /// Delivers an event in long mode. Gates have 16 bytes, pushed values have 8 bytes, SS:RSP is always pushed,
    /// and a gate may use the interrupt stack table.
    fn deliver_long(&mut self, bus: &mut dyn Bus, event: Event) -> Res<()> {
        let located = self.gate(bus, event, 16)?;
        let gate = located.descriptor;
        let upper = self.load_system(bus, located.address.wrapping_add(8), 8)?;
        let rip = gate.gate_offset() | upper << 32;
        let (code, cpl) = self.handler_segment(bus, gate.gate_selector())?;
        let old_ss = *self.segment(SegReg::Ss);
        let ist = gate.0 >> 32 & 7;
        let new_ss = if cpl == self.cpl { old_ss } else { null_segment(u16::from(cpl), cpl) };
        let rsp = if ist != 0 {
            self.tss_field(bus, 28 + 8 * ist, 8)?
        } else if cpl != self.cpl {
            self.tss_field(bus, 4 + 8 * u64::from(cpl), 8)?
        } else {
            self.frame.regs[4]
        };
        let mut stack = NewStack::flat(new_ss, rsp & !0xf, cpl);
        let cs = u64::from(self.segment(SegReg::Cs).selector);
        let frame = [u64::from(old_ss.selector), self.frame.regs[4], event.rflags, cs, self.rip];
        for value in frame.into_iter().chain(event.error_code.map(u64::from)) {
            stack.push(self, bus, 8, value)?;
        }
        if !canonical(rip) {
            return Err(self.gp(0));
        }
        if cpl != self.cpl {
            self.set_segment(SegReg::Ss, new_ss);
        }
        self.set_segment(SegReg::Cs, code);
        self.frame.regs[4] = stack.sp;
        self.rip = rip;
        self.enter_handler(gate.kind());
        Ok(())
    }

    /// Delivers an event in protected or virtual-8086 mode.
    fn deliver_protected(&mut self, bus: &mut dyn Bus, event: Event) -> Res<()> {
        let gate = self.gate(bus, event, 8)?.descriptor;
        if gate.kind() == system_type::TASK_GATE {
            let selector = gate.gate_selector();
            return self.task_switch(bus, selector, TaskSwitch::Interrupt, self.rip, event.error_code);
        }
        let (code, cpl) = self.handler_segment(bus, gate.gate_selector())?;
        let v86 = self.rflags & flags::VM != 0;
        if v86 && cpl != 0 {
            return Err(self.selector_fault(exception::GP, gate.gate_selector()));
        }
        let size = if gate.kind() & 8 != 0 { 4 } else { 2 };
        let rip = gate.gate_offset() & if size == 4 { 0xffff_ffff } else { 0xffff };
        let inward = cpl != self.cpl;
        let mut stack = if inward { self.stack_of_level(bus, cpl)? } else { NewStack::current(self) };
        self.push_protected_frame(bus, &mut stack, event, size, inward)?;
        self.check_target(&code, rip)?;
        if v86 {
            for register in [SegReg::Es, SegReg::Ds, SegReg::Fs, SegReg::Gs] {
                self.set_segment(register, null_segment(0, 0));
            }
        }
        // Clear VM before the new CS and SS take effect.
        self.enter_handler(gate.kind());
        self.set_segment(SegReg::Ss, stack.segment);
        self.set_segment(SegReg::Cs, code);
        self.frame.regs[4] = stack.sp;
        self.rip = rip;
        Ok(())
    }

    fn push_protected_frame(
        &mut self,
        bus: &mut dyn Bus,
        stack: &mut NewStack,
        event: Event,
        size: u64,
        inward: bool,
    ) -> Res<()> {
        let selector = |register| u64::from(self.segment(register).selector);
        let mut words = Vec::with_capacity(10);
        if self.rflags & flags::VM != 0 {
            words.extend([SegReg::Gs, SegReg::Fs, SegReg::Ds, SegReg::Es].map(selector));
        }
        if inward {
            words.extend([selector(SegReg::Ss), self.frame.regs[4]]);
        }
        words.extend([event.rflags, selector(SegReg::Cs), self.rip]);
        words.extend(event.error_code.map(u64::from));
        for word in words {
            stack.push(self, bus, size, word)?;
        }
        Ok(())
    }

    /// Clears the RFLAGS bits that the delivery clears for a handler. Interrupt gates also clear IF.
    fn enter_handler(&mut self, gate_kind: u8) {
        let mut cleared = flags::TF | flags::NT | flags::RF | flags::VM;
        if gate_kind & 1 == 0 {
            cleared |= flags::IF;
        }
        self.set_rflags(self.rflags_bits() & !cleared);
    }
}

/// Sets the bit EXT in the error code of a fault, if error codes of this vector have the bit. The fault occurred
/// during the delivery of an event that no software interrupt caused.
fn mark_external(vector: u8, code: u32) -> u32 {
    match vector {
        exception::TS | exception::NP | exception::SS | exception::GP => code | EXT,
        _ => code,
    }
}
