//! The list of pages in a checkpoint's file, as runs of neighbouring pages.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::map::{BlobId, Maps, PageMap, PageRef, Space};

/// The version of a page in a list: [`PageRef`] without contents in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Base,
    Zero,
    Stored(u64),
}

impl Slot {
    pub fn of(version: &PageRef) -> Slot {
        match version {
            PageRef::Base => Slot::Base,
            PageRef::Zero => Slot::Zero,
            PageRef::Stored(BlobId(id)) => Slot::Stored(*id),
            PageRef::Held(_) => unreachable!("the store's maps hold no contents"),
        }
    }

    pub fn page_ref(self) -> PageRef {
        match self {
            Slot::Base => PageRef::Base,
            Slot::Zero => PageRef::Zero,
            Slot::Stored(id) => PageRef::Stored(BlobId(id)),
        }
    }
}

/// `count` pages that start `skip` pages after the end of the previous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    skip: u64,
    count: NonZeroU64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    Base,
    Zero,
    /// The id of the first page's version, as a difference from the id after the last listed version. The run's
    /// other pages have the next versions, without gaps.
    Stored(i64),
}

/// The pages of one space in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runs(Vec<Run>);

impl Runs {
    /// The list of `pages`, which must be sorted.
    pub fn of(pages: impl Iterator<Item = (u64, Slot)>) -> Runs {
        let mut runs: Vec<Run> = Vec::new();
        let (mut end, mut next_id) = (0, 1_u64);
        for (page, slot) in pages {
            let skip = page - end;
            end = page + 1;
            let what = match slot {
                Slot::Base => What::Base,
                Slot::Zero => What::Zero,
                Slot::Stored(id) => What::Stored(id.wrapping_sub(next_id) as i64),
            };
            if let Slot::Stored(id) = slot {
                next_id = id + 1;
            }
            match runs.last_mut() {
                Some(run) if skip == 0 && continues(run.what, what) => {
                    run.count = run.count.saturating_add(1);
                }
                _ => runs.push(Run { skip, count: NonZeroU64::MIN, what }),
            }
        }
        Runs(runs)
    }

    /// First page, number of pages and first version of each run; `None` if the numbers overflow.
    pub fn iter(&self) -> impl Iterator<Item = Option<(u64, u64, Slot)>> {
        let (mut end, mut next_id) = (0_u64, 1_u64);
        self.0.iter().map(move |run| {
            let (first, count) = (end.checked_add(run.skip)?, run.count.get());
            end = first.checked_add(count)?;
            let slot = match run.what {
                What::Base => Slot::Base,
                What::Zero => Slot::Zero,
                What::Stored(step) => {
                    let id = next_id.checked_add_signed(step)?;
                    next_id = id.checked_add(count)?;
                    Slot::Stored(id)
                }
            };
            Some((first, count, slot))
        })
    }

    /// Whether all pages are below `pages` and no number overflows. The other functions here rely on
    /// this condition.
    pub fn is_within(&self, pages: u64) -> bool {
        self.iter().all(|run| run.is_some_and(|(first, count, _)| first + count <= pages))
    }

    /// Every page with its version.
    pub fn pages(&self) -> impl Iterator<Item = (u64, Slot)> {
        self.iter().flatten().flat_map(|(first, count, slot)| {
            (0..count).map(move |step| match slot {
                Slot::Stored(id) => (first + step, Slot::Stored(id + step)),
                other => (first + step, other),
            })
        })
    }

    /// Every version that a page refers to, once for each reference.
    pub fn versions(&self) -> impl Iterator<Item = u64> {
        self.iter().flatten().flat_map(|(_, count, slot)| match slot {
            Slot::Stored(id) => id..id + count,
            _ => 0..0,
        })
    }

    /// The number of pages in the list, and the number of zero pages among them.
    pub fn count(&self) -> (u64, u64) {
        self.iter().flatten().fold((0, 0), |(pages, zero), (_, count, slot)| {
            (pages + count, if slot == Slot::Zero { zero + count } else { zero })
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn apply(&self, map: &mut PageMap) {
        for (first, count, slot) in self.iter().flatten() {
            match slot {
                Slot::Stored(id) => {
                    (0..count).for_each(|step| map.set(first + step, PageRef::Stored(BlobId(id + step))));
                }
                other => map.fill(first, count, &other.page_ref()),
            }
        }
    }
}

/// Whether a page of kind `page` can be added to the previous run, which has kind `run`.
fn continues(run: What, page: What) -> bool {
    match (run, page) {
        (What::Base, What::Base) | (What::Zero, What::Zero) => true,
        (What::Stored(_), What::Stored(step)) => step == 0,
        _ => false,
    }
}

/// The lists of both spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lists {
    pub ram: Runs,
    pub disk: Runs,
}

impl Lists {
    /// The pages whose versions in `now` differ from `before`.
    pub fn changes(now: &Maps, before: &Maps) -> Lists {
        let runs = |now: &PageMap, before: &PageMap| {
            Runs::of(now.changed_since(before).map(|(page, version)| (page, Slot::of(version))))
        };
        Lists { ram: runs(&now.ram, &before.ram), disk: runs(&now.disk, &before.disk) }
    }

    pub fn space(&self, space: Space) -> &Runs {
        match space {
            Space::Ram => &self.ram,
            Space::Disk => &self.disk,
        }
    }

    /// Applies the list: gives the listed pages their listed versions.
    pub fn apply(&self, maps: &mut Maps) {
        self.ram.apply(&mut maps.ram);
        self.disk.apply(&mut maps.disk);
    }

    pub fn versions(&self) -> impl Iterator<Item = u64> {
        self.ram.versions().chain(self.disk.versions())
    }

    pub fn is_empty(&self) -> bool {
        self.ram.is_empty() && self.disk.is_empty()
    }

    /// The union of `layers`. For each page, the last layer that lists it decides.
    pub fn overlay(layers: &[&Lists]) -> Lists {
        let runs = |space: Space| {
            let mut pages = BTreeMap::new();
            layers.iter().for_each(|layer| pages.extend(layer.space(space).pages()));
            Runs::of(pages.into_iter())
        };
        Lists { ram: runs(Space::Ram), disk: runs(Space::Disk) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_say_what_was_put_in() {
        let s = Slot::Stored;
        let pages =
            [(3, s(10)), (4, s(11)), (5, s(11)), (6, s(2)), (9, s(3)), (10, Slot::Zero), (11, Slot::Zero)]
                .into_iter()
                .chain([(12, Slot::Base), (1 << 40, s(u64::MAX / 2)), ((1 << 40) + 1, s(1))]);
        let runs = Runs::of(pages.clone());
        assert!(runs.pages().eq(pages));
        assert!(runs.is_within((1 << 40) + 2) && !runs.is_within((1 << 40) + 1));
        assert_eq!(runs.count(), (10, 2));
        assert_eq!(runs.0.len(), 8);
    }

    #[test]
    fn overflowing_runs_are_noticed() {
        let run = |skip, count, what| Run { skip, count: NonZeroU64::new(count).unwrap(), what };
        for runs in [
            vec![run(u64::MAX, 1, What::Zero)],
            vec![run(5, u64::MAX, What::Zero)],
            vec![run(0, 1, What::Stored(-2))],
            vec![run(0, 9, What::Stored(i64::MAX)), run(0, u64::MAX >> 1, What::Stored(0))],
        ] {
            assert!(!Runs(runs.clone()).is_within(u64::MAX), "{runs:?}");
        }
    }

    #[test]
    fn later_layers_win() {
        let layer =
            |pages: &[(u64, Slot)]| Lists { ram: Runs::of(pages.iter().copied()), disk: Runs::default() };
        let (a, b) =
            (layer(&[(1, Slot::Stored(5)), (2, Slot::Zero)]), layer(&[(2, Slot::Base), (7, Slot::Zero)]));
        let both = Lists::overlay(&[&a, &b]);
        assert_eq!(both, layer(&[(1, Slot::Stored(5)), (2, Slot::Base), (7, Slot::Zero)]));
    }
}
