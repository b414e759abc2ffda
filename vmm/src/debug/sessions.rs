//! Several gdbs on one recording, each with a timeline, and thus a position, of its own.
//!
//! A timeline is made ready before its gdb comes: gdb waits two seconds for its first answer, and getting to
//! the end of a recording without checkpoints takes longer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use gdb::{ListenError, Listener, SessionEnd};

use super::GdbTarget;
use crate::engine::EngineKind;
use crate::error::Error;
use crate::notation::PositionSpec;
use crate::position::Instructions;
use crate::recording::Recording;
use crate::timeline::Timeline;

/// Sessions at once; each has guest RAM of its own.
const MAX_SESSIONS: usize = 8;

/// The time between two sentences that say how far a movement is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where files for gdb are made.
    pub folder: PathBuf,
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
        loop {
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
        timeline.settle(&mut || false)?;
        self.listener.open().map_err(trouble)?;
        self.first.call_once(|| (self.report)(Report::Ready(self.listener.gdb_address().to_string())));
        let stream = self.listener.accept().map_err(trouble)?;
        (self.report)(Report::Began(number));
        let _ = news.send(News::Began);
        let moving = news.clone();
        let target = GdbTarget::new(&mut timeline).with_folder(&self.options.folder);
        let mut target = target.with_progress(PROGRESS_EVERY, move |text| {
            let _ = moving.send(News::Moving(number, text));
        });
        let end = gdb::serve_stream(stream, &mut target);
        (self.report)(Report::Ended(number, end));
        Ok(())
    }
}

/// A listener that cannot be had, as an error of ours.
pub fn trouble(error: ListenError) -> Error {
    Error::Unsupported(error.to_string())
}
