//! Writing checkpoints on a thread of its own while the guest runs on.
//!
//! ```text
//!  recorder                           writer thread
//!  begin ─► page ─► page ... ─► finish
//!     └────────┴─────┴────────────┴──► CheckpointDraft ─► file ─► thin ─► Done
//!                                                                │
//!  take_done ◄───────────────────────────────────────────────────┘
//! ```
//!
//! A checkpoint that cannot be written, because the disk is full for one, costs that checkpoint only. The
//! recorder learns of it by [`BackgroundWriter::take_lost`], and hands its pages in with the next one.
//!
//! The recorder waits only when 6 MiB are under way. Nothing here depends on how fast the thread is, except
//! when a checkpoint becomes readable.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use memmap2::{MmapMut, MmapOptions};

use crate::draft::CheckpointDraft;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::index::Entry;
use crate::map::ZERO_PAGE;
use crate::map::{PageRef, Space};
use crate::page::{PAGE_BYTES, Page};
use crate::store::Store;
use crate::store::lock;
use crate::thin::{Policy, too_old};

/// Pages that are handed over together.
const BATCH_PAGES: usize = 64;

/// Batches under way: with those at both ends 6 MiB.
const BATCHES: usize = (6 << 20) / (BATCH_PAGES * PAGE_BYTES) - 2;

/// Too old checkpoints are removed this many at once, or a quarter of all: each merge copies their file.
const PATIENCE: usize = 8;

/// A checkpoint that has been written.
#[derive(Clone, Debug)]
pub struct Done {
    /// What the store says about it.
    pub entry: Entry,
    /// Where the contents of each disk block that was handed in are now.
    pub disk: Vec<(u64, PageRef)>,
}

/// Writes checkpoints to a store in the background and thins it out after each.
pub struct BackgroundWriter {
    store: Arc<Store>,
    policy: Policy,
    send: Option<SyncSender<Message>>,
    /// Batches that the thread has emptied.
    empty: Receiver<Batch>,
    batch: Batch,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

/// Pages, and the contents of those that are not zero in the same order: a guest that starts writes zeroes to a third of
/// its pages, which need not be copied.
struct Batch {
    pages: Vec<(Space, u64, bool)>,
    /// Room for all of them. The host hands it out at once: page by page, each costs more than copying it does.
    contents: MmapMut,
    /// How many of the contents mean something.
    filled: usize,
}

impl Batch {
    fn new() -> io::Result<Batch> {
        let contents = MmapOptions::new().len(BATCH_PAGES * PAGE_BYTES).populate().map_anon()?;
        Ok(Batch { pages: Vec::with_capacity(BATCH_PAGES), contents, filled: 0 })
    }

    fn push(&mut self, space: Space, number: u64, contents: &Page) {
        let is_zero = *contents == ZERO_PAGE;
        self.pages.push((space, number, is_zero));
        if !is_zero {
            self.contents.as_chunks_mut().0[self.filled] = *contents;
            self.filled += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Space, u64, &Page)> {
        let mut contents = self.contents.as_chunks().0[..self.filled].iter();
        self.pages.iter().map(move |&(space, number, is_zero)| match is_zero {
            true => (space, number, &ZERO_PAGE),
            false => (space, number, contents.next().expect("one for each that is not zero")),
        })
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.filled = 0;
    }
}

enum Message {
    Begin {
        position: u64,
        time_ns: u64,
    },
    Pages(Batch),
    Finish {
        head: Vec<u8>,
        state: Vec<u8>,
    },
    /// Everything before this is written, or lost: asks for the pages of what is lost. What comes behind it has them.
    Recover(Sender<BTreeSet<(Space, u64)>>),
}

#[derive(Default)]
struct Shared {
    done: Vec<Done>,
    error: Option<StoreError>,
    full: bool,
    /// Checkpoints could not be written, and the recorder has not asked for their pages yet.
    is_lost: bool,
}

impl BackgroundWriter {
    /// Starts the thread. While it works, no other thread of this process should write to the store for long: the writer
    /// thread would have to wait for it.
    ///
    /// # Errors
    ///
    /// If another process writes to the store, or the host gives no thread.
    pub fn start(store: Arc<Store>, policy: Policy) -> Result<BackgroundWriter> {
        drop(store.writer()?);
        let (send, receive) = sync_channel(BATCHES);
        let (give_back, empty) = channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let dir = store.dir().to_path_buf();
        let batch = Batch::new().map_err(StoreError::io(&dir, "get memory for pages of"))?;
        let thread = {
            let (store, shared) = (store.clone(), shared.clone());
            let run = move || {
                let (store, policy, shared, give_back) = (&*store, &policy, &*shared, &give_back);
                let (job, fate) = (None, Fate::Written);
                let (told_lost, told_thinning) = (false, false);
                Worker { store, policy, shared, give_back, job, fate, told_lost, told_thinning }
                    .run(&receive);
            };
            #[expect(
                clippy::disallowed_methods,
                reason = "packing and writing take the host's time, never the guest's: what is written is decided before"
            )]
            let spawned = thread::Builder::new().name("checkpoints".into()).spawn(run);
            Some(spawned.map_err(StoreError::io(&dir, "start a thread"))?)
        };
        Ok(BackgroundWriter { store, policy, send: Some(send), empty, batch, shared, thread })
    }

    /// Begins a checkpoint. One that was not finished is given up.
    ///
    /// # Errors
    ///
    /// If an earlier one was refused, or the thread is gone. That a disk is full is no error: see
    /// [`BackgroundWriter::take_lost`].
    pub fn begin(&mut self, position: u64, time_ns: u64) -> Result<()> {
        self.batch.clear();
        self.send(Message::Begin { position, time_ns })
    }

    /// Copies a page of the checkpoint that was begun; see [`CheckpointDraft::page`]. Waits while too much is under way.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`].
    pub fn page(&mut self, space: Space, number: u64, contents: &Page) -> Result<()> {
        self.batch.push(space, number, contents);
        if self.batch.pages.len() == BATCH_PAGES { self.send_batch() } else { Ok(()) }
    }

    /// Completes the checkpoint that was begun and returns at once.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`]; trouble with this checkpoint is reported by the calls that follow.
    pub fn finish(&mut self, head: Vec<u8>, state: Vec<u8>) -> Result<()> {
        self.send_batch()?;
        self.send(Message::Finish { head, state })
    }

    /// The checkpoints that were written since the last call, in the order in which they were begun. They may
    /// have been thinned out already.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut lock(&self.shared).done)
    }

    /// The pages of the checkpoints that could not be written, because a disk is full for one, since this was last
    /// asked; mostly there are none. Those checkpoints are given up, and all that were begun behind them. From
    /// here on checkpoints are written again, if they can be: the next one must have these pages besides those
    /// that changed since the last one was begun.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`].
    pub fn take_lost(&mut self) -> Result<BTreeSet<(Space, u64)>> {
        let is_lost = lock(&self.shared).is_lost;
        if is_lost { self.wait_and_take_lost() } else { Ok(BTreeSet::new()) }
    }

    /// Waits until everything that was begun is written or lost, and then does what [`BackgroundWriter::take_lost`] does.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`].
    pub fn wait_and_take_lost(&mut self) -> Result<BTreeSet<(Space, u64)>> {
        self.batch.clear();
        let (answer, lost) = channel();
        self.send(Message::Recover(answer))?;
        lost.recv().map_err(|_| StoreError::new(self.store.dir(), StoreErrorKind::WriterGone))
    }

    /// Whether a checkpoint did not fit beneath the policy's cap, whatever else was removed. From then on all are
    /// ignored, without errors: a later one would lack what changed before it.
    pub fn is_full(&self) -> bool {
        lock(&self.shared).full
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    ///
    /// The first error of the thread.
    pub fn close(mut self) -> Result<Vec<Done>> {
        self.join();
        let mut shared = lock(&self.shared);
        match shared.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut shared.done)),
        }
    }

    /// As [`BackgroundWriter::close`], at the end of a run. Checkpoints that are too old for a run that ended at `end_ns` are
    /// removed: none will follow for whose sake that could wait.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::close`]. A checkpoint that cannot be removed stays.
    pub fn close_at_end(self, end_ns: u64) -> Result<Vec<Done>> {
        let (store, policy) = (self.store.clone(), self.policy);
        let done = self.close()?;
        if policy.keep_last_ns.is_some()
            && let Err(error) = store.thin_at_end(&policy, end_ns)
        {
            log::warn!("no checkpoint can be thinned out: {}", full(&error));
        }
        Ok(done)
    }

    fn send_batch(&mut self) -> Result<()> {
        let empty = match self.empty.try_recv() {
            Ok(empty) => empty,
            Err(_) => Batch::new().map_err(StoreError::io(self.store.dir(), "get memory for pages of"))?,
        };
        let full = std::mem::replace(&mut self.batch, empty);
        if full.pages.is_empty() { Ok(()) } else { self.send(Message::Pages(full)) }
    }

    fn send(&mut self, message: Message) -> Result<()> {
        if let Some(error) = &lock(&self.shared).error {
            return Err(error.clone());
        }
        let sent = self.send.as_ref().is_some_and(|send| send.send(message).is_ok());
        if sent { Ok(()) } else { Err(StoreError::new(self.store.dir(), StoreErrorKind::WriterGone)) }
    }

    fn join(&mut self) {
        self.send = None;
        let Some(thread) = self.thread.take() else { return };
        if thread.join().is_err() {
            let gone = StoreError::new(self.store.dir(), StoreErrorKind::WriterGone);
            // The lock may be poisoned by the thread's panic; the message below is then all there is to say.
            if let Ok(mut shared) = self.shared.lock() {
                shared.error.get_or_insert(gone);
            }
        }
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        self.join();
    }
}

/// The checkpoint that is being written.
struct Job<'a> {
    draft: CheckpointDraft<'a>,
    disk: Vec<(u64, PageRef)>,
    /// All pages that were handed in.
    pages: Vec<(Space, u64)>,
}

/// What becomes of the checkpoints that are handed in.
enum Fate {
    Written,
    /// One could not be written, and the next ones lack what changed before it. These pages were in them.
    Lost(BTreeSet<(Space, u64)>),
    /// There will be no more. The channel is emptied all the same, so that the recorder does not wait for it.
    Over,
}

/// The thread.
struct Worker<'a> {
    store: &'a Store,
    policy: &'a Policy,
    shared: &'a Mutex<Shared>,
    give_back: &'a Sender<Batch>,
    job: Option<Job<'a>>,
    fate: Fate,
    /// Whether it was told that checkpoints are left out, and that none can be removed.
    told_lost: bool,
    told_thinning: bool,
}

impl Worker<'_> {
    fn run(&mut self, receive: &Receiver<Message>) {
        while let Ok(message) = receive.recv() {
            if let Err(error) = self.work(message) {
                self.fail(error);
            }
        }
    }

    fn work(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Begin { position, time_ns } => {
                // The one that was not finished must go first: there is one writer at a time.
                self.job = None;
                if matches!(self.fate, Fate::Written) {
                    let draft = self.store.draft(position, time_ns, Some(*self.policy))?;
                    self.job = Some(Job { draft, disk: Vec::new(), pages: Vec::new() });
                }
            }
            Message::Pages(batch) => self.take_batch(batch)?,
            Message::Finish { head, state } => {
                let Some(Job { draft, disk, pages }) = self.job.take() else { return Ok(()) };
                let position = draft.position();
                match draft.finish(&head, &state) {
                    Ok(entry) => lock(self.shared).done.push(Done { entry, disk }),
                    Err(error) => {
                        self.fate = Fate::Lost(pages.into_iter().collect());
                        return Err(error);
                    }
                }
                if std::mem::take(&mut self.told_lost) {
                    log::warn!("checkpoints are written again, from position {position} on");
                }
                self.thin();
            }
            Message::Recover(answer) => {
                let lost = match &mut self.fate {
                    Fate::Lost(pages) => std::mem::take(pages),
                    Fate::Written | Fate::Over => BTreeSet::new(),
                };
                if matches!(self.fate, Fate::Lost(_)) {
                    self.fate = Fate::Written;
                    lock(self.shared).is_lost = false;
                }
                // A recorder that has left needs no answer.
                let _ = answer.send(lost);
            }
        }
        Ok(())
    }

    fn take_batch(&mut self, mut batch: Batch) -> Result<()> {
        let numbers = batch.pages.iter().map(|&(space, number, _)| (space, number));
        let written = match (&mut self.fate, &mut self.job) {
            (Fate::Lost(pages), _) => {
                pages.extend(numbers);
                Ok(())
            }
            (Fate::Written, Some(job)) => {
                job.pages.extend(numbers);
                write_batch(job, &batch)
            }
            _ => Ok(()),
        };
        batch.clear();
        // If the recorder has left, the batch is not needed any more.
        let _ = self.give_back.send(batch);
        written
    }

    /// The checkpoint under way cannot be written. Where that is the disk's fault, another one may succeed.
    fn fail(&mut self, error: StoreError) {
        let mut lost = match std::mem::replace(&mut self.fate, Fate::Over) {
            Fate::Lost(pages) => pages,
            Fate::Written | Fate::Over => BTreeSet::new(),
        };
        lost.extend(self.job.take().into_iter().flat_map(|job| job.pages));
        match &error.kind {
            StoreErrorKind::Io { .. } | StoreErrorKind::Damaged { .. } => {
                if !std::mem::replace(&mut self.told_lost, true) {
                    log::warn!(
                        "{}; the recording goes on, and the next checkpoint is tried again",
                        full(&error)
                    );
                }
                self.fate = Fate::Lost(lost);
                lock(self.shared).is_lost = true;
            }
            StoreErrorKind::Full(_) => {
                log::warn!("{error}; recording goes on without further checkpoints");
                lock(self.shared).full = true;
            }
            _ => lock(self.shared).error = Some(error),
        }
    }

    /// A checkpoint that cannot be removed stays: the one that was just written is none the worse for it, and the cap holds, for
    /// the next one does not fit then.
    fn thin(&mut self) {
        let entries = self.store.entries();
        let patience =
            PATIENCE.max((entries.len() - too_old(&entries, self.policy.keep_last_ns, None).len()) / 4);
        match self.store.thin_lazily(self.policy, patience) {
            Ok(removed) => {
                for removed in removed {
                    log::debug!("checkpoint {} at {} thinned out", removed.number, removed.position);
                }
            }
            Err(error) if std::mem::replace(&mut self.told_thinning, true) => {
                log::debug!("no checkpoint can be thinned out: {}", full(&error));
            }
            Err(error) => log::warn!("no checkpoint can be thinned out: {}", full(&error)),
        }
    }
}

/// An error with its cause.
fn full(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn write_batch(job: &mut Job<'_>, batch: &Batch) -> Result<()> {
    for (space, number, contents) in batch.iter() {
        let version = job.draft.page(space, number, contents)?;
        if space == Space::Disk {
            job.disk.push((number, version));
        }
    }
    Ok(())
}
