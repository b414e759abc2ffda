//! Adds a checkpoint: chooses the form of each page that may have changed, and writes the file.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::MutexGuard;

use crate::check::{maps_check, maps_check_from};
use crate::codec::{Codec, Encoded, digest};
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::folder::{MAX_NUMBER, Part, checkpoint_path};
use crate::format::{
    BlobEntry, Directory, FOOTER_BYTES, Footer, MAGIC, MAX_HEAD_BYTES, pack_section, plain_section,
};
use crate::index::Entry;
use crate::list::{Lists, Runs, Slot};
use crate::map::ZERO_PAGE;
use crate::map::{BlobId, Maps, PageRef, Space};
use crate::page::{PAGE_BYTES, Page};
use crate::store::{Store, Writer};
use crate::table::{Digest, Row};
use crate::thin::Policy;

/// The number of bytes that a file may grow before the cap is checked again.
const ROOM_BYTES: u64 = 1 << 20;

/// A checkpoint that is being written. Dropping an unfinished draft adds no checkpoint to the store.
pub struct CheckpointDraft<'a> {
    store: &'a Store,
    writer: MutexGuard<'a, Writer>,
    policy: Option<Policy>,
    part: Part,
    number: u32,
    position: u64,
    time_ns: u64,
    /// The stored version of each page at the previous checkpoint.
    previous: Maps,
    /// The check of `previous`.
    previous_check: u64,
    /// The maps at this checkpoint, changed by all pages that the caller has handed in so far.
    maps: Maps,
    /// The maps to which this file's `list` applies: `previous`, changed by the `back` list of the previous checkpoint.
    incoming: Maps,
    /// The next checkpoint, if this one is not the last.
    next: Option<Next>,
    codec: Codec,
    blobs: Vec<BlobEntry>,
    /// The id of this file's first blob. The other blobs have the next ids, without gaps.
    first_blob: u64,
    /// Versions to which this file will refer. Each entry adds one to the version's reference count, so that the
    /// version is kept until the file's list is written.
    pins: Vec<u64>,
    dirtied_bytes: u64,
    /// Bytes that may be written before the cap must be checked again.
    room: u64,
    done: bool,
}

struct Next {
    maps: Maps,
    lists: Lists,
}

impl Store {
    /// Begins a checkpoint at `position`, before, between or after the other checkpoints.
    ///
    /// # Errors
    ///
    /// If another process writes to the store, if another checkpoint has this position, or if the file cannot be
    /// created.
    pub fn add(&self, position: u64, time_ns: u64) -> Result<CheckpointDraft<'_>> {
        self.draft(position, time_ns, None)
    }

    /// Begins a checkpoint. While its file grows, other checkpoints are thinned out, so that the policy's size
    /// limit always holds.
    pub(crate) fn draft(
        &self,
        position: u64,
        time_ns: u64,
        policy: Option<Policy>,
    ) -> Result<CheckpointDraft<'_>> {
        let mut writer = self.writer()?;
        let (previous, next) = self.neighbours(position)?;
        let empty = Maps::new(self.shape.ram_pages, self.shape.disk_blocks);
        let (previous, previous_check, incoming) = match previous {
            Some(previous) => {
                (self.maps_at(previous)?, self.check_at(previous)?, self.maps_behind(previous)?)
            }
            None => (empty.clone(), 0, empty),
        };
        let next = next.map(|next| self.next(next)).transpose()?;
        let number = writer.next_file;
        if number > MAX_NUMBER {
            return Err(StoreError::new(&self.dir, StoreErrorKind::Full(u64::from(MAX_NUMBER))));
        }
        let mut part = Part::create(checkpoint_path(&self.dir, number))?;
        part.write(&MAGIC)?;
        writer.next_file += 1;
        let codec = Codec::new().map_err(StoreError::io(&self.dir, "set up compression"))?;
        Ok(CheckpointDraft {
            store: self,
            first_blob: writer.next_blob,
            writer,
            policy,
            part,
            number,
            position,
            time_ns,
            maps: previous.clone(),
            previous,
            previous_check,
            incoming,
            next,
            codec,
            blobs: Vec::new(),
            pins: Vec::new(),
            dirtied_bytes: 0,
            room: 0,
            done: false,
        })
    }

    /// The positions of the previous and the next checkpoint; `None` if there is no such checkpoint.
    fn neighbours(&self, position: u64) -> Result<(Option<u64>, Option<u64>)> {
        let index = self.read_index();
        let previous = index.order.range(..position).next_back().map(|(at, _)| *at);
        match index.order.range(position..).next().map(|(at, _)| *at) {
            Some(at) if at == position => Err(StoreError::new(&self.dir, StoreErrorKind::Taken(at))),
            next => Ok((previous, next)),
        }
    }

    fn next(&self, position: u64) -> Result<Next> {
        let maps = self.maps_at(position)?;
        let open = {
            let index = self.read_index();
            index.open(&self.dir, index.order[&position])?
        };
        Ok(Next { maps, lists: open.directory()?.list })
    }
}

impl CheckpointDraft<'_> {
    /// The checkpoint's position in the run.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Sets the contents of a page at this checkpoint. Pages that did not change since the previous checkpoint may
    /// be omitted. Unchanged pages, zero pages, and pages equal to a recent page take no room for contents in the
    /// file. Returns the place of the contents. The contents can be read once the checkpoint is finished.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or if it does not fit under the cap. After an error the caller must drop the
    /// draft.
    ///
    /// # Panics
    ///
    /// If the machine has no page of this number.
    pub fn page(&mut self, space: Space, number: u64, contents: &Page) -> Result<PageRef> {
        assert!(number < self.maps.space(space).len(), "{space:?} has no page {number}");
        self.dirtied_bytes += PAGE_BYTES as u64;
        let version = match *contents == ZERO_PAGE {
            true => PageRef::Zero,
            false => PageRef::Stored(BlobId(self.version(space, number, contents)?)),
        };
        if !self.maps.space(space).get(number).same_as(&version) {
            self.maps.space_mut(space).set(number, version.clone());
        }
        Ok(version)
    }

    /// Sets a page to its contents at power-on.
    pub(crate) fn base_page(&mut self, space: Space, number: u64) {
        self.maps.space_mut(space).set(number, PageRef::Base);
    }

    /// The id of a version with these contents. Writes a new version only if no version with equal contents is known.
    fn version(&mut self, space: Space, number: u64, contents: &Page) -> Result<u64> {
        let digest = digest(contents);
        let before = self.previous.space(space).get(number).stored();
        let after = self.next.as_ref().and_then(|next| next.maps.space(space).get(number).stored());
        let base = {
            let index = self.store.read_index();
            let row = |id: u64| index.blobs.get(id).map(|row| (id, row));
            let known = [before, after, self.writer.recent.get(&digest)];
            let equal = known.into_iter().flatten().filter_map(row).find(|(_, row)| row.digest == digest);
            if let Some((id, _)) = equal {
                drop(index);
                self.pin(id);
                return Ok(id);
            }
            before.or(after).and_then(row).map(|(id, row)| row.base.map_or(id, NonZeroU64::get))
        };
        self.write_version(digest, contents, base)
    }

    /// Adds a reference to a version, so that the version is kept if other checkpoints are removed to make room.
    fn pin(&mut self, id: u64) {
        self.store.write_index().blobs.refer(id, 1);
        self.pins.push(id);
    }

    fn write_version(&mut self, digest: Digest, contents: &Page, base: Option<u64>) -> Result<u64> {
        self.make_room(PAGE_BYTES as u64)?;
        let base_page = match base.map(|base| self.store.full_page_of(base)).transpose() {
            // A damaged page must not become the base of a delta.
            Err(error) if error.is_damage() => None,
            page => page?,
        };
        let (kind, bytes) = self.codec.encode(contents, base_page.as_deref());
        let (offset, len, crc) = (self.part.len(), bytes.len() as u16, crc32fast::hash(bytes));
        self.part.write(bytes)?;
        let id = self.writer.next_blob;
        self.writer.next_blob += 1;
        self.writer.recent.put(&digest, id);
        let base = base.and_then(NonZeroU64::new).filter(|_| kind == Encoded::Delta);
        let row = Row { digest, offset, base, file: self.number, refs: 0, crc, len, low: 0 };
        let mut index = self.store.write_index();
        index.blobs.insert(id, row);
        if let Some(base) = base {
            index.blobs.refer(base.get(), 1);
        }
        // The step of the first blob is its id. The step of a later blob is its id minus the previous blob's id.
        let step = if self.blobs.is_empty() { id } else { 1 };
        let step = NonZeroU64::new(step).expect("ids begin with 1");
        self.blobs.push(BlobEntry { step, base, len, digest, crc });
        Ok(id)
    }

    /// Thins out other checkpoints until this file can grow by `bytes` without exceeding the cap.
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        let Some(policy) = self.policy else { return Ok(()) };
        if self.room < bytes {
            let free = self.store.thin_for(&mut self.writer, &policy, self.part.len() + bytes)?;
            let Some(free) = free else {
                let cap = policy.max_bytes.unwrap_or(u64::MAX);
                return Err(StoreError::new(&self.store.dir, StoreErrorKind::Full(cap)));
            };
            self.room = bytes + free.min(ROOM_BYTES);
        }
        self.room -= bytes;
        Ok(())
    }

    /// Writes the rest of the file, and adds the checkpoint to the store. `head` holds at most 4096 bytes, which
    /// [`Store::entries`] returns. `state` holds any number of bytes, which [`Store::state_at`] reads.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, if it does not fit under the cap, or if the head is too long. Then no
    /// checkpoint is added to the store.
    pub fn finish(mut self, head: &[u8], state: &[u8]) -> Result<Entry> {
        if head.len() > MAX_HEAD_BYTES {
            return Err(StoreError::new(&self.store.dir, StoreErrorKind::HeadTooLong(head.len())));
        }
        let directory = self.directory();
        let raw = postcard::to_stdvec(&directory).expect("a directory has nothing that cannot be encoded");
        let (directory_bytes, directory_section) = pack_section(&raw);
        let (state_bytes, state) = pack_section(state);
        let footer = Footer {
            number: self.number,
            position: self.position,
            time_ns: self.time_ns,
            shape: self.store.shape,
            blobs_len: self.part.len() - MAGIC.len() as u64,
            head: plain_section(head),
            state,
            directory: directory_section,
        };
        self.make_room(head.len() as u64 + state.len + directory_section.len + FOOTER_BYTES)?;
        for bytes in [head, &state_bytes, &directory_bytes, &footer.to_bytes()] {
            self.part.write(bytes)?;
        }
        self.part.sync()?;
        self.put(footer, &directory, head)
    }

    /// The directory of this checkpoint: the changes to its incoming maps (`list`), and the changes that are undone
    /// before the next checkpoint (`back`).
    fn directory(&mut self) -> Directory {
        let list = Lists::changes(&self.maps, &self.incoming);
        let back = |space: Space| {
            let Some(next) = &self.next else { return Runs::default() };
            let covered: BTreeSet<u64> = next.lists.space(space).pages().map(|(page, _)| page).collect();
            let pages =
                list.space(space).pages().map(|(page, _)| page).filter(|page| !covered.contains(page));
            let before = self.incoming.space(space);
            Runs::of(pages.map(|page| (page, Slot::of(before.get(page)))))
        };
        let back = Lists { ram: back(Space::Ram), disk: back(Space::Disk) };
        let (dirtied_bytes, blobs) = (self.dirtied_bytes, std::mem::take(&mut self.blobs));
        let index = self.store.read_index();
        let whole = || maps_check(&self.maps, &index.blobs);
        // If the previous checkpoint and its versions have been thinned out in the meantime, compute the check from
        // all pages.
        let check = maps_check_from(&self.previous, self.previous_check, &self.maps, &index.blobs);
        let maps_check = check.unwrap_or_else(whole);
        debug_assert_eq!(maps_check, whole());
        Directory { dirtied_bytes, maps_check, list, back, blobs }
    }

    /// Gives the file its final name, and adds the file to the index.
    fn put(mut self, footer: Footer, directory: &Directory, head: &[u8]) -> Result<Entry> {
        let (listed, file) = self.part.listed(self.number)?;
        let mut index = self.store.write_index();
        self.part.rename()?;
        index.insert(footer, directory, head.to_vec(), listed, &file);
        directory.list.versions().chain(directory.back.versions()).for_each(|id| index.blobs.refer(id, 1));
        std::mem::take(&mut self.pins).into_iter().for_each(|id| index.blobs.refer(id, -1));
        let entry = index.files[&self.number].entry.clone();
        drop(index);
        self.done = true;
        self.store.remember(self.position, self.number, self.maps.clone());
        self.store.trust(self.position, self.number);
        Ok(entry)
    }
}

impl Drop for CheckpointDraft<'_> {
    /// If the draft was not finished, removes the blobs of its file from the table of versions.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut index = self.store.write_index();
        std::mem::take(&mut self.pins).into_iter().for_each(|id| index.blobs.refer(id, -1));
        for id in self.first_blob..self.writer.next_blob {
            let base = index.blobs.get(id).and_then(|row| row.base);
            if let Some(base) = base {
                index.blobs.refer(base.get(), -1);
            }
            index.blobs.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::noise;

    #[test]
    fn numbers_of_files_end_where_their_names_do() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 1, 0).unwrap();
        store.writer().unwrap().next_file = MAX_NUMBER;
        assert_eq!(store.add(10, 0).unwrap().finish(&[], &[]).unwrap().number, MAX_NUMBER);
        let error = store.add(20, 0).err().unwrap();
        assert!(matches!(error.kind, StoreErrorKind::Full(_)), "{error}");
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().entries().len(), 1);
    }

    #[test]
    fn a_checkpoint_may_fill_its_cap_to_the_last_byte() {
        let (head, state) = ([7; 100], noise(3));
        let bytes = {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::create(dir.path(), 1, 0).unwrap();
            store.add(10, 0).unwrap().finish(&head, &state).unwrap();
            store.total_bytes()
        };
        for (max, fits) in [(bytes, true), (bytes - 1, false)] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::create(dir.path(), 1, 0).unwrap();
            let policy = Policy { max_bytes: Some(max), ..Policy::default() };
            let finished = store.draft(10, 0, Some(policy)).unwrap().finish(&head, &state);
            assert_eq!(finished.is_ok(), fits, "{max} of {bytes}");
        }
    }

    #[test]
    fn a_draft_that_makes_room_keeps_the_cap_and_what_it_refers_to() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 200, 0).unwrap();
        let fill = |position, contents: &dyn Fn(u64) -> Page| {
            let mut draft = store.add(position, 0).unwrap();
            (0..45).for_each(|n| drop(draft.page(Space::Ram, n, &contents(n)).unwrap()));
            draft.finish(&[], &[]).unwrap();
        };
        fill(10, &|n| noise(n + 1));
        fill(20, &|_| ZERO_PAGE);
        // The first checkpoint and the draft do not fit under the cap together.
        let max = 400 << 10;
        let policy = Policy { max_bytes: Some(max), ..Policy::default() };
        let mut draft = store.draft(30, 0, Some(policy)).unwrap();
        // One page has contents that only the first checkpoint has.
        draft.page(Space::Ram, 100, &noise(1)).unwrap();
        for n in 101..161 {
            draft.page(Space::Ram, n, &noise(n)).unwrap();
            let used = store.total_bytes() + draft.part.len();
            assert!(used <= max, "{used} at page {n}");
        }
        draft.finish(&[], &[]).unwrap();
        assert_eq!(store.entries()[0].position, 20, "the first one went");
        assert!(store.total_bytes() <= max);
        store.verify(|_, _| {}).unwrap();
        let maps = store.maps_at(30).unwrap();
        let PageRef::Stored(id) = maps.ram.get(100) else { panic!("it was stored") };
        let mut contents = ZERO_PAGE;
        store.read(*id, &mut contents).unwrap();
        assert!(contents == noise(1));
    }
}
