//! Uses two stores that the first program with version 2 of the format wrote. The tests read both stores, and write
//! one of the two again with the same bytes.
//!
//! These tests fail if a field of the footer or the directory is moved, added or retyped. In that case, make version 3
//! of the format and keep reading version 2. Never regenerate the files.

use std::fs;
use std::path::{Path, PathBuf};

use Space::{Disk, Ram};
use Version::{Noise, NoiseChanged, Text, TextChanged, Zero};
use checkpoint::{Counts, PAGE_BYTES, Page, PageRef, Space, Store};

#[derive(Clone, Copy, Debug)]
enum Version {
    Zero,
    Noise(u8),
    NoiseChanged(u8),
    Text(u8),
    TextChanged(u8),
}

type Pages = &'static [(Space, u64, Version)];

struct Checkpoint {
    position: u64,
    time_ns: u64,
    head: &'static [u8],
    /// The bytes that are repeated to make the checkpoint's state.
    state: &'static [u8],
    repeated: usize,
    written: Pages,
    /// The contents of the pages that were written at this checkpoint or an earlier one.
    holds: Pages,
    counts: Counts,
}

/// The checkpoints in the order of creation. The position of the last checkpoint lies between the positions of the
/// others.
const EVERY_FORM: &[Checkpoint] = &[
    Checkpoint {
        position: 0x1_0000_0000_0010,
        time_ns: 0x2_0000_0000_0011,
        head: b"first",
        state: b"a state that is packed",
        repeated: 20,
        written: &[
            (Ram, 0, Noise(1)),
            (Ram, 1, Text(1)),
            (Ram, 2, Zero),
            (Disk, 0, Text(2)),
            (Disk, 3, Text(3)),
        ],
        holds: &[
            (Ram, 0, Noise(1)),
            (Ram, 1, Text(1)),
            (Ram, 2, Zero),
            (Disk, 0, Text(2)),
            (Disk, 3, Text(3)),
        ],
        counts: Counts { ram: 3, disk: 2, zero: 1, delta: 0, full: 4, dirtied_bytes: 5 * 4096 },
    },
    Checkpoint {
        position: 0x1_0000_0000_0030,
        time_ns: 0x2_0000_0000_0033,
        head: b"",
        state: b"plain",
        repeated: 1,
        written: &[
            (Ram, 0, NoiseChanged(1)),
            (Ram, 1, TextChanged(1)),
            (Ram, 2, Text(2)),
            (Disk, 0, Noise(2)),
            (Disk, 3, Text(9)),
        ],
        holds: &[
            (Ram, 0, NoiseChanged(1)),
            (Ram, 1, TextChanged(1)),
            (Ram, 2, Text(2)),
            (Disk, 0, Noise(2)),
            (Disk, 3, Text(9)),
        ],
        counts: Counts { ram: 3, disk: 2, zero: 0, delta: 2, full: 2, dirtied_bytes: 5 * 4096 },
    },
    Checkpoint {
        position: 0x1_0000_0000_0020,
        time_ns: 0x2_0000_0000_0022,
        head: b"between",
        state: b"",
        repeated: 1,
        written: &[(Ram, 0, Zero), (Ram, 5, Text(5)), (Disk, 1, Text(1))],
        holds: &[
            (Ram, 0, Zero),
            (Ram, 1, Text(1)),
            (Ram, 2, Zero),
            (Ram, 5, Text(5)),
            (Disk, 0, Text(2)),
            (Disk, 1, Text(1)),
            (Disk, 3, Text(3)),
        ],
        counts: Counts { ram: 2, disk: 1, zero: 1, delta: 0, full: 1, dirtied_bytes: 3 * 4096 },
    },
];

const PLAIN: &[Checkpoint] = &[
    Checkpoint {
        position: 0x1_0000_0000_0040,
        time_ns: 0x2_0000_0000_0044,
        head: b"head",
        state: b"state",
        repeated: 1,
        written: &[(Ram, 1, Noise(3)), (Ram, 4, Zero), (Disk, 2, Noise(4))],
        holds: &[(Ram, 1, Noise(3)), (Ram, 4, Zero), (Disk, 2, Noise(4))],
        counts: Counts { ram: 2, disk: 1, zero: 1, delta: 0, full: 2, dirtied_bytes: 3 * 4096 },
    },
    Checkpoint {
        position: 0x1_0000_0000_0050,
        time_ns: 0x2_0000_0000_0055,
        head: b"",
        state: b"another",
        repeated: 1,
        written: &[(Ram, 1, NoiseChanged(3)), (Ram, 3, Noise(4))],
        holds: &[(Ram, 1, NoiseChanged(3)), (Ram, 3, Noise(4)), (Ram, 4, Zero), (Disk, 2, Noise(4))],
        counts: Counts { ram: 2, disk: 0, zero: 0, delta: 1, full: 0, dirtied_bytes: 2 * 4096 },
    },
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The contents of a page in this version. The contents called noise cannot be compressed.
fn page(version: Version) -> Page {
    let mut page = [0; PAGE_BYTES];
    match version {
        Version::Zero => {}
        Version::Noise(seed) => noise(seed, &mut page),
        Version::NoiseChanged(seed) => {
            noise(seed, &mut page);
            page[1000] ^= 0x55;
            page[3003] ^= 0xaa;
        }
        Version::Text(seed) => text(seed, &mut page),
        Version::TextChanged(seed) => {
            text(seed, &mut page);
            noise(seed, &mut page[1024..1600]);
        }
    }
    page
}

fn noise(seed: u8, page: &mut [u8]) {
    let mut state = u64::from(seed);
    for byte in page {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
}

fn text(seed: u8, page: &mut [u8]) {
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = (at / 100) as u8 ^ (at % 7) as u8 ^ seed;
    }
}

fn write(dir: &Path, checkpoints: &[Checkpoint]) {
    let store = Store::create(dir, 6, 4).unwrap();
    for checkpoint in checkpoints {
        let mut draft = store.add(checkpoint.position, checkpoint.time_ns).unwrap();
        for &(space, number, version) in checkpoint.written {
            draft.page(space, number, &page(version)).unwrap();
        }
        draft.finish(checkpoint.head, &checkpoint.state.repeat(checkpoint.repeated)).unwrap();
    }
}

fn check(store: &Store, checkpoints: &[Checkpoint]) {
    let mut in_order: Vec<&Checkpoint> = checkpoints.iter().collect();
    in_order.sort_by_key(|checkpoint| checkpoint.position);
    assert_eq!((store.ram_pages(), store.disk_blocks()), (6, 4));
    let entries = store.entries();
    assert_eq!(entries.len(), in_order.len());
    for (entry, expected) in entries.iter().zip(in_order) {
        let Checkpoint { position, time_ns, head, counts, .. } = *expected;
        assert_eq!(
            (entry.position, entry.time_ns, &entry.head[..], entry.counts),
            (position, time_ns, head, counts)
        );
        assert_eq!(store.state_at(position).unwrap(), expected.state.repeat(expected.repeated));
        let maps = store.maps_at(position).unwrap();
        for (space, pages) in [(Space::Ram, 6), (Space::Disk, 4)] {
            for number in 0..pages {
                let wanted = expected.holds.iter().find(|held| (held.0, held.1) == (space, number));
                let what = format!("{space:?} page {number} at {position}");
                match (maps.space(space).get(number), wanted) {
                    (PageRef::Base, None) | (PageRef::Zero, Some((.., Version::Zero))) => {}
                    (PageRef::Stored(id), Some(&(.., version))) => {
                        let mut contents = [0; PAGE_BYTES];
                        store.read(*id, &mut contents).unwrap();
                        assert!(contents == page(version), "{what}");
                    }
                    (found, wanted) => panic!("{what}: {found:?}, not {wanted:?}"),
                }
            }
        }
    }
    store.verify(|_, _| {}).unwrap();
}

#[test]
fn old_stores_are_read() {
    for (name, checkpoints) in [("every-form", EVERY_FORM), ("plain", PLAIN)] {
        check(&Store::open(golden(name)).unwrap(), checkpoints);
    }
}

/// Tests only the store without compression. For the other store, another version of a compressor may write other
/// bytes in the same format.
#[test]
fn new_stores_have_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), PLAIN);
    let mut compared = 0;
    for file in fs::read_dir(golden("plain")).unwrap() {
        let name = file.unwrap().file_name();
        let (old, new) =
            (fs::read(golden("plain").join(&name)).unwrap(), fs::read(dir.path().join(&name)).unwrap());
        assert!(old == new, "{} differs", name.display());
        compared += 1;
    }
    assert_eq!(compared, PLAIN.len() + 1, "the header and each checkpoint");
}
