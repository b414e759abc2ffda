//! Console input and output, and the random numbers.

use super::*;

fn console(msix: bool) -> (Pc, Driver, Ring, Ring) {
    let mut pc = pc();
    let (driver, mut rings) = Driver::start(&mut pc, CONSOLE_SLOT, !0, msix);
    let transmit = rings.remove(1);
    (pc, driver, rings.remove(0), transmit)
}

fn push(pc: &mut Pc, bytes: &[u8]) {
    let mem = pc.mem();
    pc.bus.console_mut().unwrap().push_input(&mem, bytes);
}

#[test]
fn output_is_collected_in_order() {
    let (mut pc, _, _, mut transmit) = console(false);
    let text = pc.allocate(32);
    pc.store(text, b"hello, serial world");
    transmit.add(&pc, &[(text, 5, false), (text + 5, 2, false)]);
    transmit.add_indirect(&mut pc, &[(text + 14, 5, false)]);
    transmit.kick(&mut pc);
    assert_eq!((transmit.pop(&pc), transmit.pop(&pc)), (Some((0, 0)), Some((2, 0))));
    assert_eq!(pc.bus.console_mut().unwrap().take_output(), b"hello, world");
    assert_eq!(pc.bus.console_mut().unwrap().take_output(), b"");
}

#[test]
fn input_waits_for_buffers_and_buffers_wait_for_input() {
    let (mut pc, _, mut receive, _) = console(true);
    let buffer = pc.allocate(64);
    push(&mut pc, b"early");
    assert_eq!(pc.messages(), NONE);
    receive.add(&pc, &[(buffer, 3, true)]);
    receive.kick(&mut pc);
    assert_eq!((receive.pop(&pc), pc.messages()), (Some((0, 3)), vec![0x41]));
    receive.add(&pc, &[(buffer + 3, 8, true)]);
    receive.kick(&mut pc);
    assert_eq!(receive.pop(&pc), Some((1, 2)));
    receive.add(&pc, &[(buffer + 5, 1, true), (buffer + 6, 8, true)]);
    receive.kick(&mut pc);
    assert_eq!(receive.pop(&pc), None);
    push(&mut pc, b"late");
    assert_eq!(receive.pop(&pc), Some((2, 4)));
    assert_eq!(pc.load(buffer, 9), b"earlylate");
    assert_eq!(pc.bus.console_mut().unwrap().pending_input(), 0);
}

#[test]
fn a_resize_changes_the_configuration_and_tells_the_driver() {
    let (mut pc, driver, _, _) = console(true);
    let config = driver.config.unwrap();
    assert_eq!(pc.read::<12>(config), [80, 0, 25, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let generation = pc.read::<1>(driver.common + 0x15)[0];
    pc.bus.console_mut().unwrap().resize(132, 300);
    assert_eq!((pc.read::<4>(config), pc.messages()), ([132, 0, 44, 1], vec![0x40]));
    assert_eq!(pc.read::<1>(driver.common + 0x15)[0], generation + 1);
    pc.bus.console_mut().unwrap().resize(132, 300);
    assert_eq!(pc.messages(), NONE, "no change");
    assert_eq!(pc.read::<1>(driver.isr), [2], "the configuration bit is set with MSI-X as well");
}

#[test]
fn an_emergency_write_needs_no_driver() {
    let mut pc = pc();
    let driver = Driver::probe(&mut pc, CONSOLE_SLOT);
    for byte in *b"oops" {
        pc.write(driver.config.unwrap() + 8, &u32::from(byte).to_le_bytes());
    }
    assert_eq!(pc.bus.console_mut().unwrap().take_output(), b"oops");
}

#[test]
fn random_bytes_are_the_stream_of_the_seed() {
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let mut pc = pc();
    let (_, mut rings) = Driver::start(&mut pc, RNG_SLOT, !0, false);
    let buffer = pc.allocate(1024);
    rings[0].add(&pc, &[(buffer, 600, true), (buffer + 600, 100, true)]);
    rings[0].kick(&mut pc);
    assert_eq!(rings[0].pop(&pc), Some((0, 700)));
    let mut expected = [0; 700];
    rand_chacha::ChaCha20Rng::from_seed([7; 32]).fill_bytes(&mut expected);
    assert_eq!(pc.load(buffer, 700), expected);
}

#[test]
fn a_huge_request_for_random_bytes_is_answered_in_part() {
    let mut pc = pc();
    let (_, mut rings) = Driver::start(&mut pc, RNG_SLOT, !0, false);
    rings[0].add(&pc, &[(0x20_0000, 0x20_0000, true)]);
    rings[0].kick(&mut pc);
    assert_eq!(rings[0].pop(&pc), Some((0, 64 << 10)));
}
