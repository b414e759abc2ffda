//! Tests that only the user can access files that ttvm writes, whatever the umask of the calling process is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tiny_guest::write_kernel;

/// Runs `ttvm` from a shell whose umask lets everybody read and write new files.
fn ttvm_with_open_umask(directory: &Path, arguments: &str) {
    let line = format!("umask 0; exec {} {arguments}", env!("CARGO_BIN_EXE_ttvm"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(directory).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments}: {output:?}");
}

/// A file or folder, and everything below it.
fn all_below(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_path_buf()];
    if path.is_dir() {
        found.extend(std::fs::read_dir(path).unwrap().flat_map(|entry| all_below(&entry.unwrap().path())));
    }
    found
}

#[test]
fn recordings_and_files_made_of_them_are_private() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::rename(write_kernel(directory.path(), 20_000), directory.path().join("kernel")).unwrap();
    ttvm_with_open_umask(
        directory.path(),
        "record -o r.ttvm --kernel kernel --memory 4M --max-instructions 10000",
    );
    ttvm_with_open_umask(directory.path(), "checkpoints r.ttvm add insn:5000");
    ttvm_with_open_umask(directory.path(), "pack r.ttvm -o packed");
    ttvm_with_open_umask(directory.path(), "unpack packed -o u.ttvm");
    ttvm_with_open_umask(directory.path(), "dump r.ttvm -o vmcore");
    let made =
        ["r.ttvm", "packed", "u.ttvm", "vmcore"].map(|name| all_below(&directory.path().join(name))).concat();
    assert!(made.iter().any(|path| path.ends_with("r.ttvm/events.log")), "{made:?}");
    assert!(made.iter().any(|path| path.extension().is_some_and(|name| name == "ckpt")), "{made:?}");
    for path in made {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{mode:o}: {}", path.display());
    }
}
