//! Positions as people write them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::notation::PositionSpec;

fuzz_target!(|text: &str| {
    let _ = text.parse::<PositionSpec>();
});
