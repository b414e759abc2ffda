//! The lab of `scripts/kvm-lab`: a QEMU machine that runs programs of this tree, with KVM or on an emulated processor
//! of another vendor.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::guests::repository;

/// A folder with a command's results from the lab.
pub struct Left(tempfile::TempDir);

impl Left {
    /// Runs `command` in the lab. `files` are copied into the lab, each to the given name. `arguments` are
    /// arguments of the lab's script. The command must succeed.
    pub fn by(arguments: &[&str], command: &str, limit_s: u64, files: &[(&str, &Path)]) -> Left {
        let left = Left(tempfile::tempdir().expect("a temporary folder"));
        let files = files.iter().map(|(name, path)| format!("{name}={}", path.display()));
        let output = Command::new(repository().join("scripts/kvm-lab"))
            .args(["--timeout", &limit_s.to_string()])
            .arg("--out")
            .arg(left.folder())
            .args(arguments)
            .arg(command)
            .args(files)
            .output()
            .expect("the lab's script can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{}\n{}\n{}",
            text(&output.stdout),
            text(&output.stderr),
            left.small_files()
        );
        left
    }

    /// The lab's folder.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The contents of all small files of the lab, which may explain a failure.
    pub fn small_files(&self) -> String {
        let files = std::fs::read_dir(self.folder()).expect("the folder is there").flatten();
        let small = files.filter(|file| file.metadata().is_ok_and(|file| file.len() < 100_000));
        let texts = small.filter_map(|file| {
            let text = std::fs::read_to_string(file.path()).ok()?;
            Some(format!("--- {}\n{text}", file.file_name().display()))
        });
        texts.collect()
    }

    /// The text of one file from the lab.
    pub fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

/// Builds and returns the executables with these names: tests of `ttvm-kvm`, programs of `cuts` and `silicon`.
/// Builds these packages separately from the other packages. These packages need other features of `iced-x86` than
/// `tests` does, so a common build would build ttvm once more.
pub fn built(names: &[&str]) -> Vec<(String, PathBuf)> {
    let packages = ["silicon", "cuts", "ttvm-kvm"].map(|name| ["--package", name]).concat();
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--quiet", "--release", "--locked", "--message-format=json"])
        .args(packages)
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let executables = messages.filter_map(|message| {
        let (name, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
        let path = message["executable"].as_str()?;
        // An executable with the unit tests of a program has the same name as the program.
        let is_tests = message["profile"]["test"].as_bool()?;
        let is_meant = names.contains(&name) && (kind == "test") == is_tests;
        is_meant.then(|| (name.to_string(), path.into()))
    });
    let found: Vec<_> = executables.collect();
    assert_eq!(found.len(), names.len(), "{found:?}");
    found
}
