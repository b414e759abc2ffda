//! Tests recordings that end before the run, because the recorder was killed or the disk is full.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use history::replay::{Replay, ReplayEnd};
use machine::position::{Count, Instructions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use recording::player::Scrutiny;
use recording::{CHECKPOINTS, EVENTS};
use tiny_guest::{Numbers, open, write_kernel};

const TTVM: &str = env!("CARGO_BIN_EXE_ttvm");
/// A number of rounds that no run of these tests reaches.
const FOR_EVER: u32 = u32::MAX;

fn arguments(kernel: &Path, recording: &Path) -> Vec<String> {
    let (kernel, recording) = (kernel.display().to_string(), recording.display().to_string());
    ["record", "-o", &recording, "--kernel", &kernel, "--memory", "4M", "--unpaced"]
        .map(str::to_string)
        .to_vec()
}

fn info(path: &Path) -> String {
    crate::common::ttvm(Path::new("."), &["info", path.to_str().unwrap()]).1
}

/// Opens and replays the recording. Returns the place that the replay reached.
fn replayed(path: &Path) -> Instructions {
    let recording = open(path);
    assert!(recording.log.end.is_none());
    let mut replay = Replay::new(&recording, Scrutiny::Everything, |_| Ok(())).unwrap();
    assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Stopped);
    let at = replay.machine.moment().count;
    assert!(at >= recording.log.last_moment().count);
    at
}

/// Asserts that `info`, `verify` and `replay` agree on the recording's length.
fn all_say_the_same(path: &Path, at: Instructions) {
    let path = path.to_str().unwrap();
    let json = |verb: &str| -> serde_json::Value {
        let (code, out, told) = crate::common::ttvm(Path::new("."), &[verb, path, "--json"]);
        assert_eq!(code, 0, "{out}{told}");
        serde_json::from_str(&out).unwrap()
    };
    let (info, verified) = (json("info"), json("verify"));
    assert_eq!(info["instructions"], at.number());
    assert_eq!(verified["instructions"], info["instructions"]);
    let (branches, seconds) = (&info["branches"], info["guest_seconds"].as_f64().unwrap());
    let told = crate::common::ttvm(Path::new("."), &["replay", "--quiet", "--verify", path]).2;
    let expected = format!("at {at} instructions, {branches} branches, {seconds:.6} s guest time");
    assert!(told.contains(&expected), "{told}: {expected}");
}

#[test]
fn a_recorder_that_is_killed_leaves_a_recording() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let mut numbers = Numbers(11);
    for round in 0..4 {
        let path = directory.path().join(format!("{round}.ttvm"));
        let mut recorder = Command::new(TTVM)
            .args(arguments(&kernel, &path))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The recorder is killed when the log has a certain size. A log of this size has the records of power-on
        // and of some checks.
        let (log, wanted) = (path.join(EVENTS), 150 + numbers.below(100));
        while std::fs::metadata(&log).map_or(0, |metadata| metadata.len()) < wanted {
            assert!(recorder.try_wait().unwrap().is_none(), "the recorder ended by itself");
            std::thread::yield_now();
        }
        assert!(info(&path).contains("ended         not yet: it is still being recorded"));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert!(info(&path).contains("ended         cut off"));
        let at = replayed(&path);
        all_say_the_same(&path, at);
    }
}

/// Records with a limit of this many blocks per file, which fails much like a full disk. The recorder must fail with
/// one sentence. Returns that sentence.
fn record_with_small_files(blocks: u32, arguments: &[String]) -> String {
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\""), TTVM])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let lines: Vec<&str> = told.trim().lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].starts_with("ttvm: the guest's idle time "), "{told}");
    lines[1].to_string()
}

#[test]
fn a_full_disk_ends_the_recording_with_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let path = directory.path().join("full.ttvm");
    // This recording takes no checkpoints. Another test in this file covers checkpoints that do not fit on the disk.
    let without_checkpoints = ["--checkpoint-interval".to_string(), "0".to_string()];
    let told = record_with_small_files(2, &[arguments(&kernel, &path), without_checkpoints.into()].concat());
    assert!(told.contains("cannot write") && told.contains(EVENTS) && told.contains("replays"), "{told}");
    assert!(!open(&path).log.torn);
    assert!(replayed(&path) > Instructions(16_000_000));
}

/// The number of checkpoints that `verify` found equal. The recording must have its end record.
fn verified(path: &Path) -> usize {
    assert!(open(path).log.end.is_some());
    let (code, told, error) = crate::common::ttvm(Path::new("."), &["verify", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{told}{error}");
    let parts: Vec<usize> = std::fs::read_dir(path.join(CHECKPOINTS))
        .unwrap()
        .map(|entry| entry.unwrap().path().extension().is_some_and(|extension| extension == "part").into())
        .collect();
    assert_eq!(parts.iter().sum::<usize>(), 0, "nothing unfinished stays behind");
    open(path).checkpoints().unwrap().unwrap().entries().len()
}

/// Records with a limit of 64 blocks per file: enough for the log, but not for a checkpoint.
fn record_without_room(kernel: &Path, path: &Path, more: &[&str]) -> Child {
    Command::new("sh")
        .args(["-c", "ulimit -S -f 64; exec \"$0\" \"$@\"", TTVM])
        .args(arguments(kernel, path))
        .args(["--checkpoint-interval", "20ms"])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_disk_too_full_for_checkpoints_costs_the_checkpoints_only() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let path = directory.path().join("full.ttvm");
    let recorder = record_without_room(&kernel, &path, &["--max-instructions", "400000000"]);
    let output = recorder.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    for part in ["cannot write", ".ckpt", "too large", "the recording goes on"] {
        assert_eq!(told.matches(part).count(), 1, "{part}: {told}");
    }
    assert_eq!(verified(&path), 0);
}

#[test]
fn checkpoints_are_written_again_once_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let path = directory.path().join("full.ttvm");
    let mut recorder = record_without_room(&kernel, &path, &[]);
    let mut told = String::new();
    let mut lines = BufReader::new(recorder.stderr.take().unwrap());
    while !told.contains("the recording goes on") {
        assert_ne!(lines.read_line(&mut told).unwrap(), 0, "{told}");
    }
    let process = recorder.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &process, "--fsize=unlimited"]).status();
    let is_raised = raised.is_ok_and(|status| status.success());
    while is_raised && !told.contains("checkpoints are written again") {
        assert_ne!(lines.read_line(&mut told).unwrap(), 0, "{told}");
    }
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(recorder.wait().unwrap().code(), Some(0), "{told}");
    let checkpoints = verified(&path);
    if !is_raised {
        return skip::test("this needs prlimit, to make room again");
    }
    assert!(checkpoints > 0, "{told}");
}

/// Records on a file system of 1.5 MiB, and shows the result. Needs root to mount it.
const ON_A_SMALL_DISK: &str = "\
    mount -t tmpfs -o size=1536k none \"$1\" || exit 99\n\
    \"$0\" record -o \"$1/r.ttvm\" --kernel \"$2\" --memory 4M --unpaced --checkpoint-interval 20ms \
    --max-instructions 600000000 2>&1\n\
    echo recorded $?\n\
    \"$0\" verify \"$1/r.ttvm\" 2>&1\n\
    echo verified $?\n";

#[test]
fn what_fits_on_a_full_disk_replays_with_its_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", ON_A_SMALL_DISK, TTVM])
        .args([&disk, &kernel])
        .stdin(Stdio::null())
        .output();
    let told = match &output {
        Ok(output) => String::from_utf8_lossy(&output.stdout),
        Err(_) => "".into(),
    };
    if !told.contains("recorded") {
        return skip::test("this needs root, to mount a small file system");
    }
    assert!(told.contains("No space left") && told.contains("the recording goes on"), "{told}");
    assert!(told.contains("recorded 0\n") && told.ends_with("verified 0\n"), "{told}");
    assert!(told.contains("compared, all equal"), "{told}");
}
