//! Tests recordings made by earlier versions of ttvm, which are described in `../recording/tests/golden/README.md`.
//! Recordings of the present format versions are replayed and compared completely. For recordings of earlier versions,
//! the message must name the version of ttvm that reads them.

use std::path::{Path, PathBuf};

use cpu::TurnPolicy;
use history::replay::verify::verify;
use history::replay::{ReplayEnd, replay};
use machine::config::Processors;
use machine::error::exit_code;
use machine::position::{Exits, Instructions};
use machine::unit::Unit;
use recording::pack::{DEFAULT_MAX_BYTES, unpack};
use recording::{MANIFEST, Manifest, NEWEST_FORMAT, OLDEST_FORMAT, Opened, Recording};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/tests/golden").join(name)
}

fn unpacked(name: &str, directory: &Path) -> Opened {
    let path = directory.join("r.ttvm");
    unpack(&golden(name), &path, DEFAULT_MAX_BYTES).unwrap();
    Opened::open(&path).unwrap()
}

/// Replays and verifies a recording with these numbers of records, which ends at `end`.
fn must_replay<C: Unit>(recording: &Recording<C>, events: usize, checks: usize, checkpoints: usize, end: C) {
    let (log, manifest) = (&recording.log, &recording.manifest);
    let several = manifest.machine.processors.count() > 1;
    assert_eq!(manifest.format.version(), if several { 6 } else { 5 });
    assert_eq!(manifest.made_by, "ttvm 0.1.0");
    assert_eq!((log.event_count(), log.check_count(), log.torn), (events, checks, false));
    assert_eq!(log.last_moment().count, end);
    let (_, how) = replay(recording, None, |_| Ok(()), |_| {}).unwrap();
    assert_eq!(how, ReplayEnd::Verified);
    let found = verify(recording, None, |_, _| {}).unwrap();
    let difference = found.difference.as_ref().map(|difference| difference.divergence.to_string());
    assert!(found.equal() && found.complete, "{difference:?} {:?}", found.checkpoint_difference);
    assert_eq!((found.checkpoints, found.at.count), (checkpoints, end));
}

#[test]
fn a_recording_of_version_5_that_counts_instructions() {
    let directory = tempfile::tempdir().unwrap();
    let Opened::ByInstructions(recording) = unpacked("v5-instructions.packed", directory.path()) else {
        panic!("it counts instructions");
    };
    must_replay(&recording, 6, 6, 9, Instructions(110_186));
}

#[test]
fn a_recording_of_version_5_that_counts_exits() {
    let directory = tempfile::tempdir().unwrap();
    let Opened::ByExits(recording) = unpacked("v5-exits.packed", directory.path()) else {
        panic!("it counts exits");
    };
    must_replay(&recording, 243, 18, 5, Exits(171));
}

/// A recording with three processors. CPUID has only their number, as in all recordings of that time.
#[test]
fn a_recording_of_version_6_with_turns_in_a_ring() {
    let directory = tempfile::tempdir().unwrap();
    let Opened::ByInstructions(recording) = unpacked("v6-ring.packed", directory.path()) else {
        panic!("it counts instructions");
    };
    let processors = recording.manifest.machine.processors;
    assert_eq!(Some(processors), Processors::without_topology(3));
    must_replay(&recording, 1, 1, 3, Instructions(327_676));
}

/// A recording with six processors in two sockets, a random policy of turns, turns from events of the log, and typed
/// text.
#[test]
fn a_recording_of_version_6_with_random_and_given_turns() {
    let directory = tempfile::tempdir().unwrap();
    let Opened::ByInstructions(recording) = unpacked("v6-random.packed", directory.path()) else {
        panic!("it counts instructions");
    };
    let processors = Processors::without_topology(6).and_then(|six| six.with_topology(2, 3));
    let turns = TurnPolicy::Random { seed: 7 };
    assert_eq!(Some(recording.manifest.machine.processors), processors.and_then(|six| six.with_turns(turns)));
    must_replay(&recording, 4, 32, 4, Instructions(626_682));
}

#[test]
fn earlier_versions_are_refused_with_the_name_of_what_reads_them() {
    for version in 1..OLDEST_FORMAT {
        let text = std::fs::read_to_string(golden(&format!("manifest_v{version}.json"))).unwrap();
        let expected = format!(
            "has format version {version}, made by \"ttvm 0.1.0\"; this ttvm reads versions {OLDEST_FORMAT} and \
             {NEWEST_FORMAT}: use the ttvm that made it"
        );
        assert_eq!(Manifest::parse(&text).unwrap_err(), expected);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(MANIFEST), text).unwrap();
        let Err(error) = Opened::open(directory.path()) else { panic!("it was opened") };
        assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING);
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// These recordings could be opened, but their replay would differ, because the CPU has changed.
#[test]
fn packed_recordings_of_version_4_are_refused_too() {
    for name in ["v4-instructions.packed", "v4-exits.packed"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.ttvm");
        let error = unpack(&golden(name), &path, DEFAULT_MAX_BYTES).unwrap_err();
        assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING);
        assert!(error.to_string().contains("has format version 4, made by \"ttvm 0.1.0\""), "{error}");
        assert!(!path.join(MANIFEST).exists());
    }
}
