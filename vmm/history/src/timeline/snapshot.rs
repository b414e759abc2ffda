//! Snapshots: states that a session has taken, and to which it can return at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use machine::position::{Count, Instructions};
use recording::checkpoints::{CheckpointHead, Snapshot};

/// Largest number of snapshots in one session.
const MAX_SNAPSHOTS: usize = 256;
/// Largest number of pages that all snapshots hold in memory while the session moves: 256 MiB.
const MAX_PAGES: usize = 65536;
/// While the timeline does not move, snapshots may hold as many pages as this fraction (one part in `RESTING_SHARE`) of
/// the guest's RAM.
const RESTING_SHARE: u64 = 8;
/// The number of snapshots that are never dropped to save memory. The snapshots near the present place are kept,
/// because they make the next steps back fast.
const ALWAYS_KEPT: usize = 24;

/// The snapshots of one session. Snapshots are close together around the present place, and farther apart
/// with distance.
pub struct Snapshots(Mutex<Inner>);

struct Inner {
    by_place: BTreeMap<Instructions, Kept>,
    pages: usize,
    /// Largest number of pages that snapshots may hold while the timeline does not move.
    resting_pages: usize,
    /// The place that the user looks at.
    focus: Instructions,
}

struct Kept {
    head: CheckpointHead<Instructions>,
    snapshot: Arc<Snapshot<Instructions>>,
    /// Number of pages that this snapshot copied, because no earlier snapshot has them.
    pages: usize,
}

impl Snapshots {
    /// An empty set of snapshots, for a guest with this many pages of RAM.
    pub fn of_guest(ram_pages: u64) -> Snapshots {
        Snapshots(Mutex::new(Inner {
            by_place: BTreeMap::new(),
            pages: 0,
            resting_pages: (ram_pages / RESTING_SHARE) as usize,
            focus: Instructions(0),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sets the place around which snapshots are wanted most.
    pub fn focus(&self, at: Instructions) {
        self.inner().focus = at;
    }

    /// Whether there is a snapshot at exactly this place.
    pub fn contains(&self, at: Instructions) -> bool {
        self.inner().by_place.contains_key(&at)
    }

    /// The last snapshot at or before a place.
    pub fn nearest(&self, at: Instructions) -> Option<(Instructions, Arc<Snapshot<Instructions>>)> {
        let inner = self.inner();
        let (&at, kept) = inner.by_place.range(..=at).next_back()?;
        Some((at, kept.snapshot.clone()))
    }

    /// The place of the first snapshot at or after a place.
    pub fn first_from(&self, at: Instructions) -> Option<Instructions> {
        self.inner().by_place.range(at..).next().map(|(&at, _)| at)
    }

    /// The last snapshot where a condition is true, and the first snapshot where it is false. The condition must be
    /// true up to some place and false from this place on.
    pub fn around(
        &self,
        holds: impl Fn(&CheckpointHead<Instructions>) -> bool,
    ) -> (Option<Instructions>, Option<Instructions>) {
        let inner = self.inner();
        let mut before = None;
        for (&at, kept) in &inner.by_place {
            if !holds(&kept.head) {
                return (before, Some(at));
            }
            before = Some(at);
        }
        (before, None)
    }

    /// Adds a snapshot in which `pages` pages are new. The snapshot at the first instruction is never dropped.
    pub fn keep(&self, head: CheckpointHead<Instructions>, snapshot: Snapshot<Instructions>, pages: usize) {
        let mut inner = self.inner();
        inner.pages += pages;
        let (at, snapshot) = (head.at.count, Arc::new(snapshot));
        if let Some(old) = inner.by_place.insert(at, Kept { head, snapshot, pages }) {
            inner.pages -= old.pages;
        }
        while inner.by_place.len() > MAX_SNAPSHOTS || inner.pages > MAX_PAGES {
            if !inner.give_up_one() {
                break;
            }
        }
    }

    /// Drops snapshots until the remaining snapshots hold little memory. Called when the timeline has not moved for a
    /// while.
    pub fn rest(&self) {
        let mut inner = self.inner();
        while inner.by_place.len() > ALWAYS_KEPT && inner.pages > inner.resting_pages {
            inner.give_up_one();
        }
    }
}

impl Inner {
    /// Drops the least useful snapshot. Returns whether a snapshot was dropped.
    fn give_up_one(&mut self) -> bool {
        let given_up = self.least_useful().and_then(|least| self.by_place.remove(&least));
        self.pages -= given_up.as_ref().map_or(0, |kept| kept.pages);
        given_up.is_some()
    }

    /// The snapshot whose removal leaves the smallest gap, relative to the gap's distance from the focus.
    fn least_useful(&self) -> Option<Instructions> {
        let places: Vec<Instructions> = self.by_place.keys().copied().collect();
        let cost = |before: Instructions, at: Instructions, after: Instructions| {
            (after - before) as f64 / (at.number().abs_diff(self.focus.number()) + 1) as f64
        };
        places
            .windows(2)
            .enumerate()
            .map(|(n, pair)| {
                let after = places.get(n + 2).copied().unwrap_or(self.focus.max(pair[1]));
                (pair[1], cost(pair[0], pair[1], after))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use machine::Machine;
    use machine::config::{MachineConfig, MachineOptions};
    use machine::inputs::PowerOn;
    use machine::position::Moment;
    use recording::cursor::Cursor;

    fn snapshot(directory: &Path) -> Snapshot<Instructions> {
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory, 1),
            memory_bytes: 4 << 20,
            ..MachineOptions::default()
        };
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
        let mut machine = Machine::<Instructions>::new(&config, &images, &power_on).unwrap();
        Snapshot { state: machine.state(), maps: machine.maps().unwrap(), cursor: Cursor::default() }
    }

    /// The head of a checkpoint at `place`, with a time in nanoseconds equal to the number of instructions.
    fn head(place: u64) -> CheckpointHead<Instructions> {
        let at = Moment { count: Instructions(place), time_ns: place };
        CheckpointHead { at, branches: 0, system_calls: 0, rip: 0, cursor: Cursor::default() }
    }

    /// Snapshots at these places, added in this order. Each snapshot has `pages` new pages.
    fn kept(focus: u64, places: impl IntoIterator<Item = u64>, pages: usize) -> Snapshots {
        let directory = tempfile::tempdir().unwrap();
        let (snapshot, snapshots) = (snapshot(directory.path()), Snapshots::of_guest(8 * MAX_PAGES as u64));
        snapshots.focus(Instructions(focus));
        for place in places {
            snapshots.keep(head(place), snapshot.clone(), pages);
        }
        snapshots
    }

    fn places(snapshots: &Snapshots) -> Vec<u64> {
        snapshots.inner().by_place.keys().map(|at| at.number()).collect()
    }

    #[test]
    fn the_nearest_one_on_either_side_is_found() {
        let snapshots = kept(0, [0, 100, 50], 1);
        let before = |at| snapshots.nearest(Instructions(at)).map(|(at, _)| at.number());
        let behind = |at| snapshots.first_from(Instructions(at)).map(Count::number);
        let there = |at| snapshots.contains(Instructions(at));
        assert_eq!([0, 49, 50, 51, 1000].map(before), [Some(0), Some(0), Some(50), Some(50), Some(100)]);
        assert_eq!([0, 49, 50, 51, 101].map(behind), [Some(0), Some(50), Some(50), Some(100), None]);
        assert_eq!([0, 49, 50, 51, 100].map(there), [true, false, true, false, true]);
        assert!(Snapshots::of_guest(8 * MAX_PAGES as u64).nearest(Instructions(5)).is_none());
    }

    #[test]
    fn those_on_both_sides_of_a_time_are_found() {
        let snapshots = kept(0, [0, 100, 50], 1);
        let around = |time_ns| {
            let (before, behind) = snapshots.around(|head| head.at.time_ns < time_ns);
            (before.map(Count::number), behind.map(Count::number))
        };
        let expected = [
            (None, Some(0)),
            (Some(0), Some(50)),
            (Some(0), Some(50)),
            (Some(50), Some(100)),
            (Some(100), None),
        ];
        assert_eq!([0, 1, 50, 51, 101].map(around), expected);
    }

    #[test]
    fn no_more_than_may_be_are_kept_and_none_is_given_up_before() {
        let most = MAX_SNAPSHOTS as u64;
        let all = kept(0, 0..most, 1);
        assert_eq!(places(&all), (0..most).collect::<Vec<_>>());
        assert_eq!(places(&kept(0, 0..most * 3, 1)).len(), MAX_SNAPSHOTS);
        // A replaced snapshot does not count twice.
        assert_eq!(places(&kept(0, (0..most).chain(0..most), 1)).len(), MAX_SNAPSHOTS);
    }

    #[test]
    fn no_more_pages_than_may_be_are_held() {
        let pages = MAX_PAGES / 4;
        assert_eq!(places(&kept(0, 0..4, pages)), [0, 1, 2, 3]);
        assert_eq!(places(&kept(0, 0..4, pages + 1)).len(), 3);
        let many = kept(0, 0..40, pages);
        assert_eq!((places(&many).len(), many.inner().pages), (4, MAX_PAGES));
        // The pages of a replaced snapshot no longer count.
        let again = kept(0, [0, 1, 2, 1, 2, 1, 2, 3], pages);
        assert_eq!((places(&again), again.inner().pages), (vec![0, 1, 2, 3], MAX_PAGES));
    }

    #[test]
    fn at_rest_fewer_pages_are_held_and_the_nearest_stay() {
        let few = kept(0, 0..ALWAYS_KEPT as u64, 2 * MAX_PAGES / ALWAYS_KEPT / 3);
        few.inner().resting_pages = 1;
        few.rest();
        assert_eq!(places(&few).len(), ALWAYS_KEPT);
        let many = kept(900, 0..200, 200);
        many.inner().resting_pages = 200 * 40;
        many.rest();
        let places = places(&many);
        assert_eq!((places.len(), places[0], many.inner().pages), (40, 0, 8_000));
        assert!(places.windows(2).skip(20).all(|pair| pair[1] - pair[0] < 20), "{places:?}");
    }

    #[test]
    fn the_first_one_stays_whatever_is_looked_at() {
        for focus in [0, 5_000, 1_000_000] {
            let snapshots = kept(focus, (0..1000).map(|number| number * 1000), 1);
            assert_eq!(places(&snapshots)[0], 0, "{focus}");
        }
        // The snapshot at the first instruction stays even if it holds more pages than the limit.
        assert_eq!(places(&kept(0, [0], MAX_PAGES + 1)), [0]);
    }

    #[test]
    fn they_are_dense_around_what_is_looked_at_and_ever_farther_apart_from_there() {
        let most = 4000;
        for focus in [0, 1000, 2500, 4000] {
            let places = places(&kept(focus, 0..=most, 1));
            let gap_at = |place: u64| {
                let behind = places.partition_point(|&at| at <= place);
                places.get(behind).map_or(most, |&at| at) - places[behind - 1]
            };
            let near = focus.clamp(10, most - 10);
            assert!((near - 8..near + 8).all(|place| gap_at(place) <= 2), "{focus}: {places:?}");
            // A thousand steps from the focus, snapshots are farther apart, but no gap is longer than its distance from
            // the focus.
            for far in
                [focus.saturating_sub(1000), focus + 1000].into_iter().filter(|at| (1..most).contains(at))
            {
                assert!((5..1000).contains(&gap_at(far)), "{focus}: {} at {far}: {places:?}", gap_at(far));
            }
        }
    }
}
