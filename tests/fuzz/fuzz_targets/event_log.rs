//! Fuzzes event logs. The target reads the input as a log, and then reads a log whose frames have the input's bytes
//! as payloads. These frames have right checksums, which a fuzzer would never guess by itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::Format;
use machine::position::Instructions;
use recording::log::{log_of_payloads, parse_log};

fuzz_target!(|bytes: &[u8]| {
    let _ = parse_log::<Instructions>(bytes, Format::V5);
    // Split the bytes into payloads. The byte before each payload is its length.
    let mut rest = bytes;
    let payloads: Vec<&[u8]> = std::iter::from_fn(|| {
        let (&length, after) = rest.split_first()?;
        let (payload, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        Some(payload)
    })
    .collect();
    // A last payload of zeros looks like data that the host never wrote to the file, so the reader may report a
    // torn log.
    let looks_lost = payloads.last().is_some_and(|payload| payload.iter().all(|&byte| byte == 0));
    if let Ok(log) = parse_log::<Instructions>(&log_of_payloads(payloads), Format::V5) {
        assert!(!log.torn || looks_lost);
        if let Ok(Some(parting)) = recording::log::diff::diff(&log, &log) {
            panic!("differs from itself: {}", parting.what);
        }
    }
});
