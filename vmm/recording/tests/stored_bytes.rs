//! Tests the stored bytes of a recording. Programs with the same format version read one another's recordings, so these
//! bytes must never change. A type whose fields change becomes a new type with the next number in its name, and the
//! format gets the next version.
//!
//! All fields in these tests have different values, and every variant is present. So a test fails if a field is moved,
//! added or retyped. The states of the CPU and the devices have their own tests (`cpu/tests/stored_state.rs`,
//! `devices/tests/golden_state.rs`).

use cpu::{Counts, CpuModel, CpuState, CpuStateV1, SpinState, Turn, TurnPolicy, TurnState};
use devices::DebugPortsV1;
use devices::passthrough::{AskV1, DeviceInputV1, DmaV1, InterruptV1, RegionV1};
use devices::pci::{PciBus, PciBusStateV1};
use devices::platform::{Platform, PlatformStateV1};
use machine::checks::CheckRecord;
use machine::config::{ImageFile, MachineConfig, Processors};
use machine::console_tail::ConsoleTail;
use machine::inputs::{Event, PowerOn, Stopped};
use machine::position::{Count, Exits, Instructions, Moment};
use machine::processors::OtherProcessors;
use machine::start::{KernelFiles, ModuleFile, Start};
use machine::{Format, Hashes, MachineState, Outcome, hex};
use recording::Manifest;
use recording::checkpoints::CheckpointHead;
use recording::cursor::Cursor;
use recording::log::{EndRecord, EventRecord, LogRecord, LogWriter, read_log};

const OUTCOMES: [Outcome; 10] = [
    Outcome::PowerOff,
    Outcome::Reset,
    Outcome::Panic,
    Outcome::TripleFault { rip: 0xffff_ffff_8123_4567 },
    Outcome::DebugExit { code: 0x8765_4321 },
    Outcome::IdleForever,
    Outcome::Ended,
    Outcome::Interrupted,
    Outcome::Limit,
    Outcome::TextShown,
];

fn at<C: Count>(count: u64, time_ns: u64) -> Moment<C> {
    Moment { count: C::new(count), time_ns }
}

/// Returns consecutive byte values, beginning with `first`.
fn bytes<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|number| first.wrapping_add(number as u8))
}

fn platform() -> PlatformStateV1<PciBusStateV1> {
    let json = include_str!("../../../devices/tests/golden/platform_state_v1_a.json");
    serde_json::from_str(json).expect("the devices' tests have the same file")
}

fn state(outcome: Option<Outcome>) -> MachineState {
    let mut cpu = CpuState::reset();
    cpu.gpr = std::array::from_fn(|number| 0x1111 * number as u64);
    let counts = Counts { steps: 0x1_2345_6789, ..Counts::default() };
    let mut console = ConsoleTail::default();
    console.push(&[b'.'; 9000]);
    console.push(b"login: ");
    MachineState {
        cpu,
        counts,
        others: OtherProcessors::default(),
        platform: platform(),
        idle_ns: 0x9_8765_4321,
        console,
        outcome,
    }
}

/// The stored bytes of a machine's state that follow the states of the CPU and the devices. The console's text is shown
/// as `text`.
fn rest_of(state: &MachineState) -> String {
    let bytes = state.to_bytes(Format::V5);
    let cpu = postcard::to_stdvec(&CpuStateV1::new(&state.cpu, state.counts)).expect("plain data");
    let platform = postcard::to_stdvec(&state.platform).expect("plain data");
    let rest = bytes.strip_prefix(&cpu[..]).expect("the CPU comes first");
    let rest = rest.strip_prefix(&platform[..]).expect("then come the devices");
    hex(rest).replace(&hex(state.console.text()), " text ")
}

#[test]
fn a_machines_state() {
    let outcomes = [None].into_iter().chain(OUTCOMES.map(Some));
    let found: Vec<_> = outcomes.map(|outcome| rest_of(&state(outcome))).collect();
    let expected = [
        "a18695bb9801af468040 text 00",
        "a18695bb9801af468040 text 0100",
        "a18695bb9801af468040 text 0101",
        "a18695bb9801af468040 text 0102",
        "a18695bb9801af468040 text 0103e78a8d89f8ffffffff01",
        "a18695bb9801af468040 text 0104a18695bb08",
        "a18695bb9801af468040 text 0105",
        "a18695bb9801af468040 text 0106",
        "a18695bb9801af468040 text 0107",
        "a18695bb9801af468040 text 0108",
        "a18695bb9801af468040 text 0109",
    ];
    assert_eq!(found, expected);
}

fn head<C: Count>() -> CheckpointHead<C> {
    CheckpointHead {
        at: at(0x1_2345_6789, 0x2_3456_789a),
        branches: 0x3_4567_89ab,
        system_calls: 0x4_5678_9abc,
        rip: 0xffff_ffff_8567_89ab,
        cursor: Cursor::after(0x6789, 0x789a, at(0x1_2345_6000, 0x2_3456_7000), 0x89ab_cdef),
    }
}

#[test]
fn a_checkpoints_head() {
    let expected = "89cf959a129af1d9a223ab939eab34bcb5e2b345ab939eabf8ffffffff0189cf019af10180c0959a1280e0d9a223ef9bafcd08";
    assert_eq!(hex(&head::<Instructions>().to_bytes(Format::V5)), expected);
    assert_eq!(hex(&head::<Exits>().to_bytes(Format::V5)), expected);
    assert_eq!(
        CheckpointHead::parse(Format::V5, &head::<Exits>().to_bytes(Format::V5)),
        Some(head::<Exits>())
    );
}

fn events() -> Vec<Event> {
    vec![
        Event::PowerOn(PowerOn { unix_seconds: -1_700_000_000, seed: bytes(0x80), columns: 132, rows: 43 }),
        Event::ConsoleInput(b"ls\r".to_vec()),
        Event::ConsoleResize { columns: 300, rows: 200 },
        Event::PowerButton,
        Event::Ended,
        Event::Stopped(Stopped { registers: 0xfedc_ba98_7654_3210, ram_digest: bytes(0xa0) }),
        Event::TimePassed { ns: 0x12_3456_789a },
        Event::Interrupted,
        Event::Limit,
        Event::NetworkInput(vec![vec![0xe1, 0xe2, 0xe3], Vec::new(), vec![0xe4]]),
        Event::Devices(DeviceInputV1 {
            asked: Some(AskV1::Read {
                device: 0xd1,
                region: RegionV1::Bar(0xd2),
                offset: 0x1234_5678,
                size_bytes: 0xd3,
            }),
            dma: vec![DmaV1 { gpa: 0x9_8765_4321, bytes: vec![0xd4, 0xd5] }],
            interrupts: vec![InterruptV1 { device: 0xd6, vector: 0xd7 }],
            value: Some(0xd8),
        }),
        Event::TextShown,
    ]
}

/// A log with every kind of record, which ends with this outcome.
fn records<C: Count>(outcome: Outcome) -> Vec<LogRecord<C>> {
    let mut records = vec![LogRecord::Machine(bytes(0xc0))];
    for (number, event) in events().into_iter().enumerate() {
        let number = number as u64;
        // The last event comes in at the same point as the event before it.
        let at = at(1000 * number.min(10), 2_000_000 * number.min(10));
        let (branches, rip, cpu_hash) = (300 * number + 1, 0xffff_ffff_8000_0000 + number, bytes(0x10));
        records.push(LogRecord::SystemCalls(40 * number));
        records.push(LogRecord::Event(EventRecord { at, branches, rip, cpu_hash, event }));
    }
    for (devices_hash, ram_digest) in [
        (None, None),
        (Some(bytes(0x20)), None),
        (None, Some(bytes(0x30))),
        (Some(bytes(0x40)), Some(bytes(0x50))),
    ] {
        let (at, branches, rip, cpu_hash) = (at(10_000, 20_000_000), 5000, 0x12_3456, bytes(0x60));
        records.push(LogRecord::Check(CheckRecord { at, branches, rip, cpu_hash, devices_hash, ram_digest }));
    }
    let hashes = Hashes { cpu: bytes(0x01), devices: bytes(0x21), ram: bytes(0x41), disk: bytes(0x51) };
    let (at, branches, console_bytes, console_hash) = (at(11_000, 30_000_000), 6000, 70_000, bytes(0x71));
    records.push(LogRecord::End(EndRecord { at, branches, outcome, hashes, console_bytes, console_hash }));
    records
}

/// The payloads of a log file with these records. Checks that the file reads back as the same records.
fn payloads<C: Count>(records: &[LogRecord<C>]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let mut writer = LogWriter::create(&path, Format::V5).unwrap();
    records.iter().for_each(|record| writer.append(record).unwrap());
    assert_eq!(read_log::<C>(&path, Format::V5).unwrap().records().unwrap(), records);
    let file = std::fs::read(&path).unwrap();
    let mut rest = file.strip_prefix(b"TTVMLOG1").expect("a log begins so");
    let mut payloads = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<12>() {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let (payload, behind) = behind.split_at(length as usize);
        payloads.push(hex(payload));
        rest = behind;
    }
    payloads
}

#[test]
fn the_records_of_a_log() {
    let found = payloads::<Instructions>(&records(Outcome::PowerOff));
    let expected = [
        "00c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf",
        "0400",
        "0100000180808080f8ffffffff01101112131415161700ffc39fd50c808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f84012b",
        "0428",
        "01e80780897aad0281808080f8ffffffff01101112131415161701036c730d",
        "0450",
        "01d00f8092f401d90482808080f8ffffffff01101112131415161702ac02c801",
        "0478",
        "01b817809bee02850783808080f8ffffffff01101112131415161703",
        "04a001",
        "01a01f80a4e803b10984808080f8ffffffff01101112131415161704",
        "04c801",
        "01882780ade204dd0b85808080f8ffffffff0110111213141516170590e4d0b287d3aeeefe01a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
        "04f001",
        "01f02e80b6dc05890e86808080f8ffffffff011011121314151617069af1d9a2a302",
        "049802",
        "01d83680bfd606b51087808080f8ffffffff01101112131415161707",
        "04c002",
        "01c03e80c8d007e11288808080f8ffffffff01101112131415161708",
        "04e802",
        "01a84680d1ca088d1589808080f8ffffffff011011121314151617090303e1e2e30001e4",
        "049003",
        "01904e80dac409b9178a808080f8ffffffff0110111213141516170a0100d100d2f8acd19101d301a18695bb980102d4d501d6d70101d801",
        "04b803",
        "01904e80dac409e5198b808080f8ffffffff0110111213141516170b",
        "02904e80dac4098827d6e84860616263646566670000",
        "02904e80dac4098827d6e848606162636465666701202122232425262700",
        "02904e80dac4098827d6e84860616263646566670001303132333435363738393a3b3c3d3e3f",
        "02904e80dac4098827d6e848606162636465666701404142434445464701505152535455565758595a5b5c5d5e5f",
        "03f8558087a70ef02e000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70f0a2047172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f90",
    ];
    assert_eq!(found, expected);
    assert_eq!(payloads::<Exits>(&records(Outcome::PowerOff)), found);
}

#[test]
fn the_end_of_a_log() {
    let ends = OUTCOMES.map(|outcome| payloads::<Exits>(&records(outcome)).pop().expect("it has an end"));
    // The bytes of the outcome, and the bytes after it.
    let found = ends.map(|end| end[18..40].to_string());
    let expected = [
        "000102030405060708090a",
        "010102030405060708090a",
        "020102030405060708090a",
        "03e78a8d89f8ffffffff01",
        "04a18695bb080102030405",
        "050102030405060708090a",
        "060102030405060708090a",
        "070102030405060708090a",
        "080102030405060708090a",
        "090102030405060708090a",
    ];
    assert_eq!(found, expected);
}

fn image(name: &str, first: u8, size_bytes: u64) -> ImageFile {
    ImageFile { path: format!("/images/{name}").into(), hash: hex(&bytes::<32>(first)), size_bytes }
}

fn manifest(model: CpuModel) -> Manifest {
    let mut manifest = Manifest::new(MachineConfig {
        cpu_model: model.name().to_string(),
        processors: Default::default(),
        memory_bytes: 64 << 20,
        start: Start::Kernel(KernelFiles {
            kernel: image("kernel", 0x10, 1001),
            initrd: Some(image("initrd", 0x20, 1002)),
            modules: vec![
                ModuleFile { file: image("first", 0x30, 1003), cmdline: "one".to_string() },
                ModuleFile { file: image("second", 0x40, 1004), cmdline: "two".to_string() },
            ],
            cmdline: "console=ttyS0".to_string(),
        }),
        disk: Some(image("disk", 0x50, 1005)),
        debug_ports: DebugPortsV1 { console: true, exit: Some(0x501) },
        network: None,
        passthrough: Vec::new(),
    });
    manifest.made_by = "ttvm 0.1.0".to_string();
    manifest
}

#[test]
fn a_machines_state_with_several_processors() {
    let mut state = state(None);
    let mut other = CpuState::reset();
    other.gpr[2] = 0x77;
    let lapics = Platform::new(0, PciBus::new()).with_processors(2).other_lapics();
    state.others =
        OtherProcessors { seat: 1, cpus: vec![other.clone()], lapics: lapics.clone(), turns: None };
    let bytes = state.to_bytes(Format::V6);
    assert_eq!(MachineState::from_bytes(Format::V6, &bytes), Some(state.clone()));
    let rest = bytes.strip_prefix(&state.to_bytes(Format::V5)[..]).expect("format 5 comes first");
    let cpu = postcard::to_stdvec(&CpuStateV1::new(&other, Counts::default())).expect("plain data");
    let rest = rest.strip_prefix(&[1, 1][..]).expect("the seat, and the number of other processors");
    let rest = rest.strip_prefix(&cpu[..]).expect("then come their states");
    assert_eq!(rest, [&[1][..], &postcard::to_stdvec(&lapics[0]).expect("plain data")].concat());
    let expected = "01809080f70f0000000000000000000000000000000000000000000000000000ffffffff0fff03000000808004808004808004808004800e800880800400000000000001";
    assert_eq!(hex(rest), expected);
    for length in 0..bytes.len() {
        assert_eq!(MachineState::from_bytes(Format::V6, &bytes[..length]), None, "{length}");
    }
    // The state of the turns follows, if the counts alone do not determine whose turn it is.
    let waiting = vec![Turn { processor: 1, steps: 0x1234 }, Turn { processor: 0, steps: 0x56 }];
    state.others.turns = Some(TurnState {
        generator: 0x1234_5678_9abc_def0,
        phase: 0x66,
        left: 0x777,
        is_given: true,
        waiting,
        spins: None,
    });
    let with_turns = state.to_bytes(Format::V6);
    assert_eq!(MachineState::from_bytes(Format::V6, &with_turns), Some(state.clone()));
    let rest = with_turns.strip_prefix(&bytes[..]).expect("they come last");
    assert_eq!(hex(rest), "f0bdf3d589cf959a1266f70e010201b4240056");
    for length in bytes.len() + 1..with_turns.len() {
        assert_eq!(MachineState::from_bytes(Format::V6, &with_turns[..length]), None, "{length}");
    }
    // If spinning processors yield their turns, the state of the search for spins comes last.
    let turns = state.others.turns.as_mut().expect("they are not None");
    turns.spins = Some(SpinState { next_look: Some(0x99), registers: Some(0x1234_5678) });
    let with_spins = state.to_bytes(Format::V6);
    assert_eq!(MachineState::from_bytes(Format::V6, &with_spins), Some(state));
    let rest = with_spins.strip_prefix(&with_turns[..]).expect("it comes last");
    assert_eq!(hex(rest), "01990101f8acd19101");
    for length in with_turns.len() + 1..with_spins.len() {
        assert_eq!(MachineState::from_bytes(Format::V6, &with_spins[..length]), None, "{length}");
    }
    let longer = [&with_spins[..], &[0]].concat();
    assert_eq!(MachineState::from_bytes(Format::V6, &longer), None);
}

#[test]
fn given_turns_in_a_log() {
    let turns = vec![Turn { processor: 63, steps: 5 }, Turn { processor: 0, steps: 0x1234_5678 }];
    let event = |turns: Vec<Turn>| EventRecord::<Instructions> {
        at: at(0, 0),
        branches: 1,
        rip: 2,
        cpu_hash: bytes(0x10),
        event: Event::Turns(turns),
    };
    let power_on = |event| EventRecord { event, ..event_at_start() };
    let read = |turns: &[Turn], format: Format| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.log");
        let mut writer = LogWriter::create(&path, format).unwrap();
        writer.append(&LogRecord::<Instructions>::Machine(bytes(0xc0))).unwrap();
        writer.append_event(&power_on(events().remove(0))).unwrap();
        writer.append_event(&event(turns.to_vec())).unwrap();
        let payload = std::fs::read(&path).unwrap();
        let read = read_log::<Instructions>(&path, format).map_err(|error| error.to_string());
        (read.map(|log| log.event(1).unwrap().unwrap().event), payload)
    };
    let (found, payload) = read(&turns, Format::V6);
    assert_eq!(found, Ok(Event::Turns(turns.clone())));
    // Two turns: each is a byte and a variable-length number.
    let payload = hex(&payload);
    assert!(payload.ends_with("010000010210111213141516170c023f0500f8acd19101"), "{payload}");
    let refused = |turns: &[Turn], format, expected: &str| {
        let why = read(turns, format).0.unwrap_err();
        assert!(why.contains(expected), "{why}");
    };
    refused(&turns, Format::V5, "gives turns, and the machine has one processor");
    let impossible = "gives turns that no machine can take";
    refused(&[], Format::V6, impossible);
    refused(&[Turn { processor: 64, steps: 1 }], Format::V6, impossible);
    refused(&[Turn { processor: 1, steps: 0 }], Format::V6, impossible);
    refused(&vec![turns[0]; Turn::MOST_AT_ONCE + 1], Format::V6, impossible);
    assert!(read(&vec![turns[0]; Turn::MOST_AT_ONCE], Format::V6).0.is_ok());
}

fn event_at_start() -> EventRecord<Instructions> {
    EventRecord { at: at(0, 0), branches: 0, rip: 0, cpu_hash: bytes(0), event: Event::PowerButton }
}

#[test]
fn a_manifest_with_several_processors() {
    let mut manifest = manifest(CpuModel::V2);
    manifest.machine.processors = Processors::without_topology(4).expect("four are possible");
    let manifest = Manifest { made_by: "ttvm 0.1.0".to_string(), ..Manifest::new(manifest.machine) };
    let text = manifest.text();
    let processors = "    \"processors\": {\n      \"count\": 4,\n      \"turn_steps\": 100000,\n      \
                      \"policy\": \"ring\"\n    }\n  },\n";
    let expected = include_str!("golden/manifest_v5.json")
        .replace("\"format_version\": 5", "\"format_version\": 6")
        .replace("    }\n  },\n", &format!("    }},\n{processors}"));
    let without_check = |text: &str| {
        text.lines().filter(|line| !line.contains("check")).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(without_check(&text), without_check(&expected));
    assert_eq!(Manifest::parse(&text), Ok(manifest.clone()));
    for (from, to) in [
        ("\"format_version\": 6", "\"format_version\": 5"),
        ("\"count\": 4", "\"count\": 65"),
        ("\"count\": 4", "\"count\": 1"),
        ("\"ring\"", "\"rang\""),
        ("100000", "0"),
        ("100000", "-1"),
        ("\"processors\"", "\"professors\""),
    ] {
        assert!(Manifest::parse(&text.replace(from, to)).is_err(), "{to}");
    }
    assert_eq!(
        hex(&manifest.machine_hash()),
        "0a9a105680209e64d930d390c1a5ca3272bbda2f19c3d20bb326aedbdd7bf7d4"
    );
}

#[test]
fn a_manifest_with_a_topology_and_random_turns() {
    let mut manifest = manifest(CpuModel::V2);
    let policy = TurnPolicy::Random { seed: 0xffff_ffff_ffff_fffe };
    let processors = Processors::new(12).and_then(|twelve| twelve.with_topology(2, 3)?.with_turns(policy));
    manifest.machine.processors = processors.expect("this is possible");
    let manifest = Manifest { made_by: "ttvm 0.1.0".to_string(), ..Manifest::new(manifest.machine) };
    let text = manifest.text();
    let expected = r#"    "processors": {
      "count": 12,
      "turn_steps": 266666,
      "policy": {
        "random": {
          "seed": 18446744073709551614
        }
      },
      "topology": {
        "sockets": 2,
        "threads": 3
      },
      "spins_yield": true
    }
"#;
    assert!(text.contains(expected), "{text}");
    assert_eq!(Manifest::parse(&text), Ok(manifest.clone()));
    for (from, to) in [
        ("\"sockets\": 2", "\"sockets\": 5"),
        ("\"threads\": 3", "\"threads\": 0"),
        ("\"threads\": 3", "\"threads\": 300"),
        ("18446744073709551614", "18446744073709551616"),
        ("\"seed\"", "\"seat\""),
        ("\"turn_steps\": 266666", "\"turn_steps\": 0"),
        ("\"turn_steps\": 266666", "\"turn_steps\": 18446744073709551615"),
        ("\"spins_yield\": true", "\"spins_yield\": 1"),
    ] {
        assert!(Manifest::parse(&text.replace(from, to)).is_err(), "{to}");
    }
    // The hash covers the policy, the length of turns, `spins_yield` and the topology, because they determine the run.
    let hash_with = |from: &str, to: &str| Manifest::parse(&text.replace(from, to)).unwrap().machine_hash();
    assert_ne!(hash_with("51614", "51615"), manifest.machine_hash());
    assert_ne!(hash_with("266666", "100000"), manifest.machine_hash());
    assert_ne!(hash_with("\"sockets\": 2", "\"sockets\": 4"), manifest.machine_hash());
    assert_ne!(hash_with("\"spins_yield\": true", "\"spins_yield\": false"), manifest.machine_hash());
}

#[test]
fn a_manifests_text() {
    let text = manifest(CpuModel::V2).text();
    assert_eq!(text, include_str!("golden/manifest_v5.json"));
    assert_eq!(Manifest::parse(&text), Ok(manifest(CpuModel::V2)));
}

#[test]
fn a_starting_state_stands_behind_everything_else_of_the_machine() {
    let mut manifest = manifest(CpuModel::V2);
    let booted = manifest.machine.start.booted().clone();
    manifest.machine.start = Start::State { state: image("start", 0x60, 1006), booted };
    let state = format!(
        "    }},\n    \"start\": {{\n      \"path\": \"/images/start\",\n      \"hash\": \"{}\",\n      \
         \"size_bytes\": 1006\n    }}\n  }},\n",
        hex(&bytes::<32>(0x60))
    );
    let text = manifest.text();
    let with_state = include_str!("golden/manifest_v5.json").replace("    }\n  },\n", &state);
    let without_check = |text: &str| {
        text.lines().filter(|line| !line.contains("check")).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(without_check(&text), without_check(&with_state));
    assert_eq!(Manifest::parse(&text), Ok(manifest));
}

#[test]
fn the_hash_of_a_machines_description() {
    let found = [CpuModel::V2, CpuModel::V2Kvm].map(|model| hex(&manifest(model).machine_hash()));
    let expected = [
        "8b8f69e6e828ec5d9627388cdfb3ec11796cf90067d7ba0d3a6358293dc4a221",
        "ba1c0fc45458c4bb4a5391b0874595a286daa79fce1e295bb44199caf04864c3",
    ];
    assert_eq!(found, expected);
    let mut least = manifest(CpuModel::V2);
    let machine = &mut least.machine;
    let files = machine.start.booted_mut();
    (files.initrd, files.modules, machine.disk) = (None, Vec::new(), None);
    machine.debug_ports = DebugPortsV1 { console: false, exit: None };
    assert_eq!(
        hex(&least.machine_hash()),
        "6641e361a9dafc9b2d6bfb07bd6b8f1efdabd48b5f0f0bbf019771d6aa00cae3"
    );
}
