//! Fixed-frequency clocks derived from virtual time.
//!
//! Exact integer arithmetic: tick `n` begins at the first nanosecond that is not earlier than `n / hz` seconds. So a
//! clock never drifts and never depends on how often it is read.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A clock of a whole number of hertz, with tick 0 at virtual time 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    hz: u64,
}

impl Clock {
    /// Makes a clock of `hz` hertz, at most 1 GHz, so that every tick lasts at least one nanosecond.
    pub const fn new(hz: u64) -> Clock {
        assert!(hz > 0 && hz <= NS_PER_SECOND);
        Clock { hz }
    }

    /// The number of whole ticks up to `now_ns`.
    pub fn ticks(self, now_ns: u64) -> u64 {
        // Whole seconds are converted separately, so that the products below stay under 10^18.
        let (seconds, rest_ns) = (now_ns / NS_PER_SECOND, now_ns % NS_PER_SECOND);
        seconds * self.hz + rest_ns * self.hz / NS_PER_SECOND
    }

    /// The first nanosecond of `tick`, or `None` if it lies beyond the end of virtual time.
    pub fn start_ns(self, tick: u64) -> Option<u64> {
        let (seconds, rest) = (tick / self.hz, tick % self.hz);
        let rest_ns = (rest * NS_PER_SECOND).div_ceil(self.hz);
        seconds.checked_mul(NS_PER_SECOND)?.checked_add(rest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_starts_exactly_when_the_count_reaches_it() {
        for hz in [1, 32_768, 1_193_182, 3_579_545, 1_000_000_000] {
            let clock = Clock::new(hz);
            for tick in [0, 1, 2, 3, 1000, 65_535, 65_536, 123_456_789] {
                let start = clock.start_ns(tick).unwrap();
                assert_eq!(clock.ticks(start), tick, "{hz} Hz");
                assert!(start == 0 || clock.ticks(start - 1) < tick, "{hz} Hz");
            }
        }
    }

    #[test]
    fn an_hour_holds_exactly_its_ticks() {
        assert_eq!(Clock::new(1_193_182).ticks(3_600_000_000_000), 1_193_182 * 3600);
    }

    #[test]
    fn the_end_of_virtual_time_is_reached_without_overflow() {
        assert_eq!(Clock::new(1).start_ns(u64::MAX), None);
        assert_eq!(Clock::new(1_000_000_000).ticks(u64::MAX), u64::MAX);
    }
}
