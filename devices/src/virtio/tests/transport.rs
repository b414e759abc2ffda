//! Discovery, configuration space, negotiation and the life cycle.

use super::driver::{F_EVENT_IDX, F_INDIRECT_DESC, F_RING_RESET, F_VERSION_1};
use super::*;
use crate::layout::PCI_PIC_IRQS;

#[test]
fn mechanism_1_is_found_as_linux_looks_for_it() {
    let mut pc = pc();
    let (mem, mut word) = (pc.mem(), [0; 4]);
    assert!(!pc.bus.io_write(&mem, 0xCFB, &[1]));
    assert!(pc.bus.io_read(0xCF8, &mut word) && word == [0; 4]);
    assert!(pc.bus.io_write(&mem, 0xCF8, &0x8000_0000_u32.to_le_bytes()));
    assert!(pc.bus.io_read(0xCF8, &mut word) && word == [0, 0, 0, 0x80]);
    assert_eq!(pc.config_u16(0, 0x0A), 0x0600, "slot 0 is a host bridge");
}

#[test]
fn narrow_accesses_to_the_address_register_belong_to_others() {
    let mut pc = pc();
    let mem = pc.mem();
    for (port, length) in [(0xCF8, 1), (0xCF8, 2), (0xCF9, 1), (0xCFA, 2), (0xCFF, 2), (0xCFD, 4), (0xCFC, 4)]
    {
        assert!(!pc.bus.io_read(port, &mut vec![0; length]), "{port:#x}/{length}");
        assert!(!pc.bus.io_write(&mem, port, &vec![0xFF; length]), "{port:#x}/{length}");
    }
}

#[test]
fn every_device_is_identified_as_modern_virtio() {
    let mut pc = pc();
    for (slot, device) in [(BLOCK_SLOT, 0x1042), (CONSOLE_SLOT, 0x1043), (RNG_SLOT, 0x1044)] {
        assert_eq!(pc.config_u32(slot, 0), device << 16 | 0x1AF4);
        assert_eq!(pc.config_u8(slot, 8), 1, "revision");
        assert_eq!(pc.config_u8(slot, 0x0E), 0, "header type");
        assert_eq!((pc.config_u8(slot, 0x3D), pc.config_u8(slot, 0x3C)), (1, PCI_PIC_IRQS[slot % 4]));
    }
    assert_eq!(pc.config_u32(4, 0), 0xFFFF_FFFF, "empty slot");
    let mut data = [0; 4];
    for address in [0x8001_0000_u32 | 1 << 11, 0x8000_0100 | 1 << 11] {
        let mem = pc.mem();
        pc.bus.io_write(&mem, 0xCF8, &address.to_le_bytes());
        assert!(pc.bus.io_read(0xCFC, &mut data));
        assert_eq!(data, [0xFF; 4], "other buses and functions are empty");
    }
}

#[test]
fn bytes_and_words_of_configuration_space_can_be_accessed() {
    let mut pc = pc();
    assert_eq!(pc.config_u16(BLOCK_SLOT, 2), 0x1042);
    assert_eq!(pc.config_u8(BLOCK_SLOT, 3), 0x10);
    pc.config_write(BLOCK_SLOT, 0x3C, &[0xAB]);
    assert_eq!(pc.config_u32(BLOCK_SLOT, 0x3C), 0x01AB);
}

#[test]
fn bars_are_sized_moved_and_switched_off() {
    let mut pc = pc();
    let driver = Driver::probe(&mut pc, BLOCK_SLOT);
    let (old, new) = (driver.bar(&mut pc, 0), 0xD000_4000_u64);
    pc.config_write(BLOCK_SLOT, 0x10, &[0xFF; 4]);
    assert_eq!(pc.config_u32(BLOCK_SLOT, 0x10), 0xFFFF_C000);
    pc.config_write(BLOCK_SLOT, 0x10, &(new as u32).to_le_bytes());
    assert_eq!(pc.read::<2>(new + 0x12), [1, 0], "num_queues at the new place");
    let (mem, mut data) = (pc.mem(), [0; 2]);
    assert!(!pc.bus.mmio_read(&mem, old, &mut data), "nothing at the old one");
    assert!(!pc.bus.mmio_read(&mem, new + 0x3FFF, &mut data), "an access must not leave the BAR");
    pc.config_write(BLOCK_SLOT, 4, &[4, 0]);
    assert!(!pc.bus.mmio_read(&mem, new, &mut data), "decoding is off");
}

/// With `pci=noacpi` nothing announces the window, and Linux puts BARs right after RAM.
#[test]
fn a_bar_answers_wherever_the_guest_puts_it() {
    const PLACES: [(u32, bool); 8] = [
        (0x000A_0000, false),
        (0x0040_0000, false),
        (0x1000_0000, false),
        (0xBFFF_C000, false),
        (0xC000_0000, true),
        (0xFEAF_C000, true),
        (0xFEB0_0000, false),
        (0xFFFF_C000, false),
    ];
    for revision in [PciRevision::V1, PciRevision::V2] {
        for (place, is_announced) in PLACES {
            let mut pc = Pc::new(bus_of(revision));
            pc.config_write(BLOCK_SLOT, 4, &[6, 0]);
            pc.config_write(BLOCK_SLOT, 0x10, &place.to_le_bytes());
            let (mem, at, mut data) = (pc.mem(), u64::from(place) + 0x12, [0xFF; 2]);
            let answers = revision == PciRevision::V2 || is_announced;
            let case = format!("{place:#x}, {revision:?}");
            assert_eq!(pc.bus.mmio_read(&mem, at, &mut data), answers, "{case}");
            assert_eq!(data == [1, 0], answers, "num_queues, {case}");
            assert_eq!(pc.bus.mmio_write(&mem, at, &data), answers, "{case}");
        }
    }
}

/// Two BARs at one address are the guest's fault. The same BAR always answers.
#[test]
fn of_two_bars_at_one_address_the_first_slots_answers() {
    let mut pc = pc();
    for slot in [CONSOLE_SLOT, BLOCK_SLOT, RNG_SLOT] {
        pc.config_write(slot, 0x10, &0xD000_0000_u32.to_le_bytes());
        pc.config_write(slot, 4, &[6, 0]);
    }
    // The block device has one queue, the console two.
    assert_eq!(pc.read::<2>(0xD000_0012), [1, 0]);
    pc.config_write(BLOCK_SLOT, 4, &[4, 0]);
    assert_eq!(pc.read::<2>(0xD000_0012), [2, 0]);
}

#[test]
fn negotiation_accepts_what_is_offered_and_nothing_else() {
    let mut pc = pc();
    let mut driver = Driver::probe(&mut pc, BLOCK_SLOT);
    let transport = F_INDIRECT_DESC | F_EVENT_IDX | F_VERSION_1 | F_RING_RESET;
    let offered = driver.offered(&mut pc);
    assert_eq!(offered, transport | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 13 | 1 << 14);
    for (features, accepted) in
        [(F_VERSION_1, true), (offered, true), (0, false), (F_EVENT_IDX, false), (offered | 1 << 34, false)]
    {
        driver.set_status(&mut pc, 0);
        driver.set_status(&mut pc, 3);
        driver.accept(&mut pc, features);
        driver.set_status(&mut pc, 11);
        assert_eq!(driver.status(&mut pc) & 8 != 0, accepted, "{features:#x}");
        driver.set_status(&mut pc, 15);
        assert_eq!(driver.status(&mut pc) & 4 != 0, accepted, "DRIVER_OK needs FEATURES_OK");
    }
    driver.negotiate(&mut pc, 0);
    driver.accept(&mut pc, offered);
    pc.write(driver.common + 8, &0_u32.to_le_bytes());
    assert_eq!(pc.read::<4>(driver.common + 0xC), [0; 4], "features are frozen");
}

#[test]
fn reset_returns_every_register_to_its_first_value() {
    let mut pc = pc();
    let driver = Driver::probe(&mut pc, RNG_SLOT);
    let fresh: [u8; 0x3C] = pc.read(driver.common);
    let (_, mut rings) = Driver::start(&mut pc, RNG_SLOT, !0, true);
    let buffer = pc.allocate(64);
    rings[0].add(&pc, &[(buffer, 64, true)]);
    rings[0].kick(&mut pc);
    assert_ne!(pc.read::<0x3C>(driver.common), fresh);
    driver.set_status(&mut pc, 0);
    assert_eq!(pc.read::<0x3C>(driver.common), fresh);
}

#[test]
fn queue_registers_show_what_was_written() {
    let mut pc = pc();
    let (driver, rings) = Driver::start(&mut pc, CONSOLE_SLOT, 0, true);
    pc.write(driver.common + 0x16, &1_u16.to_le_bytes());
    assert_eq!(pc.read::<2>(driver.common + 0x18), 64_u16.to_le_bytes());
    assert_eq!(pc.read::<2>(driver.common + 0x1A), [2, 0], "vector");
    assert_eq!(pc.read::<2>(driver.common + 0x1C), [1, 0], "enabled");
    assert_eq!(pc.read::<2>(driver.common + 0x1E), [1, 0], "notify offset");
    for (register, address) in
        [(0x20, rings[1].descriptors), (0x28, rings[1].available), (0x30, rings[1].used)]
    {
        assert_eq!(pc.read::<8>(driver.common + register), address.to_le_bytes());
    }
    pc.write(driver.common + 0x1A, &9_u16.to_le_bytes());
    assert_eq!(pc.read::<2>(driver.common + 0x1A), [0xFF; 2], "a vector that does not exist");
    pc.write(driver.common + 0x16, &2_u16.to_le_bytes());
    assert_eq!(pc.read::<0x20>(driver.common + 0x18), [0; 0x20], "a queue that does not exist");
}

#[test]
fn a_queue_can_be_reset_alone() {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, F_RING_RESET, false);
    let buffer = pc.allocate(64);
    rings[0].add(&pc, &[(buffer, 64, true)]);
    rings[0].kick(&mut pc);
    pc.write(driver.common + 0x3A, &1_u16.to_le_bytes());
    assert_eq!(pc.read::<2>(driver.common + 0x3A), [0; 2], "done");
    assert_eq!(pc.read::<2>(driver.common + 0x1C), [0; 2], "disabled");
    let mut ring = driver.queue(&mut pc, 0, 32);
    ring.add(&pc, &[(buffer, 16, true)]);
    ring.kick(&mut pc);
    assert_eq!(ring.pop(&pc), Some((0, 16)));
}

#[test]
fn buffers_offered_before_driver_ok_are_used_then() {
    let mut pc = pc();
    let mut driver = Driver::probe(&mut pc, RNG_SLOT);
    driver.negotiate(&mut pc, 0);
    let mut ring = driver.queue(&mut pc, 0, 8);
    let buffer = pc.allocate(8);
    ring.add(&pc, &[(buffer, 8, true)]);
    ring.kick(&mut pc);
    assert_eq!(ring.pop(&pc), None);
    driver.set_status(&mut pc, 15);
    assert_eq!(ring.pop(&pc), Some((0, 8)));
}

#[test]
fn nothing_moves_without_bus_mastering() {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, 0, true);
    let buffer = pc.allocate(8);
    pc.config_write(driver.slot, 4, &[2, 0]);
    rings[0].add(&pc, &[(buffer, 8, true)]);
    rings[0].kick(&mut pc);
    assert_eq!((rings[0].pop(&pc), pc.messages()), (None, vec![]));
}

#[test]
fn the_configuration_access_capability_reaches_bar_0() {
    let mut pc = pc();
    let driver = Driver::probe(&mut pc, CONSOLE_SLOT);
    let access = |pc: &mut Pc, offset: u32, length: u32| {
        pc.config_write(CONSOLE_SLOT, driver.pci_cfg + 8, &offset.to_le_bytes());
        pc.config_write(CONSOLE_SLOT, driver.pci_cfg + 12, &length.to_le_bytes());
    };
    access(&mut pc, 0x2000, 2);
    assert_eq!(pc.config_u32(CONSOLE_SLOT, driver.pci_cfg + 16), 80, "columns");
    access(&mut pc, 0x14, 1);
    pc.config_write(CONSOLE_SLOT, driver.pci_cfg + 16, &[3, 0xFF, 0xFF, 0xFF]);
    assert_eq!(driver.status(&mut pc), 3);
    for (offset, length) in [(0x14, 3), (0x15, 2), (0x4000, 4), (0xFFFF_FFFC, 4), (0, 0)] {
        access(&mut pc, offset, length);
        assert_eq!(pc.config_u32(CONSOLE_SLOT, driver.pci_cfg + 16), 0, "{offset:#x}/{length}");
        pc.config_write(CONSOLE_SLOT, driver.pci_cfg + 16, &[0; 4]);
    }
    assert_eq!(driver.status(&mut pc), 3);
}
