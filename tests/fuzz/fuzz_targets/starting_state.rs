//! Fuzzes starting states. The target reads the input's bytes unchanged, and then reads the same bytes compressed
//! after a valid header. If the reader accepts a state, the state must be the same after it is written and read
//! again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::{Format, StartingState};

/// Number of pages of RAM in the machine that starts in the state.
const RAM_PAGES: u64 = 16;
const DISK_BLOCKS: u64 = 4;

fuzz_target!(|bytes: &[u8]| {
    let _ = StartingState::parse(bytes, Format::V5, RAM_PAGES, DISK_BLOCKS);
    let mut wrapped = b"TTVMFROM\x01\0\0\0".to_vec();
    wrapped.extend(zstd::encode_all(bytes, 1).expect("compressing in memory cannot fail"));
    let Ok(start) = StartingState::parse(&wrapped, Format::V5, RAM_PAGES, DISK_BLOCKS) else { return };
    let folder = tempfile::tempdir().expect("a folder can be made");
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    start.write(&paths[0], Format::V5).expect("there is room");
    let first = std::fs::read(&paths[0]).expect("it was just written");
    let again = StartingState::parse(&first, Format::V5, RAM_PAGES, DISK_BLOCKS).expect("it was just written");
    again.write(&paths[1], Format::V5).expect("there is room");
    assert!(first == std::fs::read(&paths[1]).expect("it was just written"));
});
