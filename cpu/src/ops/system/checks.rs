//! Checks that several system instructions begin with.

use crate::core::Core;
use crate::exception::Res;
use crate::registers::cr4;

impl Core {
    /// #UD outside protected mode (virtual-8086 mode counts as outside).
    pub(super) fn require_protected(&mut self) -> Res<()> {
        if self.protected_mode() { Ok(()) } else { Err(self.ud()) }
    }

    /// With CR4.UMIP, descriptor-table registers and the like may not be read outside level 0.
    pub(super) fn check_umip(&mut self) -> Res<()> {
        let forbidden = self.state.cr4 & cr4::UMIP != 0 && self.cpl != 0;
        if forbidden { Err(self.gp(0)) } else { Ok(()) }
    }
}
