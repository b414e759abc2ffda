//! Starts `ttvm debug` as a process for tests.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running `ttvm debug r.ttvm`, and its standard error. Dropping this value ends the server.
pub struct Server {
    pub process: Child,
    pub messages: BufReader<ChildStderr>,
}

impl Server {
    /// Starts `ttvm debug` with these arguments. The program's temporary files are in `directory/tmp`.
    pub fn start(directory: &Path, arguments: &[&str]) -> Server {
        let temporary = directory.join("tmp");
        std::fs::create_dir_all(&temporary).unwrap();
        // In a test run in the background, some signals are ignored, and started programs inherit this. So `env` sets
        // the default actions.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_ttvm"), "debug", "r.ttvm"]);
        command.current_dir(directory).args(arguments).env("TMPDIR", temporary);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let messages = BufReader::new(process.stderr.take().unwrap());
        Server { process, messages }
    }

    /// Reads messages up to the first that contains this text.
    pub fn says(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.messages.read_line(&mut line).unwrap() > 0, "ttvm ended before '{text}': {all}");
            all += &line;
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
