//! Hashes of an image's contents. A disk image may have terabytes that were never written (holes). The hash skips holes
//! without reading them.

/// The prefix of a hash by [`Scheme::Sparse`].
const SPARSE: &str = "sparse:";
/// Size of a block that is hashed on its own.
const BLOCK_BYTES: u64 = 1 << 20;
/// Zeros to hash in place of a hole.
const ZEROS: [u8; 4096] = [0; 4096];

/// How an image's contents are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// A hash of all bytes, by BLAKE3: the text is the hash in hex.
    Whole,
    /// A hash by BLAKE3 of the blocks of 1 MiB that are not all zeros, followed by the file's size. Each block adds its
    /// number (64 bits, little endian) and its BLAKE3 hash to the hashed bytes. The text is `sparse:` and the hash in
    /// hex.
    Sparse,
}

impl Scheme {
    /// The scheme by which a hash in text form was made.
    pub fn of(hash: &str) -> Scheme {
        if hash.starts_with(SPARSE) { Scheme::Sparse } else { Scheme::Whole }
    }
}

/// Hashes contents that come in consecutive pieces.
pub struct ContentsHasher(Kind);

enum Kind {
    Whole(Box<blake3::Hasher>),
    Sparse(Box<Blocks>),
}

impl ContentsHasher {
    /// A hasher that has no contents yet.
    pub fn new(scheme: Scheme) -> ContentsHasher {
        ContentsHasher(match scheme {
            Scheme::Whole => Kind::Whole(Box::default()),
            Scheme::Sparse => Kind::Sparse(Box::default()),
        })
    }

    /// Appends these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Whole(hasher) => drop(hasher.update(bytes)),
            Kind::Sparse(blocks) => blocks.update(bytes),
        }
    }

    /// Appends `count` zero bytes.
    pub fn zeros(&mut self, count: u64) {
        match &mut self.0 {
            Kind::Whole(hasher) => hash_zeros(hasher, count),
            Kind::Sparse(blocks) => blocks.zeros(count),
        }
    }

    /// The hash of all contents, as in a manifest.
    pub fn finish(self) -> String {
        match self.0 {
            Kind::Whole(hasher) => hasher.finalize().to_hex().to_string(),
            Kind::Sparse(blocks) => format!("{SPARSE}{}", blocks.finish().to_hex()),
        }
    }
}

/// Appends `count` zero bytes.
pub fn hash_zeros(hasher: &mut blake3::Hasher, mut count: u64) {
    while count > 0 {
        let part = count.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..part as usize]);
        count -= part;
    }
}

#[derive(Default)]
struct Blocks {
    list: blake3::Hasher,
    size_bytes: u64,
    /// The hasher of the incomplete block; `None` while all its bytes are zero.
    block: Option<blake3::Hasher>,
}

impl Blocks {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let filled = self.size_bytes % BLOCK_BYTES;
            let length = bytes.len().min((BLOCK_BYTES - filled) as usize);
            let (part, rest) = bytes.split_at(length);
            if self.block.is_none() && part.iter().any(|&byte| byte != 0) {
                let mut block = blake3::Hasher::new();
                hash_zeros(&mut block, filled);
                self.block = Some(block);
            }
            if let Some(block) = &mut self.block {
                block.update(part);
            }
            self.pass(length as u64);
            bytes = rest;
        }
    }

    fn zeros(&mut self, mut count: u64) {
        let missing = BLOCK_BYTES - self.size_bytes % BLOCK_BYTES;
        if let Some(block) = &mut self.block {
            let part = missing.min(count);
            hash_zeros(block, part);
            self.pass(part);
            count -= part;
        }
        self.size_bytes = self.size_bytes.saturating_add(count);
    }

    /// Counts hashed bytes, and completes the block when its end is reached.
    fn pass(&mut self, count: u64) {
        let number = self.size_bytes / BLOCK_BYTES;
        self.size_bytes += count;
        if self.size_bytes.is_multiple_of(BLOCK_BYTES) {
            self.end_block(number);
        }
    }

    fn end_block(&mut self, number: u64) {
        if let Some(block) = self.block.take() {
            self.list.update(&number.to_le_bytes());
            self.list.update(block.finalize().as_bytes());
        }
    }

    fn finish(mut self) -> blake3::Hash {
        self.end_block(self.size_bytes / BLOCK_BYTES);
        self.list.update(&self.size_bytes.to_le_bytes());
        self.list.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scheme: Scheme, pieces: &[&[u8]]) -> String {
        let mut hasher = ContentsHasher::new(scheme);
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    #[test]
    fn the_hash_is_that_of_the_contents_however_they_come() {
        let block = BLOCK_BYTES as usize;
        let mut contents = vec![0_u8; 5 * block + 777];
        for at in [5, block - 1, 3 * block, 3 * block + 9, 5 * block + 100] {
            contents[at] = 7;
        }
        for scheme in [Scheme::Whole, Scheme::Sparse] {
            let whole = of(scheme, &[&contents]);
            assert_eq!(Scheme::of(&whole), scheme);
            assert_eq!(of(scheme, &contents.chunks(1000).collect::<Vec<_>>()), whole);
            assert_eq!(of(scheme, &contents.chunks(3 * block).collect::<Vec<_>>()), whole);
            let mut holes = ContentsHasher::new(scheme);
            holes.update(&contents[..block]);
            holes.zeros(2 * block as u64);
            holes.update(&contents[3 * block..3 * block + 10]);
            holes.zeros(2 * block as u64 - 10);
            holes.update(&contents[5 * block..5 * block + 101]);
            holes.zeros(676);
            assert_eq!(holes.finish(), whole);
        }
        assert_eq!(of(Scheme::Whole, &[&contents]), blake3::hash(&contents).to_hex().to_string());
    }

    #[test]
    fn other_contents_have_another_hash() {
        let block = BLOCK_BYTES as usize;
        let mut contents = vec![0_u8; 2 * block];
        contents[3] = 1;
        let mut seen = vec![of(Scheme::Sparse, &[&contents])];
        contents[3] = 2;
        seen.push(of(Scheme::Sparse, &[&contents]));
        contents.rotate_right(block);
        seen.push(of(Scheme::Sparse, &[&contents]));
        seen.push(of(Scheme::Sparse, &[&contents, &[0]]));
        seen.push(of(Scheme::Sparse, &[&contents[..block]]));
        seen.push(of(Scheme::Sparse, &[]));
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn zeros_cost_nothing() {
        let mut hasher = ContentsHasher::new(Scheme::Sparse);
        hasher.update(&[1]);
        hasher.zeros(1 << 60);
        assert_eq!(Scheme::of(&hasher.finish()), Scheme::Sparse);
    }
}
