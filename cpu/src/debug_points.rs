//! What a debugger, or the guest in its debug registers, waits for: breakpoints, watchpoints, traps; and what was hit.

use std::collections::BTreeSet;

/// What a watchpoint looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both.
    Access,
}

/// How an address is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// Linear, in whatever address space is current.
    Linear,
    /// Guest-physical, however it is mapped.
    Physical,
}

/// A watched range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watchpoint {
    /// How `address` is meant.
    pub space: AddressKind,
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Which accesses count.
    pub kind: WatchKind,
}

/// A watchpoint that an instruction hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchHit {
    /// The watchpoint.
    pub watchpoint: Watchpoint,
    /// Address of the access, in the watchpoint's terms.
    pub address: u64,
    /// What the access was: a read or a write.
    pub kind: WatchKind,
}

/// Events of the CPU that stop a run after the step in which they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// System calls with these numbers (RAX at SYSCALL, SYSENTER or INT 80h).
    pub system_calls: SystemCalls,
    /// Deliveries through these entries of the interrupt table: exceptions, interrupts, NMI and INT n alike.
    pub vectors: BTreeSet<u8>,
}

/// A set of system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemCalls {
    /// Every one.
    All,
    /// Those with these numbers.
    Numbered(BTreeSet<u64>),
}

impl Default for SystemCalls {
    fn default() -> SystemCalls {
        SystemCalls::Numbered(BTreeSet::new())
    }
}

/// An event that [`Traps`] asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// A system call with this number was entered.
    SystemCall(u64),
    /// Control passed through this entry of the interrupt table.
    Vector(u8),
}

/// What the step that just completed did that the debugger waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    Watch(WatchHit),
    Trap(Trap),
}

/// All points in force.
#[derive(Default)]
pub struct DebugPoints {
    traps: Traps,
    breakpoints: BTreeSet<(AddressKind, u64)>,
    /// Offsets in the page of all breakpoints: linear and physical addresses agree in them.
    breakpoint_offsets: BTreeSet<u16>,
    watchpoints: BTreeSet<Watchpoint>,
    linear_pages: BTreeSet<u64>,
    physical_pages: BTreeSet<u64>,
    /// Pages that the guest's own debug registers watch.
    guest_pages: BTreeSet<u64>,
    /// The first hit of the running instruction.
    pub(crate) hit: Option<Hit>,
}

impl DebugPoints {
    /// Whether any watchpoint, of the debugger or the guest, exists.
    #[inline]
    pub(crate) fn nothing_watched(&self) -> bool {
        self.watchpoints.is_empty() && self.guest_pages.is_empty()
    }

    /// Whether the page of an access holds a watched byte, so that it must stay off the fast path.
    pub(crate) fn watches_page(&self, address: u64, gpa: u64) -> bool {
        !self.nothing_watched()
            && (self.linear_pages.contains(&(address >> 12))
                || self.physical_pages.contains(&(gpa >> 12))
                || self.guest_pages.contains(&(address >> 12)))
    }

    /// Whether a breakpoint exists at this offset of any page: code must not run across it unchecked.
    #[inline]
    pub(crate) fn breaks_at_offset(&self, address: u64) -> bool {
        !self.breakpoints.is_empty() && self.breakpoint_offsets.contains(&((address & 0xfff) as u16))
    }

    /// Whether a breakpoint stands at this instruction.
    pub(crate) fn breaks_at(&self, address: u64, gpa: u64) -> bool {
        self.breakpoints.contains(&(AddressKind::Linear, address))
            || self.breakpoints.contains(&(AddressKind::Physical, gpa))
    }

    /// Compares an access with the watchpoints; true when one is hit.
    pub(crate) fn note_access(&mut self, address: u64, gpa: u64, length: u64, kind: WatchKind) -> bool {
        let hit = self.watchpoints.iter().find_map(|&watchpoint| {
            let at = if watchpoint.space == AddressKind::Linear { address } else { gpa };
            let overlaps = at < watchpoint.address.wrapping_add(watchpoint.length)
                && watchpoint.address < at.wrapping_add(length);
            let wanted = watchpoint.kind == WatchKind::Access || watchpoint.kind == kind;
            (overlaps && wanted).then_some(WatchHit { watchpoint, address: at, kind })
        });
        if self.hit.is_none() {
            self.hit = hit.map(Hit::Watch);
        }
        hit.is_some()
    }

    /// Replaces the breakpoints. Says whether they differ from those before.
    pub(crate) fn replace_breakpoints(&mut self, points: BTreeSet<(AddressKind, u64)>) -> bool {
        let changed = self.breakpoints != points;
        if changed {
            self.breakpoints = points;
            self.rebuild();
        }
        changed
    }

    /// Replaces the watchpoints. Says whether they differ from those before.
    pub(crate) fn replace_watchpoints(&mut self, points: BTreeSet<Watchpoint>) -> bool {
        let changed = self.watchpoints != points;
        if changed {
            self.watchpoints = points;
            self.rebuild();
        }
        changed
    }

    /// Replaces the pages that the guest's own debug registers watch. Says whether they differ from those before.
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
        match &self.traps.system_calls {
            SystemCalls::All => true,
            SystemCalls::Numbered(numbers) => numbers.contains(&number),
        }
    }

    /// Whether a trap waits for deliveries through this entry of the interrupt table.
    pub(crate) fn traps_vector(&self, vector: u8) -> bool {
        self.traps.vectors.contains(&vector)
    }

    fn rebuild(&mut self) {
        self.breakpoint_offsets = self.breakpoints.iter().map(|b| (b.1 & 0xfff) as u16).collect();
        let pages = |space: AddressKind| {
            self.watchpoints
                .iter()
                .filter(|w| w.space == space && w.length != 0)
                .flat_map(|w| w.address >> 12..=w.address.saturating_add(w.length - 1) >> 12)
                .collect::<BTreeSet<_>>()
        };
        self.linear_pages = pages(AddressKind::Linear);
        self.physical_pages = pages(AddressKind::Physical);
    }
}
