//! ^C during a long operation. The first ^C asks the operation to stop, and does not end the process. The signals that
//! `kill` and a closed terminal send do the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use machine::error::{Error, exit_code};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether ^C was pressed.
#[derive(Clone)]
pub struct Interrupt {
    pressed: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Catches ^C, SIGTERM and SIGHUP: from now on, they only set a flag. A second signal ends the process.
    pub fn catch() -> Result<Interrupt, Error> {
        let pressed = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let caught = signal_hook::flag::register_conditional_shutdown(
                signal,
                exit_code::INTERRUPTED,
                pressed.clone(),
            )
            .and_then(|ends| Ok([ends, signal_hook::flag::register(signal, pressed.clone())?]));
            handlers.extend(
                caught
                    .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?,
            );
        }
        Ok(Interrupt { pressed, handlers })
    }

    /// Whether the operation must stop.
    pub fn poll(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    /// Catches no signals any more. A running guest calls this function, because it has its own use for the signals. Until
    /// the guest catches them, they have no effect.
    pub fn release(self) {
        self.handlers.into_iter().for_each(|handler| _ = signal_hook::low_level::unregister(handler));
    }
}
