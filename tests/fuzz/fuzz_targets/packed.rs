//! Fuzzes packed recordings. The target reads the input's bytes unchanged, and then reads the same bytes compressed
//! after a valid header.

#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use machine::error::Error;
use recording::Manifest;
use recording::pack::{Sink, check_log, read_archive};

const MAX_BYTES: u64 = 1 << 20;

/// A receiver of unpacked files that keeps only the last file. The receiver asserts that the names, sizes and
/// offsets of files are valid.
#[derive(Default)]
struct Last {
    bytes: Vec<u8>,
    done: u64,
}

impl Sink for Last {
    fn begin(&mut self, name: &Path, size_bytes: u64) -> Result<(), Error> {
        assert!(name.components().all(|part| matches!(part, Component::Normal(_))));
        assert!(size_bytes <= MAX_BYTES);
        *self = Last { bytes: vec![0; size_bytes as usize], done: 0 };
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = offset + bytes.len() as u64;
        assert!(offset >= self.done && end <= self.bytes.len() as u64);
        self.bytes[offset as usize..end as usize].copy_from_slice(bytes);
        self.done = end;
        Ok(())
    }

    fn check_log(&mut self, manifest: &Manifest) -> Result<(), String> {
        check_log(&self.bytes, manifest)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed");
    let _ = read_archive(bytes, MAX_BYTES, path, &mut Last::default());
    let mut wrapped = b"TTVMPACK\x02\0\0\0".to_vec();
    wrapped.extend(zstd::encode_all(bytes, 1).expect("compressing in memory cannot fail"));
    let _ = read_archive(&wrapped[..], MAX_BYTES, path, &mut Last::default());
});
