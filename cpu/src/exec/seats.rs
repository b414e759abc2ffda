//! The processors of a [`Cpu`](super::Cpu). The processor whose turn it is has the *seat*, and its registers are in the
//! [`Core`]. The other processors are *parked*. All processors share the TLB and the decoded code.

use translator::Frame;

use super::policy::{End, TurnPolicy, TurnRules, Turns};
use crate::attention;
use crate::bus::{Bus, Startup};
use crate::core::Core;
use crate::flags::{self, LazyFlags};
use crate::state::{CpuState, SegReg, Segment};

/// The value that firmware would write to IA32_MTRR_DEF_TYPE: the MTRRs are on, and all memory is write-back. Linux
/// expects the same value on every processor.
const MTRR_DEF_TYPE: u64 = 0xc06;

/// All processors: the one in the seat, and the parked ones.
pub(super) struct Seats {
    /// The processors, indexed by number. The entry of the processor in the seat holds outdated values.
    parked: Vec<Parked>,
    seat: usize,
    /// The step count at which the last turn ended, and that turn's processor. This field is not a part of the
    /// machine's state.
    last_turn: Option<(u64, usize)>,
    /// The turns of the processors.
    pub turns: Turns,
}

/// How a run continues when the processor in the seat is halted.
pub(super) enum Halted {
    /// Another processor now has the seat.
    PassedOn,
    /// No processor can run: time must pass.
    Waits,
    /// An interrupt waits that wakes the processor in the seat, but the run ends before the step that delivers the
    /// interrupt.
    Wakes,
}

/// A processor that is not in the seat.
struct Parked {
    frame: Frame,
    flags: LazyFlags,
    rflags: u64,
    rip: u64,
    /// The state of the processor, as in [`Core::state`](crate::core::Core::state).
    state: CpuState,
}

impl Default for Seats {
    fn default() -> Seats {
        Seats::of(1)
    }
}

impl Seats {
    /// Creates `count` processors in reset state.
    pub fn of(count: usize) -> Seats {
        let state = CpuState::reset();
        let parked = (0..count).map(|_| Parked::of(&state)).collect();
        Seats { parked, seat: 0, turns: Turns::new(TurnRules::new(TurnPolicy::default())), last_turn: None }
    }

    /// The number of processors.
    pub fn count(&self) -> usize {
        self.parked.len()
    }

    /// The number of the processor in the seat.
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Whether there are several processors.
    #[inline(always)]
    pub fn are_several(&self) -> bool {
        self.parked.len() > 1
    }

    /// The step count at which the run loop must call [`Cpu::end_turn_here`](super::Cpu::end_turn_here).
    #[inline(always)]
    pub fn next_look(&self) -> u64 {
        if self.are_several() { self.turns.next_look() } else { u64::MAX }
    }

    /// The architectural states of the parked processors, by number.
    pub fn parked_states(&self) -> Vec<CpuState> {
        self.others().map(|number| self.parked_state(number)).collect()
    }

    /// The architectural state of a parked processor.
    pub fn parked_state(&self, number: usize) -> CpuState {
        self.parked[number].state()
    }

    /// Replaces the seat and the states of the parked processors.
    pub fn set_parked(&mut self, seat: usize, states: &[CpuState]) {
        assert_eq!(states.len() + 1, self.count(), "all processors but one are parked");
        assert!(seat < self.count(), "the processor exists");
        (self.seat, self.last_turn) = (seat, None);
        let others: Vec<usize> = self.others().collect();
        for (number, state) in others.into_iter().zip(states) {
            self.parked[number] = Parked::of(state);
        }
    }

    /// The RFLAGS of the parked processors, without the arithmetic flags.
    pub fn parked_flags(&self) -> impl Iterator<Item = u64> {
        self.others().map(|number| self.parked[number].rflags)
    }

    /// Notes that a turn ends at this step count. Several turns may end at one count, because a turn can end
    /// without a step. Then the processor of the first of these turns has executed the last step.
    pub fn note_end(&mut self, steps: u64) {
        if self.last_turn.is_none_or(|(ended, _)| ended != steps) {
            self.last_turn = Some((steps, self.seat));
        }
    }

    /// The processor that executed the last step before this step count.
    pub fn stepped_by(&self, steps: u64) -> usize {
        self.last_turn.filter(|&(ended, _)| ended == steps).map_or(self.seat, |(_, processor)| processor)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let seat = self.seat;
        (0..self.count()).filter(move |&number| number != seat)
    }

    /// Ends the turn of the processor in the seat, whose registers are in `core`. Returns the processor that has the
    /// seat next, `None` if the seat does not change.
    pub fn next(&mut self, core: &Core, end: End, bus: &mut dyn Bus) -> Option<usize> {
        let (seat, count, parked) = (self.seat, self.count(), &self.parked);
        self.turns.next(end, core.block_steps, (seat, count), |number| {
            if number == seat {
                return can_run(&core.state, core.rflags, seat, bus);
            }
            let Parked { state, rflags, .. } = &parked[number];
            can_run(state, *rflags, number, bus)
        })
    }

    /// Whether a processor that is not in the seat can run.
    pub fn another_can_run(&self, bus: &mut dyn Bus) -> bool {
        self.others().any(|number| {
            let Parked { state, rflags, .. } = &self.parked[number];
            can_run(state, *rflags, number, bus)
        })
    }

    /// Gives the seat to the processor `next`. `core` gets the registers of `next`, and its own registers are parked.
    pub fn exchange(&mut self, next: usize, core: &mut Core) {
        let has_breakpoints = (core.state.dr7 | self.parked[next].state.dr7) & 0xff != 0;
        self.parked[self.seat].swap(core);
        self.parked[next].swap(core);
        (self.seat, core.processor) = (next, next);
        core.registers_exchanged();
        if has_breakpoints {
            core.debug_registers_changed();
        }
    }
}

impl Parked {
    fn of(state: &CpuState) -> Parked {
        let mut frame = Frame::default();
        frame.regs[..16].copy_from_slice(&state.gpr);
        frame.xmm = state.xmm;
        for (number, segment) in state.segments.iter().enumerate() {
            (frame.seg_base[number], frame.selectors[number]) = (segment.base, segment.selector);
        }
        let (flags, rflags) = (LazyFlags::from_bits(state.rflags), state.rflags & !flags::ARITHMETIC);
        Parked { frame, flags, rflags, rip: state.rip, state: state.clone() }
    }

    /// Exchanges the parked registers and the registers of `core`.
    fn swap(&mut self, core: &mut Core) {
        std::mem::swap(&mut core.frame, &mut self.frame);
        std::mem::swap(&mut core.flags, &mut self.flags);
        std::mem::swap(&mut core.rflags, &mut self.rflags);
        std::mem::swap(&mut core.rip, &mut self.rip);
        std::mem::swap(&mut core.state, &mut self.state);
    }

    /// The architectural state, canonical.
    fn state(&self) -> CpuState {
        let mut state = self.state.clone();
        state.gpr.copy_from_slice(&self.frame.regs[..16]);
        (state.xmm, state.rip) = (self.frame.xmm, self.rip);
        state.rflags = self.rflags | self.flags.bits();
        state
    }
}

/// Whether a processor would execute a step if it got the seat.
pub(super) fn can_run(state: &CpuState, rflags: u64, number: usize, bus: &mut dyn Bus) -> bool {
    let signals = bus.processor_signals(number);
    match signals.startup {
        Startup::Awaited => false,
        Startup::Due => true,
        Startup::Done if !state.halted => true,
        Startup::Done => signals.interrupt && rflags & flags::IF != 0 || signals.nmi && !state.nmi_blocked,
    }
}

/// The state of a processor right after it received a start-up message (SDM vol. 3, 9.4.4.1). `page` is the
/// message's vector: the number of the page with the processor's first instruction.
pub(super) fn started_at(page: u8) -> CpuState {
    let mut state = CpuState::reset();
    let (selector, base) = (u16::from(page) << 8, u64::from(page) << 12);
    state.segments[SegReg::Cs as usize] = Segment { selector, base, limit: 0xffff, attributes: 0x9b };
    state.rip = 0;
    state.msrs.mtrr_def_type = MTRR_DEF_TYPE;
    state
}

impl Core {
    /// Updates the fields of `Core` that are derived from the registers. Must be called after an exchange of the
    /// registers.
    fn registers_exchanged(&mut self) {
        self.index = 0;
        let kept = attention::STALE_CODE | attention::FOREIGN_WRITES | attention::HIT | attention::OBSERVED;
        self.attention = self.attention & kept | attention::SIGNALS;
        if self.state.interrupt_shadow {
            self.attention |= attention::SHADOW;
        }
        if self.state.halted || self.state.shut_down {
            self.attention |= attention::HALTED;
        }
        self.mode_changed();
        self.paging_changed();
        self.update_debug_attention();
    }
}
