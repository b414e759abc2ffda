//! Dates and the format of the time registers.

/// Number of time registers: seconds, minutes, hours, weekday, day, month, year, century.
pub(super) const TIME_REGISTERS: usize = 8;

/// CMOS address of the century.
pub(super) const REG_CENTURY: usize = 0x32;
const ADDRESSES: [usize; TIME_REGISTERS] = [0, 2, 4, 6, 7, 8, 9, REG_CENTURY];
const HOURS: usize = 2;
const WEEKDAY: usize = 3;
const SECONDS_PER_DAY: i64 = 86_400;
const PM: u8 = 0x80;

/// The index of the time register at a CMOS address, if there is one.
pub(super) fn time_register(address: usize) -> Option<usize> {
    ADDRESSES.iter().position(|&candidate| candidate == address)
}

/// The number format of the registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    binary: bool,
    hours_24: bool,
}

impl Format {
    pub fn from_register_b(reg_b: u8) -> Format {
        Format { binary: reg_b & 0x04 != 0, hours_24: reg_b & 0x02 != 0 }
    }

    pub fn encode(self, number: u8) -> u8 {
        if self.binary { number } else { ((number / 10 % 10) << 4) | (number % 10) }
    }

    /// Decodes a number. BCD digits above nine are decoded as their binary value.
    pub fn decode(self, raw: u8) -> u8 {
        if self.binary { raw } else { (raw >> 4) * 10 + (raw & 0x0F) }
    }

    pub fn encode_hours(self, hours: u8) -> u8 {
        if self.hours_24 {
            return self.encode(hours);
        }
        let on_dial = if hours.is_multiple_of(12) { 12 } else { hours % 12 };
        self.encode(on_dial) | if hours >= 12 { PM } else { 0 }
    }

    pub fn decode_hours(self, raw: u8) -> u8 {
        if self.hours_24 {
            return self.decode(raw);
        }
        self.decode(raw & !PM) % 12 + if raw & PM != 0 { 12 } else { 0 }
    }
}

/// A date and a time of day, as the clock shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// The year with its century.
    pub year: u16,
    /// The month, from 1.
    pub month: u8,
    /// The day of the month, from 1.
    pub day: u8,
    /// The hour, 0 to 23.
    pub hour: u8,
    /// The minute.
    pub minute: u8,
    /// The second.
    pub second: u8,
}

/// The time registers as the guest reads them, in the order of `ADDRESSES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRegisters(pub [u8; TIME_REGISTERS]);

impl TimeRegisters {
    pub fn from_unix(unix_seconds: i64, weekday_shift: u8, format: Format) -> TimeRegisters {
        let (days, second) =
            (unix_seconds.div_euclid(SECONDS_PER_DAY), unix_seconds.rem_euclid(SECONDS_PER_DAY));
        let (year, month, day) = civil_from_days(days);
        let weekday = (weekday_from_days(days) + i64::from(weekday_shift)) % 7 + 1;
        let numbers = [
            second % 60,
            second / 60 % 60,
            second / 3600,
            weekday,
            day,
            month,
            year.rem_euclid(100),
            year.div_euclid(100).rem_euclid(100),
        ];
        let mut registers = numbers.map(|number| format.encode(number as u8));
        registers[HOURS] = format.encode_hours((second / 3600) as u8);
        TimeRegisters(registers)
    }

    /// The date and the time of day. Impossible values stay as they are.
    pub fn date(self, format: Format) -> Date {
        let number = |place: usize| format.decode(self.0[place]);
        Date {
            year: u16::from(number(7)) * 100 + u16::from(number(6)),
            month: number(5),
            day: number(4),
            hour: format.decode_hours(self.0[HOURS]),
            minute: number(1),
            second: number(0),
        }
    }

    /// Seconds since 1970 and the weekday shift. Impossible dates carry over (31 April is 1 May).
    pub fn to_unix(self, format: Format) -> (i64, u8) {
        let number = |place: usize| i64::from(format.decode(self.0[place]));
        let year = number(7) * 100 + number(6);
        let days = days_from_civil(year, number(5).clamp(1, 12), 1) + number(4) - 1;
        let hours = i64::from(format.decode_hours(self.0[HOURS]));
        let shift = (number(WEEKDAY) - 1 - weekday_from_days(days)).rem_euclid(7);
        (days * SECONDS_PER_DAY + hours * 3600 + number(1) * 60 + number(0), shift as u8)
    }
}

/// The weekday, where 0 is Sunday; 1 January 1970 was a Thursday.
fn weekday_from_days(days: i64) -> i64 {
    (days + 4).rem_euclid(7)
}

/// Days from 1 January 1970 to a date in the Gregorian calendar. Years start in March, so the leap day is the last day
/// of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let march_year = if month <= 2 { year - 1 } else { year };
    let months_since_march = (month + 9) % 12;
    let day_of_year = (153 * months_since_march + 2) / 5 + day - 1;
    let leap_days = march_year.div_euclid(4) - march_year.div_euclid(100) + march_year.div_euclid(400);
    march_year * 365 + leap_days + day_of_year - DAYS_TO_1970
}

/// Days from 1 March of year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;
const DAYS_PER_400_YEARS: i64 = 146_097;

/// Year, month and day of a number of days since 1 January 1970.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let era = days.div_euclid(DAYS_PER_400_YEARS);
    let day_of_era = days.rem_euclid(DAYS_PER_400_YEARS);
    // The era's leap days before this day: one every 4 years, minus one every 100 years. The era's last day adds
    // one.
    let added = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - added) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = (months_since_march + 2) % 12 + 1;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_convert_both_ways() {
        for (date, days) in
            [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017), ((1969, 12, 31), -1)]
        {
            assert_eq!(civil_from_days(days), date);
            assert_eq!(days_from_civil(date.0, date.1, date.2), days);
        }
        for days in (-800_000..3_000_000).step_by(97) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }

    #[test]
    fn registers_convert_in_every_format() {
        // Saturday 2000-01-01 00:00:01, noon, one second before midnight, and others.
        for unix in [946_684_801, 946_728_000, 946_771_199, 1_582_934_400, 4_102_444_799] {
            for reg_b in [0x00, 0x02, 0x04, 0x06] {
                let format = Format::from_register_b(reg_b);
                for shift in 0..7 {
                    let registers = TimeRegisters::from_unix(unix, shift, format);
                    assert_eq!(registers.to_unix(format), (unix, shift), "{registers:02x?} {format:?}");
                }
            }
        }
    }

    #[test]
    fn twelve_hour_format_has_no_zero() {
        let format = Format::from_register_b(0);
        for (hours, raw) in [(0, 0x12), (1, 0x01), (11, 0x11), (12, 0x92), (13, 0x81), (23, 0x91)] {
            assert_eq!(format.encode_hours(hours), raw);
            assert_eq!(format.decode_hours(raw), hours);
        }
    }

    #[test]
    fn a_known_date_reads_as_expected() {
        // Wednesday 2026-07-15 13:45:59 UTC.
        let registers = TimeRegisters::from_unix(1_784_123_159, 0, Format::from_register_b(0x02));
        assert_eq!(registers.0, [0x59, 0x45, 0x13, 0x04, 0x15, 0x07, 0x26, 0x20]);
        let date = Date { year: 2026, month: 7, day: 15, hour: 13, minute: 45, second: 59 };
        assert_eq!(registers.date(Format::from_register_b(0x02)), date);
    }
}
