//! Sets of address ranges. They find the ranges that an access touches without a look at the others. Watchpoints and
//! observers use them.

/// How an address is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// Linear, in whatever address space is current.
    Linear,
    /// Guest-physical, however it is mapped.
    Physical,
}

/// The last byte of a range, in an address space that may end there. `None` for a range that is empty.
pub(crate) fn last_of(address: u64, length: u64) -> Option<u64> {
    Some(address.saturating_add(length.checked_sub(1)?))
}

/// Pages after which a [`Ranges::sieve`] begins anew.
const SIEVE_PAGES: u64 = 1 << 15;

/// Ranges of one kind of address, each with a value.
#[derive(Clone)]
pub(crate) struct Ranges<T> {
    ranges: Vec<Range<T>>,
    /// A bit for each remainder of page numbers, set if such a page has a byte of a range. Empty where there is no range.
    sieve: Vec<u64>,
}

#[derive(Clone)]
struct Range<T> {
    first: u64,
    last: u64,
    /// The last byte of this range and all before it.
    reach: u64,
    value: T,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { ranges: Vec::new(), sieve: Vec::new() }
    }
}

impl<T: Copy> Ranges<T> {
    /// From ranges in the order of their first bytes.
    fn of(ranges: impl Iterator<Item = (u64, u64, T)>) -> Ranges<T> {
        let mut reach = 0;
        let range = |(first, last, value): (u64, u64, T)| {
            reach = last.max(reach);
            Range { first, last, reach, value }
        };
        let ranges: Vec<Range<T>> = ranges.map(range).collect();
        let sieve = if ranges.is_empty() { Vec::new() } else { sieve_of(&ranges) };
        Ranges { ranges, sieve }
    }

    /// The values of those that have a byte between two, both included, the last first.
    pub fn touched(&self, first: u64, last: u64) -> impl Iterator<Item = T> {
        let before = self.ranges.partition_point(|range| range.first <= last);
        let near = self.ranges[..before].iter().rev().take_while(move |range| range.reach >= first);
        near.filter(move |range| range.last >= first).map(|range| range.value)
    }

    fn touch_page(&self, address: u64, counts: impl Fn(T) -> bool) -> bool {
        let (word, bit) = place_in_sieve(address >> 12);
        self.sieve.get(word).is_some_and(|bits| bits & bit != 0)
            && self.touched(address & !0xfff, address | 0xfff).any(counts)
    }
}

fn sieve_of<T>(ranges: &[Range<T>]) -> Vec<u64> {
    let mut sieve = vec![0; (SIEVE_PAGES / 64) as usize];
    for range in ranges {
        let first = range.first >> 12;
        for page in first..=(range.last >> 12).min(first + (SIEVE_PAGES - 1)) {
            let (word, bit) = place_in_sieve(page);
            sieve[word] |= bit;
        }
    }
    sieve
}

fn place_in_sieve(page: u64) -> (usize, u64) {
    ((page % SIEVE_PAGES / 64) as usize, 1 << (page % 64))
}

/// Ranges of both kinds of addresses.
#[derive(Clone)]
pub(crate) struct Spaces<T> {
    pub linear: Ranges<T>,
    pub physical: Ranges<T>,
}

impl<T> Default for Spaces<T> {
    fn default() -> Spaces<T> {
        Spaces { linear: Ranges::default(), physical: Ranges::default() }
    }
}

impl<T: Copy> Spaces<T> {
    /// From ranges in any order: how their addresses are meant, the first and the last byte, and the value.
    pub fn of(ranges: impl Iterator<Item = (AddressKind, u64, u64, T)>) -> Spaces<T> {
        let mut all: Vec<_> = ranges.collect();
        all.sort_by_key(|&(_, first, ..)| first);
        let of = |kind| {
            let of_kind = all.iter().filter(|range| range.0 == kind);
            Ranges::of(of_kind.map(|&(_, first, last, value)| (first, last, value)))
        };
        Spaces { linear: of(AddressKind::Linear), physical: of(AddressKind::Physical) }
    }

    /// Whether there is no range.
    pub fn are_empty(&self) -> bool {
        self.linear.ranges.is_empty() && self.physical.ranges.is_empty()
    }

    /// Whether a range has one of so many bytes, in one page, at a linear address that is mapped to a physical one.
    pub fn touch(&self, address: u64, gpa: u64, length: u64) -> bool {
        [(&self.linear, address), (&self.physical, gpa)]
            .into_iter()
            .any(|(ranges, first)| ranges.touched(first, first + (length - 1)).next().is_some())
    }

    /// Whether a range whose value counts has a byte in the page of a linear address that is mapped to a physical one.
    pub fn touch_page(&self, address: u64, gpa: u64, counts: impl Fn(T) -> bool) -> bool {
        self.linear.touch_page(address, &counts) || self.physical.touch_page(gpa, &counts)
    }
}
