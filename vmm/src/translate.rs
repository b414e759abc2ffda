//! A recording that counts exits, as one that counts instructions.
//!
//! The software engine replays it once and writes down where, by its own count, each event came in: a second log with the same
//! events in the same order, which lies beside the first and can be made again at any time. Travelling and debugging
//! know instruction counts only. Time stays what it was: exits and the events that let it pass. On the way it takes checkpoints, as
//! recording with the software engine would have.

use std::path::Path;
use std::sync::Arc;

use crate::checkpointer::{CheckpointOptions, Checkpointer, Logged};
use crate::checks::{CheckParts, CheckRecord};
use crate::error::Error;
use crate::event_log::{EndRecord, EventRecord, Log, LogRecord, LogWriter, read_log};
use crate::inputs::{Departure, Event, Idle, Inputs, View};
use crate::machine::{Machine, RunStop, hash_of};
use crate::player::{Cursor, Player, Scrutiny};
use crate::position::{Counting, Moment};
use crate::recorder::ConsoleDigest;
use crate::recording::{CHECKPOINTS, Exits, Recording};
use crate::replay;

/// The file with the second log.
pub const INSTRUCTIONS: &str = "instructions.log";
/// While it is being made.
const UNFINISHED: &str = "instructions.log.new";
/// Exits between two looks at how far it is.
const SLICE_EXITS: u64 = 100;
/// Instructions between two checkpoints at least.
const CHECKPOINT_STEPS: u64 = 1_000_000_000;

/// The same recording with a log that counts instructions. What was translated before is taken if it is of this log.
/// `progress` gets the number of exits now and then.
pub fn in_instructions(mut recording: Recording, progress: impl FnMut(u64)) -> Result<Recording, Error> {
    if recording.counting == Counting::Instructions {
        return Ok(recording);
    }
    let path = recording.path.join(INSTRUCTIONS);
    let origin = origin_of(&recording);
    let usable = |log: &Log| log.machine_hash == origin && !log.torn && !log.events.is_empty();
    let log = match read_log(&path).ok().filter(usable) {
        Some(log) => log,
        None => {
            let unfinished = recording.path.join(UNFINISHED);
            let _ = std::fs::remove_file(&unfinished);
            let checkpoints = recording.path.join(CHECKPOINTS);
            if checkpoints.exists() {
                std::fs::remove_dir_all(&checkpoints).map_err(Error::file("remove", &checkpoints))?;
            }
            translate(&recording, &unfinished, origin, progress)?;
            std::fs::rename(&unfinished, &path).map_err(Error::file("rename", &unfinished))?;
            read_log(&path)?
        }
    };
    let exits = std::mem::replace(&mut recording.log, log);
    recording.exits = Some(Arc::new(Exits { log: exits, from: 0, skipped: 0 }));
    recording.counting = Counting::Instructions;
    Ok(recording)
}

/// Names the log that was translated, every byte of it.
fn origin_of(recording: &Recording) -> [u8; 32] {
    let log = &recording.log;
    hash_of(&("translated", log.machine_hash, &log.chain, log.bytes))
}

fn translate(
    recording: &Recording,
    to: &Path,
    origin: [u8; 32],
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    let (mut machine, mut player) = replay::open(recording)?;
    player.set_scrutiny(Scrutiny::Registers);
    let mut log = LogWriter::create(to)?;
    log.append(&LogRecord::Machine(origin))?;
    let mut transcriber = Transcriber {
        player,
        log,
        console: ConsoleDigest::default(),
        steps: 0,
        branches: 0,
        events: 0,
        checks: 0,
        last: Moment::default(),
    };
    let options =
        CheckpointOptions { interval_ns: 0, min_steps: CHECKPOINT_STEPS, ..CheckpointOptions::default() };
    let slice_steps = options.slice_steps;
    let mut checkpointer = Checkpointer::new(&recording.path.join(CHECKPOINTS), options, &mut machine)?;
    let mut looked = 0;
    let last = replay::last_step(recording);
    while machine.outcome().is_none() {
        let now = machine.moment().steps;
        progress(now);
        if now >= last && recording.log.end.is_none() && transcriber.player.finished() {
            break;
        }
        let mut until = now + SLICE_EXITS;
        if now < last {
            until = until.min(last);
        }
        if let RunStop::Ended(_) = machine.run(until, &mut transcriber)? {
            break;
        }
        let steps = machine.cpu().steps();
        if steps - looked >= slice_steps {
            checkpointer.look(&mut machine, &transcriber)?;
            looked = steps;
        }
    }
    checkpointer.finish(&mut machine, &transcriber)?;
    if recording.log.end.is_some() {
        let end = transcriber.end(&mut machine);
        transcriber.log.append(&LogRecord::End(end))?;
    }
    Ok(())
}

/// Plays a log and writes it down by the CPU's own count.
struct Transcriber {
    player: Player,
    log: LogWriter,
    console: ConsoleDigest,
    /// Where the CPU was when it was last looked at.
    steps: u64,
    branches: u64,
    /// Events and checks written so far, and where the last of them was.
    events: usize,
    checks: usize,
    last: Moment,
}

impl Transcriber {
    fn end(&self, machine: &mut Machine) -> EndRecord {
        let (console_bytes, console_hash) = self.console.finish();
        EndRecord {
            at: Moment { steps: machine.cpu().steps(), time_ns: machine.moment().time_ns },
            branches: machine.cpu().branches(),
            outcome: machine.outcome().cloned().expect("it has ended"),
            hashes: machine.hashes(),
            console_bytes,
            console_hash,
        }
    }
}

impl Logged for Transcriber {
    fn cursor(&self) -> Cursor {
        Cursor::after(self.events, self.checks, self.last, self.log.check())
    }
}

impl Inputs for Transcriber {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        (self.steps, self.branches) = (view.cpu.steps(), view.cpu.branches());
        let event = self.player.poll(view)?;
        if let Some(event) = &event {
            let at = Moment { steps: self.steps, time_ns: view.moment.time_ns };
            (self.events, self.last) = (self.events + 1, at);
            self.log.append(&LogRecord::Event(EventRecord {
                at,
                branches: self.branches,
                rip: view.cpu.rip(),
                cpu_hash: view.cpu_hash(),
                event: event.clone(),
            }))?;
        }
        Ok(event)
    }

    fn next_poll(&self, now: Moment) -> u64 {
        self.player.next_poll(now)
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.player.idle(now, deadline_ns)
    }

    fn departure(&self, now: Moment, deadline_ns: Option<u64>) -> Departure {
        self.player.departure(now, deadline_ns)
    }

    fn check_due(&self, now: Moment) -> Option<CheckParts> {
        // All of it: the second log is to say as much as the first.
        let due = self.player.check_due(now)?;
        Some(self.player.next_check_parts().unwrap_or(due))
    }

    fn checked(&mut self, check: CheckRecord) -> Result<(), Error> {
        let at = Moment { steps: self.steps, time_ns: check.at.time_ns };
        (self.checks, self.last) = (self.checks + 1, at);
        self.log.append(&LogRecord::Check(CheckRecord { at, branches: self.branches, ..check.clone() }))?;
        self.player.checked(check)
    }

    fn console_output(&mut self, _now: Moment, bytes: &[u8]) -> Result<(), Error> {
        self.console.update(bytes);
        Ok(())
    }
}
