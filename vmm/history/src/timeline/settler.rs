//! Prepares a search back in the background, while a person looks at the present place.
//!
//! A debugger opens a recording at its end, which has some checkpoints close together. If the guest wrote a lot, the
//! next earlier checkpoint is many seconds of replay away, and the first search back takes this time. So a thread, the
//! settler, replays that part with its own walker while the timeline does not move, and takes snapshots there. The next
//! movement stops the thread, and uses the snapshots taken so far.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::shared::Shared;
use super::walker::{FAR_SPACING, Walked, Walker};
use super::walkers::Pool;
use machine::error::Error;
use machine::position::{Count, Instructions};
use sandbox::ThreadKind;

/// How long the timeline must not move before the settler begins. The next command of a script usually comes sooner
/// than this, the next command of a person later.
const QUIET: Duration = Duration::from_millis(500);
/// The least number of steps between two restorable places for which the settler replays the part between them. This
/// replay takes a fraction of a second.
const GAP_STEPS: u64 = 200_000_000;
/// Largest number of snapshots that one replay of the settler takes.
const SNAPSHOTS: u64 = 64;

/// A handle on the settler's thread. The thread ends soon after the handle is dropped, and the drop does not wait for
/// the thread.
pub(super) struct Settler(Arc<Door>);

/// The requests to the settler's thread.
#[derive(Default)]
struct Door {
    /// The timeline's present place, if the thread has not taken this request yet.
    look: Mutex<Option<Look>>,
    bell: Condvar,
    is_over: AtomicBool,
}

/// A request: the place where the timeline stopped moving.
#[derive(Clone, Copy)]
struct Look {
    here: Instructions,
    /// The number of the movement that ended at `here`.
    movement: u64,
}

impl Settler {
    /// Starts a settler, which has nothing to do yet.
    pub fn new(shared: Arc<Shared>, workers: Arc<Pool>) -> Settler {
        let door = Arc::new(Door::default());
        let of_thread = door.clone();
        let thread = std::thread::Builder::new().name("settler".into());
        let work = move || {
            sandbox::enter(ThreadKind::Replayer);
            of_thread.work(&shared, &workers);
        };
        if let Err(error) = thread.spawn(work) {
            log::debug!("nothing is settled in the background: {error}");
        }
        Settler(door)
    }

    /// Tells the thread that the timeline has stopped moving at `here`.
    pub fn look_at(&self, here: Instructions, shared: &Shared) {
        // If the thread has not taken the previous request yet, the thread is awake and waits for [`QUIET`]. Then
        // it need not be woken.
        if self.0.look().replace(Look { here, movement: shared.movement() }).is_none() {
            self.0.bell.notify_one();
        }
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        {
            // The thread holds this lock from its check of `is_over` until it waits for the bell. So the thread
            // cannot miss the bell.
            let _look = self.0.look();
            self.0.is_over.store(true, Ordering::Relaxed);
        }
        self.0.bell.notify_one();
    }
}

impl Door {
    fn look(&self) -> MutexGuard<'_, Option<Look>> {
        self.look.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn work(&self, shared: &Arc<Shared>, workers: &Pool) {
        // The range that the settler has already replayed. Even if this range's snapshots are dropped later, it is not
        // replayed again.
        let mut settled = Instructions(0)..Instructions(0);
        while let Some(Look { here, movement }) = self.wait(shared) {
            let is_new = |gap: &Range<_>| gap.start < settled.start || settled.end < gap.end;
            if let Some(gap) = gap_before(shared, here).filter(is_new) {
                match self.walk(shared, &gap, movement) {
                    Ok(Walked::Interrupted) => {}
                    Ok(_) if gap.start <= settled.end && settled.start <= gap.end => {
                        settled = settled.start.min(gap.start)..settled.end.max(gap.end);
                    }
                    Ok(_) => settled = gap,
                    Err(error) => log::debug!("what lies before instruction {here} is not settled: {error}"),
                }
            }
            // Each idle worker has a machine with the guest's RAM. Free these machines: a script's next
            // search would have come by now.
            workers.clear();
            shared.snapshots.rest();
            guest_ram::return_freed_memory();
            shared.settlings.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until the timeline has not moved for [`QUIET`].
    fn wait(&self, shared: &Shared) -> Option<Look> {
        let mut look = self.look();
        while !self.is_over() {
            let Some(Look { movement, .. }) = *look else {
                look = self.bell.wait(look).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            look = self.bell.wait_timeout(look, QUIET).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            if look.is_some_and(|look| look.movement == movement) {
                // If another movement has begun, a new request comes when it ends.
                let still = look.take().filter(|look| look.movement == shared.movement());
                if still.is_some() {
                    return still;
                }
                shared.settlings.fetch_add(1, Ordering::Release);
            }
        }
        None
    }

    fn walk(&self, shared: &Arc<Shared>, gap: &Range<Instructions>, movement: u64) -> Result<Walked, Error> {
        let mut walker = Walker::in_background(shared.clone())?;
        walker.restore_nearest(gap.start)?;
        let spacing = ((gap.end - gap.start) / SNAPSHOTS).max(FAR_SPACING);
        walker.advance(gap.end, spacing, &mut || self.is_over() || shared.movement() != movement)
    }
}

/// The nearest long stretch before `here` that contains no restorable place. The stretch must be longer than its
/// distance from `here`, because a search back first goes through this distance.
fn gap_before(shared: &Shared, here: Instructions) -> Option<Range<Instructions>> {
    let mut end = here;
    while end > Instructions(0) {
        let start = shared.nearest(end.saturating_back(1)).0;
        if end - start > GAP_STEPS.max(here - end) {
            return Some(start..end);
        }
        end = start;
    }
    None
}
