//! Tests commands on damaged recordings. After any change to a file, `info`, `replay` and `verify` end soon. Each
//! command prints a sentence that names the file, or the same text as for the undamaged recording.
//!
//! `TTVM_CHANGES` is the number of changes (default 40).

use std::path::{Path, PathBuf};

use crate::common::ttvm;
use machine::error::exit_code;
use recording::{CHECKPOINTS, EVENTS, MANIFEST};
use tiny_guest::{Numbers, change, record_with_checkpoints, typed};

const ROUNDS: u32 = 10_000;
const COMMANDS: [&[&str]; 3] =
    [&["info", "r.ttvm", "--json"], &["replay", "r.ttvm", "--verify"], &["verify", "r.ttvm"]];

fn changes() -> u64 {
    std::env::var("TTVM_CHANGES").map_or(40, |text| text.parse().expect("TTVM_CHANGES is a number"))
}

/// All files of the recording that a reader reads, and the kernel.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let recording = directory.join("r.ttvm");
    let checkpoints =
        std::fs::read_dir(recording.join(CHECKPOINTS)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = checkpoints.filter(|path| !path.ends_with("lock")).collect();
    paths.sort();
    paths.extend([
        recording.join(MANIFEST),
        recording.join(EVENTS),
        directory.join(format!("tiny-{ROUNDS}")),
    ]);
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Swaps two files, swaps two parts of one file, or changes one file. Returns the new contents of the changed files.
fn damage(files: &[(PathBuf, Vec<u8>)], numbers: &mut Numbers) -> Vec<(PathBuf, Vec<u8>)> {
    let mut one = || numbers.below(files.len() as u64) as usize;
    let (at, other) = (one(), one());
    let (path, bytes) = &files[at];
    match numbers.below(8) {
        0 => vec![(path.clone(), files[other].1.clone()), (files[other].0.clone(), bytes.clone())],
        1 => {
            let middle = numbers.below(bytes.len() as u64) as usize;
            vec![(path.clone(), [&bytes[middle..], &bytes[..middle]].concat())]
        }
        _ => vec![(path.clone(), change(bytes, numbers))],
    }
}

#[test]
fn every_command_names_what_is_damaged_or_is_not_touched_by_it() {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(20_000, "a"), (40_000, "bc"), (60_000, "d")]);
    record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, keys, &[30_001, 50_000]);
    let run = |command: &[&str]| ttvm(directory.path(), command);
    let whole = COMMANDS.map(run);
    assert!(whole.iter().all(|(code, ..)| *code == 0), "{whole:?}");
    let files = files(directory.path());
    let (count, mut numbers) = (changes(), Numbers(11));
    let (mut told, mut cut) = (0, 0);
    for round in 0..count {
        let damaged = damage(&files, &mut numbers);
        let harmless = damaged.iter().all(|(path, bytes)| files.iter().any(|(p, b)| p == path && b == bytes));
        damaged.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        let names: Vec<&str> =
            damaged.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect();
        let results = COMMANDS.map(run);
        let mut noticed = false;
        for (result, (command, before)) in results.iter().zip(COMMANDS.iter().zip(&whole)) {
            let (code, out, error) = result;
            let what =
                format!("round {round}, {names:?} damaged, ttvm {command:?} ended with {code}: {out}{error}");
            let is_about =
                |text: &str| names.iter().any(|name| text.contains(name.split('.').next().unwrap()));
            match *code {
                exit_code::DIVERGED | exit_code::UNREADABLE_RECORDING => {
                    assert!(is_about(error) || is_about(out), "{what}");
                    noticed = true;
                }
                0 if result == before => {}
                // The images' paths may be edited. Every command warns of such an edit, and only the output of `info` differs.
                0 if names.contains(&MANIFEST) && error.contains("was edited after") => {
                    assert!(command[0] == "info" || *out == before.1, "{what}");
                    noticed = true;
                }
                // `info` leaves out damaged checkpoints, and prints a warning.
                0 if command[0] == "info" && error.contains("damaged ") && is_about(error) => noticed = true,
                // A log that was cut off is still valid, and every command reports that it was cut off.
                0 => {
                    assert!(names.contains(&EVENTS), "{what}");
                    assert!(
                        format!("{out}{error}").contains("cut off") || out.contains("\"complete\": false"),
                        "{what}"
                    );
                    noticed = true;
                    cut += u64::from(command[0] == "verify");
                }
                _ => panic!("{what}"),
            }
        }
        assert!(noticed || harmless, "round {round}: nothing notices that {names:?} changed");
        told += u64::from(noticed);
        files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    }
    println!("{count} changes: {told} told of, {cut} of them as a log that was cut off");
    assert!(told > count * 8 / 10, "{told} of {count}");
}

#[test]
fn damaged_checkpoints_are_left_out_and_can_be_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(20_000, "a"), (40_000, "bc"), (60_000, "d")]);
    record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, keys, &[30_001, 50_000]);
    let run = |command: &[&str]| ttvm(directory.path(), command);
    let state = ["state", "r.ttvm", "--at", "insn:90000", "--json"];
    let there = run(&state).1;
    let path = directory.path().join("r.ttvm").join(CHECKPOINTS).join("00000002.ckpt");
    let bytes = std::fs::read(&path).unwrap();
    // The first round damages a page, the second round the list of pages.
    for at in [100, bytes.len() - 150] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let packing = run(&["pack", "r.ttvm", "-o", "packed"]);
        assert_eq!(packing.0, exit_code::UNREADABLE_RECORDING, "{packing:?}");
        assert!(packing.2.contains("00000002.ckpt") && packing.2.contains("drop-damaged"), "{packing:?}");
        assert!(!directory.path().join("packed").exists());
        let (code, _, told) = run(&["info", "r.ttvm"]);
        assert_eq!((code, told.contains("drop-damaged")), (0, at > 100), "{told}");
        if at > 100 {
            let (code, out, told) = run(&state);
            assert_eq!((code, out), (0, there.clone()), "{told}");
            assert!(told.contains("00000002.ckpt") && told.contains("uses the other"), "{told}");
            assert!(told.lines().all(|line| line.starts_with("ttvm: warning: ")), "{told}");
            let before = std::fs::read(&path).unwrap();
            assert_eq!(
                run(&["checkpoints", "r.ttvm", "add", "insn:70000"]).0,
                exit_code::UNREADABLE_RECORDING
            );
            assert!(std::fs::read(&path).unwrap() == before);
        }
    }
    let (code, _, told) = run(&["checkpoints", "r.ttvm", "drop-damaged"]);
    assert!(code == 0 && told.contains("00000002.ckpt") && told.contains(" dropped, "), "{code}: {told}");
    let (code, out, told) = run(&["verify", "r.ttvm"]);
    assert!(code == 0 && told.trim().lines().count() <= 1, "{out}{told}");
    assert_eq!(run(&state).1, there);
    assert_eq!(run(&["checkpoints", "r.ttvm", "add", "insn:70000"]).0, 0);
    assert_eq!(run(&["pack", "r.ttvm", "-o", "packed"]).0, 0);
    let (_, _, told) = run(&["checkpoints", "r.ttvm", "drop-damaged"]);
    assert!(told.contains("ttvm: 0 checkpoints dropped, "), "{told}");
    // If the header of the checkpoint store is damaged, ttvm cannot use or keep any checkpoint.
    std::fs::write(path.with_file_name("store"), b"ttvmstor").unwrap();
    let (code, _, told) = run(&["info", "r.ttvm"]);
    assert!(code == 0 && told.contains("used without its checkpoints"), "{code}: {told}");
    let (code, _, told) = run(&["checkpoints", "r.ttvm", "drop-damaged"]);
    assert!(code == exit_code::UNREADABLE_RECORDING && told.contains("delete this folder"), "{code}: {told}");
}
