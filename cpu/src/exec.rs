//! The run loop. The loop finds or decodes the block at RIP and executes it. Between blocks the loop
//! handles interrupts, traps, breakpoints, watchpoints and the budget.

mod observed;
mod policy;
mod seats;
mod spins;
mod tier;
mod translated;
mod turns;

pub use policy::{TURN_STEPS, Turn, TurnPolicy, TurnRules, TurnState};
pub use spins::SpinState;
pub use tier::{Tier, UnknownTier};

use std::sync::Once;

use cpu_model::{CpuModel, PushedRf};
use guest_ram::{GuestRam, PAGE_SIZE};

use crate::attention;
use crate::bus::{Bus, BusSignals};
use crate::code::{BlockKey, BlockNumber, CodeCache, MAX_OPS, NewBlock};
use crate::core::Core;
use crate::debug::DR6_BS;
use crate::debug_points::{AddressKind, Hit, Trap, Traps, WatchHit, Watchpoint};
use crate::decode::{self, Decoded, MAX_LENGTH};
use crate::exception::{Break, Delivery, Res};
use crate::flags;
use crate::insn::Mode;
use crate::memory::Target;
use crate::observer::Observer;
use crate::op::Op;
use crate::slots::REG_BLOCK_RIP;
use crate::state::{Counts, CpuState};
use seats::{Halted, Seats};
use translator::{Parts, Translator, Undefined};

/// Why [`Cpu::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The step count reached the limit.
    Budget,
    /// The bus asked for control ([`BusSignals::stop`]).
    Bus,
    /// The CPU executed HLT, and no event waits that could be delivered. The machine must let time pass.
    Halted,
    /// The CPU shut down after a triple fault.
    Shutdown,
    /// The run reached a condition at which it must stop.
    Met(Met),
}

/// A condition at which a run stops. The package `machine`, which uses this CPU, uses this type too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// The step that just completed hit a watchpoint. [`Cpu::hits`] lists all hits.
    Watchpoint(WatchHit),
    /// The step that just completed contained an event in the debugger's [`Traps`]. [`Cpu::hits`] lists all hits.
    Trap(Trap),
    /// The observer asked to stop in the step that just completed, and the step hit no watchpoint or trap of the
    /// debugger.
    Observer,
}

/// The next action of the run loop after [`Cpu::attend`].
enum Attended {
    /// Leave the run loop.
    Stop(Stop),
    /// An event was delivered, so check for further conditions.
    Again,
    /// Continue with the next instruction.
    Done,
}

/// How much code is decoded at once. The variant's number is a part of the block's key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A whole block is decoded.
    Block = 0,
    /// One instruction is decoded, because an observer may want its fetch.
    Observed = 1 << 2,
    /// One instruction.
    Instruction = 1 << 3,
}

/// A deterministic x86-64 CPU.
pub struct Cpu {
    core: Core,
    code: CodeCache,
    observer: Option<Box<dyn Observer>>,
    seats: Seats,
    /// The number of times that the interpreter executes a block before the block is translated.
    translate_after: u32,
}

/// Logs, once per process, that the host has no memory for translated code. The interpreter then executes all guest
/// code, so guests run more slowly.
#[cold]
fn tell_of_no_translator() {
    static TOLD: Once = Once::new();
    if cfg!(target_arch = "x86_64") {
        TOLD.call_once(|| {
            log::warn!(
                "the host has no memory for translated code (64 MiB, mapped twice), so the interpreter executes the \
                 guest, many times slower; raise ulimit -v"
            );
        });
    }
}

impl Cpu {
    /// A CPU in reset state on the given RAM.
    pub fn new(ram: GuestRam) -> Cpu {
        let mut cpu = Cpu {
            core: Core::new(ram),
            code: CodeCache::new(),
            observer: None,
            seats: Seats::default(),
            translate_after: 0,
        };
        cpu.set_tier(Tier::default());
        cpu
    }

    /// Chooses the tier that executes the guest. The guest cannot see which tier runs.
    pub fn set_tier(&mut self, tier: Tier) {
        self.drop_code();
        let (after, undefined, parts) = match tier {
            Tier::Interpreter => return self.code.translator = None,
            Tier::Translator { after, parts } => (after, Undefined::AsOnTheHost, parts),
            Tier::Inverted => (0, Undefined::Inverted, Parts::ALL),
        };
        self.translate_after = after;
        let serves =
            |translator: &Translator| (translator.undefined(), translator.parts()) == (undefined, parts);
        if !self.code.translator.as_ref().is_some_and(serves) {
            self.code.translator = Translator::new(undefined, parts);
            if self.code.translator.is_none() {
                tell_of_no_translator();
            }
        }
    }

    /// Switches to another CPU model: its CPUID answers, its features and its quirks. Drops code decoded for another
    /// model.
    pub fn set_model(&mut self, model: CpuModel) {
        if model != self.core.model {
            self.drop_code();
            self.core.set_model(model);
        }
    }

    /// The value that RDMSR reads at privilege level 0; `None` for #GP.
    pub fn read_msr(&mut self, bus: &mut dyn Bus, index: u32) -> Option<u64> {
        self.core.read_msr(bus, index).ok()
    }

    /// Executes WRMSR as at privilege level 0; `None` for #GP.
    pub fn write_msr(&mut self, bus: &mut dyn Bus, index: u32, value: u64) -> Option<()> {
        self.core.write_msr(bus, index, value).ok()
    }

    /// The architectural state. The form is canonical: CPUs that would behave equally from now on give equal
    /// states.
    pub fn state(&self) -> CpuState {
        self.core.save_state()
    }

    /// Replaces the architectural state. Drops everything derived from RAM, because RAM may have been replaced too.
    pub fn set_state(&mut self, state: &CpuState) {
        self.core.ram.take_foreign_writes();
        self.drop_code();
        self.core.mmu.flush_and_unflag(self.core.ram.flags());
        self.core.load_state(state);
        self.core.debug_registers_changed();
        self.core.debug.hits.clear();
        self.core.stale_code.clear();
    }

    /// Replaces the architectural state after RAM was changed by writes that set page flags:
    /// [`GuestRam::replace_bytes`] or writes of devices. Keeps everything derived from pages that were not written.
    pub fn restore_state(&mut self, state: &CpuState) {
        self.drop_stale();
        self.set_registers(state);
    }

    /// Replaces the architectural state, as [`Cpu::set_state`] does, but keeps everything derived from RAM. Since
    /// the last run, RAM may have changed only through the CPU itself, and through writes to [`GuestRam`] that set
    /// page flags. The call is fast enough to be made before every instruction.
    pub fn set_registers(&mut self, state: &CpuState) {
        self.core.load_registers(state);
        self.core.debug_registers_changed();
        self.core.debug.hits.clear();
    }

    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        &self.core.ram
    }

    /// The counts since power-on. Replacing the state leaves the counts as they are.
    pub fn counts(&self) -> Counts {
        Counts {
            steps: self.core.block_steps,
            branches: self.core.branches,
            system_calls: self.core.system_calls,
        }
    }

    /// Replaces the counts.
    pub fn set_counts(&mut self, counts: Counts) {
        let Counts { steps, branches, system_calls } = counts;
        self.seats.turns.recounted(self.core.block_steps, steps);
        (self.core.block_steps, self.core.branches, self.core.system_calls) = (steps, branches, system_calls);
    }

    /// Steps executed since power-on: completed instructions, iterations of repeated string instructions, and
    /// deliveries of interrupts and exceptions.
    pub fn steps(&self) -> u64 {
        self.core.block_steps
    }

    /// Retired conditional branches since power-on.
    pub fn branches(&self) -> u64 {
        self.core.branches
    }

    /// System calls entered since power-on: completed SYSCALL, SYSENTER and INT 80h.
    pub fn system_calls(&self) -> u64 {
        self.core.system_calls
    }

    /// All hits of the last step of the last run. [`Met::Watchpoint`] and [`Met::Trap`] have only the first hit.
    pub fn hits(&self) -> &[Hit] {
        &self.core.debug.hits
    }

    /// The general registers, in the order of their numbers in instructions. See also [`Cpu::state`].
    pub fn gpr(&self) -> &[u64; 16] {
        self.core.frame.regs.first_chunk().expect("there are more")
    }

    /// Address of the next instruction.
    pub fn rip(&self) -> u64 {
        self.core.rip
    }

    /// The core with the current registers and memory, so that a debugger can read its state.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Replaces the debugger's breakpoints. Drops the decoded code at breakpoints that are added or removed.
    pub fn set_breakpoints(&mut self, points: impl IntoIterator<Item = (AddressKind, u64)>) {
        for offset in self.core.set_breakpoints(points) {
            self.code.drop_offset(offset);
        }
    }

    /// Replaces the debugger's watchpoints.
    pub fn set_watchpoints(&mut self, points: impl IntoIterator<Item = Watchpoint>) {
        self.core.set_watchpoints(points);
    }

    /// Replaces the debugger's traps.
    pub fn set_traps(&mut self, traps: Traps) {
        self.core.set_traps(traps);
    }

    /// Makes the next store to every page mark the page dirty again. Must be called after dirty flags were cleared.
    pub fn track_writes_anew(&mut self) {
        self.core.mmu.drop_writes();
    }

    fn drop_code(&mut self) {
        self.code.clear(&self.core.ram, &mut self.core.code_lines);
    }

    /// Runs until the step count is exactly `until_steps`, or until something else stops the run first.
    ///
    /// At step count `origin` no breakpoint stops the run, so a run can continue from a breakpoint. If a caller
    /// makes one run of several calls, each call must get as `origin` the step count at which the first call began.
    /// A breakpoint is also passed over if its instruction restarts after a fault, so it is reported only once.
    pub fn run(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64) -> Stop {
        self.core.budget_end = until_steps.min(self.seats.next_look());
        self.core.attention |= attention::SIGNALS;
        if self.core.ram.flags().any_foreign_writes() {
            // Devices may also have written to RAM between two runs.
            self.core.attention |= attention::FOREIGN_WRITES;
        }
        self.core.debug.hits.clear();
        // The exit by which translated code was just left, which can be linked directly to the next block. `None`
        // if the run loop has done something else after that exit.
        let mut link = None;
        let begun = self.core.block_steps;
        loop {
            if self.core.block_steps >= self.core.budget_end || self.core.yields {
                self.end_turn_here(bus, until_steps);
                link = None;
            }
            if self.core.attention != 0 {
                link = None;
                match self.attend(bus, until_steps, begun) {
                    Attended::Stop(stop) => return stop,
                    Attended::Again => continue,
                    Attended::Done => {}
                }
            }
            if self.core.block_steps >= until_steps {
                return Stop::Budget;
            }
            if self.core.attention & (attention::DEBUG | attention::SHADOW | attention::OBSERVED) != 0 {
                if let Some(stop) = self.run_carefully(bus, origin) {
                    return stop;
                }
                continue;
            }
            let limit = self.core.budget_end - self.core.block_steps;
            if let Some(entry) = self.known_code(limit, link) {
                link = self.run_translated(bus, entry);
                continue;
            }
            let number = match self.find_block() {
                Ok(number) => number,
                Err(_) => {
                    if self.breaks_where_nothing_is(origin) {
                        return Stop::Met(Met::Breakpoint);
                    }
                    self.deliver_fault(bus);
                    link = None;
                    continue;
                }
            };
            if self.code.block(number).check_first {
                if self.at_breakpoint(origin) {
                    return Stop::Met(Met::Breakpoint);
                }
                if self.core.sees_fetch_at_rip() {
                    link = None;
                    if let Some(stop) = self.run_carefully(bus, origin) {
                        return stop;
                    }
                    continue;
                }
            }
            if let Some(entry) = self.translated(number, limit, link.take()) {
                link = self.run_translated(bus, entry);
                continue;
            }
            // Ignore how the block ended: in every case RIP is the address of the next instruction to execute.
            _ = self.run_block(bus, number, 0, limit);
        }
    }

    /// Runs one instruction, with checks that the fast path leaves out: for TF, RF, guest breakpoints, an interrupt
    /// shadow, or an observer.
    fn run_carefully(&mut self, bus: &mut dyn Bus, origin: u64) -> Option<Stop> {
        let shadowed = self.core.state.mov_ss_shadow;
        if self.core.state.pending_debug != 0 && !shadowed {
            self.core.raise_pending_debug();
            self.deliver_fault(bus);
            return None;
        }
        let resume = self.core.rflags & flags::RF != 0;
        // A fault sets RF in the RFLAGS image that it pushes. So RF means that this instruction faulted before, and
        // that its breakpoint has already stopped a run (SDM vol. 3, 18.3.1.1). On processors where interrupts also
        // set RF, RF does not show this.
        let passes_breakpoint = resume && self.core.quirks.interrupts_push_rf != PushedRf::Set;
        let address = self.core.rip.wrapping_add(self.core.frame.seg_base[1]);
        let hits = self.core.guest_instruction_breakpoints(address);
        // Check the guest's instruction breakpoints. On AMD's processors, MOV SS delays debug traps but not faults,
        // and an instruction breakpoint is a fault (APM vol. 2, 13.1). CPUID names AMD as this CPU's vendor.
        // Intel's processors would delay such breakpoints too (SDM vol. 3, 6.8.3). Pending debug traps are raised
        // together with the fault.
        if hits != 0 && !resume {
            self.core.state.pending_debug |= hits;
            self.core.raise_pending_debug();
            self.deliver_fault(bus);
            return None;
        }
        let number = match self.find_block() {
            Ok(number) => number,
            Err(_) => {
                if !passes_breakpoint && self.breaks_where_nothing_is(origin) {
                    return Some(Stop::Met(Met::Breakpoint));
                }
                self.end_shadow();
                self.deliver_fault(bus);
                return None;
            }
        };
        if !passes_breakpoint && self.code.block(number).check_first && self.at_breakpoint(origin) {
            return Some(Stop::Met(Met::Breakpoint));
        }
        self.observe_fetch();
        self.end_shadow();
        let trap = self.core.rflags & flags::TF != 0;
        self.core.rflags &= !flags::RF;
        let rip = self.core.rip;
        let op = self.code.block(number).ops[0];
        let branch = self.core.branch_ahead(&op);
        // Run one step only. A repeated string instruction that executed several iterations would delay an
        // interrupt that waits for the end of the shadow. The delay would depend on the run's step limit, so the
        // guest could see this limit.
        let budget_end = std::mem::replace(&mut self.core.budget_end, self.core.block_steps + 1);
        let ended = self.run_block(bus, number, 0, 1);
        self.core.budget_end = budget_end;
        let completed = ended.is_ok();
        if let Some(branch) = branch.filter(|_| ended != Err(Break::Fault)) {
            self.core.observing.rip = rip;
            self.core.observe_branch(&branch);
        }
        // Whether a repeated string instruction stopped between iterations.
        let iterated = !completed && op.flags & Op::SETS_RIP == 0 && self.core.rip == rip;
        if resume && iterated {
            // Keep RF. Otherwise the instruction's breakpoint would hit again before the next iteration.
            self.core.rflags |= flags::RF;
        }
        let fell_through = op.flags & Op::SETS_RIP == 0 || self.core.rip == self.core.next_rip(rip, op.next);
        let branches_only = self.core.state.msrs.debugctl & 2 != 0;
        // If this instruction was MOV SS, no debug trap may come before the next instruction has completed. The
        // single-step trap of MOV SS is therefore left out (SDM vol. 3, 6.8.3).
        let holds_back = self.core.state.mov_ss_shadow;
        if trap && (completed || iterated) && !holds_back && !(branches_only && fell_through) {
            self.core.state.pending_debug |= DR6_BS;
        }
        self.core.update_debug_attention();
        None
    }

    fn end_shadow(&mut self) {
        self.core.attention &= !attention::SHADOW;
        self.core.state.interrupt_shadow = false;
        self.core.state.mov_ss_shadow = false;
    }

    /// Whether to stop at a breakpoint before the next instruction. Never true for the instruction at which the run
    /// began.
    fn at_breakpoint(&self, origin: u64) -> bool {
        if self.core.block_steps == origin {
            return false;
        }
        let address = self.core.rip.wrapping_add(self.core.frame.seg_base[1]);
        let gpa = self.core.peek_address(address).unwrap_or(u64::MAX);
        self.core.debug.breaks_at(address, gpa)
    }

    /// Whether to stop at a breakpoint at an address from which no instruction can be fetched. For example, a
    /// debugger can stop the run after a call through a null pointer.
    #[cold]
    fn breaks_where_nothing_is(&self, origin: u64) -> bool {
        let address = self.core.rip.wrapping_add(self.core.frame.seg_base[1]);
        self.core.debug.breaks_at_offset(address) && self.at_breakpoint(origin)
    }

    /// Handles every condition whose bit is set in `Core::attention`.
    fn attend(&mut self, bus: &mut dyn Bus, until_steps: u64, begun: u64) -> Attended {
        self.observe_step();
        if self.core.state.shut_down {
            return Attended::Stop(Stop::Shutdown);
        }
        if self.core.attention & (attention::STALE_CODE | attention::FOREIGN_WRITES) != 0 {
            self.drop_stale();
        }
        if let Some(stop) = self.take_hit() {
            return Attended::Stop(stop);
        }
        if self.core.attention & attention::SIGNALS != 0 {
            let signals = bus.signals();
            self.core.interrupts_wait = signals.interrupt || signals.nmi;
            // Do not ask the caller for given turns before the run has executed a step. The caller may already have
            // given all turns of this step count.
            let asks_for_turns = self.seats.turns.asks_for_more() && self.core.block_steps != begun;
            if signals.stop || asks_for_turns {
                return Attended::Stop(Stop::Bus);
            }
            // A delivery is a step, so deliver only if the run may still execute a step.
            if self.core.block_steps < self.core.budget_end && self.take_interrupts(bus, signals) {
                // The delivery is a step of its own. Another interrupt can come before the handler's first instruction.
                // The delivery can also have hit a watchpoint or a trap.
                return Attended::Again;
            }
        }
        if self.core.attention & attention::HALTED != 0 {
            if self.core.state.pending_debug == 0 {
                return match self.leave_halted(bus, until_steps, begun) {
                    Halted::PassedOn => Attended::Again,
                    Halted::Waits => Attended::Stop(Stop::Halted),
                    Halted::Wakes => Attended::Stop(Stop::Budget),
                };
            }
            // The pending debug trap is the single-step trap of HLT itself, and wakes the CPU.
            self.wake();
        }
        Attended::Done
    }

    /// Why the run stops after the step that just completed: a hit, or the observer's request. `None` if there is
    /// no reason.
    fn take_hit(&mut self) -> Option<Stop> {
        if self.core.attention & attention::HIT == 0 {
            return None;
        }
        self.core.attention &= !attention::HIT;
        let observer_stops = std::mem::take(&mut self.core.observing.stop);
        match self.core.debug.hits.first() {
            Some(Hit::Watch(hit)) => Some(Stop::Met(Met::Watchpoint(*hit))),
            Some(Hit::Trap(trap)) => Some(Stop::Met(Met::Trap(*trap))),
            None => observer_stops.then_some(Stop::Met(Met::Observer)),
        }
    }

    /// Delivers a pending event that may be delivered now. Returns whether an event was delivered.
    fn take_interrupts(&mut self, bus: &mut dyn Bus, signals: BusSignals) -> bool {
        let shadow = self.core.state.interrupt_shadow;
        if self.core.state.pending_debug != 0 && !self.core.state.mov_ss_shadow {
            // A trap of the instruction just completed has priority over interrupts.
            return false;
        }
        if signals.nmi && !self.core.state.nmi_blocked && !shadow {
            let taken = bus.take_nmi();
            if taken {
                self.wake();
                self.core.state.nmi_blocked = true;
                self.deliver(bus, Delivery::Nmi);
            }
            return taken;
        }
        // If IF is clear, the interrupt waits. An instruction that sets IF, or the end of a shadow, sets
        // `attention::SIGNALS` again.
        if signals.interrupt && self.core.rflags & flags::IF != 0 && !shadow {
            let vector = bus.acknowledge_interrupt();
            if let Some(vector) = vector {
                self.wake();
                self.deliver(bus, Delivery::Interrupt(vector));
            }
            return vector.is_some();
        }
        if !shadow {
            self.core.attention &= !attention::SIGNALS;
        }
        false
    }

    fn wake(&mut self) {
        self.core.state.halted = false;
        self.core.attention &= !attention::HALTED;
    }

    fn drop_stale(&mut self) {
        for page in std::mem::take(&mut self.core.stale_code) {
            self.code.drop_page(&self.core.ram, &mut self.core.code_lines, page);
        }
        let foreign = self.core.ram.take_foreign_writes();
        for &page in &foreign {
            self.code.drop_page(&self.core.ram, &mut self.core.code_lines, page);
        }
        if foreign.iter().any(|&p| self.core.ram.flags().has(p, guest_ram::PageFlags::PAGE_TABLE)) {
            self.core.mmu.flush_and_unflag(self.core.ram.flags());
        }
        self.core.attention &= !(attention::STALE_CODE | attention::FOREIGN_WRITES);
    }

    /// Finds or decodes the block at RIP. An error means that fetching the code faulted.
    #[inline(always)]
    fn find_block(&mut self) -> Res<BlockNumber> {
        let rip = self.core.rip;
        let known = self.code.jump(rip, self.core.code_tag()).filter(|&number| self.is_at(number, rip));
        match known {
            Some(number) => Ok(number),
            None => self.find_block_slow(rip),
        }
    }

    /// Whether the TLB maps an address to a block's bytes.
    #[inline(always)]
    fn is_at(&mut self, number: BlockNumber, rip: u64) -> bool {
        let base = self.core.frame.seg_base[1];
        let address = if self.core.is_64bit() { rip } else { rip.wrapping_add(base) & 0xffff_ffff };
        let start = self.code.block(number).start();
        let slot = self.core.mmu.executable(address);
        slot.is_some_and(|slot| slot.ram_offset(&self.core.ram, address) == start)
    }

    #[cold]
    #[inline(never)]
    fn find_block_slow(&mut self, rip: u64) -> Res<BlockNumber> {
        let address = self.core.code_linear(rip)?;
        let start = self.fetch(address)?;
        let room = self.core.code_room(rip);
        let gpa = self.core.ram.layout().gpa_of(start);
        let observed = self.core.observing.picks_fetches_in_page(address, gpa);
        let extent = if observed { Extent::Observed } else { Extent::Block };
        let number = self.block_at(rip, address, start, extent)?;
        let block = self.code.block(number);
        if u64::from(block.length) <= room {
            // `is_at` checks only the block's first page, so do not remember the jump to a block in two pages.
            if block.second_page.is_none() {
                self.code.remember_jump(rip, self.core.code_tag(), number);
            }
            return Ok(number);
        }
        // The code segment ends inside the block. Code beyond the end must fault only when it is reached.
        let number = self.block_at(rip, address, start, Extent::Instruction)?;
        if u64::from(self.code.block(number).length) > room { Err(self.core.gp(0)) } else { Ok(number) }
    }

    /// RAM offset of the code at a linear address.
    fn fetch(&mut self, address: u64) -> Res<u64> {
        let target = self.core.fetch_target(address)?;
        if self.core.attention & attention::STALE_CODE != 0 {
            // The walk set accessed or dirty bits in page-table entries whose lines hold decoded code.
            self.drop_stale();
        }
        match target {
            Target::Ram(offset) => Ok(offset),
            // The guest jumped into device memory. This CPU does not execute code from device memory.
            Target::Device(_) => Err(self.core.gp(0)),
        }
    }

    /// Linear address of the page after the first page of the code at RIP; `address` is RIP's linear address. RIP and
    /// the linear address have different page offsets if the code segment's base is not a multiple of the page size.
    fn next_page(&mut self, rip: u64, address: u64) -> Res<u64> {
        let left = PAGE_SIZE - address % PAGE_SIZE;
        self.core.code_linear(rip.wrapping_add(left))
    }

    /// Finds or decodes the code at a RAM offset.
    fn block_at(&mut self, rip: u64, address: u64, start: u64, extent: Extent) -> Res<BlockNumber> {
        let key = BlockKey::new(start, self.core.code_size as u8 | extent as u8);
        if let Some(number) = self.code.find(key) {
            // Translate the address of the second page every time, because the block's key does not contain the
            // second page.
            let Some(second) = self.code.block(number).second_page else { return Ok(number) };
            let next = self.next_page(rip, address)?;
            if self.fetch(next)? / PAGE_SIZE != second {
                self.code.drop_page(&self.core.ram, &mut self.core.code_lines, second);
            }
        }
        // The code above may have dropped the block, so look up the block again.
        if let Some(number) = self.code.find(key) {
            return Ok(number);
        }
        let block = self.decode_block(rip, address, start, key, extent)?;
        let (number, flagged) = self.code.insert(&self.core.ram, &mut self.core.code_lines, block);
        for page in flagged.pages() {
            self.core.mmu.protect_page(&self.core.ram, page);
        }
        Ok(number)
    }

    /// Decodes instructions from RAM offset `start` to the end of the block.
    fn decode_block(
        &mut self,
        rip: u64,
        address: u64,
        start: u64,
        key: BlockKey,
        extent: Extent,
    ) -> Res<NewBlock> {
        // Bytes of the longest block in a page. The buffer also has room for one instruction that crosses into the
        // next page.
        const MOST_BYTES: usize = MAX_OPS * MAX_LENGTH;
        let mut bytes = [0; MOST_BYTES + MAX_LENGTH];
        let in_page = (start % PAGE_SIZE) as usize;
        let available = (PAGE_SIZE as usize - in_page).min(MOST_BYTES);
        self.core.ram.read_bytes(start, &mut bytes[..available]);
        let features = &self.core.model.description().features;
        let mode = Mode { code_size: self.core.code_size, features, yields: self.seats.are_several() };
        let most = if extent == Extent::Block { MAX_OPS } else { 1 };
        let mut block = NewBlock {
            key,
            start,
            ops: Vec::with_capacity(8),
            length: 0,
            second_page: None,
            check_first: extent == Extent::Observed || self.core.debug.breaks_at_offset(address),
        };
        while block.ops.len() < most {
            let at = usize::from(block.length);
            let here = rip.wrapping_add(at as u64);
            if at > 0 && self.core.debug.breaks_at_offset(address.wrapping_add(at as u64)) {
                break;
            }
            let op = match decode::decode(&bytes[at..available], here, block.length, mode) {
                Decoded::Op(op) => op,
                Decoded::NeedsMore if at > 0 => break,
                Decoded::NeedsMore => {
                    let next = self.next_page(rip, address)?;
                    let second = self.fetch(next)?;
                    // Read the first page again: the walk to the second page may have set bits in it.
                    self.core.ram.read_bytes(start, &mut bytes[..available]);
                    self.core.ram.read_bytes(second, &mut bytes[available..available + MAX_LENGTH]);
                    match decode::decode(&bytes[..available + MAX_LENGTH], here, 0, mode) {
                        Decoded::Op(op) => {
                            block.second_page = Some(second / PAGE_SIZE);
                            op
                        }
                        Decoded::NeedsMore => decode::undefined(15),
                    }
                }
            };
            let known = if block.second_page.is_some() { available + MAX_LENGTH } else { available };
            let selected = self.core.selects(&bytes[at..known], here);
            if selected && at > 0 {
                break;
            }
            block.check_first |= selected;
            block.length = op.next;
            block.ops.push(op);
            if op.flags & Op::ENDS_BLOCK != 0 || block.second_page.is_some() || selected {
                break;
            }
        }
        Ok(block)
    }

    /// Executes instructions `from` to `limit` of the block that starts at RIP. Returns how the last instruction
    /// ended. If it faulted, this function has already delivered the fault.
    #[inline(always)]
    fn run_block(&mut self, bus: &mut dyn Bus, number: BlockNumber, from: usize, limit: u64) -> Res<()> {
        let block = self.code.block(number);
        let core = &mut self.core;
        let rip = core.rip;
        core.frame.regs[REG_BLOCK_RIP as usize] = rip;
        core.break_block = false;
        let count = block.ops.len().min(limit as usize);
        let whole = count == block.ops.len();
        for (index, op) in block.ops[..count].iter().enumerate().skip(from) {
            core.index = index as u64;
            match (op.handler)(core, bus, op) {
                Ok(()) if !core.break_block => {}
                Ok(()) => {
                    core.block_steps += index as u64 + 1;
                    core.index = 0;
                    core.observing.rip = core.next_rip(rip, op.start);
                    if op.flags & Op::SETS_RIP == 0 {
                        core.rip = core.next_rip(rip, op.next);
                    }
                    return Ok(());
                }
                Err(reason) => {
                    core.block_steps += index as u64;
                    core.index = 0;
                    core.observing.rip = core.next_rip(rip, op.start);
                    if reason == Break::Done {
                        return Err(reason);
                    }
                    core.rip = core.observing.rip;
                    if op.flags & Op::STACK != 0 && core.exception.vector == crate::exception::GP {
                        core.noncanonical_stack_fault();
                    }
                    self.deliver_fault(bus);
                    return Err(reason);
                }
            }
        }
        core.block_steps += count as u64;
        core.index = 0;
        if !(whole && block.sets_rip) {
            let end = block.ops[count - 1].next;
            core.rip = core.next_rip(rip, end);
        }
        Ok(())
    }

    fn deliver_fault(&mut self, bus: &mut dyn Bus) {
        let exception = self.core.exception;
        self.deliver(bus, Delivery::Exception(exception));
    }

    fn deliver(&mut self, bus: &mut dyn Bus, delivery: Delivery) {
        self.core.block_steps += 1;
        self.core.observing.rip = self.core.rip;
        if self.core.deliver(bus, delivery).is_err() {
            self.core.state.shut_down = true;
            self.core.attention |= attention::HALTED;
        }
    }
}
