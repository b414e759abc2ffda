//! The local APIC timer. The timer stores its expiry time and never counts, so reading the timer does not
//! change its state.

use serde::{Deserialize, Serialize};

const MODE_PERIODIC: u32 = 1;
const MODE_TSC_DEADLINE: u32 = 2;

/// The timer's saved state, version 1. The timer's mode is in the local vector table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerStateV1 {
    pub(super) initial: u32,
    /// Divide configuration register.
    pub(super) divide: u8,
    /// The expiry time, if the timer runs.
    pub(super) expiry_ns: Option<u64>,
}

/// The mode of a local APIC's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerMode {
    /// The timer stops after it has counted down.
    OneShot,
    /// The timer starts again after it has counted down.
    Periodic,
    /// The timer waits for a value of the TSC.
    TscDeadline,
}

/// A local APIC's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerSummary {
    /// The timer's mode.
    pub mode: TimerMode,
    /// The count from which the timer counts down.
    pub initial_count: u32,
    /// Nanoseconds for each count.
    pub divider: u32,
    /// The time at which the timer expires next; `None` if the timer does not run.
    pub expires_ns: Option<u64>,
}

/// The timer: its state, and its mode from its entry in the local vector table.
pub(super) struct Timer<'a> {
    s: &'a mut TimerStateV1,
    mode: u32,
}

impl<'a> Timer<'a> {
    pub fn new(s: &'a mut TimerStateV1, entry: u32) -> Timer<'a> {
        Timer { s, mode: mode(entry) }
    }

    /// The timer's state, decoded.
    pub fn summary(s: &TimerStateV1, entry: u32) -> TimerSummary {
        let mode = match mode(entry) {
            MODE_PERIODIC => TimerMode::Periodic,
            MODE_TSC_DEADLINE => TimerMode::TscDeadline,
            _ => TimerMode::OneShot,
        };
        TimerSummary {
            mode,
            initial_count: s.initial,
            divider: 1 << shift(s.divide),
            expires_ns: s.expiry_ns,
        }
    }

    pub fn tsc_deadline(&self) -> u64 {
        if self.mode == MODE_TSC_DEADLINE { self.s.expiry_ns.unwrap_or(0) } else { 0 }
    }

    /// Sets the deadline. Does nothing outside TSC-deadline mode.
    pub fn set_tsc_deadline(&mut self, deadline_ns: u64) {
        if self.mode == MODE_TSC_DEADLINE {
            self.s.expiry_ns = (deadline_ns != 0).then_some(deadline_ns);
        }
    }

    /// Sets the initial count, which starts the timer; zero stops it.
    pub fn set_initial_count(&mut self, count: u32, now_ns: u64) {
        if self.mode == MODE_TSC_DEADLINE {
            return;
        }
        self.s.initial = count;
        self.s.expiry_ns = if count == 0 { None } else { now_ns.checked_add(self.period_ns()) };
    }

    pub fn current_count(&self, now_ns: u64) -> u32 {
        match self.s.expiry_ns {
            Some(expiry_ns) if self.mode != MODE_TSC_DEADLINE => {
                expiry_ns.saturating_sub(now_ns).div_ceil(1 << self.shift()) as u32
            }
            _ => 0,
        }
    }

    /// Sets the divider. A running countdown continues from its current count at the new speed.
    pub fn set_divide(&mut self, value: u32, now_ns: u64) {
        let remaining = u64::from(self.current_count(now_ns));
        self.s.divide = value as u8 & 0x0B;
        if self.mode != MODE_TSC_DEADLINE && self.s.expiry_ns.is_some() {
            self.s.expiry_ns = now_ns.checked_add(remaining << self.shift());
        }
    }

    /// Sets the mode from the timer's new entry in the local vector table. Moving into or out of TSC-deadline mode
    /// disarms the timer.
    pub fn change_mode(&mut self, entry: u32) {
        let mode = mode(entry);
        if (mode == MODE_TSC_DEADLINE) != (self.mode == MODE_TSC_DEADLINE) {
            self.s.expiry_ns = None;
            self.s.initial = 0;
        }
        self.mode = mode;
    }

    /// Whether the timer has expired at `now_ns`. An expired timer is rearmed or stopped.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        let Some(expiry_ns) = self.s.expiry_ns.filter(|&expiry_ns| expiry_ns <= now_ns) else { return false };
        self.s.expiry_ns = None;
        let period_ns = self.period_ns();
        if self.mode == MODE_PERIODIC && period_ns > 0 {
            let periods = (now_ns - expiry_ns) / period_ns + 1;
            let ahead_ns = periods.checked_mul(period_ns);
            self.s.expiry_ns = ahead_ns.and_then(|ahead_ns| expiry_ns.checked_add(ahead_ns));
        }
        true
    }

    fn period_ns(&self) -> u64 {
        u64::from(self.s.initial) << self.shift()
    }

    fn shift(&self) -> u32 {
        shift(self.s.divide)
    }
}

/// The divider as a shift, from bits 3, 1 and 0 of its register: 0 divides by two, 6 by 128, 7 by one.
fn shift(divide: u8) -> u32 {
    let bits = u32::from(divide);
    ((bits & 3 | bits >> 1 & 4) + 1) & 7
}

/// The mode, bits 18:17 of the vector table entry. The reserved fourth mode behaves as one-shot.
fn mode(entry: u32) -> u32 {
    entry >> 17 & 3
}
