//! Detects that the guest's kernel has panicked in a run that does not end with the panic. After the panic, the kernel
//! may reboot, start a crash kernel, or hang.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use guest_symbols::reports::{Kind, Sifter, without_time};
use history::panicked::last_panic;
use history::timeline::Timeline;
use machine::position::Count;
use machine::unit::Unit;
use machine::{Machine, Outcome};
use recording::{Opened, read_panic_note};

use crate::run_listener::RunListener;

/// The largest number of steps that are replayed to search for a panic at a recording's end.
const NEAR_STEPS: u64 = 2_000_000_000;
/// A longer line of the console is cut to this length.
const MOST_LINE_BYTES: usize = 1024;

/// Looks for a panic in the console's output. Clones share their results.
#[derive(Clone, Default)]
pub struct PanicWatch(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    sifter: Sifter,
    panic: Option<String>,
}

impl RunListener for PanicWatch {
    fn prints(&mut self, _at: u64, bytes: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.iter().for_each(|&byte| lines.take(byte));
    }
}

impl Lines {
    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            if self.line.len() < MOST_LINE_BYTES {
                self.line.push(byte);
            }
            return;
        }
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let line = without_time(&line);
        if self.sifter.begins(line) == Some(Kind::Panic) {
            self.panic = Some(line.chars().map(|c| if c.is_control() { '?' } else { c }).collect());
        }
    }
}

impl PanicWatch {
    /// The first line of the panic's report. The line comes from the console. If the console showed no panic but
    /// the run's outcome can follow a panic, the line comes from the machine's memory.
    pub fn panic<U: Unit>(&self, machine: &Machine<U>, outcome: &Outcome) -> Option<String> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner).panic.clone();
        seen.or_else(|| goes_on_behind_panics(outcome).then(|| last_panic(machine))?)
    }
}

/// The first line of the panic's report, for a recorded run with this outcome. The line comes from the recorder's note.
/// Without a note, a replay looks for the panic if the guest reset itself. The replay starts at the last checkpoint,
/// and happens only if this checkpoint is near the end.
pub fn panic_of(path: &Path, outcome: &Outcome) -> Option<String> {
    read_panic_note(path).or_else(|| {
        (*outcome == Outcome::Reset).then_some(())?;
        let Ok(Opened::ByInstructions(recording)) = Opened::open(path) else { return None };
        let mut timeline = Timeline::open_with(&recording, 1).ok()?;
        let heads = timeline.checkpoints().map(|checkpoints| checkpoints.heads());
        let last = heads.and_then(|heads| heads.keys().next_back().copied()).unwrap_or_default();
        (timeline.end().saturating_since(last) <= NEAR_STEPS).then_some(())?;
        timeline.seek(timeline.end(), &mut || false).ok()?;
        last_panic(timeline.machine())
    })
}

/// Whether a run with this outcome may have had a panic that its console did not show. A guest that powers itself off
/// had no panic, or its crash kernel reports the panic.
fn goes_on_behind_panics(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::PowerOff | Outcome::Panic | Outcome::DebugExit { .. })
}
