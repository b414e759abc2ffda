//! Relocations: the places in a block's code that depend on the code's own address, or on the guest address of the
//! block. All other code of a block is the same everywhere. So a library that each process maps at another address is
//! translated once.

use super::exits::exit_code;
use crate::frame::{SLOTS, TlbSlot, TlbSlots};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// What some bytes of code contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An address that moves with the guest's code: eight bytes, or four that are extended.
    Address64,
    Address32,
    /// The offset of a field in a TLB slot: the slot for fetches from the guest's page. If the page moves to another
    /// address, its slot is another one.
    Slot,
    /// An exit's code, which contains the block's number.
    Number,
    /// The displacement of a jump to code outside blocks.
    Glue,
}

/// A place in the code that changes.
#[derive(Clone, Copy)]
struct Relocation {
    kind: Kind,
    /// Offset after the bytes.
    end: u32,
}

/// The destination of code that was written for block 0 at offset 0.
pub(super) struct Place {
    /// The guest address of the destination minus the guest address for which the block was translated.
    pub by: u64,
    pub number: u32,
    pub offset: usize,
}

/// The places in a block's code that change when it is placed.
pub(super) struct Relocations {
    list: Vec<Relocation>,
    /// The lowest and the highest address in the code, including the block's own.
    lowest: i64,
    highest: i64,
}

/// The number of the range of an address. Within a range, all addresses have the same encoding, and all are canonical
/// or none is.
fn range_of(address: i64) -> usize {
    const BEGINNINGS: [i64; 6] = [-1 << 47, -1 << 31, 0, 1 << 31, 1 << 32, 1 << 47];
    BEGINNINGS.iter().filter(|&&begin| address >= begin).count()
}

impl Relocations {
    /// Starts with only the block's own address.
    pub fn of_block_at(rip: u64) -> Relocations {
        Relocations { list: Vec::new(), lowest: rip as i64, highest: rip as i64 }
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.list.len() * size_of::<Relocation>()
    }

    /// Records that the bytes before the offset `end` must be relocated; `kind` says how.
    pub fn note(&mut self, kind: Kind, end: usize) {
        self.list.push(Relocation { kind, end: end as u32 });
    }

    /// Notes a guest address that the code contains, because the address limits how far the code can move.
    pub fn note_address(&mut self, address: u64) {
        self.lowest = self.lowest.min(address as i64);
        self.highest = self.highest.max(address as i64);
    }

    /// Whether applying the relocations is enough to move the code to a guest address that is higher by `by`.
    pub fn can_move(&self, by: u64) -> bool {
        let range = range_of(self.lowest);
        let moved = |address: i64| address.wrapping_add(by as i64);
        by == 0
            || by.is_multiple_of(PAGE)
                && [self.highest, moved(self.lowest), moved(self.highest)].map(range_of) == [range; 3]
    }

    /// Relocates code from block 0 at offset 0 to a place.
    pub fn apply(&self, code: &mut [u8], place: &Place) {
        for &Relocation { kind, end } in &self.list {
            let end = end as usize;
            if kind == Kind::Address64 {
                let bytes: &mut [u8; 8] = (&mut code[end - 8..end]).try_into().expect("there are eight");
                *bytes = u64::from_le_bytes(*bytes).wrapping_add(place.by).to_le_bytes();
                continue;
            }
            let bytes: &mut [u8; 4] = (&mut code[end - 4..end]).try_into().expect("there are four");
            let value = u32::from_le_bytes(*bytes);
            let value = match kind {
                Kind::Address64 | Kind::Address32 => value.wrapping_add(place.by as u32),
                Kind::Slot => moved_slot(value, place.by / PAGE),
                Kind::Number => value.wrapping_add(exit_code(place.number, 0)),
                Kind::Glue => value.wrapping_sub(place.offset as u32),
            };
            *bytes = value.to_le_bytes();
        }
    }
}

/// The place of a TLB slot's part after its page moved by a number of pages.
fn moved_slot(place: u32, pages: u64) -> u32 {
    let (first, size) = (TlbSlots::EXEC as u32, size_of::<TlbSlot>() as u32);
    let (slot, part) = ((place - first) / size, (place - first) % size);
    let moved = u64::from(slot).wrapping_add(pages) as u32 % SLOTS as u32;
    first + moved * size + part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_moves_as_long_as_its_addresses_are_of_one_kind() {
        let mut relocations = Relocations::of_block_at(0x7f00_0000_1000);
        assert!(relocations.can_move(0x1000) && relocations.can_move(0_u64.wrapping_sub(0x1000)));
        assert!(!relocations.can_move(0x10), "it would be cut into pages otherwise");
        assert!(!relocations.can_move(0x0100_0000_0000), "it would not be canonical");
        assert!(
            !relocations.can_move(0_u64.wrapping_sub(0x7f00_0000_0000)),
            "it would be written in four bytes"
        );
        relocations.note_address(0x7fff_ffff_f000);
        assert!(relocations.can_move(0) && !relocations.can_move(0x1000));
        // Code with addresses of two ranges cannot move at all.
        relocations.note_address(0x1000);
        assert!(relocations.can_move(0) && !relocations.can_move(0_u64.wrapping_sub(0x1000)));
    }

    #[test]
    fn what_follows_from_where_code_lies_is_changed() {
        let first = TlbSlots::EXEC as u32;
        let size = size_of::<TlbSlot>() as u32;
        let last_slot = first + (SLOTS as u32 - 1) * size + TlbSlot::ADDEND as u32;
        let mut code = Vec::new();
        let mut relocations = Relocations::of_block_at(0x1000);
        let fields = [
            (Kind::Address32, 0xffff_f010),
            (Kind::Slot, last_slot),
            (Kind::Number, exit_code(0, 61)),
            (Kind::Glue, 0x20),
        ];
        for (kind, value) in fields {
            code.extend(u32::to_le_bytes(value));
            relocations.note(kind, code.len());
        }
        code.extend(0x7f00_0000_1234_u64.to_le_bytes());
        relocations.note(Kind::Address64, code.len());
        relocations.apply(&mut code, &Place { by: 0x3000, number: 5, offset: 0x100 });
        let field = |n: usize| u32::from_le_bytes(code[4 * n..][..4].try_into().expect("there are four"));
        let slot = first + 2 * size + TlbSlot::ADDEND as u32;
        assert_eq!([0, 1, 2, 3].map(field), [0x2010, slot, exit_code(5, 61), 0x20_u32.wrapping_sub(0x100)]);
        assert_eq!(code[16..], 0x7f00_0000_4234_u64.to_le_bytes());
    }
}
