//! ^C during a long operation. The first ^C asks the operation to stop, and does not end the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use machine::error::Error;

/// Whether ^C was pressed.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches ^C: from now on, it only sets a flag. A second ^C ends the process.
    pub fn catch() -> Result<Interrupt, Error> {
        let pressed = Arc::new(AtomicBool::new(false));
        let signal = signal_hook::consts::SIGINT;
        signal_hook::flag::register_conditional_shutdown(signal, 130, pressed.clone())
            .and_then(|_| signal_hook::flag::register(signal, pressed.clone()))
            .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
        Ok(Interrupt(pressed))
    }

    /// Whether the operation must stop.
    pub fn poll(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
