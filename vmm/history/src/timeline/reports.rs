//! Finds the reports of the guest's kernel: panics, oopses, warnings.
//!
//! A kernel's own log has the reports, even if the machine has no console. The log is a ring buffer, which keeps only
//! the newest messages. So the log is first read at the last place where the kernel runs. Then it is read again at the
//! place where its oldest message was written, and so on. For each report, a search finds the write that completed the
//! message in the log. Each kernel (an earlier kernel before kexec, or a crash kernel) has its own log.
//!
//! If no kernel with a readable log is found, the console's text is searched instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use cpu::{AddressKind, WatchKind, Watchpoint};
use guest_symbols::Symbols;
use guest_symbols::messages::{Kept, KernelLog, State};
use guest_symbols::reports::{Kind, Sifter, without_time};
use guest_symbols::tasks::{Tasks, Thread};
use machine::Machine;
use machine::error::Error;
use machine::position::Instructions;

use super::report::Report;
use super::stops::{Hit, Stops, Watch};
use super::travel::Timeline;
use crate::workers::Poll;

/// Largest number of kernels in one run.
const MOST_KERNELS: usize = 8;
/// The largest number of times that a kernel's log is read again at an earlier place.
const MOST_HOPS: usize = 64;
/// Largest number of bytes that are read of the kernel's log.
const MOST_LOG_BYTES: usize = 256 << 20;
/// Largest number of reports in the list, because a guest may print without end.
const MOST_REPORTS: usize = 1000;
/// The largest usual difference between the kernel's clock and guest time. If a report's write is not within this
/// difference of the message's time, the search goes through the whole run.
const BEFORE_NS: u64 = 300_000_000;
const AFTER_NS: u64 = 2_000_000_000;
/// The log is read at a place that is at most this number of steps before the last place where it can be read.
const NEAR_STEPS: u64 = 1000;
/// Longer lines of the console are cut to this length.
const MOST_LINE_BYTES: usize = 1024;

/// A kernel, and the part of the run in which it runs.
struct Seen {
    log: KernelLog,
    tasks: Option<Tasks>,
    /// The beginning of the kernel's part: the kernel does not run before this place.
    from: Instructions,
    /// The last place where the kernel's log could be read.
    last: Instructions,
}

/// A report in a kernel's log, before its place is known.
struct Unplaced {
    kind: Kind,
    line: String,
    message: Kept,
}

/// A write to the state of a message in the log, and facts about the machine at this write.
struct Written {
    id: u64,
    state: State,
    at: Instructions,
    time_ns: u64,
    thread: Option<Thread>,
}

impl Timeline {
    /// The reports of the guest's kernels, in the order of the run. Only the first call in a session searches. The
    /// position does not change.
    pub fn reports(&mut self, poll: &mut Poll<'_>) -> Result<Arc<[Report]>, Error> {
        if let Some(found) = &self.reports {
            return Ok(found.clone());
        }
        self.must_be_history()?;
        let (begun, stops) = (self.snapshot()?, std::mem::take(&mut self.stops));
        let found = self.find_reports(poll);
        self.stops = stops;
        self.return_to(&begun)?;
        let found: Arc<[Report]> = found?.into();
        self.reports = Some(found.clone());
        Ok(found)
    }

    fn find_reports(&mut self, poll: &mut Poll<'_>) -> Result<Vec<Report>, Error> {
        let (mut found, mut until, mut kernels) = (Vec::new(), self.end(), 0);
        while let Some(kernel) = self.kernel_before(until, poll)? {
            let mut earlier = self.reports_of(&kernel, poll)?;
            earlier.append(&mut found);
            found = earlier;
            until = kernel.from;
            kernels += 1;
            if until == Instructions(0) || kernels == MOST_KERNELS {
                break;
            }
        }
        if kernels == 0 {
            found = self.reports_on_console(poll)?;
        }
        found.sort_by_key(|report| report.at);
        found.truncate(MOST_REPORTS);
        Ok(found)
    }

    /// The last kernel before a place whose log can be read.
    fn kernel_before(&mut self, until: Instructions, poll: &mut Poll<'_>) -> Result<Option<Seen>, Error> {
        let heads: Vec<Instructions> = self.checkpoint_places();
        let before = heads.partition_point(|&at| at < until);
        // Seconds may pass between two kernels, so each step back is twice as long as the step before.
        let distances =
            (0..usize::BITS).map(|shift| 1_usize << shift).take_while(|&distance| distance <= before);
        let earlier = distances.map(|distance| heads[before - distance]);
        let mut behind = until;
        for place in [until].into_iter().chain(earlier) {
            self.seek(place, poll)?.unless_interrupted()?;
            let Some((log, tasks)) = log_of(self.machine()) else {
                behind = place;
                continue;
            };
            let last = self.last_of(&log, place, behind, poll)?;
            let from = self.first_of(&log, &heads, last, poll)?;
            return Ok(Some(Seen { log, tasks, from, last }));
        }
        Ok(None)
    }

    /// The last place where a kernel's log can be read, approximately. The caller guarantees that the log can be read
    /// at `low`, and cannot be read at `high` unless the two are equal.
    fn last_of(
        &mut self,
        log: &KernelLog,
        mut low: Instructions,
        mut high: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Instructions, Error> {
        let known = log.length(self.machine());
        while high - low > NEAR_STEPS {
            let middle = low + (high - low) / 2;
            self.seek(middle, poll)?.unless_interrupted()?;
            // If the log is shorter than before, another kernel runs at the same addresses.
            let is_readable = log.length(self.machine()).is_some_and(|length| Some(length) >= known);
            *(if is_readable { &mut low } else { &mut high }) = middle;
        }
        Ok(low)
    }

    /// The last checkpoint before the first place where a kernel's log can be read, or the recording's beginning.
    fn first_of(
        &mut self,
        log: &KernelLog,
        heads: &[Instructions],
        last: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Instructions, Error> {
        self.seek(last, poll)?.unless_interrupted()?;
        let known = log.length(self.machine());
        let (mut low, mut high) = (0, heads.partition_point(|&at| at < last));
        while low < high {
            let middle = low + (high - low) / 2;
            self.seek(heads[middle], poll)?.unless_interrupted()?;
            let is_there = log.length(self.machine()).is_some_and(|length| Some(length) <= known);
            if is_there { high = middle } else { low = middle + 1 }
        }
        Ok(low.checked_sub(1).map_or(Instructions(0), |number| heads[number]))
    }

    fn reports_of(&mut self, kernel: &Seen, poll: &mut Poll<'_>) -> Result<Vec<Report>, Error> {
        let mut unplaced = Vec::new();
        let mut sifter = Sifter::default();
        for message in self.all_messages(kernel, poll)?.into_values() {
            let begins: Vec<_> =
                message.message.text.lines().map(|line| (line, sifter.begins(line))).collect();
            for (line, kind) in begins.into_iter().filter_map(|(line, kind)| Some((line.to_string(), kind?)))
            {
                unplaced.push(Unplaced { kind, line, message: message.clone() });
            }
        }
        unplaced.truncate(MOST_REPORTS);
        self.place(kernel, unplaced, poll)
    }

    /// All messages of a kernel that can be found, by their numbers.
    fn all_messages(&mut self, kernel: &Seen, poll: &mut Poll<'_>) -> Result<BTreeMap<u64, Kept>, Error> {
        let (mut all, mut place, mut bytes) = (BTreeMap::<u64, Kept>::new(), kernel.last, 0);
        for _ in 0..MOST_HOPS {
            self.seek(place, poll)?.unless_interrupted()?;
            let kept = kernel.log.kept(self.machine()).unwrap_or_default();
            let before = all.len();
            for message in kept {
                bytes += message.message.text.len();
                all.entry(message.sequence).or_insert(message);
            }
            let Some((&first, oldest)) = all.first_key_value() else { break };
            if first == 0 || all.len() == before || bytes > MOST_LOG_BYTES {
                break;
            }
            let oldest = Unplaced { kind: Kind::Bug, line: String::new(), message: oldest.clone() };
            match self.place(kernel, vec![oldest], poll)?.first() {
                Some(found) if found.at < place => place = found.at,
                _ => break,
            }
        }
        Ok(all)
    }

    /// Finds the places of reports. Searches first near each report's time, then in the whole part of the run in which
    /// the kernel runs. Reports from before the recording's beginning have no place, and are left out.
    fn place(
        &mut self,
        kernel: &Seen,
        unplaced: Vec<Unplaced>,
        poll: &mut Poll<'_>,
    ) -> Result<Vec<Report>, Error> {
        let mut parts: BTreeMap<(Instructions, Instructions), Vec<Unplaced>> = BTreeMap::new();
        for report in unplaced {
            parts.entry(self.part_near(kernel, report.message.message.time_ns)).or_default().push(report);
        }
        let (mut found, mut left) = (Vec::new(), Vec::new());
        for (part, reports) in parts {
            left.append(&mut self.place_in(part, kernel, reports, &mut found, poll)?);
        }
        if !left.is_empty() {
            self.place_in((kernel.from, kernel.last), kernel, left, &mut found, poll)?;
        }
        found.sort_by_key(|report| report.at);
        Ok(found)
    }

    /// The part of a kernel's run between two checkpoints around a time.
    fn part_near(&self, kernel: &Seen, time_ns: u64) -> (Instructions, Instructions) {
        let heads = || self.checkpoints().into_iter().flat_map(|checkpoints| checkpoints.heads());
        let early = time_ns.saturating_sub(BEFORE_NS);
        let late = time_ns.saturating_add(AFTER_NS);
        let from = heads().take_while(|(_, head)| head.at.time_ns <= early).last();
        let to = heads().find(|(_, head)| head.at.time_ns >= late);
        let from = from.map_or(kernel.from, |(&at, _)| at.max(kernel.from));
        let to = to.map_or(kernel.last, |(&at, _)| at.min(kernel.last));
        if from < to { (from, to) } else { (kernel.from, kernel.last) }
    }

    /// Finds the places of reports in a part of the run. Returns the reports whose places are not in this
    /// part.
    fn place_in(
        &mut self,
        (from, to): (Instructions, Instructions),
        kernel: &Seen,
        reports: Vec<Unplaced>,
        found: &mut Vec<Report>,
        poll: &mut Poll<'_>,
    ) -> Result<Vec<Unplaced>, Error> {
        let point = |report: &Unplaced| Watchpoint {
            space: AddressKind::Linear,
            address: report.message.state_at,
            length: 8,
            kind: WatchKind::Write,
        };
        self.stops = Stops {
            watches: reports.iter().map(|report| point(report).into()).collect(),
            ..Stops::default()
        };
        self.stops.watches.dedup_by_key(|watch: &mut Watch| watch.point);
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            written(machine, hit, &reports, kernel.tasks.as_ref())
        };
        let mut places: BTreeMap<u64, Written> = BTreeMap::new();
        let mut hand_on = |rows: Vec<Option<Written>>| {
            for row in rows.into_iter().flatten() {
                match row.state {
                    State::Unwritten => {}
                    // The kernel reopens a message to append text, and commits it again. The place of the last
                    // commit is the place of the report.
                    State::Committed => _ = places.insert(row.id, row),
                    // A message is finalized when the next message is written. If the message was committed before,
                    // the commit's place is used.
                    State::Finalized => _ = places.entry(row.id).or_insert(row),
                }
            }
            Ok(())
        };
        if self.each_hit(from..to, usize::MAX, &look, &mut hand_on, poll)?.is_some() {
            return Err(Error::Interrupted);
        }
        let mut left = Vec::new();
        for report in reports {
            match places.get(&report.message.id) {
                None => left.push(report),
                Some(Written { at, time_ns, thread, .. }) => found.push(Report {
                    kind: report.kind,
                    line: report.line,
                    at: *at,
                    time_ns: *time_ns,
                    thread: thread.clone(),
                }),
            }
        }
        Ok(left)
    }

    /// Finds reports in the text that the guest prints on its console.
    fn reports_on_console(&mut self, poll: &mut Poll<'_>) -> Result<Vec<Report>, Error> {
        self.stops = Stops { console: Some(Vec::new()), ..Stops::default() };
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            let printed = match hit.cause {
                super::stops::Cause::Console(bytes) => bytes,
                _ => 0,
            };
            let text = machine.console().text();
            (text[text.len().saturating_sub(printed)..].to_vec(), hit.after, machine.moment().time_ns)
        };
        let (mut found, mut line, mut sifter) = (Vec::new(), Vec::new(), Sifter::default());
        let mut hand_on = |rows: Vec<(Vec<u8>, Instructions, u64)>| {
            for (bytes, at, time_ns) in rows {
                for byte in bytes {
                    if byte != b'\n' {
                        if line.len() < MOST_LINE_BYTES {
                            line.push(byte);
                        }
                        continue;
                    }
                    let text = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
                    let text = without_time(&text);
                    if let Some(kind) = sifter.begins(text).filter(|_| found.len() < MOST_REPORTS) {
                        let visible = |c: char| if c.is_control() { '?' } else { c };
                        let line = text.chars().map(visible).collect();
                        found.push(Report { kind, line, at, time_ns, thread: None });
                    }
                }
            }
            Ok(())
        };
        if self.each_hit(Instructions(0)..self.end(), usize::MAX, &look, &mut hand_on, poll)?.is_some() {
            return Err(Error::Interrupted);
        }
        Ok(found)
    }
}

/// The log and the tasks of the kernel that a machine runs. `None` if the log has no message.
fn log_of(machine: &Machine<Instructions>) -> Option<(KernelLog, Option<Tasks>)> {
    let symbols = Symbols::of_guest(machine).ok()?;
    let log = KernelLog::of_kernel(machine, &symbols).ok()?;
    log.kept(machine).filter(|kept| !kept.is_empty())?;
    Some((log, Tasks::of_kernel(machine, &symbols).ok()))
}

/// If the hit is a write to the state of one of these messages, returns facts about this write.
fn written(
    machine: &Machine<Instructions>,
    hit: Hit,
    reports: &[Unplaced],
    tasks: Option<&Tasks>,
) -> Option<Written> {
    let super::stops::Cause::Watch { address, .. } = hit.cause else { return None };
    let mut state = [0; 8];
    machine.cpu().core().peek(address & !7, &mut state);
    let state = u64::from_le_bytes(state);
    let mut messages = reports.iter().map(|report| &report.message);
    let (id, state) = messages.find_map(|message| {
        (message.state_at == address & !7).then(|| Some((message.id, message.state_of(state)?)))?
    })?;
    Some(Written {
        id,
        state,
        at: hit.after,
        time_ns: machine.moment().time_ns,
        thread: tasks.and_then(|tasks| tasks.current(machine)),
    })
}
