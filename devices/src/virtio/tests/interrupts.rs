//! When and how the device interrupts the driver.

use super::driver::F_EVENT_IDX;
use super::*;

/// Asks for eight random bytes, a request that always completes.
fn request(pc: &mut Pc, ring: &mut Ring) -> bool {
    let buffer = pc.allocate(8);
    ring.add(pc, &[(buffer, 8, true)]);
    ring.kick(pc)
}

fn rng(features: u64, msix: bool) -> (Pc, Driver, Ring) {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, RNG_SLOT, features, msix);
    (pc, driver, rings.remove(0))
}

/// The interrupt pin of the entropy device's slot, as a bit.
const RNG_LEVEL: u32 = 1 << (RNG_SLOT % 4);

#[test]
fn intx_is_a_level_until_the_status_is_read() {
    let (mut pc, driver, mut ring) = rng(0, false);
    assert_eq!(pc.bus.irq_levels(), 0);
    request(&mut pc, &mut ring);
    assert_eq!((pc.bus.irq_levels(), pc.messages()), (RNG_LEVEL, vec![]));
    assert_eq!(pc.config_u16(RNG_SLOT, 6) & 8, 8, "interrupt status bit");
    pc.config_write(RNG_SLOT, 4, &0x406_u16.to_le_bytes());
    assert_eq!(pc.bus.irq_levels(), 0, "INTx is disabled");
    pc.config_write(RNG_SLOT, 4, &6_u16.to_le_bytes());
    assert_eq!(pc.bus.irq_levels(), RNG_LEVEL);
    assert_eq!(pc.read::<1>(driver.isr), [1]);
    assert_eq!((pc.bus.irq_levels(), pc.read::<1>(driver.isr)), (0, [0]));
}

#[test]
fn slots_share_the_four_lines() {
    let mut bus = PciBus::new();
    for _ in 0..5 {
        bus.add(Rng::new([0; 32]));
    }
    let mut pc = Pc::new(bus);
    for slot in 1..=5 {
        let (driver, mut rings) = Driver::start(&mut pc, slot, 0, false);
        request(&mut pc, &mut rings[0]);
        assert_eq!(pc.bus.irq_levels(), 1 << (slot % 4), "slot {slot}");
        pc.read::<1>(driver.isr);
    }
}

#[test]
fn msix_replaces_intx() {
    let (mut pc, driver, mut ring) = rng(0, true);
    request(&mut pc, &mut ring);
    assert_eq!((pc.messages(), pc.bus.irq_levels()), (vec![0x41], 0));
    assert_eq!(pc.read::<1>(driver.isr), [0], "no queue bit with MSI-X");
}

#[test]
fn a_queue_without_a_vector_is_silent() {
    let (mut pc, driver, mut ring) = rng(0, true);
    pc.write(driver.common + 0x1A, &0xFFFF_u16.to_le_bytes());
    request(&mut pc, &mut ring);
    assert_eq!((pc.messages(), pc.bus.irq_levels()), (vec![], 0));
    assert_eq!(ring.pop(&pc), Some((0, 8)));
}

#[test]
fn a_masked_vector_fires_when_unmasked() {
    let (mut pc, driver, mut ring) = rng(0, true);
    let control = driver.msix_table + 16 + 12;
    let pba = u64::from(pc.config_u32(RNG_SLOT, driver.msix + 8) & !7);
    let pba = driver.bar(&mut pc, 1) + pba;
    pc.write(control, &[1, 0, 0, 0]);
    request(&mut pc, &mut ring);
    request(&mut pc, &mut ring);
    assert_eq!((pc.messages(), pc.read::<8>(pba)[0]), (vec![], 2));
    pc.write(control, &[0, 0, 0, 0]);
    assert_eq!((pc.messages(), pc.read::<8>(pba)[0]), (vec![0x41], 0));
}

#[test]
fn messages_held_back_by_the_function_are_sent_later() {
    for (held, released, register) in [(0xC000_u16, 0x8000_u16, None), (2, 6, Some(4))] {
        let (mut pc, driver, mut ring) = rng(0, true);
        let mut other = Driver::start(&mut pc, CONSOLE_SLOT, 0, true);
        request(&mut pc, &mut ring);
        assert_eq!(pc.messages(), [0x41]);
        let register = register.unwrap_or(driver.msix + 2);
        if register == 4 {
            // Without bus mastering the device serves no requests, but a configuration change can still occur.
            pc.config_write(CONSOLE_SLOT, 4, &held.to_le_bytes());
            pc.bus.console_mut().unwrap().resize(1, 1);
            assert_eq!(pc.messages(), NONE);
            pc.config_write(CONSOLE_SLOT, 4, &released.to_le_bytes());
            assert_eq!(pc.messages(), [0x40]);
            other.1.clear();
        } else {
            pc.config_write(RNG_SLOT, register, &held.to_le_bytes());
            request(&mut pc, &mut ring);
            assert_eq!(pc.messages(), NONE);
            pc.config_write(RNG_SLOT, register, &released.to_le_bytes());
            assert_eq!(pc.messages(), [0x41]);
        }
    }
}

#[test]
fn a_device_reset_withdraws_pending_messages() {
    let (mut pc, driver, mut ring) = rng(0, true);
    pc.config_write(RNG_SLOT, driver.msix + 2, &0xC000_u16.to_le_bytes());
    request(&mut pc, &mut ring);
    driver.set_status(&mut pc, 0);
    pc.config_write(RNG_SLOT, driver.msix + 2, &0x8000_u16.to_le_bytes());
    assert_eq!(pc.messages(), NONE);
}

#[test]
fn the_driver_can_ask_for_no_interrupts() {
    let (mut pc, _, mut ring) = rng(0, true);
    pc.store(ring.available, &[1, 0]);
    request(&mut pc, &mut ring);
    assert_eq!(pc.messages(), NONE);
    pc.store(ring.available, &[0, 0]);
    request(&mut pc, &mut ring);
    assert_eq!(pc.messages(), [0x41]);
}

#[test]
fn event_index_decides_about_interrupts() {
    let (mut pc, _, mut ring) = rng(F_EVENT_IDX, true);
    // Without event index this flag would suppress all interrupts. With event index the flag means nothing.
    pc.store(ring.available, &[1, 0]);
    let mut fired = Vec::new();
    for (number, used_event) in [(0, 0), (1, 0), (2, 2), (3, 7), (4, 3), (5, 5)] {
        ring.set_used_event(&pc, used_event);
        assert!(request(&mut pc, &mut ring), "the device always waits for the next entry");
        if !pc.messages().is_empty() {
            fired.push(number);
        }
    }
    assert_eq!(fired, [0, 2, 5]);
}

#[test]
fn event_index_counts_a_whole_batch() {
    for (used_event, interrupt) in [(0, true), (2, true), (3, false), (0xFFFF, false)] {
        let (mut pc, _, mut ring) = rng(F_EVENT_IDX, true);
        ring.set_used_event(&pc, used_event);
        let buffer = pc.allocate(8);
        for _ in 0..3 {
            ring.add(&pc, &[(buffer, 8, true)]);
        }
        ring.kick(&mut pc);
        assert_eq!(!pc.messages().is_empty(), interrupt, "used_event {used_event}");
    }
}

#[test]
fn event_index_survives_the_wrap_of_the_indices() {
    let (mut pc, _, mut ring) = rng(F_EVENT_IDX, true);
    let buffer = pc.allocate(8);
    for number in 0..=0x1_0010_u32 {
        let wanted = number % 0x1000 == 0xFFF || number == 0x1_0000;
        ring.set_used_event(&pc, if wanted { number as u16 } else { (number as u16).wrapping_add(100) });
        ring.add(&pc, &[(buffer, 8, true)]);
        assert!(ring.kick(&mut pc), "request {number}");
        assert!(ring.pop(&pc).is_some());
        assert_eq!(!pc.messages().is_empty(), wanted, "request {number}");
    }
}

#[test]
fn a_receive_ring_asks_for_a_doorbell_only_when_it_is_empty() {
    let mut pc = pc();
    let (_, mut rings) = Driver::start(&mut pc, CONSOLE_SLOT, F_EVENT_IDX, true);
    let (mem, buffer) = (pc.mem(), pc.allocate(64));
    let receive = &mut rings[0];
    receive.add(&pc, &[(buffer, 8, true)]);
    assert!(receive.kick(&mut pc));
    receive.add(&pc, &[(buffer + 8, 8, true)]);
    assert!(!receive.kick(&mut pc), "the device already has a buffer that it cannot use");
    pc.bus.console_mut().unwrap().push_input(&mem, b"0123456789abcdef");
    assert_eq!((receive.pop(&pc), receive.pop(&pc)), (Some((0, 8)), Some((1, 8))));
    receive.add(&pc, &[(buffer, 8, true)]);
    assert!(receive.kick(&mut pc));
}
