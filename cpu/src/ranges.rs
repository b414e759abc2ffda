//! Sets of address ranges. A set finds the ranges that an access touches without a check of every range.
//! Watchpoints and observers use them.

/// The address space of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// A linear address in the address space that is current at the access.
    Linear,
    /// A guest-physical address, whatever linear address is used to access it.
    Physical,
}

/// The last byte of a range, cut off at the end of the address space. `None` for an empty range.
pub(crate) fn last_of(address: u64, length: u64) -> Option<u64> {
    Some(address.saturating_add(length.checked_sub(1)?))
}

/// The number of bits in [`Ranges::sieve`]. Pages whose numbers are equal modulo this number share a bit.
const SIEVE_PAGES: u64 = 1 << 15;

/// A set of ranges of linear or of physical addresses. Each range has a value.
#[derive(Clone)]
pub(crate) struct Ranges<T> {
    ranges: Vec<Range<T>>,
    /// A bit for each page number modulo [`SIEVE_PAGES`], set if such a page has a byte of a range. Empty if there is
    /// no range.
    sieve: Vec<u64>,
}

#[derive(Clone)]
struct Range<T> {
    first: u64,
    last: u64,
    /// The highest last byte of this range and all earlier ranges.
    reach: u64,
    value: T,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { ranges: Vec::new(), sieve: Vec::new() }
    }
}

impl<T: Copy> Ranges<T> {
    /// Builds the set from ranges sorted by their first bytes.
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

    /// The values of the ranges that touch the bytes from `first` to `last`, the last range first.
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

/// Ranges in both address spaces.
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
    /// Builds the sets from ranges in any order: address space, first byte, last byte and value.
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

    /// Whether a range touches an access of `length` bytes in one page. `address` is the access's linear address,
    /// and `gpa` the physical address.
    pub fn touch(&self, address: u64, gpa: u64, length: u64) -> bool {
        [(&self.linear, address), (&self.physical, gpa)]
            .into_iter()
            .any(|(ranges, first)| ranges.touched(first, first + (length - 1)).next().is_some())
    }

    /// Whether a range has a byte in the page at linear address `address` and physical address `gpa`. Only ranges
    /// for whose value `counts` returns true are searched.
    pub fn touch_page(&self, address: u64, gpa: u64, counts: impl Fn(T) -> bool) -> bool {
        self.linear.touch_page(address, &counts) || self.physical.touch_page(gpa, &counts)
    }
}
