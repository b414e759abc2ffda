//! TLB slots of one address space, by privilege and kind of access, with the page-table entry from which each slot's
//! translation came.

use guest_ram::PAGE_SIZE;
use translator::{SECOND_SLOT, SLOTS, TlbSlot, TlbSlots};

use super::paging::Access;
use super::root::RootEntries;

/// The number of privileges, each with its own slots. [`Mmu::set_index`](super::tlb::Mmu::set_index) lists the
/// privileges.
pub const PRIVILEGES: usize = 4;
/// The number of kinds of access, each with its own slots.
pub const KINDS: usize = 3;
/// The value in `entries` of a slot that derives from no page-table entry.
pub const NO_ENTRY: u64 = u64::MAX;

/// The conditions, besides the tables themselves, that translations depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextKey {
    pub cr3: u64,
    pub cr0: u64,
    pub cr4: u64,
    pub efer: u64,
    pub pdptes: [u64; 4],
}

/// Translations of one address space.
pub struct Context {
    pub key: ContextKey,
    /// The bit for this context in [`TableInfo::contexts`].
    pub bit: u64,
    pub slots: Box<[TlbSlots; PRIVILEGES]>,
    /// RAM offset of the last-level entry that each slot came from, by privilege and kind of access.
    pub entries: Box<[[[u64; SLOTS]; KINDS]; PRIVILEGES]>,
    /// Privileges of which a slot may hold a translation.
    pub used: [bool; PRIVILEGES],
    pub live: bool,
    /// Whether the slots for writes must be emptied before this context becomes the current one again.
    pub scrub_writes: bool,
    /// Before this context becomes the current one again, the slots of pages below these root entries must be
    /// emptied.
    pub scrub_roots: RootEntries,
    /// The address space that was current before this one became current. `None` once this context has taken over
    /// the slots that both have in common.
    pub heir_of: Option<ContextKey>,
    pub last_used: u64,
}

impl Context {
    /// An empty context. All contexts have different numbers, below 64.
    pub fn new(live: bool, number: usize) -> Context {
        Context {
            key: ContextKey { cr3: 0, cr0: 0, cr4: 0, efer: 0, pdptes: [0; 4] },
            bit: 1 << number,
            slots: Box::new([const { TlbSlots::EMPTY }; PRIVILEGES]),
            entries: Box::new([[[NO_ENTRY; SLOTS]; KINDS]; PRIVILEGES]),
            used: [false; PRIVILEGES],
            live,
            scrub_writes: false,
            scrub_roots: RootEntries::default(),
            heir_of: None,
            last_used: 0,
        }
    }

    /// The slots of a privilege for a kind of access, with the page-table entries from which the translations came.
    pub fn kind<'a>(&'a mut self, tables: &'a mut [TableInfo], index: usize, access: Access) -> Kind<'a> {
        let slots = &mut self.slots[index];
        let entries = &mut self.entries[index][access as usize];
        let slots = match access {
            Access::Read => &mut slots.read,
            Access::Write => &mut slots.write,
            Access::Execute => &mut slots.exec,
        };
        Kind { slots, entries, tables, context: self.bit }
    }

    /// Slots of a privilege for a kind of access.
    pub fn slots_for(&self, index: usize, access: Access) -> &[TlbSlot; SLOTS] {
        let slots = &self.slots[index];
        match access {
            Access::Read => &slots.read,
            Access::Write => &slots.write,
            Access::Execute => &slots.exec,
        }
    }

    /// Empties all slots. The caller must already have uncounted the slots in [`TableInfo::derived`].
    pub fn clear(&mut self) {
        for (index, used) in self.used.iter_mut().enumerate().filter(|(_, used)| **used) {
            self.slots[index] = TlbSlots::EMPTY;
            self.entries[index] = [[NO_ENTRY; SLOTS]; KINDS];
            *used = false;
        }
        self.scrub_writes = false;
        self.scrub_roots = RootEntries::default();
    }

    /// Empties the slots of pages below the given root entries.
    pub fn empty_below(&mut self, tables: &mut [TableInfo], roots: RootEntries) {
        for (index, access) in self.used_kinds() {
            let mut kind = self.kind(tables, index, access);
            for number in 0..SLOTS {
                if kind.slots[number].page().is_some_and(|page| roots.lead_to(page)) {
                    kind.empty(number);
                }
            }
        }
    }

    /// The privileges and kinds of access of which a slot may hold a translation.
    pub fn used_kinds(&self) -> impl Iterator<Item = (usize, Access)> + use<> {
        let used = self.used;
        (0..PRIVILEGES)
            .filter(move |&index| used[index])
            .flat_map(|index| ACCESSES.map(|access| (index, access)))
    }

    pub fn forbid_writes(&mut self) {
        for (slots, _) in self.slots.iter_mut().zip(self.used).filter(|(_, used)| *used) {
            slots.write.fill(TlbSlot::EMPTY);
        }
    }
}

/// The slots of one privilege and kind of access. `entries` holds the RAM offset of the last-level entry of each slot,
/// and `tables` describes the tables that hold these entries.
pub struct Kind<'a> {
    pub slots: &'a mut [TlbSlot; SLOTS],
    pub entries: &'a mut [u64; SLOTS],
    pub tables: &'a mut [TableInfo],
    /// The bit of the context that has the slots.
    context: u64,
}

impl Kind<'_> {
    /// Empties a slot.
    pub fn empty(&mut self, number: usize) {
        self.uncount(self.entries[number]);
        (self.slots[number], self.entries[number]) = (TlbSlot::EMPTY, NO_ENTRY);
    }

    /// Enters a page into its first slot; the caller has made sure that its second slot does not hold the
    /// page. The displaced page moves to its own second slot, unless it was already there. A displaced page
    /// moves only once: otherwise an unused page could stay while two used pages displace each other
    /// repeatedly.
    pub fn enter(&mut self, first: usize, slot: TlbSlot, entry: u64) {
        let second = first ^ SECOND_SLOT;
        let displaced = std::mem::replace(&mut self.slots[first], slot);
        let mut its_entry = std::mem::replace(&mut self.entries[first], entry);
        let first_here = |page| Some(page) != slot.page() && slot_number(page) == first;
        if displaced.page().is_some_and(first_here) {
            self.slots[second] = displaced;
            std::mem::swap(&mut self.entries[second], &mut its_entry);
        }
        self.uncount(its_entry);
        self.count(entry);
    }

    /// Takes over the slots of pages below the given root entries. A slot of this context that holds a page stays as it
    /// is.
    pub fn inherit(&mut self, from: &[TlbSlot; SLOTS], entries: &[u64; SLOTS], roots: RootEntries) {
        for (number, slot) in from.iter().enumerate() {
            let Some(page) = slot.page().filter(|&page| roots.lead_to(page)) else { continue };
            if self.slots[number].page().is_none() && !self.slots[number ^ SECOND_SLOT].holds(page) {
                self.uncount(self.entries[number]);
                (self.slots[number], self.entries[number]) = (*slot, entries[number]);
                self.count(entries[number]);
            }
        }
    }

    /// Adds a slot that derives from an entry to the count of the entry's table.
    pub fn count(&mut self, entry: u64) {
        if let Some(table) = self.tables.get_mut((entry / PAGE_SIZE) as usize) {
            table.derived += 1;
            table.contexts |= self.context;
        }
    }

    /// Subtracts a slot that no longer derives from an entry from the count of the entry's table.
    pub fn uncount(&mut self, entry: u64) {
        if let Some(table) = self.tables.get_mut((entry / PAGE_SIZE) as usize) {
            table.uncount();
        }
    }

    /// Empties the slots whose page-table entry, given by its RAM offset, satisfies `is_one`.
    pub fn empty_those(&mut self, is_one: impl Fn(u64) -> bool) {
        // Check a group of slots at once, because usually no slot of a group matches.
        const GROUP: usize = 16;
        for first in (0..SLOTS).step_by(GROUP) {
            let group = first..first + GROUP;
            if self.entries[group.clone()].iter().fold(false, |any, &entry| any | is_one(entry)) {
                for number in group {
                    if is_one(self.entries[number]) {
                        self.empty(number);
                    }
                }
            }
        }
    }

    /// If a page is in its second slot, swaps the contents of the page's two slots.
    pub fn recall(&mut self, first: usize, page: u64) {
        let second = first ^ SECOND_SLOT;
        if self.slots[second].holds(page) {
            self.slots.swap(first, second);
            self.entries.swap(first, second);
        }
    }
}

/// All kinds of access.
pub const ACCESSES: [Access; KINDS] = [Access::Read, Access::Write, Access::Execute];

/// Facts about a RAM page from which walks have read page-table entries.
#[derive(Clone, Copy, Default)]
pub struct TableInfo {
    /// Whether a walk read an entry of this page that led to another table or mapped a large page.
    pub upper_level: bool,
    /// Whether a walk used this page other than as the root table of 4-level paging.
    pub inner: bool,
    /// Whether entries were read as 4 bytes (32-bit paging).
    pub narrow: bool,
    /// Whether entries were read as 8 bytes.
    pub wide: bool,
    pub writes_since_walk: u32,
    /// Number of slots, in live address spaces, that derive from entries of this page.
    pub derived: u32,
    /// The bits of all contexts that may have slots that derive from entries of this page.
    pub contexts: u64,
}

impl TableInfo {
    /// Notes that a slot no longer derives from this page.
    pub fn uncount(&mut self) {
        self.derived -= 1;
        if self.derived == 0 {
            self.contexts = 0;
        }
    }

    /// Notes that no slot derives from this page any more.
    pub fn uncount_all(&mut self) {
        (self.derived, self.contexts) = (0, 0);
    }
}

/// Number of the first slot that may hold the page of an address.
#[inline(always)]
pub fn slot_number(address: u64) -> usize {
    (address >> 12) as usize % SLOTS
}
