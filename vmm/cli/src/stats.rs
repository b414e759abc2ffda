//! Statistics of a run, a recording or a replay, for benchmarks. The statistics are for the whole run, and for each
//! point at which the guest prints a line `MARK`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use machine::Machine;
use machine::engine::Statistics;
use machine::error::Error;
use machine::unit::Unit;
use serde::Serialize;

use crate::run_listener::RunListener;

/// The option that names the file for the statistics.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// Write the engine's counts and the CPU time to this file.
    ///
    /// The file also has the CPU time at each MARK line on the console. The scripts/bench scripts use this.
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,
}

/// The contents of the statistics file.
#[derive(Serialize)]
struct Stats<'a> {
    marks: &'a [MarkLine],
    /// Number of instructions, or of exits in a run that counts exits.
    insns: u64,
    cpu_ns: u64,
    /// The engine's own statistics, if the engine keeps any.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Statistics>,
}

/// One `MARK` line.
#[derive(Serialize)]
struct MarkLine {
    text: String,
    /// The number of instructions executed before this line, if instructions are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    insns: Option<u64>,
    cpu_ns: u64,
}

/// Looks for `MARK` lines in the console's output, if statistics are wanted. Clones share their results.
#[derive(Clone)]
pub struct Marks(Option<Arc<Mutex<Found>>>);

struct Found {
    /// The file for the statistics. The file is made before the process enters the sandbox, where it cannot make files.
    file: File,
    line: Vec<u8>,
    marks: Vec<MarkLine>,
}

impl Marks {
    fn into_file(file: File) -> Marks {
        Marks(Some(Arc::new(Mutex::new(Found { file, line: Vec::new(), marks: Vec::new() }))))
    }

    /// Looks for marks in the next console output. The guest has executed `insns` instructions.
    pub fn look_at(&self, bytes: &[u8], insns: Option<u64>) {
        let Some(found) = &self.0 else { return };
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        for &byte in bytes {
            if byte == b'\n' {
                found.end_line(insns);
            } else if found.line.len() < 4096 {
                found.line.push(byte);
            }
        }
    }
}

impl Found {
    fn end_line(&mut self, insns: Option<u64>) {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_string();
        if let Some(at) = text.find("MARK ") {
            self.marks.push(MarkLine { text: text[at..].to_string(), insns, cpu_ns: cpu_ns() });
        }
    }
}

impl RunListener for Marks {
    fn prints(&mut self, at: u64, bytes: &[u8]) {
        self.look_at(bytes, Some(at));
    }
}

impl StatsArgs {
    /// Makes the statistics file and begins a search for marks, if the user asked for statistics.
    pub fn marks(&self) -> Result<Marks, Error> {
        let Some(path) = &self.stats_json else { return Ok(Marks(None)) };
        let file = File::create(path).map_err(Error::file("create", path))?;
        Ok(Marks::into_file(file))
    }

    /// Writes the statistics file, if the user asked for statistics.
    pub fn write<U: Unit>(&self, marks: &Marks, machine: &Machine<U>) -> Result<(), Error> {
        let (Some(path), Some(found)) = (&self.stats_json, &marks.0) else { return Ok(()) };
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let (insns, engine) = (machine.moment().count.number(), machine.engine_statistics());
        let text = serde_json::to_string(&Stats { marks: &found.marks, insns, cpu_ns: cpu_ns(), engine });
        let text = text.expect("plain data in memory always serializes");
        found.file.write_all(text.as_bytes()).map_err(Error::file("write", path))
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_in_pieces_and_behind_other_text() {
        let marks = Marks::into_file(tempfile::tempfile().unwrap());
        marks.look_at(b"hello\n[ 0.1] MAR", Some(1));
        marks.look_at(b"K begin cpu\r\nMARK", Some(2));
        marks.look_at(b" end cpu sum=7\n", None);
        let found = marks.0.unwrap();
        let found = found.lock().unwrap();
        let lines: Vec<_> = found.marks.iter().map(|mark| (mark.text.as_str(), mark.insns)).collect();
        assert_eq!(lines, [("MARK begin cpu", Some(2)), ("MARK end cpu sum=7", None)]);
        assert!(found.marks[0].cpu_ns <= found.marks[1].cpu_ns);
    }
}
