//! Reads the guest's IOMMU tables, which say which pages of guest memory a function may see, and at which addresses.
//!
//! See Intel Virtualization Technology for Directed I/O, revision 3.3, chapter 9. The tables are in legacy mode, with
//! addresses of 39 bits and pages of 4 KiB.

use std::collections::BTreeMap;
use std::ops::Range;

use guest_ram::{PAGE_SIZE, RamView};

/// Levels of a table for 39 bits.
const LEVELS: u32 = 3;
const ENTRIES: u64 = 512;
const PRESENT: u64 = 1;
const READ: u64 = 1;
const WRITE: u64 = 2;
const SUPERPAGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// `KIND` is the field of a context entry for the kind of translation. The next constant is the field for the width of
/// addresses.
const KIND: u64 = 3 << 2;
const WIDTH: u64 = 7;
const WIDTH_39: u64 = 1;
/// The largest number of pages that are searched for, because VFIO maps no more.
pub(super) const MOST_PAGES: usize = 65_535;

/// A page that a function may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The offset in RAM.
    pub offset: u64,
    /// Whether the function may write the page.
    pub may_write: bool,
}

/// The pages that the function in `slot` may see at the addresses in `range`, by address.
pub(super) fn shown(ram: &RamView, root: u64, slot: u8, range: Range<u64>) -> BTreeMap<u64, Shown> {
    let mut found = BTreeMap::new();
    let context = load(ram, root).filter(|entry| entry & PRESENT != 0).map(|entry| entry & ADDRESS);
    let entry = context.map(|table| table + 16 * 8 * u64::from(slot));
    let (low, high) = (entry.and_then(|at| load(ram, at)), entry.and_then(|at| load(ram, at + 8)));
    if let (Some(low), Some(high)) = (low, high)
        && low & PRESENT != 0
        && low & KIND == 0
        && high & WIDTH == WIDTH_39
    {
        walk(ram, low & ADDRESS, LEVELS, 0, &range, READ | WRITE, &mut found);
    }
    found
}

fn walk(
    ram: &RamView,
    table: u64,
    level: u32,
    base: u64,
    range: &Range<u64>,
    allowed: u64,
    found: &mut BTreeMap<u64, Shown>,
) {
    let span = PAGE_SIZE << (9 * (level - 1));
    let first = range.start.saturating_sub(base) / span;
    let last = range.end.saturating_sub(base).div_ceil(span).min(ENTRIES);
    for number in first..last {
        let Some(entry) = load(ram, table + 8 * number) else { return };
        let (address, allowed) = (base + number * span, allowed & entry);
        if allowed & (READ | WRITE) == 0 {
            continue;
        }
        if level > 1 {
            if entry & SUPERPAGE == 0 {
                walk(ram, entry & ADDRESS, level - 1, address, range, allowed, found);
            }
            continue;
        }
        if let Some(offset) = ram.layout().offset_of(entry & ADDRESS)
            && found.len() < MOST_PAGES
        {
            found.insert(address, Shown { offset, may_write: allowed & WRITE != 0 });
        }
    }
}

fn load(ram: &RamView, gpa: u64) -> Option<u64> {
    let offset = ram.layout().offset_of(gpa)?;
    let mut bytes = [0; 8];
    (offset + 8 <= ram.size_bytes()).then(|| ram.read_bytes(offset, &mut bytes))?;
    Some(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use guest_ram::GuestRam;

    use super::*;

    /// Tables with the root at 0x1000, the context table at 0x2000, and the levels at 0x3000, 0x4000 and 0x5000. Slot 4
    /// sees two pages at 0xFFFFE000.
    pub(crate) fn with_tables() -> GuestRam {
        let ram = GuestRam::new(1 << 20).unwrap();
        ram.store_u64(0x1000, 0x2000 | PRESENT);
        ram.store_u64(0x2000 + 4 * 8 * 16, 0x3000 | PRESENT);
        ram.store_u64(0x2000 + 4 * 8 * 16 + 8, WIDTH_39 | 5 << 8);
        ram.store_u64(0x3000 + 3 * 8, 0x4000 | READ | WRITE);
        ram.store_u64(0x4000 + 511 * 8, 0x5000 | READ | WRITE);
        ram.store_u64(0x5000 + 510 * 8, 0x8_0000 | READ);
        ram.store_u64(0x5000 + 511 * 8, 0x8_1000 | READ | WRITE);
        ram
    }

    const ALL: Range<u64> = 0..1 << 39;

    #[test]
    fn mapped_pages_are_found_and_no_others() {
        let ram = with_tables();
        let found: Vec<_> = shown(&ram.view(), 0x1000, 4, ALL).into_iter().collect();
        let expected = [
            (0xFFFF_E000, Shown { offset: 0x8_0000, may_write: false }),
            (0xFFFF_F000, Shown { offset: 0x8_1000, may_write: true }),
        ];
        assert_eq!(found, expected);
        assert_eq!(shown(&ram.view(), 0x1000, 4, 0xFFFF_F000..0x1_0000_0000).len(), 1);
        assert!(shown(&ram.view(), 0x1000, 4, 0..0xFFFF_E000).is_empty());
        assert!(shown(&ram.view(), 0x1000, 5, ALL).is_empty(), "another slot");
        assert!(shown(&ram.view(), 0x9000, 4, ALL).is_empty(), "another root");
    }

    #[test]
    fn tables_that_lead_nowhere_show_nothing() {
        for (at, value) in [
            (0x1000, 0),
            (0x1000, 0xFFFF_FFFF_F001),
            (0x2000 + 4 * 8 * 16, 0x3000 | PRESENT | 2 << 2),
            (0x2000 + 4 * 8 * 16 + 8, 2),
            (0x3000 + 3 * 8, 0xFFFF_F000 | READ | WRITE),
            (0x4000 + 511 * 8, 0x5000 | READ | WRITE | SUPERPAGE),
        ] {
            let ram = with_tables();
            ram.store_u64(at, value);
            assert!(shown(&ram.view(), 0x1000, 4, ALL).is_empty(), "{at:#x} {value:#x}");
        }
        let ram = with_tables();
        ram.store_u64(0x5000 + 511 * 8, 0xF000_0000 | READ | WRITE);
        assert_eq!(shown(&ram.view(), 0x1000, 4, ALL).len(), 1, "a page outside of RAM");
    }
}
