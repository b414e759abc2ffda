//! Replays that are made to differ from their recording on purpose: every one is noticed, and the first
//! instruction that differs is found where there are two machines to compare.

use std::sync::Arc;

use tiny_guest::{DENSE, Numbers, STIRRED, STIRRED_BYTES, record, typed};
use vmm::error::Error;
use vmm::machine::inputs::Event;
use vmm::position::{Count, Instructions};
use vmm::recording::Recording;
use vmm::recording::log::{Log, diff};
use vmm::recording::player::Scrutiny;
use vmm::replay::verify::{Origin, compare, verify};
use vmm::replay::{Fault, Replay, ReplayEnd};

const ROUNDS: u32 = 40_000;
const KEYS: [(u64, &str); 3] = [(50_003, "a"), (111_111, "b"), (222_222, "d")];

/// Something that is done to a recording's log.
type Change<'a> = dyn Fn(&mut Log<Instructions>) + 'a;

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
    assert!(recording.log.checks.len() as u64 >= end.at.count.number() / DENSE.registers);
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
    for number in 1..recording.log.events.len() {
        let changes: [(&str, &Change); 5] = [
            ("payload", &|log| log.events[number].event = Event::ConsoleInput(b"x".to_vec())),
            ("other kind", &|log| log.events[number].event = Event::PowerButton),
            ("later", &|log| {
                log.events[number].at.count = log.events[number].at.count + 1;
                log.events[number].at.time_ns += 1;
            }),
            ("earlier", &|log| {
                log.events[number].at.count = log.events[number].at.count - 1;
                log.events[number].at.time_ns -= 1;
            }),
            ("swapped", &|log| {
                let other = 1 + number % (log.events.len() - 1);
                let event = log.events[number].event.clone();
                log.events[number].event = std::mem::replace(&mut log.events[other].event, event);
            }),
        ];
        for (what, change) in changes {
            let mut changed = recording.clone();
            change(Arc::make_mut(&mut changed.log));
            assert!(diverges(&changed, Scrutiny::Registers), "event {number}: {what}");
        }
    }
    let mut other_seed = recording.clone();
    let Event::PowerOn(power_on) = &mut Arc::make_mut(&mut other_seed.log).events[0].event else { panic!() };
    power_on.unix_seconds += 1;
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
        // The end's hashes find it too, without any check of RAM on the way.
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
    Arc::make_mut(&mut recording.log).events[2].event = Event::ConsoleInput(b"x".to_vec());
    let difference = verify(&recording, None, |_, _| {}).unwrap().difference.unwrap();
    assert!(matches!(difference.origin, Origin::Between));
    let divergence = &difference.divergence;
    let (good, bad): (Instructions, _) = (divergence.last_good.counted(), divergence.at.counted());
    let place = recording.log.events[2].at.count;
    assert!(good <= place && place < bad && bad - good <= DENSE.registers, "{good} {place} {bad}");
    assert!(difference.events.iter().any(|(number, _)| *number == 2), "the event is among those shown");
}

#[test]
fn two_recordings_of_one_run_part_at_an_instruction() {
    let directory = tempfile::tempdir().unwrap();
    let (left, end) = record(directory.path(), "l.ttvm", ROUNDS, typed(&KEYS));
    let (same, _) = record(directory.path(), "s.ttvm", ROUNDS, typed(&KEYS));
    assert_eq!(diff::diff(&left.log, &same.log), None);
    assert!(compare(&left, &same, |_| {}).unwrap().is_none());
    let mut keys = KEYS;
    keys[1].1 = "c";
    let (right, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&keys));
    let parting = diff::diff(&left.log, &right.log).unwrap();
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
    let checks = Arc::make_mut(&mut recording.log).checks.iter_mut().map(|(_, check)| check);
    let mut of_ram: Vec<_> = checks.filter(|check| check.ram_digest.is_some()).collect();
    let before = of_ram[1].at;
    of_ram[2].ram_digest = Some([0; 16]);
    let bad = of_ram[2].at;
    let divergence = verify(&recording, None, |_, _| {}).unwrap().difference.unwrap().divergence;
    assert_eq!((divergence.last_good, divergence.at), (before.count.position(), bad.count.position()));
    assert_eq!((divergence.last_good_ns, divergence.time_ns), (before.time_ns, bad.time_ns));
    assert_eq!(divergence.what, "the digest of RAM");
    assert!(!diverges(&recording, Scrutiny::Registers), "nobody looks at RAM there");
}
