//! Replays that differ from their recording on purpose. The replay notices each difference. If there are two
//! machines to compare, the first differing instruction is found.

use history::replay::verify::{Origin, compare, verify};
use history::replay::{Fault, Replay, ReplayEnd};
use machine::error::Error;
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use recording::Recording;
use recording::log::{LogRecord, diff};
use recording::player::Scrutiny;
use tiny_guest::{DENSE, Numbers, STIRRED, STIRRED_BYTES, change_log, event_of, record, typed};

const ROUNDS: u32 = 40_000;
const KEYS: [(u64, &str); 3] = [(50_003, "a"), (111_111, "b"), (222_222, "d")];

/// A change to a recording's log.
type Change<'a> = dyn Fn(&mut [LogRecord<Instructions>]) + 'a;

fn replayed(
    recording: &Recording<Instructions>,
    scrutiny: Scrutiny,
    fault: Option<Fault<Instructions>>,
) -> Result<ReplayEnd, Error> {
    let mut replay = Replay::new(recording, scrutiny, |_| Ok(())).unwrap();
    replay.inject(fault);
    replay.run(None, |_| {})
}

fn diverges(recording: &Recording<Instructions>, scrutiny: Scrutiny) -> bool {
    match replayed(recording, scrutiny, None) {
        Err(Error::Divergence(_)) => true,
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

#[test]
fn an_unchanged_recording_replays_and_verifies() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    assert_eq!(end.console_bytes, 3);
    assert!(recording.log.check_count() as u64 >= end.at.count.number() / DENSE.registers);
    for scrutiny in [Scrutiny::Registers, Scrutiny::Everything] {
        assert_eq!(replayed(&recording, scrutiny, None).unwrap(), ReplayEnd::Verified);
    }
    let found = verify(&recording, None, |_, _| {}).unwrap();
    assert!(found.complete && found.difference.is_none());
    assert_eq!(found.at, end.at);
}

#[test]
fn every_changed_event_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    for number in 1..recording.log.event_count() {
        let changes: [(&str, &Change); 5] = [
            ("payload", &|log| event_of(log, number).event = Event::ConsoleInput(b"x".to_vec())),
            ("other kind", &|log| event_of(log, number).event = Event::PowerButton),
            ("later", &|log| {
                let at = &mut event_of(log, number).at;
                (at.count, at.time_ns) = (at.count + 1, at.time_ns + 1);
            }),
            ("earlier", &|log| {
                let at = &mut event_of(log, number).at;
                (at.count, at.time_ns) = (at.count - 1, at.time_ns - 1);
            }),
            ("swapped", &|log| {
                let other = 1 + number % (recording.log.event_count() - 1);
                let event = event_of(log, number).event.clone();
                let event = std::mem::replace(&mut event_of(log, other).event, event);
                event_of(log, number).event = event;
            }),
        ];
        for (what, change) in changes {
            let mut changed = recording.clone();
            change_log(&mut changed, change);
            assert!(diverges(&changed, Scrutiny::Registers), "event {number}: {what}");
        }
    }
    let mut other_seed = recording.clone();
    change_log(&mut other_seed, |log| {
        let Event::PowerOn(power_on) = &mut event_of(log, 0).event else { panic!() };
        power_on.unix_seconds += 1;
    });
    assert!(diverges(&other_seed, Scrutiny::Everything), "power-on");
}

#[test]
fn every_flipped_bit_of_ram_is_noticed_and_its_instruction_found() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    let mut numbers = Numbers(3);
    for round in 0..40 {
        let fault = Fault {
            at: Instructions(numbers.below(end.at.count.number())),
            offset: STIRRED + numbers.below(STIRRED_BYTES),
            bit: numbers.below(8) as u8,
        };
        let error = replayed(&recording, Scrutiny::Everything, Some(fault)).expect_err("not noticed");
        let Error::Divergence(divergence) = error else { panic!("{error}") };
        let at: Instructions = divergence.at.counted();
        assert!(at >= fault.at, "{fault:?}");
        let distance = DENSE.ram + DENSE.registers;
        assert!(at <= fault.at + distance, "{fault:?}: late, at {:?}", divergence.at);
        // The hashes at the end differ because of the fault, even if no earlier check compares RAM.
        assert!(replayed(&recording, Scrutiny::Registers, Some(fault)).is_err(), "{fault:?}");
        if round % 8 == 0 {
            let found = verify(&recording, Some(fault), |_, _| {}).unwrap().difference.unwrap();
            let Origin::ReplaysPart(parting) = found.origin else { panic!("{fault:?}: not located") };
            assert_eq!(parting.at, fault.at.position(), "{fault:?}");
            assert!(parting.differences.iter().any(|line| line.contains("physical address")), "{parting:?}");
        }
    }
}

#[test]
fn a_difference_that_every_replay_has_is_placed_between_two_checks() {
    let directory = tempfile::tempdir().unwrap();
    let (mut recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    change_log(&mut recording, |log| event_of(log, 2).event = Event::ConsoleInput(b"x".to_vec()));
    let difference = verify(&recording, None, |_, _| {}).unwrap().difference.unwrap();
    assert!(matches!(difference.origin, Origin::Between));
    let divergence = &difference.divergence;
    let (good, bad): (Instructions, _) = (divergence.last_good.counted(), divergence.at.counted());
    let place = recording.log.event(2).unwrap().unwrap().at.count;
    assert!(good <= place && place < bad && bad - good <= DENSE.registers, "{good} {place} {bad}");
    assert!(difference.events.iter().any(|(number, _)| *number == 2), "the event is among those shown");
}

#[test]
fn two_recordings_of_one_run_part_at_an_instruction() {
    let directory = tempfile::tempdir().unwrap();
    let (left, end) = record(directory.path(), "l.ttvm", ROUNDS, typed(&KEYS));
    let (same, _) = record(directory.path(), "s.ttvm", ROUNDS, typed(&KEYS));
    assert_eq!(diff::diff(&left.log, &same.log).unwrap(), None);
    assert!(compare(&left, &same, |_| {}).unwrap().is_none());
    let mut keys = KEYS;
    keys[1].1 = "c";
    let (right, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&keys));
    let parting = diff::diff(&left.log, &right.log).unwrap().unwrap();
    assert_eq!(parting.at.unwrap().count, Instructions(KEYS[1].0));
    assert!(parting.what.starts_with("event 2"), "{}", parting.what);
    let parting = compare(&left, &right, |_| {}).unwrap().unwrap();
    assert_eq!(
        parting.at,
        Instructions(KEYS[1].0).position(),
        "the step after which the serial port holds something else"
    );
    assert!(parting.at.number() < end.at.count.number());
    assert!(!parting.code.is_empty());
}

#[test]
fn a_difference_in_ram_is_placed_between_two_checks_of_ram() {
    let directory = tempfile::tempdir().unwrap();
    let (mut recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    let of_ram: Vec<_> =
        recording.log.checks().map(Result::unwrap).filter(|c| c.ram_digest.is_some()).collect();
    let (before, bad) = (of_ram[1].at, of_ram[2].at);
    change_log(&mut recording, |log| {
        let checks = log.iter_mut().filter_map(|record| match record {
            LogRecord::Check(check) => Some(check),
            _ => None,
        });
        checks.filter(|check| check.at == bad).for_each(|check| check.ram_digest = Some([0; 16]));
    });
    let divergence = verify(&recording, None, |_, _| {}).unwrap().difference.unwrap().divergence;
    assert_eq!((divergence.last_good, divergence.at), (before.count.position(), bad.count.position()));
    assert_eq!((divergence.last_good_ns, divergence.time_ns), (before.time_ns, bad.time_ns));
    assert_eq!(divergence.what, "the digest of RAM");
    assert!(!diverges(&recording, Scrutiny::Registers), "the player does not look at RAM there");
}
