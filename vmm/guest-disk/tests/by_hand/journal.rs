//! Journals: transactions in every form that Linux writes, and journals that are damaged or incomplete.

use guest_disk::Files;

use crate::image::{Extent, Image, JOURNAL, Layout, Node, contents, extents, feature, read, superblock};

const BLOCK: u64 = 1024;
/// The first block of the journal on the disk.
const AT: u64 = 4000;
const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

mod kind {
    pub const DESCRIPTOR: u32 = 1;
    pub const COMMIT: u32 = 2;
    pub const REVOKE: u32 = 5;
}

/// Features of a journal.
mod with {
    pub const REVOKE: u32 = 1;
    pub const BITS_64: u32 = 2;
    pub const ASYNC_COMMIT: u32 = 4;
    pub const CHECKSUM_2: u32 = 8;
    pub const CHECKSUM_3: u32 = 16;
    pub const FAST_COMMIT: u32 = 32;
}

/// Flags of a block that a descriptor names.
mod tag {
    pub const ESCAPED: u32 = 1;
    pub const SAME_UUID: u32 = 2;
    pub const DELETED: u32 = 4;
    pub const LAST: u32 = 8;
}

/// The fields of a journal's superblock.
#[derive(Clone, Copy)]
struct Ring {
    kind: u32,
    block_bytes: u32,
    /// The number of blocks in the journal.
    length: u32,
    first: u32,
    start: u32,
    sequence: u32,
    features: u32,
    fast_blocks: u32,
}

const RING: Ring = Ring {
    kind: 4,
    block_bytes: BLOCK as u32,
    length: 32,
    first: 1,
    start: 1,
    sequence: 70,
    features: with::REVOKE,
    fast_blocks: 0,
};

/// A file of four blocks, and a journal.
struct Journal {
    image: Image,
    ring: Ring,
}

/// The blocks of the file.
const FILE: [u64; 4] = [500, 501, 502, 503];
/// The blocks of the file in a file system with 64-bit block numbers.
const FAR: u64 = 7 << 32;

impl Journal {
    fn new(ring: Ring) -> Journal {
        let is_wide = ring.features & with::BITS_64 != 0;
        let layout = if is_wide { Layout { blocks: 1 << 36, ..Layout::LARGE } } else { Layout::SMALL };
        let mut image = Image::new(layout);
        let recover = feature::RECOVER | if is_wide { feature::BITS_64 } else { 0 };
        image.set(superblock::COMPATIBLE, &feature::HAS_JOURNAL.to_le_bytes());
        image.set(superblock::INCOMPATIBLE, &recover.to_le_bytes());
        image.set(superblock::JOURNAL_INODE, &JOURNAL.to_le_bytes());
        let mut journal = Journal { image, ring };
        for block in FILE.map(|block| journal.far(block)) {
            journal.image.put_block(block, &contents(block, BLOCK));
        }
        let map = extents(0, &[Extent::Leaf(0, 4, journal.far(FILE[0]))]);
        journal.image.add("file", &Node::with_extents(4 * BLOCK, map));
        let map = extents(0, &[Extent::Leaf(0, ring.length as u16, AT)]);
        journal.image.put_inode(JOURNAL, &Node::with_extents(u64::from(ring.length) * BLOCK, map));
        journal.write_superblock(MAGIC);
        journal
    }

    fn write_superblock(&mut self, magic: [u8; 4]) {
        let ring = self.ring;
        let mut put = |at: u64, word: u32| self.image.disk.put(AT * BLOCK + at, &word.to_be_bytes());
        put(0, u32::from_be_bytes(magic));
        put(4, ring.kind);
        put(12, ring.block_bytes);
        put(16, ring.length);
        put(20, ring.first);
        put(24, ring.sequence);
        put(28, ring.start);
        put(40, ring.features);
        put(0x54, ring.fast_blocks);
    }

    /// The block of the file system behind the first 2^32 blocks, if block numbers have 64 bits.
    fn far(&self, block: u64) -> u64 {
        if self.has(with::BITS_64) { FAR + block } else { block }
    }

    fn has(&self, feature: u32) -> bool {
        self.ring.features & feature != 0
    }

    fn put(&mut self, at: u32, block: &[u8]) {
        self.image.put_block(AT + u64::from(at), block);
    }

    fn head(kind: u32, sequence: u32) -> Vec<u8> {
        [MAGIC, kind.to_be_bytes(), sequence.to_be_bytes()].concat()
    }

    /// A descriptor block. A tag without [`tag::SAME_UUID`] has a UUID behind it.
    fn descriptor(&self, sequence: u32, tags: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Journal::head(kind::DESCRIPTOR, sequence);
        for (block, flags) in tags {
            let high = ((block >> 32) as u32).to_be_bytes();
            bytes.extend((*block as u32).to_be_bytes());
            if self.has(with::CHECKSUM_3) {
                bytes.extend(flags.to_be_bytes());
                bytes.extend(high);
                bytes.extend([0xcc; 4]);
            } else {
                bytes.extend([0xcc; 2]);
                bytes.extend((*flags as u16).to_be_bytes());
                if self.has(with::BITS_64) {
                    bytes.extend(high);
                }
                if self.has(with::CHECKSUM_2) {
                    bytes.extend([0xcc; 2]);
                }
            }
            if flags & tag::SAME_UUID == 0 {
                bytes.extend([0xdd; 16]);
            }
        }
        bytes.resize(BLOCK as usize, 0);
        if self.has(with::CHECKSUM_2 | with::CHECKSUM_3) {
            bytes[BLOCK as usize - 4..].fill(0xee);
        }
        bytes
    }

    fn commit(sequence: u32) -> Vec<u8> {
        Journal::head(kind::COMMIT, sequence)
    }

    fn revoke(&self, sequence: u32, blocks: &[u64]) -> Vec<u8> {
        let mut bytes = Journal::head(kind::REVOKE, sequence);
        let size = if self.has(with::BITS_64) { 8 } else { 4 };
        bytes.extend((16 + size * blocks.len() as u32).to_be_bytes());
        for block in blocks {
            bytes.extend(&block.to_be_bytes()[8 - size as usize..]);
        }
        // The rest of a block is not used.
        bytes.resize(BLOCK as usize - 4, 0x11);
        bytes
    }

    /// Writes blocks of the journal from `at` on. After the ring's end, goes on at its start.
    fn write(&mut self, mut at: u32, end: u32, blocks: &[Vec<u8>]) {
        for block in blocks {
            self.put(at, block);
            at = if at + 1 < end { at + 1 } else { self.ring.first };
        }
    }

    fn open(&self) -> Files {
        self.image.open()
    }
}

/// The new contents of a block: number `version`.
fn new(version: u64) -> Vec<u8> {
    contents(1000 + version, BLOCK)
}

/// Checks the contents of the file, in pieces of several sizes. `None` stands for a block's contents outside the journal.
fn assert_versions(journal: &Journal, versions: [Option<u64>; 4], what: &str) {
    let blocks = FILE.iter().zip(versions).map(|(block, version)| match version {
        Some(version) => new(version),
        None => contents(journal.far(*block), BLOCK),
    });
    let wanted: Vec<u8> = blocks.flatten().collect();
    let mut files = journal.open();
    for step in [1, 1000, 1 << 16] {
        let got = read(&mut files, "file", step).unwrap();
        let first = got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
        assert!(got == wanted, "{what}: byte {first:?} by {step} differs");
    }
}

/// All forms of a descriptor's tags.
const FORMS: [u32; 6] = [
    0,
    with::BITS_64,
    with::CHECKSUM_2,
    with::CHECKSUM_2 | with::BITS_64,
    with::CHECKSUM_3,
    with::CHECKSUM_3 | with::BITS_64,
];

#[test]
fn transactions_in_every_form_are_read() {
    for form in FORMS {
        let mut journal = Journal::new(Ring { features: with::REVOKE | form, ..RING });
        let [a, b, c, d] = FILE.map(|block| journal.far(block));
        let first = journal.descriptor(70, &[(c, 0), (a, tag::SAME_UUID), (d, tag::SAME_UUID | tag::LAST)]);
        let second =
            journal.descriptor(71, &[(a, tag::SAME_UUID | tag::DELETED), (b, tag::LAST), (c, tag::LAST)]);
        let blocks = [
            first,
            new(1),
            new(2),
            new(3),
            Journal::commit(70),
            second,
            new(4),
            new(5),
            journal.revoke(71, &[d]),
            Journal::commit(71),
        ];
        journal.write(1, 32, &blocks);
        // The descriptor's last tag names block b, so the tag behind it does not count.
        assert_versions(&journal, [Some(4), Some(5), Some(1), None], &format!("form {form:#x}"));
        assert_eq!(journal.open().unread_journal(), None);
    }
}

/// A descriptor without a last tag ends where no further tag fits before the checksum at the block's end.
#[test]
fn a_descriptor_may_be_full_of_tags() {
    for form in FORMS {
        let features = with::REVOKE | form;
        let mut journal = Journal::new(Ring { features, length: 300, ..RING });
        let size = match form {
            0 => 8,
            with::BITS_64 => 12,
            with::CHECKSUM_2 => 10,
            with::CHECKSUM_3 => 16,
            form if form & with::CHECKSUM_3 != 0 => 16,
            _ => 14,
        };
        let tail = if form & (with::CHECKSUM_2 | with::CHECKSUM_3) != 0 { 4 } else { 0 };
        let count = (1024 - 12 - tail) / size;
        let tags: Vec<(u64, u32)> =
            (0..count).map(|index| (journal.far(3000 + index), tag::SAME_UUID)).collect();
        let mut tags = tags;
        tags[count as usize - 1].0 = journal.far(FILE[1]);
        let mut blocks = vec![journal.descriptor(70, &tags)];
        blocks.extend((0..count).map(new));
        blocks.push(Journal::commit(70));
        journal.write(1, 300, &blocks);
        assert_versions(&journal, [None, Some(count - 1), None, None], &format!("form {form:#x}"));
    }
}

/// The journal's magic number at the start of a block's contents is stored as zeroes.
#[test]
fn escaped_blocks_begin_with_the_magic_number() {
    let mut journal = Journal::new(RING);
    let escaped = tag::ESCAPED | tag::SAME_UUID;
    let tags = [(FILE[1], escaped), (FILE[2], tag::SAME_UUID), (FILE[3], escaped | tag::LAST)];
    let mut stored = new(1);
    stored[..4].fill(0);
    let blocks =
        [journal.descriptor(70, &tags), stored.clone(), stored.clone(), stored.clone(), Journal::commit(70)];
    journal.write(1, 32, &blocks);
    let escaped = [&MAGIC[..], &stored[4..]].concat();
    let wanted = [contents(FILE[0], BLOCK), escaped.clone(), stored, escaped].concat();
    let mut files = journal.open();
    for step in [1, 3, 1023, 1 << 16] {
        assert!(read(&mut files, "file", step).unwrap() == wanted, "by {step}");
    }
}

#[test]
fn a_transaction_counts_only_with_its_commit() {
    let last = tag::SAME_UUID | tag::LAST;
    let transaction = |journal: &Journal, sequence, block: usize, version| {
        vec![journal.descriptor(sequence, &[(FILE[block], last)]), new(version), Journal::commit(sequence)]
    };
    let journal = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut journal = Journal::new(RING);
        let mut blocks = transaction(&journal, 70, 0, 1);
        blocks.extend(transaction(&journal, 71, 1, 2));
        blocks.extend(transaction(&journal, 72, 2, 3));
        change(&mut blocks);
        journal.write(1, 32, &blocks);
        journal
    };
    let all = [Some(1), Some(2), Some(3), None];
    let [none, one, two] = [[None; 4], [Some(1), None, None, None], [Some(1), Some(2), None, None]];
    assert_versions(&journal(&|_| ()), all, "three transactions");
    assert_versions(&journal(&|blocks| blocks.truncate(8)), two, "no last commit");
    assert_versions(
        &journal(&|blocks| blocks[5] = Journal::commit(70)),
        one,
        "a commit of the wrong transaction",
    );
    assert_versions(
        &journal(&|blocks| blocks[2] = Journal::commit(71)),
        none,
        "a commit of the next transaction",
    );
    assert_versions(&journal(&|blocks| blocks[3][1] ^= 1), one, "a wrong magic number");
    assert_versions(&journal(&|blocks| blocks[3][7] = 9), one, "a block of no kind");
    assert_versions(&journal(&|blocks| blocks[6][7] = 4), two, "a superblock in the ring");
    let mut empty = journal(&|_| ());
    empty.ring.start = 0;
    empty.write_superblock(MAGIC);
    assert_versions(&empty, none, "an empty journal");
    let mut later = journal(&|_| ());
    (later.ring.start, later.ring.sequence) = (4, 71);
    later.write_superblock(MAGIC);
    assert_versions(&later, [None, Some(2), Some(3), None], "a later start");
}

#[test]
fn a_revoke_reaches_its_own_and_earlier_transactions() {
    let last = tag::SAME_UUID | tag::LAST;
    // The numbers of transactions wrap around.
    for sequence in [70, u32::MAX, u32::MAX - 1] {
        let numbers = [0, 1, 2].map(|number| sequence.wrapping_add(number));
        let journal = |revokes: &dyn Fn(&Journal) -> [Option<Vec<u8>>; 3], commits: usize| {
            let mut journal = Journal::new(Ring { sequence, ..RING });
            let mut blocks = Vec::new();
            for (index, revoke) in revokes(&journal).into_iter().enumerate() {
                let number = numbers[index];
                let tags = [(FILE[index], tag::SAME_UUID), (FILE[3], last)];
                blocks.push(journal.descriptor(number, &tags));
                blocks.extend([new(index as u64), new(10 + index as u64)]);
                blocks.extend(revoke);
                blocks.extend((index < commits).then(|| Journal::commit(number)));
            }
            journal.write(1, 32, &blocks);
            journal
        };
        let at = |index: usize, of: &'static [usize]| {
            move |journal: &Journal| {
                let mut revokes = [None, None, None];
                let blocks: Vec<u64> = of.iter().map(|&number| FILE[number]).collect();
                revokes[index] = Some(journal.revoke(numbers[index], &blocks));
                revokes
            }
        };
        for (what, revokes, commits, expected) in [
            ("first", at(0, &[3]), 3, [Some(0), Some(1), Some(2), Some(12)]),
            ("second", at(1, &[0, 1, 2, 3]), 3, [None, None, Some(2), Some(12)]),
            ("last", at(2, &[3, 1]), 3, [Some(0), None, Some(2), None]),
            ("not committed", at(2, &[3, 1]), 2, [Some(0), Some(1), None, Some(11)]),
            ("none", at(1, &[]), 3, [Some(0), Some(1), Some(2), Some(12)]),
        ] {
            assert_versions(&journal(&revokes, commits), expected, &format!("{what} from {sequence}"));
        }
        // A later revoke replaces an earlier one.
        let both = |journal: &Journal| {
            [0, 1, 2].map(|index| (index != 1).then(|| journal.revoke(numbers[index], &[FILE[3]])))
        };
        assert_versions(&journal(&both, 3), [Some(0), Some(1), Some(2), None], "two revokes");
    }
}

#[test]
fn the_length_of_a_revoke_block_has_bounds() {
    for (features, used, is_revoked) in [
        (0, 20_u32, true),
        (0, 19, false),
        (0, 0, false),
        (0, u32::MAX, true),
        (with::BITS_64, 24, true),
        (with::BITS_64, 23, false),
    ] {
        let mut journal = Journal::new(Ring { features: with::REVOKE | features, ..RING });
        let block = journal.far(FILE[0]);
        let descriptor = journal.descriptor(70, &[(block, tag::SAME_UUID | tag::LAST)]);
        let mut revoke = journal.revoke(70, &[block]);
        revoke[12..16].copy_from_slice(&used.to_be_bytes());
        journal.write(1, 32, &[descriptor, new(1), revoke, Journal::commit(70)]);
        let version = if is_revoked { None } else { Some(1) };
        assert_versions(&journal, [version, None, None, None], &format!("{features:#x}, {used} bytes"));
    }
    // With checksums, the last four bytes of a block are no block number.
    for (features, at, is_revoked) in [
        (with::CHECKSUM_2, 1020, false),
        (with::CHECKSUM_3, 1020, false),
        (with::CHECKSUM_3, 1016, true),
        (0, 1020, true),
    ] {
        let mut journal = Journal::new(Ring { features: with::REVOKE | features, ..RING });
        let descriptor = journal.descriptor(70, &[(FILE[0], tag::SAME_UUID | tag::LAST)]);
        let mut revoke = journal.revoke(70, &[]);
        revoke.resize(1024, 0x11);
        revoke[12..16].copy_from_slice(&1024_u32.to_be_bytes());
        revoke[at..at + 4].copy_from_slice(&(FILE[0] as u32).to_be_bytes());
        journal.write(1, 32, &[descriptor, new(1), revoke, Journal::commit(70)]);
        let version = if is_revoked { None } else { Some(1) };
        assert_versions(&journal, [version, None, None, None], &format!("{features:#x} at {at}"));
    }
}

/// After the last block of the ring, a transaction goes on at the ring's first block. Blocks for fast commits are
/// behind the ring.
#[test]
fn a_transaction_goes_on_at_the_start_of_the_ring() {
    let last = tag::SAME_UUID | tag::LAST;
    for (length, first, fast, end) in [
        (32, 1, None, 32),
        (32, 3, None, 32),
        (40, 1, Some(8), 32),
        (300, 1, Some(0), 44),
        (300, 2, Some(290), 10),
    ] {
        let features = with::REVOKE | if fast.is_some() { with::FAST_COMMIT } else { 0 };
        let fast_blocks = fast.unwrap_or(5);
        for before_end in 1..=5 {
            let start = end - before_end;
            let ring = Ring { length, first, start, features, fast_blocks, ..RING };
            let mut journal = Journal::new(ring);
            let tags = [(FILE[2], tag::SAME_UUID), (FILE[0], last)];
            let blocks = [
                journal.descriptor(70, &tags),
                new(1),
                new(2),
                Journal::commit(70),
                journal.descriptor(71, &[(FILE[1], last)]),
                new(3),
                Journal::commit(71),
            ];
            journal.write(start, end, &blocks);
            let what = format!("ring {first} to {end}, start {start}");
            assert_versions(&journal, [Some(2), Some(3), Some(1), None], &what);
            let unread = fast.map(|_| "it has fast commits");
            assert_eq!(journal.open().unread_journal(), unread, "{what}");
        }
    }
}

#[test]
fn a_ring_may_be_full() {
    let last = tag::SAME_UUID | tag::LAST;
    let mut journal = Journal::new(Ring { length: 7, start: 4, ..RING });
    let blocks = [
        journal.descriptor(70, &[(FILE[1], last)]),
        new(1),
        Journal::commit(70),
        journal.descriptor(71, &[(FILE[2], last)]),
        new(2),
        Journal::commit(71),
    ];
    journal.write(4, 7, &blocks);
    assert_versions(&journal, [None, Some(1), Some(2), None], "a full ring");
    // No block ends the transaction. The search must end nevertheless.
    let mut journal = Journal::new(Ring { length: 7, ..RING });
    let revoke = journal.revoke(70, &[FILE[0]]);
    journal.write(1, 7, &vec![revoke; 6]);
    assert_versions(&journal, [None; 4], "a ring of revokes");
}

/// Folders and tables of inodes are read from the journal, too.
#[test]
fn a_table_of_inodes_may_be_in_the_journal() {
    let mut journal = Journal::new(RING);
    // The file's inode has number 12, so it is the last of four in the third block of the table, which begins at block 8.
    let table = 8 + 11 * 256 / BLOCK;
    let mut newer = journal.image.clone();
    newer.put_inode(12, &Node::file(5, &[FILE[3] as u32]));
    let mut block = vec![0; BLOCK as usize];
    guest_disk::ByteSource::read_at(&mut newer.disk, table * BLOCK, &mut block).unwrap();
    let blocks = [journal.descriptor(70, &[(table, tag::SAME_UUID | tag::LAST)]), block, Journal::commit(70)];
    journal.write(1, 32, &blocks);
    assert_eq!(read(&mut journal.open(), "file", 100).unwrap(), contents(FILE[3], BLOCK)[..5]);
}

#[test]
fn a_journal_that_is_not_in_use_is_not_read() {
    let last = tag::SAME_UUID | tag::LAST;
    for (compatible, incompatible, version) in [
        (feature::HAS_JOURNAL, feature::RECOVER, Some(1)),
        (feature::HAS_JOURNAL, 0, None),
        (0, feature::RECOVER, None),
    ] {
        let mut journal = Journal::new(RING);
        let blocks = [journal.descriptor(70, &[(FILE[0], last)]), new(1), Journal::commit(70)];
        journal.write(1, 32, &blocks);
        journal.image.set(superblock::COMPATIBLE, &compatible.to_le_bytes());
        journal.image.set(superblock::INCOMPATIBLE, &incompatible.to_le_bytes());
        assert_versions(&journal, [version, None, None, None], &format!("{compatible}, {incompatible}"));
    }
}

#[test]
fn a_journal_that_cannot_be_read_gets_a_sentence() {
    let last = tag::SAME_UUID | tag::LAST;
    let damaged = Some("its superblock is damaged");
    for (ring, magic, unread) in [
        (RING, MAGIC, None),
        (RING, [0xc0, 0x3b, 0x39, 0x99], Some("it has no superblock")),
        (Ring { kind: 2, ..RING }, MAGIC, Some("it has no superblock")),
        (Ring { kind: 5, ..RING }, MAGIC, Some("it has no superblock")),
        // The first version of the superblock has no features.
        (Ring { kind: 3, features: with::BITS_64 | 0x40, ..RING }, MAGIC, None),
        (Ring { features: 0x43, ..RING }, MAGIC, Some("it has unknown features: 0x40")),
        (Ring { features: with::ASYNC_COMMIT, ..RING }, MAGIC, None),
        (Ring { block_bytes: 2048, ..RING }, MAGIC, damaged),
        (Ring { first: 0, ..RING }, MAGIC, damaged),
        (Ring { first: 32, ..RING }, MAGIC, damaged),
        (Ring { first: 2, ..RING }, MAGIC, damaged),
        (Ring { start: 32, ..RING }, MAGIC, damaged),
        (Ring { start: 31, ..RING }, MAGIC, None),
    ] {
        let mut journal = Journal::new(Ring { features: 0, ..RING });
        journal.ring = ring;
        journal.write_superblock(magic);
        journal.ring.features = 0;
        let blocks = [journal.descriptor(70, &[(FILE[0], last)]), new(1), Journal::commit(70)];
        journal.write(ring.start.min(29), 32, &blocks);
        assert_eq!(journal.open().unread_journal(), unread);
        let is_read = unread.is_none() && ring.start == 1;
        let version = if is_read { Some(1) } else { None };
        assert_versions(&journal, [version, None, None, None], &format!("{unread:?}"));
    }
}

#[test]
fn a_journal_with_missing_blocks_is_refused() {
    let last = tag::SAME_UUID | tag::LAST;
    let with_map = |size: u64, entries: &[Extent]| {
        let mut journal = Journal::new(RING);
        let tags = [(FILE[0], tag::SAME_UUID), (FILE[1], last)];
        let blocks = [journal.descriptor(70, &tags), new(1), new(2), Journal::commit(70)];
        journal.write(1, 32, &blocks);
        journal.image.put_inode(JOURNAL, &Node::with_extents(size, extents(0, entries)));
        journal
    };
    let size = 32 * BLOCK;
    let refusal = |journal: Journal| journal.image.refusal();
    assert_eq!(refusal(with_map(size, &[])), "its journal has no block 0");
    assert_eq!(refusal(with_map(size, &[Extent::Leaf(0, 1, AT)])), "its journal has no block 1");
    let hole = [Extent::Leaf(0, 3, AT), Extent::Leaf(4, 28, AT + 4)];
    assert_eq!(refusal(with_map(size, &hole)), "its journal has no block 3");
    assert_eq!(
        refusal(with_map((4 << 30) + 1, &[Extent::Leaf(0, 32, AT)])),
        "its journal has 4294967297 bytes, and ttvm reads at most 4294967296"
    );
    let largest = with_map(4 << 30, &[Extent::Leaf(0, 32, AT)]);
    assert_versions(&largest, [Some(1), Some(2), None, None], "the largest journal");
    // The contents of a block are behind the end of the file system.
    let behind = [Extent::Leaf(0, 3, AT), Extent::Leaf(3, 1, 8192), Extent::Leaf(4, 28, AT + 4)];
    let mut files = with_map(size, &behind).open();
    assert_eq!(read(&mut files, "file", 1024).unwrap_err(), "its journal refers to block 8192");
    // A journal ends where its file ends: the ring has three blocks, and the transaction does not end there.
    let short = with_map(4 * BLOCK, &[Extent::Leaf(0, 32, AT)]);
    assert_versions(&short, [None; 4], "a short journal");
}
