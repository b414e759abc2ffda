//! `--keep-on`: decides which recordings are removed after their run, and which stay.

use std::path::Path;

use machine::Outcome;
use machine::error::Error;
use recording::{EVENTS, MANIFEST};

/// Says after which runs the recording is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeepOn {
    /// Always
    Always,
    /// Unless the guest powered off or reset without a panic, or wrote 0 to its --debug-exit port
    Fail,
}

impl KeepOn {
    /// Whether to keep the recording of a run with this outcome. `panicked` tells whether the guest's kernel
    /// panicked before the end of the run.
    pub fn keeps(self, outcome: &Outcome, panicked: bool) -> bool {
        self == KeepOn::Always || panicked || !went_well(outcome)
    }
}

/// The exit code if the guest writes 0 to its debug-exit port. If the guest writes V, the exit code is 2 V + 1.
const WROTE_ZERO: u32 = 1;

/// Whether the guest ended its run itself and without an error. False if the user, a limit or a text on the console
/// ended the run, because the guest may have hung.
fn went_well(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::PowerOff | Outcome::Reset => true,
        Outcome::DebugExit { code } => *code == WROTE_ZERO,
        Outcome::Panic
        | Outcome::TripleFault { .. }
        | Outcome::IdleForever
        | Outcome::TextShown
        | Outcome::Ended
        | Outcome::Interrupted
        | Outcome::Limit => false,
    }
}

/// Removes a recording. In the sandbox the process can empty the folder, but cannot remove it. The companion then
/// removes the empty folder.
pub fn remove(folder: &Path) -> Result<(), Error> {
    // Removes these files first. Without them the folder is no recording, even if the process is killed before it has
    // removed all other files.
    for name in [MANIFEST, EVENTS] {
        let file = folder.join(name);
        std::fs::remove_file(&file).map_err(Error::file("remove", file))?;
    }
    for entry in std::fs::read_dir(folder).map_err(Error::file("read", folder))?.flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(Error::file("remove", path))?;
    }
    let _ = std::fs::remove_dir(folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_do_not_end_well_stay() {
        let failed = [
            Outcome::Panic,
            Outcome::TripleFault { rip: 0 },
            Outcome::IdleForever,
            Outcome::TextShown,
            Outcome::DebugExit { code: 3 },
            Outcome::Ended,
            Outcome::Interrupted,
            Outcome::Limit,
        ];
        let passed = [Outcome::PowerOff, Outcome::Reset, Outcome::DebugExit { code: WROTE_ZERO }];
        assert!(failed.iter().all(|outcome| KeepOn::Fail.keeps(outcome, false)));
        for outcome in &passed {
            assert!(!KeepOn::Fail.keeps(outcome, false), "{outcome:?}");
            assert!(KeepOn::Fail.keeps(outcome, true) && KeepOn::Always.keeps(outcome, false), "{outcome:?}");
        }
    }
}
