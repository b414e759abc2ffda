//! The debugger's breakpoints and watchpoints, which the CPU itself implements. The debugger may set any number of
//! points, and guest memory does not change. Accesses to pages without such points are not slower. The guest's own
//! debug registers use the same checks.

use std::collections::BTreeSet;

use crate::attention;
use crate::core::Core;
use crate::debug_points::{AddressKind, Hit, PageAccess, Trap, Traps, WatchKind, Watchpoint};
use crate::exception;

/// The bit BS of DR6: a single-step trap (RFLAGS.TF) caused the debug exception.
pub(crate) const DR6_BS: u64 = 1 << 14;

impl Core {
    /// Replaces the debugger's breakpoints. Returns the changed page offsets; the caller drops the code at these
    /// offsets in all pages.
    pub(crate) fn set_breakpoints(
        &mut self,
        points: impl IntoIterator<Item = (AddressKind, u64)>,
    ) -> BTreeSet<u16> {
        self.debug.replace_breakpoints(points.into_iter().collect())
    }

    /// Replaces the debugger's watchpoints.
    pub(crate) fn set_watchpoints(&mut self, points: impl IntoIterator<Item = Watchpoint>) {
        let points = points.into_iter().filter(|w| w.length != 0).collect();
        if self.debug.replace_watchpoints(points) {
            self.mmu.flush_all();
        }
    }

    /// Replaces the debugger's traps: the events that stop a run.
    pub(crate) fn set_traps(&mut self, traps: Traps) {
        self.debug.replace_traps(traps);
    }

    /// Counts a system call. Notes a hit if the debugger traps the call, and a happening if the observer wants the
    /// call.
    pub(crate) fn entered_system_call(&mut self) {
        self.system_calls += 1;
        let number = self.frame.regs[0];
        if self.debug.traps_system_call(number) {
            self.note_trap(Trap::SystemCall(number));
        }
        self.observe_system_call(number);
    }

    /// Notes a hit if the debugger traps a delivery through this entry of the interrupt table, and a happening if the
    /// observer wants the delivery.
    pub(crate) fn entered_vector(&mut self, vector: u8, error_code: Option<u32>) {
        if self.debug.traps_vector(vector) {
            self.note_trap(Trap::Vector(vector));
        }
        self.observe_delivery(vector, error_code);
    }

    /// Notes a hit for a completed IRET, SYSRET or SYSEXIT, if the debugger traps returns.
    pub(crate) fn returned(&mut self) {
        if self.debug.traps_returns() {
            self.note_trap(Trap::Return);
        }
    }

    /// Notes a hit for the end of a processor's turn, if the debugger traps ends of turns.
    pub(crate) fn turn_ended(&mut self, processor: usize) {
        if self.debug.traps_turns() {
            self.note_trap(Trap::Turn(processor));
        }
    }

    /// Whether neither the debugger, the guest nor the observer watches any access.
    #[inline]
    pub(crate) fn sees_no_access(&self) -> bool {
        self.debug.nothing_watched() && self.observing.sees_no_access()
    }

    /// Whether the page has bytes whose accesses of this kind are watched. A page with watched bytes stays
    /// off the fast path.
    pub(crate) fn sees_page(&self, address: u64, gpa: u64, kind: WatchKind) -> bool {
        !self.sees_no_access()
            && (self.debug.watches_page(address, gpa, kind) || self.observing.sees_page(address, gpa, kind))
    }

    /// Checks an access that missed the fast path against the debugger's watchpoints and the accesses that the observer
    /// wants.
    pub(crate) fn note_access(&mut self, access: &PageAccess<'_>) {
        if self.debug.note_access(access) {
            self.attention |= attention::HIT;
            self.break_block = true;
        }
        self.observe_access(access);
    }

    fn note_trap(&mut self, trap: Trap) {
        self.debug.hits.push(Hit::Trap(trap));
        self.attention |= attention::HIT;
    }

    /// Takes the pages that the guest watches off the fast path. Must be called after DR0-DR3 or DR7 changed.
    pub fn debug_registers_changed(&mut self) {
        let pages = (0..4)
            .filter(|&n| self.guest_watches(n))
            .flat_map(|n| {
                let first = self.state.dr[n] & !(self.guest_watch_length(n) - 1);
                [first >> 12, (first + self.guest_watch_length(n) - 1) >> 12]
            })
            .collect();
        if self.debug.replace_guest_pages(pages) {
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
                address <= first + (size - 1) && first <= address.saturating_add(length - 1)
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

    /// Moves pending debug conditions into DR6, and makes #DB the current exception.
    pub(crate) fn raise_pending_debug(&mut self) {
        self.take_pending_debug();
        self.fault(exception::DB);
    }

    /// Moves pending debug conditions into DR6. The next debug exception then reports these conditions too.
    pub(crate) fn take_pending_debug(&mut self) {
        if self.state.pending_debug != 0 {
            self.state.dr6 = self.state.dr6 & !0xf | self.state.pending_debug;
            self.state.pending_debug = 0;
            self.update_debug_attention();
        }
    }
}
