//! Tests that a recording contains copies of some images, and only the paths of the other images.

use std::fs;
use std::path::Path;

use crate::common::ttvm;
use machine::error::exit_code;
use tiny_guest::write_kernel;

/// Records a guest with a kernel and a module.
fn record(path: &Path, more: &[&str]) -> String {
    fs::rename(write_kernel(path, 1000), path.join("kernel")).unwrap();
    fs::write(path.join("mod"), "module").unwrap();
    let common = ["record", "-o", "r.ttvm", "--kernel", "kernel", "--module", "mod text", "--memory", "4M"];
    let (code, _, told) = ttvm(path, &[&common[..], &["--max-instructions", "5000"], more].concat());
    assert_eq!(code, exit_code::DONE, "{told}");
    told
}

/// Replaces the kernel and the module by other files of the same sizes.
fn build_anew(path: &Path) {
    for name in ["kernel", "mod"] {
        let mut contents = fs::read(path.join(name)).unwrap();
        *contents.last_mut().unwrap() ^= 1;
        fs::write(path.join(name), contents).unwrap();
    }
}

#[test]
fn a_recording_replays_when_its_images_are_built_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let told = record(path, &[]);
    assert!(!told.contains("not copied"), "{told}");
    build_anew(path);
    for arguments in [
        &["verify", "r.ttvm"][..],
        &["replay", "r.ttvm", "--verify"],
        &["state", "r.ttvm", "--at", "50%"],
        &["pack", "r.ttvm", "-o", "packed"],
        &["unpack", "packed", "-o", "u.ttvm"],
        &["verify", "u.ttvm"],
        &["run", "--snapshot-from", "r.ttvm", "--at", "50%", "--max-instructions", "1000"],
    ] {
        let (code, _, told) = ttvm(path, arguments);
        assert!(code == exit_code::DONE && !told.contains("edited"), "{arguments:?}: {told}");
    }
    let (_, out, _) = ttvm(path, &["info", "r.ttvm"]);
    assert!(out.contains("kernel        r.ttvm/images/kernel"), "{out}");
    assert!(out.contains("module        r.ttvm/images/module-0 text"), "{out}");
    // `record` and `unpack` store the images under the same names.
    for name in ["kernel", "module-0"] {
        let of = |recording: &str| fs::read(path.join(recording).join("images").join(name)).unwrap();
        assert_eq!(of("r.ttvm"), of("u.ttvm"), "{name}");
    }
    // The recording can be moved as a whole.
    fs::rename(path.join("r.ttvm"), path.join("moved.ttvm")).unwrap();
    assert_eq!(ttvm(path, &["verify", "moved.ttvm"]).0, exit_code::DONE);
    assert_eq!(ttvm(path, &["rm", "moved.ttvm"]).0, exit_code::DONE);
    assert!(!path.join("moved.ttvm").exists() && path.join("kernel").exists());
}

#[test]
fn images_that_are_left_where_they_are_must_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let told = record(path, &["--no-copy-images"]);
    let line = told.lines().find(|line| line.contains("not copied into the recording")).expect("it is said");
    assert!(line.contains("/kernel, ") && line.contains("/mod. Keep these files unchanged: "), "{line}");
    assert!(!path.join("r.ttvm/images").exists());
    assert_eq!(ttvm(path, &["verify", "r.ttvm"]).0, exit_code::DONE);
    build_anew(path);
    let (code, _, told) = ttvm(path, &["verify", "r.ttvm"]);
    assert_eq!(code, exit_code::UNREADABLE_RECORDING, "{told}");
    assert!(
        told.contains("the kernel has changed since the recording was made; put back the file"),
        "{told}"
    );
}

#[test]
fn a_disk_image_is_named_and_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("disk"), [7; 512]).unwrap();
    let told = record(path, &["--disk", "disk"]);
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("not copied")).collect();
    assert!(
        lines.len() == 1
            && lines[0].contains("/disk. Keep this file unchanged: ")
            && !lines[0].contains("kernel"),
        "{told}"
    );
    assert!(!path.join("r.ttvm/images/disk").exists());
    let (code, _, told) = ttvm(
        path,
        &["record", "--snapshot-from", "r.ttvm", "--at", "50%", "-o", "n.ttvm", "--max-time", "1us"],
    );
    assert!(code == exit_code::DONE && told.contains("not copied") && told.contains("/disk. "), "{told}");
}

#[test]
fn a_recording_that_does_not_begin_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("text"), "this is not a kernel").unwrap();
    fs::rename(write_kernel(path, 1000), path.join("kernel")).unwrap();
    for (arguments, expected) in [
        (&["--kernel", "text"][..], "/text is not a bootable kernel"),
        (&["--kernel", "missing"], "cannot read missing"),
        (&["--kernel", "kernel", "--module", "missing"], "cannot read missing"),
        (&["--kernel", "kernel", "--disk", "missing"], "missing"),
    ] {
        let (code, _, told) = ttvm(path, &[&["record", "-o", "r.ttvm"], arguments].concat());
        assert!(code == exit_code::FAILED && told.contains(expected), "{arguments:?}: {told}");
        assert!(!told.contains("images/") && !path.join("r.ttvm").exists(), "{arguments:?}: {told}");
    }
}
