//! Running a recording again.

pub mod bisect;
pub mod compare_checkpoints;
pub mod registers;
pub mod verify;

use std::sync::{Arc, Mutex};

use crate::engine::EngineKind;
use crate::error::Error;
use crate::machine::{Machine, Outcome, hex};
use crate::position::Counting;
use crate::recording::Recording;
use crate::recording::checkpoints::Checkpoints;
use crate::recording::log::EndRecord;
use crate::recording::player::{Part, Player, Scrutiny};
use crate::recording::recorder::ConsoleDigest;

/// Steps between two calls of a progress function.
const PROGRESS_STEPS: u64 = 20_000_000;

/// Builds the machine of a recording where it begins, mostly at its first instruction, and the player that feeds it.
pub fn open(recording: &Recording) -> Result<(Machine, Player), Error> {
    open_on(recording, EngineKind::Soft)
}

/// As [`open`], on an engine of this kind.
pub fn open_on(recording: &Recording, engine: EngineKind) -> Result<(Machine, Player), Error> {
    let images = recording.manifest.machine.read_images()?;
    let mut player = Player::new(recording);
    let mut machine =
        Machine::build(&recording.manifest.machine, &images, player.power_on(), engine, recording.counting)?;
    if recording.is_part() {
        let store = recording.checkpoints()?.ok_or_else(|| no_beginning(recording))?;
        let checkpoints = Checkpoints::new(store, machine.maps().ram, recording)?;
        begin_part(recording, &checkpoints, &mut machine, &mut player)?;
    }
    Ok((machine, player))
}

/// Brings a machine at power-on to where a part of a run begins: the first of its checkpoints.
pub fn begin_part(
    recording: &Recording,
    checkpoints: &Checkpoints,
    machine: &mut Machine,
    player: &mut Player,
) -> Result<(), Error> {
    let snapshot = checkpoints.attach_and_load(0, machine)?.ok_or_else(|| no_beginning(recording))?;
    machine.restore(&snapshot.state, &snapshot.maps)?;
    player.set_cursor(snapshot.cursor);
    Ok(())
}

/// The checkpoint is gone that a part begins with.
pub fn no_beginning(recording: &Recording) -> Error {
    let why = "the checkpoint is missing that this part begins with; open it again, and it is made again";
    Error::recording(&recording.path, why)
}

/// How far a replay went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// To the end of a complete recording, and everything was equal there.
    Verified,
    /// To the last record of a recording that was cut off, or to the step count asked for.
    Stopped,
}

/// A bit of RAM that fails during a replay: for tests of what notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub steps: u64,
    /// Which byte, as an offset into RAM.
    pub offset: u64,
    /// Which bit of it.
    pub bit: u8,
}

/// A replay under way.
pub struct Replay<'a> {
    recording: &'a Recording,
    /// The machine.
    pub machine: Machine,
    /// What feeds it.
    pub player: Player,
    digest: Arc<Mutex<ConsoleDigest>>,
    fault: Option<Fault>,
}

impl<'a> Replay<'a> {
    /// Starts at the first instruction. `output` gets the console's output.
    pub fn new(
        recording: &'a Recording,
        scrutiny: Scrutiny,
        output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    ) -> Result<Replay<'a>, Error> {
        Replay::on(EngineKind::Soft, recording, scrutiny, output)
    }

    /// As [`Replay::new`], on an engine of this kind.
    pub fn on(
        engine: EngineKind,
        recording: &'a Recording,
        scrutiny: Scrutiny,
        mut output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    ) -> Result<Replay<'a>, Error> {
        let (machine, mut player) = open_on(recording, engine)?;
        let digest = Arc::new(Mutex::new(ConsoleDigest::default()));
        let shared = digest.clone();
        player.set_scrutiny(scrutiny);
        player.on_output(move |bytes| {
            shared.lock().unwrap_or_else(|e| e.into_inner()).update(bytes);
            output(bytes)
        });
        Ok(Replay { recording, machine, player, digest, fault: None })
    }

    /// Lets a bit of RAM fail on the way.
    pub fn inject(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Runs to the end of the recording, or to a step count, and compares the end. `progress` gets the step
    /// count now and then.
    pub fn run(&mut self, until: Option<u64>, mut progress: impl FnMut(u64)) -> Result<ReplayEnd, Error> {
        let last = last_step(self.recording);
        // One step further than the end, where the end is still to come about: a run ends while an instruction
        // is looked at, or while time passes before the next one.
        let until = until.unwrap_or(u64::MAX).min(last.saturating_add(1));
        while self.machine.outcome().is_none() && self.machine.moment().steps < until {
            let now = self.machine.moment().steps;
            progress(now);
            if now == last && self.recording.log.end.is_none() {
                if self.recording.counting == Counting::Exits {
                    self.machine.take_due(&mut self.player)?;
                }
                if self.player.finished() {
                    break;
                }
            }
            self.advance(until.min(now + PROGRESS_STEPS), last)?;
        }
        progress(self.machine.moment().steps);
        if self.machine.outcome().is_none() && self.machine.moment().steps < last.saturating_add(1) {
            return Ok(ReplayEnd::Stopped);
        }
        self.compare_end()
    }

    /// One stretch, which ends at `last` too: what comes there decides whether to go on.
    fn advance(&mut self, until: u64, last: u64) -> Result<(), Error> {
        let now = self.machine.moment().steps;
        let mut until = if now < last { until.min(last) } else { until };
        if let Some(fault) = self.fault.filter(|fault| fault.steps <= until) {
            if fault.steps <= now {
                self.machine.flip_ram_bit(fault.offset, fault.bit);
                self.fault = None;
            } else {
                until = fault.steps;
            }
        }
        self.machine.run(until, &mut self.player).map(drop)
    }

    fn compare_end(&mut self) -> Result<ReplayEnd, Error> {
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
        let console = self.digest.lock().unwrap_or_else(|e| e.into_inner()).finish();
        compare_end(&mut self.machine, &self.player, end, console)?;
        Ok(ReplayEnd::Verified)
    }
}

/// Replays a whole recording, or up to a step count, and compares the end. `progress` gets the step count now
/// and then, and `output` the console's output.
pub fn replay(
    recording: &Recording,
    until: Option<u64>,
    output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    progress: impl FnMut(u64),
) -> Result<(Machine, ReplayEnd), Error> {
    let mut replay = Replay::new(recording, Scrutiny::Registers, output)?;
    let end = replay.run(until, progress)?;
    Ok((replay.machine, end))
}

/// The last step count that the recording vouches for.
pub fn last_step(recording: &Recording) -> u64 {
    recording.log.last_moment().steps
}

fn compare_end(
    machine: &mut Machine,
    player: &Player,
    end: &EndRecord,
    console: (u64, [u8; 32]),
) -> Result<(), Error> {
    let at = machine.moment();
    let hashes = machine.hashes();
    let outcome = machine.outcome().map_or("it went on".to_string(), Outcome::to_string);
    let pairs = [
        (Part::Registers, "the end of the run", format!("{:?}", end.at), format!("{at:?}")),
        (Part::Registers, "how the run ended", end.outcome.to_string(), outcome),
        (Part::Registers, "conditional branches", end.branches.to_string(), machine.branches().to_string()),
        (
            Part::Whole,
            "the length of the console's output",
            end.console_bytes.to_string(),
            console.0.to_string(),
        ),
        (Part::Whole, "the console's output", hex(&end.console_hash), hex(&console.1)),
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
