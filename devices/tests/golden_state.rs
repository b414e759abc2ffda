//! The bytes of a saved board in recordings of version 1.
//!
//! `golden/*.json` are two states that together have every variant. In each state, no two fields of the same type
//! are equal. Over both states and all chips of a kind, each flag has a pattern of values that no other flag has.
//! `golden/*.hex` are the bytes of these states, made by the program that first wrote such recordings. A field that
//! is moved, added or retyped breaks these tests. If the tests break, add version 2 of the state and keep reading
//! version 1: never renew the bytes. (Renaming a field or a type keeps the bytes; change the JSON then.)

use devices::DebugPortsV1;
use devices::passthrough::{AskV1, InterruptModeV1, RegionV1, TranslationStateV1, WrittenV1};
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

/// Network cards were added after the two golden boards, so this test has their state.
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

/// Passed-through devices were added after network cards, so this test has their states.
#[test]
fn passed_through_devices_have_the_bytes_of_version_1() {
    let hash = std::array::from_fn(|number| 0xa0 + number as u8);
    let written = WrittenV1 { count: 0x89, hash };
    let hash_bytes: Vec<u8> = hash.to_vec();
    let translation = TranslationStateV1 {
        status: 0x81,
        root: 0x82,
        root_in_use: 0x83,
        context: 0x84,
        address: 0x85,
        invalidate: 0x86,
        fault_event: [1, 2, 3, 4],
    };
    for (state, bytes) in [
        (DeviceStateV1::PassedFunction { line: true, written }, [&[4, 1, 0x89, 1][..], &hash_bytes].concat()),
        (DeviceStateV1::PassedPorts { written }, [&[5, 0x89, 1][..], &hash_bytes].concat()),
        (
            DeviceStateV1::Translation(translation),
            vec![6, 0x81, 1, 0x82, 1, 0x83, 1, 0x84, 1, 0x85, 1, 0x86, 1, 1, 2, 3, 4],
        ),
        (
            DeviceStateV1::PassedPortsWithLine { line: true, written },
            [&[7, 1, 0x89, 1][..], &hash_bytes].concat(),
        ),
    ] {
        assert_eq!(postcard::to_stdvec(&state).unwrap(), bytes);
        assert_eq!(postcard::from_bytes::<DeviceStateV1>(&bytes).unwrap(), state);
    }
}

#[test]
fn what_devices_are_asked_has_the_bytes_of_version_1() {
    let (device, offset, size_bytes, value) = (0x11, 0x12, 0x13, 0x14);
    let interrupts = |mode| AskV1::Interrupts { device, mode };
    for (ask, bytes) in [
        (
            AskV1::Read { device, region: RegionV1::Bar(0x15), offset, size_bytes },
            &[0, 0x11, 0, 0x15, 0x12, 0x13][..],
        ),
        (AskV1::Read { device, region: RegionV1::Config, offset, size_bytes }, &[0, 0x11, 1, 0x12, 0x13]),
        (
            AskV1::Write { device, region: RegionV1::Ports, offset, size_bytes, value },
            &[1, 0x11, 2, 0x12, 0x13, 0x14],
        ),
        (interrupts(InterruptModeV1::Off), &[2, 0x11, 0]),
        (interrupts(InterruptModeV1::Line), &[2, 0x11, 1]),
        (interrupts(InterruptModeV1::Msi), &[2, 0x11, 2]),
        (interrupts(InterruptModeV1::Msix(0x16)), &[2, 0x11, 3, 0x16]),
        (AskV1::Translate { root: Some(0x17), first: 0x18, pages: 0x19 }, &[3, 1, 0x17, 0x18, 0x19]),
        (AskV1::Translate { root: None, first: 0x18, pages: 0x19 }, &[3, 0, 0x18, 0x19]),
    ] {
        assert_eq!(postcard::to_stdvec(&ask).unwrap(), bytes);
        assert_eq!(postcard::from_bytes::<AskV1>(bytes).unwrap(), ask);
    }
}
