//! Searches along a recording: window by window between places that can be restored, each window run forward.
//!
//! A search backward wants the last hit of the latest window that has one. Windows do not depend on one
//! another, so a long search has a walker on every core. It begins alone, though: what the others do beyond
//! the first hit is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::stops::{Armed, Hit, Stops};
use super::walker::{Poll, SNAPSHOT_SPACING, Shared, Walked, Walker};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};

/// Checkpoints that a search passes before other cores join in.
pub(super) const ALONE: usize = 4;
/// Steps that a search backward looks through at most before other cores join in: most hits are near, and
/// making another walker costs time.
pub(super) const ALONE_STEPS: u64 = 50_000_000;
/// The first window of a search backward.
const FIRST_WINDOW_STEPS: u64 = 100_000;
/// Parts of a window between which its scan leaves snapshots: what lies between them has to be run again to
/// get to a hit.
const PARTS: u64 = 16;

/// How long to wait for other cores before it is asked again whether to stop.
const WAIT: Duration = Duration::from_millis(10);

/// Which way a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From earlier to later.
    Forward,
    /// From later to earlier.
    Backward,
}

/// From a place that can be restored (or where the walker stands) to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub start: Instructions,
    pub end: Instructions,
}

/// What a search takes down of a hit, asked on any thread where the machine stands at it: after what happened, and before
/// an instruction with a breakpoint.
pub type Look<'a, T> = dyn Fn(&Machine<Instructions>, Hit) -> T + Sync + 'a;

/// Takes down the hit and nothing else.
pub(super) fn the_hit(_: &Machine<Instructions>, hit: Hit) -> Hit {
    hit
}

/// What scanning found.
pub(super) enum Scanned<T> {
    /// All hits that were asked for.
    Hits(Vec<T>),
    /// The poll function asked to stop. From where the scan began to `edge`, nothing was left out, and `hits`
    /// are what was asked for there. A breakpoint at the edge is beyond it, for a scan forward.
    Interrupted { hits: Vec<T>, edge: Instructions },
}

/// Which hits of a window to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    First,
    Last,
    /// At most this number, and then no more are looked for.
    All(usize),
}

impl Keep {
    /// Hits of which no more are needed.
    fn enough(self) -> usize {
        match self {
            Keep::First | Keep::Last => 1,
            Keep::All(limit) => limit,
        }
    }
}

impl Walker {
    /// Goes to a window's start and scans it.
    pub fn scan<T>(
        &mut self,
        window: Window,
        stops: &Stops,
        keep: Keep,
        look: &Look<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<T>, Error> {
        if self.position() != window.start {
            self.restore_nearest(window.start)?;
            if self.advance(window.start, SNAPSHOT_SPACING, poll)? == Walked::Interrupted {
                let edge = if keep == Keep::Last { window.end } else { window.start };
                return Ok(Scanned::Interrupted { hits: Vec::new(), edge });
            }
        }
        let spacing = ((window.end - window.start) / PARTS).max(SNAPSHOT_SPACING);
        let armed = Armed::new(stops, &mut self.machine);
        // A breakpoint at the window's very first instruction counts.
        let mut origin = Instructions::MAX;
        let mut hits = Vec::new();
        loop {
            match self.run(window.end, &armed, &mut origin, spacing, poll)? {
                Walked::There => return Ok(Scanned::Hits(hits)),
                Walked::Interrupted if keep == Keep::Last => {
                    return Ok(Scanned::Interrupted { hits: Vec::new(), edge: window.end });
                }
                Walked::Interrupted => {
                    return Ok(Scanned::Interrupted { hits, edge: self.position() });
                }
                Walked::Hit(hit) => {
                    if keep == Keep::Last {
                        hits.clear();
                    }
                    hits.push(look(&self.machine, hit));
                }
            }
            // The last one is known at the window's end only.
            if keep != Keep::Last && hits.len() >= keep.enough() {
                return Ok(Scanned::Hits(hits));
            }
        }
    }

    /// The window before `end` that a search backward that began at `origin` looks at next: small at first,
    /// since most hits are near, and a constant share of what was searched already later on.
    pub fn window_before(&self, end: Instructions, origin: Instructions) -> Window {
        let length = ((origin - end) / PARTS).max(FIRST_WINDOW_STEPS);
        Window { start: self.nearest(end.saturating_back(length)).0, end }
    }

    /// The last hits of a window that may be long: snapshots within it, where there are any, make it a row of
    /// short ones.
    fn scan_backward<T>(
        &mut self,
        window: Window,
        stops: &Stops,
        look: &Look<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<T>, Error> {
        let mut end = window.end;
        loop {
            let start = self.nearest(end.saturating_back(ALONE_STEPS)).0.max(window.start);
            match self.scan(Window { start, end }, stops, Keep::Last, look, poll)? {
                Scanned::Hits(hits) if hits.is_empty() && start > window.start => end = start,
                found => return Ok(found),
            }
        }
    }
}

/// Windows that several walkers work on.
struct Work<'a, T> {
    /// In the order in which hits are wanted.
    windows: &'a [Window],
    stops: &'a Stops,
    keep: Keep,
    look: &'a Look<'a, T>,
    state: Mutex<State<T>>,
    cancelled: AtomicBool,
}

struct State<T> {
    next: usize,
    /// What became of each window that a walker has left.
    scanned: Vec<Option<Scanned<T>>>,
    error: Option<Error>,
}

impl<T> Scanned<T> {
    /// The hits of a window that was scanned to its end.
    fn whole(&self) -> Option<&Vec<T>> {
        match self {
            Scanned::Hits(hits) => Some(hits),
            Scanned::Interrupted { .. } => None,
        }
    }
}

impl<T: Send> Work<'_, T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether the hits of a window can still be among those that are wanted.
    fn matters(&self, number: usize) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state();
        let earlier = state.scanned[..number].iter().flatten().filter_map(Scanned::whole);
        earlier.map(Vec::len).sum::<usize>() < self.keep.enough()
    }

    fn take(&self) -> Option<usize> {
        let number = {
            let mut state = self.state();
            state.next += 1;
            state.next - 1
        };
        (number < self.windows.len() && self.matters(number)).then_some(number)
    }

    /// Works until nothing is left. `poll` asks whether the person wants to stop.
    fn work(&self, walker: &mut Walker, poll: &mut Poll<'_>) {
        while let Some(number) = self.take() {
            // A window may be shorter than the distance at which a walker asks.
            if poll() {
                self.cancelled.store(true, Ordering::Relaxed);
                return;
            }
            let mut asked = || {
                if poll() {
                    self.cancelled.store(true, Ordering::Relaxed);
                }
                !self.matters(number)
            };
            let window = self.windows[number];
            let scanned = match self.keep {
                Keep::Last => walker.scan_backward(window, self.stops, self.look, &mut asked),
                Keep::First | Keep::All(_) => {
                    walker.scan(window, self.stops, self.keep, self.look, &mut asked)
                }
            };
            match scanned {
                Ok(scanned) => self.state().scanned[number] = Some(scanned),
                Err(error) => self.failed(error),
            }
        }
    }

    fn failed(&self, error: Error) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.state().error.get_or_insert(error);
    }
}

/// Scans windows with `walker` and one more walker on each other core. Gives the hits in the windows' order:
/// those of the first window that has any, or all. An interrupted search has what was found without a gap.
pub(super) fn scan_on_all_cores<T: Send>(
    walker: &mut Walker,
    shared: &Arc<Shared>,
    windows: &[Window],
    stops: &Stops,
    keep: Keep,
    look: &Look<'_, T>,
    poll: &mut Poll<'_>,
) -> Result<Scanned<T>, Error> {
    let scanned = windows.iter().map(|_| None).collect();
    let state = Mutex::new(State { next: 0, scanned, error: None });
    let work = Work { windows, stops, keep, look, state, cancelled: AtomicBool::new(false) };
    // Nothing is sent: it closes when the last of the others is done.
    let (open, others) = channel::<()>();
    std::thread::scope(|scope| {
        let work = &work;
        for _ in 1..shared.threads.min(windows.len()) {
            let open = open.clone();
            scope.spawn(move || {
                match Walker::new(shared.clone()) {
                    Ok(mut other) => work.work(&mut other, &mut || false),
                    Err(error) => work.failed(error),
                }
                drop(open);
            });
        }
        drop(open);
        work.work(walker, poll);
        while others.recv_timeout(WAIT) == Err(RecvTimeoutError::Timeout) {
            if poll() {
                work.cancelled.store(true, Ordering::Relaxed);
            }
        }
    });
    let state = work.state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    match state.error {
        Some(error) => Err(error),
        None => Ok(without_gaps(windows, state.scanned, keep)),
    }
}

/// What several walkers found together: up to the first window that none of them scanned to its end.
fn without_gaps<T>(windows: &[Window], scanned: Vec<Option<Scanned<T>>>, keep: Keep) -> Scanned<T> {
    let mut all = Vec::new();
    for (window, scanned) in windows.iter().zip(scanned) {
        let begin = if keep == Keep::Last { window.end } else { window.start };
        match scanned.unwrap_or(Scanned::Interrupted { hits: Vec::new(), edge: begin }) {
            Scanned::Hits(hits) => all.extend(hits),
            Scanned::Interrupted { hits, edge } => {
                all.extend(hits);
                return Scanned::Interrupted { hits: all, edge };
            }
        }
        if all.len() >= keep.enough() {
            break;
        }
    }
    if let Keep::All(limit) = keep {
        all.truncate(limit);
    }
    Scanned::Hits(all)
}
