//! Where indirect branches, and direct ones that leave their page, find the code of their target.

/// Slots for each address space; a power of two.
pub(crate) const JUMP_SLOTS: usize = 16384;
/// Slots that the targets in one page can be in; they lie side by side.
const SLOTS_OF_PAGE: usize = 64;

/// One remembered target.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct JumpSlot {
    pub rip: u64,
    /// What must be in force for it.
    pub tag: u32,
    /// Offset of the code.
    pub target: u32,
}

impl JumpSlot {
    pub const EMPTY: JumpSlot = JumpSlot { rip: 1, tag: u32::MAX, target: 0 };
}

/// Remembers a target in its slot; what was there moves to the other one that it may be in.
pub(crate) fn remember(table: &mut [JumpSlot], new: JumpSlot) {
    let first = slot_of(new.rip);
    let old = table[first];
    if old.rip != new.rip && old.rip != JumpSlot::EMPTY.rip {
        // Either of two neighbours may be its first.
        table[first ^ 1] = old;
    }
    table[first] = new;
}

/// The slot that may hold a target; the other one is its neighbour, whose number differs in the lowest bit.
pub(crate) fn slot_of(rip: u64) -> usize {
    (rip >> 6 ^ rip & (SLOTS_OF_PAGE as u64 - 1)) as usize & (JUMP_SLOTS - 1)
}

/// Forgets the targets in a page.
pub(crate) fn forget_page(table: &mut [JumpSlot], page: u64) {
    let first = slot_of(page & !0xfff);
    for slot in &mut table[first..first + SLOTS_OF_PAGE] {
        if slot.rip & !0xfff == page & !0xfff {
            *slot = JumpSlot::EMPTY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_one_page_lie_side_by_side() {
        let mut table = vec![JumpSlot::EMPTY; JUMP_SLOTS];
        let page = 0xffff_ffff_8123_4000;
        let elsewhere = page + ((JUMP_SLOTS / SLOTS_OF_PAGE) << 12) as u64;
        for offset in 0..0x1000 {
            remember(&mut table, JumpSlot { rip: page + offset, tag: 0, target: 0 });
        }
        assert!(table.iter().filter(|slot| slot.rip >= page).count() == SLOTS_OF_PAGE);
        remember(&mut table, JumpSlot { rip: elsewhere, tag: 0, target: 0 });
        forget_page(&mut table, page);
        assert!(table.iter().filter(|slot| slot.rip >= page).count() == 1);
    }
}
