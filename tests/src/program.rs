//! The program `ttvm`, as a user runs it.

use std::path::PathBuf;
use std::process::Command;

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
