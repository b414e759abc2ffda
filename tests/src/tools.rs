//! Finds and runs tools of kernel developers, which not every host has.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::gdb::batch::said;
use crate::guests::repository;

/// Returns a Python interpreter with drgn and perfetto, which scripts/setup has installed; `None` if there is none.
/// `TTVM_TEST_PYTHON` may name another Python.
pub fn python() -> Option<PathBuf> {
    let usual = repository().join("guest-images/out/python/bin/python");
    let path = std::env::var_os("TTVM_TEST_PYTHON").map_or(usual, PathBuf::from);
    path.exists().then_some(path)
}

/// Returns the `vmlinux` with debug information of a kernel release, which guest-images/debug-information has
/// downloaded; `None` if it is missing. `TTVM_TEST_VMLINUX` may name another file.
pub fn vmlinux(release: &str) -> Option<PathBuf> {
    let usual = repository().join("guest-images/out/debug").join(format!("vmlinux-{release}"));
    let path = std::env::var_os("TTVM_TEST_VMLINUX").map_or(usual, PathBuf::from);
    path.exists().then_some(path)
}

/// Runs a command that must succeed. Returns the command's output.
pub fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
