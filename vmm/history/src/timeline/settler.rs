//! Prepares a search back in the background, while a person looks at the present place.
//!
//! A debugger opens a recording at its end, where checkpoints are near. If the guest wrote a lot, the checkpoints
//! before them are many seconds of replay away, and the first search back would have to wait. So a thread with its
//! own walker replays that part while nothing moves, and leaves snapshots there. A movement stops the thread, and
//! uses the snapshots left so far.

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

/// How long the timeline must stand still before the settler begins. A script's next command comes sooner, a person's
/// later.
const QUIET: Duration = Duration::from_millis(500);
/// A gap between two restorable places must be this long to be worth a replay, which then takes a fraction of a second.
const GAP_STEPS: u64 = 200_000_000;
/// Largest number of snapshots that one replay of the settler leaves.
const SNAPSHOTS: u64 = 64;

/// A handle on the thread. The thread ends soon after the handle is dropped; nothing has to wait for it.
pub(super) struct Settler(Arc<Door>);

/// The thread's requests.
#[derive(Default)]
struct Door {
    /// The timeline's present place, if it is new.
    look: Mutex<Option<Look>>,
    bell: Condvar,
    is_over: AtomicBool,
}

/// The place where the timeline stands still.
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

    /// Notes that the timeline stands still here for now.
    pub fn look_at(&self, here: Instructions, shared: &Shared) {
        // While the thread waits for quiet, it need not be woken: a step is shorter than the wait.
        if self.0.look().replace(Look { here, movement: shared.movement() }).is_none() {
            self.0.bell.notify_one();
        }
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        {
            // The thread checks `is_over` while it holds this lock, and then waits.
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
        // The range that was already walked. If the range's snapshots are thinned out later, the range
        // need not be walked again.
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

    /// Waits until the timeline has stood still for [`QUIET`].
    fn wait(&self, shared: &Shared) -> Option<Look> {
        let mut look = self.look();
        while !self.is_over() {
            let Some(Look { movement, .. }) = *look else {
                look = self.bell.wait(look).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            look = self.bell.wait_timeout(look, QUIET).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            if look.is_some_and(|look| look.movement == movement) {
                // If another movement is under way, its end brings another look.
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

/// The nearest long stretch before a place without any restorable place in it. The stretch must be longer
/// than its distance from the place. A search back first looks through that distance, and only then needs
/// the stretch.
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
