//! `--control` and `--record-when`: a recording that begins while the guest runs, when a client asks for it or a text
//! appears.
//!
//! ```text
//!   ttvm control ── socket ──► a thread ──► Watch ◄── Watcher: a listener of the machine, which pauses the run on request
//! ```
//!
//! The machine's thread only reads a flag. So this thread waits neither for the socket's thread nor for a client. A
//! client sends one line, and gets one line as answer. A client that does not send its line within `PATIENCE` is
//! disconnected, so other clients wait no longer than `PATIENCE`.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gdb::{Listener, Stream};
use gdb_server::trouble;
use host::AwaitedText;
use machine::error::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox::ThreadKind;

use crate::run_listener::RunListener;

/// The longest line from a client.
const MAX_LINE_BYTES: usize = 64;
/// How long a client may take to send its line.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a client waits until the recording begins. While a signal has stopped the run, a recording cannot begin.
const BEGINNING: Duration = Duration::from_secs(30);

/// The beginning of an answer to a successful request.
pub const OK: &str = "ok ";
/// The beginning of an answer to a failed request.
pub const FAILED: &str = "failed ";

/// The state that the machine's thread and the socket's thread share.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

struct Shared {
    /// The folder for the recording. `None` if the run cannot be recorded.
    folder: Option<PathBuf>,
    /// Whether the run must pause, so that a recording can begin.
    asked: AtomicBool,
    /// The guest time that the run had reached at its last event.
    time_ns: AtomicU64,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Clone, PartialEq, Eq)]
enum Phase {
    Unrecorded,
    /// The run has been recorded since this guest time.
    Recorded(u64),
    /// A recording could not begin.
    Failed(String),
}

impl Watch {
    /// A watch for a run that is not recorded yet.
    pub fn new(folder: Option<PathBuf>) -> Watch {
        Watch(Arc::new(Shared {
            folder,
            asked: AtomicBool::new(false),
            time_ns: AtomicU64::new(0),
            phase: Mutex::new(Phase::Unrecorded),
            changed: Condvar::new(),
        }))
    }

    /// Notes that the run is recorded from this guest time on.
    pub fn began(&self, time_ns: u64) {
        self.0.time_ns.store(time_ns, Ordering::Relaxed);
        self.enter(Phase::Recorded(time_ns));
    }

    /// Notes that a recording could not begin.
    pub fn failed(&self, why: String) {
        self.enter(Phase::Failed(why));
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        *self.phase() = phase;
        self.0.changed.notify_all();
    }

    /// The answer to a client's line.
    fn answer(&self, line: &[u8]) -> Result<String, String> {
        match line {
            b"status" => Ok(self.status()),
            b"record" => self.record(),
            _ => Err("unknown command: write record or status".to_string()),
        }
    }

    fn status(&self) -> String {
        let now = self.0.time_ns.load(Ordering::Relaxed) as f64 / 1e9;
        match &*self.phase() {
            Phase::Recorded(since) => {
                let since = *since as f64 / 1e9;
                format!("recorded in {} since {since:.6} s guest time; now it is {now:.6} s", self.folder())
            }
            Phase::Unrecorded => format!("not recorded; it is {now:.6} s guest time"),
            Phase::Failed(why) => format!("not recorded, because {why}; it is {now:.6} s guest time"),
        }
    }

    fn folder(&self) -> String {
        self.0.folder.as_ref().map_or(String::new(), |folder| folder.display().to_string())
    }

    /// Asks for a recording, and waits until it has begun.
    fn record(&self) -> Result<String, String> {
        if self.0.folder.is_none() {
            return Err("the run has no folder for a recording: start it with -o NAME.ttvm".to_string());
        }
        let mut phase = self.phase();
        if let Phase::Recorded(_) = *phase {
            return Err(format!("the run is recorded already, in {}", self.folder()));
        }
        *phase = Phase::Unrecorded;
        self.0.asked.store(true, Ordering::Relaxed);
        let is_open = |phase: &mut Phase| *phase == Phase::Unrecorded;
        let waited = self.0.changed.wait_timeout_while(phase, BEGINNING, is_open);
        let (phase, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Recorded(since) => {
                Ok(format!("recorded in {} from {:.6} s guest time on", self.folder(), *since as f64 / 1e9))
            }
            Phase::Failed(why) => Err(why.clone()),
            Phase::Unrecorded => Err("the run is stopped; the recording starts when it goes on".to_string()),
        }
    }
}

/// Answers the socket's clients from now on, in a separate thread.
pub fn serve(listener: Listener, watch: Watch) -> Result<(), Error> {
    listener.open().map_err(trouble)?;
    let spawned = std::thread::Builder::new().name("control".to_string()).spawn(move || {
        sandbox::enter(ThreadKind::Doorkeeper);
        loop {
            match listener.accept() {
                // Ignores an error of the client, because the run must go on.
                Ok(stream) => drop(answer(stream, &watch)),
                Err(error) => {
                    log::warn!("{error}; `ttvm control` does not work for this run any more");
                    return;
                }
            }
        }
    });
    spawned.map(drop).map_err(|source| Error::Host { what: "cannot start a thread".to_string(), source })
}

fn answer(mut stream: Stream, watch: &Watch) -> std::io::Result<()> {
    let line = read_line(&mut stream)?;
    let answer = match watch.answer(&line) {
        Ok(text) => format!("{OK}{text}\n"),
        Err(why) => format!("{FAILED}{why}\n"),
    };
    // Writing does not wait, because the answer fits into the socket's empty buffer.
    stream.write_all(answer.as_bytes())
}

/// Reads a client's line, and returns it without the line feed.
fn read_line(stream: &mut Stream) -> std::io::Result<Vec<u8>> {
    let (begun, mut line) = (Instant::now(), Vec::new());
    while line.len() <= MAX_LINE_BYTES {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        if poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; MAX_LINE_BYTES];
        match stream.read(&mut bytes)? {
            0 => return Ok(line),
            count => line.extend(&bytes[..count]),
        }
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
    }
    Ok(line)
}

/// Pauses the run when a recording must begin.
pub struct Watcher {
    watch: Watch,
    /// The text on the console at which the recording begins, if any.
    text: Option<AwaitedText>,
}

impl Watcher {
    /// Makes a watcher that pauses the run when a client asks `watch` for it, or when the console shows `text`.
    pub fn new(watch: Watch, text: Option<&str>) -> Watcher {
        Watcher { watch, text: text.map(AwaitedText::new) }
    }
}

impl RunListener for Watcher {
    fn comes_to(&mut self, time_ns: u64) {
        self.watch.0.time_ns.store(time_ns, Ordering::Relaxed);
    }

    fn prints(&mut self, _at: u64, bytes: &[u8]) {
        let Some(text) = &mut self.text else { return };
        text.look_at(bytes);
        if text.was_shown() {
            self.text = None;
            self.watch.0.asked.store(true, Ordering::Relaxed);
        }
    }

    fn pauses(&mut self) -> bool {
        let asked = &self.watch.0.asked;
        asked.load(Ordering::Relaxed) && asked.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_folder_cannot_be_recorded_and_one_that_is_recorded_not_again() {
        let without = Watch::new(None);
        assert!(without.answer(b"record").unwrap_err().contains("-o NAME"));
        assert!(without.answer(b"status").unwrap().contains("not recorded"));
        assert!(without.answer(b"stop").is_err());
        let with = Watch::new(Some("r.ttvm".into()));
        with.began(1_500_000_000);
        assert!(with.answer(b"record").unwrap_err().contains("already, in r.ttvm"));
        assert!(with.answer(b"status").unwrap().contains("since 1.500000 s"));
        with.failed("the disk is full".to_string());
        assert!(with.answer(b"status").unwrap().contains("the disk is full"));
    }
}
