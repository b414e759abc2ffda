//! Tests of logs: whole, cut off, damaged and long.

use std::fs::File;

use super::frames::MAGIC;
use super::*;
use machine::Format;
use machine::checks::CheckRecord;
use machine::clock::MAX_TIME_NS;
use machine::inputs::{Event, PowerOn};
use machine::position::{Instructions, Moment};

fn record(number: u64, event: Event) -> EventRecord<Instructions> {
    let at = Moment { count: Instructions(number), time_ns: number };
    EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event }
}

fn power_on() -> Event {
    Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 })
}

fn check(number: u64) -> CheckRecord<Instructions> {
    let at = Moment { count: Instructions(number), time_ns: number + 1 };
    CheckRecord {
        at,
        branches: 3,
        rip: 4,
        cpu_hash: [5; 8],
        devices_hash: Some([6; 8]),
        ram_digest: Some([7; 16]),
    }
}

fn sample_records() -> Vec<LogRecord<Instructions>> {
    vec![
        LogRecord::Machine([9; 32]),
        LogRecord::Event(record(0, power_on())),
        LogRecord::Check(check(50)),
        LogRecord::Event(record(100, Event::ConsoleInput(b"ls\n".to_vec()))),
        LogRecord::Event(record(100, Event::PowerButton)),
        LogRecord::Check(check(100)),
    ]
}

fn written(records: &[LogRecord<Instructions>]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let mut writer = LogWriter::create(&path, Format::default()).unwrap();
    records.iter().for_each(|record| writer.append(record).unwrap());
    std::fs::read(&path).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let log = parse_log::<Instructions>(&written(&sample_records()), Format::default()).unwrap();
    assert_eq!(log.records().unwrap(), sample_records());
    assert!(!log.torn);
    assert_eq!(log.last_moment(), Moment { count: Instructions(100), time_ns: 101 });
}

#[test]
fn a_log_cut_off_anywhere_gives_the_records_before_the_cut() {
    let bytes = written(&sample_records());
    for length in MAGIC.len() + 1..bytes.len() {
        for zeroes in [0, 100] {
            let mut cut = bytes[..length].to_vec();
            cut.resize(length + zeroes, 0);
            let log = parse_log::<Instructions>(&cut, Format::default())
                .unwrap_or_else(|why| panic!("{length} {zeroes}: {why}"));
            let whole = log.records().unwrap();
            assert_eq!(whole, sample_records()[..whole.len()], "{length}");
            assert!(whole.len() < sample_records().len());
            assert_eq!(log.torn, log.bytes < cut.len() as u64, "{length}");
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = written(&sample_records());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_log::<Instructions>(&damaged, Format::default()).is_err(), "bit {bit}");
    }
}

#[test]
fn whole_frames_in_another_order_are_refused() {
    let lengths: Vec<usize> = (0..=6).map(|count| written(&sample_records()[..count]).len()).collect();
    let bytes = written(&sample_records());
    let frame = |number: usize| &bytes[lengths[number]..lengths[number + 1]];
    for left in 0..6 {
        for right in left + 1..6 {
            let order = (0..6).map(|n| {
                if n == left {
                    right
                } else if n == right {
                    left
                } else {
                    n
                }
            });
            let mut swapped = bytes[..lengths[0]].to_vec();
            order.for_each(|number| swapped.extend_from_slice(frame(number)));
            assert!(parse_log::<Instructions>(&swapped, Format::default()).is_err(), "{left} {right}");
        }
    }
    let without = [&bytes[..lengths[2]], &bytes[lengths[3]..]].concat();
    assert!(parse_log::<Instructions>(&without, Format::default()).is_err(), "a missing record");
    let twice = [&bytes[..lengths[3]], &bytes[lengths[2]..]].concat();
    assert!(parse_log::<Instructions>(&twice, Format::default()).is_err(), "a record twice");
}

#[test]
fn records_in_an_order_that_no_run_has_are_refused() {
    let machine = || LogRecord::Machine([9; 32]);
    let event = |number, event| LogRecord::Event(record(number, event));
    for (what, records) in [
        ("no machine", vec![event(0, power_on())]),
        ("two machines", vec![machine(), machine()]),
        ("no power-on", vec![machine(), event(5, Event::PowerButton)]),
        ("two", vec![machine(), event(0, power_on()), event(0, power_on())]),
        (
            "back",
            vec![machine(), event(0, power_on()), event(5, Event::PowerButton), LogRecord::Check(check(4))],
        ),
    ] {
        assert!(parse_log::<Instructions>(&written(&records), Format::default()).is_err(), "{what}");
    }
}

#[test]
fn payloads_that_no_recorder_writes_are_read_or_refused() {
    let payloads: Vec<Vec<u8>> = sample_records().iter().map(v1::to_bytes).collect();
    let mut random = 1_u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % limit
    };
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut changed = payloads.clone();
        for _ in 0..=below(3) {
            let payload = &mut changed[below(payloads.len())];
            match below(3) {
                0 if !payload.is_empty() => {
                    let at = below(payload.len());
                    payload[at] = below(256) as u8;
                }
                1 => payload.truncate(below(payload.len() + 1)),
                _ => payload.insert(below(payload.len() + 1), 0xff),
            }
        }
        if let Ok(log) =
            parse_log::<Instructions>(&log_of_payloads(changed.iter().map(Vec::as_slice)), Format::default())
        {
            assert!(log.event_count() + log.check_count() < payloads.len());
            let places: Vec<_> = log.entries().map(|entry| entry.unwrap().at()).collect();
            assert!(places.is_sorted());
            assert!(log.last_moment().time_ns <= MAX_TIME_NS);
            accepted += 1;
        }
    }
    assert!(accepted > 100, "{accepted}: nothing got as far as being looked at");
}

#[test]
fn a_disk_that_is_full_leaves_whole_records() {
    // A file that cannot grow: a full device. `LogWriter::create` cannot open it, because `create` only makes new
    // files.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut writer = LogWriter::on(full, "/dev/full".into());
    let error = writer.append(&sample_records()[0]).unwrap_err().to_string();
    assert!(error.contains("cannot write /dev/full") && error.contains("No space left"), "{error}");
    assert_eq!(writer.bytes(), 8);
}

/// A log of this many events. Every third event has a check behind it.
fn long_log(events: u64) -> Vec<LogRecord<Instructions>> {
    let mut records = vec![LogRecord::Machine([9; 32]), LogRecord::Event(record(0, power_on()))];
    for number in 1..events {
        records.push(LogRecord::SystemCalls(number / 7));
        records.push(LogRecord::Event(record(10 * number, Event::ConsoleInput(vec![number as u8; 40]))));
        if number % 3 == 0 {
            records.push(LogRecord::Check(check(10 * number)));
        }
    }
    records.insert(1, LogRecord::SystemCalls(0));
    records
}

#[test]
fn a_long_log_is_the_same_however_it_is_looked_at_and_little_of_it_is_in_memory() {
    let records = long_log(400_000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let payloads: Vec<Vec<u8>> = records.iter().map(v1::to_bytes).collect();
    std::fs::write(&path, log_of_payloads(payloads.iter().map(Vec::as_slice))).unwrap();
    let log: Log<Instructions> = read_log(&path, Format::default()).unwrap();
    assert!(log.records().unwrap() == records);
    assert!(log.pieces_in_memory() <= 128 && log.pieces() > 400, "{} pieces", log.pieces());
    let events: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            LogRecord::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(log.event_count(), events.len());
    for number in (0..events.len()).rev().step_by(997) {
        let (event, system_calls) = log.event_with_system_calls(number).unwrap().unwrap();
        assert_eq!((&event, system_calls), (events[number], Some(number as u64 / 7)));
        let until = events[number].at.count;
        assert_eq!(log.counts_while(|at| at.count < until).unwrap().0, number);
        let checks = number / 3;
        assert!(log.check_behind(number + 1, checks).unwrap().is_some() || number % 3 == 0);
        assert_eq!(log.check_behind(number + 2, checks.wrapping_sub(1)).unwrap(), None);
    }
    assert_eq!(log.event(events.len()).unwrap(), None);
    assert_eq!(log.check_behind(events.len() + 1, 0).unwrap(), None);
}

#[test]
fn a_file_that_changes_while_it_is_open_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let records = long_log(200_000);
    let payloads: Vec<Vec<u8>> = records.iter().map(v1::to_bytes).collect();
    let bytes = log_of_payloads(payloads.iter().map(Vec::as_slice));
    std::fs::write(&path, &bytes).unwrap();
    let log: Log<Instructions> = read_log(&path, Format::default()).unwrap();
    let mut changed = bytes.clone();
    changed[1000] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let error = log.event(1).unwrap_err().to_string();
    assert!(error.contains("was changed while it was being read"), "{error}");
    std::fs::write(&path, &bytes[..5000]).unwrap();
    assert!(log.event(60_000).unwrap_err().to_string().contains("cannot be read"));
}
