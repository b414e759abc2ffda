use super::*;

const SECOND: u64 = NS_PER_SECOND;
/// Friday 1999-12-31 23:59:58 UTC.
const ALMOST_2000: i64 = 946_684_798;

fn read(rtc: &mut Rtc, register: u8, now_ns: u64) -> u8 {
    rtc.write(0, register, now_ns);
    rtc.read(1, now_ns)
}

fn write(rtc: &mut Rtc, register: u8, value: u8, now_ns: u64) {
    rtc.write(0, register, now_ns);
    rtc.write(1, value, now_ns);
}

/// Reads century, year, month, day, weekday, hours, minutes and seconds.
fn date(rtc: &mut Rtc, now_ns: u64) -> [u8; 8] {
    [0x32, 9, 8, 7, 6, 4, 2, 0].map(|register| read(rtc, register, now_ns))
}

#[test]
fn it_shows_the_date_it_was_given_and_goes_on() {
    let mut rtc = Rtc::new(ALMOST_2000);
    assert_eq!(date(&mut rtc, 0), [0x19, 0x99, 0x12, 0x31, 6, 0x23, 0x59, 0x58]);
    assert_eq!(date(&mut rtc, 2 * SECOND - 1), [0x19, 0x99, 0x12, 0x31, 6, 0x23, 0x59, 0x59]);
    assert_eq!(date(&mut rtc, 2 * SECOND), [0x20, 0x00, 0x01, 0x01, 7, 0x00, 0x00, 0x00]);
    write(&mut rtc, 0x0B, 0x04, 0);
    assert_eq!(date(&mut rtc, 0), [19, 99, 12, 31, 6, 0x80 | 11, 59, 58], "binary, 12 hours");
    assert_eq!(read(&mut rtc, 0x0D, 0), 0x80, "battery is good");
}

#[test]
fn the_update_bit_comes_on_just_before_each_second() {
    let mut rtc = Rtc::new(0);
    for (now_ns, updating) in
        [(0, false), (SECOND - 244_001, false), (SECOND - 244_000, true), (SECOND - 1, true), (SECOND, false)]
    {
        assert_eq!(read(&mut rtc, 0x0A, now_ns) & 0x80 != 0, updating, "{now_ns}");
    }
}

/// Linux's `mc146818_set_time()`: SET, divider reset, write, then release of both.
#[test]
fn linux_sets_the_time() {
    let mut rtc = Rtc::new(0);
    let start_ns = 10 * SECOND + 123;
    write(&mut rtc, 0x0B, 0x82, start_ns);
    write(&mut rtc, 0x0A, 0x76, start_ns);
    let (registers, values) = ([9, 8, 7, 4, 2, 0, 0x32], [0x24, 0x02, 0x29, 0x12, 0x34, 0x56, 0x20]);
    for (register, value) in registers.into_iter().zip(values) {
        write(&mut rtc, register, value, start_ns);
    }
    assert_eq!(read(&mut rtc, 0, start_ns + 5 * SECOND), 0x56, "stopped");
    assert_eq!(read(&mut rtc, 0x0A, start_ns + SECOND - 124) & 0x80, 0, "no updates while stopped");
    let go_ns = start_ns + 5 * SECOND;
    write(&mut rtc, 0x0B, 0x02, go_ns);
    write(&mut rtc, 0x0A, 0x26, go_ns);
    assert_eq!(read(&mut rtc, 0, go_ns + SECOND / 2 - 1), 0x56);
    assert_eq!(read(&mut rtc, 0, go_ns + SECOND / 2), 0x57, "the first update comes half a second later");
    let mut seen = date(&mut rtc, go_ns);
    seen[4] = 0;
    assert_eq!(seen, [0x20, 0x24, 0x02, 0x29, 0, 0x12, 0x34, 0x56]);
}

#[test]
fn the_weekday_is_what_the_guest_set_and_moves_on() {
    let mut rtc = Rtc::new(ALMOST_2000);
    write(&mut rtc, 6, 3, 0);
    assert_eq!(read(&mut rtc, 6, 0), 3);
    assert_eq!(read(&mut rtc, 6, 2 * SECOND), 4);
    assert_eq!(read(&mut rtc, 7, 0), 0x31, "the date is unaffected");
}

#[test]
fn periodic_interrupts_come_at_the_chosen_rate() {
    for (rate, hz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (13, 8), (15, 2)] {
        let mut rtc = Rtc::new(0);
        write(&mut rtc, 0x0A, 0x20 | rate, 0);
        write(&mut rtc, 0x0B, 0x42, 0);
        let (mut now_ns, mut count) = (0, 0);
        while let Some(next_ns) = rtc.next_deadline_ns(now_ns).filter(|&next_ns| next_ns <= SECOND) {
            assert!(!rtc.irq(next_ns - 1) && rtc.irq(next_ns), "rate {rate}");
            assert_eq!(rtc.next_deadline_ns(next_ns), None, "nothing more until register C is read");
            assert_eq!(read(&mut rtc, 0x0C, next_ns) & 0xC0, 0xC0);
            assert!(!rtc.irq(next_ns));
            now_ns = next_ns;
            count += 1;
        }
        assert_eq!(count, hz, "rate {rate}");
    }
}

#[test]
fn update_ended_interrupts_come_each_second() {
    let mut rtc = Rtc::new(0);
    write(&mut rtc, 0x0B, 0x12, SECOND / 4);
    assert_eq!(rtc.next_deadline_ns(SECOND / 4), Some(SECOND));
    assert_eq!(read(&mut rtc, 0x0C, SECOND), 0xD0, "the periodic flag is set as well, silently");
    assert_eq!(read(&mut rtc, 0x0C, SECOND), 0);
    assert_eq!(rtc.next_deadline_ns(SECOND), Some(2 * SECOND));
}

#[test]
fn alarms_match_with_wildcards() {
    // Each row has the alarm's hours, minutes and seconds, and the number of seconds from 1999-12-31 23:59:58 to
    // the alarm.
    for (alarm, after_s) in [
        ([0x00, 0x00, 0x03], Some(5)),
        ([0xFF, 0xFF, 0xFF], Some(1)),
        ([0xC0, 0xC0, 0x30], Some(32)),
        ([0xFF, 0x10, 0x00], Some(602)),
        ([0x23, 0x59, 0x58], Some(86_400)),
        ([0x23, 0x59, 0x59], Some(1)),
        ([0x01, 0xFF, 0xFF], Some(3602)),
        ([0x24, 0x00, 0x00], None),
        ([0x00, 0x60, 0x00], None),
    ] {
        let mut rtc = Rtc::new(ALMOST_2000);
        for (register, value) in [5, 3, 1].into_iter().zip(alarm) {
            write(&mut rtc, register, value, 0);
        }
        write(&mut rtc, 0x0B, 0x22, 0);
        let deadline_ns = rtc.next_deadline_ns(0);
        assert_eq!(deadline_ns, after_s.map(|after_s| after_s * SECOND), "{alarm:02x?}");
        if let Some(deadline_ns) = deadline_ns {
            assert!(!rtc.irq(deadline_ns - 1) && rtc.irq(deadline_ns));
            assert_eq!(read(&mut rtc, 0x0C, deadline_ns) & 0xA0, 0xA0);
        }
    }
}

#[test]
fn flags_of_the_past_survive_new_settings() {
    let mut rtc = Rtc::new(0);
    for register in [1, 3, 5] {
        write(&mut rtc, register, 0xFF, 0);
    }
    write(&mut rtc, 5, 0x24, 2 * SECOND);
    write(&mut rtc, 0x0A, 0x20, 2 * SECOND);
    assert_eq!(read(&mut rtc, 0x0C, 2 * SECOND), 0x70);
    assert_eq!(read(&mut rtc, 0x0C, 4 * SECOND), 0x10);
}

#[test]
fn new_settings_do_not_reach_into_the_past() {
    let mut rtc = Rtc::new(0);
    for (register, value) in [(5, 0xFF), (3, 0xFF), (1, 0x05)] {
        write(&mut rtc, register, value, 10 * SECOND);
    }
    assert_eq!(read(&mut rtc, 0x0C, 11 * SECOND) & C_ALARM, 0, "second 5 was over");
    assert_eq!(read(&mut rtc, 0x0C, 65 * SECOND) & C_ALARM, C_ALARM);
}

#[test]
fn set_stops_updates_but_not_the_periodic_interrupt() {
    let mut rtc = Rtc::new(0);
    write(&mut rtc, 0x0B, 0xD2, 0);
    assert_eq!(read(&mut rtc, 0x0B, 0), 0xC2, "SET clears the update-ended enable");
    assert_eq!(read(&mut rtc, 0x0C, 10 * SECOND), 0xC0);
}

#[test]
fn nvram_holds_bytes_and_the_index_has_seven_bits() {
    let mut rtc = Rtc::new(0);
    for address in 0x0E..0x80 {
        if usize::from(address) != REG_CENTURY {
            write(&mut rtc, address | 0x80, address ^ 0x5A, 0);
            assert_eq!(read(&mut rtc, address, 0), address ^ 0x5A);
        }
    }
    rtc.set_nvram(0x10, 7);
    rtc.set_nvram(0x0B, 0xFF);
    assert_eq!((read(&mut rtc, 0x10, 0), read(&mut rtc, 0x0B, 0)), (7, 0x02));
}

#[test]
fn impossible_states_are_refused() {
    let mut state = Rtc::new(0).save();
    state.index = 200;
    assert!(Rtc::restore(&state).is_err());
    let mut state = Rtc::new(i64::MAX).save();
    assert!(Rtc::restore(&state).is_ok());
    state.nvram.clear();
    assert!(Rtc::restore(&state).is_err());
}

#[test]
fn a_summary_has_the_date_and_the_alarm() {
    let mut rtc = Rtc::new(1_784_123_159);
    for (register, value) in [(1, 0x30), (3, 0xFF), (5, 0x13), (0x0B, 0x22)] {
        rtc.write(0, register, 0);
        rtc.write(1, value, 0);
    }
    let seen = rtc.summary(NS_PER_SECOND);
    let date = Date { year: 2026, month: 7, day: 15, hour: 13, minute: 46, second: 0 };
    assert_eq!((seen.date, seen.runs), (date, true));
    assert_eq!(seen.alarm, [Some(13), None, Some(30)]);
    assert_eq!(
        (seen.is_alarm_enabled, seen.is_update_enabled, seen.is_periodic_enabled),
        (true, false, false)
    );
    assert!(!seen.is_up && rtc.summary(31 * NS_PER_SECOND).is_up, "the alarm comes 30 seconds later");
}
