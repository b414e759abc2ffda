//! Inputs from a log. The player gives each recorded event at its recorded point, and checks that the machine is in
//! the recorded state at this point. The player never asks the host for anything.

use std::sync::Arc;

use devices::passthrough::{AskV1, DeviceInputV1};

use crate::cursor::Cursor;
use crate::log::{EventRecord, Log, LogEntry, Piece};
use machine::checks::{CheckParts, CheckRecord};
use machine::divergence::Divergence;
use machine::engine::{LandingPlace, Leave};
use machine::error::Error;
use machine::hashes::hex;
use machine::inputs::{AskedAt, Event, Idle, Inputs, PowerOn, Sent, View};
use machine::position::{Count, Moment};
use machine::unit::Unit;

/// How much of the machine is compared with the recording's checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scrutiny {
    /// Nothing is compared. Events come in at their points, whatever state the machine is in. This choice is for a
    /// comparison of one replay with another replay.
    Nothing,
    /// The registers are compared, at every event and every check.
    #[default]
    Registers,
    /// Devices and RAM are compared as well, at every check that has their hashes.
    Everything,
}

/// The part of a machine in which a difference was found. Some parts are compared only rarely, so the part determines
/// how early the difference may have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Registers and counts, which every record has.
    Registers,
    /// The devices.
    Devices,
    /// RAM.
    Ram,
    /// The parts that are compared only at the end.
    Whole,
}

/// In a recording that counts instructions, the largest accepted number of instructions between two records. A recorder
/// writes a check every 16 million instructions. Without this limit, a damaged log could make a replay run for hours
/// without progress.
pub const MOST_STEPS_WITHOUT_RECORD: u64 = 1 << 32;
/// In a recording that counts exits, a replay that executes more than this number of instructions without an exit has
/// diverged. A recorder stops a guest that makes no exit after at most a fifth of a second, and counts the stop as an
/// exit. In this time, a processor of 5 GHz with four instructions per cycle executes fewer instructions than this
/// limit.
pub const MOST_STEPS_WITHOUT_EXIT: u64 = 1 << 32;

/// The name of an environment variable whose value replaces [`MOST_STEPS_WITHOUT_EXIT`], for a fuzzer that cannot
/// wait so long.
const MOST_VARIABLE: &str = "TTVM_MOST_STEPS_WITHOUT_EXIT";

fn most_without_exit() -> u64 {
    let steps = std::env::var(MOST_VARIABLE).ok().and_then(|text| text.parse().ok());
    steps.unwrap_or(MOST_STEPS_WITHOUT_EXIT)
}

/// Inputs that come from a log.
pub struct Player<C> {
    log: Arc<Log<C>>,
    power_on: PowerOn,
    next: Cursor<C>,
    /// The piece of the log that holds the next entry.
    piece: Arc<Piece<C>>,
    scrutiny: Scrutiny,
    /// The number of an event. The run ends at the point where this event is due.
    end_before: Option<usize>,
    most_without_exit: u64,
    /// Receives console output. `None` if the output is dropped.
    output: Option<Box<Output>>,
    /// Receives the network's frames. `None` if the frames are dropped.
    frames: Option<Box<Frames<C>>>,
}

/// A function that receives console output.
type Output = dyn FnMut(&[u8]) -> Result<(), Error> + Send;

/// A frame that passed between the guest and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<C> {
    /// For a received frame, the point where the guest received it. For a sent frame, the point before the instruction
    /// that sent it.
    pub at: Moment<C>,
    /// Whether the guest sent the frame.
    pub is_sent: bool,
    /// The Ethernet frame, with all its checksums.
    pub bytes: Vec<u8>,
}

/// A function that receives network frames.
type Frames<C> = dyn FnMut(Frame<C>) -> Result<(), Error> + Send;

/// The next entry of the log.
enum Next<'a, C> {
    Event(&'a EventRecord<C>),
    Check(&'a CheckRecord<C>),
    Nothing,
}

impl<C: Unit> Player<C> {
    /// A player at the start of a log.
    pub fn new(log: Arc<Log<C>>) -> Result<Player<C>, Error> {
        let Event::PowerOn(power_on) = log.power_on()?.event else {
            unreachable!("reading a log checks that it begins with power-on")
        };
        let log_check = log.check_behind(0, 0)?.unwrap_or_default();
        let next = Cursor { log_check, ..Cursor::default() };
        Ok(Player {
            piece: log.piece_of(0)?,
            log,
            power_on,
            next,
            scrutiny: Scrutiny::default(),
            end_before: None,
            most_without_exit: most_without_exit(),
            output: None,
            frames: None,
        })
    }

    /// Ends the run at the point where an event is due, instead of giving the event.
    pub fn end_before(&mut self, event: usize) {
        self.end_before = Some(event);
    }

    /// Sets another limit than [`MOST_STEPS_WITHOUT_EXIT`], for tests that cannot wait so long.
    #[doc(hidden)]
    pub fn set_most_without_exit(&mut self, steps: u64) {
        self.most_without_exit = steps;
    }

    /// Sets how much to compare.
    pub fn set_scrutiny(&mut self, scrutiny: Scrutiny) {
        self.scrutiny = scrutiny;
    }

    /// The machine's inputs at power-on.
    pub fn power_on(&self) -> &PowerOn {
        &self.power_on
    }

    /// Sends console output to `sink`.
    pub fn on_output(&mut self, sink: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static) {
        self.output = Some(Box::new(sink));
    }

    /// Passes all network frames to `sink`, received frames and sent frames.
    pub fn on_frame(&mut self, sink: impl FnMut(Frame<C>) -> Result<(), Error> + Send + 'static) {
        self.frames = Some(Box::new(sink));
    }

    /// Drops console output from now on.
    pub fn without_output(&mut self) {
        self.output = None;
    }

    /// Whether console output goes to a sink.
    pub fn shows_output(&self) -> bool {
        self.output.is_some()
    }

    /// This player's place in the log.
    pub fn cursor(&self) -> Cursor<C> {
        self.next
    }

    /// Moves the player to a cursor. The cursor's numbers of events and checks must be right. The other fields may be
    /// wrong.
    pub fn set_cursor(&mut self, cursor: Cursor<C>) -> Result<(), Error> {
        let log_check = self.log.check_behind(cursor.event, cursor.check)?.unwrap_or_default();
        self.next = Cursor { log_check, ..cursor };
        self.turn_to_next()
    }

    /// The log that is played.
    pub fn log(&self) -> &Log<C> {
        &self.log
    }

    /// Moves past the next entry of the log.
    fn advance(&mut self) -> Result<(), Error> {
        let place = self.next.entry();
        match self.piece.entry(place) {
            Some(LogEntry::Event { .. }) => self.next.event += 1,
            Some(LogEntry::Check { .. }) => self.next.check += 1,
            None => {}
        }
        self.next.log_check = self.piece.check_behind(place).unwrap_or_default();
        self.turn_to_next()
    }

    /// Loads the piece of the log that holds the next entry.
    fn turn_to_next(&mut self) -> Result<(), Error> {
        if !self.piece.contains(self.next.entry()) {
            self.piece = self.log.piece_of(self.next.entry())?;
        }
        Ok(())
    }

    /// Whether all entries of the log have been given and compared.
    pub fn finished(&self) -> bool {
        matches!(self.next(), Next::Nothing)
    }

    /// Makes the error for a difference at `at`, with the recorded events around the next entry.
    pub fn divergence(
        &self,
        at: Moment<C>,
        part: Part,
        what: &'static str,
        expected: String,
        actual: String,
    ) -> Error {
        let around = self.next.event.saturating_sub(2)..self.next.event.saturating_add(3);
        let neighbours = around
            .filter_map(|number| Some((number, self.log.event(number).ok()??)))
            .map(|(number, record)| format!("#{number} {} at {}", record.event.kind(), record.at.count))
            .collect();
        let last_good = self.last_good_of(part);
        Error::Divergence(Box::new(Divergence {
            at: at.count.position(),
            time_ns: at.time_ns,
            last_good: last_good.count.position(),
            last_good_ns: last_good.time_ns,
            what,
            expected,
            actual,
            neighbours,
        }))
    }

    /// The last point where a comparison of this part found no difference.
    fn last_good_of(&self, part: Part) -> Moment<C> {
        let noted = |check: &CheckRecord<C>| match part {
            Part::Devices => check.devices_hash.is_some(),
            Part::Ram => check.ram_digest.is_some(),
            Part::Registers | Part::Whole => false,
        };
        match (part, self.scrutiny) {
            (Part::Registers, _) => self.next.last_good,
            (_, Scrutiny::Everything) => {
                let passed = self.log.last_check_before(self.next.entry(), noted);
                passed.ok().flatten().map_or(Moment::default(), |check| check.at)
            }
            _ => Moment::default(),
        }
    }

    fn next(&self) -> Next<'_, C> {
        match self.piece.entry(self.next.entry()) {
            Some(LogEntry::Event { record, .. }) => Next::Event(record),
            Some(LogEntry::Check { record, .. }) => Next::Check(record),
            None => Next::Nothing,
        }
    }

    /// The parts of the machine that the next entry of the log checks. Returns `None` if that entry is not a check.
    pub fn next_check_parts(&self) -> Option<CheckParts> {
        match self.next() {
            Next::Check(check) => Some(check.parts()),
            _ => None,
        }
    }

    /// Skips the checks up to `now`, for callers that compare nothing.
    pub fn pass_checks(&mut self, now: Moment<C>) -> Result<(), Error> {
        while matches!(self.next(), Next::Check(check) if check.at <= now) {
            self.advance()?;
        }
        Ok(())
    }

    fn next_moment(&self) -> Option<Moment<C>> {
        match self.next() {
            Next::Event(event) => Some(event.at),
            Next::Check(check) => Some(check.at),
            Next::Nothing => None,
        }
    }

    /// The next entry of the log, if it is an event that comes in at the machine's present point.
    fn due(&self, view: &View<'_, C>) -> Result<Option<&EventRecord<C>>, Error> {
        let Some(at) = self.next_moment() else { return Ok(None) };
        if view.moment < at {
            return Ok(None);
        }
        let is_answer = matches!(self.next(), Next::Event(next) if next.event.is_answer());
        if view.moment > at && self.scrutiny != Scrutiny::Nothing {
            let (then, now) = (at.to_string(), view.moment.to_string());
            return Err(self.divergence(view.moment, Part::Registers, "the point of a record", then, now));
        }
        if is_answer {
            // This event is an answer. The machine gets it only when the next instruction asks the device.
            return Ok(None);
        }
        let Next::Event(next) = self.next() else { return Ok(None) };
        // The machine may have reached the event's count of exits, but not yet the place where the guest was stopped.
        let on_the_way = !C::NAMES_ONE_PLACE && is_stop(next) && view.stopped.is_none();
        Ok((!on_the_way).then_some(next))
    }

    fn compare_event(&self, view: &View<'_, C>, expected: &EventRecord<C>) -> Result<(), Error> {
        let mut actual = EventRecord::of(view, expected.event.clone());
        if !C::NAMES_ONE_PLACE {
            // Not every engine counts branches. So the count of branches helps to find a place, but a different count
            // is not a divergence.
            if expected.branches != 0 && actual.branches != 0 && expected.branches != actual.branches {
                let (then, now) = (expected.branches, actual.branches);
                log::warn!("a branch counter is not exact: {then} when it was recorded, {now} now");
            }
            actual.branches = expected.branches;
        }
        self.compare_registers(view.moment, Registers::of_event(expected), Registers::of_event(&actual))
    }

    fn compare_check(&self, expected: &CheckRecord<C>, actual: &CheckRecord<C>) -> Result<(), Error> {
        let at = actual.at;
        self.compare_registers(at, Registers::of_check(expected), Registers::of_check(actual))?;
        if self.scrutiny != Scrutiny::Everything {
            // This replay does not compare devices and RAM.
            return Ok(());
        }
        let devices = |check: &CheckRecord<C>| check.devices_hash.as_ref().map(|hash| hex(hash));
        let ram = |check: &CheckRecord<C>| check.ram_digest.as_ref().map(|digest| hex(digest));
        for (part, what, expected, actual) in [
            (Part::Devices, "the hash of the devices", devices(expected), devices(actual)),
            (Part::Ram, "the digest of RAM", ram(expected), ram(actual)),
        ] {
            if expected != actual {
                let [expected, actual] = [expected, actual].map(|hex| hex.unwrap_or("nothing".to_string()));
                return Err(self.divergence(at, part, what, expected, actual));
            }
        }
        Ok(())
    }

    fn compare_registers(
        &self,
        at: Moment<C>,
        expected: Registers<C>,
        actual: Registers<C>,
    ) -> Result<(), Error> {
        if expected == actual {
            return Ok(());
        }
        if expected.at != actual.at {
            let (then, now) = (expected.at.to_string(), actual.at.to_string());
            return Err(self.divergence(at, Part::Registers, "the point of a record", then, now));
        }
        for (what, expected, actual) in [
            ("RIP", format!("{:#x}", expected.rip), format!("{:#x}", actual.rip)),
            ("the count of conditional branches", expected.branches.to_string(), actual.branches.to_string()),
            ("the hash of the registers", hex(&expected.hash), hex(&actual.hash)),
        ] {
            if expected != actual {
                return Err(self.divergence(at, Part::Registers, what, expected, actual));
            }
        }
        Ok(())
    }
}

/// The values by which every record describes the registers: the position, RIP, the count of conditional branches, and
/// a hash of all registers.
#[derive(PartialEq, Eq)]
struct Registers<C> {
    at: Moment<C>,
    rip: u64,
    branches: u64,
    hash: [u8; 8],
}

impl<C: Count> Registers<C> {
    fn of_event(record: &EventRecord<C>) -> Registers<C> {
        let EventRecord { at, branches, rip, cpu_hash, .. } = *record;
        Registers { at, rip, branches, hash: cpu_hash }
    }

    fn of_check(record: &CheckRecord<C>) -> Registers<C> {
        let CheckRecord { at, branches, rip, cpu_hash, .. } = *record;
        Registers { at, rip, branches, hash: cpu_hash }
    }
}

fn is_stop<C>(record: &EventRecord<C>) -> bool {
    matches!(record.event, Event::Stopped(_))
}

impl<C: Unit> Inputs<C> for Player<C> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        let Some(expected) = self.due(view)? else { return Ok(None) };
        let event = expected.event.clone();
        if self.end_before == Some(self.next.event) {
            return Ok(Some(Event::Ended));
        }
        if self.scrutiny != Scrutiny::Nothing {
            self.compare_event(view, expected)?;
            self.next.last_good = view.moment;
        }
        self.advance()?;
        if let (Event::NetworkInput(frames), Some(sink)) = (&event, &mut self.frames) {
            for bytes in frames.iter().cloned() {
                sink(Frame { at: view.moment, is_sent: false, bytes })?;
            }
        }
        Ok(Some(event))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        match self.next_moment() {
            // An answer comes in while the instruction after this point executes.
            Some(at) if matches!(self.next(), Next::Event(event) if event.event.is_answer()) => at.count + 1,
            Some(at) if at.count > now.count => at.count,
            // If the guest makes an exit before the place where it was stopped, the machine must poll at that exit,
            // because the replay has diverged.
            Some(_) if matches!(self.next(), Next::Event(event) if is_stop(event)) => now.count + 1,
            _ => C::MAX,
        }
    }

    fn without_exit(&self, now: Moment<C>, executed: u64) -> Result<u64, Error> {
        if C::NAMES_ONE_PLACE {
            // The distance to the next record already limits the number of instructions.
            return Ok(u64::MAX);
        }
        match self.most_without_exit.checked_sub(executed) {
            Some(rest) if rest > 0 => Ok(rest),
            _ => {
                let then = format!("one within {} instructions", self.most_without_exit);
                Err(self.divergence(now, Part::Registers, "the next exit", then, "none".to_string()))
            }
        }
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let record_ns = self.next_moment().filter(|at| at.count == now.count).map(|at| at.time_ns);
        Ok(match (record_ns, deadline_ns) {
            (Some(record), Some(deadline)) => Idle::Until(record.min(deadline)),
            (Some(ns), None) | (None, Some(ns)) => Idle::Until(ns),
            (None, None) => Idle::Forever,
        })
    }

    fn leave(&self, now: Moment<C>, _deadline_ns: Option<u64>) -> Leave {
        match self.next() {
            Next::Event(EventRecord { at, rip, cpu_hash, event: Event::Stopped(stopped), branches })
                if *at == now =>
            {
                Leave::At(LandingPlace {
                    rip: *rip,
                    registers: stopped.registers,
                    branches: (*branches != 0).then_some(*branches),
                    not_here: false,
                    cpu_hash: *cpu_hash,
                    ram_digest: stopped.ram_digest,
                })
            }
            _ => Leave::AtExits,
        }
    }

    fn check_due(&self, now: Moment<C>) -> Option<CheckParts> {
        match self.next() {
            Next::Check(check) if now >= check.at => Some(match self.scrutiny {
                Scrutiny::Everything => check.parts(),
                Scrutiny::Nothing | Scrutiny::Registers => CheckParts::default(),
            }),
            _ => None,
        }
    }

    fn checked(&mut self, actual: CheckRecord<C>) -> Result<(), Error> {
        let Next::Check(expected) = self.next() else { return Ok(()) };
        if self.scrutiny != Scrutiny::Nothing {
            self.compare_check(expected, &actual)?;
            self.next.last_good = actual.at;
        }
        self.advance()
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        let nothing = DeviceInputV1::nothing_there(*ask);
        let at = at.at;
        let recorded = match self.next() {
            // The log was cut off, and the replay ends at this point.
            Next::Nothing if self.log.end.is_none() => return Ok(nothing),
            Next::Event(record) if record.event.is_answer() => Some(record),
            _ => None,
        };
        let Some(EventRecord { at: then, event: Event::Devices(input), .. }) = recorded else {
            if self.scrutiny == Scrutiny::Nothing {
                return Ok(nothing);
            }
            let (then, now) = ("no access".to_string(), format!("{ask:x?}"));
            return Err(self.divergence(
                at,
                Part::Registers,
                "an access to a passed-through device",
                then,
                now,
            ));
        };
        if self.scrutiny != Scrutiny::Nothing && (*then != at || input.asked != Some(*ask)) {
            let then = format!("{:x?} at {then}", input.asked.expect("it is an answer"));
            let now = format!("{ask:x?} at {at}");
            return Err(self.divergence(
                at,
                Part::Registers,
                "an access to a passed-through device",
                then,
                now,
            ));
        }
        let input = input.clone();
        self.next.last_good = at;
        self.advance()?;
        Ok(input)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        let Some(sink) = &mut self.frames else { return Ok(()) };
        frames.into_iter().try_for_each(|Sent { at, frame }| {
            sink(Frame { at, is_sent: true, bytes: frame.into_checksummed() })
        })
    }

    fn console_output(&mut self, _now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.output {
            Some(sink) => sink(bytes),
            None => Ok(()),
        }
    }
}
