//! Compares instructions with results from an Intel processor: the golden vectors of `tests/silicon`, with the
//! interpreter and with the translator.

use silicon::golden::{self, Golden};
use silicon::{Which, replay};

#[test]
fn the_cpu_does_what_an_intel_processor_did() {
    let golden = Golden::load(&golden::path()).expect("the golden vectors are in the tree");
    let report = replay(&golden, Which::default(), 1).expect("the cases are those that were recorded");
    print!("{report}");
    assert_eq!(report.differences(), 0, "differences from the processor that was recorded");
    assert!(report.not_offered.is_empty(), "instructions that the CPU model has were undefined");
}
