//! Rings that break the rules. The device requests a reset and works again after the reset.

use super::driver::{F_INDIRECT_DESC, INDIRECT, NEXT, WRITE};
use super::*;

const NEEDS_RESET: u8 = 64;

/// Makes a queue break the rules.
type Crime = fn(&mut Pc, &mut Ring, &Driver);

const CRIMES: &[(&str, Crime)] = &[
    ("a chain that loops", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0x1000, 16), NEXT, 1);
        ring.set_descriptor(pc, ring.descriptors, 1, (0x1000, 16), NEXT, 0);
        ring.publish(pc, 0);
    }),
    ("a descriptor that follows itself", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0x1000, 16), NEXT, 0);
        ring.publish(pc, 0);
    }),
    ("a next index outside of the table", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0x1000, 16), NEXT, 64);
        ring.publish(pc, 0);
    }),
    ("a head outside of the table", |pc, ring, _| ring.publish(pc, 64)),
    ("a wild head", |pc, ring, _| ring.publish(pc, 0xFFFF)),
    ("a buffer outside of RAM", |pc, ring, _| {
        ring.add(pc, &[(Pc::RAM_BYTES, 1, true)]);
    }),
    ("a buffer that leaves RAM", |pc, ring, _| {
        ring.add(pc, &[(Pc::RAM_BYTES - 8, 9, true)]);
    }),
    ("a buffer at the end of the address space", |pc, ring, _| {
        ring.add(pc, &[(u64::MAX - 4, 16, true)]);
    }),
    ("a huge buffer", |pc, ring, _| {
        ring.add(pc, &[(0, u32::MAX, true)]);
    }),
    ("a device's registers as buffer", |pc, ring, driver| {
        ring.add(pc, &[(driver.common, 16, true)]);
    }),
    ("a readable buffer after a writable one", |pc, ring, _| {
        ring.add(pc, &[(0x1000, 16, true), (0x1000, 16, false), (0x1000, 1, true)]);
    }),
    ("more data than a chain may have", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0, u32::MAX), NEXT | WRITE, 1);
        ring.set_descriptor(pc, ring.descriptors, 1, (0, u32::MAX), WRITE, 0);
        ring.publish(pc, 0);
    }),
    ("too many available entries", |pc, ring, _| pc.store(ring.available + 2, &65_u16.to_le_bytes())),
    ("an available index that went backwards", |pc, ring, _| {
        pc.store(ring.available + 2, &0xFFFF_u16.to_le_bytes());
    }),
    ("an empty indirect table", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0x1000, 0), INDIRECT, 0);
        ring.publish(pc, 0);
    }),
    ("an indirect table with a broken length", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (0x1000, 24), INDIRECT, 0);
        ring.publish(pc, 0);
    }),
    ("an indirect table outside of RAM", |pc, ring, _| {
        ring.set_descriptor(pc, ring.descriptors, 0, (u64::MAX - 15, 32), INDIRECT, 0);
        ring.publish(pc, 0);
    }),
    ("an indirect table in an indirect table", |pc, ring, _| {
        let table = pc.allocate(16);
        ring.set_descriptor(pc, table, 0, (table, 16), INDIRECT, 0);
        ring.set_descriptor(pc, ring.descriptors, 0, (table, 16), INDIRECT, 0);
        ring.publish(pc, 0);
    }),
    ("an endless indirect table", |pc, ring, _| {
        let table = pc.allocate(16 * 2000);
        for i in 0..2000 {
            ring.set_descriptor(pc, table, i, (0x1000, 1), NEXT | WRITE, i + 1);
        }
        ring.set_descriptor(pc, ring.descriptors, 0, (table, 16 * 2000), INDIRECT, 0);
        ring.publish(pc, 0);
    }),
];

#[test]
fn every_crime_against_a_ring_needs_a_reset() {
    for &(name, commit) in CRIMES {
        for (slot, queue) in [(BLOCK_SLOT, 0), (CONSOLE_SLOT, 0), (CONSOLE_SLOT, 1), (RNG_SLOT, 0)] {
            let mut pc = pc();
            let (driver, mut rings) = Driver::start(&mut pc, slot, F_INDIRECT_DESC, true);
            commit(&mut pc, &mut rings[queue], &driver);
            pc.write(rings[queue].doorbell, &[0, 0]);
            assert_eq!(driver.status(&mut pc), 15 | NEEDS_RESET, "{name}, slot {slot}");
            assert_eq!(pc.messages(), [0x40], "{name}, slot {slot}: configuration interrupt");
            assert_eq!(pc.load_u16(rings[queue].used + 2), 0, "{name}, slot {slot}: nothing was used");
            driver.set_status(&mut pc, 0xFF);
            pc.write(rings[queue].doorbell, &[0, 0]);
            assert_eq!(pc.messages(), NONE, "{name}, slot {slot}: it waits for the reset");
        }
    }
}

#[test]
fn a_device_works_again_after_the_reset() {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, 0, true);
    rings[0].publish(&pc, 999);
    rings[0].kick(&mut pc);
    assert_ne!(driver.status(&mut pc) & NEEDS_RESET, 0);
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, 0, false);
    rings[0].add(&pc, &[(0x1000, 4, true)]);
    rings[0].kick(&mut pc);
    assert_eq!((driver.status(&mut pc), rings[0].pop(&pc)), (15, Some((0, 4))));
}

#[test]
fn a_ring_outside_of_ram_needs_a_reset() {
    for register in [0x20, 0x28, 0x30] {
        for address in [Pc::RAM_BYTES, Pc::RAM_BYTES - 16, u64::MAX << 4] {
            let mut pc = pc();
            let mut driver = Driver::probe(&mut pc, RNG_SLOT);
            driver.negotiate(&mut pc, !0);
            pc.write(driver.common + 0x16, &[0, 0]);
            for good in [0x20, 0x28, 0x30] {
                let at = if good == register { address } else { 0x1000 * good };
                pc.write(driver.common + good, &at.to_le_bytes());
            }
            pc.write(driver.common + 0x1C, &[1, 0]);
            driver.set_status(&mut pc, 15);
            assert_eq!(driver.status(&mut pc), 15 | NEEDS_RESET, "{register:#x} {address:#x}");
        }
    }
}

#[test]
fn a_block_request_without_a_status_byte_needs_a_reset() {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, BLOCK_SLOT, 0, false);
    rings[0].add(&pc, &[(0x1000, 16, false), (0x1000, 512, false)]);
    rings[0].kick(&mut pc);
    assert_eq!(driver.status(&mut pc), 15 | NEEDS_RESET);
    assert_eq!(pc.bus.irq_levels(), 1 << (BLOCK_SLOT % 4));
}

#[test]
fn buffers_of_no_length_are_skipped() {
    let mut pc = pc();
    let (_, mut rings) = Driver::start(&mut pc, RNG_SLOT, 0, false);
    rings[0].add(&pc, &[(u64::MAX, 0, true), (0x1000, 5, true), (0, 0, true)]);
    rings[0].add(&pc, &[(0, 0, true)]);
    rings[0].add(&pc, &[(0x1000, 5, false)]);
    rings[0].kick(&mut pc);
    assert_eq!(std::array::from_fn(|_| rings[0].pop(&pc)), [Some((0, 5)), Some((3, 0)), Some((4, 0))]);
}

#[test]
fn a_device_that_overwrites_its_own_ring_does_not_run_away() {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, 0, false);
    // Random bytes overwrite the available ring's index. The device processes at most as many chains as the ring
    // has entries.
    let available = rings[0].available;
    rings[0].add(&pc, &[(available, 134, true)]);
    rings[0].kick(&mut pc);
    assert!(matches!(driver.status(&mut pc), 15 | 79));
}

#[test]
fn misaligned_and_late_queue_settings_are_ignored() {
    let mut pc = pc();
    let (driver, _) = Driver::start(&mut pc, RNG_SLOT, 0, false);
    let before: [u8; 0x3C] = pc.read(driver.common);
    for register in [0x20, 0x28, 0x30] {
        pc.write(driver.common + register, &0x1000_u64.to_le_bytes());
    }
    pc.write(driver.common + 0x18, &8_u16.to_le_bytes());
    assert_eq!(pc.read::<0x3C>(driver.common), before, "the queue is enabled");
    driver.set_status(&mut pc, 0);
    for size in [0, 3, 65, 128, 0xFFFF_u16] {
        pc.write(driver.common + 0x18, &size.to_le_bytes());
        assert_eq!(pc.read::<2>(driver.common + 0x18), [64, 0], "size {size}");
    }
    pc.write(driver.common + 0x20, &0x1008_u32.to_le_bytes());
    assert_eq!(pc.read::<4>(driver.common + 0x20), [0; 4]);
    pc.write(driver.common + 0x1C, &[1, 0]);
    assert_eq!(pc.read::<2>(driver.common + 0x1C), [0, 0], "enabling comes after FEATURES_OK");
}
