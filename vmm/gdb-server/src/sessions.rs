//! Several gdbs on one recording, each with a timeline, and thus a position, of its own.
//!
//! A timeline is made ready before its gdb comes: gdb waits two seconds for its first answer, and getting to
//! the end of a recording without checkpoints takes longer. What makes the first steps back quick is done until a gdb comes.

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

/// Sessions at once; each has guest RAM of its own.
pub const MAX_SESSIONS: usize = 8;

/// The time between two sentences that say how far a movement is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where files for gdb are made.
    pub folder: PathBuf,
    /// A file with commands for gdb, of which a gdb that has not loaded it is told.
    pub commands: Option<PathBuf>,
    /// Where each session begins.
    pub at: PositionSpec,
    /// Only one session.
    pub once: bool,
    /// What goes along long stretches.
    pub engine: EngineKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Report {
    /// gdb can come: its `target remote` takes this.
    Ready(String),
    /// A session has begun; sessions are counted from 1.
    Began(usize),
    /// In this session gdb waits for a movement that takes long, and this is how far it is.
    Moving(usize, String),
    /// A session has ended.
    Ended(usize, SessionEnd),
    /// There were [`MAX_SESSIONS`] already when another gdb came; it was told so.
    TurnedAway,
}

/// How a session tells the thread that starts sessions.
enum News {
    Began,
    Moving(usize, String),
    Ended,
    Failed(Error),
    /// A session's thread panicked: the server does so too, in place of waiting for it.
    Panicked(Box<dyn Any + Send>),
}

/// Serves gdbs on a recording, for as long as connections can be had, or one only. The listener need not be open yet: gdb
/// finds the door open when it may come in. `report` hears from several threads.
pub fn serve(
    recording: &Recording<Instructions>,
    listener: &Listener,
    options: &Options,
    report: &(dyn Fn(Report) + Sync),
) -> Result<(), Error> {
    let sessions = Sessions { recording, listener, options, report, first: Once::new() };
    let (sender, news) = channel();
    std::thread::scope(|scope| {
        let (mut begun, mut running, mut waiting) = (0, 0, false);
        // Closed when there is room again.
        let mut full = None;
        loop {
            if running < MAX_SESSIONS {
                full = None;
            } else if full.is_none() {
                let (room, until_room) = pipe().map_err(no_pipe)?;
                let (sender, sessions) = (sender.clone(), &sessions);
                scope.spawn(move || {
                    if let Err(error) = sessions.turn_away(&room) {
                        let _ = sender.send(News::Failed(error));
                    }
                });
                full = Some(until_room);
            }
            if !waiting && running < MAX_SESSIONS && !(options.once && begun > 0) {
                let (sender, sessions) = (sender.clone(), &sessions);
                scope.spawn(move || {
                    let run = AssertUnwindSafe(|| sessions.run(begun + 1, &sender));
                    let last = match catch_unwind(run) {
                        Ok(done) => done.map_or_else(News::Failed, |()| News::Ended),
                        Err(panic) => News::Panicked(panic),
                    };
                    // The receiver is gone once it has heard of a failure.
                    let _ = sender.send(last);
                });
                waiting = true;
            }
            match news.recv().expect("a sender is kept here") {
                News::Began => (begun, running, waiting) = (begun + 1, running + 1, false),
                News::Moving(number, text) => report(Report::Moving(number, text)),
                News::Ended if options.once => return Ok(()),
                News::Ended => running -= 1,
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
    report: &'a (dyn Fn(Report) + Sync),
    /// The first timeline is ready.
    first: Once,
}

impl Sessions<'_> {
    /// Makes a timeline ready, waits for a gdb, and serves it.
    fn run(&self, number: usize, news: &Sender<News>) -> Result<(), Error> {
        let mut timeline = Timeline::open(self.recording)?;
        timeline.use_engine(self.options.engine)?;
        let target = timeline.resolve_outside(self.options.at, &mut || false)?;
        timeline.seek(target, &mut || false)?;
        self.listener.open().map_err(trouble)?;
        self.first.call_once(|| (self.report)(Report::Ready(self.listener.gdb_address().to_string())));
        timeline.settle_until(&mut || self.listener.has_client())?;
        let stream = self.listener.accept().map_err(trouble)?;
        (self.report)(Report::Began(number));
        let _ = news.send(News::Began);
        timeline.settle_meanwhile();
        let moving = news.clone();
        let mut target = GdbTarget::new(&mut timeline).with_folder(&self.options.folder);
        if let Some(commands) = &self.options.commands {
            target = target.with_commands(commands);
        }
        let mut target = target.with_progress(PROGRESS_EVERY, move |text| {
            let _ = moving.send(News::Moving(number, text));
        });
        let end = gdb::serve_stream(stream, &mut target);
        (self.report)(Report::Ended(number, end));
        Ok(())
    }

    /// Tells each gdb that comes that there are too many, until `room` is closed at its other end.
    fn turn_away(&self, room: &PipeReader) -> Result<(), Error> {
        while let Some(stream) = self.listener.accept_until(room).map_err(trouble)? {
            (self.report)(Report::TurnedAway);
            turn_away(
                stream,
                &format!("{MAX_SESSIONS} gdbs are connected, which is the most: end one of them first"),
            );
        }
        Ok(())
    }
}

fn no_pipe(source: std::io::Error) -> Error {
    Error::Host { what: "cannot make a pipe".to_string(), source }
}

/// A listener that cannot be had, as an error of ours.
pub fn trouble(error: ListenError) -> Error {
    Error::Unsupported(error.to_string())
}
