//! Reports that a test, or a part of a test, cannot run on this machine: `return skip::test("there is no gdb")`.
//!
//! Cargo hides the output of passing tests, so a skipped test looks like one that ran. So this function writes a
//! line that stays visible. The function also appends the line to the file that `TTVM_SKIPS` names, and
//! `scripts/test` counts and repeats these lines at its end. If `TTVM_NO_SKIPS` is set to anything, a test that
//! would be skipped fails instead.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::thread;

/// The environment variable that names the file to which each skip appends its line.
const NOTES: &str = "TTVM_SKIPS";
/// The environment variable that turns skips into failures.
const FORBIDDEN: &str = "TTVM_NO_SKIPS";

/// Reports why this thread's test does not run, or which part does not run.
///
/// # Panics
///
/// If `TTVM_NO_SKIPS` is set, or the file that `TTVM_SKIPS` names cannot be written.
#[track_caller]
pub fn test(why: impl Display) {
    let line = line(why);
    // The test harness captures `println!`, but not a direct write.
    let _ = std::io::stderr().write_all(format!("skipped: {line}").as_bytes());
    if let Some(path) = std::env::var_os(NOTES).filter(|path| !path.is_empty()) {
        append(path.as_ref(), &line).unwrap_or_else(|error| panic!("{NOTES}: {}: {error}", path.display()));
    }
    let forbidden = std::env::var_os(FORBIDDEN).is_some_and(|value| !value.is_empty());
    assert!(!forbidden, "skipped although {FORBIDDEN} is set: {line}");
}

/// Returns the line to write: the package, the test, the reason for the skip, and a newline.
fn line(why: impl Display) -> String {
    let package = std::env::var("CARGO_PKG_NAME").map(|name| name + " ").unwrap_or_default();
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{package}{}: {why}\n", name())
}

/// Returns the test's name. The test harness gives this name to the test's thread. Without a harness, this is the
/// program's name.
fn name() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.to_string(),
        _ => program().unwrap_or_else(|| "a test".to_string()),
    }
}

/// The name of the running program, without Cargo's hash at its end; `None` if the host does not provide the name.
fn program() -> Option<String> {
    let stem = std::env::current_exe().ok()?.file_stem()?.to_string_lossy().into_owned();
    Some(stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_string()))
}

/// Several processes append at once. Each line is one write, so lines do not mix.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Command, Output};

    use super::*;

    const SKIPPED: &str = "tests::skipped_in_a_process_of_its_own";

    #[test]
    #[ignore = "the tests below run it"]
    fn skipped_in_a_process_of_its_own() {
        test("it has\n  no reason");
    }

    fn run(notes: &Path, forbidden: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().expect("there is one"));
        command.args(["--ignored", "--exact", SKIPPED]);
        command.env(NOTES, notes).env(FORBIDDEN, forbidden).env("CARGO_PKG_NAME", "some-package");
        command.output().expect("it can be run")
    }

    fn scratch_file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ttvm-skip-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_skip_is_shown_and_noted_with_the_name_of_the_test() {
        let notes = scratch_file("noted");
        for _ in 0..2 {
            let output = run(&notes, "");
            assert!(output.status.success(), "{output:?}");
            let shown = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(shown, format!("skipped: some-package {SKIPPED}: it has no reason\n"));
        }
        let noted = std::fs::read_to_string(&notes).expect("it was written");
        assert_eq!(noted, format!("some-package {SKIPPED}: it has no reason\n").repeat(2));
        std::fs::remove_file(notes).expect("it is ours");
    }

    #[test]
    fn where_skips_are_forbidden_the_test_fails_and_is_noted() {
        let notes = scratch_file("forbidden");
        assert!(!run(&notes, "1").status.success());
        assert!(std::fs::read_to_string(&notes).expect("it was written").contains("it has no reason"));
        std::fs::remove_file(notes).expect("it is ours");
    }
}
