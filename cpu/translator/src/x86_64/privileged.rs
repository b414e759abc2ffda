//! Privileged instructions that kernels use for entry code, locks and user memory.

use super::asm::{B4, B8, RAX, RDX, alu, cc};
use super::block::{
    BlockWriter, GS_BASE, INTERRUPTS_WAIT, KERNEL_GS_BASE, PRIVILEGED, SHADOW, SLOTS_POINTER, SYSTEM_FLAGS,
    slots_by_ac,
};

/// RFLAGS.IF and RFLAGS.AC.
const IF: i32 = 1 << 9;
const AC: i32 = 1 << 18;

impl BlockWriter<'_> {
    /// Exits to the interpreter if the code is not privileged. The interpreter does not always raise a fault,
    /// because IOPL too may allow CLI and STI. So each privileged instruction checks again.
    fn leave_if_not_privileged(&mut self) {
        self.asm.alu_imm(B4, alu::CMP, PRIVILEGED, 0);
        self.leave_if(cc::E);
    }

    /// CLI.
    pub fn forbid_interrupts(&mut self) {
        self.leave_if_not_privileged();
        self.asm.alu_imm(B4, alu::AND, SYSTEM_FLAGS, !IF);
        self.clobbered();
    }

    /// STI. Exits to the interpreter if an interrupt is pending: the interpreter delivers it after the next
    /// instruction.
    pub fn allow_interrupts(&mut self) {
        self.leave_if_not_privileged();
        self.asm.test_imm(B4, SYSTEM_FLAGS, IF);
        let done = self.asm.jcc(cc::NE);
        self.asm.alu_imm(B4, alu::CMP, INTERRUPTS_WAIT, 0);
        self.leave_if(cc::NE);
        self.asm.alu_imm(B4, alu::OR, SYSTEM_FLAGS, IF);
        self.asm.store_imm(B4, SHADOW, 1);
        self.asm.land(done);
        self.clobbered();
    }

    /// Ends the shadow after the instruction that follows STI.
    pub fn end_shadow(&mut self) {
        self.asm.store_imm(B4, SHADOW, 0);
    }

    /// STAC and CLAC. STAC and CLAC select the TLB slots, because they change which user pages may be
    /// accessed.
    pub fn set_access_control(&mut self, allowed: bool) {
        self.leave_if_not_privileged();
        if allowed {
            self.asm.alu_imm(B4, alu::OR, SYSTEM_FLAGS, AC);
        } else {
            self.asm.alu_imm(B4, alu::AND, SYSTEM_FLAGS, !AC);
        }
        self.asm.load(B8, RAX, slots_by_ac(allowed));
        self.asm.store(B8, SLOTS_POINTER, RAX);
        self.clobbered();
    }

    /// SWAPGS.
    pub fn swap_gs(&mut self) {
        self.leave_if_not_privileged();
        self.asm.load(B8, RAX, GS_BASE);
        self.asm.load(B8, RDX, KERNEL_GS_BASE);
        self.asm.store(B8, GS_BASE, RDX);
        self.asm.store(B8, KERNEL_GS_BASE, RAX);
        self.clobbered();
    }
}
