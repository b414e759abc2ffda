//! Fuzzes the parser of positions in the notation of the command line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::notation::PositionSpec;

fuzz_target!(|text: &str| {
    let _ = text.parse::<PositionSpec>();
});
