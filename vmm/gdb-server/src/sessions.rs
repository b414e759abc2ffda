//! Several gdbs on one recording. Each gdb has its own timeline, and so its own position.
//!
//! A timeline is opened and moved to its start position before its gdb connects. A gdb waits only two seconds for its
//! first answer, and reaching the end of a recording without checkpoints takes longer. Until a gdb connects, the
//! timeline takes snapshots for fast backward steps.

use std::any::Any;
use std::io::{PipeReader, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use gdb::{ListenError, Listener, SessionEnd, turn_away};

use super::GdbTarget;
use history::timeline::Timeline;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation::PositionSpec;
use machine::position::Instructions;
use recording::Recording;
use sandbox::ThreadKind;

/// The largest number of sessions at once. Each session needs memory for its own copy of the guest's RAM.
pub const MAX_SESSIONS: usize = 8;

/// The interval between progress reports of a movement.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// The options for serving gdbs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the files for gdb.
    pub folder: PathBuf,
    /// A file with commands for gdb. A gdb that has not loaded the file shows the file's name.
    pub commands: Option<PathBuf>,
    /// The start position of each session.
    pub at: PositionSpec,
    /// Whether to serve only one session.
    pub once: bool,
    /// The engine for long replays.
    pub engine: EngineKind,
}

/// An event of the server.
#[derive(Clone, Debug)]
pub enum Report {
    /// A gdb can connect. The text is the argument for gdb's `target remote`.
    Ready(String),
    /// The session with this number has begun. The first session has number 1.
    Began(usize),
    /// A progress report of a long movement in this session.
    Moving(usize, String),
    /// A session has ended.
    Ended(usize, SessionEnd),
    /// Another gdb connected while there were [`MAX_SESSIONS`] sessions, and was refused with a message.
    TurnedAway,
}

/// A message from a session to the thread that starts sessions.
enum News {
    Told(Report),
    Failed(Error),
    /// A session's thread panicked. The server panics too, instead of waiting for the thread.
    Panicked(Box<dyn Any + Send>),
}

/// Serves gdbs on a recording until an error occurs. If `options.once` is true, serves only one gdb. The listener
/// need not be open yet. The function opens it before it accepts the first gdb. `report` is called on the calling
/// thread, because the threads of sessions have fewer rights in the sandbox.
pub fn serve(
    recording: &Recording<Instructions>,
    listener: &Listener,
    options: &Options,
    report: &mut dyn FnMut(Report),
) -> Result<(), Error> {
    let sessions = Sessions { recording, listener, options, first: Once::new() };
    let (sender, news) = channel();
    std::thread::scope(|scope| {
        let (mut begun, mut running, mut waiting) = (0, 0, false);
        // The pipe whose closing tells the refusing thread that a session has ended and there is room again.
        let mut full = None;
        loop {
            if running < MAX_SESSIONS {
                full = None;
            } else if full.is_none() {
                let (room, until_room) = pipe().map_err(no_pipe)?;
                let (sender, sessions) = (sender.clone(), &sessions);
                scope.spawn(move || {
                    sandbox::enter(ThreadKind::Doorkeeper);
                    if let Err(error) = sessions.turn_away(&room, &sender) {
                        let _ = sender.send(News::Failed(error));
                    }
                });
                full = Some(until_room);
            }
            if !waiting && running < MAX_SESSIONS && !(options.once && begun > 0) {
                let (sender, sessions) = (sender.clone(), &sessions);
                scope.spawn(move || {
                    sandbox::enter(ThreadKind::GdbSession);
                    let number = begun + 1;
                    let run = AssertUnwindSafe(|| sessions.run(number, &sender));
                    let last = match catch_unwind(run) {
                        Ok(Ok(end)) => News::Told(Report::Ended(number, end)),
                        Ok(Err(error)) => News::Failed(error),
                        Err(panic) => News::Panicked(panic),
                    };
                    // Sending fails only if the receiver has ended after a failure.
                    let _ = sender.send(last);
                });
                waiting = true;
            }
            match news.recv().expect("a sender is kept here") {
                News::Told(told) => {
                    let is_end = matches!(told, Report::Ended(..));
                    if matches!(told, Report::Began(_)) {
                        (begun, running, waiting) = (begun + 1, running + 1, false);
                    }
                    report(told);
                    if is_end && options.once {
                        return Ok(());
                    }
                    running -= usize::from(is_end);
                }
                News::Failed(error) => return Err(error),
                News::Panicked(panic) => resume_unwind(panic),
            }
        }
    })
}

struct Sessions<'a> {
    recording: &'a Recording<Instructions>,
    listener: &'a Listener,
    options: &'a Options,
    /// Completed when the first timeline is ready.
    first: Once,
}

impl Sessions<'_> {
    /// Prepares a timeline, waits for a gdb, and serves it.
    fn run(&self, number: usize, news: &Sender<News>) -> Result<SessionEnd, Error> {
        let mut timeline = Timeline::open(self.recording)?;
        timeline.use_engine(self.options.engine)?;
        let target = timeline.resolve_outside(self.options.at, &mut || false)?;
        timeline.seek(target, &mut || false)?;
        self.listener.open().map_err(trouble)?;
        self.first.call_once(|| tell(news, Report::Ready(self.listener.gdb_address().to_string())));
        timeline.settle_until(&mut || self.listener.has_client())?;
        let stream = self.listener.accept().map_err(trouble)?;
        tell(news, Report::Began(number));
        timeline.settle_meanwhile();
        let moving = news.clone();
        let mut target = GdbTarget::new(&mut timeline).with_folder(&self.options.folder);
        if let Some(commands) = &self.options.commands {
            target = target.with_commands(commands);
        }
        let mut target = target.with_progress(PROGRESS_EVERY, move |text| {
            tell(&moving, Report::Moving(number, text));
        });
        Ok(gdb::serve_stream(stream, &mut target))
    }

    /// Refuses each gdb that connects, until `room` is closed at its other end.
    fn turn_away(&self, room: &PipeReader, news: &Sender<News>) -> Result<(), Error> {
        while let Some(stream) = self.listener.accept_until(room).map_err(trouble)? {
            tell(news, Report::TurnedAway);
            turn_away(
                stream,
                &format!("{MAX_SESSIONS} gdbs are connected, which is the maximum: end one of them first"),
            );
        }
        Ok(())
    }
}

/// Sends a report to the thread that starts sessions. Ignores a failure, because this thread ends after a session
/// fails.
fn tell(news: &Sender<News>, report: Report) {
    let _ = news.send(News::Told(report));
}

fn no_pipe(source: std::io::Error) -> Error {
    Error::Host { what: "cannot make a pipe".to_string(), source }
}

/// Converts an error of the listener. An address that the user must write in another way is a wrong argument.
pub fn trouble(error: ListenError) -> Error {
    match error {
        ListenError::Address(_) | ListenError::NotLoopback(_) => Error::Usage(error.to_string()),
        _ => Error::Unsupported(error.to_string()),
    }
}
