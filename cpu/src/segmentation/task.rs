//! Hardware task switches (SDM vol. 3, chapter 8).

use crate::bus::Bus;
use crate::core::Core;
use crate::op::Res;

/// What causes a task switch: it decides about busy bits, NT and the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSwitch {
    Jump,
    Call,
    /// An interrupt or exception through a task gate.
    Interrupt,
    /// IRET with NT set.
    Return,
}

impl Core {
    /// Switches to the task of a TSS selector. `next_rip` is what the old task resumes at; an error code is
    /// pushed on the new task's stack.
    pub(crate) fn task_switch(
        &mut self,
        _bus: &mut dyn Bus,
        _selector: u16,
        _reason: TaskSwitch,
        _next_rip: u64,
        _error_code: Option<u32>,
    ) -> Res<()> {
        Err(self.gp(0))
    }
}
