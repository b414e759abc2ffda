//! Writes checkpoints on a separate thread while the guest continues.
//!
//! ```text
//!  recorder                           writer thread
//!  begin ─► page ─► page ... ─► finish
//!     └────────┴─────┴────────────┴──► CheckpointDraft ─► file ─► thin ─► Done
//!                                                                │
//!  take_done ◄───────────────────────────────────────────────────┘
//! ```
//!
//! A failure to write, for example because the disk is full, loses only that checkpoint. The recorder gets
//! the lost checkpoint's pages from [`BackgroundWriter::take_lost`], and hands them in with the next
//! checkpoint.
//!
//! The recorder waits only while 6 MiB of pages wait for the writer thread. The speed of this thread decides only when
//! a checkpoint becomes readable.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use memmap2::{MmapMut, MmapOptions};
use sandbox::ThreadKind;

use crate::draft::CheckpointDraft;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::index::Entry;
use crate::map::ZERO_PAGE;
use crate::map::{PageRef, Space};
use crate::page::{PAGE_BYTES, Page};
use crate::store::Store;
use crate::store::lock;
use crate::thin::{Policy, too_old};

/// Number of pages in a batch, which the recorder sends to the thread as one message.
const BATCH_PAGES: usize = 64;

/// Number of batches in the channel. One more batch is being filled, and one is being written. All these batches
/// together hold 6 MiB.
const BATCHES: usize = (6 << 20) / (BATCH_PAGES * PAGE_BYTES) - 2;

/// The number of too old checkpoints at which the thread removes them all together. If a quarter of the number of
/// other checkpoints is larger, the thread waits for that many. Every removal copies a file, so single removals
/// would cost more.
const PATIENCE: usize = 8;

/// A checkpoint that has been written.
#[derive(Clone, Debug)]
pub struct Done {
    /// The store's entry of the checkpoint.
    pub entry: Entry,
    /// Each disk block that the recorder handed in: the block's number, and the place of its contents.
    pub disk: Vec<(u64, PageRef)>,
}

/// Writes checkpoints to a store in the background, and thins the store out after each.
pub struct BackgroundWriter {
    store: Arc<Store>,
    policy: Policy,
    send: Option<SyncSender<Message>>,
    /// Empty batches that the thread returns.
    empty: Receiver<Batch>,
    batch: Batch,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

/// Some pages of a checkpoint. `pages` has the space and the number of each page, and whether the page is zero.
/// `contents` has only the pages that are not zero, in the same order. A booting guest fills a third of its pages
/// with zeroes.
struct Batch {
    pages: Vec<(Space, u64, bool)>,
    /// Room for `BATCH_PAGES` pages, which the host allocates at once. Allocating the room page by page would cost more
    /// time than copying the pages.
    contents: MmapMut,
    /// How many page-sized parts of `contents` are in use.
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
    /// Asks for the pages of lost checkpoints. The thread answers after it has handled all earlier messages. The
    /// recorder then puts these pages into the next checkpoint.
    Recover(Sender<BTreeSet<(Space, u64)>>),
}

#[derive(Default)]
struct Shared {
    done: Vec<Done>,
    error: Option<StoreError>,
    full: bool,
    /// Whether checkpoints were lost because they could not be written, and the recorder has not asked for their
    /// pages yet.
    is_lost: bool,
}

impl BackgroundWriter {
    /// Starts the writer thread. While this thread works, other threads of this process should write to the store only
    /// briefly, because the writer thread has to wait for them.
    ///
    /// # Errors
    ///
    /// If another process writes to the store, or the host cannot start a thread.
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
                sandbox::enter(ThreadKind::CheckpointWriter);
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

    /// Begins a checkpoint. Drops an earlier checkpoint that was not finished.
    ///
    /// # Errors
    ///
    /// If an earlier checkpoint failed, for example because the store already has a checkpoint at its position, or
    /// if the writer thread has ended. A disk on which nothing can be written causes no error here: see
    /// [`BackgroundWriter::take_lost`].
    pub fn begin(&mut self, position: u64, time_ns: u64) -> Result<()> {
        self.batch.clear();
        self.send(Message::Begin { position, time_ns })
    }

    /// Copies a page of the current checkpoint; see [`CheckpointDraft::page`]. Waits while the channel to the thread is
    /// full.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`].
    pub fn page(&mut self, space: Space, number: u64, contents: &Page) -> Result<()> {
        self.batch.push(space, number, contents);
        if self.batch.pages.len() == BATCH_PAGES { self.send_batch() } else { Ok(()) }
    }

    /// Completes the current checkpoint, and returns before the thread has written it.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`]. If the thread cannot write this checkpoint, a later call returns the error.
    pub fn finish(&mut self, head: Vec<u8>, state: Vec<u8>) -> Result<()> {
        self.send_batch()?;
        self.send(Message::Finish { head, state })
    }

    /// The checkpoints that were written since the last call, in the order in which they were begun. Some of
    /// these checkpoints may already be thinned out.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut lock(&self.shared).done)
    }

    /// The pages of checkpoints that could not be written since the last call, for example because a disk is full.
    /// Usually the set is empty. Checkpoints that were begun after a lost checkpoint are lost, too. After this call the
    /// thread tries to write checkpoints again. The next checkpoint must contain the returned pages, and the pages that
    /// changed since the last checkpoint was begun.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::begin`].
    pub fn take_lost(&mut self) -> Result<BTreeSet<(Space, u64)>> {
        let is_lost = lock(&self.shared).is_lost;
        if is_lost { self.wait_and_take_lost() } else { Ok(BTreeSet::new()) }
    }

    /// Waits until every begun checkpoint is written or lost. Then returns the result of
    /// [`BackgroundWriter::take_lost`].
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

    /// Whether a checkpoint did not fit under the policy's size limit, even after other checkpoints were removed.
    /// From then on all checkpoints are ignored without errors, because they would lack the changes of that
    /// checkpoint.
    pub fn is_full(&self) -> bool {
        lock(&self.shared).full
    }

    /// Waits until the thread has written all finished checkpoints. Returns the checkpoints that
    /// [`BackgroundWriter::take_done`] would return.
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

    /// Does the same as [`BackgroundWriter::close`], at the end of a run. Also removes checkpoints that are too old
    /// for a run that ended at `end_ns`. During the run, the thread removes old checkpoints after it has written a
    /// checkpoint. No further checkpoint is written here.
    ///
    /// # Errors
    ///
    /// As [`BackgroundWriter::close`]. If an old checkpoint cannot be removed, it stays, and the call still
    /// succeeds.
    pub fn close_at_end(self, end_ns: u64) -> Result<Vec<Done>> {
        let (store, policy) = (self.store.clone(), self.policy);
        let done = self.close()?;
        if policy.keep_last_ns.is_some()
            && let Err(error) = store.thin_at_end(&policy, end_ns)
        {
            log::warn!("cannot thin out checkpoints: {}", full(&error));
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
            // If the thread panicked while it held the lock, the lock is poisoned, and no error can be stored here.
            // The next use of the lock then panics.
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
    /// The pages of this checkpoint that the recorder has handed in.
    pages: Vec<(Space, u64)>,
}

/// The thread's treatment of the checkpoints that the recorder hands in.
enum Fate {
    Written,
    /// A checkpoint could not be written. Later checkpoints would lack its changes, so the thread drops them until
    /// the recorder asks for the lost pages. This set has the pages of all lost checkpoints.
    Lost(BTreeSet<(Space, u64)>),
    /// The thread will write no more checkpoints. The thread still empties the channel, so that the recorder does
    /// not wait.
    Over,
}

/// The state of the thread.
struct Worker<'a> {
    store: &'a Store,
    policy: &'a Policy,
    shared: &'a Mutex<Shared>,
    give_back: &'a Sender<Batch>,
    job: Option<Job<'a>>,
    fate: Fate,
    /// Whether the thread has logged a warning that a checkpoint could not be written.
    told_lost: bool,
    /// Whether the thread has logged a warning that it cannot thin out the store.
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
                // Drop an unfinished checkpoint before beginning the next: the store has only one writer at a time.
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
                // If the recorder has ended, nobody needs the answer, so a failure to send it is ignored.
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
        // If the recorder has ended, nobody needs the empty batch, so a failure to send it is ignored.
        let _ = self.give_back.send(batch);
        written
    }

    /// Gives up the current checkpoint. If the disk caused the error, a later checkpoint may still be written.
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
                        "{}; the recording goes on, and ttvm will try the next checkpoint",
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

    /// Thins out the store. A checkpoint that cannot be removed stays. The checkpoint that was just written is
    /// valid even if no checkpoint can be removed. The store still stays below its cap, because the writer refuses
    /// a checkpoint that does not fit.
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
                log::debug!("cannot thin out checkpoints: {}", full(&error));
            }
            Err(error) => log::warn!("cannot thin out checkpoints: {}", full(&error)),
        }
    }
}

/// The text of an error, followed by the text of its cause.
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
