//! Job control on the user's terminal. Ctrl-A z or SIGTSTP restores the terminal and stops the process; SIGCONT makes
//! the terminal raw again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, raise};
use signal_hook::consts::{SIGCONT, SIGTSTP};

use crate::terminal::Modes;

/// Watches for requests to stop the process, and for its continuation.
pub(super) struct Stopping {
    modes: Modes,
    stops: Arc<AtomicBool>,
    continues: Arc<AtomicBool>,
}

impl Stopping {
    /// Watches for the signals, if standard input is a terminal. The terminal must not be raw yet.
    pub fn watch() -> std::io::Result<Option<Stopping>> {
        let Some(modes) = Modes::of_stdin()? else { return Ok(None) };
        let (stops, continues) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(SIGTSTP, stops.clone())?;
        signal_hook::flag::register(SIGCONT, continues.clone())?;
        Ok(Some(Stopping { modes, stops, continues }))
    }

    /// Requests a stop, which the next call of [`Stopping::obey`] executes.
    pub fn ask(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Stops the process if it was asked to stop. After any stop, makes the terminal raw again. Ignores the error of a
    /// closed terminal, because reading the keyboard reports it.
    pub fn obey(&self) {
        if self.stops.swap(false, Ordering::Relaxed) {
            let _ = self.modes.put_back();
            let _ = raise(Signal::SIGSTOP);
        }
        if self.continues.swap(false, Ordering::Relaxed) {
            let _ = self.modes.make_raw();
        }
    }
}
