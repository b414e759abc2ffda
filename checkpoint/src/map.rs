//! Maps give the version of every page of a machine at one point of its run.
//!
//! A map is cheap to copy: copies share chunks of 512 pages until one is changed. A map holds only references to
//! contents. The contents are in the [`Store`](crate::store::Store), in memory that maps share, or known only to
//! the caller (contents at power-on).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::page::{PAGE_BYTES, Page};

/// Number of pages in a chunk. A chunk of references takes two pages of host memory.
const CHUNK_PAGES: u64 = 512;

/// A page of zeroes.
pub(crate) static ZERO_PAGE: Page = [0; PAGE_BYTES];

static BASE: PageRef = PageRef::Base;

/// One of a machine's two kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Guest memory, in pages of 4 KiB from guest-physical address 0.
    Ram,
    /// The disk, in blocks of 4 KiB.
    Disk,
}

/// One stored version of a page. While the store is open, the version's id is never reused for other
/// contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub(crate) u64);

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of a page's contents.
#[derive(Clone, Debug, Default)]
pub enum PageRef {
    /// Contents as at power-on: the loader's RAM or the base image. The store does not hold these contents.
    #[default]
    Base,
    /// All zeroes.
    Zero,
    /// The page is a version in the store.
    Stored(BlobId),
    /// The contents are in memory, and not (yet) in the store.
    Held(Arc<Page>),
}

impl PageRef {
    /// Whether both references are to the same version, without comparing contents. Different references may still have
    /// equal contents.
    pub fn same_as(&self, other: &PageRef) -> bool {
        match (self, other) {
            (PageRef::Base, PageRef::Base) | (PageRef::Zero, PageRef::Zero) => true,
            (PageRef::Stored(a), PageRef::Stored(b)) => a == b,
            (PageRef::Held(a), PageRef::Held(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The stored version, if there is one.
    pub(crate) fn stored(&self) -> Option<u64> {
        match self {
            PageRef::Stored(BlobId(id)) => Some(*id),
            _ => None,
        }
    }
}

type Chunk = [PageRef; CHUNK_PAGES as usize];

/// The version of every page of one space. Chunks in which every page is [`PageRef::Base`] take no memory.
#[derive(Clone, Debug)]
pub struct PageMap {
    len: u64,
    chunks: Arc<BTreeMap<u64, Arc<Chunk>>>,
}

impl PageMap {
    /// A map of `pages` pages that all have their contents of power-on.
    pub fn new(pages: u64) -> PageMap {
        PageMap { len: pages, chunks: Arc::default() }
    }

    /// A map of `pages` pages of zeroes.
    pub fn zeroed(pages: u64) -> PageMap {
        let mut map = PageMap::new(pages);
        map.fill(0, pages, &PageRef::Zero);
        map
    }

    /// A copy of this map. Pages that are [`PageRef::Base`] in this map have their versions of `base` in the copy.
    pub fn over(&self, base: &PageMap) -> PageMap {
        let mut map = base.clone();
        let chunks = Arc::make_mut(&mut map.chunks);
        for (&number, chunk) in self.chunks.iter() {
            let below = chunks.entry(number).or_insert_with(|| chunk.clone());
            let below = Arc::make_mut(below);
            for (below, above) in below.iter_mut().zip(chunk.iter()) {
                if !matches!(above, PageRef::Base) {
                    below.clone_from(above);
                }
            }
        }
        map
    }

    /// The number of pages.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the space has no pages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The version of a page; `Base` for pages beyond the end.
    pub fn get(&self, page: u64) -> &PageRef {
        self.chunks.get(&(page / CHUNK_PAGES)).map_or(&BASE, |chunk| &chunk[(page % CHUNK_PAGES) as usize])
    }

    /// Sets the version of a page.
    ///
    /// # Panics
    ///
    /// If the map has no such page.
    pub fn set(&mut self, page: u64, to: PageRef) {
        assert!(page < self.len, "page {page} of {}", self.len);
        let number = page / CHUNK_PAGES;
        if matches!(to, PageRef::Base) && !self.chunks.contains_key(&number) {
            return;
        }
        let chunk = Arc::make_mut(&mut self.chunks).entry(number).or_insert_with(|| uniform(&PageRef::Base));
        Arc::make_mut(chunk)[(page % CHUNK_PAGES) as usize] = to;
    }

    /// Sets `count` pages from `first` on to the same version. Chunks that lie wholly in this range share one copy
    /// in memory.
    pub(crate) fn fill(&mut self, first: u64, count: u64, to: &PageRef) {
        let end = first + count;
        assert!(end <= self.len, "pages up to {end} of {}", self.len);
        let (mut page, mut whole) = (first, None);
        while page < end {
            if page.is_multiple_of(CHUNK_PAGES) && end - page >= CHUNK_PAGES {
                let chunk = whole.get_or_insert_with(|| uniform(to)).clone();
                Arc::make_mut(&mut self.chunks).insert(page / CHUNK_PAGES, chunk);
                page += CHUNK_PAGES;
            } else {
                self.set(page, to.clone());
                page += 1;
            }
        }
    }

    /// The pages whose version differs from `earlier`, in ascending order, with their versions in this map. Skips
    /// chunks that both maps share.
    pub fn changed_since<'a>(&'a self, earlier: &'a PageMap) -> impl Iterator<Item = (u64, &'a PageRef)> {
        self.differing_chunks(earlier).into_iter().flat_map(move |number| {
            let first = number * CHUNK_PAGES;
            (first..(first + CHUNK_PAGES).min(self.len))
                .map(|page| (page, self.get(page)))
                .filter(|(page, version)| !version.same_as(earlier.get(*page)))
        })
    }

    fn differing_chunks(&self, earlier: &PageMap) -> Vec<u64> {
        if Arc::ptr_eq(&self.chunks, &earlier.chunks) {
            return Vec::new();
        }
        let shared = |number: &u64| match (self.chunks.get(number), earlier.chunks.get(number)) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let mut numbers: Vec<u64> =
            self.chunks.keys().chain(earlier.chunks.keys()).copied().filter(|n| !shared(n)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The pages that are not [`PageRef::Base`], in ascending order.
    pub fn iter_not_base(&self) -> impl Iterator<Item = (u64, &PageRef)> {
        self.chunks.iter().flat_map(|(number, chunk)| {
            let pages = (number * CHUNK_PAGES..).zip(chunk.iter());
            pages.filter(|(_, version)| !matches!(version, PageRef::Base))
        })
    }
}

fn uniform(version: &PageRef) -> Arc<Chunk> {
    Arc::new(std::array::from_fn(|_| version.clone()))
}

/// The versions of all of a machine's pages at one point.
#[derive(Clone, Debug)]
pub struct Maps {
    /// Guest memory.
    pub ram: PageMap,
    /// The disk.
    pub disk: PageMap,
}

impl Maps {
    /// The maps of a machine that was just switched on.
    pub fn new(ram_pages: u64, disk_blocks: u64) -> Maps {
        Maps { ram: PageMap::new(ram_pages), disk: PageMap::new(disk_blocks) }
    }

    /// The map of one space.
    pub fn space(&self, space: Space) -> &PageMap {
        match space {
            Space::Ram => &self.ram,
            Space::Disk => &self.disk,
        }
    }

    /// The map of one space, mutable.
    pub fn space_mut(&mut self, space: Space) -> &mut PageMap {
        match space {
            Space::Ram => &mut self.ram,
            Space::Disk => &mut self.disk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: u64) -> PageRef {
        PageRef::Stored(BlobId(id))
    }

    #[test]
    fn a_copy_keeps_its_versions() {
        let mut map = PageMap::new(2000);
        map.set(7, stored(1));
        let copy = map.clone();
        map.set(7, PageRef::Zero);
        map.set(1999, stored(2));
        assert!(copy.get(7).same_as(&stored(1)) && copy.get(1999).same_as(&PageRef::Base));
        assert!(map.get(7).same_as(&PageRef::Zero) && map.get(1999).same_as(&stored(2)));
    }

    #[test]
    fn a_space_without_pages_is_empty_and_one_without_contents_is_not() {
        assert!(PageMap::new(0).is_empty());
        assert!(!PageMap::new(1).is_empty());
    }

    #[test]
    fn changes_are_found_in_both_directions() {
        let mut before = PageMap::new(3000);
        before.set(5, stored(1));
        before.set(1500, stored(2));
        let mut after = before.clone();
        after.set(5, PageRef::Base);
        after.set(2999, PageRef::Zero);
        let pages = |a: &PageMap, b: &PageMap| a.changed_since(b).map(|(page, _)| page).collect::<Vec<_>>();
        assert_eq!(pages(&after, &before), [5, 2999]);
        assert_eq!(pages(&before, &after), [5, 2999]);
        assert_eq!(pages(&after, &after.clone()), [0; 0]);
        assert_eq!(after.iter_not_base().map(|(page, _)| page).collect::<Vec<_>>(), [1500, 2999]);
    }

    #[test]
    fn filling_equals_setting_each() {
        for (first, count) in [(0, 512), (0, 2000), (3, 1), (500, 30), (100, 1500), (512, 1024), (9, 0)] {
            let (mut filled, mut set) = (PageMap::new(2000), PageMap::new(2000));
            filled.fill(first, count, &PageRef::Zero);
            (first..first + count).for_each(|page| set.set(page, PageRef::Zero));
            assert_eq!(filled.changed_since(&set).count(), 0, "{count} from {first}");
        }
    }
}
