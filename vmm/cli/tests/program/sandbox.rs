//! Tests by /proc that verbs that run a guest enter the sandbox before the guest runs. `vmm/sandbox/tests` tests what
//! the sandbox forbids.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tiny_guest::write_kernel;

/// Number of typed bytes: more than fit into a pipe that the guest does not read.
const TYPED_BYTES: usize = 100_000;
const RUN: &str = "run --kernel endless --memory 4M";
const RECORD: &str = "record -o new.ttvm --kernel endless --memory 4M";
const REPLAY: &str = "replay r.ttvm";
const DEBUG: &str = "debug r.ttvm --listen unix:socket";

/// A process that is killed when its test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a guest that echoes typed keys for ever, and a recording. The recording's output is so long that its
/// replay waits for a reader.
fn folder() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::rename(write_kernel(path, u32::MAX), path.join("endless")).unwrap();
    fs::write(path.join("typed"), vec![b'x'; TYPED_BYTES]).unwrap();
    let record = "record -o r.ttvm --kernel endless --memory 4M --max-instructions 300000000";
    let mut command = command(path, record);
    let status = command.stdin(File::open(path.join("typed")).unwrap()).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    directory
}

fn command(directory: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
    command.current_dir(directory).args(line.split(' ')).stderr(Stdio::null());
    command
}

/// Starts `ttvm`. The standard input stays open but empty, and the test does not read the output.
fn start(directory: &Path, line: &str) -> Running {
    Running(command(directory, line).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// The status of each thread in /proc, once the first thread's status has the wanted lines. `None` if the process ends
/// before.
fn statuses(running: &mut Running, wanted: &[&str]) -> Option<Vec<String>> {
    let process = format!("/proc/{}", running.0.id());
    while running.0.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        if wanted.iter().all(|line| status.contains(line)) {
            let threads = fs::read_dir(format!("{process}/task")).unwrap();
            let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
            return Some(threads.filter_map(|thread| status(thread.unwrap())).collect());
        }
        std::thread::yield_now();
    }
    None
}

const LOCKED_IN: [&str; 5] = [
    "NoNewPrivs:\t1\n",
    "Seccomp:\t2\n",
    "CapEff:\t0000000000000000\n",
    "CapPrm:\t0000000000000000\n",
    "CapInh:\t0000000000000000\n",
];

#[test]
fn verbs_that_run_a_guest_lock_themselves_in() {
    if sandbox::probe().calls != Ok(true) {
        return skip::test("this host has no seccomp");
    }
    let directory = folder();
    for line in [RUN, RECORD, REPLAY, DEBUG] {
        let mut running = start(directory.path(), line);
        let statuses = statuses(&mut running, &LOCKED_IN).unwrap_or_else(|| panic!("{line}: it ended"));
        for status in statuses {
            assert!(LOCKED_IN.iter().all(|wanted| status.contains(wanted)), "{line}: {status}");
        }
    }
}

#[test]
fn threads_are_locked_in_too() {
    if sandbox::probe().calls != Ok(true) {
        return skip::test("this host has no seccomp");
    }
    let directory = folder();
    let mut running = start(directory.path(), RECORD);
    // A second thread writes the recorder's checkpoints.
    let threads = loop {
        let statuses = statuses(&mut running, &LOCKED_IN).expect("the guest runs for ever");
        if statuses.len() > 1 {
            break statuses;
        }
    };
    for status in threads {
        assert!(LOCKED_IN.iter().all(|wanted| status.contains(wanted)), "{status}");
    }
}

/// The number of a thread's seccomp filters. `None` before Linux 5.9, which does not show the number.
fn filters(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:\t"))?.parse().ok()
}

/// Waits for a thread with this name that is not the first thread. Returns whether the thread has more filters than the
/// two filters of the process.
fn enters_its_kind(running: &mut Running, name: &str) -> bool {
    const MOST_LOOKS: u32 = 2000;
    let name = format!("Name:\t{name}\n");
    (0..MOST_LOOKS).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let statuses = statuses(running, &LOCKED_IN).expect("it does not end");
        statuses[1..].iter().any(|status| status.starts_with(&name) && filters(status) >= Some(4))
    })
}

#[test]
fn threads_keep_only_the_calls_of_their_kinds() {
    if sandbox::probe().calls != Ok(true)
        || filters(&fs::read_to_string("/proc/self/status").unwrap()).is_none()
    {
        return skip::test("this host has no seccomp, or does not count filters");
    }
    let directory = folder();
    let mut recording = start(directory.path(), RECORD);
    assert!(enters_its_kind(&mut recording, "checkpoints"));
    let mut run = start(directory.path(), "run --kernel endless --memory 4M --control control");
    assert!(enters_its_kind(&mut run, "control"));
    // The thread of a gdb session has the same name as the process. The thread exists before its gdb connects.
    let mut debugger = start(directory.path(), DEBUG);
    assert!(enters_its_kind(&mut debugger, "ttvm"));
}

#[test]
fn who_wants_no_sandbox_gets_none() {
    let directory = folder();
    let mut running = start(directory.path(), "record -o new.ttvm --kernel endless --memory 4M --no-sandbox");
    while !directory.path().join("new.ttvm/checkpoints/store").exists() {
        assert!(running.0.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
    assert!(status.contains("Seccomp:\t0\n") && status.contains("NoNewPrivs:\t0\n"), "{status}");
}

#[test]
fn files_that_the_command_line_names_are_written_all_the_same() {
    let directory = folder();
    let line = "record -o new.ttvm --kernel endless --memory 4M --max-instructions 3000000 --console-log console \
                --stats-json stats";
    let status = command(directory.path(), line).stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    assert!(fs::read_to_string(directory.path().join("stats")).unwrap().contains("\"insns\":3000000"));
    assert!(directory.path().join("console").exists());
    let (code, _, told) =
        crate::common::ttvm(directory.path(), &["replay", "new.ttvm", "--quiet", "--stats-json", "replayed"]);
    assert_eq!(code, 0, "{told}");
    assert!(fs::read_to_string(directory.path().join("replayed")).unwrap().contains("\"insns\":3000000"));
}
