//! The run loop: enters the guest, passes its accesses on, delivers interrupts at the same boundaries as the software CPU,
//! and stops at exits, when time is up, or at a mark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu::{AddressKind, Bus, Cpu, CpuState, Model, Stop};
use guest_ram::GuestRam;
use kvm_bindings::kvm_regs;

use crate::counter::{self, BranchCounter, Counter, Entry};
use crate::error::Error;
use crate::kick::Kick;
use crate::landing::{Landing, Landings, Left, Margin};
use crate::mark::{Mark, fold_registers};
use crate::state::{gpr_of, nothing_under_way};
use crate::stopping_place;
use crate::vcpu::{Exit, Vcpu};
use crate::vm::Vm;

/// When to leave the guest, apart from what the bus asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Never.
    Never,
    /// For somebody who lives in real time: at the first exit after `due`, or, if none comes for so long, wherever the
    /// guest is after `force`.
    After {
        /// From now.
        due: Duration,
        /// From now.
        force: Duration,
    },
    /// At a mark, before the next exit.
    At(Mark),
}

/// Why [`KvmCpu::run`] returned. The guest stands between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As the software CPU says it.
    Stop(Stop),
    /// Time was up, and no exit came.
    Forced,
    /// The guest may be at the mark.
    Mark,
    /// The guest went beyond the mark, whose count of branches it has passed. Nothing of what it asked for there was done.
    /// Its state is of no use: restore registers and RAM as they were before, and run to the mark again.
    Overshot,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Statistics {
    /// Entries into the guest.
    pub entries: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Times that the guest was stopped without an exit.
    pub forced: u64,
    /// Breakpoints that were met on the way to a mark.
    pub breakpoints: u64,
    /// Marks that the software CPU went to.
    pub landed_by_software: u64,
    /// Instructions that KVM could not emulate and the software CPU did.
    pub emulated: u64,
    /// Marks that were found by their count of branches.
    pub landings: Landings,
}

/// So many breakpoints are met on the way to a mark before the software CPU takes over: a loop can pass it
/// hundreds of thousands of times, and each exit costs as much as some hundred instructions on the software CPU.
const BREAKPOINTS_PER_LANDING: u32 = 4096;
/// A mark that is not found within so many steps will not be found.
const STEPS_PER_LANDING: u64 = 1 << 33;
pub(crate) const RESUME_FLAG: u64 = 1 << 16;
const LONG_CODE: u16 = 1 << 13;
const BIG_CODE: u16 = 1 << 14;
/// HLT is one byte.
const HALT_BYTES: u64 = 1;

/// A CPU that KVM executes.
pub struct KvmCpu {
    vm: Vm,
    pub(crate) vcpu: Vcpu,
    /// The state wherever `ahead` says so, at every other stop a copy; and what emulates.
    soft: Cpu,
    /// The software CPU's state is newer than the vCPU's.
    ahead: bool,
    /// No instruction is half done in the vCPU, and what it says of interrupts is true.
    settled: bool,
    halted: bool,
    kick: Option<Kick>,
    pub(crate) counter: Option<Box<dyn BranchCounter>>,
    /// What the counter said when the software CPU's count of branches was last brought up to date.
    counted: u64,
    pub(crate) margin: Margin,
    pub(crate) statistics: Statistics,
}

/// One call of [`KvmCpu::run`].
pub(crate) struct Run<'a> {
    pub(crate) bus: &'a mut dyn Bus,
    leave: Leave,
    due: Option<Instant>,
    /// The guest was last left by an exit that the machine sees, and has not gone on since.
    exited: bool,
    /// Where the guest is expected after time was up.
    stopping_at: Option<u64>,
    /// The way to a mark whose count of branches is known.
    pub(crate) landing: Option<Landing>,
    /// How the guest was left.
    pub(crate) left: Left,
    /// Breakpoints met on the way to the mark.
    met: u32,
}

impl KvmCpu {
    /// A CPU in reset state over `ram`, with the CPUID of `model`.
    pub fn new(ram: Arc<GuestRam>, model: Model) -> Result<KvmCpu, Error> {
        let (vm, fd) = Vm::new(ram.clone(), model)?;
        let mut soft = Cpu::new(ram);
        soft.set_model(model);
        Ok(KvmCpu {
            vm,
            vcpu: Vcpu::new(fd),
            soft,
            ahead: true,
            settled: false,
            halted: false,
            kick: None,
            counter: None,
            counted: 0,
            margin: Margin::new(),
            statistics: Statistics::default(),
        })
    }

    /// Counts the guest's conditional branches from here on, for the calling thread and those that run it later. Marks
    /// that say how many there were are then found by their number.
    pub fn count_branches(&mut self, counter: Counter) -> Result<(), Error> {
        self.counter = Some(counter::open(counter)?);
        self.update_counted()
    }

    /// Whether they are counted.
    pub fn counts_branches(&self) -> bool {
        self.counter.is_some()
    }

    /// The CPU as of the last stop, for reads.
    pub fn cpu(&self) -> &Cpu {
        &self.soft
    }

    /// Replaces the whole state.
    pub fn set_state(&mut self, state: &CpuState) {
        self.soft.set_state(state);
        self.ahead = true;
    }

    /// What happened so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Marks in RAM's page flags what the guest wrote since the last call; the first call marks everything.
    pub fn note_written(&mut self) -> Result<(), Error> {
        self.vm.note_written()
    }

    /// Runs until the bus or `leave` says otherwise, or the guest halts.
    pub fn run(&mut self, bus: &mut dyn Bus, leave: Leave) -> Result<End, Error> {
        if let Some(counter) = &mut self.counter {
            counter.move_here()?;
        }
        self.load(bus)?;
        let landing = self.landing(leave);
        let (due, left) = (None, Left::Other);
        let mut run = Run { bus, leave, due, exited: false, stopping_at: None, landing, left, met: 0 };
        let alarmed = self.set_alarm(&mut run)?;
        let end = self.run_loop(&mut run);
        if let Some(kick) = self.kick.as_ref().filter(|_| alarmed) {
            kick.disarm();
        }
        self.vcpu.set_breakpoint(None)?;
        let end = end?;
        self.end_landing(&mut run, end)?;
        if !self.ahead {
            self.take_state()?;
        }
        Ok(end)
    }

    /// The timer, if there is to be one: of somebody who lives in real time, or the watchdog of a landing.
    fn set_alarm(&mut self, run: &mut Run<'_>) -> Result<bool, Error> {
        if run.landing.is_none() && !matches!(run.leave, Leave::After { .. }) {
            return Ok(false);
        }
        let shared = self.vcpu.shared();
        let kick = Kick::here(&mut self.kick).map_err(|error| Error::Call("make a timer", error))?;
        match run.leave {
            Leave::After { due, force } => {
                run.due = Some(Instant::now() + due);
                kick.arm(shared, force);
            }
            _ => kick.watch(shared),
        }
        Ok(true)
    }

    /// Brings the vCPU up to the software CPU's state.
    fn load(&mut self, bus: &mut dyn Bus) -> Result<(), Error> {
        if !self.ahead {
            return Ok(());
        }
        let state = self.soft.state();
        self.vcpu.load(&state, bus.cr8())?;
        self.update_counted()?;
        self.halted = state.halted;
        self.ahead = false;
        self.settled = false;
        Ok(())
    }

    /// Brings the software CPU's registers up to the vCPU's state, for whoever looks at them.
    fn take_state(&mut self) -> Result<(), Error> {
        let mut state = self.soft.state();
        self.vcpu.take_all(&mut state)?;
        state.halted = self.halted;
        let before = self.counted;
        self.update_counted()?;
        state.branches += self.counted - before;
        self.soft.set_registers(&state);
        Ok(())
    }

    /// The count of branches where the vCPU stands, as far as they are counted.
    pub(crate) fn branches(&mut self) -> Result<u64, Error> {
        let counted = self.counted;
        let new = self.counter.as_mut().map(|counter| counter.count()).transpose()?;
        Ok(self.soft.branches() + new.map_or(0, |count| count - counted))
    }

    fn update_counted(&mut self) -> Result<(), Error> {
        if let Some(counter) = &mut self.counter {
            self.counted = counter.count()?;
        }
        Ok(())
    }

    /// Enters the guest.
    fn enter(&mut self, bus: &mut dyn Bus, window: bool) -> Exit {
        let cr8 = bus.cr8();
        match &mut self.counter {
            Some(counter) => counter.enter(Entry { vcpu: &mut self.vcpu, soft: &mut self.soft, window, cr8 }),
            None => self.vcpu.enter(window, cr8),
        }
    }

    fn run_loop(&mut self, run: &mut Run<'_>) -> Result<End, Error> {
        loop {
            let signals = run.bus.signals();
            let due = run.exited && run.due.is_some_and(|due| Instant::now() >= due);
            let mark = match run.leave {
                Leave::At(mark) => Some(mark),
                _ => None,
            };
            let asked = signals.stop || due || signals.interrupt || signals.nmi || self.halted;
            if !self.settled && (asked || mark.is_some()) {
                let exit = self.vcpu.settle(run.bus.cr8());
                self.pass_task_priority(run.bus);
                if matches!(exit, Exit::Interrupted) {
                    self.settled = true;
                    continue;
                }
                if let Some(end) = self.handle(run, exit)? {
                    return Ok(end);
                }
                continue;
            }
            if signals.stop || due {
                return Ok(End::Stop(Stop::Bus));
            }
            let delivered = self.deliver(run.bus, signals)?;
            if self.halted {
                return Ok(End::Stop(Stop::Halted));
            }
            match mark {
                _ if run.landing.is_some() => {
                    if let Some(end) = self.land(run, delivered)? {
                        return Ok(end);
                    }
                }
                // It stands there no more: the handler comes first, which may be where the mark is.
                Some(mark) if delivered => {
                    run.leave = Leave::At(Mark { not_here: false, ..mark });
                    self.vcpu.set_breakpoint(Some(mark.rip))?;
                }
                Some(mark) => {
                    if let Some(end) = self.look_for(run, mark)? {
                        return Ok(end);
                    }
                }
                None => {}
            }
            let window = signals.interrupt && !delivered;
            self.statistics.entries += 1;
            run.exited = false;
            let exit = self.enter(run.bus, window);
            self.pass_task_priority(run.bus);
            run.left = match exit {
                Exit::Breakpoint => Left::Breakpoint,
                Exit::Interrupted => Left::Signal,
                _ => Left::Other,
            };
            if self.missed(run, &exit)? {
                return Ok(End::Overshot);
            }
            if let Some(end) = self.handle(run, exit)? {
                return Ok(end);
            }
        }
    }

    /// Delivers what is due here. The CPU then has something under way until the guest is entered.
    fn deliver(&mut self, bus: &mut dyn Bus, signals: cpu::Signals) -> Result<bool, Error> {
        if !(signals.nmi || signals.interrupt) {
            return Ok(false);
        }
        let events = self.vcpu.synced().events;
        if signals.nmi && events.nmi.masked == 0 && events.interrupt.shadow == 0 {
            if bus.take_nmi() {
                self.vcpu.nmi()?;
                self.halted = false;
            }
            return Ok(true);
        }
        if !signals.interrupt || !self.vcpu.ready_for_interrupt() {
            return Ok(false);
        }
        if let Some(vector) = bus.acknowledge_interrupt() {
            self.clear_resume_flag();
            self.vcpu.interrupt(vector)?;
            self.halted = false;
            self.statistics.interrupts += 1;
        }
        Ok(true)
    }

    /// Breakpoints of ours leave RF set, which an interrupt would push for the guest to see.
    pub(crate) fn clear_resume_flag(&mut self) {
        if self.vcpu.synced().regs.rflags & RESUME_FLAG != 0 {
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags &= !RESUME_FLAG);
        }
    }

    /// Looks whether the guest is at the mark, and sets the breakpoint on it where it is not.
    fn look_for(&mut self, run: &mut Run<'_>, mark: Mark) -> Result<Option<End>, Error> {
        let synced = self.vcpu.synced();
        if synced.regs.rip == mark.rip && nothing_under_way(&synced.events) {
            let seen = std::mem::replace(&mut run.leave, Leave::At(Mark { not_here: false, ..mark }));
            let rejected = seen == Leave::At(Mark { not_here: true, ..mark });
            if !rejected && fold_registers(&gpr_of(&synced.regs)) == mark.registers {
                self.clear_resume_flag();
                return Ok(Some(End::Mark));
            }
            if run.met >= BREAKPOINTS_PER_LANDING {
                return self.land_by_software(run, mark).map(Some);
            }
            // The breakpoint itself is passed over once.
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags |= RESUME_FLAG);
        }
        self.vcpu.set_breakpoint(Some(mark.rip))?;
        Ok(None)
    }

    /// Goes on with the software CPU to where the registers are the mark's.
    fn land_by_software(&mut self, run: &mut Run<'_>, mark: Mark) -> Result<End, Error> {
        self.vcpu.set_breakpoint(None)?;
        self.take_state()?;
        let state = self.soft.state();
        self.soft.set_state(&state);
        self.ahead = true;
        self.statistics.landed_by_software += 1;
        let limit = state.steps + STEPS_PER_LANDING;
        let mut origin = state.steps;
        self.soft.set_breakpoints([(AddressKind::Linear, mark.rip)]);
        let end = loop {
            match self.soft.run(run.bus, limit, origin) {
                Stop::Breakpoint if fold_registers(&self.soft.state().gpr) == mark.registers => {
                    break Ok(End::Mark);
                }
                Stop::Breakpoint => origin = self.soft.steps(),
                Stop::Budget => {
                    break Err(Error::Stuck {
                        rip: self.soft.rip(),
                        why: "it never comes to the place where it was interrupted".to_string(),
                    });
                }
                stop => break Ok(End::Stop(stop)),
            }
        };
        self.soft.set_breakpoints([]);
        let steps = self.soft.steps() - state.steps;
        log::debug!("the software CPU went {steps} steps to {:#x} or an exit", mark.rip);
        end
    }

    /// Does what an exit asks for. `Some` leaves the loop.
    fn handle(&mut self, run: &mut Run<'_>, exit: Exit) -> Result<Option<End>, Error> {
        self.settled = !matches!(
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
            }
            Exit::Halt => self.halt(run)?,
            // It has been passed on.
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

    /// Tells the machine of a CR8 that the guest wrote. KVM says so itself only where it is lowered.
    fn pass_task_priority(&mut self, bus: &mut dyn Bus) {
        let cr8 = self.vcpu.cr8();
        if cr8 != bus.cr8() {
            bus.set_cr8(self.soft.steps(), cr8);
        }
    }

    /// The machine saw an exit: it is where whoever waits for one goes on. Model-specific registers are mostly the CPU's
    /// own affair, of which the machine sees nothing.
    fn left_guest(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        run.exited = true;
        if run.stopping_at.take().is_some() {
            self.vcpu.set_breakpoint(None)?;
        }
        Ok(())
    }

    /// HLT, or an RDTSC that was rewritten to it.
    fn halt(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        self.left_guest(run)?;
        let steps = self.soft.steps();
        let state = self.look()?;
        let mut following = [0];
        let known = self.soft.core().peek(state.rip, &mut following) == 1;
        match run.bus.halt(steps, known.then_some(following[0])) {
            Some(raw) => {
                let time = raw.wrapping_add(state.msrs.tsc_offset);
                self.vcpu.change(|regs: &mut kvm_regs| {
                    (regs.rax, regs.rdx) = (time & 0xffff_ffff, time >> 32);
                });
            }
            // The single-step trap of HLT itself, for one, goes on.
            None => self.halted = nothing_under_way(&self.vcpu.synced().events),
        }
        log::trace!("HLT at {:#x}", state.rip.wrapping_sub(HALT_BYTES));
        Ok(())
    }

    /// Lets the software CPU see the registers that the last exit brought along, for reads of guest memory.
    fn look(&mut self) -> Result<CpuState, Error> {
        let mut state = self.soft.state();
        self.vcpu.take_synced(&mut state);
        self.soft.set_registers(&state);
        Ok(state)
    }

    /// A breakpoint: of the mark, which the loop looks at, or of the place where a forced stop is to be.
    fn breakpoint(&mut self, run: &mut Run<'_>) -> Result<Option<End>, Error> {
        let synced = self.vcpu.synced();
        if run.stopping_at != Some(synced.regs.rip) {
            self.statistics.breakpoints += 1;
            run.met += 1;
            return Ok(None);
        }
        run.stopping_at = None;
        self.vcpu.set_breakpoint(None)?;
        if !nothing_under_way(&synced.events) || synced.events.interrupt.shadow != 0 {
            return Ok(None);
        }
        self.clear_resume_flag();
        self.statistics.forced += 1;
        Ok(Some(End::Forced))
    }

    /// A kick came. If time is up, the guest is sent to a place where it can be stopped.
    fn interrupted(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        let synced = self.vcpu.synced();
        let up = run.due.is_some_and(|due| Instant::now() >= due);
        if !up || !nothing_under_way(&synced.events) || synced.events.interrupt.shadow != 0 || self.halted {
            return Ok(());
        }
        let state = self.look()?;
        let code = &state.segments[cpu::SegReg::Cs as usize];
        let flat = code.base == 0 || code.attributes & LONG_CODE != 0;
        if !flat {
            // Real mode and the like: boot code, which makes exits soon.
            return Ok(());
        }
        let bits = match code.attributes & (LONG_CODE | BIG_CODE) {
            0 => 16,
            BIG_CODE => 32,
            _ => 64,
        };
        // A guest that has not come there before the next kick is in a long loop.
        let leave_loops = run.stopping_at.is_none();
        let target =
            stopping_place::choose(state.rip, bits, leave_loops, |at, to| self.soft.core().peek(at, to));
        log::trace!("time is up at {:#x}; it is stopped at {target:#x}", state.rip);
        run.stopping_at = Some(target);
        self.vcpu.set_breakpoint(Some(target))
    }

    /// One instruction that KVM cannot emulate.
    fn emulate(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        let rip = self.vcpu.synced().regs.rip;
        log::debug!("KVM cannot emulate the instruction at {rip:#x}; the software CPU does it");
        self.take_state()?;
        let state = self.soft.state();
        self.soft.set_state(&state);
        self.soft.run(run.bus, state.steps + 1, state.steps);
        self.statistics.emulated += 1;
        self.ahead = true;
        self.load(run.bus)
    }
}
