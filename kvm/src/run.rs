//! The run loop. The loop enters the guest, passes its accesses on, and delivers interrupts at the same
//! boundaries as the software CPU. The loop stops at exits, when time is up, or at a landing place.

use std::time::Instant;

use cpu::{Bus, Counts, Cpu, CpuModel, CpuState, Met, Stop};
use engine_contract::{End, LandingPlace, Leave, Statistics};
use guest_ram::GuestRam;
use kvm_bindings::kvm_regs;

use crate::counter::branch_counter::{BranchCounter, Entry};
use crate::counter::{self, Counter};
use crate::error::Error;
use crate::kick::Alarm;
use crate::landing::{Landing, Left, Margin};
use crate::state::nothing_under_way;
use crate::vcpu::{Exit, Vcpu};
use crate::vm::Vm;

use stopping::candidates::{self, Stopping};

mod exits;
mod landing_guest;
mod search;
mod stopping;

/// Number of breakpoints on the way to a landing place after which the software CPU takes over. A loop can pass the
/// place hundreds of thousands of times. Each exit costs as much as some hundred instructions on the software CPU.
const BREAKPOINTS_AT_FIRST: u32 = 4096;

const RESUME_FLAG: u64 = 1 << 16;

/// A CPU whose instructions KVM executes.
pub struct KvmCpu {
    vm: Vm,
    vcpu: Vcpu,
    /// This software CPU has the newest state if `ahead` is set, and otherwise a copy of the state at the
    /// last stop. This CPU also emulates instructions.
    soft: Cpu,
    /// Whether the software CPU's state is newer than the vCPU's.
    ahead: bool,
    /// Whether the vCPU is between two instructions, so that its interrupt readiness is valid.
    between_instructions: bool,
    halted: bool,
    counter: Option<Box<dyn BranchCounter>>,
    /// The counter's value when the software CPU's count of branches was last updated.
    counted: u64,
    margin: Margin,
    statistics: Statistics,
}

/// One call of [`KvmCpu::run`].
struct Run<'a> {
    bus: &'a mut dyn Bus,
    leave: Leave,
    due: Option<Instant>,
    /// Whether the guest was last left by an exit that the machine sees, and has not run since.
    exited: bool,
    /// The places at which the guest can be stopped after time was up.
    stopping: Option<Stopping>,
    /// Number of kicks to wait for a place to stop at.
    patience: u32,
    /// The landing in progress, if the landing place has a count of branches.
    landing: Option<Landing>,
    /// Why the guest was last left.
    left: Left,
    /// Breakpoints met on the way to the landing place.
    met: u32,
    /// The number of breakpoints after which the software CPU takes over.
    most_breakpoints: u32,
}

impl KvmCpu {
    /// A CPU in reset state over `ram`, with the CPUID of `model`.
    pub fn new(ram: GuestRam, model: CpuModel) -> Result<KvmCpu, Error> {
        let (vm, fd) = Vm::new(&ram, model)?;
        let mut soft = Cpu::new(ram);
        soft.set_model(model);
        Ok(KvmCpu {
            vm,
            vcpu: Vcpu::new(fd),
            soft,
            ahead: true,
            between_instructions: false,
            halted: false,
            counter: None,
            counted: 0,
            margin: Margin::new(),
            statistics: Statistics::default(),
        })
    }

    /// Counts the guest's conditional branches from here on, for the calling thread and threads that run it later. The
    /// count finds landing places that have a number of branches.
    pub fn count_branches(&mut self, counter: Counter) -> Result<(), Error> {
        self.counter = Some(counter::open(counter)?);
        self.update_counted()
    }

    /// Whether branches are counted.
    pub fn counts_branches(&self) -> bool {
        self.counter.is_some()
    }

    /// The CPU at the last stop, for reading.
    pub fn cpu(&self) -> &Cpu {
        &self.soft
    }

    /// Replaces the whole state of the CPU. The counts do not change.
    pub fn set_state(&mut self, state: &CpuState) {
        self.soft.set_state(state);
        self.ahead = true;
    }

    /// Replaces the counts, after [`KvmCpu::set_state`].
    pub fn set_counts(&mut self, counts: Counts) {
        self.soft.set_counts(counts);
    }

    /// Replaces the addresses before which runs stop with [`Met::Breakpoint`], at most [`crate::MAX_STOPS`]. A run
    /// stops whenever the guest may execute the instruction there next, even if it then takes an interrupt instead. A
    /// run that begins there stops at once. Meanwhile the guest's own debug registers have no effect.
    pub fn set_stops(&mut self, rips: &[u64]) -> Result<(), Error> {
        self.vcpu.set_stops(rips)
    }

    /// The engine's statistics so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Marks the pages that the guest wrote since the last call in RAM's page flags. The first call marks all pages.
    pub fn note_written(&mut self) -> Result<(), Error> {
        self.vm.note_written()
    }

    /// Runs until the bus or `leave` ends the run, or the guest halts.
    pub fn run(&mut self, bus: &mut dyn Bus, leave: Leave) -> Result<End, Error> {
        if let Some(counter) = &mut self.counter {
            counter.move_here()?;
        }
        self.load(bus)?;
        let landing = self.landing(leave);
        let (due, left) = (None, Left::Other);
        let mut run = Run {
            bus,
            leave,
            due,
            exited: false,
            stopping: None,
            patience: 1,
            landing,
            left,
            met: 0,
            most_breakpoints: BREAKPOINTS_AT_FIRST,
        };
        let alarm = self.set_alarm(&mut run)?;
        let end = self.run_loop(&mut run);
        drop(alarm);
        self.vcpu.set_breakpoints(&[])?;
        let end = end?;
        self.end_landing(&mut run, end)?;
        if !self.ahead {
            self.take_state()?;
        }
        Ok(end)
    }

    /// Sets the timer if the run needs one, for a caller that must act in real time, or as the watchdog of a landing.
    fn set_alarm(&mut self, run: &mut Run<'_>) -> Result<Option<Alarm>, Error> {
        let shared = self.vcpu.shared();
        let alarm = match run.leave {
            Leave::After { due, force, .. } => {
                run.due = Some(Instant::now() + due);
                run.patience = candidates::patience(due, force);
                Alarm::after(shared, force)
            }
            _ if run.landing.is_some() => Alarm::watchdog(shared),
            _ => return Ok(None),
        };
        alarm.map(Some).map_err(|error| Error::Call("set a timer", error))
    }

    /// Copies the software CPU's state to the vCPU, if the software CPU's state is newer.
    fn load(&mut self, bus: &mut dyn Bus) -> Result<(), Error> {
        if !self.ahead {
            return Ok(());
        }
        let state = self.soft.state();
        self.vcpu.set_apic_enabled(bus.apic_enabled());
        self.vcpu.load(&state, bus.cr8())?;
        self.update_counted()?;
        self.halted = state.halted;
        self.ahead = false;
        self.between_instructions = false;
        Ok(())
    }

    /// Copies the vCPU's state to the software CPU's registers, so that callers can read them.
    fn take_state(&mut self) -> Result<(), Error> {
        let mut state = self.soft.state();
        self.vcpu.take_all(&mut state)?;
        state.halted = self.halted;
        let before = self.counted;
        self.update_counted()?;
        let counts = self.soft.counts();
        self.soft.set_counts(Counts { branches: counts.branches + (self.counted - before), ..counts });
        self.soft.set_registers(&state);
        Ok(())
    }

    /// The count of branches at the vCPU's place. Without a counter, the result is the count that the software CPU has.
    fn branches(&mut self) -> Result<u64, Error> {
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
            let goal = match run.leave {
                Leave::At(goal) => Some(goal),
                _ => None,
            };
            let asked = signals.stop || due || signals.interrupt || signals.nmi || self.halted;
            if !self.between_instructions && (asked || goal.is_some()) {
                let exit = self.vcpu.complete_instruction(run.bus.cr8());
                self.pass_task_priority(run.bus);
                if matches!(exit, Exit::Interrupted) {
                    self.between_instructions = true;
                    continue;
                }
                if let Some(end) = self.handle(run, exit)? {
                    return Ok(end);
                }
                continue;
            }
            if signals.stop || due {
                let synced = self.vcpu.synced();
                if !nothing_under_way(&synced.events) {
                    // On the software CPU, the delivery of the fault would have begun before this stop.
                    log::warn!("stopped at {:#x} with a fault under way", synced.regs.rip);
                }
                return Ok(End::Stop(Stop::Bus));
            }
            if self.between_instructions && self.vcpu.stops().contains(&self.vcpu.synced().regs.rip) {
                return Ok(End::Stop(Stop::Met(Met::Breakpoint)));
            }
            let delivered = self.deliver(run.bus, signals)?;
            if self.halted {
                return Ok(End::Stop(Stop::Halted));
            }
            match goal {
                _ if run.landing.is_some() => {
                    if let Some(end) = self.land(run, delivered)? {
                        return Ok(end);
                    }
                }
                // The guest has moved: it enters the handler first, and the landing place may be in the handler.
                Some(goal) if delivered => {
                    run.leave = Leave::At(LandingPlace { not_here: false, ..goal });
                    self.vcpu.set_breakpoints(&[goal.rip])?;
                }
                Some(goal) => {
                    if let Some(end) = self.look_for(run, goal)? {
                        return Ok(end);
                    }
                    if !self.between_instructions {
                        // The software CPU has executed a part of the way to the landing place.
                        continue;
                    }
                }
                None => {}
            }
            // Another interrupt may be pending after the delivered one.
            let window = run.bus.signals().interrupt;
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

    /// Delivers a due event. The CPU then has a delivery in progress until the guest is entered.
    fn deliver(&mut self, bus: &mut dyn Bus, signals: cpu::BusSignals) -> Result<bool, Error> {
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

    /// Clears RF. Our breakpoints leave RF set, and an interrupt would push it where the guest can see it.
    fn clear_resume_flag(&mut self) {
        if self.vcpu.synced().regs.rflags & RESUME_FLAG != 0 {
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags &= !RESUME_FLAG);
        }
    }
}
