//! Running a recording again.

use crate::divergence::Divergence;
use crate::error::Error;
use crate::event_log::EndRecord;
use crate::machine::{Machine, RunStop};
use crate::player::Player;
use crate::recorder::ConsoleDigest;
use crate::recording::Recording;

/// Steps between two calls of a progress function.
const PROGRESS_STEPS: u64 = 20_000_000;

/// Builds the machine of a recording at its first instruction, and the player that feeds it.
pub fn open(recording: &Recording) -> Result<(Machine, Player), Error> {
    let images = recording.manifest.machine.read_images()?;
    let player = Player::new(&recording.log);
    let machine = Machine::new(&recording.manifest.machine, &images, player.power_on())?;
    Ok((machine, player))
}

/// How far a replay went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// To the end of a complete recording, and everything was equal there.
    Verified,
    /// To the last event of a recording that was cut off, or to the step count asked for.
    Stopped,
}

/// Replays a whole recording, or up to a step count, and compares the end. `progress` gets the step count now
/// and then, and `output` the console's output.
pub fn replay(
    recording: &Recording,
    until: Option<u64>,
    mut output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
    mut progress: impl FnMut(u64),
) -> Result<(Machine, ReplayEnd), Error> {
    let (mut machine, mut player) = open(recording)?;
    let digest = std::sync::Arc::new(std::sync::Mutex::new(ConsoleDigest::default()));
    let shared = digest.clone();
    player.on_output(move |bytes| {
        shared.lock().unwrap_or_else(|e| e.into_inner()).update(bytes);
        output(bytes)
    });
    let last = last_step(recording);
    let until = until.unwrap_or(u64::MAX).min(last.saturating_add(1));
    loop {
        let now = machine.moment().steps;
        progress(now);
        match machine.run(until.min(now + PROGRESS_STEPS), &mut player)? {
            RunStop::Reached if machine.moment().steps >= until => break,
            RunStop::Ended(_) => break,
            _ => {}
        }
    }
    progress(machine.moment().steps);
    let (Some(end), Some(_)) = (&recording.log.end, machine.outcome()) else {
        return Ok((machine, ReplayEnd::Stopped));
    };
    let console = digest.lock().unwrap_or_else(|e| e.into_inner()).finish();
    compare_end(&mut machine, end, console)?;
    Ok((machine, ReplayEnd::Verified))
}

/// The last step count that the recording vouches for.
pub fn last_step(recording: &Recording) -> u64 {
    let last_event = recording.log.events.last().map_or(0, |event| event.at.steps);
    recording.log.end.as_ref().map_or(last_event, |end| end.at.steps)
}

fn compare_end(machine: &mut Machine, end: &EndRecord, console: (u64, [u8; 32])) -> Result<(), Error> {
    let at = machine.moment();
    let hashes = machine.hashes();
    let hex = |hash: &[u8; 32]| blake3::Hash::from_bytes(*hash).to_hex().to_string();
    let pairs = [
        ("the end of the run", format!("{:?}", end.at), format!("{at:?}")),
        ("how the run ended", format!("{:?}", Some(&end.outcome)), format!("{:?}", machine.outcome())),
        ("conditional branches", end.branches.to_string(), machine.cpu().branches().to_string()),
        ("the length of the console's output", end.console_bytes.to_string(), console.0.to_string()),
        ("the console's output", hex(&end.console_hash), hex(&console.1)),
        ("the hash of the CPU", hex(&end.hashes.cpu), hex(&hashes.cpu)),
        ("the hash of the devices", hex(&end.hashes.devices), hex(&hashes.devices)),
        ("the hash of RAM", hex(&end.hashes.ram), hex(&hashes.ram)),
        ("the hash of the disk", hex(&end.hashes.disk), hex(&hashes.disk)),
    ];
    for (what, expected, actual) in pairs {
        if expected != actual {
            let divergence = Divergence { at, what, expected, actual, neighbours: Vec::new() };
            return Err(Error::Divergence(Box::new(divergence)));
        }
    }
    Ok(())
}
