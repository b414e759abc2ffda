//! Tests recordings of several processors, with policies of turns and with given turns. A given turn comes from the
//! inputs and not from the policy.

use std::path::Path;

use cpu::{Turn, TurnPolicy};
use history::cut::cut_out_end;
use history::replay::Replay;
use history::replay::verify::verify;
use history::timeline::Timeline;
use machine::checks::Intervals;
use machine::config::Processors;
use machine::engine::EngineKind;
use machine::given_turns::GivenTurns;
use machine::inputs::Event;
use machine::position::Instructions;
use machine::{Hashes, StartingState};
use recording::log::EndRecord;
use recording::player::Scrutiny;
use recording::{Recordable, Recording};
use tiny_guest::several::{self, NMIS, SHARED};
use tiny_guest::{DENSE, Numbers, Script, dense_checkpoints, typed};

const ROUNDS: u32 = 8_000;
const COUNT: u8 = 3;

fn processors(turns: TurnPolicy) -> Processors {
    several::processors(COUNT).with_turns(turns).unwrap()
}

fn keys() -> Script {
    Script(typed(&[(20_000, "a"), (60_000, "b")]))
}

/// Records a run with given turns, if there are any.
fn record(
    directory: &Path,
    name: &str,
    turns: TurnPolicy,
    given: Vec<Turn>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let inputs = GivenTurns::new(keys(), given);
    several::record(directory, name, (ROUNDS, processors(turns)), DENSE, Some(dense_checkpoints()), inputs)
}

/// Random turns of at most `longest` steps. Some turns are for a processor that does not exist.
fn random_turns(seed: u64, count: usize, longest: u64) -> Vec<Turn> {
    let mut random = Numbers(seed);
    let processors = u64::from(COUNT) + 1;
    let turns = (0..count)
        .map(|_| Turn { processor: random.below(processors) as u8, steps: 1 + random.below(longest) as u32 });
    turns.collect()
}

/// The machine's hashes at these places, which are in ascending order, from one replay forward.
fn straight(recording: &Recording<Instructions>, places: &[Instructions]) -> Vec<Hashes> {
    let mut replay = Replay::new(recording, Scrutiny::Everything, |_: &[u8]| Ok(())).unwrap();
    let mut hashes_at = |place| {
        replay.run(Some(place), |_| {}).unwrap();
        replay.machine.hashes()
    };
    places.iter().map(|&place| hashes_at(place)).collect()
}

/// Verifies a recording. Seeks back and forth between random places, most at the ends of turns, and compares the
/// machine with a replay forward.
fn is_exact(recording: &Recording<Instructions>) {
    let found = verify(recording, None, |_, _| {}).unwrap();
    let difference = found.difference.as_ref().map(|difference| difference.divergence.to_string());
    assert!(found.equal() && found.complete, "{difference:?}");

    let mut random = Numbers(3);
    let end = found.at.count.0;
    let mut places = Vec::new();
    let mut timeline = Timeline::open_with(recording, 1).unwrap();
    for _ in 0..25 {
        let place = Instructions(1 + random.below(end - 2));
        timeline.seek(place, &mut || false).unwrap();
        let left = timeline.machine().cpu().turn_state().map_or(1, |turns| turns.left);
        let turn_end = (place.0 + left).min(end - 1);
        places.extend([place, Instructions(turn_end), Instructions(turn_end - 1)]);
    }
    places.sort_unstable();
    places.dedup();
    let expected = straight(recording, &places);
    for _ in 0..80 {
        let number = random.below(places.len() as u64) as usize;
        timeline.seek(places[number], &mut || false).unwrap();
        assert_eq!(timeline.machine_mut().hashes(), expected[number], "at {}", places[number]);
    }
}

#[test]
fn a_recording_with_random_turns_is_exact_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", TurnPolicy::Random { seed: 1 }, Vec::new());
    is_exact(&recording);
    let machine = Timeline::open_with(&recording, 1).and_then(|mut timeline| {
        timeline.seek(timeline.end(), &mut || false)?;
        Ok((timeline.machine().ram().load_u64(NMIS), timeline.machine().ram().load_u64(SHARED)))
    });
    let (nmis, shared) = machine.unwrap();
    assert!(nmis & 0xffff > 4 && shared & 0xffff_ffff != 0, "the processors met: {nmis} {shared:#x}");

    let (_, again) = record(directory.path(), "again.ttvm", TurnPolicy::Random { seed: 1 }, Vec::new());
    assert_eq!((again.at, again.hashes), (end.at, end.hashes));
    for (name, other) in [("other.ttvm", TurnPolicy::Random { seed: 2 }), ("ring.ttvm", TurnPolicy::Ring)] {
        let (_, found) = record(directory.path(), name, other, Vec::new());
        assert_ne!(found.hashes.ram, end.hashes.ram, "{other:?}");
    }
}

#[test]
fn a_recording_with_given_turns_is_exact_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    for (name, policy) in [("ring.ttvm", TurnPolicy::Ring), ("random.ttvm", TurnPolicy::Random { seed: 5 })] {
        let (recording, _) = record(directory.path(), name, policy, random_turns(9, 3000, 100));
        let given =
            recording.log.events().filter(|event| matches!(event.as_ref().unwrap().event, Event::Turns(_)));
        assert_eq!(given.count(), 2, "turns are given in two parts");
        is_exact(&recording);
    }
}

#[test]
fn a_recording_of_the_ring_is_exact_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", TurnPolicy::Ring, Vec::new());
    is_exact(&recording);
}

/// The machine starts from a state in which given turns wait, and from the middle of a turn of the policy.
#[test]
fn a_run_goes_on_from_the_middle_of_a_turn() {
    for policy in [TurnPolicy::Random { seed: 5 }, TurnPolicy::Ring] {
        for given in [0, 300] {
            goes_on(policy, random_turns(9, given, 300));
        }
    }
}

fn goes_on(policy: TurnPolicy, given: Vec<Turn>) {
    let directory = tempfile::tempdir().unwrap();
    let has_given = !given.is_empty();
    let (recording, end) = record(directory.path(), "r.ttvm", policy, given);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.seek(Instructions(10_001), &mut || false).unwrap();
    assert_eq!(timeline.machine().cpu().waiting_turns() > 100, has_given);
    let start = StartingState::of(timeline.machine_mut()).unwrap();
    let mut later = Recordable::<Instructions>::going_on(EngineKind::SOFT, &recording, start).unwrap();
    let keys = Script(typed(&[(9_999, "a"), (49_999, "b")]));
    let folder = directory.path().join("later.ttvm");
    let found = later.record_in(&folder).unwrap().checkpoints(Some(dense_checkpoints())).run(keys).unwrap();
    assert_eq!((found.at.count.0, found.hashes.ram), (end.at.count.0 - 10_001, end.hashes.ram), "{policy:?}");
    is_exact(&tiny_guest::open(&folder));
}

#[test]
fn the_end_of_a_recording_takes_the_same_turns() {
    for policy in [TurnPolicy::Random { seed: 6 }, TurnPolicy::Ring] {
        let directory = tempfile::tempdir().unwrap();
        let (recording, end) = record(directory.path(), "r.ttvm", policy, random_turns(9, 500, 300));
        let folder = directory.path().join("end.ttvm");
        for last_ns in [40_000, 150_000] {
            let cut =
                cut_out_end(&recording, last_ns, true, &folder, &mut || false, &mut |_, _| false).unwrap();
            let cut_out = tiny_guest::open(&folder);
            let found = cut_out.log.end.clone().unwrap();
            assert_eq!(found.hashes.ram, end.hashes.ram, "{policy:?}, the last {last_ns} ns");
            assert_eq!(cut.cut.instructions + found.at.count.0, end.at.count.0);
            is_exact(&cut_out);
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}

#[test]
fn a_megabyte_of_log_holds_a_hundred_thousand_turns() {
    const TURNS: usize = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let inputs = GivenTurns::new(Script(Vec::new()), random_turns(4, TURNS, 200));
    let guest = (120_000, processors(TurnPolicy::Ring));
    let (recording, _) =
        several::record(directory.path(), "r.ttvm", guest, Intervals::OF_INSTRUCTIONS, None, inputs);
    let given = recording.log.events().map(|event| match event.unwrap().event {
        Event::Turns(turns) => turns.len(),
        _ => 0,
    });
    assert_eq!(given.sum::<usize>(), TURNS);
    let per_megabyte = TURNS as u64 * 1_000_000 / recording.log.bytes;
    assert!(per_megabyte >= 100_000, "{per_megabyte}, in {} bytes", recording.log.bytes);
    println!("{per_megabyte} turns in a megabyte");
}
