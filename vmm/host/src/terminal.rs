//! The user's terminal in raw mode, put back on every way out.

use std::io::IsTerminal;

use nix::sys::termios::{self, SetArg, Termios};

use machine::error::Error;

/// Raw mode for as long as the value lives: dropped on return, on error and on panic alike.
pub struct RawTerminal {
    modes: Modes,
}

impl RawTerminal {
    /// Puts standard input into raw mode when it is a terminal.
    pub fn enter() -> Result<Option<RawTerminal>, Error> {
        let failed = |errno: nix::Error| Error::Host {
            what: "cannot set the terminal to raw mode".to_string(),
            source: errno.into(),
        };
        let Some(modes) = Modes::of_stdin().map_err(failed)? else { return Ok(None) };
        modes.make_raw().map_err(failed)?;
        Ok(Some(RawTerminal { modes }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the terminal is gone.
        let _ = self.modes.put_back();
    }
}

/// The mode in which the user's terminal was found, and raw mode.
pub struct Modes {
    before: Termios,
    raw: Termios,
}

impl Modes {
    /// Those of standard input, as it is now, if it is a terminal.
    pub fn of_stdin() -> nix::Result<Option<Modes>> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = termios::tcgetattr(&stdin)?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        Ok(Some(Modes { before, raw }))
    }

    /// Keys come one by one, and none of them is a signal.
    pub fn make_raw(&self) -> nix::Result<()> {
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.raw)
    }

    /// As it was found.
    pub fn put_back(&self) -> nix::Result<()> {
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before)
    }
}

/// Columns and rows of the terminal on standard output.
pub fn window_size() -> Option<(u16, u16)> {
    let size = terminal_size::terminal_size()?;
    Some((size.0.0, size.1.0))
}
