//! Workers: threads on all cores, each of which replays intervals of a recording one after the other.
//!
//! The interval between two checkpoints is the unit of parallel work. A worker owns a machine. A free worker takes the
//! next interval, replays it, and sends its results (rows) in batches through a bounded channel. The caller gets the
//! rows in the order of the intervals, whichever worker was faster. Workers that are far ahead of the caller wait, so
//! memory is bounded.
//!
//! ```text
//!  interval      0   1   2   3
//!  its worker    A   B   B   A
//! ```
//!
//! A free worker takes the next interval. Each worker has its own channel. In this example, the caller first reads A's
//! channel up to the end of interval 0. Then it reads B's channel for intervals 1 and 2, and then A's channel again.
//!
//! A [`Task`] defines the intervals and a worker's job in each interval: [`crate::timeline`] searches them, and
//! [`crate::replay::verify`] compares them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use machine::error::Error;
use sandbox::ThreadKind;

/// The largest number of rows in a batch.
const BATCH_ROWS: usize = 128;
/// The largest number of a worker's batches that wait for the caller. A worker with this many unread batches
/// waits, too.
const WAITING_BATCHES: usize = 64;
/// How long the caller waits for workers before it calls its poll function again.
const WAIT: Duration = Duration::from_millis(10);

/// A function that returns true if the work must stop.
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// A function that receives a row. Returns whether to continue.
pub(crate) type TakeRow<'a, T> = dyn FnMut(T) -> bool + 'a;

/// The job of the workers in the intervals of a recording.
pub(crate) trait Task: Sync {
    /// A worker, which has a machine and replays.
    type Worker: Send;
    /// A result within an interval.
    type Row: Send;
    /// A place in the recording.
    type Place: Copy + Send;

    /// The number of intervals. Workers take the intervals in the order of the run.
    fn intervals(&self) -> usize;
    /// The number of rows that the caller needs. After this many rows, the workers stop.
    fn enough(&self) -> usize;
    /// The place up to which the search is complete when a worker begins the interval.
    fn begin_of(&self, interval: usize) -> Self::Place;
    /// An idle worker, or a new one.
    fn worker(&self) -> Result<Self::Worker, Error>;
    /// Takes back an idle worker.
    fn put_back(&self, worker: Self::Worker);
    /// Moves the worker to the interval's beginning, and does the task in the interval.
    fn look_through(
        &self,
        worker: &mut Self::Worker,
        interval: usize,
        row: &mut TakeRow<'_, Self::Row>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<Self::Place>, Error>;
}

/// How far a worker got in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned<P> {
    /// The worker finished the interval, or had enough rows.
    Whole,
    /// The poll function returned true. The worker has finished the part of the interval up to this place.
    Interrupted(P),
}

/// How far the workers got in all intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered<P> {
    /// The workers finished all intervals, or had enough rows.
    Enough,
    /// The user asked to stop. The workers have finished the whole part from the first interval's beginning up to this
    /// place.
    UpTo(P),
}

/// A function that receives rows, at least one in each call.
pub(crate) type HandOn<'a, T> = dyn FnMut(Vec<T>) -> Result<(), Error> + 'a;

/// Does a task in all intervals, on at most `threads` cores. The first worker is `own`. Passes the rows to
/// `hand_on`, in the order of the intervals. `poll` asks whether the user wants to stop.
pub(crate) fn ask<T: Task>(
    task: &T,
    own: &mut T::Worker,
    threads: usize,
    hand_on: &mut HandOn<'_, T::Row>,
    poll: &mut Poll<'_>,
) -> Result<Covered<T::Place>, Error> {
    let count = threads.min(task.intervals());
    if count <= 1 {
        return ask_alone(task, own, hand_on, poll);
    }
    let (announce, taken) = channel();
    let work = Work {
        task,
        next: Mutex::new(Next { number: 0, announce: Some(announce) }),
        stop: AtomicBool::new(false),
        first_hit: AtomicUsize::new(usize::MAX),
    };
    std::thread::scope(|scope| {
        let work = &work;
        let (senders, batches): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(WAITING_BATCHES)).unzip();
        let mut own = Some(own);
        for (number, sender) in senders.into_iter().enumerate() {
            let own = own.take();
            let is_first = own.is_some();
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                sandbox::enter(ThreadKind::Replayer);
                match own {
                    Some(own) => work.work(number, &sender, own),
                    None => work.work_with_another(number, &sender),
                }
            });
            match thread {
                Ok(_) => {}
                Err(source) if is_first => {
                    return Err(Error::Host { what: "cannot start a thread".to_string(), source });
                }
                // The result is the same with fewer workers, so the error is only logged.
                Err(error) => log::debug!("a worker is missing: {error}"),
            }
        }
        let caller = Caller { work, taken, batches };
        let covered = caller.gather(hand_on, poll);
        work.stop.store(true, Relaxed);
        covered
    })
}

/// Does the same as [`ask`], but with one worker, on the caller's thread.
fn ask_alone<T: Task>(
    task: &T,
    own: &mut T::Worker,
    hand_on: &mut HandOn<'_, T::Row>,
    poll: &mut Poll<'_>,
) -> Result<Covered<T::Place>, Error> {
    let mut left = task.enough();
    for interval in 0..task.intervals() {
        // A worker polls only after many steps, and an interval may have fewer steps. So poll between intervals, too.
        if interval > 0 && poll() {
            return Ok(Covered::UpTo(task.begin_of(interval)));
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
        let scanned = task.look_through(own, interval, &mut row, poll);
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

/// A message from a worker about an interval.
enum Message<T: Task> {
    Rows(Vec<T::Row>),
    /// The worker has finished the interval.
    Done,
    Interrupted(T::Place),
    Failed(Error),
}

/// Intervals that several workers take one after the other.
struct Work<'a, T> {
    task: &'a T,
    next: Mutex<Next>,
    stop: AtomicBool,
    /// If one row is enough, the number of the first interval in which a worker has found a row. Later intervals then
    /// need not be finished.
    first_hit: AtomicUsize,
}

struct Next {
    number: usize,
    /// A channel to the caller. For each interval, in order, a worker sends its own number when it takes the
    /// interval. The channel is `None` when no worker takes more intervals. Until then the caller waits for the
    /// next number.
    announce: Option<Sender<usize>>,
}

impl<T: Task> Work<'_, T> {
    fn take(&self, worker: usize) -> Option<usize> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let number = next.number;
        if number >= self.task.intervals() || !self.matters(number) {
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

    fn work(&self, number: usize, to: &SyncSender<Message<T>>, worker: &mut T::Worker) {
        while let Some(interval) = self.take(number) {
            if self.look_through(interval, to, worker).is_none() {
                return;
            }
        }
    }

    /// Does the same as [`Work::work`], but gets a worker only if there is an interval left.
    fn work_with_another(&self, number: usize, to: &SyncSender<Message<T>>) {
        let Some(interval) = self.take(number) else { return };
        match self.task.worker() {
            Ok(mut worker) => {
                if self.look_through(interval, to, &mut worker).is_some() {
                    self.work(number, to, &mut worker);
                }
                self.task.put_back(worker);
            }
            // If the channel is closed, the caller has already ended, so ignore that the error cannot be sent.
            Err(error) => _ = to.send(Message::Failed(error)),
        }
    }

    /// Does the task in an interval and sends the rows. Returns `None` if the caller has closed the channel.
    fn look_through(
        &self,
        interval: usize,
        to: &SyncSender<Message<T>>,
        worker: &mut T::Worker,
    ) -> Option<()> {
        let (mut batch, mut found, mut listens) = (Vec::new(), 0, true);
        let mut row = |row| {
            batch.push(row);
            found += 1;
            if batch.len() == BATCH_ROWS {
                listens = to.send(Message::Rows(std::mem::take(&mut batch))).is_ok();
            }
            listens && found < self.task.enough()
        };
        let scanned = self.task.look_through(worker, interval, &mut row, &mut || !self.matters(interval));
        if found > 0 && self.task.enough() == 1 {
            self.first_hit.fetch_min(interval + 1, Relaxed);
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

/// The thread that asked for the task.
struct Caller<'a, T: Task> {
    work: &'a Work<'a, T>,
    /// For each interval, in the order of the run, the worker that took it.
    taken: Receiver<usize>,
    /// The messages of each worker.
    batches: Vec<Receiver<Message<T>>>,
}

impl<T: Task> Caller<'_, T> {
    /// Passes all rows to the caller's function, in the order of the run.
    fn gather(
        &self,
        hand_on: &mut HandOn<'_, T::Row>,
        poll: &mut Poll<'_>,
    ) -> Result<Covered<T::Place>, Error> {
        let task = self.work.task;
        let mut left = task.enough();
        for interval in 0..task.intervals() {
            if interval > 0 && poll() {
                self.work.stop.store(true, Relaxed);
            }
            let Some(worker) = self.wait(&self.taken, poll) else {
                return Ok(Covered::UpTo(task.begin_of(interval)));
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
                    None => return Ok(Covered::UpTo(task.begin_of(interval))),
                }
            }
        }
        Ok(Covered::Enough)
    }

    /// Waits for a message, and polls meanwhile. If the user asks to stop, workers end soon and report how far they
    /// got. Returns `None` if all senders have ended.
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
