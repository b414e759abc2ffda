//! The interrupt flags of register C, computed from the time.

use super::calendar::Format;
use super::{A_RATE, C_ALARM, C_FLAGS, C_PERIODIC, C_UPDATE, ClockStateV1, NS_PER_SECOND, Rtc};
use crate::clock::Clock;

/// The time base of the periodic interrupt, a watch crystal.
const CRYSTAL: Clock = Clock::new(32_768);
/// An alarm byte with both high bits set matches everything.
const WILDCARD: u8 = 0xC0;
const SECONDS_PER_DAY: u64 = 86_400;

impl Rtc {
    /// The flags in `mask` that register C shows at `now_ns`.
    pub(super) fn flags(&self, mask: u8, now_ns: u64) -> u8 {
        [C_PERIODIC, C_ALARM, C_UPDATE]
            .into_iter()
            .filter(|flag| flag & mask & !self.s.flags != 0)
            .filter(|&flag| {
                self.next_flag_ns(flag, self.s.flags_from_ns).is_some_and(|at_ns| at_ns <= now_ns)
            })
            .fold(self.s.flags & mask, |flags, flag| flags | flag)
    }

    /// The alarm's hour, minute and second. `None` matches every value.
    pub(super) fn alarm(&self) -> [Option<u8>; 3] {
        let ([second, minute, hour], format) = (self.s.alarm, self.format());
        let field = |raw: u8, value: u8| (raw < WILDCARD).then_some(value);
        [
            field(hour, format.decode_hours(hour)),
            field(minute, format.decode(minute)),
            field(second, format.decode(second)),
        ]
    }

    /// Stores the flags up to now, before a change of the settings.
    pub(super) fn settle_flags(&mut self, now_ns: u64) {
        self.s.flags = self.flags(C_FLAGS, now_ns);
        self.s.flags_from_ns = now_ns;
    }

    /// The time of the next event of `flag` after `after_ns`.
    pub(super) fn next_flag_ns(&self, flag: u8, after_ns: u64) -> Option<u64> {
        match flag {
            C_PERIODIC => self.next_periodic_ns(after_ns),
            C_UPDATE => self.next_update_ns(after_ns),
            _ => self.next_alarm_ns(after_ns),
        }
    }

    /// The next periodic interrupt. The periodic interrupt depends on the divider only, even if
    /// SET stops the updates.
    fn next_periodic_ns(&self, after_ns: u64) -> Option<u64> {
        let rate = self.s.reg_a & A_RATE;
        if rate == 0 || !self.divider_runs() {
            return None;
        }
        // For this time base rates 1 and 2 are the same as 8 and 9.
        let shift = if rate <= 2 { rate + 6 } else { rate - 1 };
        let period = CRYSTAL.ticks(after_ns) >> shift;
        CRYSTAL.start_ns((period + 1) << shift)
    }

    fn next_update_ns(&self, after_ns: u64) -> Option<u64> {
        let (_, fraction_ns) = self.running_time(after_ns)?;
        after_ns.checked_add(NS_PER_SECOND - u64::from(fraction_ns))
    }

    /// The first update after `after_ns` whose new time matches the alarm.
    fn next_alarm_ns(&self, after_ns: u64) -> Option<u64> {
        let update_ns = self.next_update_ns(after_ns)?;
        let ClockStateV1::Running { .. } = self.s.clock else { return None };
        let (seconds, _) = self.running_time(update_ns)?;
        let second_of_day = seconds.rem_euclid(SECONDS_PER_DAY as i64) as u32;
        let wait_s = Alarm::new(self.s.alarm, self.format())?.wait_s(second_of_day);
        update_ns.checked_add(u64::from(wait_s) * NS_PER_SECOND)
    }
}

/// The seconds, minutes and hours that match; `None` is a wildcard.
struct Alarm {
    second: Option<u32>,
    minute: Option<u32>,
    hour: Option<u32>,
}

impl Alarm {
    /// Decodes the alarm. Returns `None` for bytes that no time equals.
    fn new([second, minute, hour]: [u8; 3], format: Format) -> Option<Alarm> {
        let field = |raw: u8, number: u8, limit: u8| match raw {
            WILDCARD.. => Some(None),
            _ if number < limit => Some(Some(u32::from(number))),
            _ => None,
        };
        Some(Alarm {
            second: field(second, format.decode(second), 60)?,
            minute: field(minute, format.decode(minute), 60)?,
            hour: field(hour, format.decode_hours(hour), 24)?,
        })
    }

    /// Seconds to wait from `second_of_day` until the alarm's next match; 0 if `second_of_day` itself matches.
    fn wait_s(&self, second_of_day: u32) -> u32 {
        const DAY: u32 = SECONDS_PER_DAY as u32;
        let mut time = second_of_day;
        let mut wait = 0;
        // Each step skips to the next candidate of the coarsest field that does not match. After a day the
        // loop has tried every time.
        while wait <= DAY {
            let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
            let step = if self.hour.is_some_and(|wanted| wanted != hour) {
                3600 - time % 3600
            } else if self.minute.is_some_and(|wanted| wanted != minute) {
                60 - time % 60
            } else if self.second.is_some_and(|wanted| wanted != second) {
                1
            } else {
                return wait;
            };
            wait += step;
            time = (time + step) % DAY;
        }
        wait
    }
}
