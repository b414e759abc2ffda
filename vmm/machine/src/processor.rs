//! One processor of a machine, and the guest as this processor sees it.

use cpu::{CodeSize, CpuState, SegReg};
use devices::lapic::StartupV1;
use guest_symbols::GuestView;
use guest_symbols::orc::Registers;

use crate::run::Machine;
use crate::unit::Unit;

/// CR0.PE and RFLAGS.VM: protected mode, and virtual-8086 mode in it (SDM vol. 3, 2.5 and 2.3).
const PROTECTED_MODE: u64 = 1;
const VIRTUAL_8086: u64 = 1 << 17;
/// EFER.LMA: long mode is active (SDM vol. 3, 2.2.1).
const LONG_MODE: u64 = 1 << 10;

/// A view of one processor while the machine does not run. As a [`GuestView`], this view reads memory through its
/// own page tables, and sees its own per-CPU variables.
pub struct Processor<'a, U: Unit> {
    machine: &'a Machine<U>,
    number: usize,
    state: CpuState,
}

impl<U: Unit> Machine<U> {
    /// The number of processors.
    pub fn processors(&self) -> usize {
        self.cpu().processors()
    }

    /// A processor by its number; `None` if the machine has no such processor.
    pub fn processor_at(&self, number: usize) -> Option<Processor<'_, U>> {
        let exists = number < self.processors();
        exists.then(|| Processor { machine: self, number, state: self.cpu().state_of(number) })
    }

    /// All processors, by number.
    pub fn all_processors(&self) -> impl Iterator<Item = Processor<'_, U>> {
        (0..self.processors()).filter_map(|number| self.processor_at(number))
    }

    /// Calls `look` with the machine. During the call, the processor that executed the last step has the seat. If
    /// this step ended the processor's turn, the next processor has the seat before and after the call.
    pub fn look_as_stepped<T>(&mut self, look: impl FnOnce(&Machine<U>) -> T) -> T {
        let stepped = self.cpu().stepped_by();
        if stepped == self.cpu().seat() {
            return look(self);
        }
        let seat = self.engine.lend_seat(stepped);
        let seen = look(self);
        self.engine.lend_seat(seat);
        seen
    }

    /// The processor that executes the machine's next instruction.
    pub fn running_processor(&self) -> Processor<'_, U> {
        Processor { machine: self, number: self.cpu().seat(), state: self.cpu().state() }
    }

    /// The registers needed to unwind the kernel's stack of the processor that executes the next instruction.
    pub fn unwind_registers(&self) -> Registers {
        unwind_registers(&self.cpu().state())
    }
}

impl<U: Unit> Processor<'_, U> {
    /// The processor's number, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The processor's registers.
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// Whether this processor executes the machine's next instruction.
    pub fn has_seat(&self) -> bool {
        self.number == self.machine.cpu().seat()
    }

    /// Whether the guest has started this processor.
    pub fn is_started(&self) -> bool {
        self.machine.bus.platform.startup(self.number) == StartupV1::Done
    }

    /// Whether the processor waits for an interrupt.
    pub fn is_halted(&self) -> bool {
        self.state.halted
    }

    /// Whether the processor executes user code, and not the kernel.
    pub fn is_user(&self) -> bool {
        is_user(&self.state)
    }

    /// The mode in which the processor decodes instructions.
    pub fn code_size(&self) -> CodeSize {
        let cs = self.state.segments[SegReg::Cs as usize];
        match (self.state.msrs.efer & LONG_MODE != 0 && cs.long(), cs.big()) {
            (true, _) => CodeSize::Bits64,
            (false, true) => CodeSize::Bits32,
            (false, false) => CodeSize::Bits16,
        }
    }

    /// The linear address of the processor's next instruction.
    pub fn linear_rip(&self) -> u64 {
        let base = self.state.segments[SegReg::Cs as usize].base;
        self.state.rip.wrapping_add(if self.code_size() == CodeSize::Bits64 { 0 } else { base })
    }

    /// Reads memory at a virtual address through this processor's page tables. Returns the number of bytes that could
    /// be read, from the first byte on.
    pub fn peek(&self, address: u64, to: &mut [u8]) -> usize {
        self.read(self.state.cr3, address, to)
    }

    /// The physical address to which this processor's page tables map a virtual address. `None` if the address is not
    /// mapped.
    pub fn peek_address(&self, address: u64) -> Option<u64> {
        self.physical(self.state.cr3, address)
    }

    /// The machine of this processor.
    pub fn machine(&self) -> &Machine<U> {
        self.machine
    }

    /// The registers needed to unwind this processor's kernel stack.
    pub fn unwind_registers(&self) -> Registers {
        unwind_registers(&self.state)
    }
}

impl<U: Unit> GuestView for Processor<'_, U> {
    fn cr3(&self) -> u64 {
        self.state.cr3
    }

    fn processor(&self) -> u64 {
        self.number as u64
    }

    fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
        self.machine.cpu().core().peek_as(&self.state, cr3, address, to)
    }

    fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
        self.machine.cpu().core().peek_address_as(&self.state, cr3, address)
    }
}

fn unwind_registers(state: &CpuState) -> Registers {
    let [_, _, rdx, _, rsp, rbp, _, rdi, _, _, r10, _, _, r13, ..] = state.gpr;
    Registers { rip: state.rip, rsp, rbp, rdx, rdi, r10, r13, is_user: is_user(state) }
}

fn is_user(state: &CpuState) -> bool {
    let is_ring_3 = state.rflags & VIRTUAL_8086 != 0 || state.segments[SegReg::Ss as usize].dpl() == 3;
    state.cr0 & PROTECTED_MODE != 0 && is_ring_3
}
