//! 8254 programmable interval timer (Intel 8254 datasheet).
//!
//! The counters do not count. Each counter stores the clock tick at which its count was loaded; its value and
//! output at any time are computed from that tick (`cycle.rs`). So the saved state does not depend on when
//! the guest reads it. Modelled: all six modes, latch and read-back commands, BCD, and the gates. Loads take
//! effect on the next clock tick; the half-tick phases of the real chip's CLK pin are not modelled.

mod channel;
mod cycle;
mod state;

use crate::clock::Clock;
use crate::restore::RestoreError;
use channel::Channel;
pub use channel::ChannelSummary;
pub use state::{ChannelStateV1, CountPhaseV1, CycleV1, PitStateV1};

/// Frequency of the clock input of all three channels, in hertz.
pub const PIT_HZ: u64 = 1_193_182;

const CLOCK: Clock = Clock::new(PIT_HZ);
const CONTROL: u16 = 3;

/// The timer with its three channels.
#[derive(Clone, Debug)]
pub struct Pit {
    channels: [Channel; 3],
}

impl Default for Pit {
    fn default() -> Pit {
        Pit::new()
    }
}

impl Pit {
    /// Makes the timer before the guest has programmed it: no channel counts. The gates of channels 0 and 1 are tied
    /// high; the gate of channel 2 is low until port 0x61 raises it.
    pub fn new() -> Pit {
        Pit { channels: [Channel::new(true), Channel::new(true), Channel::new(false)] }
    }

    /// Reads port `offset` (0 to 2: the channels). The control port reads as all ones.
    pub fn read(&mut self, offset: u16, now_ns: u64) -> u8 {
        let tick = CLOCK.ticks(now_ns);
        self.channels.get_mut(usize::from(offset)).map_or(0xFF, |channel| channel.read(tick))
    }

    /// Writes port `offset` (0 to 2: the channels; 3: control).
    pub fn write(&mut self, offset: u16, value: u8, now_ns: u64) {
        let tick = CLOCK.ticks(now_ns);
        if offset == CONTROL {
            self.write_control(value, tick);
        } else if let Some(channel) = self.channels.get_mut(usize::from(offset)) {
            channel.write(value, tick);
        }
    }

    /// Drives the gate of channel 2 (port 0x61 bit 0).
    pub fn set_gate2(&mut self, level: bool, now_ns: u64) {
        self.channels[2].set_gate(level, CLOCK.ticks(now_ns));
    }

    /// The output of channel 2 (port 0x61 bit 5).
    pub fn output2(&self, now_ns: u64) -> bool {
        self.channels[2].output(CLOCK.ticks(now_ns))
    }

    /// The output of channel 0, which drives the timer's interrupt line.
    pub fn irq(&self, now_ns: u64) -> bool {
        self.channels[0].output(CLOCK.ticks(now_ns))
    }

    /// The next time after `after_ns` at which the interrupt line may change by itself.
    pub fn next_deadline_ns(&self, after_ns: u64) -> Option<u64> {
        let tick = self.channels[0].next_change(CLOCK.ticks(after_ns))?;
        CLOCK.start_ns(tick)
    }

    /// The state of each channel.
    pub fn summary(&self, now_ns: u64) -> [ChannelSummary; 3] {
        self.channels.each_ref().map(|channel| channel.summary(CLOCK, now_ns))
    }

    /// The chip's state.
    pub fn save(&self) -> PitStateV1 {
        PitStateV1 { channels: self.channels.each_ref().map(|channel| channel.registers().into()) }
    }

    /// Builds the chip from a saved state.
    pub fn restore(state: &PitStateV1) -> Result<Pit, RestoreError> {
        let channel = |number: usize| Channel::with_registers((&state.channels[number]).into());
        Ok(Pit { channels: [channel(0)?, channel(1)?, channel(2)?] })
    }

    fn write_control(&mut self, value: u8, tick: u64) {
        match usize::from(value >> 6) {
            3 => self.read_back(value, tick),
            channel => self.channels[channel].control(value, tick),
        }
    }

    /// Runs the read-back command: bits 5 and 4 (active low) choose count and status, bits 3:1 the channels.
    fn read_back(&mut self, value: u8, tick: u64) {
        for (index, channel) in self.channels.iter_mut().enumerate() {
            if value >> (index + 1) & 1 == 0 {
                continue;
            }
            if value & 0x20 == 0 {
                channel.latch_count(tick);
            }
            if value & 0x10 == 0 {
                channel.latch_status(tick);
            }
        }
    }
}

#[cfg(test)]
mod tests;
