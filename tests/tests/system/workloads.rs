//! Tests the benchmark workloads. The guest must print the same checksums as the same static binaries print on the
//! host. `TTVM_FULL=1` runs the workloads at their full scale.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use checkpoint::PageRef;
use history::replay::{Replay, ReplayEnd};
use machine::Machine;
use machine::position::Instructions;
use machine::script::Script;
use recording::pace::CheckpointOptions;
use recording::player::Scrutiny;
use tests::guests::{BENCH, BENCH_RD, CLOUD, Guest, linux_options, repository};
use tests::record::{open, record_with_checkpoints};
use tests::run::{assert_shows, run_to_power_off};

/// The checksum that a workload prints at the end of each of its phases.
type Sums = BTreeMap<String, String>;

fn native_sums(workload: &str, scale: Option<u32>) -> Sums {
    let argument = scale.map_or(workload.to_string(), |scale| format!("{workload}={scale}"));
    let script = repository().join("guest-images/workloads/native");
    let output = Command::new(&script).arg(argument).output().expect("the script can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} failed (run guest-images/workloads/build first): {errors}",
        script.display()
    );
    let all: BTreeMap<String, Sums> = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    all[workload].clone()
}

fn guest_sums(text: &str) -> Sums {
    let line_sum = |line: &str| {
        let rest = line.split_once("MARK end ")?.1;
        let (phase, rest) = rest.split_once(' ')?;
        let sum = rest.split_once("sum=")?.1.split_whitespace().next()?;
        Some((phase.to_string(), sum.to_string()))
    };
    text.lines().filter_map(line_sum).collect()
}

fn run_workload(workload: &str, short_scale: Option<u32>) {
    let scale = if std::env::var_os("TTVM_FULL").is_some() { None } else { short_scale };
    let scale_parameter = scale.map_or(String::new(), |scale| format!(" n={scale}"));
    let initrd = if workload == "rd" { &BENCH_RD } else { &BENCH };
    let mut options = linux_options(&CLOUD, initrd, &format!("w={workload}{scale_parameter}"), 256);
    let directory = tempfile::tempdir().expect("a temporary folder");
    if workload == "disk" {
        options.disk = Some(empty_disk(directory.path()));
    }
    let mut script = Script::silent();
    let text = run_to_power_off(&mut Guest::new(&options).machine(), &mut script);
    assert_shows(&script, "MARK point done");
    if workload == "boot" {
        return assert_shows(&script, "SHELL-OK");
    }
    let (expected, found) = (native_sums(workload, scale), guest_sums(&text));
    assert!(!expected.is_empty());
    for (phase, sum) in expected {
        assert_eq!(found.get(&phase), Some(&sum), "{workload}: phase {phase}");
    }
}

fn empty_disk(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).expect("the folder is ours");
    path
}

#[test]
fn boot() {
    run_workload("boot", None);
}

#[test]
fn cpu() {
    run_workload("cpu", Some(1));
}

#[test]
fn sys() {
    run_workload("sys", Some(3));
}

#[test]
fn mem() {
    run_workload("mem", None);
}

#[test]
fn disk() {
    run_workload("disk", None);
}

/// Returns the number of disk blocks that a machine holds in memory, and the number of its disk blocks that are
/// stored in checkpoints.
fn blocks_held_and_stored(machine: &mut Machine<Instructions>) -> (usize, usize) {
    let version = machine.disk_version();
    let count = |is: fn(&PageRef) -> bool| version.iter_not_base().filter(|(_, at)| is(at)).count();
    (count(|at| matches!(at, PageRef::Held(_))), count(|at| matches!(at, PageRef::Stored(_))))
}

#[test]
fn a_replay_needs_no_memory_for_disk_blocks_that_lie_in_checkpoints() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut options = linux_options(&CLOUD, &BENCH, "w=disk", 256);
    options.disk = Some(empty_disk(directory.path()));
    let path = directory.path().join("disk.ttvm");
    let often =
        CheckpointOptions { interval_ns: 100_000_000, page_rest_steps: 1, ..CheckpointOptions::default() };
    record_with_checkpoints(&Guest::new(&options), &path, &mut Script::silent(), often);
    let recording = open(&path);
    let replayed = |most_held| {
        let mut replay = Replay::new(&recording, Scrutiny::Everything, |_| Ok(())).unwrap();
        replay.hold_blocks(most_held);
        assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Verified);
        blocks_held_and_stored(&mut replay.machine)
    };
    let (held, stored) = replayed(1000);
    assert!(held < 1000 && stored > 4000, "{held} held, {stored} stored");

    // Without readable checkpoints, the log is enough for the replay.
    for file in std::fs::read_dir(path.join("checkpoints")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "ckpt") {
            continue;
        }
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    replayed(1000);
}

#[test]
fn rd() {
    run_workload("rd", Some(20));
}
