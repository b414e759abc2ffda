//! Estimates the room that merges need, from recent merges.

/// The sizes of recent merges' temporary files.
#[derive(Default)]
pub(crate) struct Merges {
    seen: u32,
    /// The largest size in bytes. With each smaller merge the number shrinks by a 64th.
    largest_bytes: u64,
}

impl Merges {
    /// Number of merges after which the estimate is used.
    const ENOUGH: u32 = 64;
    /// The next merge may need this many times `largest_bytes`.
    const MARGIN: u64 = 4;

    pub fn note(&mut self, bytes: u64) {
        self.seen = self.seen.saturating_add(1);
        let faded = self.largest_bytes - self.largest_bytes / u64::from(Merges::ENOUGH);
        self.largest_bytes = faded.max(bytes);
    }

    /// The number of bytes that the next merge may need. The result is at most twice `ram_bytes`, because files rarely
    /// hold more than two versions of the whole RAM.
    pub fn room(&self, ram_bytes: u64) -> u64 {
        let most = ram_bytes.saturating_mul(2);
        let of_these = self.largest_bytes.saturating_mul(Merges::MARGIN);
        if self.seen < Merges::ENOUGH { most } else { most.min(of_these) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_merges_is_that_of_the_largest_lately() {
        let mut merges = Merges::default();
        assert_eq!(merges.room(1_000), 2_000);
        (0..63).for_each(|_| merges.note(100));
        assert_eq!(merges.room(1_000), 2_000, "they say too little yet");
        merges.note(100);
        assert_eq!(merges.room(1_000), 400);
        assert_eq!(merges.room(150), 300, "never more than two versions of RAM");
        merges.note(5_000);
        assert_eq!(merges.room(u64::MAX), 20_000);
        (0..400).for_each(|_| merges.note(100));
        assert_eq!(merges.room(u64::MAX), 400, "it was long ago");
    }
}
