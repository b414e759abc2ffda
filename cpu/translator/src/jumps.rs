//! One table of branch targets for all address spaces. Indirect branches, and direct branches to another page, find
//! the code of their target in this table. An entry is valid while the TLB maps the target's page as it did when
//! the target was remembered.

/// Binary logarithm of the number of slots.
pub(crate) const JUMP_BITS: u32 = 16;
/// The factor that spreads addresses over the slots: the golden ratio (Knuth, The Art of Computer Programming, 6.4).
pub(crate) const JUMP_FACTOR: u32 = 0x9e37_79b1;

/// One remembered target.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct JumpSlot {
    pub rip: u64,
    /// Host address minus virtual address of the guest code's bytes.
    pub addend: u64,
    /// Host address of the translated code.
    pub target: u64,
    /// Number of the block.
    pub number: u32,
    /// Number of instructions in the block.
    pub instructions: u32,
}

impl JumpSlot {
    pub const EMPTY: JumpSlot = JumpSlot { rip: 1, addend: 0, target: 0, number: 0, instructions: 0 };

    fn is_of(&self, rip: u64, addend: u64) -> bool {
        self.rip == rip && self.addend == addend
    }
}

/// All remembered targets.
pub(crate) struct Jumps(Box<[JumpSlot]>);

impl Jumps {
    pub fn new() -> Jumps {
        Jumps(vec![JumpSlot::EMPTY; 1 << JUMP_BITS].into_boxed_slice())
    }

    /// The table's address, for generated code.
    pub fn as_ptr(&self) -> *const JumpSlot {
        self.0.as_ptr()
    }

    /// The table's entry with the code of a target, if there is one.
    #[inline]
    pub fn find(&self, rip: u64, addend: u64) -> Option<&JumpSlot> {
        let first = slot_of(rip);
        [first, first ^ 1].map(|n| &self.0[n]).into_iter().find(|slot| slot.is_of(rip, addend))
    }

    /// Remembers a target in its first slot. The previous content moves to the neighbour slot.
    #[inline]
    pub fn remember(&mut self, new: JumpSlot) {
        let first = slot_of(new.rip);
        let old = self.0[first];
        if old.is_of(new.rip, new.addend) {
            self.0[first] = new;
            return;
        }
        // The neighbour slot may be the old entry's first or second slot, so the old entry stays reachable. The
        // table can also hold two entries for one address, with different pages of RAM.
        self.0[first ^ 1] = old;
        self.0[first] = new;
    }

    /// Removes the entry of the target `rip`, if the entry is for the block with this number.
    pub fn forget(&mut self, rip: u64, number: u32) {
        let first = slot_of(rip);
        for slot in [first, first ^ 1] {
            if self.0[slot].rip == rip && self.0[slot].number == number {
                self.0[slot] = JumpSlot::EMPTY;
            }
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.0.fill(JumpSlot::EMPTY);
    }
}

/// The first slot of a target. The neighbour, whose number differs in the lowest bit, is the second.
pub(crate) fn slot_of(rip: u64) -> usize {
    ((rip as u32).wrapping_mul(JUMP_FACTOR) >> (32 - JUMP_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(rip: u64, addend: u64, number: u32) -> JumpSlot {
        JumpSlot { rip, addend, number, ..JumpSlot::EMPTY }
    }

    #[test]
    fn one_address_in_two_pages_of_ram_is_remembered_twice() {
        let mut jumps = Jumps::new();
        let rip = 0xffff_ffff_8123_4567;
        for (addend, number) in [(1 << 12, 7), (2 << 12, 8), (1 << 12, 7)] {
            jumps.remember(target(rip, addend, number));
        }
        assert_eq!(jumps.find(rip, 1 << 12).map(|slot| slot.number), Some(7));
        assert_eq!(jumps.find(rip, 2 << 12).map(|slot| slot.number), Some(8));
        jumps.forget(rip, 8);
        assert!(jumps.find(rip, 2 << 12).is_none() && jumps.find(rip, 1 << 12).is_some());
    }
}
