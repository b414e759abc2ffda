//! Live inputs: the keyboard (or whatever standard input is), window size, signals, and where console output
//! goes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Error;
use crate::live::terminal::window_size;
use crate::machine::inputs::{Event, Idle, Inputs, View};
use crate::machine::unit::Unit;
use crate::position::Moment;

/// The longest distance, in what the machine counts, after which the machine asks for events.
const MOST_BETWEEN_POLLS: u64 = 2_000_000;
/// The key that introduces commands: Ctrl-A, as in QEMU.
const ESCAPE: u8 = 1;

const HELP: &str = "\r\nCtrl-A x  end the run\r\nCtrl-A p  press the power button\r\n\
                    Ctrl-A h  this help\r\nCtrl-A Ctrl-A  send Ctrl-A\r\n";

/// How a live run treats the outside world.
#[derive(Clone, Debug, Default)]
pub struct LiveOptions<C> {
    /// Copy console output to this file.
    pub console_log: Option<PathBuf>,
    /// Do not wait in real time while the guest is idle, even if input may still come.
    pub unpaced: bool,
    /// End the run here.
    pub end_at: Option<C>,
}

/// Keyboard and screen.
pub struct LiveConsole<C> {
    options: LiveOptions<C>,
    typed: VecDeque<u8>,
    after_escape: bool,
    commands: VecDeque<Event>,
    closed: bool,
    terminal: bool,
    log: Option<(PathBuf, File)>,
    terminated: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
    ended: bool,
    /// Where the keyboard is looked at again while the guest is busy.
    next_look: C,
    /// Since when the guest takes input.
    listening_since: Option<Instant>,
}

impl<C: Unit> LiveConsole<C> {
    /// Takes over standard input and output.
    pub fn new(options: LiveOptions<C>) -> Result<LiveConsole<C>, Error> {
        let log = match &options.console_log {
            Some(path) => Some((path.clone(), create_log(path)?)),
            None => None,
        };
        let (terminated, resized) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
        for (signal, flag) in
            [(SIGTERM, &terminated), (SIGHUP, &terminated), (SIGINT, &terminated), (SIGWINCH, &resized)]
        {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
        }
        Ok(LiveConsole {
            options,
            typed: VecDeque::new(),
            after_escape: false,
            commands: VecDeque::new(),
            closed: false,
            terminal: std::io::stdin().is_terminal(),
            log,
            terminated,
            resized,
            ended: false,
            next_look: C::default(),
            listening_since: None,
        })
    }

    /// Reads what has been typed, waiting up to `timeout_ms` for it.
    fn read_keyboard(&mut self, timeout_ms: u16) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        let stdin = std::io::stdin();
        let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(timeout_ms)) {
            Ok(0) | Err(nix::Error::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(input_failed(errno)),
        }
        let mut buffer = [0; 1024];
        match nix::unistd::read(stdin.as_fd(), &mut buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => buffer[..count].iter().for_each(|&byte| self.take_key(byte)),
            Err(nix::Error::EINTR | nix::Error::EAGAIN) => {}
            // A terminal that has gone away reads as an error.
            Err(nix::Error::EIO) => self.closed = true,
            Err(errno) => return Err(input_failed(errno)),
        }
        Ok(())
    }

    fn take_key(&mut self, byte: u8) {
        if !self.terminal {
            self.typed.push_back(byte);
            return;
        }
        if !std::mem::take(&mut self.after_escape) {
            if byte == ESCAPE {
                self.after_escape = true;
            } else {
                self.typed.push_back(byte);
            }
            return;
        }
        match byte {
            b'x' | b'X' => self.commands.push_back(Event::Ended),
            b'p' | b'P' => self.commands.push_back(Event::PowerButton),
            ESCAPE | b'a' => self.typed.push_back(ESCAPE),
            _ => eprint!("{HELP}"),
        }
    }

    fn signalled(&mut self) -> Option<Event> {
        if self.terminated.swap(false, Ordering::Relaxed) {
            return Some(Event::Interrupted);
        }
        if self.resized.swap(false, Ordering::Relaxed) {
            let (columns, rows) = window_size()?;
            return Some(Event::ConsoleResize { columns, rows });
        }
        None
    }

    /// How much can be typed now. A driver throws away what is there while it starts.
    fn room(&mut self, view: &View<'_, C>) -> usize {
        if C::DRIVER_STARTS.is_zero() || view.console_room == 0 {
            self.listening_since = None;
            return view.console_room;
        }
        let since = self.listening_since.get_or_insert_with(Instant::now);
        if since.elapsed() < C::DRIVER_STARTS { 0 } else { view.console_room }
    }

    /// More may be typed: idle time passes in real time.
    fn paced(&self) -> bool {
        !self.closed && !self.options.unpaced
    }
}

fn create_log(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(Error::file("create", path))
}

fn input_failed(errno: nix::Error) -> Error {
    Error::Host { what: "cannot read standard input".to_string(), source: errno.into() }
}

impl<C: Unit> Inputs<C> for LiveConsole<C> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        if self.ended {
            return Ok(None);
        }
        if view.moment.count >= self.next_look {
            self.next_look = view.moment.count + C::KEYBOARD_LOOKS;
            self.read_keyboard(0)?;
        }
        let limit = self.options.end_at.is_some_and(|end| view.moment.count >= end);
        let event = self.signalled().or_else(|| self.commands.pop_front());
        let event = event.or_else(|| limit.then_some(Event::Limit));
        if let Some(event) = event {
            self.ended = event.outcome().is_some();
            return Ok(Some(event));
        }
        let count = self.typed.len().min(self.room(view));
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(Event::ConsoleInput(self.typed.drain(..count).collect())))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        (now.count + MOST_BETWEEN_POLLS).min(self.options.end_at.unwrap_or(C::MAX))
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        if !self.paced() {
            return Ok(deadline_ns.map_or(Idle::Forever, Idle::Until));
        }
        let wanted_ns = deadline_ns.map_or(u64::MAX, |d| d - now.time_ns.min(d));
        // Under a millisecond no person notices, and poll's resolution is a millisecond.
        let milliseconds = (wanted_ns / 1_000_000).min(100) as u16;
        let before = Instant::now();
        if milliseconds > 0 {
            self.read_keyboard(milliseconds)?;
        }
        if !self.typed.is_empty() || !self.commands.is_empty() {
            let passed = before.elapsed().as_nanos() as u64;
            return Ok(Idle::Until(now.time_ns + passed.clamp(1, wanted_ns.max(1))));
        }
        if self.closed && deadline_ns.is_none() {
            return Ok(Idle::Forever);
        }
        let passed = u64::from(milliseconds.max(1)) * 1_000_000;
        Ok(Idle::Until(now.time_ns + passed.min(wanted_ns).max(1)))
    }

    fn console_output(&mut self, _now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        if let Some((path, file)) = &mut self.log {
            file.write_all(bytes).map_err(Error::file("write", path.as_path()))?;
        }
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|source| Error::Host { what: "cannot write the console's output".to_string(), source })
    }
}
