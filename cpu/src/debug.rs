//! Breakpoints and watchpoints of the debugger, as features of the engine: any number, never visible in guest
//! memory, free where none is set on the page. The guest's own debug registers share the machinery.

use std::collections::BTreeSet;

use crate::core::{Core, attention};

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

/// What the step that just completed did that somebody waits for.
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

impl Core {
    /// Replaces the debugger's breakpoints. Says whether they differ from those before: then the caller drops
    /// decoded code.
    pub(crate) fn set_breakpoints(&mut self, points: impl IntoIterator<Item = (AddressKind, u64)>) -> bool {
        let points = points.into_iter().collect();
        if self.debug.breakpoints == points {
            return false;
        }
        self.debug.breakpoints = points;
        self.debug.rebuild();
        true
    }

    /// Replaces the debugger's watchpoints.
    pub(crate) fn set_watchpoints(&mut self, points: impl IntoIterator<Item = Watchpoint>) {
        let points = points.into_iter().filter(|w| w.length != 0).collect();
        if self.debug.watchpoints != points {
            self.debug.watchpoints = points;
            self.debug.rebuild();
            self.mmu.flush_all();
        }
    }

    /// Replaces the debugger's traps.
    pub(crate) fn set_traps(&mut self, traps: Traps) {
        self.debug.traps = traps;
    }

    /// A system call was entered.
    pub(crate) fn entered_system_call(&mut self) {
        self.state.system_calls += 1;
        let number = self.regs[0];
        let wanted = match &self.debug.traps.system_calls {
            SystemCalls::All => true,
            SystemCalls::Numbered(numbers) => numbers.contains(&number),
        };
        if wanted {
            self.note_trap(Trap::SystemCall(number));
        }
    }

    /// Control passed through an entry of the interrupt table.
    pub(crate) fn entered_vector(&mut self, vector: u8) {
        if self.debug.traps.vectors.contains(&vector) {
            self.note_trap(Trap::Vector(vector));
        }
    }

    fn note_trap(&mut self, trap: Trap) {
        self.debug.hit.get_or_insert(Hit::Trap(trap));
        self.attention |= attention::HIT;
    }

    /// To be called after DR0-DR3 or DR7 changed: the pages that the guest watches leave the fast path.
    pub fn debug_registers_changed(&mut self) {
        let pages = (0..4)
            .filter(|&n| self.guest_watches(n))
            .flat_map(|n| {
                let first = self.state.dr[n] & !(self.guest_watch_length(n) - 1);
                [first >> 12, (first + self.guest_watch_length(n) - 1) >> 12]
            })
            .collect::<BTreeSet<_>>();
        if pages != self.debug.guest_pages {
            self.debug.guest_pages = pages;
            self.mmu.flush_all();
        }
        self.update_debug_attention();
    }

    fn guest_watches(&self, number: usize) -> bool {
        self.state.dr7 >> (2 * number) & 3 != 0 && matches!(self.state.dr7 >> (16 + 4 * number) & 3, 1 | 3)
    }

    fn guest_watch_length(&self, number: usize) -> u64 {
        [1, 2, 8, 4][(self.state.dr7 >> (18 + 4 * number) & 3) as usize]
    }

    /// DR6 bits of the guest's data breakpoints that an access hits (SDM vol. 3, 18.2.4).
    pub(crate) fn guest_data_breakpoints(&self, address: u64, length: u64, kind: WatchKind) -> u64 {
        (0..4)
            .filter(|&n| self.guest_watches(n))
            .filter(|&n| kind == WatchKind::Write || self.state.dr7 >> (16 + 4 * n) & 3 == 3)
            .filter(|&n| {
                let size = self.guest_watch_length(n);
                let first = self.state.dr[n] & !(size - 1);
                address < first.wrapping_add(size) && first < address.wrapping_add(length)
            })
            .fold(0, |bits, n| bits | 1 << n)
    }

    /// DR6 bits of the guest's instruction breakpoints at a linear address.
    pub(crate) fn guest_instruction_breakpoints(&self, address: u64) -> u64 {
        (0..4)
            .filter(|&n| self.state.dr7 >> (2 * n) & 3 != 0 && self.state.dr7 >> (16 + 4 * n) & 3 == 0)
            .filter(|&n| self.state.dr[n] == address)
            .fold(0, |bits, n| bits | 1 << n)
    }
}
