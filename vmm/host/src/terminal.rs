//! The user's terminal in raw mode. The earlier mode is restored however the run ends.

use std::io::IsTerminal;

use nix::sys::termios::{self, SetArg, Termios};

use machine::error::Error;

/// The terminal is in raw mode while a value of this type lives. The earlier mode is restored on return, on error and
/// on panic.
pub struct RawTerminal {
    modes: Modes,
}

impl RawTerminal {
    /// Puts standard input into raw mode, if it is a terminal.
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
        // Restoring fails only if the terminal is gone, so the failure is ignored.
        let _ = self.modes.put_back();
    }
}

/// The terminal's original mode, and its raw mode.
pub struct Modes {
    before: Termios,
    raw: Termios,
}

impl Modes {
    /// The modes of standard input now, if it is a terminal.
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

    /// Sets raw mode. Each key can be read at once, and no key sends a signal.
    pub fn make_raw(&self) -> nix::Result<()> {
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.raw)
    }

    /// Restores the original mode.
    pub fn put_back(&self) -> nix::Result<()> {
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before)
    }
}

/// Columns and rows of the terminal on standard output.
pub fn window_size() -> Option<(u16, u16)> {
    let size = terminal_size::terminal_size()?;
    Some((size.0.0, size.1.0))
}
