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
//! The recorder waits only when 16 MiB are under way. Nothing here depends on how fast the thread is, except
//! when a checkpoint becomes readable.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

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

/// Batches under way: with those at both ends 16 MiB.
const BATCHES: usize = (16 << 20) / (BATCH_PAGES * PAGE_BYTES) - 2;

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
    contents: Vec<Page>,
}

impl Batch {
    fn new() -> Batch {
        Batch { pages: Vec::with_capacity(BATCH_PAGES), contents: Vec::with_capacity(BATCH_PAGES) }
    }

    fn push(&mut self, space: Space, number: u64, contents: &Page) {
        let is_zero = *contents == ZERO_PAGE;
        self.pages.push((space, number, is_zero));
        if !is_zero {
            self.contents.extend_from_slice(std::slice::from_ref(contents));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Space, u64, &Page)> {
        let mut contents = self.contents.iter();
        self.pages.iter().map(move |&(space, number, is_zero)| match is_zero {
            true => (space, number, &ZERO_PAGE),
            false => (space, number, contents.next().expect("one for each that is not zero")),
        })
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.contents.clear();
    }
}

enum Message {
    Begin { position: u64, time_ns: u64 },
    Pages(Batch),
    Finish { head: Vec<u8>, state: Vec<u8> },
}

#[derive(Default)]
struct Shared {
    done: Vec<Done>,
    error: Option<StoreError>,
    full: bool,
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
        let thread = {
            let (store, shared) = (store.clone(), shared.clone());
            let run = move || run(&store, &policy, &shared, &receive, &give_back);
            #[expect(
                clippy::disallowed_methods,
                reason = "packing and writing take the host's time, never the guest's: what is written is decided before"
            )]
            let spawned = thread::Builder::new().name("checkpoints".into()).spawn(run);
            Some(spawned.map_err(StoreError::io(&dir, "start a thread"))?)
        };
        Ok(BackgroundWriter { store, send: Some(send), empty, batch: Batch::new(), shared, thread })
    }

    /// Begins a checkpoint. One that was not finished is given up.
    ///
    /// # Errors
    ///
    /// If an earlier one could not be written, or the thread is gone.
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

    fn send_batch(&mut self) -> Result<()> {
        let empty = self.empty.try_recv().unwrap_or_else(|_| Batch::new());
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

/// The thread. After an error it only empties the channel, so that the recorder does not wait for it.
fn run(
    store: &Store,
    policy: &Policy,
    shared: &Mutex<Shared>,
    receive: &Receiver<Message>,
    give_back: &Sender<Batch>,
) {
    let mut job = None;
    let mut is_over = false;
    while let Ok(message) = receive.recv() {
        if is_over {
            continue;
        }
        if let Err(error) = work(store, policy, shared, give_back, message, &mut job) {
            is_over = true;
            job = None;
            report(shared, error);
        }
    }
}

fn report(shared: &Mutex<Shared>, error: StoreError) {
    let mut shared = lock(shared);
    if let StoreErrorKind::Full(_) = error.kind {
        log::warn!("{error}; recording goes on without further checkpoints");
        shared.full = true;
    } else {
        shared.error = Some(error);
    }
}

/// The checkpoint that is being written.
struct Job<'a> {
    draft: CheckpointDraft<'a>,
    disk: Vec<(u64, PageRef)>,
}

fn work<'a>(
    store: &'a Store,
    policy: &Policy,
    shared: &Mutex<Shared>,
    give_back: &Sender<Batch>,
    message: Message,
    job: &mut Option<Job<'a>>,
) -> Result<()> {
    match message {
        Message::Begin { position, time_ns } => {
            // The one that was not finished must go first: there is one writer at a time.
            *job = None;
            let draft = store.draft(position, time_ns, Some(*policy))?;
            *job = Some(Job { draft, disk: Vec::new() });
        }
        Message::Pages(mut batch) => {
            if let Some(job) = job {
                write_batch(job, &batch)?;
            }
            batch.clear();
            // If the recorder has left, the batch is not needed any more.
            let _ = give_back.send(batch);
        }
        Message::Finish { head, state } => {
            let Some(Job { draft, disk }) = job.take() else { return Ok(()) };
            let entry = draft.finish(&head, &state)?;
            lock(shared).done.push(Done { entry, disk });
            thin(store, policy)?;
        }
    }
    Ok(())
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

fn thin(store: &Store, policy: &Policy) -> Result<()> {
    let entries = store.entries();
    let patience = PATIENCE.max((entries.len() - too_old(&entries, policy.keep_last_ns).len()) / 4);
    for removed in store.thin_lazily(policy, patience)? {
        log::debug!("checkpoint {} at {} thinned out", removed.number, removed.position);
    }
    Ok(())
}
