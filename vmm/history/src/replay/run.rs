//! Runs a recording again.

use std::sync::{Arc, Mutex};

use crate::replay::begin::open_on;
use crate::replay::stored_disk::StoredDisk;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::hashes::hex;
use machine::position::Count;
use machine::unit::Unit;
use machine::{Machine, Outcome};
use recording::Recording;
use recording::console_digest::ConsoleDigest;
use recording::log::EndRecord;
use recording::player::{Part, Player, Scrutiny};

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The replay reached the end of a complete recording, and found no difference.
    Verified,
    /// The replay reached the last record of a recording that was cut off, or the place where the caller wanted the
    /// replay to stop.
    Stopped,
}

/// A bit of RAM that changes during a replay. Tests check that the replay notices the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault<C> {
    /// The place where the fault happens.
    pub at: C,
    /// The byte's offset in RAM.
    pub offset: u64,
    /// The number of the bit in the byte at `offset`.
    pub bit: u8,
}

/// A running replay.
pub struct Replay<'a, C> {
    recording: &'a Recording<C>,
    /// The machine.
    pub machine: Machine<C>,
    /// The player that gives the machine its inputs.
    pub player: Player<C>,
    digest: Arc<Mutex<ConsoleDigest>>,
    disk: StoredDisk,
    fault: Option<Fault<C>>,
}

impl<'a, C: Unit> Replay<'a, C> {
    /// Starts at the first instruction. `output` gets the console's output.
    pub fn new(
        recording: &'a Recording<C>,
        scrutiny: Scrutiny,
        output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    ) -> Result<Replay<'a, C>, Error> {
        Replay::on(EngineKind::SOFT, recording, scrutiny, output)
    }

    /// Does the same as [`Replay::new`], but on an engine of this kind.
    pub fn on(
        engine: EngineKind,
        recording: &'a Recording<C>,
        scrutiny: Scrutiny,
        mut output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    ) -> Result<Replay<'a, C>, Error> {
        let (machine, mut player) = open_on(recording, engine)?;
        let digest = Arc::new(Mutex::new(ConsoleDigest::default()));
        let shared = digest.clone();
        player.set_scrutiny(scrutiny);
        player.on_output(move |bytes| {
            shared.lock().unwrap_or_else(|e| e.into_inner()).update(bytes);
            output(bytes)
        });
        Ok(Replay { recording, machine, player, digest, disk: StoredDisk::default(), fault: None })
    }

    /// Sets how many written disk blocks may be in memory. If there are more, the replay reads blocks from the
    /// recording's checkpoints instead.
    pub fn hold_blocks(&mut self, most: usize) {
        self.disk = StoredDisk::beyond(most);
    }

    /// Makes a bit of RAM fail during the replay.
    pub fn inject(&mut self, fault: Option<Fault<C>>) {
        self.fault = fault;
    }

    /// Runs to the end of the recording, or to a place in it. At the end, compares the machine with the end record.
    /// `progress` gets the place now and then.
    pub fn run(&mut self, until: Option<C>, progress: impl FnMut(C)) -> Result<ReplayEnd, Error> {
        if !self.go(until, progress)? {
            return Ok(ReplayEnd::Stopped);
        }
        let console = self.digest.lock().unwrap_or_else(|e| e.into_inner()).finish();
        self.compare_end(Some(console))
    }

    /// Does the same as [`Replay::run`], but does not compare the machine with the end record. Returns whether the
    /// replay has reached the end.
    pub(super) fn go(&mut self, until: Option<C>, mut progress: impl FnMut(C)) -> Result<bool, Error> {
        let last = last_place(self.recording);
        // The replay may go one step beyond the place of the last record. A run may end during the instruction at
        // this place, or while time passes before this instruction.
        let until = until.unwrap_or(C::MAX).min(last.saturating_add(1));
        while self.machine.outcome().is_none() && self.machine.moment().count < until {
            let now = self.machine.moment().count;
            progress(now);
            self.disk.look(self.recording, &mut self.machine);
            if now == last && self.recording.log.end.is_none() {
                if C::NAMES_ONE_PLACE {
                    let time_ns = self.recording.log.last_moment().time_ns;
                    self.machine.idle_to(time_ns, &mut self.player)?;
                }
                self.machine.take_due(&mut self.player)?;
                if self.player.finished() {
                    break;
                }
            }
            self.advance(until.min(now + C::CHECKS.registers), last)?;
        }
        progress(self.machine.moment().count);
        Ok(self.machine.outcome().is_some() || self.machine.moment().count >= last.saturating_add(1))
    }

    /// Runs one part of the replay. The part also ends at `last`, because the events at this place may end the run.
    fn advance(&mut self, until: C, last: C) -> Result<(), Error> {
        let now = self.machine.moment().count;
        let mut until = if now < last { until.min(last) } else { until };
        if let Some(fault) = self.fault.filter(|fault| fault.at <= until) {
            if fault.at <= now {
                self.machine.flip_ram_bit(fault.offset, fault.bit);
                self.fault = None;
            } else {
                until = fault.at;
            }
        }
        self.machine.run(until, &mut self.player).map(drop)
    }

    /// Compares the machine with the end record, except for the console's output, because this replay did not begin
    /// at the recording's beginning.
    pub(super) fn compare_end_but_console(&mut self) -> Result<ReplayEnd, Error> {
        self.compare_end(None)
    }

    fn compare_end(&mut self, console: Option<(u64, [u8; 32])>) -> Result<ReplayEnd, Error> {
        let Some(end) = &self.recording.log.end else {
            if self.machine.outcome().is_some() && !self.player.finished() {
                let (then, now) = ("that it went on".to_string(), format!("{:?}", self.machine.outcome()));
                return Err(self.player.divergence(
                    self.machine.moment(),
                    Part::Registers,
                    "how the run ended",
                    then,
                    now,
                ));
            }
            return Ok(ReplayEnd::Stopped);
        };
        compare_end(&mut self.machine, &self.player, end, console)?;
        Ok(ReplayEnd::Verified)
    }
}

/// Replays a whole recording, or up to a place in it. At the end, compares the machine with the end record.
/// `progress` gets the place now and then; `output` gets the console's output.
pub fn replay<C: Unit>(
    recording: &Recording<C>,
    until: Option<C>,
    output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    progress: impl FnMut(C),
) -> Result<(Machine<C>, ReplayEnd), Error> {
    let mut replay = Replay::new(recording, Scrutiny::Registers, output)?;
    let end = replay.run(until, progress)?;
    Ok((replay.machine, end))
}

/// The place of the log's last record.
pub fn last_place<C: Count>(recording: &Recording<C>) -> C {
    recording.log.last_moment().count
}

fn compare_end<C: Unit>(
    machine: &mut Machine<C>,
    player: &Player<C>,
    end: &EndRecord<C>,
    console: Option<(u64, [u8; 32])>,
) -> Result<(), Error> {
    let (console_bytes, console_hash) = console.unwrap_or((end.console_bytes, end.console_hash));
    let at = machine.moment();
    let hashes = machine.hashes();
    let outcome = machine.outcome().map_or("it went on".to_string(), Outcome::to_string);
    let pairs = [
        (Part::Registers, "the end of the run", end.at.to_string(), at.to_string()),
        (Part::Registers, "how the run ended", end.outcome.to_string(), outcome),
        (Part::Registers, "conditional branches", end.branches.to_string(), machine.branches().to_string()),
        (
            Part::Whole,
            "the length of the console's output",
            end.console_bytes.to_string(),
            console_bytes.to_string(),
        ),
        (Part::Whole, "the console's output", hex(&end.console_hash), hex(&console_hash)),
        (Part::Registers, "the hash of the CPU", hex(&end.hashes.cpu), hex(&hashes.cpu)),
        (Part::Devices, "the hash of the devices", hex(&end.hashes.devices), hex(&hashes.devices)),
        (Part::Ram, "the digest of RAM", hex(&end.hashes.ram), hex(&hashes.ram)),
        (Part::Whole, "the hash of the disk", hex(&end.hashes.disk), hex(&hashes.disk)),
    ];
    for (part, what, expected, actual) in pairs {
        if expected != actual {
            return Err(player.divergence(at, part, what, expected, actual));
        }
    }
    Ok(())
}
