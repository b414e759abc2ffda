//! Tests that recordings in a directory can be listed, removed, and relinked to moved images.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::ttvm;
use serde_json::Value;
use tiny_guest::{record, write_kernel};

#[test]
fn recordings_are_listed_with_what_is_wrong_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let (_, end) = record(directory.path(), "good.ttvm", 1_000, Vec::new());
    record(directory.path(), "cut.ttvm", 1_000, Vec::new());
    record(directory.path(), "torn.ttvm", 1_000, Vec::new());
    let log =
        std::fs::OpenOptions::new().write(true).open(directory.path().join("cut.ttvm/events.log")).unwrap();
    log.set_len(log.metadata().unwrap().len() - 1).unwrap();
    std::fs::write(directory.path().join("torn.ttvm/manifest.json"), "{").unwrap();
    std::fs::create_dir(directory.path().join("other")).unwrap();
    let (code, out, told) = ttvm(directory.path(), &["ls", "--json"]);
    assert_eq!(code, 0, "{told}");
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
    let field = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("path"), ["./cut.ttvm", "./good.ttvm", "./torn.ttvm"]);
    assert_eq!(
        (&field("ended")[0], &field("ended")[1]),
        (&"cut off".into(), &end.outcome.to_string().into())
    );
    assert!(field("ended")[2].as_str().unwrap().contains("manifest"), "{rows:?}");
    assert_eq!(field("guest_seconds")[1], (end.at.time_ns as f64 / 1e9));
    assert!(rows.iter().all(|row| row["bytes"].as_u64().unwrap() > 0));
    let (code, out, _) = ttvm(directory.path(), &["ls", "good.ttvm"]);
    assert_eq!((code, out.lines().count()), (0, 1), "{out}");
    let (_, out, _) = ttvm(directory.path(), &["ls", "other"]);
    assert_eq!(out, "no recordings in other\n");
    assert_eq!(ttvm(directory.path(), &["ls", "nowhere"]).0, 1);
}

#[test]
fn only_recordings_are_removed_and_all_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let exists = |name: &str| directory.path().join(name).exists();
    for name in ["a.ttvm", "b.ttvm"] {
        record(directory.path(), name, 1_000, Vec::new());
    }
    std::fs::create_dir(directory.path().join("other")).unwrap();
    std::os::unix::fs::symlink("b.ttvm", directory.path().join("link")).unwrap();
    for other in ["other", "link", "nowhere"] {
        let (code, _, told) = ttvm(directory.path(), &["rm", "a.ttvm", other]);
        assert_eq!(code, 4, "{told}");
        assert!(told.contains(other) && exists("a.ttvm") && exists("b.ttvm/manifest.json"), "{told}");
    }
    assert_eq!(ttvm(directory.path(), &["rm", "a.ttvm"]).0, 0);
    assert!(!exists("a.ttvm") && exists("b.ttvm") && exists("other"));
}

#[test]
fn a_recording_at_work_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "r.ttvm", 1_000, Vec::new());
    let log = std::fs::File::open(directory.path().join("r.ttvm/events.log")).unwrap();
    log.lock().unwrap();
    let (code, _, told) = ttvm(directory.path(), &["rm", "r.ttvm"]);
    assert!(code == 4 && told.contains("is being recorded"), "{code} {told}");
    drop(log);
    assert_eq!(ttvm(directory.path(), &["rm", "r.ttvm"]).0, 0);
}

#[test]
fn a_recording_is_told_where_its_images_went_and_only_the_same_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "r.ttvm", 1_000, Vec::new());
    let kernel = directory.path().join("tiny-1000");
    let moved = directory.path().join("elsewhere");
    std::fs::rename(&kernel, &moved).unwrap();
    let run = |arguments: &[&str]| ttvm(directory.path(), arguments);
    let manifest = || std::fs::read_to_string(directory.path().join("r.ttvm/manifest.json")).unwrap();
    let before = manifest();
    let (code, _, told) = run(&["replay", "r.ttvm"]);
    assert!(code == 4 && told.contains("ttvm relink"), "{told}");
    std::fs::write(directory.path().join("other"), "not the kernel").unwrap();
    for (arguments, expected, said) in [
        (&["--kernel", "other"][..], 4, "is not the kernel of the recording"),
        (&["--kernel", "nowhere"], 1, "No such file"),
        (&["--kernel", "elsewhere", "--disk", "other"], 4, "has no disk image"),
        (&["--module", "other"], 4, "has no boot module"),
        (&[], 2, "required"),
    ] {
        let (code, _, told) = run(&[&["relink", "r.ttvm"], arguments].concat());
        assert!(code == expected && told.contains(said) && manifest() == before, "{arguments:?}: {told}");
    }
    let (code, _, told) = run(&["relink", "nowhere", "--kernel", "elsewhere"]);
    assert!(code == 4 && told.contains("there is no recording here"), "{told}");
    let (code, _, told) = run(&["relink", "r.ttvm", "--kernel", "elsewhere"]);
    assert_eq!((code, told.as_str()), (0, ""));
    let (code, _, told) = run(&["replay", "r.ttvm", "--verify", "--quiet"]);
    assert!(code == 0 && !told.contains("edited"), "{told}");
}

#[test]
fn the_version_says_which_recordings_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let (code, out, _) = ttvm(directory.path(), &["--version"]);
    let expected =
        format!("recordings: formats {} and {}", recording::OLDEST_FORMAT, recording::NEWEST_FORMAT);
    assert!(code == 0 && out.lines().any(|line| line == expected) && out.contains("ttvm-v2"), "{out}");
    assert_eq!(ttvm(directory.path(), &["-V"]).1.lines().count(), 1);
}

/// The holes of a disk image are not read. But a change of one byte after a hole is noticed.
#[test]
fn a_large_disk_begins_at_once_and_is_known_by_its_contents() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let kernel = write_kernel(path, 1000).display().to_string();
    let disk = fs::File::create(path.join("disk")).unwrap();
    disk.set_len(1 << 42).unwrap();
    disk.write_at(&[7], (1 << 42) - 1).unwrap();
    let record =
        ["record", "-o", "r.ttvm", "--memory", "4M", "--debug-exit", "--disk", "disk", "--kernel", &kernel];
    let (code, _, told) = ttvm(path, &record);
    assert_eq!(code, 1, "{told}");
    let (code, _, told) = ttvm(path, &["replay", "--verify", "r.ttvm"]);
    assert_eq!(code, 0, "{told}");
    disk.write_at(&[8], (1 << 42) - 1).unwrap();
    let (code, _, told) = ttvm(path, &["replay", "r.ttvm"]);
    assert!(code == 4 && told.contains("the disk image has changed since"), "{code}: {told}");
    // The copy is another file with the same contents.
    let copy = fs::File::create(path.join("copy")).unwrap();
    copy.set_len(1 << 42).unwrap();
    copy.write_at(&[7], (1 << 42) - 1).unwrap();
    copy.write_at(&[0; 5000], 5 << 20).unwrap();
    let (code, _, told) = ttvm(path, &["relink", "r.ttvm", "--kernel", &kernel, "--disk", "copy"]);
    assert_eq!(code, 0, "{told}");
}
