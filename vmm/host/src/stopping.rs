//! Stopping on the user's terminal and going on, as shells have it: Ctrl-A z or SIGTSTP gives the terminal back as it was, and
//! stops; SIGCONT takes it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, raise};
use signal_hook::consts::{SIGCONT, SIGTSTP};

use crate::terminal::Modes;

/// See the module.
pub(super) struct Stopping {
    modes: Modes,
    stops: Arc<AtomicBool>,
    continues: Arc<AtomicBool>,
}

impl Stopping {
    /// Watches for the signals, if standard input is a terminal. It is not raw yet.
    pub fn watch() -> std::io::Result<Option<Stopping>> {
        let Some(modes) = Modes::of_stdin()? else { return Ok(None) };
        let (stops, continues) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(SIGTSTP, stops.clone())?;
        signal_hook::flag::register(SIGCONT, continues.clone())?;
        Ok(Some(Stopping { modes, stops, continues }))
    }

    /// The user wants to stop.
    pub fn ask(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Stops if that was asked for, and makes the terminal raw again if it goes on after a stop of whatever kind. A terminal that
    /// has gone shows that elsewhere.
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
