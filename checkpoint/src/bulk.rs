//! Reads many page versions for a restore, on two threads, in the order in which they lie in the files.
//!
//! The threads affect only the order of the pages, not their contents.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::thread;

use sandbox::ThreadKind;

use crate::codec::{Codec, xor};
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::index::{Index, OpenFile, files_at_once};
use crate::map::{BlobId, ZERO_PAGE};
use crate::page::Page;
use crate::read::{Place, check, unpack};
use crate::store::Store;
use crate::table::{Digest, Row};

/// Number of pages that are decoded together.
const BATCH: usize = 128;

/// The least number of pages for which a second thread saves more time than its start costs.
const MIN_FOR_THREAD: usize = 8 * BATCH;

/// Two blobs with at most this many bytes between them are read by a single read, together with the bytes between
/// them.
const MAX_GAP: u64 = 8 << 10;

/// The largest number of bytes of a single read.
const MAX_EXTENT: u64 = 1 << 20;

/// A version's blob in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Blob {
    file: u32,
    offset: u64,
    len: u16,
    id: u64,
    digest: Digest,
    crc: u32,
}

/// A page to be read.
struct Request {
    page: u64,
    /// The blob of the requested version, if the version is stored in full. Otherwise the blob of the delta's base.
    full: Blob,
    delta: Option<Blob>,
}

impl Request {
    /// The numbers of the files that this request needs.
    fn files(&self) -> impl Iterator<Item = u32> + use<> {
        [Some(self.full.file), self.delta.map(|delta| delta.file)].into_iter().flatten()
    }
}

/// Splits the requests into groups of consecutive requests. The requests of a group together need at most
/// `most_files` files. `most_files` is at least two.
fn groups(mut requests: &[Request], most_files: usize) -> impl Iterator<Item = &[Request]> {
    std::iter::from_fn(move || {
        let mut files = BTreeSet::new();
        let fits = |request: &&Request| {
            files.extend(request.files());
            files.len() <= most_files
        };
        let (group, rest) = requests.split_at(requests.iter().take_while(fits).count());
        requests = rest;
        (!group.is_empty()).then_some(group)
    })
}

type Files = BTreeMap<u32, OpenFile>;

/// Decoded pages that the second thread passes to the first.
struct Pages {
    numbers: Vec<u64>,
    contents: Vec<Page>,
}

impl Store {
    /// Reads the contents of many versions. `wanted` has pages' numbers and their versions. Calls `sink` with the
    /// number and the contents of each page, in any order.
    ///
    /// # Errors
    ///
    /// As [`Store::read`]. Pages that `sink` got before the error are right.
    pub fn read_many(&self, wanted: &[(u64, BlobId)], mut sink: impl FnMut(u64, &Page)) -> Result<()> {
        // While the index is locked, this process deletes no file in the index.
        let index = self.read_index();
        let mut requests = self.requests(&index, wanted)?;
        requests.sort_unstable_by_key(|request| (request.full, request.delta));
        for group in groups(&requests, files_at_once()) {
            let mut files = Files::new();
            for file in group.iter().flat_map(Request::files) {
                if let Entry::Vacant(place) = files.entry(file) {
                    place.insert(index.open(&self.dir, file)?);
                }
            }
            self.read_group(group, &files, &mut sink)?;
        }
        Ok(())
    }

    fn read_group(
        &self,
        requests: &[Request],
        files: &Files,
        mut sink: &mut dyn FnMut(u64, &Page),
    ) -> Result<()> {
        let batches: Vec<&[Request]> = requests.chunks(BATCH).collect();
        let next = AtomicUsize::new(0);
        let take = || batches.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        if requests.len() < MIN_FOR_THREAD {
            while let Some(batch) = take() {
                self.decode_batch(batch, files, &mut sink)?;
            }
            return Ok(());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "which thread unpacks a page decides nothing: the caller takes pages in any order"
        )]
        thread::scope(|scope| {
            let (send, receive) = sync_channel(2);
            let take = &take;
            let second = thread::Builder::new();
            let work = move || {
                sandbox::enter(ThreadKind::PageReader);
                self.decode_batches(take, files, send);
            };
            if let Err(error) = second.spawn_scoped(scope, work) {
                log::debug!("pages are unpacked by one thread: {error}");
            }
            let hand_out = |pages: &Pages, sink: &mut dyn FnMut(u64, &Page)| {
                pages.numbers.iter().zip(&pages.contents).for_each(|(page, contents)| sink(*page, contents));
            };
            while let Some(batch) = take() {
                self.decode_batch(batch, files, &mut sink)?;
                match receive.try_recv() {
                    Ok(pages) => hand_out(&pages?, &mut sink),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
                }
            }
            for pages in receive {
                hand_out(&pages?, &mut sink);
            }
            Ok(())
        })
    }

    /// Decodes batches on the second thread. Stops at an error, or when the first thread has stopped because of an
    /// error.
    fn decode_batches<'a>(
        &self,
        take: &impl Fn() -> Option<&'a [Request]>,
        files: &Files,
        send: SyncSender<Result<Pages>>,
    ) {
        while let Some(batch) = take() {
            let mut pages =
                Pages { numbers: Vec::with_capacity(batch.len()), contents: Vec::with_capacity(batch.len()) };
            let decoded = self.decode_batch(batch, files, &mut |number, contents| {
                pages.numbers.push(number);
                pages.contents.push(*contents);
            });
            let failed = decoded.is_err();
            if send.send(decoded.map(|()| pages)).is_err() || failed {
                return;
            }
        }
    }

    fn requests(&self, index: &Index, wanted: &[(u64, BlobId)]) -> Result<Vec<Request>> {
        let row = |id: u64| {
            let row = index.blobs.get(id).filter(|row| index.files.contains_key(&row.file));
            row.ok_or_else(|| StoreError::new(&self.dir, StoreErrorKind::Gone(id)))
        };
        let request = |&(page, BlobId(id)): &(u64, BlobId)| {
            let own = row(id)?;
            Ok(match own.base {
                None => Request { page, full: blob(id, own), delta: None },
                Some(base) => {
                    Request { page, full: blob(base.get(), row(base.get())?), delta: Some(blob(id, own)) }
                }
            })
        };
        wanted.iter().map(request).collect()
    }

    fn decode_batch(&self, batch: &[Request], files: &Files, sink: &mut dyn FnMut(u64, &Page)) -> Result<()> {
        let mut blobs: Vec<Blob> = batch.iter().map(|request| request.full).collect();
        blobs.extend(batch.iter().filter_map(|request| request.delta));
        let bytes = Bytes::read(blobs, files)?;
        self.with_codec(|codec| decode(batch, &bytes, files, codec, sink))
    }
}

fn blob(id: u64, row: &Row) -> Blob {
    Blob { file: row.file, offset: row.offset, len: row.len, id, digest: row.digest, crc: row.crc }
}

fn decode(
    batch: &[Request],
    bytes: &Bytes,
    files: &Files,
    codec: &mut Codec,
    sink: &mut dyn FnMut(u64, &Page),
) -> Result<()> {
    let (mut full, mut page) = (ZERO_PAGE, ZERO_PAGE);
    let mut unpack = |blob: &Blob, to: &mut Page| {
        unpack(codec, bytes.of(blob), blob.crc, to).map_err(|what| place(blob, files).damaged(what))
    };
    // The blob whose contents are in `full`. The deltas of neighbouring pages often have the same base.
    let mut unpacked = None;
    for request in batch {
        if unpacked != Some(request.full) {
            unpack(&request.full, &mut full)?;
            unpacked = Some(request.full);
        }
        let (version, contents) = match &request.delta {
            None => (&request.full, &full),
            Some(delta) => {
                unpack(delta, &mut page)?;
                xor(&mut page, &full);
                (delta, &page)
            }
        };
        check(contents, version.digest).map_err(|what| place(version, files).damaged(what))?;
        sink(request.page, contents);
    }
    Ok(())
}

fn place(blob: &Blob, files: &Files) -> Place {
    let open = &files[&blob.file];
    let (file, path, len) = (open.file.clone(), open.path.clone(), usize::from(blob.len));
    Place { id: blob.id, file, path, offset: blob.offset, len, digest: blob.digest, crc: blob.crc }
}

/// The bytes of a batch's blobs, including some gaps between them.
struct Bytes {
    bytes: Vec<u8>,
    /// For each extent: the file, the offset of its first byte, and its place in `bytes`.
    extents: Vec<(u32, u64, usize)>,
}

impl Bytes {
    fn read(mut blobs: Vec<Blob>, files: &Files) -> Result<Bytes> {
        blobs.sort_unstable();
        blobs.dedup();
        let mut all = Bytes { bytes: Vec::new(), extents: Vec::new() };
        let mut rest = &blobs[..];
        while let Some(first) = rest.first() {
            let mut end = first.offset;
            let together = rest.iter().take_while(|blob| {
                let near = blob.file == first.file && blob.offset <= end + MAX_GAP;
                end = end.max(blob.offset + u64::from(blob.len));
                near && end - first.offset <= MAX_EXTENT
            });
            let count = together.count();
            let (extent, behind) = rest.split_at(count);
            all.read_extent(extent, files)?;
            rest = behind;
        }
        Ok(all)
    }

    fn read_extent(&mut self, blobs: &[Blob], files: &Files) -> Result<()> {
        let (first, last) = (&blobs[0], &blobs[blobs.len() - 1]);
        let len = (last.offset - first.offset) as usize + usize::from(last.len);
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        self.extents.push((first.file, first.offset, at));
        let OpenFile { file, path, .. } = &files[&first.file];
        file.read_exact_at(&mut self.bytes[at..], first.offset).map_err(StoreError::io(path, "read pages"))
    }

    fn of(&self, blob: &Blob) -> &[u8] {
        let key = (blob.file, blob.offset);
        let extent = self.extents.partition_point(|(file, offset, _)| (*file, *offset) <= key) - 1;
        let (_, offset, at) = self.extents[extent];
        let from = at + (blob.offset - offset) as usize;
        &self.bytes[from..from + usize::from(blob.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_need_few_files_and_have_all_requests() {
        let blob = |file| Blob { file, offset: 0, len: 1, id: 1, digest: Digest::default(), crc: 0 };
        let requests: Vec<Request> = (0..1000)
            .map(|page| Request {
                page,
                full: blob(page as u32 / 3),
                delta: (page % 2 == 0).then(|| blob(10_000 - page as u32)),
            })
            .collect();
        let mut pages = Vec::new();
        for group in groups(&requests, 10) {
            let files: BTreeSet<u32> = group.iter().flat_map(Request::files).collect();
            assert!((9..=10).contains(&files.len()) || pages.len() + group.len() == 1000, "{files:?}");
            pages.extend(group.iter().map(|request| request.page));
        }
        assert_eq!(pages, (0..1000).collect::<Vec<_>>());
        assert_eq!(groups(&[], 2).count(), 0);
    }
}
