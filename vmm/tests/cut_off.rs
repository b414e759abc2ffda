//! Recordings that end before the run does: the recorder killed, the disk full.

mod tiny_guest;

use std::path::Path;
use std::process::{Command, Stdio};

use tiny_guest::{Numbers, write_kernel};
use vmm::player::Scrutiny;
use vmm::recording::{EVENTS, Recording};
use vmm::replay::{Replay, ReplayEnd};

const TTVM: &str = env!("CARGO_BIN_EXE_ttvm");
/// More than any of these runs gets to.
const FOR_EVER: u32 = u32::MAX;

fn arguments(kernel: &Path, recording: &Path) -> Vec<String> {
    let (kernel, recording) = (kernel.display().to_string(), recording.display().to_string());
    ["record", "-o", &recording, "--kernel", &kernel, "--memory", "4M", "--unpaced"]
        .map(str::to_string)
        .to_vec()
}

/// Opens and replays what is there; gives the step count that was reached.
fn replayed(path: &Path) -> u64 {
    let recording = Recording::open(path).unwrap();
    assert!(recording.log.end.is_none());
    let mut replay = Replay::new(&recording, Scrutiny::Everything, |_| Ok(())).unwrap();
    assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Stopped);
    let steps = replay.machine.moment().steps;
    assert!(steps >= recording.log.last_moment().steps);
    steps
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
        // The moment is given by how much has been recorded: after power-on and so many checks.
        let (log, wanted) = (path.join(EVENTS), 150 + numbers.below(100));
        while std::fs::metadata(&log).map_or(0, |metadata| metadata.len()) < wanted {
            assert!(recorder.try_wait().unwrap().is_none(), "the recorder ended by itself");
            std::thread::yield_now();
        }
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        replayed(&path);
    }
}

#[test]
fn a_full_disk_ends_the_recording_with_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = write_kernel(directory.path(), FOR_EVER);
    let path = directory.path().join("full.ttvm");
    // A limit on the size of files: what the file system says then is much the same as on a full disk.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", TTVM])
        .args(arguments(&kernel, &path))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(told.trim().lines().count(), 1, "{told}");
    assert!(told.contains("cannot write") && told.contains(EVENTS) && told.contains("replays"), "{told}");
    assert!(!Recording::open(&path).unwrap().log.torn);
    assert!(replayed(&path) > 16_000_000);
}
