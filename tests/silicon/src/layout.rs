//! The layout of the address space. Code and data have the same addresses in the process that runs on the processor
//! and in the software CPU's guest. All addresses are below 2 GiB, so every addressing form (absolute,
//! RIP-relative, 32-bit) can reach them.

/// The size of a page in bytes.
pub const PAGE: u64 = 0x1000;
/// The address of the first byte of the code area.
pub const CODE: u64 = 0x1000_0000;
/// The distance in bytes between the slots of two cases. The distance is not a power of two, so some instructions
/// cross cache lines and pages.
pub const CODE_STRIDE: u64 = 61;
/// The number of cases per batch. Each case of a batch has a slot in the code area.
pub const BATCH: u64 = 4096;
/// Size of the code area in bytes.
pub const CODE_BYTES: u64 = (BATCH * CODE_STRIDE).next_multiple_of(PAGE) + PAGE;
/// Offset of the landing pad for backward branches in a case's slot.
pub const PAD_BACK: u64 = 0;
/// The least offset in a slot at which the instruction may start.
pub const START_FIRST: u64 = 6;
/// The number of offsets in a slot at which the instruction may start.
pub const START_COUNT: u64 = 24;
/// Offset of the landing pad for forward branches in a case's slot.
pub const PAD_AHEAD: u64 = 54;
/// The address of the writable data. The pages before the data and after [`READ_ONLY`] are not mapped.
pub const DATA: u64 = 0x2000_0000;
/// Size of the writable data in bytes.
pub const DATA_BYTES: u64 = 3 * PAGE;
/// The address of the read-only page, directly after the writable data.
pub const READ_ONLY: u64 = DATA + DATA_BYTES;
/// The address of the page after the read-only page. This page is mapped neither for the processor nor in the
/// software CPU's guest.
pub const UNMAPPED: u64 = READ_ONLY + PAGE;
/// The selector of the code segment, which is Linux's selector for user code.
pub const USER_CS: u16 = 0x33;
/// The stack segment's selector.
pub const USER_SS: u16 = 0x2b;

/// Returns the address of the first byte of a slot.
pub fn slot(number: u64) -> u64 {
    CODE + number * CODE_STRIDE
}

/// Returns the offset of a landing pad in its slot, if any slot has a landing pad at this address; otherwise
/// `None`.
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
