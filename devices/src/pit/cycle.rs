//! A counter's value and output, as functions of the clock ticks since its count was loaded.

/// A running count and the tick at which it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    /// The clock tick at which the counter holds `count`.
    pub origin_tick: u64,
    /// The count, 1 to 65536 (10000 in BCD).
    pub count: u32,
    /// The one-shot modes only: whether the count went through zero before the gate held and released it.
    /// After that the output does not change again.
    pub expired: bool,
}

impl Cycle {
    fn count(self) -> u64 {
        u64::from(self.count)
    }

    fn elapsed(self, tick: u64) -> u64 {
        tick.saturating_sub(self.origin_tick)
    }

    /// Whether a one-shot counter has been through zero at `tick`.
    pub fn is_expired(self, tick: u64) -> bool {
        self.expired || self.elapsed(tick) >= self.count()
    }

    /// The counter's value at `tick`. A counter that went through zero wraps to `modulus`.
    pub fn value(self, mode: u8, tick: u64, modulus: u32) -> u32 {
        let elapsed = self.elapsed(tick);
        match mode {
            2 => (self.count() - elapsed % self.count()) as u32,
            3 => self.square_value(elapsed % self.count()),
            _ => {
                let modulus = u64::from(modulus);
                ((self.count() + modulus - elapsed % modulus) % modulus) as u32
            }
        }
    }

    /// The output at `tick`, which must not be before the origin.
    pub fn output(self, mode: u8, tick: u64) -> bool {
        let elapsed = self.elapsed(tick);
        match mode {
            2 => elapsed % self.count() != self.count() - 1,
            3 => elapsed % self.count() < self.high_ticks(),
            4 | 5 => self.expired || elapsed != self.count(),
            _ => self.is_expired(tick),
        }
    }

    /// The first tick after `tick` at which the output may differ from the output at `tick`.
    pub fn next_change(self, mode: u8, tick: u64) -> Option<u64> {
        let elapsed = self.elapsed(tick);
        let later = |relative: u64| self.origin_tick.checked_add(relative);
        let periodic = |turn: u64| {
            let (done, phase) = (elapsed - elapsed % self.count(), elapsed % self.count());
            later(done + if phase < turn { turn } else { self.count() })
        };
        match mode {
            // A count of one is illegal in the periodic modes; then the output never changes.
            2 | 3 if self.count == 1 => None,
            2 => periodic(self.count() - 1),
            3 => periodic(self.high_ticks()),
            _ if self.expired => None,
            4 | 5 if elapsed == self.count() => later(elapsed.saturating_add(1)),
            _ if elapsed < self.count() => later(self.count()),
            _ => None,
        }
    }

    /// The tick at which the period running at `tick` ends.
    pub fn period_end(self, tick: u64) -> u64 {
        let periods = self.elapsed(tick) / self.count() + 1;
        self.origin_tick.saturating_add(periods.saturating_mul(self.count()))
    }

    /// The tick at which the half period running at `tick` ends. Mode 3 reloads at the end of each half.
    pub fn half_period_end(self, tick: u64) -> u64 {
        let start = self.period_end(tick).saturating_sub(self.count());
        let turn = start.saturating_add(self.high_ticks());
        if tick < turn { turn } else { self.period_end(tick) }
    }

    fn high_ticks(self) -> u64 {
        self.count().div_ceil(2)
    }

    /// The value in mode 3, which counts down by two, once for each half. Odd counts are loaded with their lowest bit
    /// clear.
    fn square_value(self, phase: u64) -> u32 {
        let in_half = if phase < self.high_ticks() { phase } else { phase - self.high_ticks() };
        (self.count & !1) - 2 * in_half as u32
    }
}
