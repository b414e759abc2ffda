//! Hashes of a machine's parts and of plain data, and the text form of hashes.

use serde::Serialize;

/// Hashes of the parts of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// The hash of the CPU's state.
    pub cpu: [u8; 32],
    /// The hash of all devices and the clock.
    pub devices: [u8; 32],
    /// The digest of RAM ([`crate::ram_digest`]).
    pub ram: [u8; 16],
    /// The hash of the guest's writes to its disk ([`crate::disk::OverlayDisk::hash`]).
    pub disk: [u8; 32],
}

/// Hash of plain data.
pub fn hash_of(value: &impl Serialize) -> [u8; 32] {
    let bytes = postcard::to_stdvec(value).expect("plain data in memory always serializes");
    *blake3::hash(&bytes).as_bytes()
}

/// A hash, or other bytes, in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first bytes of a hash, for records that must be small.
pub fn short(hash: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    [a, b, c, d, e, f, g, h]
}
