//! Handles the guest's exits.

use cpu::{Bus, CpuState, Stop};
use kvm_bindings::kvm_regs;

use super::{KvmCpu, Run};
use crate::error::Error;
use crate::state::nothing_under_way;
use crate::vcpu::Exit;
use engine_contract::End;

/// Length of a HLT instruction.
const HALT_BYTES: u64 = 1;

impl KvmCpu {
    /// Handles an exit. `Some` ends the run loop.
    pub(super) fn handle(&mut self, run: &mut Run<'_>, exit: Exit) -> Result<Option<End>, Error> {
        self.between_instructions = !matches!(
            exit,
            Exit::Port { .. }
                | Exit::MmioRead { .. }
                | Exit::MmioWrite { .. }
                | Exit::ReadMsr { .. }
                | Exit::WriteMsr { .. }
        );
        let steps = self.soft.steps();
        match exit {
            Exit::Port { out, port, size_bytes, count } => {
                for number in 0..count {
                    if out {
                        let value = self.vcpu.port_value(number, size_bytes);
                        run.bus.port_write(steps, port, size_bytes, value);
                    } else {
                        let value = run.bus.port_read(steps, port, size_bytes);
                        self.vcpu.answer_port(number, size_bytes, value);
                    }
                }
                self.left_guest(run)?;
            }
            Exit::MmioRead { gpa, length } => {
                let mut data = [0; 8];
                run.bus.mmio_read(steps, gpa, &mut data[..length]);
                self.vcpu.answer_mmio(&data[..length]);
                self.left_guest(run)?;
            }
            Exit::MmioWrite { gpa, data, length } => {
                run.bus.mmio_write(steps, gpa, &data[..length]);
                self.left_guest(run)?;
            }
            Exit::ReadMsr { index } => {
                let value = self.soft.read_msr(run.bus, index);
                self.vcpu.answer_msr(value);
            }
            Exit::WriteMsr { index, value } => {
                let done = self.soft.write_msr(run.bus, index, value);
                self.vcpu.answer_msr(done.map(|()| value));
                self.vcpu.set_apic_enabled(run.bus.apic_enabled());
            }
            Exit::Halt => self.halt(run)?,
            // Nothing is left to do: the run loop has passed CR8 to the machine, and delivers interrupts before the
            // next entry.
            Exit::TaskPriority | Exit::Window => {}
            Exit::Breakpoint => return self.breakpoint(run),
            Exit::Interrupted => self.interrupted(run)?,
            Exit::Shutdown => {
                let mut state = self.soft.state();
                state.shut_down = true;
                self.soft.set_registers(&state);
                return Ok(Some(End::Stop(Stop::Shutdown)));
            }
            Exit::NotEmulated => self.emulate(run)?,
            Exit::Stuck(why) => return Err(Error::Stuck { rip: self.vcpu.synced().regs.rip, why }),
        }
        Ok(None)
    }

    /// Tells the machine of a CR8 that the guest wrote. KVM itself reports only a lowered CR8.
    pub(super) fn pass_task_priority(&mut self, bus: &mut dyn Bus) {
        let cr8 = self.vcpu.cr8();
        if cr8 != bus.cr8() {
            bus.set_cr8(self.soft.steps(), cr8);
        }
    }

    /// Notes an exit that the machine saw: a run that waits for an exit may end here. The machine does not see most
    /// accesses to model-specific registers, because the software CPU handles them.
    fn left_guest(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        run.exited = true;
        if run.stopping.take().is_some() {
            self.vcpu.set_breakpoints(&[])?;
        }
        Ok(())
    }

    /// Handles a HLT, or an RDTSC that was rewritten to HLT.
    fn halt(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        self.left_guest(run)?;
        let steps = self.soft.steps();
        let state = self.look()?;
        let mut following = [0];
        let core = self.soft.core();
        let known = core.is_64bit() && core.peek(state.rip, &mut following) == 1;
        match run.bus.halt(steps, known.then_some(following[0])) {
            Some(raw) => {
                let time = raw.wrapping_add(state.msrs.tsc_offset);
                self.vcpu.change(|regs: &mut kvm_regs| {
                    (regs.rax, regs.rdx) = (time & 0xffff_ffff, time >> 32);
                    regs.rip = state.rip.wrapping_add(following.len() as u64);
                });
            }
            // If something is pending, such as the single-step trap of HLT itself, the guest does not halt.
            None => self.halted = nothing_under_way(&self.vcpu.synced().events),
        }
        log::trace!("HLT at {:#x}", state.rip.wrapping_sub(HALT_BYTES));
        Ok(())
    }

    /// Copies the registers of the last exit to the software CPU, for reads of guest memory.
    pub(super) fn look(&mut self) -> Result<CpuState, Error> {
        let mut state = self.soft.state();
        self.vcpu.take_synced(&mut state);
        self.soft.set_registers(&state);
        Ok(state)
    }

    /// Emulates one instruction that KVM cannot.
    fn emulate(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        let rip = self.vcpu.synced().regs.rip;
        log::debug!("KVM cannot emulate the instruction at {rip:#x}; the software CPU does it");
        self.take_state()?;
        let state = self.soft.state();
        self.soft.set_state(&state);
        let steps = self.soft.steps();
        self.soft.run(run.bus, steps + 1, steps);
        self.statistics.emulated += 1;
        self.ahead = true;
        self.load(run.bus)
    }
}
