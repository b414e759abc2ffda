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

/// The records of a log with this number of events. A check follows every third event.
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
    assert!(log.pieces_in_memory() == 128 && log.pieces() > 400, "{} pieces", log.pieces());
    assert!(log.has_system_calls());
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
        // Each check is at the point of the event before the check.
        let checks = number.saturating_sub(1) / 3;
        assert_eq!(log.counts_while(|at| at.count < until).unwrap(), (number, checks));
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

#[test]
fn a_log_tells_its_counts_its_longest_stretch_and_what_is_missing() {
    let records = sample_records();
    let log = Log::of_records(&records).unwrap();
    assert_eq!((log.event_count(), log.check_count(), log.entry_count()), (3, 2, 5));
    assert_eq!((log.longest_stretch(), log.machine_hash), (50, [9; 32]));
    assert!(!log.has_system_calls(), "no event has a count of system calls");
    for (events, checks, is_there) in [(3, 2, true), (0, 0, true), (4, 2, false), (3, 3, false)] {
        assert_eq!(log.reaches(events, checks), is_there, "{events} {checks}");
    }
    assert_eq!(log.power_on().unwrap().event, power_on());
    let empty = Log::<Instructions>::of_records(&records[..1]).unwrap();
    assert!(empty.power_on().is_err() && empty.entry(0).unwrap().is_none());
    assert_eq!(empty.counts_while(|_| true).unwrap(), (0, 0));
    // An event must not have a count of system calls if an earlier event has none.
    let counted = records.to_vec();
    let with = |at: usize, count: u64| {
        let mut records = counted.clone();
        records.insert(at, LogRecord::SystemCalls(count));
        Log::of_records(&records).map(|log| log.has_system_calls())
    };
    assert_eq!(with(1, 0), Ok(false), "one event has a count, two have none");
    assert!(with(3, 0).is_err(), "an event before it has no count");
}

#[test]
fn entries_are_found_by_number_and_checks_from_behind() {
    let log = Log::of_records(&sample_records()).unwrap();
    let number = |entry: usize| log.entry(entry).unwrap().map(|entry| entry.at().count.0);
    assert_eq!([0, 1, 2, 3, 4, 5].map(number), [Some(0), Some(50), Some(100), Some(100), Some(100), None]);
    assert_eq!(log.entries_from(3).count(), 2);
    let before = |entry, from: u64| {
        log.last_check_before(entry, |check| check.at.count.0 >= from).unwrap().map(|check| check.at.count.0)
    };
    assert_eq!([before(5, 0), before(4, 0), before(1, 0), before(5, 101)], [Some(100), Some(50), None, None]);
    assert_eq!(before(usize::MAX, 0), Some(100));
    let piece = log.piece_of(2).unwrap();
    assert_eq!([0, 4, 5, 6].map(|entry| piece.contains(entry)), [true, true, false, false]);
    assert_eq!(piece.check_behind(4), Some(log.check()));
    assert!(piece.check_behind(5).is_none() && piece.check_behind(0) != piece.check_behind(1));
    for (events, checks, is_place) in
        [(0, 0, true), (1, 0, true), (0, 1, false), (2, 1, true), (3, 2, true), (4, 2, false)]
    {
        assert_eq!(log.check_behind(events, checks).unwrap().is_some(), is_place, "{events} {checks}");
    }
    assert_eq!(log.check_behind(3, 2).unwrap(), Some(log.check()));
    assert_eq!(log.check_behind(usize::MAX, 2).unwrap(), log.check_behind(0, 0).unwrap());
}

#[test]
fn a_piece_in_the_middle_of_a_log_holds_its_own_entries_only() {
    let log = Log::of_records(&long_log(3_000)).unwrap();
    let first = log.piece_of(0).unwrap();
    let behind = (0..).find(|&entry| !first.contains(entry)).unwrap();
    let second = log.piece_of(behind).unwrap();
    assert!(second.contains(behind) && !second.contains(behind - 1) && !second.contains(0));
    assert!(second.entry(behind - 1).is_none() && second.check_behind(behind - 1).is_none());
    let last = log.entry_count() - 1;
    let end = log.piece_of(usize::MAX).unwrap();
    assert!(end.contains(last) && !end.contains(last + 1) && !end.contains(behind));
}

#[test]
fn the_piece_that_was_used_longest_ago_is_dropped_first() {
    use super::piece::Loaded;
    let mut loaded = Loaded::<Instructions>::new();
    let piece = |number: usize| std::sync::Arc::new(Piece::new(number));
    (0..128).for_each(|number| loaded.keep(number, piece(number)));
    assert_eq!(loaded.count(), 128, "all find room");
    assert!(loaded.get(0).is_some());
    loaded.keep(128, piece(128));
    assert_eq!((loaded.count(), loaded.get(1).is_some(), loaded.get(0).is_some()), (128, false, true));
    // `keep` on a piece that is already in memory counts as a use.
    loaded.keep(2, piece(2));
    loaded.keep(129, piece(129));
    assert!(loaded.get(2).is_some() && loaded.get(3).is_none());
}

#[test]
fn a_log_reserves_disk_space_while_it_is_written_and_gives_it_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let mut writer = LogWriter::create(&path, Format::default()).unwrap();
    assert_eq!((writer.path(), writer.format()), (path.as_path(), Format::default()));
    let size = || std::fs::metadata(&path).map(|file| (file.len(), file.blocks() * 512)).unwrap();
    let can_reserve = size().1 >= 128 << 10;
    writer.append(&sample_records()[0]).unwrap();
    writer.append(&sample_records()[1]).unwrap();
    for number in 1..900 {
        let typed = Event::ConsoleInput(vec![number as u8; 1000]);
        writer.append_event(&record(number, typed)).unwrap();
        let (length, on_disk) = size();
        assert_eq!(length, writer.bytes());
        // Besides the log, the file occupies at least half of the reserved space on the disk, and at most little
        // more than all reserved space.
        assert!(!can_reserve || on_disk >= length + (128 << 10) - 4096, "{number}: {on_disk} for {length}");
        assert!(on_disk <= length + (256 << 10) + 8192, "{number}: {on_disk} for {length}");
    }
    let (length, check) = (writer.bytes(), writer.check());
    drop(writer);
    assert!(size().0 == length && size().1 <= length + 8192, "{:?}", size());
    let log: Log<Instructions> = read_log(&path, Format::default()).unwrap();
    assert_eq!((log.bytes, log.check(), log.torn), (length, check, false));
}

#[test]
fn only_a_log_with_a_recorder_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    assert!(!is_being_written(&path), "there is no such file");
    let writer = LogWriter::create(&path, Format::default()).unwrap();
    assert!(is_being_written(&path));
    drop(writer);
    assert!(!is_being_written(&path));
}

#[test]
fn the_largest_record_is_read_and_a_larger_one_is_refused() {
    // The record has less than 100 bytes besides the text.
    let mut records = sample_records();
    for length in [(1 << 20) - 100, 1] {
        let typed = Event::ConsoleInput(vec![7; length]);
        records.push(LogRecord::Event(record(200, typed)));
    }
    let bytes = written(&records);
    let log = parse_log::<Instructions>(&bytes, Format::default()).unwrap();
    assert_eq!((log.records().unwrap(), log.bytes), (records, bytes.len() as u64));
    let error = parse_log::<Instructions>(&log_of_payloads([&[0; (1 << 20) + 1][..]]), Format::default());
    assert!(error.unwrap_err().contains("claims 1048577 bytes"));
    let error = parse_log::<Instructions>(&log_of_payloads([&[0; 1 << 20][..]]), Format::default());
    assert!(error.unwrap_err().contains("is longer than its contents"));
}

#[test]
fn a_source_reads_what_is_there_and_finds_the_last_byte_that_is_not_zero() {
    use super::source::{Source, Window};
    let directory = tempfile::tempdir().unwrap();
    for (length, last) in
        [(0, 0), (5, 5), (5, 3), (200_000, 1), (200_000, 131_072), (200_000, 0), (65_537, 1)]
    {
        let mut bytes = vec![0; length];
        if last > 0 {
            bytes[last - 1] = 1;
        }
        let path = directory.path().join("log");
        std::fs::write(&path, &bytes).unwrap();
        for source in [Source::open(&path).unwrap(), Source::Memory(bytes.clone())] {
            assert_eq!(
                (source.length().unwrap(), source.end_of_data().unwrap()),
                (length as u64, last as u64)
            );
            let middle = source.read(length as u64 / 2, length as u64 / 4).unwrap();
            assert_eq!(middle, &bytes[length / 2..length / 2 + length / 4]);
        }
    }
    let large: Vec<u8> = (0..9 << 20).map(|number: u32| (number >> 8) as u8 ^ number as u8).collect();
    let source = Source::Memory(large.clone());
    let mut window = Window::new(&source, large.len() as u64);
    // Forward, back, beyond the first buffer, across its end, and up to the end of the source.
    for (offset, wanted) in [
        (0, 8),
        (100, 5000),
        (50, 8),
        ((4 << 20) - 10, 2000),
        (8 << 20, 5 << 20),
        (large.len() - 3, 100),
        (0, 1),
    ] {
        let bytes = window.from(offset as u64, wanted as u64).unwrap();
        let least = wanted.min(large.len() - offset);
        assert!(bytes.len() >= least && *bytes == large[offset..offset + bytes.len()], "{offset} {wanted}");
    }
}
