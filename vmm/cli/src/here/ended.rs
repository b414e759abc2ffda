//! How the guest of `ttvm here` ended.

use std::path::Path;

use guest_init::STATUS_BYTES;
use history::panicked::{last_panic, reports_in_log};
use machine::error::{Error, exit_code};
use machine::position::Instructions;
use machine::{Machine, Outcome};

use super::kernel::Kernel;
use crate::output::say;

/// The exit code if the time limit ended the run, as of timeout(1).
const TIMED_OUT: i32 = 124;

/// How the guest ended.
pub struct Ended {
    outcome: Outcome,
    /// The command's status, if the command ended.
    status: Option<u8>,
    /// The first line of the panic's report.
    pub panic: Option<String>,
    /// The first lines of the kernel's reports.
    reports: Vec<String>,
}

impl Ended {
    /// Reads the machine's state after the run. `status_at` is the offset in bytes on the disk of the block with the status.
    pub fn of(machine: &mut Machine<Instructions>, status_at: u64) -> Result<Ended, Error> {
        let outcome = machine.outcome().expect("the run has ended").clone();
        let mut block = [0; STATUS_BYTES];
        if let Some(disk) = machine.disk_mut() {
            disk.read_bytes(status_at, &mut block)?;
        }
        let status = guest_init::status(&block);
        let panic = if status.is_some() { None } else { last_panic(machine) };
        Ok(Ended { outcome, status, panic, reports: reports_in_log(machine) })
    }

    /// Whether the command failed or did not end, or the kernel reported a bug.
    pub fn is_failure(&self) -> bool {
        self.status != Some(0) || !self.reports.is_empty()
    }

    /// The command's status. Without a status, the exit code says why the command did not end.
    pub fn exit_code(&self) -> i32 {
        match (self.status, &self.outcome) {
            (Some(status), _) => status.into(),
            (None, Outcome::Limit) => TIMED_OUT,
            (None, Outcome::Interrupted | Outcome::Ended) => exit_code::INTERRUPTED,
            (None, _) => exit_code::FAILED,
        }
    }

    /// Says why the run is a failure.
    pub fn explain(&self) {
        match (self.status, &self.panic) {
            (Some(0), _) => {}
            (Some(status), _) => say(&format!("ttvm: the command failed with the status {status}")),
            (None, Some(panic)) => say(&format!("ttvm: the guest's kernel panicked: {panic}")),
            (None, None) if self.outcome == Outcome::Limit => say("ttvm: the time of --timeout is over"),
            (None, None) => {
                let end = crate::output::end_in_words(&self.outcome, false);
                say(&format!("ttvm: {end} before the command ended"));
            }
        }
        let others = self.reports.iter().filter(|&report| Some(report) != self.panic.as_ref());
        others.for_each(|report| say(&format!("ttvm: the guest's kernel reports: {report}")));
    }

    /// Says where the recording is, and the command that opens it.
    pub fn say_what_next(&self, recording: &Path, kernel: &Kernel) {
        let name = recording.display();
        let at = match (&self.panic, self.reports.first()) {
            (Some(_), _) => " --at panic",
            (None, Some(_)) => " --at report:1",
            (None, None) => "",
        };
        let symbols = kernel.vmlinux().map_or(String::new(), |file| format!(" --symbols {}", file.display()));
        say(&format!("ttvm: recorded in {name}. To debug it: ttvm debug {name} --gdb{at}{symbols}"));
    }
}
