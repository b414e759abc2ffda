//! The software TLB. It is invisible to the guest: translations are dropped the moment the page-table entry
//! they came from changes, so a guest never sees a stale one, and INVLPG, CR3 writes and the like need not
//! drop anything.
//!
//! How that is kept cheap: pages that walks read are flagged [`PageFlags::PAGE_TABLE`], which keeps them out
//! of the store fast path. A store to such a page compares the entry before and after. Absent entries derive
//! nothing; a changed last-level entry drops the few slots its translations can live in; a changed entry of a
//! higher level drops everything.
//!
//! Translations are kept for several address spaces at once ([`Context`], keyed by CR3 and the paging bits
//! of the control registers), so that switching back and forth stays warm.

use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};

use super::paging::Privilege;
use crate::registers::{cr0, cr4, efer};
use crate::state::CpuState;

/// Slots per privilege index; a power of two and at least 512.
const SLOTS: usize = 1024;
/// Slots of all four privilege indexes.
const ALL_SLOTS: usize = 4 * SLOTS;
/// Address spaces kept warm.
const CONTEXTS: usize = 8;
/// Writes to a page-table page without a walk through it, after which it is taken for reused memory.
const COLD_PAGE_TABLE_WRITES: u32 = 64;
/// A tag that no page address equals.
const NO_PAGE: u64 = 1;
/// The no-execute bit of 8-byte entries.
const NO_EXECUTE: u64 = 1 << 63;

/// One slot. A tag is the address of the virtual page for which that kind of access goes straight to RAM at
/// `address + addend`.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub read: u64,
    pub write: u64,
    pub exec: u64,
    pub addend: u64,
}

const EMPTY: Slot = Slot { read: NO_PAGE, write: NO_PAGE, exec: NO_PAGE, addend: 0 };

/// What translations depend on besides the tables themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ContextKey {
    cr3: u64,
    cr0: u64,
    cr4: u64,
    efer: u64,
    pdptes: [u64; 4],
}

/// Translations of one address space.
struct Context {
    key: ContextKey,
    slots: Box<[Slot; ALL_SLOTS]>,
    /// RAM offset of the last-level entry each slot came from.
    entries: Box<[u64; ALL_SLOTS]>,
    live: bool,
    /// Write tags must go before this context is used again.
    scrub_writes: bool,
    /// Changes whenever an executable translation may have gone.
    epoch: u64,
    last_used: u64,
}

impl Context {
    fn new() -> Context {
        Context {
            key: ContextKey { cr3: 0, cr0: 0, cr4: 0, efer: 0, pdptes: [0; 4] },
            slots: Box::new([EMPTY; ALL_SLOTS]),
            entries: Box::new([u64::MAX; ALL_SLOTS]),
            live: false,
            scrub_writes: false,
            epoch: 0,
            last_used: 0,
        }
    }
}

/// What is known about a page that page tables were read from.
#[derive(Clone, Copy, Default)]
struct TableInfo {
    /// A walk passed here, or ended here at a large page.
    upper_level: bool,
    /// Entries were read as 4 bytes (32-bit paging).
    narrow: bool,
    /// Entries were read as 8 bytes.
    wide: bool,
    writes_since_walk: u32,
}

/// Address translation with its cache.
pub struct Mmu {
    current: Context,
    others: Vec<Context>,
    /// First slot of the privilege index in force.
    index_base: usize,
    tables: Vec<TableInfo>,
    /// Pages flagged as tables, so that a flush can unflag them.
    flagged: Vec<u64>,
    next_epoch: u64,
    clock: u64,
}

impl Mmu {
    pub(crate) fn new(ram: &GuestRam) -> Mmu {
        let pages = (ram.size_bytes() / PAGE_SIZE) as usize;
        Mmu {
            current: Context::new(),
            others: Vec::new(),
            index_base: 0,
            tables: vec![TableInfo::default(); pages],
            flagged: Vec::new(),
            next_epoch: 1,
            clock: 0,
        }
    }

    /// Chooses the slots for the current privilege: user, supervisor held off user pages, supervisor, user with
    /// alignment checks. The slots of the last one have instruction fetches only, so that all else leaves the fast path.
    #[inline(always)]
    pub(crate) fn set_index(&mut self, user: bool, smap: bool, aligned: bool) {
        self.index_base = SLOTS
            * if user {
                if aligned { 3 } else { 0 }
            } else if smap {
                1
            } else {
                2
            };
    }

    /// The privilege that an index stands for.
    pub(crate) fn privilege(index_base: usize) -> Privilege {
        let user = index_base == 0 || Mmu::checks_alignment(index_base);
        Privilege { user, smap: index_base == SLOTS }
    }

    /// Whether accesses under an index must be aligned.
    #[inline(always)]
    pub(crate) fn checks_alignment(index_base: usize) -> bool {
        index_base == 3 * SLOTS
    }

    /// The slots in force.
    #[inline(always)]
    pub(crate) fn index_base(&self) -> usize {
        self.index_base
    }

    /// The slot that may hold `address` under a privilege index.
    #[inline(always)]
    pub(crate) fn slot(&self, index_base: usize, address: u64) -> &Slot {
        &self.current.slots[slot_number(index_base, address)]
    }

    /// Identifies the executable translations in force: equal values mean that nothing executable was
    /// dropped in between and that address space and privilege are the same.
    #[inline(always)]
    pub(crate) fn exec_epoch(&self) -> u64 {
        self.current.epoch << 2 | (self.index_base / SLOTS) as u64
    }

    fn fresh_epoch(&mut self) -> u64 {
        self.next_epoch += 1;
        self.next_epoch
    }

    /// Makes the context of the given control registers the current one.
    pub(crate) fn select_context(&mut self, state: &CpuState) {
        let key = ContextKey {
            // The low bits (cache control, PCID) do not matter; PAE's table is in the PDPTEs.
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
            if self.others.len() + 1 < CONTEXTS {
                self.others.push(Context::new());
                return self.others.len() - 1;
            }
            (0..self.others.len()).min_by_key(|&i| self.others[i].last_used).unwrap_or(0)
        });
        self.current.last_used = self.clock;
        std::mem::swap(&mut self.current, &mut self.others[victim]);
        if found.is_none() {
            self.clear_current();
            self.current.key = key;
            self.current.live = true;
        } else if self.current.scrub_writes {
            self.current.scrub_writes = false;
            self.current.slots.iter_mut().for_each(|slot| slot.write = NO_PAGE);
        }
    }

    fn clear_current(&mut self) {
        *self.current.slots = [EMPTY; ALL_SLOTS];
        *self.current.entries = [u64::MAX; ALL_SLOTS];
        self.current.scrub_writes = false;
        self.current.epoch = self.fresh_epoch();
    }

    /// Drops every translation of every address space. Never visible to the guest.
    pub fn flush_all(&mut self) {
        self.clear_current();
        self.others.iter_mut().for_each(|context| context.live = false);
    }

    /// [`Mmu::flush_all`], and takes back the page-table flags, which nothing depends on any more.
    pub(crate) fn flush_and_unflag(&mut self, flags: &PageFlags) {
        self.flush_all();
        for page in self.flagged.drain(..) {
            self.tables[page as usize] = TableInfo::default();
            flags.clear(page, PageFlags::PAGE_TABLE);
        }
    }

    /// Drops all write permissions, so that the next store to each page takes the slow path (and marks the
    /// page dirty again).
    pub(crate) fn drop_writes(&mut self) {
        self.current.slots.iter_mut().for_each(|slot| slot.write = NO_PAGE);
        self.others.iter_mut().for_each(|context| context.scrub_writes = true);
    }

    /// Drops write permission to one RAM page, wherever it is mapped: stores to it must be seen from now on.
    pub(crate) fn protect_page(&mut self, page: u64) {
        let offset = page * PAGE_SIZE;
        for slot in self.current.slots.iter_mut() {
            if slot.write != NO_PAGE && slot.write.wrapping_add(slot.addend) == offset {
                slot.write = NO_PAGE;
            }
        }
        self.others.iter_mut().for_each(|context| context.scrub_writes = true);
    }

    /// Enters a translation for the page of `address`. `writable` and `executable` also say that the fast
    /// path may be used for that kind of access.
    pub(crate) fn fill(&mut self, index_base: usize, address: u64, fill: &Fill) {
        let number = slot_number(index_base, address);
        let page = address & !(PAGE_SIZE - 1);
        let slot = &mut self.current.slots[number];
        let addend = fill.ram_page_offset.wrapping_sub(page);
        let same = slot.addend == addend && self.current.entries[number] == fill.entry_offset;
        let old = if same { *slot } else { EMPTY };
        let tag = |allowed: bool, old: u64| {
            if allowed {
                page
            } else if old == page {
                old
            } else {
                NO_PAGE
            }
        };
        *slot = Slot {
            read: tag(fill.readable, old.read),
            write: tag(fill.writable, NO_PAGE),
            exec: tag(fill.executable, old.exec),
            addend,
        };
        self.current.entries[number] = fill.entry_offset;
    }

    /// Notes that a walk read the entry at RAM `offset`. Returns the page if it was not flagged before.
    pub(super) fn note_table(
        &mut self,
        ram: &GuestRam,
        offset: u64,
        last_level: bool,
        narrow: bool,
    ) -> Option<u64> {
        let page = offset / PAGE_SIZE;
        let info = &mut self.tables[page as usize];
        info.writes_since_walk = 0;
        info.narrow |= narrow;
        info.wide |= !narrow;
        info.upper_level |= !last_level;
        if ram.flags().has(page, PageFlags::PAGE_TABLE) {
            return None;
        }
        ram.flags().set(page, PageFlags::PAGE_TABLE);
        self.flagged.push(page);
        Some(page)
    }

    /// To be called after the CPU itself changed an 8-byte aligned group of a page-table page from `old` to
    /// `new`: drops what derived from the old contents. Says whether that was anything.
    pub(crate) fn table_written(&mut self, ram: &GuestRam, offset: u64, old: u64, new: u64) -> bool {
        let page = offset / PAGE_SIZE;
        let info = &mut self.tables[page as usize];
        info.writes_since_walk += 1;
        let info = *info;
        if info.writes_since_walk > COLD_PAGE_TABLE_WRITES {
            self.flush_and_unflag(ram.flags());
            return true;
        }
        if info.narrow && info.wide {
            // What one width takes for a bit that changes no translation is a part of the address in the other.
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
                if info.upper_level {
                    self.flush_and_unflag(ram.flags());
                    break;
                }
                self.drop_entry(entry, info.narrow);
                if info.narrow || old & NO_EXECUTE == 0 {
                    self.renew_epochs();
                }
            }
        }
        dropped
    }

    /// To be called after a walk set accessed or dirty bits in the entry at RAM `offset`, which changes no translation but
    /// one that reads the same bytes at another width.
    pub(crate) fn bits_set(&mut self, ram: &GuestRam, offset: u64) {
        let info = self.tables[(offset / PAGE_SIZE) as usize];
        if info.narrow && info.wide {
            self.flush_and_unflag(ram.flags());
        }
    }

    /// Whatever was remembered about executable translations, even evicted ones, is void.
    pub(crate) fn renew_epochs(&mut self) {
        self.next_epoch += 1;
        for context in std::iter::once(&mut self.current).chain(self.others.iter_mut()) {
            self.next_epoch += 1;
            context.epoch = self.next_epoch;
        }
    }

    /// Drops the translations that came from the last-level entry at RAM `entry_offset`.
    fn drop_entry(&mut self, entry_offset: u64, narrow: bool) {
        // A table's index is the low part of a slot's number: 10 bits of it in 32-bit paging, else 9.
        let (low, step) =
            if narrow { ((entry_offset / 4) & 1023, 1024) } else { ((entry_offset / 8) & 511, 512) };
        let low = low as usize;
        for context in std::iter::once(&mut self.current).chain(self.others.iter_mut()) {
            for number in (0..4).flat_map(|index| (low..SLOTS).step_by(step).map(move |n| index * SLOTS + n))
            {
                if context.entries[number] == entry_offset {
                    context.slots[number] = EMPTY;
                    context.entries[number] = u64::MAX;
                }
            }
        }
    }
}

/// Number of the slot that may hold `address` under a privilege index.
#[inline(always)]
fn slot_number(index_base: usize, address: u64) -> usize {
    (index_base | ((address >> 12) as usize & (SLOTS - 1))) & (ALL_SLOTS - 1)
}

/// A translation to enter into the TLB.
pub(crate) struct Fill {
    pub ram_page_offset: u64,
    pub entry_offset: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
}
