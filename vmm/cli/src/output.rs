//! Prints results, messages and how a run ended.

use std::io::{IsTerminal, Write};

use log::Level;
use machine::error::{Error, exit_code};
use machine::unit::Unit;
use machine::{Machine, Outcome};
use views::visible::{VisibleConsole, visible};

/// Describes how a run ended. `panicked` tells whether the guest's kernel panicked before the end of the run.
pub fn end_in_words(outcome: &Outcome, panicked: bool) -> String {
    match outcome {
        Outcome::Panic => outcome.to_string(),
        Outcome::Ended | Outcome::Interrupted | Outcome::Limit | Outcome::TextShown if panicked => {
            format!("the guest's kernel panicked, and the run was {outcome}")
        }
        _ if panicked => format!("the guest's kernel panicked, and {outcome}"),
        _ => outcome.to_string(),
    }
}

/// Reports how a run ended, and returns the exit code. A power-off is a success, unless the guest's kernel panicked
/// before. If the guest wrote to its debug-exit port, the guest determines the exit code.
pub fn report_outcome<U: Unit>(machine: &Machine<U>, outcome: &Outcome, panicked: bool) -> i32 {
    let now = machine.moment();
    let what = end_in_words(outcome, panicked);
    say(&format!(
        "\r\nttvm: {what} after {}, {:.6} s guest time\r",
        U::length(now.count.number()),
        now.time_ns as f64 / 1e9
    ));
    if matches!(outcome, Outcome::TripleFault { .. } | Outcome::IdleForever) {
        // Kernel developers want to see the registers after a triple fault.
        let lines = history::replay::registers::lines(&machine.cpu().state());
        lines.iter().for_each(|line| say(&format!("{line}\r")));
    }
    exit_code_of(outcome, panicked)
}

/// The exit code for a run with this outcome. `panicked` tells whether the guest's kernel panicked before the end
/// of the run.
pub fn exit_code_of(outcome: &Outcome, panicked: bool) -> i32 {
    match outcome {
        Outcome::DebugExit { code } => (*code & 0xff) as i32,
        Outcome::PowerOff | Outcome::Reset if !panicked => exit_code::DONE,
        Outcome::Ended | Outcome::Interrupted | Outcome::Limit | Outcome::TextShown if !panicked => {
            exit_code::DONE
        }
        Outcome::PowerOff | Outcome::Reset => exit_code::FAILED,
        Outcome::Ended | Outcome::Interrupted | Outcome::Limit | Outcome::TextShown => exit_code::FAILED,
        Outcome::Panic => exit_code::FAILED,
        Outcome::TripleFault { .. } | Outcome::IdleForever => exit_code::FAILED,
    }
}

/// Catches SIGXFSZ, the signal for a file that may not grow. Writing such a file then returns an error, which ttvm can
/// report.
pub fn say_when_files_may_not_grow() {
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default()) {
        log::debug!("the signal of files that may not grow is not caught: {error}");
    }
}

/// Prints a message on standard error, with control characters made visible ([`visible`]). If standard error has no
/// reader any more, the message is dropped, because a terminal may be gone before its programs end.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", visible(line));
}

/// Prints a result, including JSON, with control characters made visible ([`visible`]). If the reader has stopped
/// reading, that is no error.
pub fn print(text: &str) -> Result<(), Error> {
    has_reader(writeln!(std::io::stdout(), "{}", visible(text))).map(drop)
}

/// Whether the reader of standard output still reads, from the result of a write.
fn has_reader(written: std::io::Result<()>) -> Result<bool, Error> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(Error::Host { what: "cannot write to standard output".to_string(), source }),
    }
}

/// Standard output for the bytes of a file. The bytes of a guest's file could control a terminal. So a terminal gets
/// text, with control characters made visible. Files and pipes get the bytes themselves.
pub struct BytesOutput {
    /// The text for the terminal; `None` if standard output is no terminal.
    terminal: Option<VisibleConsole>,
    /// Whether the bytes so far have control characters.
    has_controls: bool,
}

impl BytesOutput {
    /// Begins with the first byte.
    pub fn begin() -> BytesOutput {
        let terminal = std::io::stdout().is_terminal().then(VisibleConsole::default);
        BytesOutput { terminal, has_controls: false }
    }

    /// Writes the next bytes. Returns false if the reader has stopped reading.
    pub fn put(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\t' | b'\r');
        self.has_controls |= bytes.iter().any(is_control);
        let mut out = std::io::stdout();
        has_reader(match &mut self.terminal {
            Some(console) => out.write_all(visible(&console.show(bytes)).as_bytes()),
            None => out.write_all(bytes),
        })
    }

    /// Ends after the last byte. Tells the user if the terminal shows other text than the file has.
    pub fn end(self) -> Result<(), Error> {
        has_reader(std::io::stdout().flush())?;
        if self.terminal.is_some() && self.has_controls {
            say(
                "\nttvm: the terminal shows control characters as escapes; write `> FILE` to save the file's bytes",
            );
        }
        Ok(())
    }
}

/// Formats the packages' log messages like all other messages of ttvm: `ttvm: warning: ...`. By default only
/// warnings and errors are printed. The environment variable RUST_LOG enables messages for developers, which are
/// printed with their time and module.
pub fn log_in_one_style() {
    let environment = env_logger::Env::default().default_filter_or("warn,gdbstub=warn");
    env_logger::Builder::from_env(environment)
        .format(|out, record| match record.level() {
            Level::Error => writeln!(out, "ttvm: {}", visible(&record.args().to_string())),
            Level::Warn => writeln!(out, "ttvm: warning: {}", visible(&record.args().to_string())),
            level => {
                let (time, module) = (out.timestamp_micros(), record.target());
                writeln!(
                    out,
                    "ttvm: {}: {time} {module}: {}",
                    level.as_str().to_lowercase(),
                    visible(&record.args().to_string())
                )
            }
        })
        .init();
}

/// Prints an answer: as JSON, or as its text for people.
pub fn print_answer<T: serde::Serialize + schemars::JsonSchema + std::fmt::Display>(
    answer: &T,
    as_json: bool,
) -> Result<(), Error> {
    print(&if as_json {
        serde_json::to_string_pretty(answer).expect("plain data always serializes")
    } else {
        answer.to_string()
    })
}
