//! The bare vCPU: enters the guest, and returns exits as plain values.

use std::os::fd::AsRawFd;

use cpu::CpuState;
use kvm_bindings::{
    KVM_EXIT_IO_OUT, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, KVMIO, Msrs,
    kvm_guest_debug, kvm_interrupt, kvm_msr_entry, kvm_run, kvm_sync_regs,
};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};

use nix::errno::Errno;

use crate::error::{Error, failed};
use crate::state;

// KVM_INTERRUPT, for which kvm-ioctls has no call.
nix::ioctl_write_ptr!(ioctl_interrupt, KVMIO, 0x86, kvm_interrupt);

/// The number of hardware breakpoints that a caller may set: one fewer than the processor has, see [`Vcpu::set_debug`].
pub(crate) const MAX_BREAKPOINTS: usize = 3;
/// The number of addresses at which a debugger can stop a vCPU. The fourth debug register is reserved for the place
/// that a run leads to.
pub const MAX_STOPS: usize = 3;

/// Why the guest was left.
#[derive(Debug)]
pub(crate) enum Exit {
    /// Port access with `count` elements of `size_bytes`, one after the other.
    Port { out: bool, port: u16, size_bytes: u8, count: u32 },
    /// A read from an address outside RAM.
    MmioRead { gpa: u64, length: usize },
    /// A write to an address outside RAM.
    MmioWrite { gpa: u64, data: [u8; 8], length: usize },
    /// RDMSR.
    ReadMsr { index: u32 },
    /// WRMSR.
    WriteMsr { index: u32, value: u64 },
    /// HLT, completed.
    Halt,
    /// An interrupt can be delivered now.
    Window,
    /// A hardware breakpoint, or a completed step: [`Vcpu::debug_status`].
    Breakpoint,
    /// The guest lowered CR8.
    TaskPriority,
    /// A signal came, or an immediate exit was requested. No instruction is half done.
    Interrupted,
    /// Triple fault.
    Shutdown,
    /// KVM could not emulate the instruction at RIP, which has had no effect.
    NotEmulated,
    /// The vCPU cannot continue; the text says why.
    Stuck(String),
}

/// A vCPU.
pub(crate) struct Vcpu {
    fd: VcpuFd,
    /// Breakpoints for the first debug registers. The last register is for [`Vcpu::set_debug`].
    breakpoints: [Option<u64>; MAX_BREAKPOINTS],
    /// A debugger's stops, which use the debug registers that no breakpoint uses.
    stops: Vec<u64>,
    /// Whether CPUID shows an APIC.
    apic_enabled: bool,
}

impl Vcpu {
    pub(crate) fn new(mut fd: VcpuFd) -> Vcpu {
        for registers in [SyncReg::Register, SyncReg::SystemRegister, SyncReg::VcpuEvents] {
            fd.set_sync_valid_reg(registers);
        }
        Vcpu { fd, breakpoints: [None; MAX_BREAKPOINTS], stops: Vec::new(), apic_enabled: true }
    }

    /// Shows or hides an APIC in CPUID, from the next entry or [`Vcpu::load`] on. KVM does not change the copy of the
    /// bit in leaf 8000_0001h.
    pub(crate) fn set_apic_enabled(&mut self, enabled: bool) {
        if self.apic_enabled != enabled {
            self.apic_enabled = enabled;
            self.fd.sync_regs_mut().sregs.apic_base = state::apic_base(enabled);
            self.fd.set_sync_dirty_reg(SyncReg::SystemRegister);
        }
    }

    /// The page shared with KVM, for the kick's handler.
    pub(crate) fn shared(&mut self) -> *mut kvm_run {
        self.fd.get_kvm_run()
    }

    /// Registers at the last exit.
    pub(crate) fn synced(&self) -> kvm_sync_regs {
        self.fd.sync_regs()
    }

    /// Changes general registers before the next entry.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut kvm_bindings::kvm_regs)) {
        change(&mut self.fd.sync_regs_mut().regs);
        self.fd.set_sync_dirty_reg(SyncReg::Register);
    }

    /// Whether an interrupt can be delivered at the guest's place after the last exit.
    pub(crate) fn ready_for_interrupt(&mut self) -> bool {
        self.fd.get_kvm_run().ready_for_interrupt_injection != 0
    }

    /// The task priority at the last exit.
    pub(crate) fn cr8(&mut self) -> u64 {
        self.fd.get_kvm_run().cr8
    }

    /// Enters the guest. With `window`, returns as soon as an interrupt can be delivered.
    pub(crate) fn enter(&mut self, window: bool, cr8: u64) -> Exit {
        let run = self.fd.get_kvm_run();
        run.request_interrupt_window = u8::from(window);
        run.cr8 = cr8;
        let exit = self.enter_now();
        // A kick that came just before or after the guest ran must not stop the next entry.
        self.fd.set_kvm_immediate_exit(0);
        exit
    }

    /// Completes the current instruction without executing the next. Completing may cause further exits.
    pub(crate) fn complete_instruction(&mut self, cr8: u64) -> Exit {
        self.fd.set_kvm_immediate_exit(1);
        self.enter(false, cr8)
    }

    fn enter_now(&mut self) -> Exit {
        let exit = match self.fd.run() {
            Ok(exit) => exit,
            Err(error) if matches!(Errno::from_raw(error.errno()), Errno::EINTR | Errno::EAGAIN) => {
                return Exit::Interrupted;
            }
            Err(error) => return Exit::Stuck(std::io::Error::from_raw_os_error(error.errno()).to_string()),
        };
        match exit {
            VcpuExit::IoIn(..) | VcpuExit::IoOut(..) => self.port_exit(),
            VcpuExit::MmioRead(gpa, data) => Exit::MmioRead { gpa, length: data.len() },
            VcpuExit::MmioWrite(gpa, from) => {
                let mut data = [0; 8];
                data[..from.len()].copy_from_slice(from);
                Exit::MmioWrite { gpa, data, length: from.len() }
            }
            VcpuExit::X86Rdmsr(msr) => Exit::ReadMsr { index: msr.index },
            VcpuExit::X86Wrmsr(msr) => Exit::WriteMsr { index: msr.index, value: msr.data },
            VcpuExit::Hlt => Exit::Halt,
            VcpuExit::IrqWindowOpen => Exit::Window,
            VcpuExit::Debug(_) => Exit::Breakpoint,
            VcpuExit::SetTpr => Exit::TaskPriority,
            VcpuExit::Intr => Exit::Interrupted,
            VcpuExit::Shutdown => Exit::Shutdown,
            VcpuExit::InternalError => self.internal_error(),
            VcpuExit::FailEntry(reason, _) => {
                Exit::Stuck(format!("the processor refuses to enter the guest (reason {reason:#x})"))
            }
            other => Exit::Stuck(format!("an unexpected exit: {other:?}")),
        }
    }

    fn port_exit(&mut self) -> Exit {
        // SAFETY: KVM reported this kind of exit, so this field is in use.
        let io = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.io };
        let out = u32::from(io.direction) == KVM_EXIT_IO_OUT;
        Exit::Port { out, port: io.port, size_bytes: io.size, count: io.count }
    }

    fn internal_error(&mut self) -> Exit {
        // SAFETY: KVM reported an internal error, so this field is in use.
        let internal = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal };
        match internal.suberror {
            kvm_bindings::KVM_INTERNAL_ERROR_EMULATION => Exit::NotEmulated,
            kind => {
                Exit::Stuck(format!("an internal error of KVM (kind {kind}, {:x?})", &internal.data[..4]))
            }
        }
    }

    /// The bytes of all elements of the current port exit.
    fn port_data(&mut self) -> &mut [u8] {
        let run = self.fd.get_kvm_run();
        // SAFETY: called only for port exits, so this field is in use.
        let io = unsafe { run.__bindgen_anon_1.io };
        let start = std::ptr::from_mut(run).cast::<u8>();
        // SAFETY: KVM gives the data's offset in the mapping of the shared page, and their length. The borrow of `self`
        // keeps all other code from the page.
        unsafe {
            std::slice::from_raw_parts_mut(
                start.add(io.data_offset as usize),
                io.count as usize * usize::from(io.size),
            )
        }
    }

    /// Element `number` of the current port exit.
    pub(crate) fn port_value(&mut self, number: u32, size_bytes: u8) -> u32 {
        let size = usize::from(size_bytes);
        let at = number as usize * size;
        let mut bytes = [0; 4];
        bytes[..size].copy_from_slice(&self.port_data()[at..at + size]);
        u32::from_le_bytes(bytes)
    }

    /// Answers element `number` of the current port exit.
    pub(crate) fn answer_port(&mut self, number: u32, size_bytes: u8, value: u32) {
        let size = usize::from(size_bytes);
        let at = number as usize * size;
        self.port_data()[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    /// Answers the current MMIO read.
    pub(crate) fn answer_mmio(&mut self, data: &[u8]) {
        // SAFETY: called only for MMIO exits, so this field is in use.
        let mmio = unsafe { &mut self.fd.get_kvm_run().__bindgen_anon_1.mmio };
        mmio.data[..data.len()].copy_from_slice(data);
    }

    /// Answers the current RDMSR or WRMSR; `None` raises #GP.
    pub(crate) fn answer_msr(&mut self, value: Option<u64>) {
        // SAFETY: called only for exits of these kinds, so this field is in use.
        let msr = unsafe { &mut self.fd.get_kvm_run().__bindgen_anon_1.msr };
        msr.error = u8::from(value.is_none());
        msr.data = value.unwrap_or_default();
    }

    /// Delivers an external interrupt at the next entry.
    pub(crate) fn interrupt(&self, vector: u8) -> Result<(), Error> {
        let interrupt = kvm_interrupt { irq: u32::from(vector) };
        // SAFETY: the descriptor is a vCPU's. The call reads the structure and keeps no pointer to it.
        let done = unsafe { ioctl_interrupt(self.fd.as_raw_fd(), &interrupt) };
        done.map(drop).map_err(|error| Error::Call("deliver an interrupt", error.into()))
    }

    /// Delivers an NMI at the next entry.
    pub(crate) fn nmi(&self) -> Result<(), Error> {
        self.fd.nmi().map_err(failed("deliver an NMI"))
    }

    /// Replaces the hardware breakpoints, at most [`MAX_BREAKPOINTS`]. While there are any, the guest's own debug
    /// registers have no effect.
    pub(crate) fn set_breakpoints(&mut self, rips: &[u64]) -> Result<(), Error> {
        let mut breakpoints = [None; MAX_BREAKPOINTS];
        for (slot, &rip) in breakpoints.iter_mut().zip(rips) {
            *slot = Some(rip);
        }
        if self.breakpoints == breakpoints {
            return Ok(());
        }
        self.breakpoints = breakpoints;
        self.set_debug(None, false)
    }

    /// Replaces a debugger's stops, at most [`MAX_STOPS`], in addition to the breakpoints.
    pub(crate) fn set_stops(&mut self, rips: &[u64]) -> Result<(), Error> {
        self.stops = rips.to_vec();
        self.set_debug(None, false)
    }

    /// The debugger's stops.
    pub(crate) fn stops(&self) -> &[u64] {
        &self.stops
    }

    /// Whether there are hardware breakpoints.
    pub(crate) fn has_breakpoints(&self) -> bool {
        self.breakpoints.iter().any(Option::is_some)
    }

    /// Sets up debugging: the current hardware breakpoints, one more, and perhaps a stop after each instruction.
    /// After a change of registers, call this function again: otherwise the vCPU no longer stops after each
    /// instruction.
    pub(crate) fn set_debug(&mut self, additional: Option<u64>, step: bool) -> Result<(), Error> {
        // The bit of DR7 that is always one.
        const ONE: u64 = 0x400;
        let mut debug = kvm_guest_debug::default();
        debug.arch.debugreg[7] = ONE;
        let [first, second, third] = self.breakpoints;
        let mut registers = [first, second, third, additional];
        let free = registers.iter_mut().filter(|register| register.is_none());
        free.zip(&self.stops).for_each(|(register, &rip)| *register = Some(rip));
        for (number, rip) in registers.into_iter().enumerate() {
            if let Some(rip) = rip {
                debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
                debug.arch.debugreg[number] = rip;
                // The bits G0 to G3 of DR7.
                debug.arch.debugreg[7] |= 2 << (2 * number);
            }
        }
        if step {
            debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
        }
        self.fd.set_guest_debug(&debug).map_err(failed("set a breakpoint"))
    }

    /// DR6 of the current debug exit.
    pub(crate) fn debug_status(&mut self) -> u64 {
        // SAFETY: called only for debug exits, so this field is in use.
        unsafe { self.fd.get_kvm_run().__bindgen_anon_1.debug.arch.dr6 }
    }

    /// Whether a signal asked to leave the guest since the last call or entry.
    pub(crate) fn take_kick(&mut self) -> bool {
        let asked = &raw mut self.fd.get_kvm_run().immediate_exit;
        // SAFETY: the field lives as long as the vCPU; a handler on this thread may write it, hence volatile.
        unsafe {
            let kicked = asked.read_volatile() != 0;
            asked.write_volatile(0);
            kicked
        }
    }

    /// Completes `state` with the registers of the last exit.
    pub(crate) fn take_synced(&self, state: &mut CpuState) {
        let synced = self.synced();
        state::take_registers(state, &synced.regs, &synced.sregs, &synced.events);
    }

    /// Completes `state` with all registers. No instruction may be in progress.
    pub(crate) fn take_all(&self, state: &mut CpuState) -> Result<(), Error> {
        self.take_synced(state);
        state::take_xsave(state, &self.fd.get_xsave().map_err(failed("give its floating-point state"))?);
        state::take_debugregs(state, &self.fd.get_debug_regs().map_err(failed("give its debug registers"))?);
        let entries = state::MSRS.map(|index| kvm_msr_entry { index, ..Default::default() });
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| Error::Lacks("room for registers"))?;
        let count = self.fd.get_msrs(&mut msrs).map_err(failed("give its model-specific registers"))?;
        if count != entries.len() {
            return Err(Error::Lacks("one of the model-specific registers of a 64-bit processor"));
        }
        for (to, entry) in state::msrs_mut(state).into_iter().zip(msrs.as_slice()) {
            *to = entry.data;
        }
        Ok(())
    }

    /// Replaces the whole state and drops all translations, because RAM may have been replaced too.
    pub(crate) fn load(&mut self, from: &CpuState, cr8: u64) -> Result<(), Error> {
        const PGE: u64 = 1 << 7;
        let mut copy = from.clone();
        let entries: Vec<kvm_msr_entry> = state::msrs_mut(&mut copy)
            .into_iter()
            .zip(state::MSRS)
            .map(|(value, index)| kvm_msr_entry { index, data: *value, ..Default::default() })
            .collect();
        let msrs = Msrs::from_entries(&entries).map_err(|_| Error::Lacks("room for registers"))?;
        let sregs = state::sregs_of(from, cr8, self.apic_enabled);
        // A change of CR4.PGE makes KVM drop every translation; no call does this directly.
        let mut other = sregs;
        other.cr4 ^= PGE;
        self.fd.set_sregs(&other).map_err(failed("take system registers"))?;
        self.fd.set_sregs(&sregs).map_err(failed("take system registers"))?;
        self.fd.set_regs(&state::regs_of(from)).map_err(failed("take registers"))?;
        // Drop changes that were meant for the old state.
        self.fd.clear_sync_dirty_reg(SyncReg::Register);
        self.fd.clear_sync_dirty_reg(SyncReg::SystemRegister);
        // SAFETY: an image without dynamic features has the structure's size.
        unsafe { self.fd.set_xsave(&state::xsave_of(from)) }.map_err(failed("take floating-point state"))?;
        self.fd.set_debug_regs(&state::debugregs_of(from)).map_err(failed("take debug registers"))?;
        if self.fd.set_msrs(&msrs).map_err(failed("take model-specific registers"))? != entries.len() {
            return Err(Error::Lacks("one of the model-specific registers of a 64-bit processor"));
        }
        self.fd.set_vcpu_events(&state::events_of(from)).map_err(failed("take events"))
    }
}
