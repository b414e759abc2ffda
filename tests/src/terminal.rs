//! A real terminal in tmux, into which a test types like a person.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

const COLUMNS: &str = "120";
const ROWS: &str = "40";
/// The number of lines that the terminal keeps.
const HISTORY: &str = "100000";
/// The longest wait for a prompt.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A terminal with a shell in it, whose prompt is `$ `.
pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Opens a terminal in this directory. The terminal's shell looks for programs in `path` first.
    pub fn open(directory: &Path, path: &Path) -> Terminal {
        let terminal = Terminal { socket: directory.join("tmux.socket") };
        let paths = std::env::var("PATH").unwrap_or_default();
        let environment = format!("PATH={}:{paths}", path.display());
        let settings = directory.join("tmux.conf");
        let text = format!("set -g history-limit {HISTORY}\nset -g remain-on-exit on\n");
        std::fs::write(&settings, text).expect("the directory is the test's");
        let mut tmux = terminal.tmux();
        tmux.arg("-f")
            .arg(settings)
            .args(["new-session", "-d", "-x", COLUMNS, "-y", ROWS, "-c"])
            .arg(directory);
        tmux.args(["env", &environment, "PS1=$ ", "LC_ALL=C", "bash", "--norc", "--noprofile"]);
        succeed(&mut tmux);
        terminal.wait_for_prompt("$");
        terminal
    }

    /// Types a line and Return, and waits until the terminal shows the text after the prompt.
    pub fn enter(&self, line: &str) {
        let before = self.lines();
        succeed(self.tmux().args(["send-keys", "-l", line]));
        succeed(self.tmux().args(["send-keys", "Enter"]));
        let last_look = Instant::now() + LONGEST_WAIT;
        while self.lines() == before {
            assert!(Instant::now() < last_look, "{line:?} is not shown:\n{}", before.join("\n"));
            sleep(Duration::from_millis(5));
        }
    }

    /// All lines until now. Wrapped lines are joined, and blanks at their ends removed.
    pub fn lines(&self) -> Vec<String> {
        let output = succeed(self.tmux().args(["capture-pane", "-p", "-J", "-S", "-"]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.trim_end().lines().map(|line| line.trim_end().to_string());
        lines.collect()
    }

    /// Waits until the last line is only this prompt.
    pub fn wait_for_prompt(&self, prompt: &str) {
        self.wait_for_a_prompt(&[prompt]);
    }

    /// Waits until the last line is only one of these prompts, which may be indented.
    pub fn wait_for_a_prompt(&self, prompts: &[&str]) {
        let last_look = Instant::now() + LONGEST_WAIT;
        loop {
            let lines = self.lines();
            if lines.last().is_some_and(|line| prompts.contains(&line.trim_start())) {
                return;
            }
            let shown = || lines.join("\n");
            assert!(Instant::now() < last_look, "there is no {prompts:?} at the end of:\n{}", shown());
            sleep(Duration::from_millis(20));
        }
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket);
        command
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        _ = self.tmux().arg("kill-server").output();
    }
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("tmux can be run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
