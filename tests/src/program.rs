//! The program `ttvm`, as a user runs it, and other programs of the host.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use machine::error::exit_code;

use crate::guests::repository;

/// Returns the path of the program `ttvm`. Builds the program first if necessary.
pub fn ttvm() -> PathBuf {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(build_ttvm);
    PROGRAM.clone()
}

fn build_ttvm() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--locked", "--package", "ttvm"]);
    let status = build.current_dir(repository()).status().expect("cargo can be run");
    assert!(status.success(), "ttvm does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(repository().join("target"), PathBuf::from);
    target.join("release/ttvm")
}

/// Runs `ttvm` without input. Returns the program's exit code, its output and its messages.
pub fn run(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut program = Command::new(ttvm());
    let done = program.current_dir(directory).args(arguments).stdin(Stdio::null()).output();
    let done = done.expect("ttvm can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// Runs `ttvm` and returns the JSON that `ttvm` prints. `ttvm` must succeed, and the JSON must be as `ttvm schema` says.
pub fn json(directory: &Path, arguments: &[&str]) -> serde_json::Value {
    let (code, out, said) = run(directory, arguments);
    assert_eq!(code, Some(exit_code::DONE), "{arguments:?}: {out}{said}");
    let answer = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"));
    if let Some(schema) = schema_of(arguments[0]) {
        let wrong: Vec<String> = schema.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{arguments:?} does not print what ttvm schema says: {wrong:?}\n{out}");
    }
    answer
}

/// The schema of the JSON that a verb prints, if `ttvm schema` has one.
fn schema_of(verb: &str) -> Option<Arc<Validator>> {
    static KNOWN: Mutex<BTreeMap<String, Option<Arc<Validator>>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().expect("no test panics while it holds the lock");
    let read = || {
        let (code, out, _) = run(Path::new("."), &["schema", verb]);
        let schema =
            (code == Some(exit_code::DONE)).then(|| serde_json::from_str(&out).expect("it is JSON"))?;
        Some(Arc::new(jsonschema::validator_for(&schema).expect("it is a schema")))
    };
    known.entry(verb.to_string()).or_insert_with(read).clone()
}

/// Starts `ttvm debug` with these arguments, and waits until gdb can attach.
pub fn serve(directory: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(ttvm());
    command.current_dir(directory).arg("debug").args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("ttvm can be run");
    let mut said = BufReader::new(server.stderr.take().expect("it was asked for"));
    let mut all = String::new();
    while !all.lines().any(|line| line.starts_with("ttvm: ready")) {
        let count = said.read_line(&mut all).expect("it says what it does");
        assert!(count > 0, "ttvm debug ended before gdb could attach: {all}");
    }
    // Read the rest of the server's output, because a full pipe would block the server.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    server
}

/// Returns an error message with the programs that this host does not have; `None` if it has all programs.
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
