//! ^C during a long operation. The first ^C asks the operation to stop, and does not end the process. The signals that
//! `kill` and a closed terminal send do the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use machine::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether ^C was pressed.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches ^C, SIGTERM and SIGHUP: from now on, they only set a flag. A second signal ends the process.
    pub fn catch() -> Result<Interrupt, Error> {
        let pressed = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, pressed.clone())
                .and_then(|_| signal_hook::flag::register(signal, pressed.clone()))
                .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
        }
        Ok(Interrupt(pressed))
    }

    /// Whether the operation must stop.
    pub fn poll(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
