//! Fuzzes manifests. If the reader accepts a manifest, the manifest must have the same meaning after it is written
//! and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use recording::Manifest;

fuzz_target!(|text: &str| {
    if let Ok(manifest) = Manifest::parse(text) {
        assert_eq!(Manifest::parse(&manifest.text()).as_ref(), Ok(&manifest));
        let _ = manifest.machine_hash();
    }
});
