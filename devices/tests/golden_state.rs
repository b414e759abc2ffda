//! The bytes of a saved board, as recordings of version 1 have them.
//!
//! `golden/*.json` are two states in which no two fields of a kind are alike (flags by their pattern over both states and
//! all chips of a kind), which between them have every variant; `golden/*.hex` are their bytes, made by the program that
//! first wrote such recordings. A field that is moved, added or retyped breaks these tests. Then make version 2 of the
//! state and let version 1 be read: never renew the bytes. (A field that is only renamed, or a type, keeps the bytes; the
//! JSON follows.)

use devices::DebugPortsV1;
use devices::pci::PciBusStateV1;
use devices::platform::PlatformStateV1;

type State = PlatformStateV1<PciBusStateV1>;

fn check(json: &str, hex: &str) {
    let state: State = serde_json::from_str(json).expect("a field has another name or type, or is new");
    let digits: String = hex.split_whitespace().collect();
    let encoded: String =
        postcard::to_stdvec(&state).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(encoded, digits, "new recordings would not be readable by old programs");
    let bytes: Vec<u8> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
    let decoded: State = postcard::from_bytes(&bytes).expect("old recordings can be read");
    assert_eq!(decoded, state, "old recordings would be misread");
}

#[test]
fn a_saved_board_has_the_bytes_of_version_1() {
    check(include_str!("golden/platform_state_v1_a.json"), include_str!("golden/platform_state_v1_a.hex"));
    check(include_str!("golden/platform_state_v1_b.json"), include_str!("golden/platform_state_v1_b.hex"));
}

#[test]
fn the_ports_of_a_machine_description_keep_their_names() {
    for (ports, json) in [
        (DebugPortsV1 { console: true, exit: Some(0x501) }, r#"{"console":true,"exit":1281}"#),
        (DebugPortsV1 { console: false, exit: None }, r#"{"console":false,"exit":null}"#),
    ] {
        assert_eq!(serde_json::to_string(&ports).unwrap(), json);
        assert_eq!(serde_json::from_str::<DebugPortsV1>(json).unwrap(), ports);
    }
}
