//! Fuzzes checkpoint stores. The input contains some files of a store, each after its length. The target corrects
//! lengths and checksums, because a fuzzer would never guess right ones by itself. If the store can be opened, the
//! target reads the whole store, adds checkpoints and removes some. The format is described in
//! checkpoint/FORMAT.md.

#![no_main]

use std::fs;
use std::path::Path;

use checkpoint::{PAGE_BYTES, PageRef, Policy, Result, Space, Store};
use libfuzzer_sys::fuzz_target;

/// The sizes of RAM and disk of the machine whose recording gave the fuzzer's first inputs.
const RAM_PAGES: u64 = 8192;
const DISK_BLOCKS: u64 = 64;

const MAGIC: &[u8; 8] = b"ttvmckpt";
const FOOTER_WORDS: usize = 14;
const FOOTER_BYTES: usize = FOOTER_WORDS * 8 + 16;
/// The indexes of words in a file's footer.
const NUMBER: usize = 0;
const PAGES: [(usize, u64); 2] = [(3, RAM_PAGES), (4, DISK_BLOCKS)];
const BLOBS_LEN: usize = 5;
/// For the sections head, state and directory: the indexes of the footer's words with the section's length,
/// unpacked length and checksum. The head is never packed, so it has no unpacked length.
const SECTIONS: [(usize, Option<usize>, usize); 3] = [(6, None, 7), (8, Some(9), 10), (11, Some(12), 13)];

/// Splits the input into files, and corrects each file.
fn files(mut input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut number = 0;
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first_chunk::<2>()?;
        let (file, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        input = rest;
        number += 1;
        Some(whole(file, number))
    })
}

/// Returns the file with corrected counts and checksums in its footer. A packed section stays packed, and an
/// unpacked section stays unpacked.
fn whole(file: &[u8], number: u64) -> Vec<u8> {
    let (body, footer) = file.split_at(file.len().saturating_sub(FOOTER_BYTES));
    let body = body.strip_prefix(MAGIC).unwrap_or(body);
    let mut words = [0; FOOTER_WORDS];
    for (word, bytes) in words.iter_mut().zip(footer.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
    }
    words[NUMBER] = number;
    for (at, pages) in PAGES {
        words[at] = pages;
    }
    let mut rest = body;
    for (len, raw_len, check) in SECTIONS.into_iter().rev() {
        let length = (words[len] as usize).min(rest.len());
        let (before, section) = rest.split_at(rest.len() - length);
        rest = before;
        let was_plain = raw_len.is_none_or(|raw_len| words[raw_len] == words[len]);
        words[len] = length as u64;
        if let Some(raw_len) = raw_len.filter(|_| was_plain) {
            words[raw_len] = length as u64;
        }
        words[check] = u64::from(crc32fast::hash(section));
    }
    words[BLOBS_LEN] = rest.len() as u64;
    let mut end: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    end.extend(1_u32.to_le_bytes());
    end.extend(crc32fast::hash(&end).to_le_bytes());
    [MAGIC, body, &end, MAGIC].concat()
}

fuzz_target!(|input: &[u8]| {
    let folder =
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place for files");
    let store = folder.path().join("checkpoints");
    drop(Store::create(&store, RAM_PAGES, DISK_BLOCKS).expect("a store can be made"));
    for (file, number) in files(input).take(8).zip(1..) {
        fs::write(store.join(format!("{number:08}.ckpt")), file).expect("there is room for it");
    }
    let _ = read(&store);
    let _ = change(&store);
    let _ = read(&store);
});

fn read(store: &Path) -> Result<()> {
    let store = Store::open(store)?;
    let _ = store.verify(|_, _| ());
    for entry in store.entries() {
        let _ = store.state_at(entry.position);
        let maps = store.maps_at(entry.position)?;
        let mut page = [0; PAGE_BYTES];
        for space in [Space::Ram, Space::Disk] {
            for (_, version) in maps.space(space).iter_not_base() {
                if let PageRef::Stored(blob) = version {
                    let _ = store.read(*blob, &mut page);
                }
            }
        }
    }
    Ok(())
}

/// Adds a checkpoint before and a checkpoint after the others, and then removes some checkpoints.
fn change(store: &Path) -> Result<()> {
    let store = Store::open(store)?;
    let positions: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
    for position in [
        positions.first().map_or(0, |first| first / 2),
        positions.last().map_or(9, |last| last.saturating_add(9)),
    ] {
        let mut draft = store.add(position, position)?;
        draft.page(Space::Ram, 3, &[7; PAGE_BYTES])?;
        draft.finish(&[], &[1])?;
    }
    store.thin(&Policy { max_bytes: Some(1 << 14), ..Policy::default() })?;
    Ok(())
}
