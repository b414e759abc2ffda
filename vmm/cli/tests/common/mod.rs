//! Runs the program `ttvm` for tests.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `ttvm`. Returns exit code, standard output and standard error.
pub fn ttvm(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ttvm"))
        .current_dir(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}
