//! Recounts a recording that counts exits: makes a second log with positions in instructions.
//!
//! The software engine replays the recording once. The second log has the same events in the same order, each at this
//! engine's count of instructions. The second log is in a folder of its own ([`crate::recount::folders`]) and can be
//! made again at any time. Virtual time is the same as in the recording: it passes with exits and events. During the
//! replay, checkpoints are taken, as in a recording made with the software engine.
//!
//! If the recording has checkpoints, it is possible to recount only its end, from one of the checkpoints. Instructions,
//! branches and system calls are then counted from this checkpoint.

use std::path::Path;
use std::sync::Arc;

use checkpoint::Store;
use devices::passthrough::{AskV1, DeviceInputV1};

use crate::recount::folders::{RecountDraft, folder};
use crate::replay;
use machine::checks::{CheckParts, CheckRecord};
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, View};
use machine::position::{Exits, Instructions, Moment};
use machine::{Format, Machine, Outcome, RunStop, hash_of};
use recording::checkpointer::Checkpointer;
use recording::checkpoints::{CheckpointHead, Checkpoints, add_here, open_checkpoints};
use recording::console_digest::ConsoleDigest;
use recording::cursor::{Cursor, Logged};
use recording::files::{CHECKPOINTS, EVENTS};
use recording::log::{EndRecord, EventRecord, Log, LogRecord, LogWriter, read_log};
use recording::pace::CheckpointOptions;
use recording::player::{Part, Player, Scrutiny};
use recording::{Recording, Recounted};

/// Exits between two reports of progress.
const SLICE_EXITS: u64 = 100;
/// Least number of instructions between two checkpoints.
const CHECKPOINT_STEPS: u64 = 1_000_000_000;

/// Returns the recording with a log that counts instructions. Uses the log of an earlier recount if it was made from
/// this recording's log. `progress` regularly gets the number of exits so far.
pub fn in_instructions(
    recording: Recording<Exits>,
    progress: impl FnMut(Exits),
) -> Result<Recording<Instructions>, Error> {
    from_exit(recording, Exits(0), progress)
}

/// The count of exits at the last checkpoint that is at least `last_ns` of guest time before the end.
pub fn start_of_last(recording: &Recording<Exits>, last_ns: u64) -> Result<Option<Exits>, Error> {
    let Some(store) = recording.checkpoints()? else { return Ok(None) };
    let end = recording.log.last_moment();
    let begins_there = |head: &CheckpointHead<Exits>| {
        let before_end = head.at.count > Exits(0) && head.at.count < end.count && head.cursor.events() > 0;
        before_end && end.time_ns.checked_sub(head.at.time_ns).is_some_and(|ns| ns >= last_ns)
    };
    let heads = store
        .entries()
        .into_iter()
        .rev()
        .filter_map(|entry| CheckpointHead::parse(recording.log.format, &entry.head));
    Ok(heads.filter(begins_there).map(|head| head.at.count).next())
}

/// Does the same as [`in_instructions`], but only for the part after the checkpoint at exit `from`. Exit 0 is the
/// first instruction, which needs no checkpoint.
pub fn from_exit(
    recording: Recording<Exits>,
    from: Exits,
    progress: impl FnMut(Exits),
) -> Result<Recording<Instructions>, Error> {
    let origin = origin_of(&recording, from);
    let folder = folder(&recording.path, from);
    let log = match usable(&folder, &recording, from, origin) {
        Some(log) => log,
        None => {
            let (draft, log) = RecountDraft::begin(&recording.path, from, recording.log.format)?;
            let log = recount(&recording, from, draft.path(), log, origin, progress)?;
            draft.publish(log, |folder| usable(folder, &recording, from, origin).is_some())?;
            usable(&folder, &recording, from, origin).ok_or_else(|| {
                Error::recording(&folder, "was just made and cannot be used: report a bug in ttvm")
            })?
        }
    };
    let skipped = recording.log.event_count() - log.event_count();
    let recounted = Some(Arc::new(Recounted { log: recording.log, from, skipped }));
    Ok(Recording { path: folder, manifest: recording.manifest, log: Arc::new(log), recounted })
}

/// A hash of the original log's length and checksum, and of the exit where the recounted part begins. The machine
/// record of the second log has this hash.
fn origin_of(recording: &Recording<Exits>, from: Exits) -> [u8; 32] {
    let log = &recording.log;
    hash_of(&("recounted", log.machine_hash, log.check(), log.bytes, from))
}

/// The log in a folder, if it is a whole recounted log of this recording.
fn usable(folder: &Path, of: &Recording<Exits>, from: Exits, origin: [u8; 32]) -> Option<Log<Instructions>> {
    let log: Log<Instructions> = read_log(&folder.join(EVENTS), of.log.format).ok()?;
    let skipped = of.log.event_count().checked_sub(log.event_count())?;
    let is_whole = !log.torn
        && log.event_count() > 0
        && log.has_system_calls()
        && log.end.is_some() == of.log.end.is_some();
    if log.machine_hash != origin || !is_whole || (from == Exits(0) && skipped > 0) {
        return None;
    }
    let store = open_checkpoints(folder, &log).ok()?;
    let begins = from == Exits(0) || store.is_some_and(|store| store.state_at(0).is_ok());
    begins.then_some(log)
}

/// Writes the recounted log and its checkpoints into a folder.
fn recount(
    recording: &Recording<Exits>,
    from: Exits,
    to: &Path,
    mut log: LogWriter,
    origin: [u8; 32],
    mut progress: impl FnMut(Exits),
) -> Result<LogWriter, Error> {
    progress(from);
    let (mut machine, mut player) = replay::open(recording)?;
    player.set_scrutiny(Scrutiny::Registers);
    log.append(&LogRecord::<Instructions>::Machine(origin))?;
    let mut transcriber = Transcriber {
        player,
        log,
        console: ConsoleDigest::default(),
        here: Instructions(0),
        branches: 0,
        events: 0,
        checks: 0,
        last: Moment::default(),
        answers: Vec::new(),
    };
    let options = CheckpointOptions {
        interval_ns: 0,
        min_steps: CHECKPOINT_STEPS,
        // Checkpoints may take any share of the recount's time, because the user waits for the recount anyway.
        page_rest_steps: 0,
        trail_rest_steps: 0,
        ..CheckpointOptions::default()
    };
    let slice_steps = options.slice_steps;
    let directory = to.join(CHECKPOINTS);
    let mut checkpointer: Checkpointer<Instructions> = if from == Exits(0) {
        Checkpointer::new(&directory, options, &mut machine)?
    } else {
        let store = begin_part(recording, from, &mut machine, &mut transcriber, &directory)?;
        Checkpointer::on(store, options, &mut machine)?
    };
    let mut looked = Instructions(0);
    run_to_end(recording, &mut machine, &mut transcriber, |machine, transcriber| {
        progress(machine.moment().count);
        let here = machine.moment_in::<Instructions>().count;
        // If events at this count of instructions have already come in, the machine is no longer in its first state
        // with this count. Then no checkpoint is taken.
        if here - looked >= slice_steps && transcriber.last.count < here && transcriber.answers.is_empty() {
            checkpointer.look(machine, transcriber)?;
            looked = here;
        }
        Ok(())
    })?;
    transcriber.write_answers(machine.cpu().system_calls())?;
    checkpointer.finish(&mut machine, &transcriber)?;
    if let Some(end) = &recording.log.end {
        transcriber.compare_end(end, &machine)?;
        let end = transcriber.end(&mut machine);
        transcriber.log.append(&LogRecord::End(end))?;
    }
    Ok(transcriber.log)
}

/// Replays to the end of the recording, and regularly calls `look`.
fn run_to_end(
    recording: &Recording<Exits>,
    machine: &mut Machine<Exits>,
    transcriber: &mut Transcriber,
    mut look: impl FnMut(&mut Machine<Exits>, &Transcriber) -> Result<(), Error>,
) -> Result<(), Error> {
    let last = replay::last_place(recording);
    while machine.outcome().is_none() {
        let now = machine.moment().count;
        if now >= last && recording.log.end.is_none() {
            machine.take_due(transcriber)?;
            if transcriber.player.finished() {
                break;
            }
        }
        let mut until = now + SLICE_EXITS;
        if now < last {
            until = until.min(last);
        }
        if let RunStop::Ended(_) = machine.run(until, transcriber)? {
            break;
        }
        look(machine, transcriber)?;
    }
    Ok(())
}

/// Restores the checkpoint at an exit. The recounted log begins at this point with power-on, and its store begins with
/// a checkpoint that has all pages.
fn begin_part(
    recording: &Recording<Exits>,
    from: Exits,
    machine: &mut Machine<Exits>,
    transcriber: &mut Transcriber,
    directory: &Path,
) -> Result<Arc<Store>, Error> {
    let initial = machine.maps()?.ram;
    let (ram_pages, disk_blocks) = machine.page_counts();
    let none = || {
        let why = format!("there is no usable checkpoint at exit {from}");
        Error::recording(recording.path.join(CHECKPOINTS), why)
    };
    let checkpoints =
        Checkpoints::new(recording.checkpoints()?.ok_or_else(none)?, initial.clone(), &recording.log)?;
    let snapshot = checkpoints.attach_and_load(from, machine)?.ok_or_else(none)?;
    if snapshot.state.outcome.is_some() || snapshot.cursor.events() == 0 {
        return Err(none());
    }
    machine.restore_at_exit(from, &snapshot.state, &snapshot.maps)?;
    machine.count_anew();
    transcriber.player.set_cursor(snapshot.cursor)?;
    transcriber.begin_at(machine.moment_in())?;

    let store = Arc::new(Store::create(directory, ram_pages, disk_blocks)?);
    add_here(&store, &initial, machine, transcriber.cursor(), transcriber.format())?;
    let mut maps = store.maps_at(0)?;
    maps.ram = maps.ram.over(&initial);
    machine.attach_store(store.clone());
    machine.rebase(&maps)?;
    Ok(store)
}

/// Plays a log that counts exits, and writes its events into a new log with the CPU's count of instructions.
struct Transcriber {
    player: Player<Exits>,
    log: LogWriter,
    console: ConsoleDigest,
    /// The CPU's count of instructions at the last poll.
    here: Instructions,
    branches: u64,
    /// The number of events so far. The next fields are the number of checks, and the point of the last event or check.
    events: usize,
    checks: usize,
    last: Moment<Instructions>,
    /// The answers of passed-through devices to the last instruction's accesses. The answers are written at the
    /// next poll, when the number of system calls is known.
    answers: Vec<EventRecord<Instructions>>,
}

impl Transcriber {
    /// Begins the new log in the middle of the run. Like every log, the new log begins with a power-on event.
    fn begin_at(&mut self, at: Moment<Instructions>) -> Result<(), Error> {
        let EventRecord { at: _, branches, rip, cpu_hash, event } = self.player.log().power_on()?;
        let power_on = EventRecord { at, branches, rip, cpu_hash, event };
        self.log.append(&LogRecord::<Instructions>::SystemCalls(0))?;
        self.log.append(&LogRecord::Event(power_on))?;
        (self.events, self.last) = (1, at);
        Ok(())
    }

    /// Writes the answers that have come in since the last call.
    fn write_answers(&mut self, system_calls: u64) -> Result<(), Error> {
        for record in std::mem::take(&mut self.answers) {
            self.log.append(&LogRecord::<Instructions>::SystemCalls(system_calls))?;
            self.log.append(&LogRecord::Event(record))?;
        }
        Ok(())
    }

    fn compare_end(&self, end: &EndRecord<Exits>, machine: &Machine<Exits>) -> Result<(), Error> {
        let outcome = machine.outcome();
        if outcome == Some(&end.outcome) && self.player.finished() {
            return Ok(());
        }
        let now = outcome.map_or("it went on".to_string(), Outcome::to_string);
        let (at, then) = (machine.moment(), end.outcome.to_string());
        Err(self.player.divergence(at, Part::Registers, "how the run ended", then, now))
    }

    fn end(&self, machine: &mut Machine<Exits>) -> EndRecord<Instructions> {
        let (console_bytes, console_hash) = self.console.finish();
        EndRecord {
            at: machine.moment_in(),
            branches: machine.cpu().branches(),
            outcome: machine.outcome().cloned().expect("it has ended"),
            hashes: machine.hashes(),
            console_bytes,
            console_hash,
        }
    }
}

impl Logged<Exits, Instructions> for Transcriber {
    fn cursor(&self) -> Cursor<Instructions> {
        Cursor::after(self.events, self.checks, self.last, self.log.check())
    }

    fn format(&self) -> Format {
        self.log.format()
    }
}

impl Inputs<Exits> for Transcriber {
    fn poll(&mut self, view: &View<'_, Exits>) -> Result<Option<Event>, Error> {
        (self.here, self.branches) = (Instructions(view.cpu.steps()), view.cpu.branches());
        self.write_answers(view.cpu.system_calls())?;
        let event = self.player.poll(view)?;
        if let Some(event) = &event {
            let at = Moment { count: self.here, time_ns: view.moment.time_ns };
            (self.events, self.last) = (self.events + 1, at);
            self.log.append(&LogRecord::<Instructions>::SystemCalls(view.cpu.system_calls()))?;
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

    fn next_poll(&self, now: Moment<Exits>) -> Exits {
        self.player.next_poll(now)
    }

    fn idle(&mut self, now: Moment<Exits>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.player.idle(now, deadline_ns)
    }

    fn leave(&self, now: Moment<Exits>, deadline_ns: Option<u64>) -> Leave {
        self.player.leave(now, deadline_ns)
    }

    fn without_exit(&self, now: Moment<Exits>, executed: u64) -> Result<u64, Error> {
        self.player.without_exit(now, executed)
    }

    fn check_due(&self, now: Moment<Exits>) -> Option<CheckParts> {
        // Checks all parts that the original log's check has, so that the new log's check has them too.
        let due = self.player.check_due(now)?;
        Some(self.player.next_check_parts().unwrap_or(due))
    }

    fn checked(&mut self, check: CheckRecord<Exits>) -> Result<(), Error> {
        let at = Moment { count: self.here, time_ns: check.at.time_ns };
        (self.checks, self.last) = (self.checks + 1, at);
        let CheckRecord { at: _, branches: _, rip, cpu_hash, devices_hash, ram_digest } = check;
        let branches = self.branches;
        self.log.append(&LogRecord::Check(CheckRecord {
            at,
            branches,
            rip,
            cpu_hash,
            devices_hash,
            ram_digest,
        }))?;
        self.player.checked(check)
    }

    fn ask_devices(&mut self, at: AskedAt<Exits>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        let input = self.player.ask_devices(at, ask)?;
        let here = Moment { count: at.instructions, time_ns: at.at.time_ns };
        (self.events, self.last) = (self.events + 1, here);
        self.answers.push(EventRecord::of_answer(here, input.clone()));
        Ok(input)
    }

    fn console_output(&mut self, _now: Moment<Exits>, bytes: &[u8]) -> Result<(), Error> {
        self.console.update(bytes);
        Ok(())
    }
}
