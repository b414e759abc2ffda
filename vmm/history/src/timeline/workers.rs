//! Workers: walkers on all cores, each of which replays one interval of the recording after the other.
//!
//! The stretch between two checkpoints, an [`Interval`], is the unit of parallel work. A worker owns a machine, takes the next
//! interval, asks a [`Question`] along it, and sends the rows in batches through a bounded channel. The caller gets the rows
//! in the order of the intervals, whichever worker was faster. Workers that are far ahead wait, so that memory is bounded.
//!
//! ```text
//!  intervals  0   1   2   3 ...      taken in order, by whoever is free
//!  workers    A   B   B   A          one bounded channel each
//!  caller     0   1   2   3 ...      reads the channel of the worker that took the next interval
//! ```
//!
//! Making a machine is dear, so walkers are kept for the session ([`Pool`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::search::{Interval, Question, Scanned};
use super::shared::{Poll, Shared};
use super::walker::Walker;
use machine::error::Error;
use machine::position::Instructions;

/// Rows that a worker sends at once.
const BATCH_ROWS: usize = 128;
/// Batches that wait for the caller before their worker does.
const WAITING_BATCHES: usize = 64;
/// How long the caller waits for workers before it asks again whether to stop.
const WAIT: Duration = Duration::from_millis(10);

/// Walkers that have nothing to do, kept for the session.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Walker>>);

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Walker>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An idle walker, or a new one.
    fn take(&self, shared: &Arc<Shared>) -> Result<Walker, Error> {
        let idle = self.idle().pop();
        idle.map_or_else(|| Walker::new(shared.clone()), Ok)
    }

    fn put_back(&self, walker: Walker) {
        self.idle().push(walker);
    }

    /// Frees the memory of all idle walkers.
    pub fn clear(&self) {
        self.idle().clear();
    }
}

/// How far the intervals were looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Covered {
    /// All of them, or as far as was needed.
    Enough,
    /// The person asked to stop. From where the search began to this place nothing was left out.
    UpTo(Instructions),
}

/// What a worker sends of an interval.
enum Message<T> {
    Rows(Vec<T>),
    /// The interval was looked through.
    Done,
    Interrupted(Instructions),
    Failed(Error),
}

/// Asks a question along intervals, with `own` and with idle walkers on other cores. Hands on the rows in the order of the
/// intervals, never none. `poll` asks whether the person wants to stop.
pub(super) fn ask<T: Send>(
    own: &mut Walker,
    (pool, shared): (&Pool, &Arc<Shared>),
    question: &Question<'_, T>,
    intervals: &[Interval],
    hand_on: &mut dyn FnMut(Vec<T>) -> Result<(), Error>,
    poll: &mut Poll<'_>,
) -> Result<Covered, Error> {
    let count = shared.threads.min(intervals.len());
    if count <= 1 {
        return ask_alone(own, question, intervals, hand_on, poll);
    }
    let (announce, taken) = channel();
    let work = Work {
        question,
        intervals,
        next: Mutex::new(Next { number: 0, announce: Some(announce) }),
        stop: AtomicBool::new(false),
        first_hit: AtomicUsize::new(usize::MAX),
    };
    std::thread::scope(|scope| {
        let work = &work;
        let (senders, batches): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(WAITING_BATCHES)).unzip();
        let mut own = Some(own);
        for (worker, sender) in senders.into_iter().enumerate() {
            let own = own.take();
            scope.spawn(move || match own {
                Some(own) => work.work(worker, &sender, own),
                None => work.work_with_idle(worker, &sender, pool, shared),
            });
        }
        let caller = Caller { work, taken, batches };
        let covered = caller.gather(hand_on, poll);
        work.stop.store(true, Relaxed);
        covered
    })
}

/// As [`ask`], with one walker and no thread.
fn ask_alone<T>(
    own: &mut Walker,
    question: &Question<'_, T>,
    intervals: &[Interval],
    hand_on: &mut dyn FnMut(Vec<T>) -> Result<(), Error>,
    poll: &mut Poll<'_>,
) -> Result<Covered, Error> {
    let mut left = question.keep.enough();
    for (number, interval) in intervals.iter().enumerate() {
        // An interval may be shorter than the distance at which a walker asks.
        if number > 0 && poll() {
            return Ok(Covered::UpTo(question.keep.begin_of(interval)));
        }
        let (mut failed, mut batch) = (None, Vec::new());
        let mut row = |row| {
            batch.push(row);
            left -= 1;
            if left == 0 || batch.len() == BATCH_ROWS {
                failed = hand_on(std::mem::take(&mut batch)).err();
            }
            left > 0 && failed.is_none()
        };
        let scanned = own.scan(*interval, question, &mut row, poll);
        if let Some(error) = failed {
            return Err(error);
        }
        if !batch.is_empty() {
            hand_on(batch)?;
        }
        match scanned? {
            Scanned::Interrupted(edge) => return Ok(Covered::UpTo(edge)),
            Scanned::Whole if left == 0 => break,
            Scanned::Whole => {}
        }
    }
    Ok(Covered::Enough)
}

/// Intervals that several workers take one after the other.
struct Work<'a, T> {
    question: &'a Question<'a, T>,
    intervals: &'a [Interval],
    next: Mutex<Next>,
    stop: AtomicBool,
    /// The first interval that is known to have what was asked for, where one hit is enough: later ones do not matter.
    first_hit: AtomicUsize,
}

struct Next {
    number: usize,
    /// Tells in the order of the intervals which worker took them. `None` once no interval will be taken any more: the
    /// caller waits for the next announcement until then.
    announce: Option<Sender<usize>>,
}

impl<T: Send> Work<'_, T> {
    fn take(&self, worker: usize) -> Option<usize> {
        let mut next = self.next.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let number = next.number;
        if number >= self.intervals.len() || !self.matters(number) {
            next.announce = None;
            return None;
        }
        next.announce.as_ref()?.send(worker).ok()?;
        next.number += 1;
        Some(number)
    }

    fn matters(&self, number: usize) -> bool {
        !self.stop.load(Relaxed) && number < self.first_hit.load(Relaxed)
    }

    fn work(&self, worker: usize, to: &SyncSender<Message<T>>, walker: &mut Walker) {
        while let Some(number) = self.take(worker) {
            if self.look_through(number, to, walker).is_none() {
                return;
            }
        }
    }

    /// As [`Work::work`], with a walker of the pool, or with a new one if there is anything left to do.
    fn work_with_idle(&self, worker: usize, to: &SyncSender<Message<T>>, pool: &Pool, shared: &Arc<Shared>) {
        let Some(number) = self.take(worker) else { return };
        match pool.take(shared) {
            Ok(mut walker) => {
                if self.look_through(number, to, &mut walker).is_some() {
                    self.work(worker, to, &mut walker);
                }
                pool.put_back(walker);
            }
            // If nobody listens, nobody needs it.
            Err(error) => _ = to.send(Message::Failed(error)),
        }
    }

    /// Sends the rows of an interval. `None` if nobody listens any more.
    fn look_through(&self, number: usize, to: &SyncSender<Message<T>>, walker: &mut Walker) -> Option<()> {
        let (mut batch, mut found, mut listens) = (Vec::new(), 0, true);
        let mut row = |row| {
            batch.push(row);
            found += 1;
            if batch.len() == BATCH_ROWS {
                listens = to.send(Message::Rows(std::mem::take(&mut batch))).is_ok();
            }
            listens && found < self.question.keep.enough()
        };
        let scanned =
            walker.scan(self.intervals[number], self.question, &mut row, &mut || !self.matters(number));
        if found > 0 && self.question.keep.enough() == 1 {
            self.first_hit.fetch_min(number + 1, Relaxed);
        }
        if !batch.is_empty() {
            to.send(Message::Rows(batch)).ok()?;
        }
        let end = match scanned {
            Ok(Scanned::Whole) => Message::Done,
            Ok(Scanned::Interrupted(edge)) => Message::Interrupted(edge),
            Err(error) => Message::Failed(error),
        };
        to.send(end).ok()
    }
}

/// The thread that asked.
struct Caller<'a, T> {
    work: &'a Work<'a, T>,
    /// Which worker took each interval, in order.
    taken: Receiver<usize>,
    /// What each worker sends.
    batches: Vec<Receiver<Message<T>>>,
}

impl<T> Caller<'_, T> {
    /// Hands on all rows in order.
    fn gather(
        &self,
        hand_on: &mut dyn FnMut(Vec<T>) -> Result<(), Error>,
        poll: &mut Poll<'_>,
    ) -> Result<Covered, Error> {
        let keep = self.work.question.keep;
        let mut left = keep.enough();
        for (number, interval) in self.work.intervals.iter().enumerate() {
            if number > 0 && poll() {
                self.work.stop.store(true, Relaxed);
            }
            let Some(worker) = self.wait(&self.taken, poll) else {
                return Ok(Covered::UpTo(keep.begin_of(interval)));
            };
            loop {
                match self.wait(&self.batches[worker], poll) {
                    Some(Message::Rows(mut rows)) => {
                        rows.truncate(left);
                        left -= rows.len();
                        hand_on(rows)?;
                        if left == 0 {
                            return Ok(Covered::Enough);
                        }
                    }
                    Some(Message::Done) => break,
                    Some(Message::Interrupted(edge)) => return Ok(Covered::UpTo(edge)),
                    Some(Message::Failed(error)) => return Err(error),
                    None => return Ok(Covered::UpTo(keep.begin_of(interval))),
                }
            }
        }
        Ok(Covered::Enough)
    }

    /// Waits for a worker, and asks meanwhile whether to stop: then workers end soon, and say how far they came. `None` if no
    /// worker is left that could send something.
    fn wait<M>(&self, from: &Receiver<M>, poll: &mut Poll<'_>) -> Option<M> {
        loop {
            match from.recv_timeout(WAIT) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if !self.work.stop.load(Relaxed) && poll() {
                        self.work.stop.store(true, Relaxed);
                    }
                }
            }
        }
    }
}
