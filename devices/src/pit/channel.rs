//! One of the timer's three counters: its registers, its access sequence and its gate.

use super::cycle::Cycle;
use crate::clock::Clock;
use crate::restore::RestoreError;

/// The phase of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountPhase {
    /// A control word was written, and no complete count has been written since. The counter holds its old value.
    Unloaded {
        /// The value that the counter shows.
        value: u32,
    },
    /// The gate holds the counter still.
    Held {
        /// The value that the counter shows. Mode 0 continues from this value.
        value: u32,
        /// Whether the counter has already been through zero (one-shot modes).
        expired: bool,
    },
    /// The counter counts down.
    Counting {
        /// The count in force before `current` begins, if any.
        previous: Option<Cycle>,
        /// The newest count, which may begin at a later tick.
        current: Cycle,
    },
}

/// All registers of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) mode: u8,
    pub(super) bcd: bool,
    /// Control word bits 5:4: 1 low byte only, 2 high byte only, 3 low then high.
    pub(super) access: u8,
    pub(super) gate: bool,
    pub(super) phase: CountPhase,
    /// The last complete count written. A trigger by the gate input loads this count.
    pub(super) reload: u32,
    /// The low byte of a two-byte count, while the high byte is missing.
    pub(super) written_low: Option<u8>,
    /// Whether the next read of a two-byte value gives the high byte.
    pub(super) read_high: bool,
    /// The latched count; `None` if no count is latched.
    pub(super) latched_count: Option<u16>,
    pub(super) latched_status: Option<u8>,
}

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSummary {
    /// The mode, 0 to 5.
    pub mode: u8,
    /// Whether the channel counts in BCD.
    pub is_bcd: bool,
    /// The level of the gate input.
    pub gate: bool,
    /// The level of the output.
    pub output: bool,
    /// Whether the channel counts.
    pub counts: bool,
    /// The last count that the guest wrote. At power-on, the largest count.
    pub reload: u32,
    /// The counter's value.
    pub value: u32,
    /// The next time at which the output may change by itself.
    pub changes_ns: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Channel {
    s: Registers,
}

impl Channel {
    pub fn new(gate: bool) -> Channel {
        let s = Registers {
            mode: 3,
            bcd: false,
            access: 3,
            gate,
            phase: CountPhase::Unloaded { value: 0 },
            reload: 0x1_0000,
            written_low: None,
            read_high: false,
            latched_count: None,
            latched_status: None,
        };
        Channel { s }
    }

    /// The registers.
    pub fn registers(&self) -> Registers {
        self.s
    }

    /// A channel with these registers, or an error if no real channel can have them.
    pub fn with_registers(s: Registers) -> Result<Channel, RestoreError> {
        let valid = |count: u32| (1..=0x1_0000).contains(&count);
        let phase_valid = match s.phase {
            CountPhase::Unloaded { value } | CountPhase::Held { value, .. } => value <= 0x1_0000,
            CountPhase::Counting { previous, current } => {
                valid(current.count) && previous.is_none_or(|cycle| valid(cycle.count))
            }
        };
        RestoreError::unless(phase_valid && valid(s.reload), "PIT", "a count out of range")?;
        RestoreError::unless(s.mode <= 5, "PIT", "an unknown mode")?;
        RestoreError::unless((1..=3).contains(&s.access), "PIT", "an unknown access sequence")?;
        Ok(Channel { s })
    }

    /// Writes a control word for this channel.
    pub fn control(&mut self, value: u8, tick: u64) {
        let access = value >> 4 & 3;
        if access == 0 {
            return self.latch_count(tick);
        }
        let shown = self.value(tick);
        let s = &mut self.s;
        s.access = access;
        // Bit 2 of the mode is ignored for the periodic modes, so modes 6 and 7 are modes 2 and 3.
        s.mode = if value & 0x08 != 0 && value & 0x04 != 0 { value >> 1 & 3 } else { value >> 1 & 7 };
        s.bcd = value & 1 != 0;
        s.phase = CountPhase::Unloaded { value: shown };
        s.written_low = None;
        s.read_high = false;
        s.latched_count = None;
        s.latched_status = None;
    }

    pub fn write(&mut self, value: u8, tick: u64) {
        match (self.s.access, self.s.written_low) {
            (1, _) => self.load(u16::from(value), tick),
            (2, _) => self.load(u16::from(value) << 8, tick),
            (_, None) => self.write_low(value, tick),
            (_, Some(low)) => {
                self.s.written_low = None;
                self.load(u16::from_le_bytes([low, value]), tick);
            }
        }
    }

    pub fn read(&mut self, tick: u64) -> u8 {
        if let Some(status) = self.s.latched_status.take() {
            return status;
        }
        let value = self.s.latched_count.unwrap_or_else(|| self.encoded_value(tick));
        let high = self.s.access == 2 || self.s.access == 3 && self.s.read_high;
        let more_to_come = self.s.access == 3 && !self.s.read_high;
        self.s.read_high = more_to_come;
        if !more_to_come {
            self.s.latched_count = None;
        }
        if high { (value >> 8) as u8 } else { value as u8 }
    }

    /// Latches the count for reading. An unread latch keeps its value.
    pub fn latch_count(&mut self, tick: u64) {
        let value = self.encoded_value(tick);
        self.s.latched_count.get_or_insert(value);
    }

    /// Latches the status byte. An unread latch keeps its value.
    pub fn latch_status(&mut self, tick: u64) {
        let s = &self.s;
        let null_count = match s.phase {
            CountPhase::Unloaded { .. } => true,
            CountPhase::Held { .. } => false,
            CountPhase::Counting { current, .. } => tick < current.origin_tick,
        };
        let status = u8::from(self.output(tick)) << 7
            | u8::from(null_count) << 6
            | s.access << 4
            | s.mode << 1
            | u8::from(s.bcd);
        self.s.latched_status.get_or_insert(status);
    }

    /// Drives the gate input.
    pub fn set_gate(&mut self, level: bool, tick: u64) {
        let rising = level && !self.s.gate;
        let falling = !level && self.s.gate;
        let value = self.value(tick);
        self.s.gate = level;
        match (self.s.mode, self.s.phase) {
            (1 | 5, _) if rising => self.start(tick + 1, self.s.reload),
            (1 | 5, _) | (_, CountPhase::Unloaded { .. }) => {}
            (mode, CountPhase::Counting { current, .. }) if falling => {
                let expired = matches!(mode, 0 | 4) && current.is_expired(tick);
                self.s.phase = CountPhase::Held { value, expired };
            }
            (0 | 4, CountPhase::Held { value, expired }) if rising => self.resume(value, expired, tick),
            (_, CountPhase::Held { .. }) if rising => self.start(tick + 1, self.s.reload),
            _ => {}
        }
    }

    pub fn output(&self, tick: u64) -> bool {
        match self.s.phase {
            CountPhase::Unloaded { .. } => self.s.mode != 0,
            CountPhase::Held { expired, .. } => self.s.mode != 0 || expired,
            CountPhase::Counting { previous, current } if tick < current.origin_tick => {
                previous.map_or(self.s.mode != 0, |cycle| cycle.output(self.s.mode, tick))
            }
            CountPhase::Counting { current, .. } => current.output(self.s.mode, tick),
        }
    }

    /// The channel's state. `clock` is the channel's clock input.
    pub fn summary(&self, clock: Clock, now_ns: u64) -> ChannelSummary {
        let tick = clock.ticks(now_ns);
        let Registers { mode, bcd, gate, phase, reload, .. } = self.s;
        ChannelSummary {
            mode,
            is_bcd: bcd,
            gate,
            output: self.output(tick),
            counts: matches!(phase, CountPhase::Counting { .. }),
            reload,
            value: self.value(tick),
            changes_ns: self.next_change(tick).and_then(|tick| clock.start_ns(tick)),
        }
    }

    /// The first tick after `tick` at which the output may change by itself.
    pub fn next_change(&self, tick: u64) -> Option<u64> {
        let CountPhase::Counting { previous, current } = self.s.phase else { return None };
        if tick >= current.origin_tick {
            return current.next_change(self.s.mode, tick);
        }
        let before = previous.and_then(|cycle| cycle.next_change(self.s.mode, tick));
        Some(before.map_or(current.origin_tick, |change| change.min(current.origin_tick)))
    }

    fn modulus(&self) -> u32 {
        if self.s.bcd { 10_000 } else { 0x1_0000 }
    }

    /// The binary value of the counter.
    fn value(&self, tick: u64) -> u32 {
        let (mode, modulus) = (self.s.mode, self.modulus());
        match self.s.phase {
            CountPhase::Unloaded { value } | CountPhase::Held { value, .. } => value,
            CountPhase::Counting { previous: Some(cycle), current } if tick < current.origin_tick => {
                cycle.value(mode, tick, modulus)
            }
            CountPhase::Counting { current, .. } => current.value(mode, tick, modulus),
        }
    }

    /// The value that the guest reads from the counter. The full count reads as zero, and BCD counts are encoded.
    fn encoded_value(&self, tick: u64) -> u16 {
        let value = self.value(tick) % self.modulus();
        if self.s.bcd { to_bcd(value) } else { value as u16 }
    }

    /// Writes the first byte of a two-byte count. In mode 0 the first byte stops the counter and pulls the
    /// output low.
    fn write_low(&mut self, value: u8, tick: u64) {
        self.s.written_low = Some(value);
        if self.s.mode == 0 {
            self.s.phase = CountPhase::Unloaded { value: self.value(tick) };
        }
    }

    /// Loads a complete count.
    fn load(&mut self, raw: u16, tick: u64) {
        let count = if self.s.bcd { from_bcd(raw) } else { u32::from(raw) };
        self.s.reload = if count == 0 { self.modulus() } else { count };
        match (self.s.mode, self.s.phase) {
            // In modes 1 and 5, the new count waits for the next trigger.
            (1 | 5, _) => {}
            _ if !self.s.gate => {
                self.s.phase = CountPhase::Held { value: self.s.reload, expired: false };
            }
            (2 | 3, CountPhase::Counting { previous, current }) => self.replace(previous, current, tick),
            _ => self.start(tick + 1, self.s.reload),
        }
    }

    /// Starts counting `count` at `origin_tick`. Before `origin_tick` a running cycle continues.
    fn start(&mut self, origin_tick: u64, count: u32) {
        let previous = match self.s.phase {
            CountPhase::Counting { current, .. } if self.s.mode != 0 && current.origin_tick < origin_tick => {
                Some(current)
            }
            _ => None,
        };
        self.s.phase =
            CountPhase::Counting { previous, current: Cycle { origin_tick, count, expired: false } };
    }

    /// Loads a new count in a periodic mode. The new count takes effect when the running period ends (half
    /// period in mode 3).
    fn replace(&mut self, previous: Option<Cycle>, current: Cycle, tick: u64) {
        let count = self.s.reload;
        let (previous, origin_tick) = if tick < current.origin_tick {
            (previous, current.origin_tick)
        } else if self.s.mode == 3 {
            (Some(current), current.half_period_end(tick))
        } else {
            (Some(current), current.period_end(tick))
        };
        self.s.phase =
            CountPhase::Counting { previous, current: Cycle { origin_tick, count, expired: false } };
    }

    /// Continues a held counter from `value`.
    fn resume(&mut self, value: u32, expired: bool, tick: u64) {
        let modulus = self.modulus();
        let count = if value == 0 { modulus } else { value };
        let current = Cycle { origin_tick: tick, count, expired };
        self.s.phase = CountPhase::Counting { previous: None, current };
    }
}

fn to_bcd(value: u32) -> u16 {
    let digit = |divisor: u32| (value / divisor % 10) as u16;
    digit(1000) << 12 | digit(100) << 8 | digit(10) << 4 | digit(1)
}

/// Decodes BCD. Digits above nine, which the datasheet forbids, are decoded as their binary value.
fn from_bcd(raw: u16) -> u32 {
    let digit = |shift: u32| u32::from(raw >> shift & 0xF);
    let value = digit(12) * 1000 + digit(8) * 100 + digit(4) * 10 + digit(0);
    value.min(9999)
}
