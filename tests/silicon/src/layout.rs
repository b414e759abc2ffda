//! The layout of the address space that both sides share. Code and data have the same addresses on the processor and in
//! the software CPU's guest. All addresses are below 2 GiB, so every addressing form (absolute, RIP-relative, 32-bit)
//! can reach them.

/// Page size.
pub const PAGE: u64 = 0x1000;
/// First byte of the code area.
pub const CODE: u64 = 0x1000_0000;
/// Distance in bytes between the code of two cases. The distance is no power of two, so some instructions cross cache
/// lines and pages.
pub const CODE_STRIDE: u64 = 61;
/// Cases per batch: the code area holds one each.
pub const BATCH: u64 = 4096;
/// Size of the code area in bytes.
pub const CODE_BYTES: u64 = (BATCH * CODE_STRIDE).next_multiple_of(PAGE) + PAGE;
/// Offset of the landing pad for backward branches in a case's slot.
pub const PAD_BACK: u64 = 0;
/// The least offset in a slot at which the instruction may start.
pub const START_FIRST: u64 = 6;
/// The number of places where a case may start.
pub const START_COUNT: u64 = 24;
/// Offset of the landing pad for forward branches in a case's slot.
pub const PAD_AHEAD: u64 = 54;
/// Writable data; unmapped pages lie before it and behind [`READ_ONLY`].
pub const DATA: u64 = 0x2000_0000;
/// Size of the writable data in bytes.
pub const DATA_BYTES: u64 = 3 * PAGE;
/// A read-only page behind the writable data.
pub const READ_ONLY: u64 = DATA + DATA_BYTES;
/// The page behind the read-only one: not mapped on either side.
pub const UNMAPPED: u64 = READ_ONLY + PAGE;
/// The code segment's selector, Linux's on the processor.
pub const USER_CS: u16 = 0x33;
/// The stack segment's selector.
pub const USER_SS: u16 = 0x2b;

/// First byte of a slot.
pub fn slot(number: u64) -> u64 {
    CODE + number * CODE_STRIDE
}

/// If a landing pad of any slot is at this address, returns the pad's offset in its slot, otherwise `None`.
pub fn pad_at(address: u64) -> Option<u64> {
    let offset = address.checked_sub(CODE).filter(|offset| offset / CODE_STRIDE < BATCH)? % CODE_STRIDE;
    matches!(offset, PAD_BACK | PAD_AHEAD).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_are_told_from_what_lies_between_them() {
        for number in [0, 1, BATCH - 1] {
            assert_eq!(pad_at(slot(number)), Some(PAD_BACK));
            assert_eq!(pad_at(slot(number) + PAD_AHEAD), Some(PAD_AHEAD));
            let between = (1..CODE_STRIDE).filter(|&offset| offset != PAD_AHEAD);
            assert!(between.map(|offset| slot(number) + offset).all(|address| pad_at(address).is_none()));
        }
        assert!([CODE - 1, slot(BATCH), 0].into_iter().all(|address| pad_at(address).is_none()));
    }
}
