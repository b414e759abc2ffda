//! Live inputs: the keyboard (or other standard input), the window size and signals. The console's output goes to the
//! screen.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::awaited_text::AwaitedText;
use crate::program_output::{Part, ProgramOutput};
use crate::screen::Screen;
use crate::stopping::Stopping;
use crate::terminal::window_size;
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::Moment;
use machine::unit::Unit;

/// The longest distance between two polls for events, in the machine's unit (instructions or exits).
const MOST_BETWEEN_POLLS: u64 = 2_000_000;
/// The longest single wait for input. Signals are checked between two waits.
const LONGEST_WAIT_NS: u64 = 100_000_000;
/// The key that introduces commands: Ctrl-A, as in QEMU.
const ESCAPE: u8 = 1;

const HELP: &str = "\r\nCtrl-A x  end the run\r\nCtrl-A p  press the power button\r\n\
                    Ctrl-A z  stop; the shell's fg goes on\r\nCtrl-A h  this help\r\nCtrl-A Ctrl-A  send Ctrl-A\r\n";

/// The options of a live run.
#[derive(Clone, Debug, Default)]
pub struct LiveOptions<C> {
    /// The file that gets a copy of the console's output, if any.
    pub console_log: Option<PathBuf>,
    /// How time passes while the guest is idle.
    pub pacing: Pacing,
    /// The count of instructions or exits at which the run ends, if any.
    pub end_at: Option<C>,
    /// The guest time in nanoseconds after which the run ends, if any.
    pub end_after_ns: Option<u64>,
    /// The text at which the run ends when the console shows it, if any. The text must not be empty.
    pub end_at_text: Option<String>,
    /// The mark that the guest prints when its program begins and when its program has ended, if any. Output before the first
    /// mark goes to standard error, and the guest gets no input before it. Output after the second mark, and the marks,
    /// are not shown. The mark's first byte must not occur in the mark again.
    pub program_mark: Option<String>,
    /// The key that ends a file on the guest's terminal, for the end of standard input if that is not a terminal. In the middle of a
    /// line, a terminal needs the key twice.
    pub end_of_input: Option<u8>,
}

/// How time passes while the guest is idle. The choice affects only when events come in, so it matters only while
/// recording. A replay repeats the recorded events as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// Idle time passes in real time as long as the user may type. After that, idle time is skipped up to the next
    /// deadline.
    #[default]
    WhileTyped,
    /// Idle time passes in real time.
    Always,
    /// Idle time is skipped up to the next deadline.
    Never,
}

/// The keyboard and the screen.
pub struct LiveConsole<C> {
    options: LiveOptions<C>,
    typed: VecDeque<u8>,
    after_escape: bool,
    commands: VecDeque<Event>,
    closed: bool,
    /// Whether the last key did not end a line.
    in_line: bool,
    terminal: bool,
    screen: Screen,
    terminated: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
    /// Job control of the terminal, if standard input is a terminal.
    stopping: Option<Stopping>,
    ended: bool,
    /// The count at which the keyboard is next read while the guest is busy.
    next_look: C,
    /// The host time at which the guest's console began to accept input. `None` while it accepts none.
    listening_since: Option<Instant>,
    /// The guest time in nanoseconds at which the run ends. The field is set when the run has begun.
    end_ns: Option<u64>,
    text: Option<AwaitedText>,
    program: Option<ProgramOutput>,
}

impl<C: Unit> LiveConsole<C> {
    /// Uses standard input and output as the guest's console. From now on SIGTERM, SIGHUP, SIGINT and SIGQUIT end
    /// the run with an event, so that the log gets an end record. The terminal must still be in the mode of the
    /// user's shell.
    pub fn new(options: LiveOptions<C>) -> Result<LiveConsole<C>, Error> {
        let (terminated, resized) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
        let failed = |source| Error::Host { what: "cannot watch for signals".to_string(), source };
        let ends = [SIGTERM, SIGHUP, SIGINT, SIGQUIT].map(|signal| (signal, &terminated));
        for (signal, flag) in ends.into_iter().chain([(SIGWINCH, &resized)]) {
            signal_hook::flag::register(signal, flag.clone()).map_err(failed)?;
        }
        let stopping = Stopping::watch().map_err(failed)?;
        let screen = Screen::new(options.console_log.as_deref(), terminated.clone())?;
        let text = options.end_at_text.as_deref().map(AwaitedText::new);
        let program = options.program_mark.as_deref().map(ProgramOutput::new);
        let mut console = LiveConsole {
            options,
            typed: VecDeque::new(),
            after_escape: false,
            commands: VecDeque::new(),
            closed: false,
            in_line: false,
            terminal: std::io::stdin().is_terminal(),
            screen,
            terminated,
            resized,
            stopping,
            ended: false,
            next_look: C::default(),
            listening_since: None,
            end_ns: None,
            text,
            program,
        };
        if !console.terminal {
            // Reads once now, so that an error of standard input is reported before the run.
            console.read_keyboard(Duration::ZERO, &[]);
        }
        Ok(console)
    }

    /// A console without a keyboard, whose output goes to a file only. When `terminated` is set, the run ends with an
    /// event, so that a log gets an end record.
    pub fn unattended(options: LiveOptions<C>, output: (PathBuf, File), terminated: Arc<AtomicBool>) -> Self {
        let text = options.end_at_text.as_deref().map(AwaitedText::new);
        LiveConsole {
            options,
            typed: VecDeque::new(),
            after_escape: false,
            commands: VecDeque::new(),
            closed: true,
            in_line: false,
            terminal: false,
            screen: Screen::file(output, terminated.clone()),
            terminated,
            resized: Arc::default(),
            stopping: None,
            ended: false,
            next_look: C::default(),
            listening_since: None,
            end_ns: None,
            text,
            program: None,
        }
    }

    /// Notes that the machine, whose count was `before`, counts from zero again.
    pub(super) fn count_anew(&mut self, before: C) {
        self.next_look = C::default();
        self.options.end_at = self.options.end_at.map(|end| C::new(end.saturating_since(before)));
    }

    /// How idle time passes from now on, as a sentence.
    pub fn pacing(&self) -> &'static str {
        match (self.options.pacing, self.closed) {
            (Pacing::Always, _) => "the guest's idle time passes in real time, as --paced says",
            (Pacing::Never, _) => "the guest's idle time is skipped, as --unpaced says",
            (Pacing::WhileTyped, true) => {
                "the guest's idle time is skipped, because nobody can type; --paced lets it pass in real time"
            }
            (Pacing::WhileTyped, false) if self.terminal => "the guest's idle time passes in real time",
            (Pacing::WhileTyped, false) => {
                "the guest's idle time passes in real time until standard input ends, and is skipped after that; \
                 --paced never skips it"
            }
        }
    }

    /// Reads typed input. Waits up to `timeout` until input comes or one of `others` is readable. After a failure of
    /// the keyboard, no more input comes.
    fn read_keyboard(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) {
        let stdin = std::io::stdin();
        // If the keyboard is closed, the call only waits. Signals end the wait.
        let typed = (!self.closed).then(|| stdin.as_fd());
        let watched = typed.into_iter().chain(others.iter().copied());
        let mut polled: Vec<_> = watched.map(|file| PollFd::new(file, PollFlags::POLLIN)).collect();
        match ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(0) | Err(nix::Error::EINTR) => return,
            Ok(_) if self.closed || !polled[0].any().unwrap_or(true) => return,
            Ok(_) => {}
            Err(errno) => return self.input_failed(errno),
        }
        let mut buffer = [0; 1024];
        match nix::unistd::read(stdin.as_fd(), &mut buffer) {
            Ok(0) => {
                self.closed = true;
                if let Some(key) = self.options.end_of_input.filter(|_| !self.terminal) {
                    let count = if self.in_line { 2 } else { 1 };
                    self.typed.extend(std::iter::repeat_n(key, count));
                }
            }
            Ok(count) => {
                self.in_line = buffer[count - 1] != b'\n';
                buffer[..count].iter().for_each(|&byte| self.take_key(byte));
            }
            Err(nix::Error::EINTR | nix::Error::EAGAIN) => {}
            // A closed terminal reads as an error.
            Err(nix::Error::EIO) => self.closed = true,
            Err(errno) => self.input_failed(errno),
        }
    }

    fn input_failed(&mut self, errno: nix::Error) {
        let error = std::io::Error::from(errno);
        log::warn!("cannot read standard input: {error}; the guest gets no more keys");
        self.closed = true;
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
            b'z' | b'Z' => self.stopping.iter().for_each(Stopping::ask),
            b'p' | b'P' => self.commands.push_back(Event::PowerButton),
            ESCAPE | b'a' => self.typed.push_back(ESCAPE),
            // If standard error fails, the user cannot read the help anyway.
            _ => drop(std::io::stderr().write_all(HELP.as_bytes())),
        }
    }

    fn signalled(&mut self) -> Option<Event> {
        self.stopping.iter().for_each(Stopping::obey);
        if self.terminated.swap(false, Ordering::Relaxed) {
            return Some(Event::Interrupted);
        }
        if self.resized.swap(false, Ordering::Relaxed) {
            let (columns, rows) = window_size()?;
            return Some(Event::ConsoleResize { columns, rows });
        }
        None
    }

    /// The number of bytes of input that the guest can accept now. A driver discards input while it starts, so the
    /// guest gets no input until the driver has started.
    fn room(&mut self, view: &View<'_, C>) -> usize {
        if self.program.as_ref().is_some_and(|program| !program.has_begun()) {
            return 0;
        }
        if C::DRIVER_STARTS.is_zero() || view.console_room == 0 {
            self.listening_since = None;
            return view.console_room;
        }
        let since = self.listening_since.get_or_insert_with(Instant::now);
        if since.elapsed() < C::DRIVER_STARTS { 0 } else { view.console_room }
    }

    /// Whether idle time passes in real time.
    fn paced(&self) -> bool {
        match self.options.pacing {
            Pacing::WhileTyped => !self.closed,
            Pacing::Always => true,
            Pacing::Never => false,
        }
    }
}

impl<C: Unit> Inputs<C> for LiveConsole<C> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        if self.ended {
            return Ok(None);
        }
        if view.moment.count >= self.next_look {
            self.next_look = view.moment.count + C::KEYBOARD_LOOKS;
            self.read_keyboard(Duration::ZERO, &[]);
        }
        let now_ns = view.moment.time_ns;
        if let Some(after_ns) = self.options.end_after_ns {
            self.end_ns.get_or_insert(now_ns.saturating_add(after_ns));
        }
        let limit = self.options.end_at.is_some_and(|end| view.moment.count >= end)
            || self.end_ns.is_some_and(|end| now_ns >= end);
        let shown = self.text.as_ref().is_some_and(AwaitedText::was_shown);
        let event = self.signalled().or_else(|| self.commands.pop_front());
        let event = event.or_else(|| shown.then_some(Event::TextShown));
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
        // In a run that counts instructions, each instruction takes a nanosecond, so the end is this many
        // instructions away. In a run that counts exits, the guest's time advances only by events, and such an
        // event reaches the end.
        let left = self.end_ns.map_or(MOST_BETWEEN_POLLS, |end| end.saturating_sub(now.time_ns));
        (now.count + left.min(MOST_BETWEEN_POLLS)).min(self.options.end_at.unwrap_or(C::MAX))
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        if !self.paced() {
            return Ok(deadline_ns.map_or(Idle::Forever, |ns| Idle::Until(self.until_end(ns))));
        }
        if self.closed && deadline_ns.is_none() {
            return Ok(Idle::Forever);
        }
        Ok(Idle::Until(self.wait(now, deadline_ns, None)))
    }

    fn console_output(&mut self, _now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.text.iter_mut().for_each(|text| text.look_at(bytes));
        match &mut self.program {
            None => self.screen.show(bytes),
            Some(program) => program.divide(bytes).iter().for_each(|part| match part {
                Part::Program(bytes) => self.screen.show(bytes),
                Part::Before(bytes) => self.screen.show_aside(bytes),
                Part::After(_) => {}
            }),
        }
        Ok(())
    }
}

impl<C: Unit> LiveConsole<C> {
    /// The earlier of this time and the end of the run.
    fn until_end(&self, ns: u64) -> u64 {
        self.end_ns.map_or(ns, |end| ns.min(end))
    }

    /// Waits in real time while the guest is idle, but at most 100 ms in one call. The wait ends at the machine's
    /// deadline, at typed input, or when one of `others` is readable. `others` is `None` if the guest has no network
    /// and no passed-through devices. Returns the virtual time at the end of the wait.
    pub(super) fn wait(
        &mut self,
        now: Moment<C>,
        deadline_ns: Option<u64>,
        others: Option<&[BorrowedFd<'_>]>,
    ) -> u64 {
        let deadline_ns = deadline_ns.map(|ns| self.until_end(ns)).or(self.end_ns);
        let wanted_ns = deadline_ns.map_or(u64::MAX, |d| d - now.time_ns.min(d)).max(1);
        let mut passed_ns = wanted_ns.min(LONGEST_WAIT_NS);
        // Without a network or device, waits are whole milliseconds. A person does not notice the difference, but a
        // network peer would.
        if others.is_none() {
            passed_ns = wanted_ns.min(1_000_000).max(passed_ns / 1_000_000 * 1_000_000);
        }
        if others.is_some() || wanted_ns >= 1_000_000 {
            let before = Instant::now();
            self.read_keyboard(Duration::from_nanos(passed_ns), others.unwrap_or_default());
            if others.is_some() || !self.typed.is_empty() || !self.commands.is_empty() {
                // An input may have ended the wait early, so this function uses the time that has really passed.
                passed_ns = passed_ns.min(before.elapsed().as_nanos() as u64).max(1);
            }
        }
        now.time_ns + passed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::position::Instructions;

    /// Lets an idle guest wait `times` times for a deadline in `wanted_ns`. Returns the guest time and the host time
    /// that have passed.
    fn idle(pacing: Pacing, times: u32) -> (u64, u128) {
        let options = LiveOptions { pacing, ..LiveOptions::default() };
        let mut console = LiveConsole::<Instructions>::new(options).unwrap();
        console.closed = true;
        let (mut now, begin) = (Moment::default(), Instant::now());
        for _ in 0..times {
            match console.idle(now, Some(60_000_000_000)).unwrap() {
                Idle::Until(ns) => now.time_ns = ns,
                Idle::Forever => panic!("there is a deadline"),
            }
        }
        (now.time_ns, begin.elapsed().as_nanos())
    }

    #[test]
    fn idle_time_is_skipped_where_nothing_can_be_typed_unless_it_is_wanted() {
        for pacing in [Pacing::WhileTyped, Pacing::Never] {
            assert_eq!(idle(pacing, 1).0, 60_000_000_000, "{pacing:?}");
        }
        let (guest_ns, host_ns) = idle(Pacing::Always, 2);
        assert!(u128::from(guest_ns) <= host_ns && guest_ns >= 100_000_000, "{guest_ns} in {host_ns}");
    }
}
