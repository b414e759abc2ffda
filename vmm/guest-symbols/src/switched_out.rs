//! The registers of a thread that does not run, which the kernel saved on its stack when it switched to another thread.
//!
//! Follows Linux 6.1 to 7.2: `__switch_to_asm` in `arch/x86/entry/entry_64.S`. The function pushes the
//! `struct inactive_task_frame` of `arch/x86/include/asm/switch_to.h`, and keeps the stack pointer in
//! `task_struct::thread`. All other registers are caller-saved.

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{Missing, types};
use super::symbols::Symbols;
use super::tasks::field;

/// The registers that a call preserves, with the values that the thread will have when it runs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct SavedRegisters {
    pub rip: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

/// The layout of the saved registers. The layout is constant while the kernel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFrame {
    /// The stack pointer's offset in `task_struct`.
    stack_pointer: u64,
    size: u64,
    /// Offsets of RIP, RBP, RBX and R12 to R15 in the frame.
    offsets: [u64; 7],
}

impl SwitchFrame {
    /// The layout in the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<SwitchFrame, Missing> {
        KernelView::first_with(guest, |view| SwitchFrame::find(view, symbols))
    }

    pub(super) fn find(memory: KernelView<'_>, symbols: &Symbols) -> Result<SwitchFrame, Missing> {
        let bytes = types(memory, &|name| symbols.address_of(name))?;
        let btf = Btf::parse(&bytes).ok_or(Missing::Types)?;
        let thread = field(&btf, "task_struct", "thread")?;
        const FRAME: &str = "inactive_task_frame";
        let no_frame = Missing::Field { structure: FRAME, field: "ret_addr" };
        let size = btf.structure(FRAME).and_then(|number| btf.size(number)).ok_or(no_frame)?;
        let mut offsets = [0; 7];
        for (offset, name) in offsets.iter_mut().zip(["ret_addr", "bp", "bx", "r12", "r13", "r14", "r15"]) {
            *offset = field(&btf, FRAME, name)?;
        }
        Ok(SwitchFrame { stack_pointer: thread + field(&btf, "thread_struct", "sp")?, size, offsets })
    }

    /// The registers of the thread with its `task_struct` at an address. The thread must not be the running
    /// thread.
    pub fn registers(&self, guest: &dyn GuestView, task: u64) -> Option<SavedRegisters> {
        KernelView::all(guest).find_map(|view| self.registers_in(view, task))
    }

    pub(super) fn registers_in(&self, memory: KernelView<'_>, task: u64) -> Option<SavedRegisters> {
        let frame = memory.number::<8>(task.wrapping_add(self.stack_pointer))?;
        let mut saved = [0; 7];
        for (value, offset) in saved.iter_mut().zip(self.offsets) {
            *value = memory.number::<8>(frame.wrapping_add(offset))?;
        }
        let [rip, rbp, rbx, r12, r13, r14, r15] = saved;
        Some(SavedRegisters { rip, rsp: frame.wrapping_add(self.size), rbp, rbx, r12, r13, r14, r15 })
    }
}
