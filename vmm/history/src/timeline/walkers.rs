//! Searches on all cores. The workers of [`crate::workers`] are walkers here. Making a walker takes long, so idle
//! walkers stay in a [`Pool`] for later searches of the session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::search::{Interval, Question};
use super::shared::Shared;
use super::walker::Walker;
use crate::workers::{Poll, Scanned, TakeRow, Task};
use machine::error::Error;
use machine::position::Instructions;

/// The idle walkers of a session.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Walker>>);

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Walker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool has no idle walker. A search on all cores then has to make walkers.
    pub fn is_empty(&self) -> bool {
        self.idle().is_empty()
    }

    /// Frees the memory of all idle walkers.
    pub fn clear(&self) {
        self.idle().clear();
    }
}

/// The task of searching intervals on all cores.
pub(super) struct Search<'a, T> {
    pub question: &'a Question<'a, T>,
    pub intervals: &'a [Interval],
    pub pool: &'a Pool,
    pub shared: &'a Arc<Shared>,
}

impl<T: Send> Task for Search<'_, T> {
    type Worker = Walker;
    type Row = T;
    type Place = Instructions;

    fn intervals(&self) -> usize {
        self.intervals.len()
    }

    fn enough(&self) -> usize {
        self.question.keep.enough()
    }

    fn begin_of(&self, interval: usize) -> Instructions {
        self.question.keep.begin_of(&self.intervals[interval])
    }

    fn worker(&self) -> Result<Walker, Error> {
        let idle = self.pool.idle().pop();
        idle.map_or_else(|| Walker::new(self.shared.clone()), Ok)
    }

    fn put_back(&self, walker: Walker) {
        self.pool.idle().push(walker);
    }

    fn look_through(
        &self,
        walker: &mut Walker,
        interval: usize,
        row: &mut TakeRow<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<Instructions>, Error> {
        walker.scan(self.intervals[interval], self.question, row, poll)
    }
}
