//! ACPI fixed hardware: PM1 event and control blocks and the PM timer (ACPI specification 6.5, chapter 4).
//!
//! The machine is always in ACPI mode (SCI_EN reads as one), so the ACPI tables need no SMI command port. The timer has
//! 32 bits: the ACPI tables must set TMR_VAL_EXT. Not modelled: general-purpose events, sleep states other than S5, a
//! sleep button, and the bus-master and global-lock handshakes with firmware.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::restore::RestoreError;

/// Sleep type of S5 ("soft off"). The `\_S5` object of the ACPI tables must give the same value.
pub const SLEEP_TYPE_S5: u8 = 5;
/// Frequency of the PM timer in hertz.
pub const PM_TIMER_HZ: u64 = 3_579_545;

const CLOCK: Clock = Clock::new(PM_TIMER_HZ);
/// TMR_STS reports each change of the timer's highest bit.
const CARRY_BIT: u32 = 31;

const STATUS_TIMER: u16 = 1 << 0;
const STATUS_POWER_BUTTON: u16 = 1 << 8;
/// Enable bits that can be set: timer, power button, global lock and RTC. Only timer and power button ever
/// get a status bit.
const ENABLE_MASK: u16 = STATUS_TIMER | 1 << 5 | STATUS_POWER_BUTTON | 1 << 10;

const CONTROL_SCI_ENABLE: u16 = 1 << 0;
const CONTROL_SLEEP_ENABLE: u16 = 1 << 13;
/// The bits of the control register that are stored: bus-master reload and sleep type. The other bits are
/// write-only or fixed.
const CONTROL_STORED: u16 = 1 << 1 | 7 << 10;

/// The saved registers of an [`AcpiPm`], version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpiPmStateV1 {
    /// The PM1 status at the time `status_from_ns`. Later carries of the timer are computed from the time.
    status: u16,
    status_from_ns: u64,
    enable: u16,
    control: u16,
}

/// The registers as the guest reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcpiPmSummary {
    /// The PM timer's value.
    pub timer: u32,
    /// The PM1 status register.
    pub status: u16,
    /// The PM1 enable register.
    pub enable: u16,
}

/// The registers of the ACPI fixed hardware.
#[derive(Clone, Debug)]
pub struct AcpiPm {
    s: AcpiPmStateV1,
    power_off: bool,
}

impl Default for AcpiPm {
    fn default() -> AcpiPm {
        AcpiPm::new()
    }
}

impl AcpiPm {
    /// The registers after reset.
    pub fn new() -> AcpiPm {
        AcpiPm { s: AcpiPmStateV1 { status: 0, status_from_ns: 0, enable: 0, control: 0 }, power_off: false }
    }

    /// Reads a byte of the register block: PM1 status at 0, enable at 2, control at 4, timer at 8.
    pub fn read(&self, offset: u16, now_ns: u64) -> u8 {
        let word = match offset & !3 {
            0 => u32::from(self.status(now_ns)) | u32::from(self.s.enable) << 16,
            4 => u32::from(self.s.control | CONTROL_SCI_ENABLE),
            8 => timer(now_ns),
            _ => u32::MAX,
        };
        word.to_le_bytes()[usize::from(offset & 3)]
    }

    /// Writes a byte of the register block. Status bits are cleared by writing ones.
    pub fn write(&mut self, offset: u16, value: u8, now_ns: u64) {
        let shift = offset % 2 * 8;
        let (bits, byte) = (u16::from(value) << shift, 0xFF << shift);
        match offset & !1 {
            0 => {
                self.s.status = self.status(now_ns) & !bits;
                self.s.status_from_ns = now_ns;
            }
            2 => self.s.enable = (self.s.enable & !byte | bits) & ENABLE_MASK,
            4 => self.write_control(bits, byte),
            _ => {}
        }
    }

    /// The level of the system control interrupt; true means raised.
    pub fn sci(&self, now_ns: u64) -> bool {
        self.s.enable != 0 && self.status(now_ns) & self.s.enable != 0
    }

    /// The first time after `after_ns` at which the system control interrupt rises without an access; `None` if it
    /// never does.
    pub fn next_deadline_ns(&self, after_ns: u64) -> Option<u64> {
        if self.s.enable & STATUS_TIMER == 0 || self.sci(after_ns) {
            return None;
        }
        CLOCK.start_ns((carries(after_ns) + 1) << CARRY_BIT)
    }

    /// The user presses the power button.
    pub fn press_power_button(&mut self) {
        self.s.status |= STATUS_POWER_BUTTON;
    }

    /// Takes the guest's request to power off, which the guest makes by entering S5. Returns whether there was such a
    /// request since the last call.
    pub fn take_power_off(&mut self) -> bool {
        std::mem::take(&mut self.power_off)
    }

    /// The registers as the guest reads them.
    pub fn summary(&self, now_ns: u64) -> AcpiPmSummary {
        AcpiPmSummary { timer: timer(now_ns), status: self.status(now_ns), enable: self.s.enable }
    }

    /// The registers' state.
    pub fn save(&self) -> AcpiPmStateV1 {
        self.s.clone()
    }

    /// Builds the registers from a saved state.
    pub fn restore(state: &AcpiPmStateV1) -> Result<AcpiPm, RestoreError> {
        let possible = state.enable & !ENABLE_MASK == 0 && state.control & !CONTROL_STORED == 0;
        RestoreError::unless(possible, "ACPI PM block", "reserved bits set")?;
        Ok(AcpiPm { s: state.clone(), power_off: false })
    }

    fn status(&self, now_ns: u64) -> u16 {
        let carried = carries(now_ns) > carries(self.s.status_from_ns);
        self.s.status | if carried { STATUS_TIMER } else { 0 }
    }

    fn write_control(&mut self, bits: u16, byte: u16) {
        self.s.control = (self.s.control & !byte | bits) & CONTROL_STORED;
        let sleep_type = (self.s.control >> 10 & 7) as u8;
        if bits & CONTROL_SLEEP_ENABLE == 0 {
            return;
        }
        if sleep_type == SLEEP_TYPE_S5 {
            self.power_off = true;
        } else {
            log::debug!("ACPI: sleep type {sleep_type} is not supported");
        }
    }
}

/// The value of the timer.
fn timer(now_ns: u64) -> u32 {
    CLOCK.ticks(now_ns) as u32
}

/// How often the timer's highest bit has changed.
fn carries(now_ns: u64) -> u64 {
    CLOCK.ticks(now_ns) >> CARRY_BIT
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_MINUTES_NS: u64 = 600_000_000_000;

    fn read16(pm: &AcpiPm, offset: u16, now_ns: u64) -> u16 {
        u16::from_le_bytes([pm.read(offset, now_ns), pm.read(offset + 1, now_ns)])
    }

    fn write16(pm: &mut AcpiPm, offset: u16, value: u16, now_ns: u64) {
        for (index, byte) in value.to_le_bytes().into_iter().enumerate() {
            pm.write(offset + index as u16, byte, now_ns);
        }
    }

    #[test]
    fn the_timer_counts_its_frequency() {
        let pm = AcpiPm::new();
        let at = |now_ns| u32::from_le_bytes([8, 9, 10, 11].map(|offset| pm.read(offset, now_ns)));
        assert_eq!(at(0), 0);
        assert_eq!(at(1_000_000_000), 3_579_545);
        assert_eq!(at(1_200_000_000_000), (3_579_545u64 * 1200) as u32, "wraps at 32 bits");
    }

    #[test]
    fn the_carry_sets_timer_status_and_raises_sci_when_enabled() {
        let mut pm = AcpiPm::new();
        assert_eq!(pm.next_deadline_ns(0), None);
        write16(&mut pm, 2, STATUS_TIMER, 0);
        let deadline = pm.next_deadline_ns(0).unwrap();
        assert!((TEN_MINUTES_NS - 1_000_000_000..TEN_MINUTES_NS).contains(&deadline));
        assert!(!pm.sci(deadline - 1));
        assert!(pm.sci(deadline));
        write16(&mut pm, 0, STATUS_TIMER, deadline);
        assert!(!pm.sci(deadline));
        assert_eq!(pm.next_deadline_ns(deadline), CLOCK.start_ns(2 << 31));
    }

    #[test]
    fn the_power_button_raises_sci_until_it_is_acknowledged() {
        let mut pm = AcpiPm::new();
        pm.press_power_button();
        assert!(!pm.sci(0));
        write16(&mut pm, 2, STATUS_POWER_BUTTON, 0);
        assert!(pm.sci(0));
        assert_eq!(read16(&pm, 0, 0), STATUS_POWER_BUTTON);
        write16(&mut pm, 0, STATUS_POWER_BUTTON, 0);
        assert!(!pm.sci(0));
    }

    #[test]
    fn entering_s5_asks_for_power_off_and_nothing_else_does() {
        for sleep_type in 0..8u16 {
            let mut pm = AcpiPm::new();
            write16(&mut pm, 4, sleep_type << 10, 0);
            assert!(!pm.take_power_off());
            write16(&mut pm, 4, sleep_type << 10 | CONTROL_SLEEP_ENABLE, 0);
            assert_eq!(pm.take_power_off(), sleep_type == 5);
            assert!(!pm.take_power_off());
            assert_eq!(read16(&pm, 4, 0), sleep_type << 10 | CONTROL_SCI_ENABLE);
        }
    }
}
