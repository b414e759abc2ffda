//! Segmentation: descriptors, segment-register loads and their checks (SDM vol. 3, chapter 5 and 3.4-3.5).
//! Far transfers, returns and task switches are in the submodules.
//!
//! Everything here reads and checks first and changes registers last, so that a fault leaves them alone.
//! Memory may have changed by then (accessed bits), as on hardware.

mod far;
mod iret;
mod task;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{GP, NP, SS};
use crate::flags;
use crate::memory::{canonical, segment_allows};
use crate::op::{Break, Res};
use crate::state::{SegReg, Segment};

pub(crate) use far::FarTransfer;
pub(crate) use task::TaskSwitch;

/// System descriptor types (SDM vol. 3, table 3-2).
pub(crate) mod system_type {
    pub const TSS16_AVAILABLE: u8 = 1;
    pub const LDT: u8 = 2;
    pub const TSS16_BUSY: u8 = 3;
    pub const CALL_GATE16: u8 = 4;
    pub const TASK_GATE: u8 = 5;
    pub const INTERRUPT_GATE16: u8 = 6;
    pub const TRAP_GATE16: u8 = 7;
    pub const TSS32_AVAILABLE: u8 = 9;
    pub const TSS32_BUSY: u8 = 11;
    pub const CALL_GATE32: u8 = 12;
    pub const INTERRUPT_GATE32: u8 = 14;
    pub const TRAP_GATE32: u8 = 15;
}

/// An 8-byte descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor(pub u64);

impl Descriptor {
    /// The type nibble.
    pub fn kind(self) -> u8 {
        (self.0 >> 40 & 0xf) as u8
    }
    /// A system segment or gate (S clear).
    pub fn is_system(self) -> bool {
        self.0 & 1 << 44 == 0
    }
    pub fn is_code(self) -> bool {
        !self.is_system() && self.kind() & 8 != 0
    }
    pub fn is_conforming(self) -> bool {
        self.is_code() && self.kind() & 4 != 0
    }
    pub fn is_writable_data(self) -> bool {
        !self.is_system() && self.kind() & 0b1010 == 0b0010
    }
    /// Data, or code that may be read.
    pub fn is_readable(self) -> bool {
        !self.is_system() && (self.kind() & 8 == 0 || self.kind() & 2 != 0)
    }
    pub fn dpl(self) -> u8 {
        (self.0 >> 45 & 3) as u8
    }
    pub fn present(self) -> bool {
        self.0 & 1 << 47 != 0
    }
    /// The L bit.
    pub fn long(self) -> bool {
        self.0 & 1 << 53 != 0
    }
    /// The D/B bit.
    pub fn big(self) -> bool {
        self.0 & 1 << 54 != 0
    }
    pub fn base(self) -> u64 {
        self.0 >> 16 & 0xff_ffff | self.0 >> 32 & 0xff00_0000
    }
    /// Limit in bytes.
    pub fn limit(self) -> u32 {
        let raw = (self.0 & 0xffff | self.0 >> 32 & 0xf_0000) as u32;
        if self.0 & 1 << 55 != 0 { raw << 12 | 0xfff } else { raw }
    }
    /// The hidden part that a load of this descriptor gives.
    pub fn segment(self, selector: u16) -> Segment {
        let attributes = (self.0 >> 40) as u16 & 0xf0ff;
        Segment { selector, base: self.base(), limit: self.limit(), attributes }
    }
    /// Selector of a gate.
    pub fn gate_selector(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// Offset of a gate, without the upper half of 64-bit gates.
    pub fn gate_offset(self) -> u64 {
        self.0 & 0xffff | self.0 >> 32 & 0xffff_0000
    }
}

/// A descriptor and the linear address it was read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub descriptor: Descriptor,
    pub address: u64,
}

/// A stack that values are pushed on before SS and RSP are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewStack {
    pub segment: Segment,
    pub sp: u64,
    /// 64-bit: no segment checks, no wrap-around.
    flat: bool,
    /// User-mode accesses.
    user: bool,
    /// Error code of a stack fault.
    fault_code: u32,
    /// Segment rights apply (not real mode, not virtual-8086 mode).
    protected: bool,
}

impl NewStack {
    /// The stack in use.
    pub fn current(core: &Core) -> NewStack {
        NewStack {
            segment: *core.segment(SegReg::Ss),
            sp: core.regs[4],
            flat: core.is_64bit(),
            user: core.cpl == 3,
            fault_code: 0,
            protected: core.protected_mode(),
        }
    }

    /// A 64-bit stack; `cpl` is the privilege level that it belongs to.
    pub fn flat(segment: Segment, rsp: u64, cpl: u8) -> NewStack {
        NewStack { segment, sp: rsp, flat: true, user: cpl == 3, fault_code: 0, protected: true }
    }

    /// A 16- or 32-bit stack of a more privileged level.
    pub fn inner(segment: Segment, esp: u32, cpl: u8) -> NewStack {
        let fault_code = u32::from(segment.selector & !3);
        NewStack { segment, sp: u64::from(esp), flat: false, user: cpl == 3, fault_code, protected: true }
    }

    fn mask(&self) -> u64 {
        match (self.flat, self.segment.big()) {
            (true, _) => u64::MAX,
            (_, true) => 0xffff_ffff,
            _ => 0xffff,
        }
    }

    /// Pushes a value of 2, 4 or 8 bytes. Only memory and this description change.
    pub fn push(&mut self, core: &mut Core, bus: &mut dyn Bus, size_bytes: u64, value: u64) -> Res<()> {
        let mask = self.mask();
        let sp = self.sp.wrapping_sub(size_bytes) & mask;
        let address = if self.flat {
            sp
        } else {
            if !segment_allows(&self.segment, sp, size_bytes, true, self.protected) {
                return Err(core.fault_with_code(SS, self.fault_code));
            }
            self.segment.base.wrapping_add(sp) & 0xffff_ffff
        };
        let code = self.fault_code;
        core.as_user(self.user, |core| core.store_sized(bus, address, size_bytes, value))
            .map_err(|reason| core.stack_fault_instead_of_gp(reason, code))?;
        self.sp = if mask == 0xffff { self.sp & !mask | sp } else { sp };
        Ok(())
    }
}

impl Core {
    fn stack_fault_instead_of_gp(&mut self, reason: Break, code: u32) -> Break {
        if self.exception.vector == GP {
            return self.fault_with_code(SS, code);
        }
        reason
    }

    /// Runs accesses at user or supervisor level, whatever the CPL.
    pub(crate) fn as_user<T>(&mut self, user: bool, access: impl FnOnce(&mut Core) -> T) -> T {
        let smap = self.state.cr4 & crate::core::cr4::SMAP != 0 && self.rflags & flags::AC == 0;
        self.mmu.set_index(user, smap);
        let result = access(self);
        self.update_mmu_index();
        result
    }

    /// An exception whose error code is a selector.
    #[cold]
    pub(crate) fn selector_fault(&mut self, vector: u8, selector: u16) -> Break {
        self.fault_with_code(vector, u32::from(selector & !3))
    }

    /// A linear address of a system table entry: 32 bits wide outside long mode.
    pub(crate) fn table_address(&self, base: u64, offset: u64) -> u64 {
        let address = base.wrapping_add(offset);
        if self.long_mode() { address } else { address & 0xffff_ffff }
    }

    /// Reads the descriptor of a selector; `None` when it lies outside its table. `size_bytes` is 8, or 16
    /// for system descriptors of long mode.
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

    /// Reads the descriptor of a selector; `vector(selector)` when it lies outside its table.
    pub(crate) fn descriptor(&mut self, bus: &mut dyn Bus, selector: u16, vector: u8) -> Res<Located> {
        match self.find_descriptor(bus, selector, 8)? {
            Some(located) => Ok(located),
            None => Err(self.selector_fault(vector, selector)),
        }
    }

    /// The upper half of a 16-byte system descriptor of long mode: base or offset bits 32-63. The type
    /// field in it must be zero.
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

    /// Sets the accessed bit of a code or data descriptor, in memory and in the copy.
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

    /// Loads a data or stack segment register as MOV and POP do.
    pub(crate) fn load_segment(&mut self, bus: &mut dyn Bus, register: SegReg, selector: u16) -> Res<()> {
        let segment = self.checked_segment(bus, register, selector)?;
        self.set_segment(register, segment);
        Ok(())
    }

    /// The hidden part that a load of a data or stack segment register would give, with all checks.
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

    /// A stack segment for a privilege level: RPL and DPL must equal it. `vector` is raised when the
    /// descriptor does not fit; one that is not present raises #SS.
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

    /// A segment load of real and virtual-8086 mode. In real mode only selector and base change: limit and
    /// rights stay what they were ("unreal" mode depends on it).
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

    /// Returning to a less privileged level takes away data segments that it may not use. A null selector
    /// is left alone: its base may have been set by an MSR.
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

/// What a null selector loads: nothing usable. SS keeps a privilege level in 64-bit mode.
pub(crate) fn null_segment(selector: u16, dpl: u8) -> Segment {
    Segment { selector, base: 0, limit: 0, attributes: u16::from(dpl) << 5 }
}
