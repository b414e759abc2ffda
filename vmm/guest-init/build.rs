//! Compiles the guest's first process, which is a static program without any library.

use std::path::PathBuf;
use std::process::Command;

/// Arguments of the compiler. The program has its own entry point, and needs no C library.
const ARGUMENTS: &[&str] = &[
    "--edition=2024",
    "--crate-type=bin",
    "--crate-name=init",
    "-Copt-level=s",
    "-Cpanic=abort",
    "-Cdebuginfo=0",
    "-Cstrip=symbols",
    "-Crelocation-model=static",
    "-Ctarget-feature=+crt-static",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-Wl,--build-id=none",
    "-Dwarnings",
];

fn main() {
    println!("cargo::rerun-if-changed=program");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it")).join("init");
    let rustc = std::env::var_os("RUSTC").expect("Cargo sets it");
    let mut command = Command::new(rustc);
    command.args(ARGUMENTS).arg("-o").arg(&out).arg("program/main.rs");
    // This build may have flags of a coverage tool. A program without a library cannot have them.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = command.status().expect("the compiler that compiles this file can be run");
    assert!(status.success(), "the guest's first process does not compile");
}
