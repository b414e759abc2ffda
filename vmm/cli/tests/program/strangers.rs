//! Tests files and recordings from strangers. Where ttvm expects a plain file, it refuses pipes, devices and folders.
//! Otherwise a reader might wait for ever, or read without end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::ttvm;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tiny_guest::{record_with_checkpoints, typed, write_kernel};

/// The name of a kind of file, and the function that makes such a file.
type Maker = (&'static str, fn(&Path));

/// Ways to make a pipe, a device or a folder in place of a file.
const MAKERS: [Maker; 3] = [
    ("a pipe", |path| mkfifo(path, Mode::S_IRWXU).unwrap()),
    ("a device", |path| symlink("/dev/zero", path).unwrap()),
    ("a directory", |path| fs::create_dir(path).unwrap()),
];

/// Runs `ttvm`, which must fail with a sentence and without a panic. Returns the sentence.
fn refused(directory: &Path, line: &str) -> String {
    let (code, said, told) = ttvm(directory, &line.split(' ').collect::<Vec<_>>());
    assert!([1, 4].contains(&code), "{line}: {code} {said} {told}");
    assert!(told.starts_with("ttvm: ") && !told.contains("panicked"), "{line}: {told}");
    told
}

#[test]
fn images_are_plain_files() {
    for (kind, make) in MAKERS {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::rename(write_kernel(path, 1000), path.join("kernel")).unwrap();
        make(&path.join("other"));
        // Without `raw:`, a folder is a disk with the folder's files.
        let disk = if kind == "a directory" { "raw:other" } else { "other" };
        for line in [
            "run --kernel other",
            "run --kernel kernel --initrd other",
            "run --kernel kernel --module other",
            &format!("run --kernel kernel --disk {disk}"),
            "record -o r.ttvm --kernel other",
            "unpack other -o u.ttvm",
        ] {
            let told = refused(path, line);
            assert!(told.contains(&format!("it is {kind}, not a regular file")), "{line}: {told}");
        }
        assert!(!path.join("r.ttvm").exists() && !path.join("u.ttvm").exists());
    }
}

#[test]
fn files_in_recordings_are_plain_files() {
    for (kind, make) in MAKERS {
        for file in
            ["manifest.json", "events.log", "checkpoints/store", "checkpoints/00000001.ckpt", "kernel"]
        {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let (recording, _) =
                record_with_checkpoints(path, "r.ttvm", 3_000, typed(&[(500, "a")]), &[10_000]);
            let replaced = match file {
                "kernel" => recording.manifest.machine.start.booted().kernel.path.clone(),
                file => path.join("r.ttvm").join(file),
            };
            fs::remove_file(&replaced).unwrap();
            make(&replaced);
            for verb in ["info", "verify", "replay", "pack", "state", "checkpoints", "ls"] {
                let line = match verb {
                    "pack" => "pack r.ttvm -o packed",
                    "checkpoints" => "checkpoints r.ttvm add insn:5000",
                    "ls" => "ls .",
                    verb => &format!("{verb} r.ttvm"),
                };
                let (code, said, told) = ttvm(path, &line.split(' ').collect::<Vec<_>>());
                // Not every verb fails: ttvm ignores damaged checkpoints, and some verbs need no checkpoint or no
                // image.
                assert!([0, 1, 4].contains(&code), "{file} is {kind}, {line}: {code} {said} {told}");
                assert!(!told.contains("panicked"), "{file} is {kind}, {line}: {told}");
                let is_needed = !file.starts_with("checkpoints") && !["ls", "info"].contains(&verb);
                assert!(code != 0 || !is_needed, "{file} is {kind}, {line}: {said} {told}");
            }
        }
    }
}

#[test]
fn an_image_that_is_larger_than_the_memory_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::rename(write_kernel(path, 1000), path.join("kernel")).unwrap();
    // This file takes no room on the disk, but would take all memory.
    let hole = fs::File::create(path.join("hole")).unwrap();
    hole.set_len(1 << 42).unwrap();
    for line in
        ["run --kernel hole", "run --kernel kernel --initrd hole", "run --kernel kernel --module hole"]
    {
        let told = refused(path, &format!("{line} --memory 4M"));
        assert!(told.contains("it has more than"), "{line}: {told}");
    }
}

/// In this test, a stranger has made the recording so that ttvm would overwrite a file of the user.
#[test]
fn links_in_recordings_lead_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record_with_checkpoints(path, "r.ttvm", 3_000, typed(&[(500, "a")]), &[10_000]);
    let precious = path.join("precious");
    fs::write(&precious, "precious").unwrap();
    let store = path.join("r.ttvm/checkpoints");
    let _ = fs::remove_file(store.join("lock"));
    symlink(&precious, store.join("lock")).unwrap();
    let told = refused(path, "checkpoints r.ttvm add insn:5000");
    assert!(told.contains("lock"), "{told}");
    fs::remove_file(store.join("lock")).unwrap();
    for number in 1..9 {
        symlink(&precious, store.join(format!("{number:08}.ckpt.part"))).unwrap();
    }
    let (code, _, told) = ttvm(path, &["checkpoints", "r.ttvm", "add", "insn:5000"]);
    assert_eq!(code, 0, "{told}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}
