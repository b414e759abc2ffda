//! The store's three small caches: decoded pages, recent contents, and requested maps.
//!
//! All caches here are bounded and deterministic. A missing entry costs only time or disk space; the results stay
//! right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::map::Maps;
use crate::page::Page;
use crate::table::Digest;

/// 16 MiB of decoded pages.
const PAGES: usize = 4096;

/// Decoded full versions. A version's id decides its place in the cache, so versions with different ids compete for
/// a place. An entry that was used since the last competitor came stays when the next competitor comes. So if pages
/// are read in turn again and again, and not all fit in the cache, some are still found here.
#[derive(Default)]
pub(crate) struct PageCache {
    places: Vec<Option<CachedPage>>,
}

struct CachedPage {
    id: u64,
    used: bool,
    page: Arc<Page>,
}

impl PageCache {
    pub fn get(&mut self, id: u64) -> Option<Arc<Page>> {
        let cached = self.places.get_mut(id as usize % PAGES)?.as_mut()?;
        (cached.id == id).then(|| {
            cached.used = true;
            cached.page.clone()
        })
    }

    pub fn put(&mut self, id: u64, page: &Arc<Page>) {
        if self.places.is_empty() {
            self.places.resize_with(PAGES, || None);
        }
        match &mut self.places[id as usize % PAGES] {
            Some(cached) if cached.used && cached.id != id => cached.used = false,
            place => *place = Some(CachedPage { id, used: true, page: page.clone() }),
        }
    }
}

const RECENT: usize = 1 << 16;

/// Maps a page's contents to a recent version that may have the same contents. A block that is read from the disk
/// into guest memory is then stored only once. This map takes 512 KiB.
#[derive(Default)]
pub(crate) struct Recent {
    /// The id of a version for each value of the digest's first two bytes. The id 0 stands for an empty place.
    places: Vec<u64>,
}

impl Recent {
    /// The id of the only version here that may have this digest; `None` if there is none. The version's actual digest
    /// may differ.
    pub fn get(&self, digest: &Digest) -> Option<u64> {
        self.places.get(place(digest)).copied().filter(|id| *id != 0)
    }

    pub fn put(&mut self, digest: &Digest, id: u64) {
        if self.places.is_empty() {
            self.places.resize(RECENT, 0);
        }
        self.places[place(digest)] = id;
    }
}

fn place(digest: &Digest) -> usize {
    usize::from(u16::from_le_bytes([digest[0], digest[1]]))
}

/// The largest number of maps in the cache. `Store::maps_at` caches the maps 0, 1, 2, 4, ... checkpoints before the
/// requested checkpoint. By default a store has at most 4096 checkpoints, so these are at most 13 maps. A map for
/// 512 MiB of pages takes at most 2 MiB.
const MAPS: usize = 14;

/// The maps that were requested last, by position and by the number of their file.
#[derive(Default)]
pub(crate) struct MapsCache {
    maps: BTreeMap<u64, CachedMaps>,
    /// The positions and file numbers of the checkpoints whose maps passed the check, whether or not these maps are
    /// cached.
    checked: BTreeSet<(u64, u32)>,
    clock: u64,
}

struct CachedMaps {
    file: u32,
    maps: Maps,
    last_use: u64,
}

impl MapsCache {
    /// The nearest cached position at or before `position`, and its maps; `None` if there is no such position.
    /// `is_live` gets a position and a file number, and returns whether the store still has this file.
    pub fn nearest(&mut self, position: u64, is_live: impl Fn(u64, u32) -> bool) -> Option<(u64, Maps)> {
        self.clock += 1;
        let mut earlier = self.maps.range_mut(..=position).rev();
        let (position, cached) = earlier.find(|(position, cached)| is_live(**position, cached.file))?;
        cached.last_use = self.clock;
        Some((*position, cached.maps.clone()))
    }

    pub fn put(&mut self, position: u64, file: u32, maps: Maps) {
        self.clock += 1;
        self.maps.insert(position, CachedMaps { file, maps, last_use: self.clock });
        if self.maps.len() > MAPS {
            let oldest = self.maps.iter().min_by_key(|(_, cached)| cached.last_use);
            let oldest = *oldest.expect("it holds more than none").0;
            self.maps.remove(&oldest);
        }
    }

    pub fn remove(&mut self, position: u64) {
        self.maps.remove(&position);
    }

    pub fn is_checked(&self, position: u64, file: u32) -> bool {
        self.checked.contains(&(position, file))
    }

    pub fn set_checked(&mut self, position: u64, file: u32) {
        self.checked.insert((position, file));
    }

    pub fn clear(&mut self) {
        self.maps.clear();
        self.checked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_over_twice_the_cache_still_hits() {
        let mut cache = PageCache::default();
        let page = Arc::new([1; crate::page::PAGE_BYTES]);
        let mut hits = 0;
        for id in (0..3).flat_map(|_| 0..2 * PAGES as u64) {
            match cache.get(id) {
                Some(_) => hits += 1,
                None => cache.put(id, &page),
            }
        }
        assert!(hits >= PAGES, "{hits}");
    }

    #[test]
    fn pages_with_one_place_are_told_apart_and_the_one_of_use_stays() {
        let mut cache = PageCache::default();
        let (first, second) = (5, 5 + PAGES as u64);
        let page = |byte| Arc::new([byte; crate::page::PAGE_BYTES]);
        let byte = |cache: &mut PageCache, id| cache.get(id).map(|page| page[0]);
        cache.put(first, &page(1));
        assert_eq!((byte(&mut cache, second), byte(&mut cache, first)), (None, Some(1)));
        cache.put(second, &page(2));
        assert_eq!((byte(&mut cache, second), byte(&mut cache, first)), (None, Some(1)));
        // If an entry is not used between the arrivals of two competitors, the second competitor replaces the
        // entry.
        cache.put(second, &page(2));
        cache.put(second, &page(2));
        assert_eq!((byte(&mut cache, second), byte(&mut cache, first)), (Some(2), None));
    }

    #[test]
    fn the_maps_that_nobody_asked_for_longest_go_first() {
        let positions = |cache: &MapsCache| cache.maps.keys().copied().collect::<Vec<_>>();
        let last = MAPS as u64;
        let filled = || {
            let mut cache = MapsCache::default();
            (1..=last).rev().for_each(|position| cache.put(position, 1, Maps::new(1, 1)));
            cache
        };
        let mut never_asked = filled();
        never_asked.put(0, 1, Maps::new(1, 1));
        assert!(positions(&never_asked).into_iter().eq(0..last));
        let mut asked = filled();
        (1..=last).for_each(|position| assert!(asked.nearest(position, |_, _| true).is_some()));
        asked.put(last + 1, 1, Maps::new(1, 1));
        assert!(positions(&asked).into_iter().eq(2..=last + 1));
        let mut asked_backwards = filled();
        (1..=last)
            .rev()
            .for_each(|position| assert!(asked_backwards.nearest(position, |_, _| true).is_some()));
        asked_backwards.put(0, 1, Maps::new(1, 1));
        assert!(positions(&asked_backwards).into_iter().eq(0..last));
    }

    #[test]
    fn maps_of_other_files_are_not_found() {
        let mut cache = MapsCache::default();
        cache.put(10, 1, Maps::new(1, 1));
        cache.put(20, 2, Maps::new(2, 1));
        assert_eq!(cache.nearest(25, |_, _| true).unwrap().0, 20);
        assert_eq!(cache.nearest(25, |_, file| file == 1).unwrap().0, 10);
        assert!(cache.nearest(9, |_, _| true).is_none());
        (0..100).for_each(|n| cache.put(100 + n, 3, Maps::new(1, 1)));
        assert_eq!(cache.maps.len(), MAPS);
    }

    #[test]
    fn the_last_version_with_a_part_of_the_digest_is_known() {
        let mut recent = Recent::default();
        let (mut a, mut b, c) = ([7; 16], [7; 16], [8; 16]);
        (a[15], b[15]) = (1, 2);
        assert_eq!(recent.get(&a), None);
        recent.put(&a, 5);
        assert_eq!([a, b, c].map(|digest| recent.get(&digest)), [Some(5), Some(5), None]);
        recent.put(&b, 6);
        assert_eq!([a, b, c].map(|digest| recent.get(&digest)), [Some(6), Some(6), None]);
    }
}
