//! The software TLB. The TLB is invisible to the guest: a change of a page-table entry immediately drops the
//! translations that came from the entry. So a guest never sees a stale translation, and INVLPG, CR3 writes and similar
//! instructions need not drop any translation.
//!
//! Dropping translations is cheap for the following reasons. Pages that walks read are flagged
//! [`PageFlags::PAGE_TABLE`], which keeps them out of the store fast path. A store to such a page compares
//! the entry before and after. No translation derives from an absent entry. A change of a last-level entry empties
//! the few slots that can hold its translations. A change of a higher-level entry drops all translations that
//! derive from the tables below that entry. The TLB counts the slots that derive from each table. Often, for
//! example when a process ends, the count is zero.
//!
//! A page has two slots that may hold it. The fast path looks only in the page's first slot. A page that is
//! displaced from its first slot moves to its second slot, where the slow path and generated code find the page.
//!
//! The TLB keeps translations for several address spaces at once ([`Context`], keyed by CR3 and the paging bits of the
//! control registers). So translations survive a switch to another address space and back. Operating systems map
//! themselves into all address spaces with the same tables. A new address space therefore takes over translations
//! from the previous one ([`Mmu::inherit`]): the translations below root entries that are equal in both. A store to
//! a root entry affects only address spaces with this root table.

use cpu_model::registers::{cr0, cr4, efer};
use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};
use rustc_hash::FxHashSet;
use translator::{SECOND_SLOT, TlbSlot, TlbSlots};

use super::context::{Context, ContextKey, PRIVILEGES, TableInfo, slot_number};
use super::paging::{ADDRESS, Access, PRESENT, Privilege};
use super::root::{self, RootEntries};
use crate::state::CpuState;

/// Number of address spaces whose translations the TLB keeps, including the current address space. If the guest's
/// processes take turns and have more address spaces than this, each turn begins with an empty TLB. With eight, a guest
/// of eight pipelines takes 10 % more CPU time on one processor, and 50 % more on two.
const CONTEXTS: usize = 16;
/// The number of further address spaces for each processor beyond the first, because more processes take turns.
const CONTEXTS_PER_PROCESSOR: usize = 4;
/// After this number of writes to a page-table page without a walk through the page, the TLB assumes that the page
/// now holds other data.
const COLD_PAGE_TABLE_WRITES: u32 = 64;

/// The level of a page table: its place in the order in which a walk reads tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// The first table in 4-level paging.
    Root,
    /// A table below the root whose entries lead to other tables or map large pages.
    Upper,
    /// A table whose entries map 4 KiB pages.
    Last,
}

/// Translates addresses, and holds the TLB.
pub struct Mmu {
    current: Context,
    others: Vec<Context>,
    /// The index of the current privilege (see [`Mmu::set_index`]).
    index: usize,
    tables: Vec<TableInfo>,
    /// Pages that are flagged as page tables, so that a flush can unflag them.
    flagged: Vec<u64>,
    clock: u64,
    /// The largest number of address spaces whose translations are kept.
    most_contexts: usize,
}

impl Mmu {
    pub(crate) fn new(ram: &GuestRam) -> Mmu {
        let pages = (ram.size_bytes() / PAGE_SIZE) as usize;
        Mmu {
            current: Context::new(true, 0),
            others: Vec::new(),
            index: 0,
            tables: vec![TableInfo::default(); pages],
            flagged: Vec::new(),
            clock: 0,
            most_contexts: CONTEXTS,
        }
    }

    /// Allows more address spaces for each processor beyond the first. There are at most 64 address spaces, because
    /// each context has a bit of a `u64`.
    pub(crate) fn set_processors(&mut self, count: usize) {
        self.most_contexts = (CONTEXTS + CONTEXTS_PER_PROCESSOR * (count - 1)).min(u64::BITS as usize);
    }

    /// Chooses the slots for the current privilege: user, supervisor without access to user pages,
    /// supervisor, or user with alignment checks. With alignment checks there are slots for instruction
    /// fetches only, so data accesses leave the fast path.
    #[inline(always)]
    pub(crate) fn set_index(&mut self, user: bool, smap: bool, aligned: bool) {
        self.index = if user {
            if aligned { 3 } else { 0 }
        } else if smap {
            1
        } else {
            2
        };
    }

    /// The privilege that has this index (see [`Mmu::set_index`]).
    pub(crate) fn privilege(index: usize) -> Privilege {
        let user = index == 0 || Mmu::checks_alignment(index);
        Privilege { user, smap: index == 1 }
    }

    /// Whether accesses with the privilege of an index must be aligned.
    #[inline(always)]
    pub(crate) fn checks_alignment(index: usize) -> bool {
        index == 3
    }

    /// The index of the current privilege (see [`Mmu::set_index`]).
    #[inline(always)]
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// All slots of the current privilege.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &TlbSlots {
        &self.current.slots[self.index % PRIVILEGES]
    }

    /// All slots of supervisor code: without access to user pages (if SMAP is on), and with access.
    pub(crate) fn slots_by_ac(&self, smap: bool) -> [&TlbSlots; 2] {
        let slots = &self.current.slots;
        [if smap { &slots[1] } else { &slots[2] }, &slots[2]]
    }

    /// The first slot that may hold the page of an address for data reads.
    #[inline(always)]
    pub(crate) fn read_slot(&self, address: u64) -> &TlbSlot {
        &self.slots().read[slot_number(address)]
    }

    /// The first slot that may hold the page of an address for data writes.
    #[inline(always)]
    pub(crate) fn write_slot(&self, address: u64) -> &TlbSlot {
        &self.slots().write[slot_number(address)]
    }

    /// The slot that holds the page of an address for instruction fetches, if there is one.
    #[inline(always)]
    pub(crate) fn executable(&mut self, address: u64) -> Option<TlbSlot> {
        let (page, number) = (address & !(PAGE_SIZE - 1), slot_number(address));
        let slot = self.slots().exec[number];
        if slot.holds(page) { Some(slot) } else { self.held(self.index, address, Access::Execute) }
    }

    /// The slot that holds the page of an address for a kind of access, if there is one. Moves the page to its first
    /// slot.
    #[inline]
    pub(crate) fn held(&mut self, index: usize, address: u64, access: Access) -> Option<TlbSlot> {
        let (page, number) = (address & !(PAGE_SIZE - 1), slot_number(address));
        let mut kind = self.current.kind(&mut self.tables, index, access);
        if !kind.slots[number].holds(page) {
            kind.recall(number, page);
        }
        let slot = kind.slots[number];
        slot.holds(page).then_some(slot)
    }

    /// Makes the context of the given control registers the current one.
    pub(crate) fn select_context(&mut self, state: &CpuState) {
        let key = ContextKey {
            // The low bits of CR3 (cache control, PCID) do not change translations. With PAE paging, the PDPTEs
            // replace the root table.
            cr3: if state.cr0 & cr0::PG == 0 { 0 } else { state.cr3 & !0xfff },
            cr0: state.cr0 & (cr0::PG | cr0::WP),
            cr4: state.cr4 & (cr4::PAE | cr4::PSE | cr4::SMEP | cr4::SMAP),
            efer: state.msrs.efer & (efer::LMA | efer::NXE),
            pdptes: state.pdptes,
        };
        self.clock += 1;
        if self.current.live && self.current.key == key {
            return;
        }
        let found = self.others.iter().position(|c| c.live && c.key == key);
        let victim = found.or_else(|| self.others.iter().position(|c| !c.live)).unwrap_or_else(|| {
            if self.others.len() + 1 < self.most_contexts {
                self.others.push(Context::new(false, self.others.len() + 1));
                return self.others.len() - 1;
            }
            (0..self.others.len()).min_by_key(|&i| self.others[i].last_used).unwrap_or(0)
        });
        self.current.last_used = self.clock;
        std::mem::swap(&mut self.current, &mut self.others[victim]);
        let heir_of = self.others[victim].live.then_some(self.others[victim].key);
        if found.is_none() {
            if self.current.live {
                self.uncount_current();
            }
            self.current.clear();
            self.current.key = key;
            self.current.live = true;
            self.current.heir_of = heir_of;
            return;
        }
        if std::mem::take(&mut self.current.scrub_writes) {
            self.current.forbid_writes();
        }
        let roots = std::mem::take(&mut self.current.scrub_roots);
        if !roots.is_empty() {
            self.current.empty_below(&mut self.tables, roots);
            self.current.heir_of = heir_of;
        }
    }

    /// Takes over translations from the previous address space, below root entries that are equal in both. Must be
    /// called after a walk from the current root in 4-level paging. A walk would find the same translations, because
    /// equal root entries lead to the same tables. The accessed and dirty bits that the slots need are already set in
    /// these tables.
    pub(super) fn inherit(&mut self, ram: &GuestRam) {
        let Some(heir_of) = self.current.heir_of.take() else { return };
        let mut key = self.current.key;
        let [Some(root), Some(other_root)] =
            [key.cr3, heir_of.cr3].map(|cr3| ram.layout().offset_of(cr3 & ADDRESS))
        else {
            return;
        };
        key.cr3 = heir_of.cr3;
        let Some(other) =
            self.others.iter().find(|context| context.live && context.key == heir_of && key == heir_of)
        else {
            return;
        };
        let mut same = RootEntries::default();
        for entry in 0..root::ENTRIES {
            let [value, other_value] = [root, other_root].map(|root| ram.load_u64(root + entry as u64 * 8));
            if value == other_value && value & PRESENT != 0 && !other.scrub_roots.has(entry) {
                same.insert(entry);
            }
        }
        for (index, access) in other.used_kinds() {
            if access == Access::Write && other.scrub_writes {
                continue;
            }
            let (from, entries) = (other.slots_for(index, access), &other.entries[index][access as usize]);
            self.current.used[index] = true;
            self.current.kind(&mut self.tables, index, access).inherit(from, entries, same);
        }
    }

    /// Subtracts all slots of the current context from the counts of the tables.
    fn uncount_current(&mut self) {
        for (index, access) in self.current.used_kinds() {
            for &entry in &self.current.entries[index][access as usize] {
                if let Some(table) = self.tables.get_mut((entry / PAGE_SIZE) as usize) {
                    table.uncount();
                }
            }
        }
    }

    /// Drops every translation of every address space. The guest cannot see a difference.
    pub fn flush_all(&mut self) {
        for &page in &self.flagged {
            self.tables[page as usize].uncount_all();
        }
        self.current.clear();
        self.others.iter_mut().for_each(|context| context.live = false);
    }

    /// Calls [`Mmu::flush_all`] and clears the page-table flags, because no translation depends on these pages any
    /// more.
    pub(crate) fn flush_and_unflag(&mut self, flags: &PageFlags) {
        self.flush_all();
        for page in self.flagged.drain(..) {
            self.tables[page as usize] = TableInfo::default();
            flags.clear(page, PageFlags::PAGE_TABLE);
        }
    }

    /// Removes write permission from all translations. The next store to each page then takes the slow path and
    /// marks the page dirty again.
    pub(crate) fn drop_writes(&mut self) {
        self.current.forbid_writes();
        self.others.iter_mut().for_each(|context| context.scrub_writes = true);
    }

    /// Removes write permission for one RAM page from all translations that map the page. Later stores to the page
    /// then take the slow path.
    pub(crate) fn protect_page(&mut self, ram: &GuestRam, page: u64) {
        let offset = page * PAGE_SIZE;
        for slots in self.current.slots.iter_mut() {
            for slot in &mut slots.write {
                if slot.page().is_some_and(|page| slot.ram_offset(ram, page) == offset) {
                    *slot = TlbSlot::EMPTY;
                }
            }
        }
        self.others.iter_mut().for_each(|context| context.scrub_writes = true);
    }

    /// Enters a translation for the page of `address` and this kind of access, if the fast path may be used. A data
    /// access also enters the page for the other kind of data access (read or write), if the slot for that kind is
    /// empty. If a read displaces a page from its slot for reads, the new page also displaces that page from the
    /// slot for writes.
    pub(crate) fn fill(&mut self, ram: &GuestRam, index: usize, address: u64, access: Access, fill: &Fill) {
        let page = address & !(PAGE_SIZE - 1);
        let number = slot_number(address);
        self.current.used[index] = true;
        let allowed = match access {
            Access::Read => fill.readable,
            Access::Write => fill.writable,
            Access::Execute => fill.executable,
        };
        let slot = TlbSlot::map(ram, page, fill.ram_page_offset);
        let mut kind = self.current.kind(&mut self.tables, index, access);
        kind.recall(number, page);
        let old = kind.slots[number].page();
        if allowed {
            kind.enter(number, slot, fill.entry_offset);
        } else if old == Some(page) {
            kind.empty(number);
        }
        let other = match access {
            Access::Read if fill.writable => Access::Write,
            Access::Write if fill.readable => Access::Read,
            _ => return,
        };
        let mut kind = self.current.kind(&mut self.tables, index, other);
        kind.recall(number, page);
        let held = kind.slots[number].page();
        // A store must not displace another page from the slot for reads: in a copy, source and target can have the
        // same slot number.
        if held.is_none() || access == Access::Read && held == old {
            kind.enter(number, slot, fill.entry_offset);
        }
    }

    /// Notes that a walk read the entry at RAM `offset`. Returns the entry's page, if the page was not flagged as a
    /// page table before.
    pub(super) fn note_table(
        &mut self,
        ram: &GuestRam,
        offset: u64,
        level: Level,
        narrow: bool,
    ) -> Option<u64> {
        let page = offset / PAGE_SIZE;
        let info = &mut self.tables[page as usize];
        info.writes_since_walk = 0;
        info.narrow |= narrow;
        info.wide |= !narrow;
        info.upper_level |= level != Level::Last;
        info.inner |= level != Level::Root;
        if ram.flags().has(page, PageFlags::PAGE_TABLE) {
            return None;
        }
        ram.flags().set(page, PageFlags::PAGE_TABLE);
        self.flagged.push(page);
        Some(page)
    }

    /// Drops translations that derived from the old contents of a page-table page. Must be called after the CPU
    /// changed the aligned eight bytes at RAM `offset` from `old` to `new`. Returns whether anything was dropped.
    pub(crate) fn table_written(&mut self, ram: &GuestRam, offset: u64, old: u64, new: u64) -> bool {
        let page = offset / PAGE_SIZE;
        let info = &mut self.tables[page as usize];
        info.writes_since_walk += 1;
        let info = *info;
        let cold = info.writes_since_walk > COLD_PAGE_TABLE_WRITES;
        if !info.inner {
            return self.root_written(ram, offset, old, new, cold);
        }
        if cold && info.narrow {
            self.flush_and_unflag(ram.flags());
            return true;
        }
        if info.narrow && info.wide {
            // Walks read entries of both widths in this page. A bit that changes no translation at one width can be
            // an address bit at the other width.
            if old != new {
                self.flush_and_unflag(ram.flags());
            }
            return old != new;
        }
        let halves: &[(u64, u64, u64)] = if info.narrow {
            &[(offset, old & 0xffff_ffff, new & 0xffff_ffff), (offset + 4, old >> 32, new >> 32)]
        } else {
            &[(offset, old, new)]
        };
        let mut dropped = false;
        for &(entry, old, new) in halves {
            if old & 1 != 0 && old != new {
                dropped = true;
                if info.upper_level && info.narrow {
                    self.flush_and_unflag(ram.flags());
                    break;
                }
                if !info.upper_level {
                    self.drop_entry(entry, info.narrow);
                    continue;
                }
                // The entry may have mapped a large page or led to a table.
                self.drop_those(page, |from| from == entry);
                if let Some(below) = table_below(ram, old) {
                    self.drop_below(ram, below);
                }
            }
        }
        if cold {
            self.drop_below(ram, page);
            self.unflag(ram.flags(), page);
        }
        dropped || cold
    }

    /// Does the work of [`Mmu::table_written`] for a page that is only a root table. Address spaces with another
    /// root are not affected.
    fn root_written(&mut self, ram: &GuestRam, offset: u64, old: u64, new: u64, cold: bool) -> bool {
        let page = offset / PAGE_SIZE;
        let changed = old & PRESENT != 0 && old != new;
        let mut roots = RootEntries::default();
        roots.insert((offset % PAGE_SIZE / 8) as usize);
        if cold {
            roots = RootEntries::ALL;
        }
        if changed || cold {
            let has_root = |context: &Context| {
                ram.layout().offset_of(context.key.cr3 & ADDRESS) == Some(page * PAGE_SIZE)
            };
            if has_root(&self.current) {
                self.current.empty_below(&mut self.tables, roots);
            }
            for context in self.others.iter_mut().filter(|context| has_root(context)) {
                context.scrub_roots.extend(roots);
            }
        }
        if cold {
            self.unflag(ram.flags(), page);
        }
        changed || cold
    }

    /// Must be called after a walk set accessed or dirty bits in the entry at RAM `offset`. These bits can change
    /// only translations that come from the same bytes, read as an entry of another width.
    pub(crate) fn bits_set(&mut self, ram: &GuestRam, offset: u64) {
        let info = self.tables[(offset / PAGE_SIZE) as usize];
        if info.narrow && info.wide {
            self.flush_and_unflag(ram.flags());
        }
    }

    /// Drops the translations that came from the last-level entry at RAM `entry_offset`.
    fn drop_entry(&mut self, entry_offset: u64, narrow: bool) {
        // The numbers of a virtual page's two slots have the same low bits as the index of the page's last-level
        // entry.
        let low = (entry_offset / if narrow { 4 } else { 8 }) as usize % SECOND_SLOT;
        let mut left = self.tables[(entry_offset / PAGE_SIZE) as usize].contexts;
        for context in std::iter::once(&mut self.current).chain(self.others.iter_mut()) {
            if left == 0 {
                return;
            }
            if !context.live || left & context.bit == 0 {
                continue;
            }
            left &= !context.bit;
            for (index, access) in context.used_kinds() {
                let mut kind = context.kind(&mut self.tables, index, access);
                for number in [low, low + SECOND_SLOT] {
                    if kind.entries[number] == entry_offset {
                        kind.empty(number);
                    }
                }
            }
        }
    }

    /// Drops the translations that came from the entries of a table that satisfy `is_one`.
    fn drop_those(&mut self, table: u64, is_one: impl Fn(u64) -> bool) {
        for context in std::iter::once(&mut self.current).chain(self.others.iter_mut()) {
            for (index, access) in context.used_kinds() {
                if !context.live || self.tables[table as usize].contexts & context.bit == 0 {
                    break;
                }
                context.kind(&mut self.tables, index, access).empty_those(&is_one);
            }
        }
    }

    /// Drops the translations that derive from a table or from tables below this table. Tables to which entries led
    /// earlier need no visit: their translations were dropped when the entries changed.
    fn drop_below(&mut self, ram: &GuestRam, page: u64) {
        let (mut pages, mut seen) = (vec![page], FxHashSet::from_iter([page]));
        while let Some(page) = pages.pop() {
            self.drop_those(page, |entry| entry / PAGE_SIZE == page);
            if !self.tables[page as usize].upper_level {
                continue;
            }
            for entry in (page * PAGE_SIZE..(page + 1) * PAGE_SIZE).step_by(8) {
                let below = table_below(ram, ram.load_u64(entry)).filter(|&below| seen.insert(below));
                pages.extend(below);
            }
        }
    }

    /// Clears the page-table flag of a table from which no translation derives any more.
    fn unflag(&mut self, flags: &PageFlags, page: u64) {
        self.tables[page as usize] = TableInfo::default();
        flags.clear(page, PageFlags::PAGE_TABLE);
        self.flagged.retain(|&flagged| flagged != page);
    }
}

/// The page of the table to which an 8-byte entry of a higher level leads, if translations can derive from that table.
fn table_below(ram: &GuestRam, entry: u64) -> Option<u64> {
    if entry & PRESENT == 0 {
        return None;
    }
    // If the entry maps a large page, `page` is the first 4 KiB of that page, which normally contain no page table.
    let page = ram.layout().offset_of(entry & ADDRESS)? / PAGE_SIZE;
    ram.flags().has(page, PageFlags::PAGE_TABLE).then_some(page)
}

/// A translation to enter into the TLB.
pub(crate) struct Fill {
    pub ram_page_offset: u64,
    pub entry_offset: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
}

#[cfg(test)]
mod tests {
    use translator::SLOTS;

    use super::super::context::{ACCESSES, KINDS, NO_ENTRY};
    use super::*;

    const RAM_PAGES: u64 = 64;
    /// The RAM page of a last-level table. The constants below are the RAM pages of higher tables.
    const TABLE: u64 = 1;
    const UPPER: u64 = 2;
    const TOP: u64 = 3;
    const OTHER_TOP: u64 = 4;
    /// Number of pages below a root entry.
    const ROOT_PAGES: u64 = 1 << (root::SHIFT - 12);
    const MAPPED: u64 = 9;
    /// A virtual page, mapped by its entry in [`TABLE`].
    const PAGE: u64 = 5;

    struct Bench {
        ram: GuestRam,
        mmu: Mmu,
        state: CpuState,
    }

    /// RAM offset of a virtual page's entry in a table of 8-byte entries.
    fn entry(table: u64, page: u64) -> u64 {
        table * PAGE_SIZE + page % 512 * 8
    }

    impl Bench {
        /// An MMU in long mode with an empty TLB, and its RAM.
        fn new() -> Bench {
            let ram = GuestRam::new(RAM_PAGES * PAGE_SIZE).unwrap();
            let mut state = CpuState::reset();
            state.cr0 |= cr0::PG;
            state.cr3 = TOP * PAGE_SIZE;
            state.cr4 |= cr4::PAE;
            state.msrs.efer |= efer::LMA;
            let mut mmu = Mmu::new(&ram);
            mmu.select_context(&state);
            Bench { ram, mmu, state }
        }

        /// Imitates a walk and an access: notes the entry's table, and enters the page into the TLB for all kinds
        /// of access.
        fn enter_at(&mut self, page: u64, entry_offset: u64, narrow: bool) {
            self.mmu.note_table(&self.ram, entry_offset, Level::Last, narrow);
            for access in ACCESSES {
                let fill = Fill {
                    ram_page_offset: MAPPED * PAGE_SIZE,
                    entry_offset,
                    readable: true,
                    writable: true,
                    executable: true,
                };
                self.mmu.fill(&self.ram, 2, page * PAGE_SIZE, access, &fill);
            }
        }

        fn enter(&mut self, page: u64) {
            self.enter_at(page, entry(TABLE, page), false);
        }

        /// Writes entries that lead from the root table down to [`TABLE`], and notes these tables as a walk does.
        fn note_tables(&mut self) {
            for (table, below, level) in [(TOP, UPPER, Level::Root), (UPPER, TABLE, Level::Upper)] {
                self.ram.store_u64(entry(table, 0), below * PAGE_SIZE | PRESENT);
                self.mmu.note_table(&self.ram, entry(table, 0), level, false);
            }
        }

        /// For each kind of access, whether the TLB holds a page.
        fn held(&mut self, page: u64) -> [bool; KINDS] {
            ACCESSES.map(|access| self.mmu.held(2, page * PAGE_SIZE, access).is_some())
        }

        fn is_flagged(&self, page: u64) -> bool {
            self.ram.flags().has(page, PageFlags::PAGE_TABLE)
        }

        /// For each RAM page, counts the slots in all live address spaces that derive from entries of the page.
        fn derived(&self) -> Vec<u32> {
            let mut counts = vec![0; RAM_PAGES as usize];
            let contexts = std::iter::once(&self.mmu.current).chain(&self.mmu.others);
            for context in contexts.filter(|context| context.live) {
                for &entry in context.entries.as_flattened().as_flattened() {
                    if entry != NO_ENTRY {
                        counts[(entry / PAGE_SIZE) as usize] += 1;
                    }
                }
            }
            counts
        }

        fn check_counts(&self) {
            let counts: Vec<u32> = self.mmu.tables.iter().map(|table| table.derived).collect();
            assert_eq!(counts, self.derived());
        }
    }

    #[test]
    fn a_privilege_has_its_own_slots() {
        let bench = Bench::new();
        let mut mmu = bench.mmu;
        // Each case: the arguments of `set_index` (user, SMAP, alignment checks), the index, and the index's
        // privilege.
        let cases = [
            ((true, false, false), 0, true, false),
            ((true, true, false), 0, true, false),
            ((false, true, false), 1, false, true),
            ((false, false, false), 2, false, false),
            ((true, false, true), 3, true, false),
            ((false, false, true), 2, false, false),
        ];
        for ((user, smap, aligned), index, is_user, is_smap) in cases {
            mmu.set_index(user, smap, aligned);
            assert_eq!(mmu.index(), index);
            assert_eq!(Mmu::privilege(index), Privilege { user: is_user, smap: is_smap });
            assert_eq!(Mmu::checks_alignment(index), index == 3);
            assert!(std::ptr::eq(mmu.slots(), &mmu.current.slots[index]));
        }
        for smap in [true, false] {
            let [set, clear] = mmu.slots_by_ac(smap);
            assert!(std::ptr::eq(set, &mmu.current.slots[if smap { 1 } else { 2 }]));
            assert!(std::ptr::eq(clear, &mmu.current.slots[2]));
        }
    }

    #[test]
    fn a_page_is_entered_for_what_its_fill_allows() {
        // Each case: the kind of access, the kinds that the entry allows, and the kinds for which the TLB holds the
        // page afterwards.
        let all = [true; KINDS];
        let cases = [
            (Access::Read, all, [true, true, false]),
            (Access::Read, [true, false, true], [true, false, false]),
            (Access::Read, [false, true, true], [false, true, false]),
            (Access::Write, all, [true, true, false]),
            (Access::Write, [false, true, true], [false, true, false]),
            (Access::Write, [true, false, true], [true, false, false]),
            (Access::Execute, all, [false, false, true]),
            (Access::Execute, [true, true, false], [false; KINDS]),
        ];
        for (access, [readable, writable, executable], expected) in cases {
            let mut bench = Bench::new();
            let fill = Fill {
                ram_page_offset: MAPPED * PAGE_SIZE,
                entry_offset: entry(TABLE, PAGE),
                readable,
                writable,
                executable,
            };
            bench.mmu.fill(&bench.ram, 2, PAGE * PAGE_SIZE + 0x123, access, &fill);
            assert_eq!(bench.held(PAGE), expected, "{access:?}");
            assert_eq!(bench.held(PAGE + SECOND_SLOT as u64), [false; KINDS]);
            bench.check_counts();
            if let Some(slot) = bench.mmu.held(2, PAGE * PAGE_SIZE, access) {
                assert_eq!(slot.ram_offset(&bench.ram, PAGE * PAGE_SIZE + 0x123), MAPPED * PAGE_SIZE + 0x123);
            }
        }
    }

    #[test]
    fn what_is_not_allowed_any_more_is_held_no_longer() {
        let mut bench = Bench::new();
        bench.enter(PAGE);
        let fill = Fill {
            ram_page_offset: MAPPED * PAGE_SIZE,
            entry_offset: entry(TABLE, PAGE),
            readable: true,
            writable: false,
            executable: false,
        };
        bench.mmu.fill(&bench.ram, 2, PAGE * PAGE_SIZE, Access::Execute, &fill);
        assert_eq!(bench.held(PAGE), [true, true, false]);
        bench.mmu.fill(&bench.ram, 2, PAGE * PAGE_SIZE, Access::Write, &fill);
        assert_eq!(bench.held(PAGE), [true, false, false]);
        bench.check_counts();
    }

    #[test]
    fn a_store_displaces_no_page_that_is_read() {
        let mut bench = Bench::new();
        let fill = |page: u64| Fill {
            ram_page_offset: MAPPED * PAGE_SIZE,
            entry_offset: entry(TABLE, page),
            readable: true,
            writable: true,
            executable: false,
        };
        let (source, target) = (PAGE, PAGE + SLOTS as u64);
        bench.mmu.fill(&bench.ram, 2, source * PAGE_SIZE, Access::Read, &fill(source));
        bench.mmu.fill(&bench.ram, 2, target * PAGE_SIZE, Access::Write, &fill(target));
        assert!(bench.mmu.read_slot(source * PAGE_SIZE).page().is_none(), "index 0 is in force, not 2");
        bench.mmu.set_index(false, false, false);
        assert!(bench.mmu.read_slot(source * PAGE_SIZE).holds(source * PAGE_SIZE));
        assert!(bench.mmu.write_slot(target * PAGE_SIZE).holds(target * PAGE_SIZE));
        assert!(!bench.held(target)[0]);
        bench.check_counts();
    }

    #[test]
    fn an_address_space_stays_warm_while_few_others_are_used() {
        let mut bench = Bench::new();
        let spaces = 10..10 + CONTEXTS as u64;
        let select = |bench: &mut Bench, root: u64| {
            bench.state.cr3 = root * PAGE_SIZE;
            let state = bench.state.clone();
            bench.mmu.select_context(&state);
        };
        bench.mmu.flush_all();
        for root in spaces.clone() {
            select(&mut bench, root);
            assert_eq!(bench.held(PAGE), [false; KINDS], "of {root}");
            bench.enter(PAGE);
            bench.check_counts();
        }
        for root in spaces.clone() {
            select(&mut bench, root);
            assert_eq!(bench.held(PAGE), [true; KINDS], "of {root}");
        }
        // One more context replaces the context that was unused for the longest time; the new
        // context starts empty.
        select(&mut bench, 40);
        bench.enter(PAGE);
        bench.check_counts();
        for root in spaces.clone().skip(1) {
            select(&mut bench, root);
            assert_eq!(bench.held(PAGE), [true; KINDS], "of {root}");
        }
        select(&mut bench, spaces.start);
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn translations_depend_on_paging_bits_and_on_no_others() {
        type Change = fn(&mut CpuState);
        // Changes of the control registers that select another paging mode, or change which accesses entries allow
        // (SDM vol. 3, section 4.1).
        let other_spaces: [(&str, Change); 11] = [
            ("CR3", |s| s.cr3 += PAGE_SIZE),
            ("CR0.PG", |s| s.cr0 ^= cr0::PG),
            ("CR0.WP", |s| s.cr0 ^= cr0::WP),
            ("CR4.PAE", |s| s.cr4 ^= cr4::PAE),
            ("CR4.PSE", |s| s.cr4 ^= cr4::PSE),
            ("CR4.SMEP", |s| s.cr4 ^= cr4::SMEP),
            ("CR4.SMAP", |s| s.cr4 ^= cr4::SMAP),
            ("EFER.LMA", |s| s.msrs.efer ^= efer::LMA),
            ("EFER.NXE", |s| s.msrs.efer ^= efer::NXE),
            ("a PDPTE", |s| s.pdptes[3] ^= PAGE_SIZE),
            ("another PDPTE", |s| s.pdptes[0] ^= PAGE_SIZE),
        ];
        let same_space: [(&str, Change); 4] = [
            ("CR3.PWT and PCD", |s| s.cr3 ^= 0x18),
            ("CR0.TS", |s| s.cr0 ^= 1 << 3),
            ("CR4.OSFXSR", |s| s.cr4 ^= 1 << 9),
            ("EFER.SCE", |s| s.msrs.efer ^= 1),
        ];
        let cases =
            other_spaces.map(|case| (case, false)).into_iter().chain(same_space.map(|case| (case, true)));
        for ((what, change), held) in cases {
            let mut bench = Bench::new();
            bench.enter(PAGE);
            let mut other = bench.state.clone();
            change(&mut other);
            bench.mmu.select_context(&other);
            assert_eq!(bench.held(PAGE), [held; KINDS], "{what}");
            let first = bench.state.clone();
            bench.mmu.select_context(&first);
            assert_eq!(bench.held(PAGE), [true; KINDS], "{what}, and back");
        }
        let mut bench = Bench::new();
        bench.state.cr0 ^= cr0::PG;
        let mut state = bench.state.clone();
        bench.mmu.select_context(&state);
        bench.enter(PAGE);
        state.cr3 += PAGE_SIZE;
        bench.mmu.select_context(&state);
        assert_eq!(bench.held(PAGE), [true; KINDS], "without paging every root is the same");
    }

    #[test]
    fn an_entry_that_changes_drops_what_came_from_it() {
        let neighbour = PAGE + 1;
        // The entry's old and new contents, and whether the write drops translations.
        for (old, new, dropped) in [(1, 3, true), (1, 0, true), (1, 1, false), (0, 1, false), (2, 1, false)] {
            let mut bench = Bench::new();
            // The last of these pages displaces `PAGE`, which moves to its second slot.
            for page in [PAGE, neighbour, PAGE + SLOTS as u64] {
                bench.enter(page);
            }
            let mut state = bench.state.clone();
            state.cr3 += PAGE_SIZE;
            bench.mmu.select_context(&state);
            bench.enter(PAGE);
            assert_eq!(bench.mmu.table_written(&bench.ram, entry(TABLE, PAGE), old, new), dropped);
            assert_eq!(bench.held(PAGE), [!dropped; KINDS], "{old} to {new}");
            let first = bench.state.clone();
            bench.mmu.select_context(&first);
            assert_eq!(bench.held(PAGE), [!dropped; KINDS], "{old} to {new}");
            assert_eq!(bench.held(neighbour), [true; KINDS]);
            bench.check_counts();
            assert!(bench.is_flagged(TABLE));
        }
    }

    #[test]
    fn narrow_entries_are_two_in_eight_bytes() {
        // Each case: the old and the new contents of entries 4 and 5 of a 32-bit page table, and whether each page
        // is still held.
        for (old, new, left, right) in [
            (1 | 1 << 32, 1 | 1 << 32, true, true),
            (1 | 1 << 32, 3 | 1 << 32, false, true),
            (1 | 1 << 32, 1 | 3 << 32, true, false),
            (1 | 1 << 32, 0, false, false),
            (0, 1 | 1 << 32, true, true),
        ] {
            let mut bench = Bench::new();
            let group = TABLE * PAGE_SIZE + 16;
            bench.enter_at(4, group, true);
            bench.enter_at(5, group + 4, true);
            assert_eq!(bench.mmu.table_written(&bench.ram, group, old, new), !(left && right));
            assert_eq!(
                (bench.held(4), bench.held(5)),
                ([left; KINDS], [right; KINDS]),
                "{old:#x} to {new:#x}"
            );
            bench.check_counts();
        }
    }

    #[test]
    fn a_table_that_is_read_in_both_widths_drops_everything() {
        let bench = || {
            let mut bench = Bench::new();
            bench.enter(PAGE);
            bench.enter_at(PAGE + 1, entry(TABLE + 20, PAGE + 1), false);
            bench.mmu.note_table(&bench.ram, entry(TABLE, PAGE), Level::Last, true);
            bench
        };
        for (old, new, dropped) in [(0, 2, true), (2, 2, false)] {
            let mut bench = bench();
            assert_eq!(bench.mmu.table_written(&bench.ram, entry(TABLE, PAGE), old, new), dropped);
            assert_eq!(bench.held(PAGE + 1), [!dropped; KINDS]);
            assert_eq!(bench.is_flagged(TABLE), !dropped);
            bench.check_counts();
        }
        let mut accessed = bench();
        accessed.mmu.bits_set(&accessed.ram, entry(TABLE + 20, PAGE));
        assert_eq!(accessed.held(PAGE), [true; KINDS], "the other table has one width");
        accessed.mmu.bits_set(&accessed.ram, entry(TABLE, PAGE));
        assert_eq!(accessed.held(PAGE), [false; KINDS]);
    }

    #[test]
    fn an_entry_of_a_higher_level_drops_what_is_below() {
        // The entry that changes leads to `PAGE`, but not to the neighbour.
        for (table, neighbour) in [(TOP, PAGE + ROOT_PAGES), (UPPER, PAGE + 1)] {
            let mut bench = Bench::new();
            bench.note_tables();
            bench.enter(PAGE);
            bench.enter_at(neighbour, entry(TABLE + 20, neighbour), false);
            // A change of a neighbouring entry or of an absent entry drops nothing.
            let leads = bench.ram.load_u64(entry(table, 0));
            assert!(!bench.mmu.table_written(&bench.ram, entry(table, 1), 0, 1));
            assert!(!bench.mmu.table_written(&bench.ram, entry(table, 0), leads, leads));
            assert_eq!(bench.held(PAGE), [true; KINDS]);
            assert!(bench.mmu.table_written(&bench.ram, entry(table, 0), leads, 0));
            assert_eq!(bench.held(PAGE), [false; KINDS]);
            assert_eq!(bench.held(neighbour), [true; KINDS]);
            bench.check_counts();
        }
    }

    /// Two address spaces whose roots share the tables below entry 0 and differ in entry 1. The TLB of the first
    /// space holds a page below each entry. The second space is current, and a walk has read its root.
    fn two_spaces() -> (Bench, CpuState, CpuState) {
        let mut bench = Bench::new();
        bench.note_tables();
        bench.ram.store_u64(entry(TOP, 1), 20 * PAGE_SIZE | PRESENT);
        bench.enter(PAGE);
        bench.enter_at(PAGE + ROOT_PAGES, entry(TABLE + 20, PAGE), false);
        bench.ram.store_u64(entry(OTHER_TOP, 0), UPPER * PAGE_SIZE | PRESENT);
        bench.ram.store_u64(entry(OTHER_TOP, 1), 30 * PAGE_SIZE | PRESENT);
        let first = bench.state.clone();
        let mut second = first.clone();
        second.cr3 = OTHER_TOP * PAGE_SIZE;
        bench.mmu.select_context(&second);
        bench.mmu.note_table(&bench.ram, entry(OTHER_TOP, 0), Level::Root, false);
        (bench, first, second)
    }

    #[test]
    fn a_new_address_space_takes_over_what_lies_below_equal_entries_of_the_root() {
        let (mut bench, ..) = two_spaces();
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.mmu.inherit(&bench.ram);
        assert_eq!(bench.held(PAGE), [true; KINDS]);
        assert_eq!(bench.held(PAGE + ROOT_PAGES), [false; KINDS], "the entries differ");
        bench.check_counts();
        // A change in a shared table affects both address spaces.
        assert!(bench.mmu.table_written(&bench.ram, entry(TABLE, PAGE), 1, 0));
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.check_counts();
        // A second call of `inherit` takes over nothing.
        bench.mmu.inherit(&bench.ram);
        assert_eq!(bench.held(PAGE), [false; KINDS]);
    }

    #[test]
    fn nothing_is_taken_over_that_does_not_hold_in_the_new_address_space() {
        type Change = fn(&mut Bench, &CpuState, &CpuState);
        let cases: [(&str, Change, [bool; KINDS]); 5] = [
            ("nothing", |_, _, _| (), [true; KINDS]),
            ("writes are tracked anew", |bench, _, _| bench.mmu.drop_writes(), [true, false, true]),
            (
                "the old root's entry has changed",
                |bench, _, _| {
                    assert!(bench.mmu.table_written(&bench.ram, entry(TOP, 0), 1, 3));
                },
                [false; KINDS],
            ),
            ("all was dropped", |bench, _, _| bench.mmu.flush_all(), [false; KINDS]),
            (
                "both entries are absent",
                |bench, _, _| {
                    for root in [TOP, OTHER_TOP] {
                        bench.ram.store_u64(entry(root, 0), 0);
                    }
                },
                [false; KINDS],
            ),
        ];
        for (what, change, held) in cases {
            let (mut bench, first, second) = two_spaces();
            change(&mut bench, &first, &second);
            bench.mmu.select_context(&second);
            bench.mmu.inherit(&bench.ram);
            assert_eq!(bench.held(PAGE), held, "{what}");
            bench.check_counts();
        }
        // With other paging bits in the control registers, the same tables allow other accesses.
        let (mut bench, first, mut second) = two_spaces();
        bench.mmu.select_context(&first);
        second.cr0 ^= cr0::WP;
        bench.mmu.select_context(&second);
        bench.mmu.inherit(&bench.ram);
        assert_eq!(bench.held(PAGE), [false; KINDS]);
    }

    #[test]
    fn what_is_held_is_not_taken_over_twice() {
        let (mut bench, ..) = two_spaces();
        // In the new address space, another page displaces `PAGE` to its second slot.
        bench.enter(PAGE);
        bench.enter_at(PAGE + SLOTS as u64, entry(TABLE + 30, PAGE), false);
        bench.mmu.inherit(&bench.ram);
        bench.check_counts();
        assert!(bench.mmu.table_written(&bench.ram, entry(TABLE, PAGE), 1, 0));
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        assert_eq!(bench.held(PAGE + SLOTS as u64), [true; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn an_entry_of_a_root_concerns_only_the_address_spaces_that_have_it() {
        let (mut bench, first, second) = two_spaces();
        bench.mmu.inherit(&bench.ram);
        let own = PAGE + ROOT_PAGES;
        bench.enter_at(own, entry(TABLE + 30, PAGE), false);
        // Change the root of the space that is not current.
        let leads = bench.ram.load_u64(entry(TOP, 0));
        assert!(bench.mmu.table_written(&bench.ram, entry(TOP, 0), leads, 0));
        assert_eq!([PAGE, own].map(|page| bench.held(page)), [[true; KINDS]; 2]);
        bench.mmu.select_context(&first);
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        assert_eq!(bench.held(own), [true; KINDS], "it is not below the entry");
        bench.check_counts();
        // After the entry is restored, the address space takes over the dropped translation again.
        bench.ram.store_u64(entry(TOP, 0), leads);
        bench.mmu.inherit(&bench.ram);
        assert_eq!(bench.held(PAGE), [true; KINDS]);
        bench.check_counts();
        // Change the root of the current space.
        assert!(bench.mmu.table_written(&bench.ram, entry(TOP, 0), leads, 0));
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        assert_eq!(bench.held(own), [true; KINDS]);
        bench.mmu.select_context(&second);
        assert_eq!([PAGE, own].map(|page| bench.held(page)), [[true; KINDS]; 2]);
        bench.check_counts();
    }

    #[test]
    fn a_root_that_is_a_table_of_another_level_too_concerns_all() {
        let (mut bench, first, _) = two_spaces();
        bench.mmu.inherit(&bench.ram);
        bench.mmu.note_table(&bench.ram, entry(TOP, 0), Level::Upper, false);
        assert!(bench.mmu.table_written(&bench.ram, entry(TOP, 0), bench.ram.load_u64(entry(TOP, 0)), 0));
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.mmu.select_context(&first);
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn a_root_that_is_written_often_is_one_no_longer() {
        let (mut bench, first, second) = two_spaces();
        bench.mmu.inherit(&bench.ram);
        bench.mmu.note_table(&bench.ram, entry(TOP, 0), Level::Root, false);
        for n in 0..=COLD_PAGE_TABLE_WRITES {
            assert_eq!(
                bench.mmu.table_written(&bench.ram, entry(TOP, 400), 0, 0),
                n == COLD_PAGE_TABLE_WRITES
            );
        }
        assert!(!bench.is_flagged(TOP));
        assert_eq!(bench.held(PAGE), [true; KINDS]);
        bench.mmu.select_context(&first);
        assert_eq!([PAGE, PAGE + ROOT_PAGES].map(|page| bench.held(page)), [[false; KINDS]; 2]);
        bench.mmu.select_context(&second);
        assert_eq!(bench.held(PAGE), [true; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn a_large_page_that_changes_is_dropped() {
        let mut bench = Bench::new();
        bench.note_tables();
        // The translations of both pages come from one upper-level entry, as for two parts of a large page.
        for page in [PAGE, PAGE + 1] {
            bench.enter_at(page, entry(UPPER, 7), false);
        }
        bench.enter_at(PAGE + 2, entry(UPPER, 8), false);
        assert!(bench.mmu.table_written(&bench.ram, entry(UPPER, 7), 0x81, 0));
        assert_eq!([PAGE, PAGE + 1].map(|page| bench.held(page)), [[false; KINDS]; 2]);
        assert_eq!(bench.held(PAGE + 2), [true; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn a_table_that_is_written_often_and_walked_never_is_one_no_longer() {
        for narrow in [false, true] {
            let mut bench = Bench::new();
            bench.enter_at(PAGE, entry(TABLE, PAGE), narrow);
            let far = entry(TABLE, 400);
            for _ in 0..COLD_PAGE_TABLE_WRITES {
                assert!(!bench.mmu.table_written(&bench.ram, far, 0, 0));
            }
            // A page walk that reads an entry proves that the page is still a table.
            bench.mmu.note_table(&bench.ram, entry(TABLE, PAGE), Level::Last, narrow);
            for _ in 0..COLD_PAGE_TABLE_WRITES {
                assert!(!bench.mmu.table_written(&bench.ram, far, 0, 0));
            }
            assert!(bench.is_flagged(TABLE) && bench.held(PAGE) == [true; KINDS]);
            assert!(bench.mmu.table_written(&bench.ram, far, 0, 0));
            assert!(!bench.is_flagged(TABLE));
            assert_eq!(bench.held(PAGE), [false; KINDS]);
            bench.check_counts();
            let again = bench.mmu.note_table(&bench.ram, entry(TABLE, PAGE), Level::Last, narrow);
            assert_eq!(again, Some(TABLE));
        }
    }

    #[test]
    fn a_table_is_told_of_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.mmu.note_table(&bench.ram, entry(TABLE, 0), Level::Last, false), Some(TABLE));
        assert_eq!(bench.mmu.note_table(&bench.ram, entry(TABLE, 9), Level::Last, false), None);
        assert_eq!(bench.mmu.note_table(&bench.ram, entry(UPPER, 0), Level::Upper, false), Some(UPPER));
        bench.enter(PAGE);
        let flags = bench.ram.flags();
        bench.mmu.flush_and_unflag(flags);
        assert!(!flags.has(TABLE, PageFlags::PAGE_TABLE) && !flags.has(UPPER, PageFlags::PAGE_TABLE));
        assert_eq!(bench.held(PAGE), [false; KINDS]);
        bench.check_counts();
    }

    #[test]
    fn write_permissions_are_dropped_in_every_address_space() {
        for one_page in [false, true] {
            let mut bench = Bench::new();
            bench.enter(PAGE);
            let mut other = bench.state.clone();
            other.cr3 += PAGE_SIZE;
            bench.mmu.select_context(&other);
            bench.enter(PAGE);
            if one_page {
                bench.mmu.protect_page(&bench.ram, MAPPED + 1);
                assert_eq!(bench.held(PAGE), [true; KINDS], "another page is protected");
                bench.mmu.protect_page(&bench.ram, MAPPED);
            } else {
                bench.mmu.drop_writes();
            }
            let first = bench.state.clone();
            for state in [other, first] {
                bench.mmu.select_context(&state);
                assert_eq!(bench.held(PAGE), [true, false, true]);
                // If the page is entered again, its write permission stays.
                bench.enter(PAGE);
                bench.mmu.select_context(&state);
                assert_eq!(bench.held(PAGE), [true; KINDS]);
            }
        }
    }

    #[test]
    fn a_page_that_was_displaced_before_displaces_no_other() {
        let ram = GuestRam::new(16 * PAGE_SIZE).unwrap();
        let mut mmu = Mmu::new(&ram);
        let read = |mmu: &mut Mmu, page: usize| {
            let address = page as u64 * PAGE_SIZE;
            let held = mmu.held(0, address, Access::Read).is_some();
            let fill = Fill {
                ram_page_offset: 0,
                entry_offset: 0,
                readable: true,
                writable: false,
                executable: false,
            };
            if !held {
                mmu.fill(&ram, 0, address, Access::Read, &fill);
            }
            held
        };
        // Three pages share two slots, and the first page is not used again. The two rounds exchange the roles of
        // the two slots.
        for (round, number) in [5, 6 + SECOND_SLOT].into_iter().enumerate() {
            let [unused, left, right] = [number, number + SLOTS, number ^ SECOND_SLOT];
            assert!(!read(&mut mmu, unused) && !read(&mut mmu, left) && !read(&mut mmu, right));
            for _ in 0..3 {
                assert!(read(&mut mmu, left) && read(&mut mmu, right));
            }
            assert_eq!(mmu.tables[0].derived as usize, 2 * (round + 1));
        }
    }
}
