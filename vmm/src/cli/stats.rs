//! Counts at each `MARK` line that a benchmark guest prints.

use std::path::Path;

use serde::Serialize;
use vmm::error::Error;
use vmm::inputs::{Departure, Event, Idle, Inputs, View};
use vmm::machine::Machine;
use vmm::position::Moment;

/// What is written to the file.
#[derive(Serialize)]
pub struct Stats<'a> {
    marks: &'a [Mark],
    insns: u64,
    cpu_ns: u64,
}

/// One line.
#[derive(Serialize)]
pub struct Mark {
    text: String,
    insns: u64,
    cpu_ns: u64,
}

/// Inputs that also look for `MARK` lines in the console's output.
pub struct WithStats<I> {
    inner: I,
    line: Vec<u8>,
    steps: u64,
    marks: Vec<Mark>,
}

impl<I> WithStats<I> {
    pub fn new(inner: I) -> WithStats<I> {
        WithStats { inner, line: Vec::new(), steps: 0, marks: Vec::new() }
    }

    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn take_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line).trim().to_string();
        self.line.clear();
        if let Some(at) = text.find("MARK ") {
            let text = text[at..].to_string();
            self.marks.push(Mark { text, insns: self.steps, cpu_ns: cpu_ns() });
        }
    }
}

impl<I: Inputs> Inputs for WithStats<I> {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        self.inner.poll(view)
    }

    fn next_poll(&self, now: Moment) -> u64 {
        self.inner.next_poll(now)
    }

    fn departure(&self, now: Moment, deadline_ns: Option<u64>) -> Departure {
        self.inner.departure(now, deadline_ns)
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.inner.idle(now, deadline_ns)
    }

    fn console_output(&mut self, now: Moment, bytes: &[u8]) -> Result<(), Error> {
        self.steps = now.steps;
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

impl Stats<'_> {
    pub fn write(path: &Path, marks: &[Mark], machine: &Machine) -> Result<(), Error> {
        let stats = Stats { marks, insns: machine.moment().steps, cpu_ns: cpu_ns() };
        let text = serde_json::to_string(&stats).expect("plain data in memory always serializes");
        std::fs::write(path, text).map_err(Error::file("write", path))
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
