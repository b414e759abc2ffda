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
use devices::virtio::DeviceStateV1;

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

/// Network cards came later than the two boards.
#[test]
fn a_saved_network_card_has_the_bytes_of_version_1() {
    let state = DeviceStateV1::Net {
        mac: [0x52, 0x54, 1, 2, 3, 4],
        mtu: 0x1234,
        segments: true,
        waiting: vec![vec![5, 6], vec![7]],
        sent_count: 0x89,
        sent_hash: [
            0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
        ],
    };
    let bytes = [
        &[3, 0x52, 0x54, 1, 2, 3, 4, 0xb4, 0x24, 1, 2, 2, 5, 6, 1, 7, 0x89, 0x01][..],
        &[0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf],
    ]
    .concat();
    assert_eq!(postcard::to_stdvec(&state).unwrap(), bytes);
    assert_eq!(postcard::from_bytes::<DeviceStateV1>(&bytes).unwrap(), state);
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
