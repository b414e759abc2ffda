//! The summaries of functions, devices and queues.

use super::driver::{F_EVENT_IDX, MSI_ADDRESS};
use super::*;
use crate::pci::BarSummary;
use crate::virtio::{RingSummary, VirtioSummary};

fn virtio(pc: &Pc, slot: usize) -> VirtioSummary {
    pc.bus.functions()[slot].virtio.clone().expect("the slot has a virtio device")
}

#[test]
fn functions_are_as_their_driver_finds_them() {
    let mut pc = pc();
    let (driver, _) = Driver::start(&mut pc, BLOCK_SLOT, 0, true);
    let functions = pc.bus.functions();
    assert_eq!(functions.iter().map(|function| function.slot).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let block = &functions[BLOCK_SLOT];
    assert_eq!((block.vendor, block.device), (0x1AF4, 0x1042));
    assert_eq!((block.class, pc.config_u32(BLOCK_SLOT, 8) >> 8), (0x01_80_00, block.class));
    let bar = BarSummary { index: 1, address: driver.msix_table, size_bytes: 0x1000, is_ports: false };
    assert_eq!((block.bars.len(), block.bars[1]), (2, bar));
    assert_eq!(block.bars[0].address, driver.bar(&mut pc, 0));
    let msix = block.msix.as_ref().expect("virtio devices have MSI-X");
    let sent: Vec<(u64, u32)> =
        msix.messages.iter().map(|one| (one.message.address, one.message.data)).collect();
    assert_eq!(sent, [(MSI_ADDRESS, 0x40), (MSI_ADDRESS, 0x41)]);
    assert!(msix.is_enabled && !msix.is_masked && block.is_bus_master);
    assert!(functions[RNG_SLOT].msix.as_ref().is_some_and(|msix| !msix.is_enabled));
}

#[test]
fn features_and_status_have_names() {
    let mut pc = pc();
    assert_eq!(virtio(&pc, BLOCK_SLOT).status_names(), [""; 0]);
    Driver::start(&mut pc, BLOCK_SLOT, F_EVENT_IDX, false);
    let block = virtio(&pc, BLOCK_SLOT);
    assert_eq!(block.status_names(), ["ACKNOWLEDGE", "DRIVER", "FEATURES_OK", "DRIVER_OK"]);
    assert_eq!(block.feature_names(block.accepted), ["EVENT_IDX", "VERSION_1"]);
    for slot in [BLOCK_SLOT, CONSOLE_SLOT, RNG_SLOT] {
        let device = virtio(&pc, slot);
        let names = device.feature_names(device.offered);
        assert!(!names.iter().any(|name| name.starts_with("bit ")), "{names:?}");
    }
    assert_eq!(block.feature_names(1 << 63), ["bit 63"]);
}

#[test]
fn a_ring_shows_what_waits_and_when_the_driver_wants_an_interrupt() {
    for (features, has_index) in [(0, false), (F_EVENT_IDX, true)] {
        let mut pc = pc();
        let (_, mut rings) = Driver::start(&mut pc, CONSOLE_SLOT, features, false);
        let receive = &mut rings[0];
        let buffer = pc.allocate(64);
        receive.add(&pc, &[(buffer, 64, true)]);
        receive.add(&pc, &[(buffer, 64, true)]);
        receive.kick(&mut pc);
        let memory = pc.mem();
        pc.bus.console_mut().expect("there is one").push_input(&memory, b"k");
        receive.set_used_event(&pc, 2);
        let seen = |pc: &Pc| virtio(pc, CONSOLE_SLOT).queues[0].ring(&pc.mem());
        let interrupt_after = Some(if has_index { 2 } else { 1 });
        let expected = RingSummary { available_index: 2, used_index: 1, waiting: Some(1), interrupt_after };
        assert_eq!(seen(&pc), Some(expected), "{has_index}");
        // The driver wants no interrupts: by its flag, or by an index behind the device.
        pc.store(receive.available, &1_u16.to_le_bytes());
        receive.set_used_event(&pc, 0);
        assert_eq!(seen(&pc).and_then(|ring| ring.interrupt_after), None, "{has_index}");
    }
}

#[test]
fn a_hostile_ring_shows_its_fault() {
    let mut pc = pc();
    let (_, rings) = Driver::start(&mut pc, RNG_SLOT, F_EVENT_IDX, false);
    pc.store(rings[0].available + 2, &9999_u16.to_le_bytes());
    let mut queue = virtio(&pc, RNG_SLOT).queues[0].clone();
    let ring = queue.ring(&pc.mem()).expect("it is in RAM");
    assert_eq!((ring.available_index, ring.waiting), (9999, None));
    for address in [Pc::RAM_BYTES - 1, Pc::RAM_BYTES, u64::MAX - 1, u64::MAX] {
        queue.registers.available = address;
        assert_eq!(queue.ring(&pc.mem()), None, "{address:#x}");
    }
    queue.registers.enabled = false;
    assert_eq!(queue.ring(&pc.mem()), None);
}
