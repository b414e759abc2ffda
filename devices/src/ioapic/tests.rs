use super::*;

fn write_register(chip: &mut IoApic, register: u8, value: u32) {
    chip.write(IOREGSEL, u32::from(register));
    chip.write(IOWIN, value);
}

fn read_register(chip: &mut IoApic, register: u8) -> u32 {
    chip.write(IOREGSEL, u32::from(register));
    chip.read(IOWIN)
}

fn program(chip: &mut IoApic, pin: u8, low: u32, high: u32) {
    write_register(chip, 0x11 + 2 * pin, high);
    write_register(chip, 0x10 + 2 * pin, low);
}

/// Returns the vectors that one call of `service` sends. Every message is accepted.
fn sent(chip: &mut IoApic) -> Vec<u8> {
    let mut vectors = Vec::new();
    chip.service(|message| {
        vectors.push(message.vector);
        true
    });
    vectors
}

#[test]
fn identification() {
    let mut chip = IoApic::new();
    assert_eq!(read_register(&mut chip, REG_VERSION), 0x0017_0020);
    write_register(&mut chip, REG_ID, 0xFF00_0000);
    assert_eq!(read_register(&mut chip, REG_ID), 0x0F00_0000);
    assert_eq!(read_register(&mut chip, REG_ARBITRATION), 0x0F00_0000);
    assert_eq!(read_register(&mut chip, 0x10), 0x0001_0000, "masked after reset");
    assert_eq!(read_register(&mut chip, 0x40), 0, "there is no pin 24");
}

#[test]
fn redirection_entries_keep_what_can_be_written() {
    let mut chip = IoApic::new();
    program(&mut chip, 23, u32::MAX, u32::MAX);
    assert_eq!(read_register(&mut chip, 0x3E), 0x0001_AFFF);
    assert_eq!(read_register(&mut chip, 0x3F), 0xFF00_0000);
}

#[test]
fn an_edge_is_sent_once() {
    let mut chip = IoApic::new();
    program(&mut chip, 4, 0x34, 0);
    chip.set_lines(1 << 4);
    assert_eq!(sent(&mut chip), [0x34]);
    chip.set_lines(1 << 4);
    assert_eq!(sent(&mut chip), []);
    chip.set_lines(0);
    chip.set_lines(1 << 4);
    assert_eq!(sent(&mut chip), [0x34]);
}

#[test]
fn a_level_is_sent_again_after_eoi_while_the_line_is_up() {
    let mut chip = IoApic::new();
    program(&mut chip, 9, 0x8059, 0);
    chip.set_lines(1 << 9);
    assert_eq!(sent(&mut chip), [0x59]);
    assert_eq!(read_register(&mut chip, 0x22) & 0x4000, 0x4000, "remote IRR");
    assert_eq!(sent(&mut chip), []);
    chip.end_of_interrupt(0x58);
    assert_eq!(sent(&mut chip), [], "another vector's EOI");
    chip.end_of_interrupt(0x59);
    assert_eq!(sent(&mut chip), [0x59]);
    chip.set_lines(0);
    chip.write(EOI, 0x59);
    assert_eq!(sent(&mut chip), []);
    assert_eq!(read_register(&mut chip, 0x22), 0x8059);
}

#[test]
fn a_refused_level_is_tried_again_and_a_refused_edge_is_lost() {
    for (trigger, retries) in [(0x8000, 1), (0, 0)] {
        let mut chip = IoApic::new();
        program(&mut chip, 9, trigger | 0x59, 0);
        chip.set_lines(1 << 9);
        chip.service(|_| false);
        assert_eq!(sent(&mut chip).len(), retries);
    }
}

/// On old versions of the I/O APIC, Linux clears remote IRR by masking the pin and switching to edge triggered and
/// back.
#[test]
fn switching_to_edge_and_back_clears_remote_irr() {
    let mut chip = IoApic::new();
    program(&mut chip, 9, 0x8059, 0);
    chip.set_lines(1 << 9);
    sent(&mut chip);
    program(&mut chip, 9, 0x1_0059, 0);
    program(&mut chip, 9, 0x8059, 0);
    assert_eq!(sent(&mut chip), [0x59]);
}

#[test]
fn a_pin_can_change_from_level_to_edge() {
    let mut chip = IoApic::new();
    program(&mut chip, 9, 0x8059, 0);
    program(&mut chip, 9, 0x0059, 0);
    chip.set_lines(1 << 9);
    assert_eq!(sent(&mut chip), [0x59]);
    assert_eq!(sent(&mut chip), []);
}

#[test]
fn a_masked_pin_loses_edges_and_keeps_levels() {
    for (trigger, expected) in [(0, &[][..]), (0x8000, &[0x30])] {
        let mut chip = IoApic::new();
        program(&mut chip, 2, 0x1_0030 | trigger, 0);
        chip.set_lines(1 << 2);
        assert_eq!(sent(&mut chip), []);
        program(&mut chip, 2, 0x30 | trigger, 0);
        assert_eq!(sent(&mut chip), expected);
    }
}

#[test]
fn messages_carry_the_entry() {
    let mut chip = IoApic::new();
    for (low, mode, logical, level) in [
        (0x0030, DeliveryMode::Fixed, false, false),
        (0x8930, DeliveryMode::LowestPriority, true, true),
        (0x8430, DeliveryMode::Nmi, false, false),
        (0x0730, DeliveryMode::ExtInt, false, false),
    ] {
        program(&mut chip, 1, low, 0xA500_0000);
        chip.set_lines(0);
        chip.set_lines(2);
        let mut seen = Vec::new();
        chip.service(|message| {
            seen.push(*message);
            true
        });
        assert_eq!(seen, [InterruptMessage { destination: 0xA5, logical, mode, vector: 0x30, level }]);
        chip.end_of_interrupt(0x30);
        assert_eq!(chip.passes_external_interrupt(1), mode == DeliveryMode::ExtInt);
    }
}

#[test]
fn entries_are_decoded() {
    let mut chip = IoApic::new();
    assert!(!chip.entries().any(|entry| entry.is_used()), "nothing is programmed after reset");
    program(&mut chip, 9, 0xA931, 0x0300_0000);
    chip.set_lines(1 << 9 | 1 << 20);
    chip.service(|_| true);
    let used: Vec<RedirectionEntry> = chip.entries().filter(RedirectionEntry::is_used).collect();
    let message = InterruptMessage {
        destination: 3,
        logical: true,
        mode: DeliveryMode::LowestPriority,
        vector: 0x31,
        level: true,
    };
    let entry = RedirectionEntry {
        pin: 9,
        message,
        is_masked: false,
        is_active_low: true,
        awaits_end: true,
        is_up: true,
    };
    assert_eq!(used[0], entry);
    assert_eq!((used.len(), used[1].pin, used[1].is_masked), (2, 20, true));
}
