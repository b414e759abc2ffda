//! The new stack during a change of privilege or task, before SS and RSP are loaded.

use cpu_model::registers::cr4;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{Break, GP, Res, SS};
use crate::flags;
use crate::memory::segment_allows;
use crate::state::{SegReg, Segment};

/// A stack on which values are pushed before SS and RSP are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewStack {
    pub segment: Segment,
    pub sp: u64,
    /// Whether the stack is a 64-bit stack, without segment checks and wrap-around.
    flat: bool,
    /// Whether pushes are user-mode accesses.
    user: bool,
    /// Error code of a stack fault.
    fault_code: u32,
    /// Whether segment rights are checked (not in real or virtual-8086 mode).
    protected: bool,
}

impl NewStack {
    /// The current stack.
    pub fn current(core: &Core) -> NewStack {
        NewStack {
            segment: *core.segment(SegReg::Ss),
            sp: core.frame.regs[4],
            flat: core.is_64bit(),
            user: core.cpl == 3,
            fault_code: 0,
            protected: core.protected_mode(),
        }
    }

    /// A 64-bit stack that belongs to privilege level `cpl`.
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

    /// Pushes a value of 2, 4 or 8 bytes. Changes only memory and this value, but not SS and RSP.
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

    /// Calls `access`, whose memory accesses are made with user or supervisor privilege, regardless of the CPL.
    pub(crate) fn as_user<T>(&mut self, user: bool, access: impl FnOnce(&mut Core) -> T) -> T {
        let smap = self.state.cr4 & cr4::SMAP != 0 && self.rflags & flags::AC == 0;
        self.mmu.set_index(user, smap, user && self.alignment_matters());
        let result = access(self);
        self.update_mmu_index();
        result
    }
}
