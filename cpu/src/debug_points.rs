//! Breakpoints, watchpoints and traps of a debugger, pages that the guest's debug registers watch, and the hits.

use std::collections::BTreeSet;

pub use crate::ranges::AddressKind;
use crate::ranges::{Spaces, last_of};

/// The kind of accesses that a watchpoint catches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes.
    Access,
}

/// A watched range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watchpoint {
    /// The address space of `address`.
    pub space: AddressKind,
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The kind of access that hits the watchpoint.
    pub kind: WatchKind,
}

impl Watchpoint {
    /// The last byte of the range, cut off at the end of the address space. `None` for an empty range.
    fn last(&self) -> Option<u64> {
        last_of(self.address, self.length)
    }

    /// Whether an access of this kind can hit the watchpoint.
    fn counts(&self, kind: WatchKind) -> bool {
        self.kind == WatchKind::Access || self.kind == kind
    }
}

/// A watchpoint that an instruction hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchHit {
    /// The watchpoint.
    pub watchpoint: Watchpoint,
    /// The watchpoint's first byte that the access touched.
    pub address: u64,
    /// Whether the access was a read or a write.
    pub kind: WatchKind,
    /// Whether the access was a write that changed bytes of the watchpoint. A write to a device always counts as a
    /// change, because its effect is unknown.
    pub changed: bool,
    /// How many bytes of the watchpoint were accessed from `address` on, at most eight.
    pub length: u8,
    /// The old value of these bytes in the guest's byte order, for a write to RAM.
    pub old: Option<u64>,
}

/// Events of the CPU that stop a run after the step in which they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// The system calls that stop a run, by number (RAX at SYSCALL, SYSENTER or INT 80h).
    pub system_calls: SystemCalls,
    /// The entries of the interrupt table at which a run stops. Every delivery through such an entry stops the run:
    /// exceptions, interrupts, NMI and INT n.
    pub vectors: BTreeSet<u8>,
    /// Whether completed IRET, SYSRET and SYSEXIT stop the run.
    pub returns: bool,
    /// Whether a run stops at the end of a turn after which another processor has the seat.
    pub turns: bool,
}

/// A set of system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemCalls {
    /// Every system call.
    All,
    /// System calls with these numbers.
    Numbered(BTreeSet<u64>),
}

impl SystemCalls {
    /// Whether the system call of this number is one of the set.
    pub fn contains(&self, number: u64) -> bool {
        match self {
            SystemCalls::All => true,
            SystemCalls::Numbered(numbers) => numbers.contains(&number),
        }
    }
}

impl Default for SystemCalls {
    fn default() -> SystemCalls {
        SystemCalls::Numbered(BTreeSet::new())
    }
}

/// An event that is listed in the debugger's [`Traps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// A system call with this number was entered.
    SystemCall(u64),
    /// Control passed through this entry of the interrupt table.
    Vector(u8),
    /// An IRET, SYSRET or SYSEXIT completed.
    Return,
    /// The step ended the turn of this processor.
    Turn(usize),
}

/// An event that the debugger waited for, and that happened in the last completed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// An access to memory.
    Watch(WatchHit),
    /// An event that is listed in the debugger's [`Traps`].
    Trap(Trap),
}

/// An access to memory inside one page.
pub(crate) struct PageAccess<'a> {
    pub address: u64,
    pub gpa: u64,
    pub kind: WatchKind,
    /// The bytes that were read or written.
    pub bytes: &'a [u8],
    /// The old bytes, for a write to RAM.
    pub before: Option<&'a [u8]>,
}

/// All breakpoints, watchpoints and traps that are set, and their hits.
#[derive(Default)]
pub struct DebugPoints {
    traps: Traps,
    breakpoints: BTreeSet<(AddressKind, u64)>,
    /// Page offsets of all breakpoints. An address has the same page offset before and after translation.
    breakpoint_offsets: BTreeSet<u16>,
    watchpoints: BTreeSet<Watchpoint>,
    watched: Spaces<Watchpoint>,
    /// Pages that the guest's own debug registers watch.
    guest_pages: BTreeSet<u64>,
    /// Hits of the running instruction, or of the last instruction of the last run.
    pub(crate) hits: Vec<Hit>,
}

impl DebugPoints {
    /// Whether neither the debugger nor the guest has a watchpoint.
    #[inline]
    pub(crate) fn nothing_watched(&self) -> bool {
        self.watchpoints.is_empty() && self.guest_pages.is_empty()
    }

    /// Whether the page holds a byte that is watched for this kind of access. A page with a watched byte must
    /// stay off the fast path.
    pub(crate) fn watches_page(&self, address: u64, gpa: u64, kind: WatchKind) -> bool {
        !self.nothing_watched()
            && (self.watched.touch_page(address, gpa, |point| point.counts(kind))
                || self.guest_pages.contains(&(address >> 12)))
    }

    /// Whether a breakpoint has the page offset of this address. If so, the run loop must check for breakpoints
    /// before an instruction at the address.
    #[inline]
    pub(crate) fn breaks_at_offset(&self, address: u64) -> bool {
        !self.breakpoints.is_empty() && self.breakpoint_offsets.contains(&((address & 0xfff) as u16))
    }

    /// Whether a breakpoint is set at an instruction with this linear and this physical address.
    pub(crate) fn breaks_at(&self, address: u64, gpa: u64) -> bool {
        self.breakpoints.contains(&(AddressKind::Linear, address))
            || self.breakpoints.contains(&(AddressKind::Physical, gpa))
    }

    /// Checks an access against the watchpoints. Returns true if the access hits a watchpoint.
    pub(crate) fn note_access(&mut self, access: &PageAccess<'_>) -> bool {
        let before = self.hits.len();
        let length = access.bytes.len() as u64;
        for (ranges, first) in [(&self.watched.linear, access.address), (&self.watched.physical, access.gpa)]
        {
            let touched =
                ranges.touched(first, first + (length - 1)).filter(|point| point.counts(access.kind));
            let begin = self.hits.len();
            self.hits.extend(touched.filter_map(|point| access.hit(point)).map(Hit::Watch));
            self.hits[begin..].reverse();
        }
        self.hits.len() > before
    }

    /// Replaces the breakpoints. Returns the page offsets of added and removed breakpoints.
    pub(crate) fn replace_breakpoints(&mut self, points: BTreeSet<(AddressKind, u64)>) -> BTreeSet<u16> {
        if self.breakpoints == points {
            return BTreeSet::new();
        }
        let before = std::mem::replace(&mut self.breakpoints, points);
        self.rebuild();
        offsets_in_page(before.symmetric_difference(&self.breakpoints))
    }

    /// Replaces the watchpoints. Returns whether the set changed.
    pub(crate) fn replace_watchpoints(&mut self, points: BTreeSet<Watchpoint>) -> bool {
        let changed = self.watchpoints != points;
        if changed {
            self.watchpoints = points;
            self.rebuild();
        }
        changed
    }

    /// Replaces the pages that the guest's own debug registers watch. Returns whether the set changed.
    pub(crate) fn replace_guest_pages(&mut self, pages: BTreeSet<u64>) -> bool {
        let changed = self.guest_pages != pages;
        self.guest_pages = pages;
        changed
    }

    /// Replaces the traps.
    pub(crate) fn replace_traps(&mut self, traps: Traps) {
        self.traps = traps;
    }

    /// Whether a trap waits for the system call of this number.
    pub(crate) fn traps_system_call(&self, number: u64) -> bool {
        self.traps.system_calls.contains(number)
    }

    /// Whether a trap waits for deliveries through this entry of the interrupt table.
    pub(crate) fn traps_vector(&self, vector: u8) -> bool {
        self.traps.vectors.contains(&vector)
    }

    /// Whether a trap waits for returns from handlers and system calls.
    pub(crate) fn traps_returns(&self) -> bool {
        self.traps.returns
    }

    /// Whether a trap waits for ends of turns.
    pub(crate) fn traps_turns(&self) -> bool {
        self.traps.turns
    }

    fn rebuild(&mut self) {
        self.breakpoint_offsets = offsets_in_page(self.breakpoints.iter());
        let range = |point: &Watchpoint| Some((point.space, point.address, point.last()?, *point));
        self.watched = Spaces::of(self.watchpoints.iter().filter_map(range));
    }
}

fn offsets_in_page<'a>(points: impl Iterator<Item = &'a (AddressKind, u64)>) -> BTreeSet<u16> {
    points.map(|(_, address)| (address & 0xfff) as u16).collect()
}

impl PageAccess<'_> {
    /// The hit of a watchpoint, if the access touches the watched range.
    fn hit(&self, watchpoint: Watchpoint) -> Option<WatchHit> {
        let at = if watchpoint.space == AddressKind::Linear { self.address } else { self.gpa };
        let address = at.max(watchpoint.address);
        let last = watchpoint.last()?.min(at + (self.bytes.len() as u64 - 1));
        if address > last {
            return None;
        }
        let part = (address - at) as usize..=(last - at) as usize;
        let changed = self.kind == WatchKind::Write
            && self.before.is_none_or(|old| old[part.clone()] != self.bytes[part.clone()]);
        let length = part.clone().count().min(8);
        let old = self.before.filter(|_| self.kind == WatchKind::Write).map(|old| {
            let mut bytes = [0; 8];
            bytes[..length].copy_from_slice(&old[part][..length]);
            u64::from_le_bytes(bytes)
        });
        Some(WatchHit { watchpoint, address, kind: self.kind, changed, length: length as u8, old })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(address: u64, gpa: u64, bytes: &[u8]) -> PageAccess<'_> {
        PageAccess { address, gpa, kind: WatchKind::Read, bytes, before: None }
    }

    fn watch(address: u64, length: u64) -> Watchpoint {
        Watchpoint { space: AddressKind::Linear, address, length, kind: WatchKind::Access }
    }

    #[test]
    fn a_range_of_any_length_is_a_range() {
        let half = watch(0, 0x7fff_ffff_ffff_ffff);
        let top = watch(u64::MAX, 1);
        let mut points = DebugPoints::default();
        points.replace_watchpoints([half, top, watch(0x5000, 0x3000), watch(7, 0)].into());
        for (address, watched) in [(0, true), (i64::MAX as u64, true), (1 << 63, false), (u64::MAX, true)] {
            assert_eq!(points.watches_page(address, 0, WatchKind::Read), watched, "{address:#x}");
            let access = read(address, 0, &[0]);
            // The first range ends one byte before this address, but contains other bytes of its page.
            assert_eq!(points.note_access(&access), watched && address != i64::MAX as u64, "{address:#x}");
        }
        assert_eq!(points.hits.len(), 2);
    }

    #[test]
    fn whatever_ranges_an_access_touches_are_hit_in_their_order() {
        let point = |address, length, space| Watchpoint { space, ..watch(address, length) };
        let linear = |address, length| point(address, length, AddressKind::Linear);
        let physical = |address, length| point(address, length, AddressKind::Physical);
        // The first watchpoint covers many watchpoints that begin later. Some watchpoints overlap, and two share an
        // address.
        let mut all = vec![linear(0x1000, 0x3000), linear(0x1ffc, 8), linear(0x2000, 1), linear(0x2000, 4)];
        all.extend((0..1000).map(|number| linear(0x2100 + 0x10 * number, 8)));
        all.extend([physical(0x7004, 4), physical(0x8000, 0x1000)]);
        let mut points = DebugPoints::default();
        points.replace_watchpoints(all.iter().copied().collect());
        for (address, gpa) in [(0xff8, 0), (0x1000, 0x7000), (0x2000, 0x8ff8), (0x2108, 0x7ffc), (0x6000, 0)]
        {
            let access = read(address, gpa, &[0; 8]);
            let expected: Vec<_> =
                all.iter().filter_map(|&point| access.hit(point).map(Hit::Watch)).collect();
            points.hits.clear();
            assert_eq!(points.note_access(&access), !expected.is_empty(), "{address:#x}");
            assert_eq!(points.hits, expected, "{address:#x}");
        }
        for (address, gpa, watched) in
            [(0xfff, 0, false), (0x3fff, 0, true), (0x5f7f, 0, true), (0x7000, 0, false), (0, 0x7000, true)]
        {
            assert_eq!(points.watches_page(address, gpa, WatchKind::Read), watched, "{address:#x} {gpa:#x}");
        }
    }

    #[test]
    fn a_page_watched_for_one_kind_of_access_is_not_watched_for_the_other() {
        let mut points = DebugPoints::default();
        let of_kind = |address, kind| Watchpoint { kind, ..watch(address, 1) };
        points.replace_watchpoints(
            [
                of_kind(0x1000, WatchKind::Read),
                of_kind(0x2000, WatchKind::Write),
                of_kind(0x3000, WatchKind::Access),
            ]
            .into(),
        );
        let watched =
            |page| [WatchKind::Read, WatchKind::Write].map(|kind| points.watches_page(page, 0, kind));
        assert_eq!([0x1000, 0x2000, 0x3000].map(watched), [[true, false], [false, true], [true, true]]);
    }

    #[test]
    fn only_the_watched_bytes_of_a_write_change_something() {
        let mut points = DebugPoints::default();
        points.replace_watchpoints([watch(0x1000, 2), watch(0x1002, 2)].into());
        let access = PageAccess {
            address: 0x1000,
            gpa: 0,
            kind: WatchKind::Write,
            bytes: &[1, 2, 3, 5],
            before: Some(&[1, 2, 3, 4]),
        };
        assert!(points.note_access(&access));
        let found: Vec<_> = points
            .hits
            .iter()
            .map(|hit| match hit {
                Hit::Watch(hit) => (hit.address, hit.changed),
                Hit::Trap(trap) => panic!("{trap:?}"),
            })
            .collect();
        assert_eq!(found, [(0x1000, false), (0x1002, true)]);
    }
}
