//! Tests `--last` and `--keep-on`, which decide which checkpoints and which recordings are kept.

use std::path::Path;

use serde_json::Value;

use crate::common::ttvm;
use crate::kernel_reports::write_kernel as write_printing_kernel;
use tiny_guest::write_kernel;

/// mov dx, 0x604; mov ax, 0x3400; out dx, ax: powers off by ACPI.
const POWER_OFF: [u8; 10] = [0x66, 0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x34, 0x66, 0xef];
/// The instruction UD2. The guest has no handler for the exception, so a triple fault ends the run.
const CRASH: [u8; 2] = [0x0f, 0x0b];

/// mov dx, port; mov al, value; out dx, al
fn write_port(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0x66, 0xba, low, high, 0xb0, value, 0xee]
}

#[test]
fn the_last_stretch_has_all_of_its_checkpoints_and_the_newest_one_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let kernel = write_kernel(path, u32::MAX).display().to_string();
    // The guest is never idle, so its instructions take a nanosecond each.
    const LAST: u64 = 40_000_000;
    // Checkpoints come every 10 ms. While the guest runs, the recorder removes old checkpoints several at a time. At
    // the end of the run, it removes all checkpoints that are too old. So the test ends the run at three times.
    for (number, end) in ["120ms", "147ms", "163ms"].iter().enumerate() {
        let name = format!("{number}.ttvm");
        let arguments = ["record", "-o", &name, "--kernel", &kernel, "--memory", "4M", "--unpaced"];
        let kept = ["--checkpoint-interval", "10ms", "--last", "40ms", "--max-time", end];
        let (code, _, told) = ttvm(path, &[&arguments[..], &kept].concat());
        assert_eq!(code, 0, "{told}");
        let (_, out, _) = ttvm(path, &["info", &name, "--json"]);
        let info: Value = serde_json::from_str(&out).unwrap();
        let end = info["instructions"].as_u64().unwrap();
        let first = info["checkpoints"]["first"]["instructions"].as_u64().unwrap();
        // The recorder checks every 10 ms whether a checkpoint is due.
        assert!((end - LAST - 20_000_000..=end - LAST).contains(&first), "{out}");
        assert!(info["checkpoints"]["count"].as_u64() >= Some(4), "{out}");
        assert_eq!(ttvm(path, &["verify", &name]).0, 0);
    }
}

/// Records the guest in this directory, with `--keep-on fail`.
fn record(path: &Path, more: &[&str]) -> (i32, String) {
    let arguments = ["record", "-o", "r.ttvm", "--kernel", "kernel", "--memory", "4M", "--keep-on", "fail"];
    let (code, _, told) = ttvm(path, &[&arguments[..], more].concat());
    (code, told)
}

#[test]
fn a_recording_of_a_run_that_does_not_end_well_is_kept() {
    let spin = &[0xeb, 0xfe];
    let panic = "Kernel panic - not syncing: x\r\n";
    for (text, then, more, expected) in [
        (panic, &POWER_OFF[..], &[][..], 1),
        ("x", &CRASH, &[], 1),
        ("ready", spin, &["--stop-when", "ready"], 0),
        ("x", spin, &["--max-time", "60ms"], 0),
        ("x", &write_port(0x501, 5), &["--debug-exit"], 11),
        ("x", &write_port(0x505, 1), &[], 1),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_printing_kernel(path, text, then);
        let (code, told) = record(path, more);
        assert!(code == expected && told.contains("ttvm: recorded in r.ttvm\n"), "{then:x?}: {code} {told}");
        assert_eq!(ttvm(path, &["replay", "r.ttvm", "--verify"]).0, 0, "{then:x?}");
    }
}

#[test]
fn a_recording_of_a_run_that_ends_well_is_removed() {
    let checkpoints = ["--checkpoint-interval", "10ms", "--last", "20ms"];
    for (then, more, expected) in [
        (&POWER_OFF[..], &[][..], 0),
        (&POWER_OFF, &["--no-sandbox"], 0),
        (&write_port(0x501, 0), &["--debug-exit"], 1),
        (&POWER_OFF, &checkpoints, 0),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_printing_kernel(path, "x", then);
        let (code, told) = record(path, more);
        let said = "ttvm: the guest ended its run without a panic, so --keep-on fail removed r.ttvm\n";
        assert!(code == expected && told.contains(said), "{then:x?}: {code} {told}");
        assert!(!told.contains("recorded in") && !path.join("r.ttvm").exists(), "{then:x?}: {told}");
        assert!(path.join("kernel").exists());
    }
}

#[test]
fn a_guest_asks_for_its_recording_to_be_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let ask = [&write_port(0x505, 0x80)[..], &POWER_OFF].concat();
    write_printing_kernel(path, "x", &ask);
    let (code, told) = record(path, &["--last", "10ms"]);
    assert!(
        code == 0 && told.contains("recorded in r.ttvm; the guest asked to keep the recording"),
        "{told}"
    );
    for arguments in [&["verify", "r.ttvm"][..], &["replay", "r.ttvm", "--verify"]] {
        let (code, _, told) = ttvm(path, arguments);
        assert_eq!(code, 0, "{told}");
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_its_recording() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write_printing_kernel(path, "x", &[0xeb, 0xfe]);
    let line = format!(
        "{} record -o r.ttvm --kernel kernel --memory 4M --keep-on fail & sleep 1; kill -KILL $!; wait $!",
        env!("CARGO_BIN_EXE_ttvm")
    );
    let mut command = std::process::Command::new("bash");
    let output = command.args(["-c", &line]).current_dir(path).stdin(std::process::Stdio::null()).output();
    output.unwrap();
    let (code, _, told) = ttvm(path, &["replay", "r.ttvm"]);
    assert_eq!(code, 0, "{told}");
}
