//! Descriptor tables, and loads of segment registers with their checks (SDM vol. 3, chapter 5 and 3.4-3.5).

use super::descriptor::{Descriptor, Located, null_segment};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{Break, GP, NP, Res, SS};
use crate::flags;
use crate::memory::canonical;
use crate::state::{SegReg, Segment};

impl Core {
    /// Raises an exception whose error code is a selector.
    #[cold]
    pub(crate) fn selector_fault(&mut self, vector: u8, selector: u16) -> Break {
        self.fault_with_code(vector, u32::from(selector & !3))
    }

    /// Linear address of an entry of a system table. Outside long mode the address wraps at 32 bits.
    pub(crate) fn table_address(&self, base: u64, offset: u64) -> u64 {
        let address = base.wrapping_add(offset);
        if self.long_mode() { address } else { address & 0xffff_ffff }
    }

    /// Reads the descriptor of a selector; `None` if it is outside its table. `size_bytes` is 8, or 16 for system
    /// descriptors of long mode.
    pub(crate) fn find_descriptor(
        &mut self,
        bus: &mut dyn Bus,
        selector: u16,
        size_bytes: u64,
    ) -> Res<Option<Located>> {
        let (base, limit) = if selector & 4 == 0 {
            (self.state.gdtr.base, u64::from(self.state.gdtr.limit))
        } else if self.state.ldtr.present() {
            (self.state.ldtr.base, u64::from(self.state.ldtr.limit))
        } else {
            return Ok(None);
        };
        let offset = u64::from(selector & !7);
        if offset + size_bytes - 1 > limit {
            return Ok(None);
        }
        let address = self.table_address(base, offset);
        let descriptor = Descriptor(self.load_system(bus, address, 8)?);
        Ok(Some(Located { descriptor, address }))
    }

    /// Reads the descriptor of a selector. Raises `vector(selector)` if it is outside its table.
    pub(crate) fn descriptor(&mut self, bus: &mut dyn Bus, selector: u16, vector: u8) -> Res<Located> {
        match self.find_descriptor(bus, selector, 8)? {
            Some(located) => Ok(located),
            None => Err(self.selector_fault(vector, selector)),
        }
    }

    /// Reads the upper half of a 16-byte system descriptor of long mode, and returns bits 32-63 of the base or
    /// offset. Raises #GP if the type field of the upper half is not zero.
    pub(crate) fn upper_half(&mut self, bus: &mut dyn Bus, selector: u16, located: &Located) -> Res<u64> {
        if self.find_descriptor(bus, selector, 16)?.is_none() {
            return Err(self.selector_fault(GP, selector));
        }
        let address = located.address.wrapping_add(8);
        let upper = self.load_system(bus, address, 8)?;
        if upper >> 40 & 0x1f != 0 {
            return Err(self.selector_fault(GP, selector));
        }
        Ok(upper & 0xffff_ffff)
    }

    /// The base of a local descriptor table or TSS. In long mode the base has 64 bits. A base that
    /// is not canonical raises #GP(selector) (SDM vol. 3, 3.5.2 and 8.2.3; APM vol. 3, LLDT and
    /// LTR).
    pub(crate) fn system_segment_base(
        &mut self,
        bus: &mut dyn Bus,
        selector: u16,
        located: &Located,
    ) -> Res<u64> {
        let lower = located.descriptor.base();
        if !self.long_mode() {
            return Ok(lower);
        }
        let base = lower | self.upper_half(bus, selector, located)? << 32;
        if canonical(base) { Ok(base) } else { Err(self.selector_fault(GP, selector)) }
    }

    /// Sets the accessed bit of a code or data descriptor, in memory and in `located`.
    pub(crate) fn mark_accessed(&mut self, bus: &mut dyn Bus, located: &mut Located) -> Res<()> {
        self.or_type(bus, located, 1)
    }

    /// Sets the busy bit of a TSS descriptor.
    pub(crate) fn mark_busy(&mut self, bus: &mut dyn Bus, located: &mut Located) -> Res<()> {
        self.or_type(bus, located, 2)
    }

    fn or_type(&mut self, bus: &mut dyn Bus, located: &mut Located, bits: u64) -> Res<()> {
        let new = located.descriptor.0 | bits << 40;
        if new != located.descriptor.0 {
            let address = self.table_address(located.address, 5);
            self.store_system(bus, address, 1, new >> 40 & 0xff)?;
            located.descriptor = Descriptor(new);
        }
        Ok(())
    }

    /// Loads a data or stack segment register from a selector, for MOV, POP and similar instructions.
    pub(crate) fn load_segment(&mut self, bus: &mut dyn Bus, register: SegReg, selector: u16) -> Res<()> {
        let segment = self.checked_segment(bus, register, selector)?;
        self.set_segment(register, segment);
        Ok(())
    }

    /// Makes all checks for a load of a data or stack segment register, and returns the value to load.
    pub(crate) fn checked_segment(
        &mut self,
        bus: &mut dyn Bus,
        register: SegReg,
        selector: u16,
    ) -> Res<Segment> {
        if !self.protected_mode() {
            return Ok(self.real_segment(register, selector));
        }
        if register == SegReg::Ss {
            return self.checked_stack_segment(bus, selector);
        }
        if selector & !3 == 0 {
            return Ok(null_segment(selector, 0));
        }
        let mut located = self.descriptor(bus, selector, GP)?;
        let descriptor = located.descriptor;
        let rpl = (selector & 3) as u8;
        let too_private = !descriptor.is_conforming() && rpl.max(self.cpl) > descriptor.dpl();
        if !descriptor.is_readable() || too_private {
            return Err(self.selector_fault(GP, selector));
        }
        if !descriptor.present() {
            return Err(self.selector_fault(NP, selector));
        }
        self.mark_accessed(bus, &mut located)?;
        Ok(located.descriptor.segment(selector))
    }

    fn checked_stack_segment(&mut self, bus: &mut dyn Bus, selector: u16) -> Res<Segment> {
        let cpl = self.cpl;
        if selector & !3 == 0 {
            let allowed = self.is_64bit() && cpl < 3 && (selector & 3) as u8 == cpl;
            return if allowed { Ok(null_segment(selector, cpl)) } else { Err(self.gp(0)) };
        }
        self.stack_segment_for(bus, selector, cpl, GP)
    }

    /// The stack segment for a selector and a privilege level. RPL and DPL must equal this level. Raises `vector`
    /// if the descriptor does not fit, and #SS if it is not present.
    pub(crate) fn stack_segment_for(
        &mut self,
        bus: &mut dyn Bus,
        selector: u16,
        cpl: u8,
        vector: u8,
    ) -> Res<Segment> {
        let mut located = self.descriptor(bus, selector, vector)?;
        let descriptor = located.descriptor;
        if (selector & 3) as u8 != cpl || descriptor.dpl() != cpl || !descriptor.is_writable_data() {
            return Err(self.selector_fault(vector, selector));
        }
        if !descriptor.present() {
            return Err(self.selector_fault(SS, selector));
        }
        self.mark_accessed(bus, &mut located)?;
        Ok(located.descriptor.segment(selector))
    }

    /// The segment that a selector loads in real or virtual-8086 mode. In real mode only selector and base change.
    /// Limit and rights stay; "unreal" mode depends on this.
    pub(crate) fn real_segment(&self, register: SegReg, selector: u16) -> Segment {
        let base = u64::from(selector) << 4;
        if self.rflags & flags::VM != 0 {
            return Segment { selector, base, limit: 0xffff, attributes: 0xf3 };
        }
        Segment { selector, base, ..*self.segment(register) }
    }

    /// Checks the instruction pointer that a transfer to a code segment would load.
    pub(crate) fn check_target(&mut self, code: &Segment, rip: u64) -> Res<()> {
        let fits =
            if self.long_mode() && code.long() { canonical(rip) } else { rip <= u64::from(code.limit) };
        if fits { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Clears data segments that the new, less privileged level may not use. Segment registers with null selectors
    /// stay, because an MSR may have set their base.
    pub(crate) fn drop_private_segments(&mut self) {
        for register in [SegReg::Es, SegReg::Ds, SegReg::Fs, SegReg::Gs] {
            let segment = *self.segment(register);
            let conforming = segment.kind() & 0b1100 == 0b1100;
            if segment.present() && !conforming && segment.dpl() < self.cpl {
                self.set_segment(register, Segment { base: segment.base, ..null_segment(0, 0) });
            }
        }
    }
}
