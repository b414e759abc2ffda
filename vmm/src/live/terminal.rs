//! The user's terminal in raw mode, put back on every way out.

use std::io::IsTerminal;

use nix::sys::termios::{self, SetArg, Termios};

use crate::error::Error;

/// Raw mode for as long as the value lives: dropped on return, on error and on panic alike.
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode when it is a terminal.
    pub fn enter() -> Result<Option<RawTerminal>, Error> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let failed = |errno: nix::Error| Error::Host {
            what: "cannot set the terminal to raw mode".to_string(),
            source: errno.into(),
        };
        let before = termios::tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(&stdin, SetArg::TCSANOW, &raw).map_err(failed)?;
        Ok(Some(RawTerminal { before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the terminal is gone.
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Columns and rows of the terminal on standard output.
pub fn window_size() -> Option<(u16, u16)> {
    let size = terminal_size::terminal_size()?;
    Some((size.0.0, size.1.0))
}
