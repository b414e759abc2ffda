//! Tests seeks from any point of a recording to any other point. After a seek, the state (registers, devices, RAM
//! and disk) must be the same as in a replay without seeks.
//!
//! `TTVM_PAIRS=2000 cargo test --release -p tests seeks` runs the full version: 2,000 pairs of points, in
//! recordings of Debian's boot and of the benchmark workloads `disk` and `rd`. Without the variable, the test uses
//! a few pairs, in `disk`.
//!
//! With `TTVM_RACES=200`, another test records 200 runs of threads that race on four processors, each run with
//! other turns. Without the variable, that test records three runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use history::replay;
use history::replay::verify::{compare_tiers, verify};
use history::timeline::{Timeline, TravelStop};
use machine::checks::{CheckParts, CheckRecord};
use machine::config::{MachineOptions, Processors};
use machine::error::exit_code;
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use machine::script::Script;
use machine::{Format, Machine, hash_of};
use recording::Recording;
use recording::pace::CheckpointOptions;
use tests::guests::{
    Artefact, BENCH, BENCH_RD, BUSYBOX, CLOUD, DEBIAN, Guest, TRIXIE, linux_options, repository, with_files,
};
use tests::program::run;
use tests::random::Random;
use tests::record::{open, record_with_checkpoints};

const SEED: u64 = 4711;
const SHORT_PAIRS: usize = 12;
/// Largest number of different points. The pairs are made from these points.
const MAX_POINTS: usize = 250;
/// Distance of the checkpoints, in guest time. Checkpoints are close together, so most of the time goes into the seeks.
const CHECKPOINT_NS: u64 = 100_000_000;

/// The number of pairs in the full version; `None` in the short version.
fn full_pairs() -> Option<usize> {
    let wanted = std::env::var("TTVM_PAIRS").ok()?;
    Some(wanted.parse().expect("TTVM_PAIRS is a number of pairs"))
}

/// The state that is compared after a seek.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    state: [u8; 32],
    check: CheckRecord<Instructions>,
    disk: [u8; 32],
}

fn look(machine: &mut Machine<Instructions>) -> Seen {
    let check = machine.check(CheckParts { devices: true, ram: true }).unwrap();
    Seen { state: hash_of(&machine.state().to_bytes(Format::V6)), check, disk: machine.disk_hash() }
}

fn record(guest: &Guest, directory: &Path, script: &mut Script) -> Recording<Instructions> {
    let path = directory.join("r.ttvm");
    let options = CheckpointOptions {
        interval_ns: CHECKPOINT_NS,
        page_rest_steps: 40_000,
        ..CheckpointOptions::default()
    };
    record_with_checkpoints(guest, &path, script, options);
    open(&path)
}

/// Returns the state at each point in a replay without seeks.
fn straight(recording: &Recording<Instructions>, points: &[Instructions]) -> Vec<Seen> {
    let (mut machine, mut player) = replay::open(recording).unwrap_or_else(|error| panic!("{error}"));
    let mut seen = Vec::new();
    for &point in points {
        machine.run(point, &mut player).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(machine.moment().count, point);
        seen.push(look(&mut machine));
    }
    seen
}

fn check(recording: &Recording<Instructions>, pairs: usize) {
    let mut random = Random::new(SEED);
    let points = random.points(pairs.min(MAX_POINTS), replay::last_place(recording));
    let expected = straight(recording, &points);
    let mut timeline = Timeline::open(recording).unwrap_or_else(|error| panic!("{error}"));
    let checkpoints = timeline.checkpoints().map_or(0, |checkpoints| checkpoints.heads().len());
    assert!(checkpoints >= 5, "{checkpoints} checkpoints");
    let mut from = Instructions(0);
    for pair in 0..pairs {
        let number = random.below(points.len() as u64) as usize;
        let to = points[number];
        let stop = timeline.seek(to, &mut || false).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((stop, timeline.position()), (TravelStop::Reached, to), "seed {SEED}, pair {pair}");
        let seen = look(timeline.machine_mut());
        assert_eq!(seen, expected[number], "seed {SEED}, pair {pair}: from {from} to {to}");
        from = to;
    }
    let replayed = timeline.replayed_steps() as f64 / 1e9;
    println!("{pairs} pairs of {} points, {checkpoints} checkpoints, {replayed:.1}e9 steps", points.len());
}

fn empty_disk(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).expect("the folder is ours");
    path
}

#[test]
fn on_a_disk_that_is_written() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut options = linux_options(&CLOUD, &BENCH, "w=disk", 256);
    let disk = empty_disk(directory.path());
    options.disk = Some(disk.clone());
    let recording = record(&Guest::new(&options), directory.path(), &mut Script::silent());
    let before = blake3_of(&disk);
    check(&recording, full_pairs().map_or(SHORT_PAIRS, |pairs| pairs / 3));
    assert_eq!(blake3_of(&disk), before, "the base image is never written");
}

#[test]
fn with_four_processors() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let work =
        "for j in 1 2 3 4 5; do (for i in 1 2 3; do ls -l /bin /sys/kernel | md5sum; done) & done; wait";
    let mut options = linux_options(&CLOUD, &BUSYBOX, &format!("ttvm.run=\"{work}\""), 256);
    options.processors = Processors::new(4).expect("the number is possible");
    let recording = record(&Guest::new(&options), directory.path(), &mut Script::silent());
    check(&recording, full_pairs().map_or(SHORT_PAIRS, |pairs| pairs / 3));
}

/// The test replays each recording of a race, and compares the replays of interpreter and translator. Then the test
/// goes to positions of the recording in random order.
#[test]
fn in_recordings_of_races() {
    const LENGTH: &str = "30000000";
    const STRIDE: u64 = 3_000_000;
    let races: u64 =
        std::env::var("TTVM_RACES").map_or(3, |text| text.parse().expect("TTVM_RACES is a number"));
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let root = directory.join("root");
    std::fs::create_dir(&root).expect("the folder is ours");
    let source = repository().join("tests/tests/system/programs/races.c");
    let gcc = Command::new("gcc").args(["-O1", "-static", "-o"]).arg(root.join("races")).arg(source).status();
    assert!(gcc.expect("gcc must be installed: run scripts/setup").success());
    with_files(&BUSYBOX, &root, &directory.join("initrd.gz"));
    let options = linux_options(&CLOUD, &BUSYBOX, "ttvm.run=/races", 128);
    let processors = Processors::new(4).expect("the number is possible");
    let initrd = Some(directory.join("initrd.gz"));
    let mut script = Script::silent();
    let whole =
        record(&Guest::new(&MachineOptions { initrd, processors, ..options }), directory, &mut script);
    let console = script.text();
    let counts: BTreeSet<&str> = console.lines().filter(|line| line.contains("12000 with one")).collect();
    assert!(counts.len() > 1, "the lock keeps all counts, and the races differ: {console}");
    let end = replay::last_place(&whole).number();
    let mut random = Random::new(SEED);
    let mut ends = BTreeSet::new();
    for number in 0..races {
        // Choose a position in the last part of the run, where the threads race.
        let at = format!("insn:{}", end - 40_000_000 - random.below(100_000_000));
        let turns = if number % 8 == 7 { "ring".to_string() } else { format!("random:{number}") };
        let from = ["record", "--snapshot-from", "r.ttvm", "--at", &at, "--turns", &turns, "-o", "race.ttvm"];
        let how =
            ["--max-instructions", LENGTH, "--checkpoint-interval", "2ms", "--checkpoint-overhead", "50%"];
        let (code, _, said) = run(directory, &[&from[..], &how].concat());
        assert_eq!(code, Some(exit_code::DONE), "{said}");
        let race = open(&directory.join("race.ttvm"));
        let found = verify(&race, None, |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.equal() && found.complete, "race {number} from {at} with {turns}");
        let parting = compare_tiers(&race, None, STRIDE, |_| {}).unwrap_or_else(|error| panic!("{error}"));
        assert!(parting.is_none(), "race {number} from {at} with {turns}: {parting:?}");
        check(&race, SHORT_PAIRS);
        ends.insert(race.log.end.as_ref().expect("the recording is complete").hashes.cpu);
        std::fs::remove_dir_all(directory.join("race.ttvm")).expect("it is there");
    }
    assert_eq!(ends.len() as u64, races, "each race ends in another state");
}

fn blake3_of(path: &Path) -> [u8; 32] {
    hash_of(&std::fs::read(path).expect("it was just written"))
}

#[test]
fn in_debians_boot() {
    let Some(pairs) = full_pairs() else {
        return skip::test(
            "the short version looks at the disk workload only; TTVM_PAIRS=2000 is the full one",
        );
    };
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut options = linux_options(&CLOUD, &BUSYBOX, "root=/dev/vda", 512);
    options.disk = Some(DEBIAN.path());
    let mut script = Script::new(&[("login: ", "root\n"), ("~# ", "poweroff\n")]);
    let recording = record(&Guest::new(&options), directory.path(), &mut script);
    check(&recording, pairs / 3);
}

#[test]
fn in_the_workload_rd() {
    let Some(pairs) = full_pairs() else {
        return skip::test(
            "the short version looks at the disk workload only; TTVM_PAIRS=2000 is the full one",
        );
    };
    let directory = tempfile::tempdir().expect("a temporary folder");
    let options = linux_options(&CLOUD, &BENCH_RD, "w=rd n=200", 256);
    let recording = record(&Guest::new(&options), directory.path(), &mut Script::silent());
    check(&recording, pairs - 2 * (pairs / 3));
}

/// The largest number of steps that a debugger may replay to open a recording of a boot at its end.
const TO_THE_END: u64 = 400_000_000;
/// The largest number of steps that may be replayed to reach a position in the first second, before the checkpoint
/// in this second. All code in the first second runs for the first time, so the replay is slow.
const EARLY: u64 = 420_000_000;
/// The largest number of steps that may be replayed to reach a position in the first second, after the checkpoint
/// in this second.
const FIRST: u64 = 620_000_000;
/// The largest number of additional steps that a seek to a time may replay to find the time's instruction.
const FINDING: u64 = 24_000_000;
/// The largest number of steps that may be replayed to reach a position that the session has passed before.
const NEAR: u64 = 48_000_000;

/// Seeks to a time. Returns the number of replayed steps.
fn steps_to(timeline: &mut Timeline, ns: u64) -> u64 {
    let before = timeline.replayed_steps();
    let spec = PositionSpec::Nanoseconds(ns);
    let target = timeline.resolve(spec, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(target, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.replayed_steps() - before
}

/// Tests that the first second of a boot has a checkpoint. The replay up to this checkpoint, and the replay from
/// this checkpoint, must take less than a second on the host. If a session has already passed a position, like a
/// debugger at the end, going to this position takes far less time.
fn first_second([kernel, busybox]: [&Artefact; 2]) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("r.ttvm");
    let guest = Guest::linux(kernel, busybox, "", 256);
    let mut script = Script::shell(&["poweroff -f"]);
    record_with_checkpoints(&guest, &path, &mut script, CheckpointOptions::default());
    let recording = open(&path);
    let mut random = Random::new(SEED);
    let places =
        [random.below(1_000_000_000), random.below(1_000_000_000), 399_000_000, 699_000_000, 999_999_999];
    for ns in places {
        let mut timeline = Timeline::open(&recording).unwrap_or_else(|error| panic!("{error}"));
        let steps = steps_to(&mut timeline, ns);
        let here = timeline.position();
        let heads = timeline.checkpoints().expect("there are some").heads();
        let before = heads.range(..=here).next_back().map_or(0, |(at, _)| at.number());
        let longest = if before == 0 { EARLY } else { FIRST };
        assert!(here.number() - before <= longest, "{ns} ns: the last checkpoint is at {before}");
        assert!(steps <= here.number() - before + FINDING, "{ns} ns: {steps} steps");
    }
    let mut timeline = Timeline::open(&recording).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    timeline.seek(end, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let opening = timeline.replayed_steps();
    assert!(opening <= TO_THE_END, "{opening} steps");
    for ns in [390_000_000, 690_000_000, 1_000_000_000] {
        assert!(steps_to(&mut timeline, ns) <= FIRST + FINDING);
    }
    let places: Vec<u64> = (0..20).map(|_| random.below(1_000_000_000)).collect();
    let mut ways = || -> Vec<u64> { places.iter().map(|&ns| steps_to(&mut timeline, ns)).collect() };
    let first = ways();
    assert!(first.iter().all(|&steps| steps <= FIRST + FINDING), "{first:?}");
    let steps = ways();
    println!("{opening} steps to the end, then {first:?}, and again {steps:?}");
    assert!(steps.iter().all(|&steps| steps <= NEAR), "{steps:?}");
}

#[test]
fn in_the_first_second_of_a_boot() {
    first_second([&CLOUD, &BUSYBOX]);
}

#[test]
fn in_the_first_second_of_a_newer_kernel() {
    if !TRIXIE.iter().all(Artefact::exists) {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    first_second(TRIXIE.each_ref());
}
