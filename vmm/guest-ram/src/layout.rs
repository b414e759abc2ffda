//! The layout of RAM in guest-physical space. RAM begins at address 0 and reaches at most up to the 32-bit device
//! hole. RAM that does not fit below the hole begins at 4 GiB.

/// The upper limit of RAM below the 32-bit device hole.
pub const LOW_RAM_LIMIT: u64 = 0xC000_0000;

/// The address of the RAM that does not fit below the device hole.
pub const HIGH_RAM_START: u64 = 0x1_0000_0000;

/// The split of RAM into the part below and the part above the device hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamLayout {
    low_bytes: u64,
    high_bytes: u64,
}

impl RamLayout {
    /// The layout of `size_bytes` of RAM.
    pub fn new(size_bytes: u64) -> RamLayout {
        let low_bytes = size_bytes.min(LOW_RAM_LIMIT);
        RamLayout { low_bytes, high_bytes: size_bytes - low_bytes }
    }

    /// The size of all RAM in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.low_bytes + self.high_bytes
    }

    /// (guest-physical address, RAM offset, length) of each non-empty part.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        [(0, 0, self.low_bytes), (HIGH_RAM_START, self.low_bytes, self.high_bytes)]
            .into_iter()
            .filter(|range| range.2 != 0)
    }

    /// The RAM offset of a guest-physical address. `None` if the address is outside RAM.
    #[inline(always)]
    pub fn offset_of(&self, gpa: u64) -> Option<u64> {
        if gpa < self.low_bytes {
            return Some(gpa);
        }
        let high = gpa.wrapping_sub(HIGH_RAM_START);
        (high < self.high_bytes).then(|| self.low_bytes + high)
    }

    /// Guest-physical address of a RAM offset, which must lie inside RAM.
    pub fn gpa_of(&self, offset: u64) -> u64 {
        debug_assert!(offset < self.size_bytes());
        if offset < self.low_bytes { offset } else { HIGH_RAM_START + (offset - self.low_bytes) }
    }
}
