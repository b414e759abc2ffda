//! IRET in all modes (SDM vol. 2, IRET; vol. 3, 6.12-6.14).

use super::task::TaskSwitch;
use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags;
use crate::state::{SegReg, Segment};

/// The flags that IRET and POPF change at every privilege level.
pub(crate) const ALWAYS: u64 = flags::ARITHMETIC | flags::TF | flags::DF | flags::NT;

/// The values that IRET pops in every mode.
struct Frame {
    rip: u64,
    cs: u16,
    rflags: u64,
}

impl Core {
    /// Executes IRET with an operand size of 2, 4 or 8 bytes; sets RIP.
    pub(crate) fn interrupt_return(&mut self, bus: &mut dyn Bus, size: u64, next_rip: u64) -> Res<()> {
        // Even an IRET that faults unblocks NMIs (SDM vol. 3, 6.7.1).
        if self.state.nmi_blocked {
            self.state.nmi_blocked = false;
            self.attention |= attention::SIGNALS;
        }
        if !self.protected_mode() {
            return self.iret_real(bus, size);
        }
        if self.rflags & flags::NT != 0 {
            if self.long_mode() {
                return Err(self.gp(0));
            }
            let link = self.tss_field(bus, 0, 2)? as u16;
            return self.task_switch(bus, link, TaskSwitch::Return, next_rip, None);
        }
        let frame = self.iret_frame(bus, size)?;
        if frame.rflags & flags::VM != 0 && size == 4 && self.cpl == 0 && !self.long_mode() {
            return self.iret_to_v86(bus, frame);
        }
        self.iret_protected(bus, size, frame)
    }

    fn stack_word(&mut self, bus: &mut dyn Bus, size: u64, number: u64) -> Res<u64> {
        let sp = self.frame.regs[4].wrapping_add(number * size) & self.stack_mask;
        self.load_stack(bus, sp, size)
    }

    fn iret_frame(&mut self, bus: &mut dyn Bus, size: u64) -> Res<Frame> {
        Ok(Frame {
            rip: self.stack_word(bus, size, 0)?,
            cs: self.stack_word(bus, size, 1)? as u16,
            rflags: self.stack_word(bus, size, 2)?,
        })
    }

    /// The value of RFLAGS after an IRET. Which popped flags are used depends on the current privilege level.
    fn returned_flags(&self, size: u64, popped: u64) -> u64 {
        let mut mask = ALWAYS;
        if size > 2 {
            mask |= flags::RF | flags::AC | flags::ID;
        }
        if u64::from(self.cpl) <= (self.rflags & flags::IOPL) >> 12 {
            mask |= flags::IF;
        }
        if self.cpl == 0 {
            mask |= flags::IOPL;
            if size > 2 {
                mask |= flags::VIF | flags::VIP;
            }
        }
        self.rflags_bits() & !mask | popped & mask
    }

    fn iret_real(&mut self, bus: &mut dyn Bus, size: u64) -> Res<()> {
        let v86 = self.rflags & flags::VM != 0;
        if v86 && self.rflags & flags::IOPL != flags::IOPL {
            return Err(self.gp(0));
        }
        let frame = self.iret_frame(bus, size)?;
        let code = self.real_segment(SegReg::Cs, frame.cs);
        if frame.rip > u64::from(code.limit) {
            return Err(self.gp(0));
        }
        let mut mask = ALWAYS | flags::IF;
        if size > 2 {
            mask |= flags::RF | flags::AC | flags::ID;
        }
        if !v86 {
            mask |= flags::IOPL;
        }
        let rflags = self.rflags_bits() & !mask | frame.rflags & mask;
        self.set_stack_pointer(self.frame.regs[4].wrapping_add(3 * size));
        self.set_segment(SegReg::Cs, code);
        self.rip = frame.rip;
        self.set_rflags(rflags);
        Ok(())
    }

    fn iret_to_v86(&mut self, bus: &mut dyn Bus, frame: Frame) -> Res<()> {
        let mut words = [0; 6];
        for (word, number) in words.iter_mut().zip(3..) {
            *word = self.stack_word(bus, 4, number)?;
        }
        let [esp, ss, es, ds, fs, gs] = words;
        if frame.rip > 0xffff {
            return Err(self.gp(0));
        }
        self.set_rflags(frame.rflags);
        let selectors = [
            (SegReg::Cs, frame.cs),
            (SegReg::Ss, ss as u16),
            (SegReg::Es, es as u16),
            (SegReg::Ds, ds as u16),
            (SegReg::Fs, fs as u16),
            (SegReg::Gs, gs as u16),
        ];
        for (register, selector) in selectors {
            let base = u64::from(selector) << 4;
            let attributes = if register == SegReg::Cs { 0xfb } else { 0xf3 };
            self.set_segment(register, Segment { selector, base, limit: 0xffff, attributes });
        }
        self.frame.regs[4] = esp;
        self.rip = frame.rip;
        Ok(())
    }

    fn iret_protected(&mut self, bus: &mut dyn Bus, size: u64, frame: Frame) -> Res<()> {
        let code = self.returned_code_segment(bus, frame.cs)?;
        self.check_target(&code, frame.rip)?;
        let rflags = self.returned_flags(size, frame.rflags);
        let cpl = (frame.cs & 3) as u8;
        // 64-bit mode always pops SS:RSP. Other modes pop SS:RSP when they return to an outer level.
        if !self.is_64bit() && cpl == self.cpl {
            self.set_stack_pointer(self.frame.regs[4].wrapping_add(3 * size));
            self.set_segment(SegReg::Cs, code);
            self.rip = frame.rip;
        } else {
            let rsp = self.stack_word(bus, size, 3)?;
            let ss = self.stack_word(bus, size, 4)? as u16;
            let stack = self.returned_stack_segment(bus, ss, cpl, &code)?;
            self.return_outward(code, frame.rip, stack, rsp);
        }
        self.set_rflags(rflags);
        Ok(())
    }
}
