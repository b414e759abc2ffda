//! A digest of a run's console output.

/// Length and hash of all console output.
#[derive(Clone, Default)]
pub struct ConsoleDigest {
    bytes: u64,
    hasher: blake3::Hasher,
}

impl ConsoleDigest {
    /// Adds output to the digest.
    pub fn update(&mut self, output: &[u8]) {
        self.bytes += output.len() as u64;
        self.hasher.update(output);
    }

    /// Length and hash of the output so far.
    pub fn finish(&self) -> (u64, [u8; 32]) {
        (self.bytes, *self.hasher.finalize().as_bytes())
    }
}
