//! Verifies a recording on all cores. A stretch is a part of the recording between two checkpoints. Each worker replays
//! one stretch after the other.
//!
//! A stretch begins in a checkpoint's state. At its end, the worker compares the next checkpoint with the replay. If
//! the first stretch and every checkpoint are equal, then a replay of the whole run is equal everywhere too. A worker
//! only reports that there is a difference. [`super::verify`] then replays the whole run to find the difference.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::replay::compare_checkpoints::{CheckpointComparison, CheckpointDifference};
use crate::replay::run::{Replay, ReplayEnd};
use crate::workers::{self, Poll, Scanned, TakeRow, Task};
use machine::error::Error;
use machine::position::Moment;
use machine::unit::Unit;
use recording::Recording;
use recording::console_digest::ConsoleDigest;
use recording::player::Scrutiny;

/// The number of stretches for each worker. With several short stretches, the other cores wait for the last worker only
/// for a short time.
const STRETCHES_EACH: u64 = 4;
/// The number of checks of registers between two polls.
const CHECKS_AT_ONCE: u64 = 8;

/// How a recording is divided among cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Largest number of workers. Each worker has its own machine, with a copy of the guest's RAM.
    pub threads: usize,
    /// The least number of steps in a stretch.
    pub least_steps: u64,
}

impl Cores {
    /// Uses all cores of this host. `least_steps` is so large that replaying a stretch takes longer than restoring
    /// its first checkpoint.
    pub fn all() -> Cores {
        Cores { threads: crate::timeline::cores(), least_steps: 100_000_000 }
    }
}

/// A part of a recording that one worker replays.
struct Stretch<C> {
    /// The checkpoint where the stretch begins; `None` for the recording's beginning.
    from: Option<C>,
    /// The checkpoints to compare. The last checkpoint is the stretch's end.
    checkpoints: Vec<C>,
}

/// Divides the recording. The last stretch has no checkpoint at its end.
fn divide<C: Unit>(positions: &[C], last: C, cores: Cores) -> Vec<Stretch<C>> {
    let first = positions.first().copied().unwrap_or_default();
    let share = (last - first) / (cores.threads as u64 * STRETCHES_EACH);
    let least = share.max(cores.least_steps);
    let mut stretches = vec![Stretch { from: None, checkpoints: Vec::new() }];
    let mut begin = C::default();
    for &at in positions {
        let stretch = stretches.last_mut().expect("there is one from the start on");
        stretch.checkpoints.push(at);
        if at - begin >= least && last - at >= least {
            stretches.push(Stretch { from: Some(at), checkpoints: Vec::new() });
            begin = at;
        }
    }
    stretches
}

/// A worker's result.
enum Row<C> {
    /// Console output.
    Console(Vec<u8>),
    /// A checkpoint was compared.
    Compared(Option<CheckpointDifference>),
    /// The replay has reached the recording's end.
    End(Moment<C>, ReplayEnd),
}

/// A replay, and the checkpoints that it is compared with.
struct Worker<'a, C> {
    replay: Replay<'a, C>,
    comparison: CheckpointComparison<C>,
    console: Arc<Mutex<Vec<u8>>>,
    /// The number of the stretch that begins at the worker's present place.
    stands_before: usize,
}

impl<'a, C: Unit> Worker<'a, C> {
    fn new(
        recording: &'a Recording<C>,
        like: &CheckpointComparison<C>,
        stands_before: usize,
    ) -> Result<Worker<'a, C>, Error> {
        let console: Arc<Mutex<Vec<u8>>> = Arc::default();
        let shared = console.clone();
        let mut replay = Replay::new(recording, Scrutiny::Everything, move |bytes| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
            Ok(())
        })?;
        let comparison = like.of_another(recording, &mut replay.machine)?;
        Ok(Worker { replay, comparison, console, stands_before })
    }

    /// Replays to a place, or to the recording's end. Returns `None` if the caller interrupted the replay.
    /// Otherwise returns whether the replay has reached the end.
    fn go(
        &mut self,
        until: Option<C>,
        replayed: &AtomicU64,
        row: &mut TakeRow<'_, Row<C>>,
        poll: &mut Poll<'_>,
    ) -> Result<Option<bool>, Error> {
        let until = until.unwrap_or(C::MAX);
        loop {
            let now = self.replay.machine.moment().count;
            let next = until.min(now.saturating_add(CHECKS_AT_ONCE * C::CHECKS.registers));
            let is_at_end = self.replay.go(Some(next), |_| {})?;
            let here = self.replay.machine.moment().count;
            replayed.fetch_add(here - now, Relaxed);
            let shown = std::mem::take(&mut *self.console.lock().unwrap_or_else(PoisonError::into_inner));
            if !shown.is_empty() && !row(Row::Console(shown)) {
                return Ok(None);
            }
            if is_at_end || here < next || here >= until {
                return Ok(Some(is_at_end));
            }
            if poll() {
                return Ok(None);
            }
        }
    }
}

/// All stretches of a recording.
struct Stretches<'a, C> {
    stretches: Vec<Stretch<C>>,
    /// The checkpoint with the state after the run has ended, if there is one.
    behind_the_end: Option<C>,
    idle: Mutex<Vec<Worker<'a, C>>>,
    /// Number of steps that all workers together have replayed.
    replayed: AtomicU64,
}

impl<'a, C: Unit> Task for Stretches<'a, C> {
    type Worker = Worker<'a, C>;
    type Row = Row<C>;
    type Place = ();

    fn intervals(&self) -> usize {
        self.stretches.len()
    }

    fn enough(&self) -> usize {
        usize::MAX
    }

    fn begin_of(&self, _: usize) {}

    fn worker(&self) -> Result<Worker<'a, C>, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Ok(idle.expect("there is one for each thread"))
    }

    fn put_back(&self, _: Worker<'a, C>) {}

    fn look_through(
        &self,
        worker: &mut Worker<'a, C>,
        number: usize,
        row: &mut TakeRow<'_, Row<C>>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<()>, Error> {
        let stretch = &self.stretches[number];
        if let Some(from) = stretch.from.filter(|_| worker.stands_before != number) {
            worker.comparison.begin_at(from, &mut worker.replay)?;
        }
        for &at in &stretch.checkpoints {
            let is_end = self.behind_the_end == Some(at);
            if worker.go((!is_end).then_some(at), &self.replayed, row, poll)?.is_none() {
                return Ok(Scanned::Interrupted(()));
            }
            worker.comparison.compare_and_adopt(at, &mut worker.replay)?;
            if !row(Row::Compared(worker.comparison.difference.clone())) {
                return Ok(Scanned::Whole);
            }
        }
        worker.stands_before = number + 1;
        if worker.stands_before == self.stretches.len() {
            let Some(is_at_end) = worker.go(None, &self.replayed, row, poll)? else {
                return Ok(Scanned::Interrupted(()));
            };
            let end = if is_at_end { worker.replay.compare_end_but_console()? } else { ReplayEnd::Stopped };
            row(Row::End(worker.replay.machine.moment(), end));
        }
        Ok(Scanned::Whole)
    }
}

/// The result if the whole recording is equal.
pub(super) struct Equal<C> {
    /// Where the replay ended.
    pub at: Moment<C>,
    /// Number of checkpoints compared.
    pub checkpoints: usize,
}

/// Verifies a recording on several cores. Returns `None` if the recording cannot be divided. If anything differs,
/// returns an error, which does not say where the difference began.
pub(super) fn verify<C: Unit>(
    recording: &Recording<C>,
    comparison: &CheckpointComparison<C>,
    cores: Cores,
    last: C,
    mut progress: impl FnMut(C),
) -> Result<Option<Equal<C>>, Error> {
    // In a recording that counts exits instead of instructions, another engine may have made the checkpoints. The
    // states of two engines are alike, but not identical. So a worker cannot begin at such a checkpoint.
    if cores.threads < 2 || !C::NAMES_ONE_PLACE {
        return Ok(None);
    }
    let positions = comparison.positions();
    let stretches = divide(&positions, last, cores);
    if stretches.len() < 2 {
        return Ok(None);
    }
    let behind_the_end = match positions.last() {
        Some(&at) if comparison.is_after_the_end(at)? => Some(at),
        _ => None,
    };
    let threads = cores.threads.min(stretches.len());
    let mut own = Worker::new(recording, comparison, 0)?;
    let begins = own.replay.machine.moment().count;
    let idle = (1..threads).map(|_| Worker::new(recording, comparison, 0)).collect::<Result<_, _>>()?;
    let task = Stretches { stretches, behind_the_end, idle: Mutex::new(idle), replayed: AtomicU64::new(0) };
    let (mut console, mut checkpoints, mut end) = (ConsoleDigest::default(), 0, None);
    let mut hand_on = |rows| {
        for row in rows {
            match row {
                Row::Console(bytes) => console.update(&bytes),
                Row::Compared(None) => checkpoints += 1,
                Row::Compared(Some(difference)) => return Err(differs(&difference)),
                Row::End(at, how) => end = Some((at, how)),
            }
        }
        Ok(())
    };
    let mut poll = || {
        progress(begins.saturating_add(task.replayed.load(Relaxed)));
        false
    };
    workers::ask(&task, &mut own, threads, &mut hand_on, &mut poll)?;
    let Some((at, how)) = end else { return Err(differs(&"a worker did not come to the end")) };
    let recorded = recording.log.end.as_ref().filter(|_| how == ReplayEnd::Verified);
    if recorded.is_some_and(|end| (end.console_bytes, end.console_hash) != console.finish()) {
        return Err(differs(&"the console's output is not what was recorded"));
    }
    Ok(Some(Equal { at, checkpoints }))
}

fn differs(what: &dyn std::fmt::Display) -> Error {
    Error::State(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::position::{Count, Instructions};
    use recording::log::LogRecord;

    fn divided(positions: &[u64], last: u64, threads: usize, least_steps: u64) -> Vec<Vec<u64>> {
        let positions: Vec<Instructions> = positions.iter().copied().map(Instructions).collect();
        let stretches = divide(&positions, Instructions(last), Cores { threads, least_steps });
        for (stretch, next) in stretches.iter().zip(&stretches[1..]) {
            assert_eq!(
                stretch.checkpoints.last(),
                next.from.as_ref(),
                "one begins where the one before ends"
            );
        }
        let numbers =
            |stretch: &Stretch<Instructions>| stretch.checkpoints.iter().map(|at| at.number()).collect();
        stretches.iter().map(numbers).collect()
    }

    #[test]
    fn every_checkpoint_lies_in_one_stretch_and_none_is_too_short() {
        let all: Vec<u64> = (1..100).map(|number| number * 10).collect();
        for (threads, least) in [(1, 1), (2, 1), (2, 200), (3, 10), (8, 25), (8, 1_000), (8, 2_000)] {
            let stretches = divided(&all, 1_000, threads, least);
            assert_eq!(stretches.concat(), all);
            assert!(
                stretches.len() <= threads * STRETCHES_EACH as usize + 1,
                "{threads} {least}: {stretches:?}"
            );
            assert!(stretches.len() <= (1_000 / least).max(1) as usize, "{threads} {least}: {stretches:?}");
        }
        assert!(divided(&all, 1_000, 2, 1).len() > 2);
        assert_eq!(divided(&[], 1_000, 4, 1), [[0; 0]]);
        assert_eq!(divided(&[999], 1_000, 4, 10), [[999]]);
    }

    #[test]
    fn a_short_recording_is_divided_and_each_way_of_differing_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let more: Vec<u64> = (1..20).map(|number| number * 5_000 + 1).collect();
        let (recording, end) =
            tiny_guest::record_with_checkpoints(directory.path(), "r.ttvm", 10_000, Vec::new(), &more);
        let cores = Cores { threads: 3, least_steps: 5_000 };
        let verified = |recording: &Recording<Instructions>| {
            let mut replay = Replay::new(recording, Scrutiny::Everything, |_| Ok(())).unwrap();
            let comparison = CheckpointComparison::new(recording, &mut replay.machine, |_, _| {}).unwrap();
            verify(recording, &comparison.unwrap(), cores, end.at.count, |_| {})
        };
        let equal = verified(&recording).unwrap().expect("it is long enough");
        assert!(equal.at == end.at && equal.checkpoints > more.len(), "{}", equal.checkpoints);
        // No single worker has the whole console output. Nevertheless, `verify` notices that the output's hash in
        // the end record was changed.
        let mut changed = recording.clone();
        tiny_guest::change_log(&mut changed, |log| {
            let Some(LogRecord::End(end)) = log.last_mut() else { panic!("it has an end") };
            end.console_hash[0] ^= 1;
        });
        let error = verified(&changed).err().expect("it differs");
        assert!(error.to_string().contains("the console's output"), "{error}");
    }
}
