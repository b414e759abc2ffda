//! The memory map for the guest, and the free memory for the loader.
//!
//! The map is like a PC's. The map has 639 KiB of conventional memory, the extended BIOS data area, and the legacy hole
//! up to 1 MiB (with the ACPI tables). Then follows RAM up to the 32-bit device hole; the rest of RAM begins at 4 GiB.
//! Loading uses only RAM below 4 GiB, because every boot protocol has some 32-bit addresses.

use std::ops::Range;

use guest_ram::RamLayout;

use crate::acpi::AcpiTables;

/// Start of the extended BIOS data area; conventional memory ends here.
pub const EBDA_START: u64 = 0x9_FC00;
/// Start of the legacy hole (video memory, option ROMs, firmware).
pub const LEGACY_HOLE_START: u64 = 0xA_0000;
/// End of the legacy hole.
pub const LEGACY_HOLE_END: u64 = 0x10_0000;
/// Nothing is loaded below this address: the interrupt vectors and the BIOS data area lie there.
const FIRST_LOADABLE: u64 = 0x500;
/// The loader's own structures start at this address, so that none is at address 0.
const FIRST_PLACED: u64 = 0x1000;

/// The use of a range of guest-physical memory. The values are the same in e820, PVH and Multiboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RangeKind {
    /// Free for the guest.
    Ram = 1,
    /// Not to be used.
    Reserved = 2,
    /// ACPI tables: RAM again once the guest has read them.
    AcpiReclaim = 3,
    /// ACPI non-volatile storage (the FACS): never RAM.
    AcpiNvs = 4,
}

/// One entry of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First guest-physical address.
    pub start: u64,
    /// Length in bytes, never 0.
    pub length: u64,
    /// The use of the range.
    pub kind: RangeKind,
}

/// The memory map of a machine with this RAM and these ACPI tables: ascending, without overlaps.
pub fn memory_map(layout: &RamLayout, acpi: &AcpiTables) -> Vec<MemoryRange> {
    let mut map = vec![
        range(0..EBDA_START, RangeKind::Ram),
        range(EBDA_START..acpi.reclaim.start, RangeKind::Reserved),
        range(acpi.reclaim.clone(), RangeKind::AcpiReclaim),
        range(acpi.nvs.clone(), RangeKind::AcpiNvs),
        range(acpi.nvs.end..LEGACY_HOLE_END, RangeKind::Reserved),
    ];
    for (start, _, length) in layout.ranges() {
        map.push(range(start.max(LEGACY_HOLE_END)..start + length, RangeKind::Ram));
    }
    map.retain(|range| range.length != 0);
    map
}

fn range(range: Range<u64>, kind: RangeKind) -> MemoryRange {
    MemoryRange { start: range.start, length: range.end.saturating_sub(range.start), kind }
}

/// Why a fixed range cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimError {
    /// The range lies beyond the end of RAM, but a machine with more RAM would have it.
    BeyondRam,
    /// No machine has free RAM in this range.
    NeverRam,
    /// Another part of the loader has claimed the range before.
    Taken,
}

/// The free RAM below 4 GiB while an image is being loaded.
#[derive(Debug)]
pub(super) struct Placer {
    /// Free ranges, ascending and disjoint.
    free: Vec<Range<u64>>,
    low_ram_end: u64,
}

impl Placer {
    pub(super) fn new(layout: &RamLayout) -> Placer {
        let low_ram_end = layout.size_bytes().min(guest_ram::LOW_RAM_LIMIT);
        let free = vec![FIRST_LOADABLE..EBDA_START, LEGACY_HOLE_END..low_ram_end];
        Placer { free, low_ram_end }
    }

    /// End of RAM below the device hole.
    pub(super) fn low_ram_end(&self) -> u64 {
        self.low_ram_end
    }

    /// Removes exactly `start..end` from the free ranges.
    pub(super) fn claim(&mut self, start: u64, end: u64) -> Result<(), ClaimError> {
        if start >= end {
            return Ok(());
        }
        match self.free.iter().position(|free| free.start <= start && end <= free.end) {
            Some(index) => self.split(index, start, end),
            None => return Err(self.why_not(start, end)),
        }
        Ok(())
    }

    fn why_not(&self, start: u64, end: u64) -> ClaimError {
        let in_conventional = start >= FIRST_LOADABLE && end <= EBDA_START;
        if !in_conventional && (start < LEGACY_HOLE_END || end > guest_ram::LOW_RAM_LIMIT) {
            ClaimError::NeverRam
        } else if end > self.low_ram_end {
            ClaimError::BeyondRam
        } else {
            ClaimError::Taken
        }
    }

    /// Removes `length` bytes at the lowest free address at or above `from`, and returns this address. `align` is a
    /// power of two.
    pub(super) fn lowest(&mut self, length: u64, align: u64, from: u64) -> Option<u64> {
        let from = from.max(FIRST_PLACED);
        let (index, start) = self.free.iter().enumerate().find_map(|(index, free)| {
            let start = free.start.max(from).checked_next_multiple_of(align)?;
            (start.checked_add(length)? <= free.end).then_some((index, start))
        })?;
        self.split(index, start, start + length);
        Some(start)
    }

    /// Removes `length` bytes at the highest free address from 1 MiB up, such that the bytes end at or below `below`.
    /// Returns this address. `align` is a power of two.
    pub(super) fn highest(&mut self, length: u64, align: u64, below: u64) -> Option<u64> {
        let (index, start) = self.free.iter().enumerate().rev().find_map(|(index, free)| {
            let start = free.end.min(below).checked_sub(length)? & !(align - 1);
            (start >= free.start.max(LEGACY_HOLE_END)).then_some((index, start))
        })?;
        self.split(index, start, start + length);
        Some(start)
    }

    fn split(&mut self, index: usize, start: u64, end: u64) {
        let whole = self.free[index].clone();
        let rest = [whole.start..start, end..whole.end];
        self.free.splice(index..=index, rest.into_iter().filter(|range| !range.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn map(size_bytes: u64) -> Vec<MemoryRange> {
        let acpi = AcpiTables { rsdp: 0xE_0000, reclaim: 0xE_0000..0xE_2000, nvs: 0xE_2000..0xE_3000 };
        memory_map(&RamLayout::new(size_bytes), &acpi)
    }

    #[test]
    fn maps_are_gapless_below_1_mib_and_hold_all_ram_above() {
        for (size, last_ram) in [
            (128 * MIB, vec![(MIB, 127 * MIB)]),
            (3072 * MIB, vec![(MIB, 3071 * MIB)]),
            (5120 * MIB, vec![(MIB, 3071 * MIB), (4096 * MIB, 2048 * MIB)]),
        ] {
            let map = map(size);
            let low: Vec<_> = map.iter().filter(|r| r.start < MIB).collect();
            assert!(low.windows(2).all(|w| w[0].start + w[0].length == w[1].start));
            assert_eq!(low.last().map(|r| r.start + r.length), Some(MIB));
            assert!(low.iter().all(|r| (r.kind == RangeKind::Ram) == (r.start == 0)));
            let high: Vec<_> = map.iter().filter(|r| r.start >= MIB).map(|r| (r.start, r.length)).collect();
            assert_eq!(high, last_ram);
        }
    }

    #[test]
    fn claims_say_why_they_fail() {
        let mut placer = Placer::new(&RamLayout::new(16 * MIB));
        assert_eq!(placer.claim(MIB, 2 * MIB), Ok(()));
        assert_eq!(placer.claim(MIB + 5, MIB + 6), Err(ClaimError::Taken));
        assert_eq!(placer.claim(15 * MIB, 17 * MIB), Err(ClaimError::BeyondRam));
        assert_eq!(placer.claim(0xF_0000, 2 * MIB), Err(ClaimError::NeverRam));
        assert_eq!(placer.claim(0xF000_0000, 0xF000_1000), Err(ClaimError::NeverRam));
        assert_eq!(placer.claim(0, 0), Ok(()));
    }

    #[test]
    fn places_do_not_overlap_and_honour_limits() {
        let mut placer = Placer::new(&RamLayout::new(16 * MIB));
        assert_eq!(placer.lowest(0x10, 0x1000, 0), Some(0x1000));
        assert_eq!(placer.lowest(0x10, 0x10, 0), Some(0x1010));
        assert_eq!(placer.lowest(MIB, 0x1000, 0), Some(MIB));
        assert_eq!(placer.highest(0x1800, 0x1000, u64::MAX), Some(16 * MIB - 0x2000));
        assert_eq!(placer.highest(0x1000, 0x1000, 4 * MIB), Some(4 * MIB - 0x1000));
        assert_eq!(placer.highest(14 * MIB, 0x1000, u64::MAX), None);
        assert_eq!(placer.lowest(u64::MAX, 0x1000, 0), None);
    }
}
