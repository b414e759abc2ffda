//! The program `ttvm`, as a user runs it, and other programs of the host.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::guests::repository;

/// The program, built if it is not yet.
pub fn ttvm() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--locked", "--package", "ttvm"]);
    let status = build.current_dir(repository()).status().expect("cargo can be run");
    assert!(status.success(), "ttvm does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(repository().join("target"), PathBuf::from);
    target.join("release/ttvm")
}

/// Which of these programs are not there, in a sentence.
pub fn missing(programs: &[&str]) -> Option<String> {
    let is_missing = |program: &&&str| {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
    };
    let missing: Vec<&str> = programs.iter().filter(is_missing).copied().collect();
    (!missing.is_empty()).then(|| format!("there is no {}", missing.join(", no ")))
}
