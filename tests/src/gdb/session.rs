//! A script for gdb, the expected answers, and a server for gdb.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use gdb::Listener;
use gdb_server::{Options, Report, serve};
use machine::engine::EngineKind;
use machine::notation::PositionSpec;
use machine::position::Instructions;
use recording::Recording;

use super::batch;
use crate::guests::repository;

/// The script that runs a list of commands in gdb, and continues after errors.
const DRIVER: &str = "tests/src/gdb/in_gdb.py";

/// A script, and gdb's expected answers to some of its commands.
#[derive(Default)]
pub struct GdbScript {
    commands: Vec<String>,
    /// The number of a command, and a text that its answer must contain.
    expected: Vec<(usize, String)>,
}

/// gdb's output.
pub struct Transcript(String);

impl GdbScript {
    /// Adds a command.
    pub fn command(&mut self, command: impl Into<String>) {
        self.commands.push(command.into());
    }

    /// Adds a command and a text that the answer must contain.
    pub fn ask(&mut self, command: impl Into<String>, answer: impl Into<String>) {
        self.expected.push((self.commands.len(), answer.into()));
        self.command(command);
    }

    /// The number of commands so far.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Runs gdb with the tt commands and these symbol files. gdb connects to a new server, whose socket is below
    /// `directory`. The session begins at the recording's start.
    pub fn run(
        &self,
        recording: &Recording<Instructions>,
        directory: &Path,
        symbols: &[PathBuf],
    ) -> Transcript {
        let script = directory.join("script.gdb");
        std::fs::write(&script, self.commands.join("\n") + "\n").expect("the folder is ours");
        let socket = directory.join("gdb.socket");
        let listener = Listener::bind(&format!("unix:{}", socket.display())).expect("a socket");
        let options = Options {
            folder: directory.to_path_buf(),
            commands: None,
            at: PositionSpec::Start,
            once: true,
            engine: EngineKind::SOFT,
        };
        let (ready, is_ready) = channel();
        let output = std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                serve(recording, &listener, &options, &mut |report| {
                    if let Report::Ready(address) = report {
                        ready.send(address).expect("the test waits");
                    }
                })
            });
            let address = is_ready.recv().expect("the server becomes ready");
            let output = run_gdb(&script, &address, symbols);
            // If gdb never attached, end the server's wait for gdb.
            batch::leave(&socket);
            server.join().expect("the server survives").unwrap_or_else(|error| panic!("{error}"));
            output
        });
        Transcript(output)
    }

    /// Compares gdb's answers with the expected ones, and shows all differences.
    pub fn check(&self, transcript: &Transcript) {
        let answers = transcript.answers();
        assert_eq!(answers.len(), self.commands.len() + 1, "gdb ended early:\n{}", transcript.0);
        let mut wrong = String::new();
        for (number, expected) in &self.expected {
            let answer = answers[*number];
            if !answer.contains(expected.as_str()) && !without_names(answer).contains(expected.as_str()) {
                let _ = writeln!(wrong, "command {number}: no '{expected}' at the end of");
                for (before, answer) in
                    answers.iter().enumerate().take(number + 1).skip(number.saturating_sub(6))
                {
                    let _ = writeln!(wrong, "    > {before} {}", answer.replace('\n', "\n    "));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }
}

/// Returns an answer without the names after addresses. The server adds these names only after certain earlier
/// commands.
fn without_names(answer: &str) -> String {
    let lines = answer.lines().map(|line| line.split(" <").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

impl Transcript {
    /// Returns each command with gdb's answer.
    fn answers(&self) -> Vec<&str> {
        let mut rest = self.0.as_str();
        let mut answers = Vec::new();
        for number in 0.. {
            let Some(at) = rest.find(&format!("> {number} ")) else { break };
            if number > 0 {
                answers.push(&rest[..at]);
            }
            rest = &rest[at + format!("> {number} ").len()..];
        }
        answers.push(rest);
        answers
    }
}

fn run_gdb(script: &Path, address: &str, symbols: &[PathBuf]) -> String {
    let mut gdb = batch::gdb();
    gdb.args(["-ex", "set confirm off"]);
    for (number, file) in symbols.iter().enumerate() {
        let verb = if number == 0 { "symbol-file" } else { "add-symbol-file" };
        gdb.args(["-ex", &format!("{verb} {}", file.display())]);
    }
    gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
    gdb.args(["-ex", &format!("target remote {address}"), "-x"]).arg(repository().join(DRIVER));
    let output = gdb.env("TTVM_SCRIPT", script).output().expect("gdb must be installed: run scripts/setup");
    batch::said(&output)
}
