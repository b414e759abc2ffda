//! Packed recordings: the bytes as they are, and the same bytes compressed, behind a right beginning.

#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use vmm::error::Error;
use vmm::recording::pack::{Sink, read_archive};

const MAX_BYTES: u64 = 1 << 20;

/// Asserts what a sink may rely on, and keeps nothing.
#[derive(Default)]
struct Nowhere {
    size_bytes: u64,
    done: u64,
}

impl Sink for Nowhere {
    fn begin(&mut self, name: &Path, size_bytes: u64) -> Result<(), Error> {
        assert!(name.components().all(|part| matches!(part, Component::Normal(_))));
        assert!(size_bytes <= MAX_BYTES);
        *self = Nowhere { size_bytes, done: 0 };
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        assert!(offset >= self.done && offset + bytes.len() as u64 <= self.size_bytes);
        self.done = offset + bytes.len() as u64;
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed");
    let _ = read_archive(bytes, MAX_BYTES, path, &mut Nowhere::default());
    let mut wrapped = b"TTVMPACK\x02\0\0\0".to_vec();
    wrapped.extend(zstd::encode_all(bytes, 1).expect("compressing in memory cannot fail"));
    let _ = read_archive(&wrapped[..], MAX_BYTES, path, &mut Nowhere::default());
});
