//! A digest of the guest's writes to a device.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::ask::{AskV1, RegionV1};

/// Number and hash of the guest's writes to one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenV1 {
    /// The number of writes so far.
    pub count: u64,
    /// Chained XXH3-128 of all writes.
    pub hash: [u8; 16],
}

impl WrittenV1 {
    /// Adds a write to the count and to the hash.
    pub(crate) fn note(&mut self, ask: &AskV1) {
        let AskV1::Write { region, offset, size_bytes, value, .. } = *ask else { return };
        let region = match region {
            RegionV1::Bar(number) => number,
            RegionV1::Config => 0xFE,
            RegionV1::Ports => 0xFF,
        };
        let mut bytes = self.hash.to_vec();
        bytes.extend([region, size_bytes]);
        bytes.extend(offset.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        self.count += 1;
        self.hash = XxHash3_128::oneshot(&bytes).to_le_bytes();
    }
}

/// The number in up to eight bytes, little endian.
pub(crate) fn number(data: &[u8]) -> u64 {
    data.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
