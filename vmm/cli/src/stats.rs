//! What a run, a recording or a replay did and cost, for benchmarks; of a run also at each `MARK` line that
//! the guest prints.

use std::path::PathBuf;

use devices::passthrough::{AskV1, DeviceInputV1};
use serde::Serialize;
use vmm::engine::{Leave, Statistics};
use vmm::error::Error;
use vmm::machine::Machine;
use vmm::machine::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use vmm::machine::unit::Unit;
use vmm::position::{Count, Moment};

/// Where to write it.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// Write counts, CPU time and what the engine did to this file; of a run also for every MARK line on the
    /// console (used by scripts/bench and scripts/bench-kvm)
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,
}

/// What is written to the file.
#[derive(Serialize)]
struct Stats<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    marks: Option<&'a [MarkLine]>,
    /// Exits, where those are counted.
    insns: u64,
    cpu_ns: u64,
    /// Of an engine that counts what it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Statistics>,
}

/// One line.
#[derive(Serialize)]
pub struct MarkLine {
    text: String,
    insns: u64,
    cpu_ns: u64,
}

/// Inputs that also look for `MARK` lines in the console's output.
pub struct WithStats<I> {
    inner: I,
    line: Vec<u8>,
    insns: u64,
    marks: Vec<MarkLine>,
}

impl<I> WithStats<I> {
    pub fn new(inner: I) -> WithStats<I> {
        WithStats { inner, line: Vec::new(), insns: 0, marks: Vec::new() }
    }

    pub fn marks(&self) -> &[MarkLine] {
        &self.marks
    }

    fn take_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line).trim().to_string();
        self.line.clear();
        if let Some(at) = text.find("MARK ") {
            let text = text[at..].to_string();
            self.marks.push(MarkLine { text, insns: self.insns, cpu_ns: cpu_ns() });
        }
    }
}

impl<C: Count, I: Inputs<C>> Inputs<C> for WithStats<I> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        self.inner.poll(view)
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        self.inner.next_poll(now)
    }

    fn leave(&self, now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        self.inner.leave(now, deadline_ns)
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.inner.idle(now, deadline_ns)
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.inner.ask_devices(at, ask)
    }

    fn tell_devices(&mut self, at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        self.inner.tell_devices(at, told)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.inner.network_output(frames)
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.insns = now.count.number();
        for &byte in bytes {
            if byte == b'\n' {
                self.take_line();
            } else if self.line.len() < 4096 {
                self.line.push(byte);
            }
        }
        self.inner.console_output(now, bytes)
    }
}

impl StatsArgs {
    /// Whether the user asked for it.
    pub fn wanted(&self) -> bool {
        self.stats_json.is_some()
    }

    /// Writes the file, if it is wanted.
    pub fn write<U: Unit>(&self, marks: Option<&[MarkLine]>, machine: &Machine<U>) -> Result<(), Error> {
        let Some(path) = &self.stats_json else { return Ok(()) };
        let (insns, engine) = (machine.moment().count.number(), machine.engine_statistics());
        let text = serde_json::to_string(&Stats { marks, insns, cpu_ns: cpu_ns(), engine });
        std::fs::write(path, text.expect("plain data in memory always serializes"))
            .map_err(Error::file("write", path))
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
