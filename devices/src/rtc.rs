//! MC146818 real-time clock with 128 bytes of CMOS RAM (Motorola MC146818A datasheet).
//!
//! The clock shows its start date plus virtual time. Nothing in the clock ticks. The time registers, the
//! update-in-progress bit and the three interrupt flags are computed from the virtual time since the guest last touched
//! these registers. So the saved state does not depend on when it was read. Modelled: both register formats (BCD and
//! binary, 12 and 24 hours), the century byte 0x32, alarm wildcards and the periodic rates. SET and the divider can
//! stop the clock. Not modelled: daylight saving and the square-wave output.

mod calendar;
mod flags;

use serde::{Deserialize, Serialize};

use crate::restore::RestoreError;
pub use calendar::Date;
use calendar::{Format, REG_CENTURY, TIME_REGISTERS, TimeRegisters};

pub(crate) const NS_PER_SECOND: u64 = 1_000_000_000;
/// The update-in-progress bit comes on this long before the registers change.
const UPDATE_LEAD_NS: u64 = 244_000;
/// The first update comes half a second after the divider is released.
const DIVIDER_RELEASE_NS: u64 = NS_PER_SECOND / 2;
/// Limit for the seconds since 1970. The limit is beyond every date that the registers can show, and far below the
/// limits of the arithmetic.
const MAX_UNIX_SECONDS: i64 = 400_000_000_000;

const CMOS_BYTES: usize = 128;
const REG_A: usize = 0x0A;
const REG_B: usize = 0x0B;
const REG_C: usize = 0x0C;
const REG_D: usize = 0x0D;

const A_UPDATE_IN_PROGRESS: u8 = 0x80;
const A_DIVIDER: u8 = 0x70;
const A_DIVIDER_RUNS: u8 = 0x20;
const A_RATE: u8 = 0x0F;
const B_SET: u8 = 0x80;
const B_UPDATE_ENABLE: u8 = 0x10;
const C_IRQ: u8 = 0x80;
const C_PERIODIC: u8 = 0x40;
const C_ALARM: u8 = 0x20;
const C_UPDATE: u8 = 0x10;
/// The flags of register C. The enable bit of a flag has the same number in register B.
const C_FLAGS: u8 = C_PERIODIC | C_ALARM | C_UPDATE;
const D_VALID: u8 = 0x80;

/// The state of the clock, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockStateV1 {
    /// The clock shows virtual time plus this offset.
    Running {
        /// Whole seconds since 1970 at virtual time 0.
        offset_s: i64,
        /// Nanoseconds in addition to the seconds, less than a second.
        offset_ns: u32,
    },
    /// Stopped by SET or by the divider: the registers do not change by themselves, and can be written.
    Stopped {
        /// The time registers, as the guest reads them.
        registers: [u8; 8],
        /// The clock's position in its second, in nanoseconds. The clock continues from this position.
        phase_ns: u32,
    },
}

/// The saved state of an [`Rtc`], version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtcStateV1 {
    index: u8,
    clock: ClockStateV1,
    /// The difference between the weekday that the guest has set and the weekday of the date, in days.
    weekday_shift: u8,
    /// Seconds, minutes and hours of the alarm, as written.
    alarm: [u8; 3],
    reg_a: u8,
    reg_b: u8,
    /// Flags of register C up to `flags_from_ns`. Later flags are computed from the time.
    flags: u8,
    flags_from_ns: u64,
    /// The CMOS bytes, by address. Bytes that have a field of their own in this struct are zero here.
    nvram: Vec<u8>,
}

/// The clock's state, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtcSummary {
    /// The date that the clock shows.
    pub date: Date,
    /// Whether the clock runs.
    pub runs: bool,
    /// The alarm's hour, minute and second. `None` matches every value.
    pub alarm: [Option<u8>; 3],
    /// Whether the alarm causes interrupts.
    pub is_alarm_enabled: bool,
    /// Whether each second causes an interrupt.
    pub is_update_enabled: bool,
    /// Whether the periodic interrupt is enabled.
    pub is_periodic_enabled: bool,
    /// Whether the interrupt line is up.
    pub is_up: bool,
}

/// The clock with its registers and its CMOS RAM.
#[derive(Clone, Debug)]
pub struct Rtc {
    s: RtcStateV1,
}

impl Rtc {
    /// Makes a running clock in 24-hour BCD format that shows `unix_seconds` (UTC) at virtual time 0.
    pub fn new(unix_seconds: i64) -> Rtc {
        let offset_s = unix_seconds.clamp(-MAX_UNIX_SECONDS, MAX_UNIX_SECONDS);
        let s = RtcStateV1 {
            index: 0,
            clock: ClockStateV1::Running { offset_s, offset_ns: 0 },
            weekday_shift: 0,
            alarm: [0; 3],
            // 32.768 kHz crystal, 1024 Hz periodic rate.
            reg_a: 0x26,
            reg_b: 0x02,
            flags: 0,
            flags_from_ns: 0,
            nvram: vec![0; CMOS_BYTES],
        };
        Rtc { s }
    }

    /// Reads the index (`offset` 0) or data (1) port.
    pub fn read(&mut self, offset: u16, now_ns: u64) -> u8 {
        if offset == 0 { 0xFF } else { self.read_register(usize::from(self.s.index), now_ns) }
    }

    /// Writes the index or data port. Bit 7 of the index (NMI mask on a PC) is ignored.
    pub fn write(&mut self, offset: u16, value: u8, now_ns: u64) {
        if offset == 0 {
            self.s.index = value & 0x7F;
        } else {
            self.write_register(usize::from(self.s.index), value, now_ns);
        }
    }

    /// Sets a byte of CMOS RAM, as firmware does. The clock's own registers do not change.
    pub fn set_nvram(&mut self, address: u8, value: u8) {
        let address = usize::from(address & 0x7F);
        if address > REG_D && address != REG_CENTURY {
            self.s.nvram[address] = value;
        }
    }

    /// Level of the interrupt line. The line stays up until register C is read.
    pub fn irq(&self, now_ns: u64) -> bool {
        self.flags(self.s.reg_b & C_FLAGS, now_ns) != 0
    }

    /// The first time after `after_ns` at which the interrupt line rises without an access; `None` if it never does.
    pub fn next_deadline_ns(&self, after_ns: u64) -> Option<u64> {
        if self.irq(after_ns) {
            return None;
        }
        [C_PERIODIC, C_ALARM, C_UPDATE]
            .into_iter()
            .filter(|flag| self.s.reg_b & flag != 0)
            .filter_map(|flag| self.next_flag_ns(flag, after_ns))
            .min()
    }

    /// The clock's state, decoded.
    pub fn summary(&self, now_ns: u64) -> RtcSummary {
        RtcSummary {
            date: self.time_registers(now_ns).date(self.format()),
            runs: matches!(self.s.clock, ClockStateV1::Running { .. }),
            alarm: self.alarm(),
            is_alarm_enabled: self.s.reg_b & C_ALARM != 0,
            is_update_enabled: self.s.reg_b & C_UPDATE != 0,
            is_periodic_enabled: self.s.reg_b & C_PERIODIC != 0,
            is_up: self.irq(now_ns),
        }
    }

    /// The chip's state.
    pub fn save(&self) -> RtcStateV1 {
        self.s.clone()
    }

    /// Builds the chip from a saved state.
    pub fn restore(state: &RtcStateV1) -> Result<Rtc, RestoreError> {
        let check = |possible, what| RestoreError::unless(possible, "RTC", what);
        check(state.nvram.len() == CMOS_BYTES, "wrong size of CMOS RAM")?;
        check(state.index < CMOS_BYTES as u8, "index out of range")?;
        check(state.weekday_shift < 7, "weekday out of range")?;
        match state.clock {
            ClockStateV1::Running { offset_s, offset_ns } => {
                check(offset_s.abs() <= 2 * MAX_UNIX_SECONDS, "date out of range")?;
                check(u64::from(offset_ns) < NS_PER_SECOND, "fraction out of range")?;
            }
            ClockStateV1::Stopped { phase_ns, .. } => {
                check(u64::from(phase_ns) < NS_PER_SECOND, "fraction out of range")?;
            }
        }
        Ok(Rtc { s: state.clone() })
    }

    fn read_register(&mut self, register: usize, now_ns: u64) -> u8 {
        if let Some(place) = calendar::time_register(register) {
            return self.time_registers(now_ns).0[place];
        }
        match register {
            1 | 3 | 5 => self.s.alarm[register / 2],
            REG_A => self.s.reg_a | if self.is_updating(now_ns) { A_UPDATE_IN_PROGRESS } else { 0 },
            REG_B => self.s.reg_b,
            REG_C => self.read_flags(now_ns),
            REG_D => D_VALID,
            _ => self.s.nvram[register],
        }
    }

    fn write_register(&mut self, register: usize, value: u8, now_ns: u64) {
        if register <= REG_D || register == REG_CENTURY {
            // New settings must not change the flags that were set up to now.
            self.settle_flags(now_ns);
        }
        if let Some(place) = calendar::time_register(register) {
            return self.write_time(place, value, now_ns);
        }
        match register {
            1 | 3 | 5 => self.s.alarm[register / 2] = value,
            REG_A => self.reprogram(now_ns, |s| s.reg_a = value & !A_UPDATE_IN_PROGRESS),
            REG_B => self.reprogram(now_ns, |s| {
                // SET also clears the update-ended interrupt enable.
                s.reg_b = if value & B_SET != 0 { value & !B_UPDATE_ENABLE } else { value };
            }),
            REG_C | REG_D => {}
            _ => self.s.nvram[register] = value,
        }
    }

    fn read_flags(&mut self, now_ns: u64) -> u8 {
        let irq = if self.irq(now_ns) { C_IRQ } else { 0 };
        let flags = self.flags(C_FLAGS, now_ns);
        self.s.flags = 0;
        self.s.flags_from_ns = now_ns;
        flags | irq
    }

    fn format(&self) -> Format {
        Format::from_register_b(self.s.reg_b)
    }

    fn divider_runs(&self) -> bool {
        self.s.reg_a & A_DIVIDER == A_DIVIDER_RUNS
    }

    fn should_run(&self) -> bool {
        self.divider_runs() && self.s.reg_b & B_SET == 0
    }

    /// Whole seconds since 1970 and the nanoseconds on top; `None` if the clock is stopped.
    fn running_time(&self, now_ns: u64) -> Option<(i64, u32)> {
        let ClockStateV1::Running { offset_s, offset_ns } = self.s.clock else { return None };
        let fraction_ns = now_ns % NS_PER_SECOND + u64::from(offset_ns);
        let seconds = now_ns / NS_PER_SECOND + fraction_ns / NS_PER_SECOND;
        Some((offset_s + seconds as i64, (fraction_ns % NS_PER_SECOND) as u32))
    }

    fn time_registers(&self, now_ns: u64) -> TimeRegisters {
        match (&self.s.clock, self.running_time(now_ns)) {
            (ClockStateV1::Stopped { registers, .. }, _) => TimeRegisters(*registers),
            (_, Some((seconds, _))) => TimeRegisters::from_unix(seconds, self.s.weekday_shift, self.format()),
            (_, None) => TimeRegisters([0; TIME_REGISTERS]),
        }
    }

    fn is_updating(&self, now_ns: u64) -> bool {
        self.running_time(now_ns)
            .is_some_and(|(_, fraction_ns)| u64::from(fraction_ns) >= NS_PER_SECOND - UPDATE_LEAD_NS)
    }

    /// Writes a time register. If the clock runs, the write takes effect at once and keeps the fraction of the second.
    fn write_time(&mut self, place: usize, value: u8, now_ns: u64) {
        let mut registers = self.time_registers(now_ns);
        registers.0[place] = value;
        match self.running_time(now_ns) {
            Some((_, phase_ns)) => self.run_from(&registers, phase_ns, now_ns),
            None => {
                if let ClockStateV1::Stopped { registers: stored, .. } = &mut self.s.clock {
                    *stored = registers.0;
                }
            }
        }
    }

    /// Changes register A or B, and stops or starts the clock accordingly.
    fn reprogram(&mut self, now_ns: u64, change: impl FnOnce(&mut RtcStateV1)) {
        let registers = self.time_registers(now_ns);
        let divider_ran = self.divider_runs();
        change(&mut self.s);
        let divider_released = self.divider_runs() && !divider_ran;
        let phase_ns = match (&self.s.clock, self.running_time(now_ns)) {
            (ClockStateV1::Stopped { .. }, _) if divider_released => {
                (NS_PER_SECOND - DIVIDER_RELEASE_NS) as u32
            }
            (ClockStateV1::Stopped { phase_ns, .. }, _) => *phase_ns,
            (_, running) => running.map_or(0, |(_, phase_ns)| phase_ns),
        };
        let is_stopped = matches!(self.s.clock, ClockStateV1::Stopped { .. });
        match (is_stopped, self.should_run()) {
            (true, true) => self.run_from(&registers, phase_ns, now_ns),
            (_, false) => self.s.clock = ClockStateV1::Stopped { registers: registers.0, phase_ns },
            (false, true) => {}
        }
    }

    /// Starts the clock at `registers`, `phase_ns` into their second.
    fn run_from(&mut self, registers: &TimeRegisters, phase_ns: u32, now_ns: u64) {
        let (seconds, weekday_shift) = registers.to_unix(self.format());
        let (now_s, now_fraction_ns) = (now_ns / NS_PER_SECOND, now_ns % NS_PER_SECOND);
        let borrow = u64::from(phase_ns) < now_fraction_ns;
        let offset_ns = u64::from(phase_ns) + if borrow { NS_PER_SECOND } else { 0 } - now_fraction_ns;
        let offset_s = seconds - now_s as i64 - i64::from(borrow);
        self.s.weekday_shift = weekday_shift;
        self.s.clock = ClockStateV1::Running { offset_s, offset_ns: offset_ns as u32 };
    }
}

#[cfg(test)]
mod tests;
