//! Privileged and system instructions.

use crate::decode::Insn;
use crate::op::Op;

/// Lowers this family's instructions.
pub(crate) fn lower(_insn: &Insn<'_>) -> Option<Op> {
    None
}

impl crate::core::Core {
    /// Raises #GP(0) unless the port may be used at the present privilege.
    pub fn check_io(&mut self, _bus: &mut dyn crate::bus::Bus, _port: u16, _size: u8) -> crate::op::Res<()> {
        Ok(())
    }
}
