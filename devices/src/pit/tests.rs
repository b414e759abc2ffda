use super::*;

/// The first nanosecond of clock tick `tick`.
fn at(tick: u64) -> u64 {
    CLOCK.start_ns(tick).unwrap()
}

/// Programs a channel with a two-byte count at virtual time `now_ns`.
fn program(pit: &mut Pit, channel: u16, mode: u8, count: u16, now_ns: u64) {
    pit.write(CONTROL, (channel as u8) << 6 | 0x30 | mode << 1, now_ns);
    for byte in count.to_le_bytes() {
        pit.write(channel, byte, now_ns);
    }
}

fn read16(pit: &mut Pit, channel: u16, now_ns: u64) -> u16 {
    let low = pit.read(channel, now_ns);
    u16::from_le_bytes([low, pit.read(channel, now_ns)])
}

/// The output of channel 0 at each of the given ticks, as text: `-` high, `_` low.
fn trace(pit: &Pit, ticks: std::ops::Range<u64>) -> String {
    ticks.map(|tick| if pit.irq(at(tick)) { '-' } else { '_' }).collect()
}

#[test]
fn output_waveforms() {
    // The count is loaded one tick after it is written at tick 0.
    for (mode, count, expected) in [
        (0, 4, "_____-------"),
        (2, 4, "----_---_---_"),
        (2, 2, "--_-_-_-_-_"),
        (3, 4, "---__--__--__"),
        (3, 5, "----__---__---__"),
        (6, 4, "----_---_---_"),
        (7, 4, "---__--__--__"),
        (4, 4, "-----_------"),
        // Without a trigger nothing happens.
        (1, 4, "------------"),
        (5, 4, "------------"),
    ] {
        let mut pit = Pit::new();
        program(&mut pit, 0, mode, count, 0);
        assert_eq!(trace(&pit, 0..expected.len() as u64), expected, "mode {mode} count {count}");
    }
}

#[test]
fn triggered_modes_start_and_restart_with_the_gate() {
    for (mode, expected) in [(1, "-____--"), (5, "-----_-")] {
        let mut pit = Pit::new();
        program(&mut pit, 2, mode, 4, 0);
        pit.set_gate2(true, at(10));
        let seen: String = (10..17).map(|tick| if pit.output2(at(tick)) { '-' } else { '_' }).collect();
        assert_eq!(seen, expected, "mode {mode}");
        pit.set_gate2(false, at(20));
        pit.set_gate2(true, at(20));
        pit.set_gate2(false, at(22));
        pit.set_gate2(true, at(22));
        // Triggered again before the end: the count starts over.
        assert_eq!(pit.output2(at(26)), mode == 5, "mode {mode}");
        assert_eq!(pit.output2(at(27)), mode == 1, "mode {mode}");
    }
}

#[test]
fn a_new_count_takes_over_at_the_end_of_the_period() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 2, 4, 0);
    for byte in [3, 0] {
        pit.write(0, byte, at(2));
    }
    assert_eq!(trace(&pit, 0..12), "----_--_--_-");
}

#[test]
fn the_gate_holds_and_resumes_mode_0() {
    let mut pit = Pit::new();
    program(&mut pit, 2, 0, 100, 0);
    assert!(!pit.output2(at(1000)), "the gate is low: nothing counts");
    pit.set_gate2(true, at(1000));
    pit.set_gate2(false, at(1040));
    assert_eq!(read16(&mut pit, 2, at(5000)), 60);
    pit.set_gate2(true, at(6000));
    assert!(!pit.output2(at(6059)));
    assert!(pit.output2(at(6060)));
    pit.set_gate2(false, at(6070));
    assert!(pit.output2(at(6080)), "an expired count stays expired while it is held");
    assert_eq!(read16(&mut pit, 2, at(6080)), 0u16.wrapping_sub(10));
    pit.set_gate2(true, at(6090));
    assert!(pit.output2(at(6090)) && pit.output2(at(80_000)));
}

#[test]
fn reading_counts_in_every_access_mode() {
    for (access, writes, expected) in [
        (1, &[0x34][..], &[0x34, 0x33][..]),
        (2, &[0x12], &[0x12, 0x11]),
        (3, &[0x34, 0x12], &[0x34, 0x12, 0x33]),
    ] {
        let mut pit = Pit::new();
        pit.write(CONTROL, access << 4, 0);
        writes.iter().for_each(|&byte| pit.write(0, byte, 0));
        let mut seen = vec![pit.read(0, at(1))];
        if access == 3 {
            seen.push(pit.read(0, at(1)));
        }
        seen.push(pit.read(0, at(2)));
        assert_eq!(seen, expected, "access {access}");
    }
}

#[test]
fn latched_counts_stay_until_read() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 2, 1000, 0);
    pit.write(CONTROL, 0x00, at(11));
    pit.write(CONTROL, 0x00, at(300));
    assert_eq!(read16(&mut pit, 0, at(500)), 990, "the second latch command changes nothing");
    assert_eq!(read16(&mut pit, 0, at(501)), 500);
}

#[test]
fn read_back_latches_status_and_count_of_the_chosen_channels() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 2, 1000, 0);
    pit.write(CONTROL, 0xC2, 0);
    assert_eq!(pit.read(0, 0), 0xF4, "output high, count not loaded yet, two bytes, mode 2");
    assert_eq!(read16(&mut pit, 0, at(1)), 1000);
    pit.write(CONTROL, 0xE2, at(1000));
    assert_eq!(pit.read(0, at(1000)), 0x34, "output low in the last tick, loaded");
    pit.write(CONTROL, 0xDC, at(1001));
    assert_eq!(read16(&mut pit, 0, at(1101)), 900, "channel 0 was not chosen");
}

#[test]
fn bcd_counts() {
    let mut pit = Pit::new();
    pit.write(CONTROL, 0x31, 0);
    for byte in [0x00, 0x10] {
        pit.write(0, byte, 0);
    }
    for (tick, expected) in [(1, 0x1000), (2, 0x0999), (1001, 0x0000), (1002, 0x9999)] {
        assert_eq!(read16(&mut pit, 0, at(tick)), expected);
    }
}

#[test]
fn the_interrupt_does_not_drift() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 2, 11_932, 0);
    let (mut now_ns, mut rises) = (0, 0);
    while now_ns < 3_600_000_000_000 / 8 {
        let before = pit.irq(now_ns);
        now_ns = pit.next_deadline_ns(now_ns).unwrap();
        rises += u64::from(!before && pit.irq(now_ns));
    }
    assert_eq!(rises, (CLOCK.ticks(now_ns) - 1) / 11_932);
}

#[test]
fn nothing_changes_before_the_deadline_and_every_change_has_one() {
    for mode in 0..6 {
        for count in [1, 2, 3, 7, 8] {
            let mut pit = Pit::new();
            program(&mut pit, 0, mode, count, at(3));
            for byte in [2, 0] {
                pit.write(0, byte, at(6));
            }
            for tick in 6..60 {
                let deadline = pit.next_deadline_ns(at(tick)).map_or(100, |ns| CLOCK.ticks(ns));
                assert!(deadline > tick);
                let quiet = (tick..deadline.min(100)).all(|later| pit.irq(at(later)) == pit.irq(at(tick)));
                assert!(quiet, "mode {mode} count {count} tick {tick} deadline {deadline}");
            }
        }
    }
}

/// Linux's `pit_calibrate_tsc()`: channel 2 in mode 0 times 10 ms.
#[test]
fn linux_slow_calibration_measures_ten_milliseconds() {
    let mut pit = Pit::new();
    let start_ns = 123_456_789;
    pit.set_gate2(true, start_ns);
    program(&mut pit, 2, 0, (PIT_HZ / 100) as u16, start_ns);
    let mut now_ns = start_ns;
    while !pit.output2(now_ns) {
        now_ns += 100;
    }
    let error_ns = (now_ns - start_ns).abs_diff(10_000_000);
    assert!(error_ns < 2_000, "{error_ns}");
}

/// Linux's `quick_pit_calibrate()`: the high byte of channel 2, read unlatched, drops every 256 ticks.
#[test]
fn linux_quick_calibration_sees_the_high_byte_count_down() {
    let mut pit = Pit::new();
    pit.set_gate2(true, 0);
    pit.write(CONTROL, 0xB0, 0);
    pit.write(2, 0xFF, 0);
    pit.write(2, 0xFF, 0);
    let mut now_ns = 0;
    let mut high_byte_at = |now_ns: &mut u64| {
        *now_ns += 1000;
        pit.read(2, *now_ns);
        *now_ns += 1000;
        pit.read(2, *now_ns)
    };
    assert_eq!(high_byte_at(&mut now_ns), 0xFF);
    let mut changes = Vec::new();
    for expected in (0xF0..0xFF).rev() {
        while high_byte_at(&mut now_ns) != expected {}
        changes.push(now_ns);
    }
    for pair in changes.windows(2) {
        let step = (pair[1] - pair[0]).abs_diff(at(256));
        assert!(step <= 4000, "{step}");
    }
}

#[test]
fn impossible_states_are_refused() {
    let mut state = Pit::new().save();
    assert!(Pit::restore(&state).is_ok());
    let cycle = CycleV1 { origin_tick: 0, count: 0, expired: false };
    state.channels[1] = {
        let mut pit = Pit::new();
        program(&mut pit, 1, 2, 5, 0);
        let mut channel = ChannelStateV1::from(pit.channels[1].registers());
        channel.phase = CountPhaseV1::Counting { previous: None, current: cycle };
        channel
    };
    assert!(Pit::restore(&state).is_err());
}

#[test]
fn a_summary_agrees_with_what_the_guest_reads() {
    let mut pit = Pit::new();
    assert!(pit.summary(0).iter().all(|channel| !channel.counts && channel.changes_ns.is_none()));
    program(&mut pit, 0, 2, 1000, 0);
    let seen = pit.summary(at(300))[0];
    assert_eq!((seen.mode, seen.counts, seen.reload, seen.output), (2, true, 1000, true));
    assert_eq!(seen.changes_ns, pit.next_deadline_ns(at(300)));
    assert_eq!(seen.value as u16, read16(&mut pit, 0, at(300)));
}
