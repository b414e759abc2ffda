use super::PicChip::{Master, Slave};
use super::*;

/// The pair as Linux's `init_8259A()` leaves it, with everything unmasked.
fn linux_pair(auto_eoi: bool) -> PicPair {
    let mut pair = PicPair::new(0);
    pair.write(Master, 1, 0xFF);
    for (chip, base, cascade) in [(Master, 0x30, 0x04), (Slave, 0x38, 0x02)] {
        pair.write(chip, 0, 0x11);
        pair.write(chip, 1, base);
        pair.write(chip, 1, cascade);
        pair.write(chip, 1, if auto_eoi && chip == Master { 0x03 } else { 0x01 });
        pair.write(chip, 1, 0);
    }
    pair
}

fn line(number: u8) -> u16 {
    1 << number
}

#[test]
fn linux_probe_finds_the_mask_register() {
    let mut pair = PicPair::new(0);
    pair.write(Slave, 1, 0xFF);
    pair.write(Master, 1, 0xFB);
    assert_eq!(pair.read(Master, 1), 0xFB);
    assert_eq!(pair.read(Slave, 1), 0xFF);
}

#[test]
fn every_line_gives_its_vector_and_ends() {
    for number in (0..16).filter(|&number| number != 2) {
        let mut pair = linux_pair(false);
        pair.set_lines(line(number));
        assert!(pair.interrupt_pending());
        assert_eq!(pair.acknowledge(), 0x30 + number);
        assert!(!pair.interrupt_pending());
        // Sends a specific EOI, first to the slave, as Linux does.
        if number >= 8 {
            pair.write(Slave, 0, 0x60 + (number & 7));
            pair.write(Master, 0, 0x62);
        } else {
            pair.write(Master, 0, 0x60 + number);
        }
        assert!(!pair.interrupt_pending(), "an edge interrupts once");
        pair.set_lines(0);
        pair.set_lines(line(number));
        assert!(pair.interrupt_pending(), "line {number} works again");
    }
}

#[test]
fn higher_priorities_interrupt_lower_ones_and_not_the_reverse() {
    let mut pair = linux_pair(false);
    pair.set_lines(line(4));
    assert_eq!(pair.acknowledge(), 0x34);
    pair.set_lines(line(4) | line(5));
    assert!(!pair.interrupt_pending());
    pair.set_lines(line(4) | line(5) | line(9));
    assert_eq!(pair.acknowledge(), 0x39, "the slave sits between 1 and 3");
    pair.set_lines(line(0));
    assert_eq!(pair.acknowledge(), 0x30);
    pair.write(Master, 0, 0x0B);
    assert_eq!(pair.read(Master, 0), 0b1_0101, "ISR");
    pair.write(Slave, 0, 0x0B);
    assert_eq!(pair.read(Slave, 0), 0b10);
    // Non-specific EOIs end the input of the highest priority first.
    pair.write(Master, 0, 0x20);
    pair.write(Slave, 0, 0x20);
    pair.write(Master, 0, 0x20);
    pair.write(Master, 0, 0x20);
    assert_eq!(pair.acknowledge(), 0x35, "the edge on 5 was remembered");
}

#[test]
fn masked_requests_wait() {
    let mut pair = linux_pair(false);
    pair.write(Master, 1, 0x10);
    pair.set_lines(line(4));
    assert!(!pair.interrupt_pending());
    pair.write(Master, 0, 0x0A);
    assert_eq!(pair.read(Master, 0), 0x10, "IRR shows masked requests");
    pair.write(Master, 1, 0x00);
    assert_eq!(pair.acknowledge(), 0x34);
}

#[test]
fn level_lines_interrupt_for_as_long_as_they_are_up() {
    let mut pair = linux_pair(false);
    pair.write_elcr(Slave, 0xFF);
    assert_eq!(pair.read_elcr(Slave), 0xDE, "8 and 13 cannot be level triggered");
    pair.set_lines(line(10));
    for _ in 0..3 {
        assert_eq!(pair.acknowledge(), 0x3A);
        assert!(!pair.interrupt_pending());
        pair.write(Slave, 0, 0x20);
        pair.write(Master, 0, 0x20);
        assert!(pair.interrupt_pending());
    }
    pair.set_lines(0);
    assert!(!pair.interrupt_pending());
}

#[test]
fn acknowledging_nothing_is_spurious() {
    let mut pair = linux_pair(false);
    assert_eq!(pair.acknowledge(), 0x37);
    pair.write(Master, 0, 0x0B);
    assert_eq!(pair.read(Master, 0), 0, "nothing is in service");
}

#[test]
fn automatic_end_of_interrupt_leaves_nothing_in_service() {
    let mut pair = linux_pair(true);
    pair.set_lines(line(0) | line(1));
    assert_eq!(pair.acknowledge(), 0x30);
    assert_eq!(pair.acknowledge(), 0x31);
    assert!(!pair.interrupt_pending());
}

#[test]
fn rotation_makes_the_served_line_the_last() {
    let mut pair = linux_pair(false);
    pair.set_lines(line(0) | line(1));
    assert_eq!(pair.acknowledge(), 0x30);
    pair.write(Master, 0, 0xA0);
    pair.set_lines(0);
    pair.set_lines(line(0) | line(1));
    assert_eq!(pair.acknowledge(), 0x31);
    pair.write(Master, 0, 0xC1);
    pair.write(Master, 0, 0x20);
    pair.set_lines(line(3) | line(0));
    assert_eq!(pair.acknowledge(), 0x33, "set priority: 1 is the last, so 3 comes before 0");
}

#[test]
fn special_mask_mode_lets_lower_priorities_through() {
    let mut pair = linux_pair(false);
    pair.set_lines(line(1));
    assert_eq!(pair.acknowledge(), 0x31);
    pair.set_lines(line(1) | line(6));
    assert!(!pair.interrupt_pending());
    pair.write(Master, 1, 0x02);
    pair.write(Master, 0, 0x68);
    assert_eq!(pair.acknowledge(), 0x36);
}

#[test]
fn polling_acknowledges() {
    let mut pair = linux_pair(false);
    pair.write(Master, 0, 0x0C);
    assert_eq!(pair.read(Master, 0), 0);
    pair.set_lines(line(5));
    pair.write(Master, 0, 0x0C);
    assert_eq!(pair.read(Master, 0), 0x85);
    assert!(!pair.interrupt_pending());
}

#[test]
fn special_fully_nested_mode_nests_within_the_slave() {
    for (icw4, expected) in [(0x01, false), (0x11, true)] {
        let mut pair = linux_pair(false);
        for value in [0x30, 0x04, icw4, 0x00].iter().enumerate() {
            if value.0 == 0 {
                pair.write(Master, 0, 0x11);
            }
            pair.write(Master, 1, *value.1);
        }
        pair.set_lines(line(12));
        assert_eq!(pair.acknowledge(), 0x3C);
        pair.set_lines(line(12) | line(8));
        assert_eq!(pair.interrupt_pending(), expected);
    }
}

#[test]
fn initialisation_without_icw4_or_icw3() {
    let mut pair = linux_pair(true);
    pair.write(Master, 0, 0x12);
    pair.write(Master, 1, 0x47);
    pair.write(Master, 1, 0xF7);
    assert_eq!(pair.read(Master, 1), 0xF7, "single, no ICW4: the second write is the mask");
    pair.set_lines(line(3));
    assert_eq!(pair.acknowledge(), 0x43);
    assert!(!pair.interrupt_pending(), "no automatic EOI any more");
}

#[test]
fn a_summary_has_the_registers() {
    let mut pair = PicPair::new(1 << 11);
    pair.write(PicChip::Master, 1, 0xFA);
    pair.write(PicChip::Slave, 1, 0xF7);
    pair.set_lines(1 << 0 | 1 << 11);
    pair.acknowledge();
    let [master, slave] = pair.summary();
    assert_eq!((master.in_service, master.requested, master.masked), (1, 1 << 2, 0xFA));
    assert_eq!((slave.requested, slave.level_triggered, slave.first_vector), (1 << 3, 1 << 3, 0x70));
}
