//! Queues and registers that are written by hand.

use devices::passthrough::WrittenV1;
use devices::pci::MsixStateV1;

use super::*;

const RAM_BYTES: u64 = 1 << 20;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const TABLE: u64 = 0x7000;

/// A queue of four entries.
fn queue(next_available: u16) -> QueueStateV1 {
    QueueStateV1 {
        size: 4,
        enabled: true,
        descriptors: DESCRIPTORS,
        available: AVAILABLE,
        used: 0x3000,
        next_available,
        next_used: 0,
        vector: 0xffff,
    }
}

/// A descriptor as VIRTIO 1.2, section 2.7.5 has it.
fn describe(ram: &GuestRam, table: u64, index: u64, (address, length, flags, next): (u64, u32, u16, u16)) {
    let bytes =
        [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
            .concat();
    ram.write_bytes(table + 16 * index, &bytes);
}

/// RAM with three descriptors of one chain, and one descriptor with a table of its own. The ring's entries name descriptors.
fn ram(available: u16, ring: [u16; 4]) -> GuestRam {
    let ram = GuestRam::new(RAM_BYTES).unwrap();
    for (index, row) in [
        (1, (0x5000, 16, NEXT, 3)),
        (3, (0x6000, 32, NEXT | WRITABLE, 0)),
        (0, (0x6100, 1, WRITABLE, 1)),
        (2, (TABLE, 32, INDIRECT, 0)),
    ] {
        describe(&ram, DESCRIPTORS, index, row);
    }
    describe(&ram, TABLE, 0, (0x8000, 8, NEXT | WRITABLE, 1));
    describe(&ram, TABLE, 1, (0x9000, 4, 0, 0));
    let words = [0, available].into_iter().chain(ring).flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    ram.write_bytes(AVAILABLE, &words);
    ram
}

/// Address, length and whether the device writes, of each buffer.
fn told(request: &[Buffer]) -> Vec<(u64, u32, bool)> {
    request.iter().map(|buffer| (buffer.address, buffer.length, buffer.is_writable())).collect()
}

#[test]
fn the_waiting_requests_are_those_that_the_device_has_not_taken() {
    let direct = vec![(0x5000, 16, false), (0x6000, 32, true), (0x6100, 1, true)];
    let indirect = vec![(0x8000, 8, true), (0x9000, 4, false)];
    let requests = |available, ring, next_available| {
        let (ram, queue) = (ram(available, ring), queue(next_available));
        waiting(&ram, &queue).map(|request| told(&request)).collect::<Vec<_>>()
    };
    // The ring has no end: after its entry 3 comes its entry 0.
    assert_eq!(requests(5, [2, 9, 9, 1], 3), [direct.clone(), indirect.clone()]);
    assert_eq!(requests(5, [2, 9, 9, 1], 4), std::slice::from_ref(&indirect));
    assert!(requests(5, [2, 9, 9, 1], 5).is_empty());
    assert_eq!(requests(1, [2, 9, 9, 1], 0xffff), [direct.clone(), indirect.clone()]);
    // A queue never has more requests than entries.
    assert_eq!(requests(103, [1, 2, 1, 2], 3), [&indirect, &direct, &indirect, &direct].map(Clone::clone));
    assert_eq!(available(&ram(5, [0; 4]), &queue(0)), Some(5));
}

#[test]
fn rings_and_descriptors_outside_of_ram_have_no_requests() {
    let ram = ram(5, [2, 9, 9, 1]);
    for at in [u64::MAX, u64::MAX - 1, RAM_BYTES, RAM_BYTES - 3] {
        let queue = QueueStateV1 { available: at, ..queue(3) };
        assert_eq!((available(&ram, &queue), waiting(&ram, &queue).count()), (None, 0), "{at:#x}");
    }
    for at in [u64::MAX - 8, RAM_BYTES, RAM_BYTES - 16 - 8] {
        let queue = QueueStateV1 { descriptors: at, ..queue(3) };
        let lengths: Vec<usize> = waiting(&ram, &queue).map(|request| request.len()).collect();
        assert_eq!(lengths, [0, 0], "{at:#x}");
    }
    // A chain that has no end is cut.
    describe(&ram, DESCRIPTORS, 0, (0x6100, 1, NEXT, 1));
    let lengths: Vec<usize> = waiting(&ram, &queue(3)).map(|request| request.len()).collect();
    assert_eq!(lengths, [1 << 15, 2]);
}

#[test]
fn the_sector_is_in_the_header_of_a_request() {
    let ram = ram(5, [2, 9, 9, 1]);
    ram.write_bytes(0x5008, &0x1234_5678_9abc_u64.to_le_bytes());
    let request = waiting(&ram, &queue(3)).next().unwrap();
    assert_eq!(sector(&ram, &request), Some(0x1234_5678_9abc));
    let at = |address| [Buffer { address, length: 16, flags: 0, next: 0 }];
    assert_eq!(sector(&ram, &at(RAM_BYTES - 16)), Some(0));
    for address in [RAM_BYTES - 15, u64::MAX - 7] {
        assert_eq!(sector(&ram, &at(address)), None, "{address:#x}");
    }
    assert_eq!(sector(&ram, &[]), None);
}

/// A function with these base address registers.
fn function(device: DeviceStateV1, registers: [u32; 6]) -> VirtioFunctionStateV1 {
    let mut config = vec![0xff; 256];
    config[0x10..0x28].copy_from_slice(&registers.map(u32::to_le_bytes).concat());
    VirtioFunctionStateV1 {
        config,
        msix: MsixStateV1 { entries: Vec::new(), pending: 0 },
        transport: Default::default(),
        queues: Vec::new(),
        device,
    }
}

#[test]
fn registers_belong_to_the_function_with_the_nearest_base_below() {
    let disk = DeviceStateV1::Block { capacity_sectors: 1, read_only: false };
    let entropy = DeviceStateV1::Rng { seed: [0; 32], word_position: 0 };
    let console = DeviceStateV1::Console { columns: 1, rows: 1, input: Vec::new() };
    let passed = DeviceStateV1::PassedFunction { line: false, written: WrittenV1::default() };
    // The lowest bits of a base address are flags. Bit 0 means ports.
    let functions = [
        function(disk, [0xc001_000c, 0, 0xc101, 0, 0, 0xc009_0000]),
        function(entropy, [0, 0xc001_4000, 0, 0, 0, 0]),
        function(passed, [0xd000_0000, 0, 0, 0, 0, 0]),
        function(console, [0; 6]),
    ];
    assert_eq!(bases(&functions[0]).collect::<Vec<_>>(), [0xc001_0000, 0xc009_0000]);
    assert_eq!(bases(&functions[3]).count(), 0);
    for (address, expected) in [
        (0xc000_ffff, None),
        (0xc001_0000, Some((1, "virtio disk"))),
        (0xc001_3fff, Some((1, "virtio disk"))),
        (0xc001_4000, Some((2, "virtio entropy device"))),
        (0xc001_7fff, Some((2, "virtio entropy device"))),
        (0xc001_8000, None),
        (0xc009_0001, Some((1, "virtio disk"))),
        (0xc009_4000, None),
        // The size of a passed-through function's part is not known.
        (0xd010_0000, Some((3, "passed-through device"))),
        (0xc101, None),
    ] {
        let found = function_at(&functions, address).map(|(slot, function)| (slot, name(&function.device)));
        assert_eq!(found, expected, "{address:#x}");
    }
    assert_eq!(name(&functions[3].device), "virtio console");
}
