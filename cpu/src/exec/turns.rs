//! The ends of turns of several processors.
//!
//! A turn ends at the step count that the policy chose at the turn's beginning, at HLT, and at PAUSE if another
//! processor can run. The seat changes as soon as that step count is reached, before interrupts or breakpoints are
//! handled. So the turns do not depend on where runs are cut.

use cpu_model::Topology;

use super::Cpu;
use super::policy::{End, Turn, TurnPolicy, TurnRules, TurnState, Turns};
use super::seats::{Halted, Seats, can_run, started_at};
use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::flags;
use crate::state::CpuState;

impl Cpu {
    /// Creates `count` processors. All but the first wait for a start-up message (SIPI) from another processor.
    /// Must be called before the CPU first runs.
    pub fn set_processors(&mut self, count: usize) {
        self.drop_code();
        self.seats = Seats::of(count);
        self.core.mmu.set_processors(count);
        (self.core.processor, self.core.processors) = (0, count);
    }

    /// Chooses the sockets, cores and threads that CPUID reports. Without this call, or with `None`, CPUID reports
    /// only the number of processors.
    ///
    /// # Panics
    ///
    /// If the topology's number of processors is not the CPU's.
    pub fn set_topology(&mut self, topology: Option<Topology>) {
        let count = topology.map_or(self.processors(), |topology| topology.processors().into());
        assert_eq!(count, self.processors(), "the topology is of these processors");
        self.core.topology = topology;
    }

    /// Sets the rules of the processors' turns. Must be called after [`Cpu::set_processors`], before the CPU first runs.
    pub fn set_turn_rules(&mut self, rules: TurnRules) {
        self.seats.turns = Turns::new(rules);
    }

    /// Replaces the policy between two runs. A new turn begins.
    pub fn change_turn_policy(&mut self, policy: TurnPolicy) {
        self.seats.turns.set_policy(policy, self.core.block_steps);
    }

    /// The state of the turns; `None` if the state can be computed from the step count.
    pub fn turn_state(&self) -> Option<TurnState> {
        self.seats.turns.state(self.core.block_steps)
    }

    /// Returns the state of the turns for a machine that continues from this point and counts steps from zero.
    pub fn turn_state_from_zero(&self) -> Option<TurnState> {
        self.seats.turns.state_from_zero(self.core.block_steps).filter(|_| self.seats.are_several())
    }

    /// Replaces the state of the turns.
    pub fn set_turn_state(&mut self, state: Option<&TurnState>) {
        self.seats.turns.set_state(state, self.core.block_steps);
    }

    /// Gives turns to processors. These turns come before all turns of the policy, and after given turns that
    /// already wait. Must be called between two runs. If the present turn is a turn of the policy, it ends now.
    pub fn give_turns(&mut self, bus: &mut dyn Bus, turns: &[Turn]) {
        if self.seats.are_several() && self.seats.turns.give(turns) {
            self.pass_on(End::Steps, bus);
        }
    }

    /// Number of given turns that wait. If fewer than [`Turn::FEW_WAITING`] wait during a given turn, runs stop at the
    /// ends of turns with [`Stop::Bus`](super::Stop::Bus).
    pub fn waiting_turns(&self) -> usize {
        self.seats.turns.waiting()
    }

    /// Whether a processor that is not in the seat can run.
    pub fn another_can_run(&self, bus: &mut dyn Bus) -> bool {
        self.seats.another_can_run(bus)
    }

    /// The number of processors.
    pub fn processors(&self) -> usize {
        self.seats.count()
    }

    /// The number of the processor in the seat.
    pub fn seat(&self) -> usize {
        self.seats.seat()
    }

    /// The processor that executed the last step of the last run. If the step ended the turn, another processor has the
    /// seat.
    pub fn stepped_by(&self) -> usize {
        self.seats.stepped_by(self.steps())
    }

    /// Lends the seat to a processor, so that all functions that read the CPU's state read this processor's state.
    /// Returns the processor that had the seat. The CPU must not run before the processor that had the seat has it
    /// again.
    pub fn lend_seat(&mut self, processor: usize) -> usize {
        let had = self.seat();
        if processor != had {
            self.seats.exchange(processor, &mut self.core);
        }
        had
    }

    /// The state of a processor.
    ///
    /// # Panics
    ///
    /// If there is no such processor.
    pub fn state_of(&self, processor: usize) -> CpuState {
        if processor == self.seat() { self.state() } else { self.seats.parked_state(processor) }
    }

    /// The states of the processors that are not in the seat, by number.
    pub fn parked_states(&self) -> Vec<CpuState> {
        self.seats.parked_states()
    }

    /// Replaces the seat, and the states of the processors that are not in the seat. Must be called before
    /// [`Cpu::set_registers`] or a similar function, which replaces the state of the processor in the seat.
    ///
    /// # Panics
    ///
    /// If `states` does not have one state for each other processor, or there is no processor `seat`.
    pub fn set_parked(&mut self, seat: usize, states: &[CpuState]) {
        self.seats.set_parked(seat, states);
        self.core.processor = seat;
    }

    /// Whether an interrupt could wake a halted processor.
    pub fn accepts_interrupts(&self) -> bool {
        self.seats.parked_flags().chain([self.core.rflags]).any(|rflags| rflags & flags::IF != 0)
    }

    /// Ends the turn if its last step or a PAUSE was just executed, or if the processor spins.
    #[cold]
    #[inline(never)]
    pub(super) fn end_turn_here(&mut self, bus: &mut dyn Bus, until_steps: u64) {
        let is_over = self.core.block_steps >= self.seats.turns.ends_at();
        let pauses = std::mem::take(&mut self.core.yields) && self.seats.turns.can_be_yielded();
        let core = &self.core;
        let spins = !is_over && self.seats.turns.spins(core.block_steps, || hash_of_registers(core));
        let yields = pauses || spins;
        if self.seats.are_several() && (is_over || yields) {
            self.observe_step();
            let from = self.seats.seat();
            if self.pass_on(if is_over { End::Steps } else { End::Yield }, bus) {
                self.core.turn_ended(from);
            }
            // Make the run loop sample the signals, and ask for more given turns if few wait.
            self.core.attention |= attention::SIGNALS;
        }
        self.core.budget_end = until_steps.min(self.seats.next_look());
    }

    /// Gives the seat of a halted processor to another processor that can run. `begun` is the step count at which
    /// this run began.
    pub(super) fn leave_halted(&mut self, bus: &mut dyn Bus, until_steps: u64, begun: u64) -> Halted {
        if !self.seats.are_several() {
            return Halted::Waits;
        }
        if can_run(&self.core.state, self.core.rflags, self.seats.seat(), bus) {
            return Halted::Wakes;
        }
        let from = self.seats.seat();
        if !self.pass_on(End::Halt, bus) {
            return Halted::Waits;
        }
        self.core.budget_end = until_steps.min(self.seats.next_look());
        // Report the end of the turn only as an event of a step of this run. Without such a step, time may have
        // passed since the last step.
        if self.core.block_steps != begun {
            self.core.turn_ended(from);
        }
        Halted::PassedOn
    }

    /// Ends the turn, and begins the next one. Returns whether the seat changed.
    fn pass_on(&mut self, end: End, bus: &mut dyn Bus) -> bool {
        let Some(next) = self.seats.next(&self.core, end, bus) else { return false };
        self.seats.note_end(self.core.block_steps);
        self.seats.exchange(next, &mut self.core);
        bus.take_seat(next);
        if let Some(page) = bus.take_start() {
            self.core.load_registers(&started_at(page));
            self.core.debug_registers_changed();
        }
        true
    }
}

/// A hash of the general registers, the flags and RIP. Floating-point and vector registers are left out, because a
/// loop that changes only these registers does not wait for another processor. The hash is a part of the machine's
/// state, so the function must never change.
fn hash_of_registers(core: &Core) -> u64 {
    let words = core.frame.regs[..16].iter().copied().chain([core.flags.bits(), core.rip]);
    words.fold(0, |hash: u64, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
