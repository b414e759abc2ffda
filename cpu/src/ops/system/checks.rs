//! Checks shared by several system instructions.

use cpu_model::registers::cr4;

use crate::core::Core;
use crate::exception::Res;

impl Core {
    /// Raises #UD in real mode and in virtual-8086 mode.
    pub(super) fn require_protected(&mut self) -> Res<()> {
        if self.protected_mode() { Ok(()) } else { Err(self.ud()) }
    }

    /// Raises #GP(0) if CR4.UMIP is set and the privilege level is not 0. Instructions that read descriptor-table
    /// registers or similar registers make this check.
    pub(super) fn check_umip(&mut self) -> Res<()> {
        let forbidden = self.state.cr4 & cr4::UMIP != 0 && self.cpl != 0;
        if forbidden { Err(self.gp(0)) } else { Ok(()) }
    }
}
