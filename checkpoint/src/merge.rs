//! Removes a checkpoint. If other checkpoints refer to blobs in its file, these blobs are moved into a neighbour's
//! file.
//!
//! The writer first replaces the neighbour's file under its old name, and then deletes the removed file. If the writer
//! is killed between these two actions, or cannot delete the file, the checkpoint still exists. Some blobs are then in
//! both files. All copied data is checked, so damage never spreads to another file.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::folder::{self, Part, checkpoint_path};
use crate::format::{BlobEntry, Directory, Footer, MAGIC, Section, pack_section};
use crate::index::Entry;
use crate::index::{Index, OpenFile};
use crate::list::Lists;
use crate::page::PAGE_BYTES;
use crate::store::{Store, Writer};
use crate::table::Row;

/// Number of neighbouring blobs to copy at a time: at most 1 MiB.
const COPY_BLOBS: usize = (1 << 20) / PAGE_BYTES;

/// The plan for removing a checkpoint.
struct Plan {
    /// The position of the checkpoint to be removed, and the number of its file.
    position: u64,
    number: u32,
    /// The neighbour's new file. `None` if no other checkpoint refers to a blob of the removed file.
    carrier: Option<Carrier>,
    /// Changes of the versions' reference counts if the removed file is deleted.
    refs: BTreeMap<u64, i64>,
    /// Changes of the versions' reference counts if the removed file cannot be deleted and stays.
    refs_beside: BTreeMap<u64, i64>,
    /// Versions that disappear with the removed file.
    lost: Vec<u64>,
    /// Versions in the neighbour's present file that its new file omits.
    lost_beside: Vec<u64>,
}

/// The neighbour's new file, which takes over blobs of the removed file. `old` is the neighbour's present file.
struct Carrier {
    old: OpenFile,
    directory: Directory,
    packed_directory: Vec<u8>,
    section: Section,
    /// Id and present place of each blob of the new file.
    blobs: Vec<(u64, Row)>,
}

impl Carrier {
    fn footer(&self) -> Footer {
        let blobs_len = self.blobs.iter().map(|(_, row)| u64::from(row.len)).sum();
        Footer { blobs_len, directory: self.section, ..self.old.footer }
    }

    fn file_len(&self) -> u64 {
        self.footer().file_len().expect("it is no larger than two files together")
    }
}

impl Store {
    /// Removes the checkpoint at `position`. Other checkpoints keep their contents and the ids of their page
    /// versions. Versions that no other checkpoint has disappear.
    ///
    /// # Errors
    ///
    /// If there is no such checkpoint, if another process writes to the store, or if a file cannot be read, written
    /// or deleted. Damaged data that would be copied is an error, too. After an error no checkpoint has changed, in
    /// this `Store` or in a `Store` that is opened later.
    pub fn remove(&self, position: u64) -> Result<Entry> {
        let mut writer = self.writer()?;
        let removed = self.remove_within(&mut writer, position, u64::MAX)?;
        Ok(removed.expect("no file is larger than all numbers"))
    }

    /// Removes a checkpoint. Returns `None`, and removes nothing, if the removal needs a temporary file of more than
    /// `limit` bytes.
    pub(crate) fn remove_within(
        &self,
        writer: &mut Writer,
        position: u64,
        limit: u64,
    ) -> Result<Option<Entry>> {
        let plan = self.plan(position)?;
        let part = match &plan.carrier {
            Some(carrier) if carrier.file_len() > limit => return Ok(None),
            Some(carrier) => {
                writer.merges.note(carrier.file_len());
                Some(self.write_carrier(carrier)?)
            }
            None => None,
        };
        let entry = self.carry_out(plan, part)?;
        Ok(Some(entry))
    }

    fn plan(&self, position: u64) -> Result<Plan> {
        let (removed, previous, next) = self.around(position)?;
        let number = removed.footer.number;
        let gone = removed.directory()?;
        let (mut refs, mut refs_beside) = (BTreeMap::new(), BTreeMap::new());
        count(&mut refs, &[&gone.list, &gone.back], -1);
        // The next checkpoint's file takes over the list and the blobs. If there is no next checkpoint, the
        // previous checkpoint's file takes over the blobs.
        let heir = match (&next, &previous) {
            (Some(next), previous) => {
                let mut directory = next.directory()?;
                [&mut refs, &mut refs_beside]
                    .into_iter()
                    .for_each(|refs| count(refs, &[&directory.list], -1));
                let before = previous.as_ref().map(|previous| previous.footer.position);
                directory.list = self.joined(&gone, &directory.list, before, next.footer.position)?;
                [&mut refs, &mut refs_beside].into_iter().for_each(|refs| count(refs, &[&directory.list], 1));
                directory.dirtied_bytes = directory.dirtied_bytes.saturating_add(gone.dirtied_bytes);
                Some((next.clone(), directory))
            }
            (None, Some(previous)) => Some((previous.clone(), previous.directory()?)),
            (None, None) => None,
        };
        let index = self.read_index();
        let own = heir.as_ref().map_or(Vec::new(), |(file, own)| held_by(&index, file.footer.number, own));
        let gone_blobs = held_by(&index, number, &gone);
        // The neighbour's new file keeps all of the neighbour's blobs to which the removed checkpoint refers. The
        // removed checkpoint still exists until its file is deleted.
        for base in bases_of_lost(&own, &refs_beside) {
            [&mut refs, &mut refs_beside].into_iter().for_each(|refs| *refs.entry(base).or_default() -= 1);
        }
        for base in bases_of_lost(&gone_blobs, &refs) {
            *refs.entry(base).or_default() -= 1;
        }
        let (mut own, lost_beside) = sort_out(own, &refs_beside);
        let (mut blobs, lost) = sort_out(gone_blobs, &refs);
        let heir = heir.filter(|_| next.is_some() || !blobs.is_empty());
        blobs.append(&mut own);
        blobs.sort_unstable_by_key(|(id, _)| *id);
        let carrier = heir.map(|heir| carrier(heir, blobs));
        Ok(Plan { position, number, carrier, refs, refs_beside, lost, lost_beside })
    }

    /// The files of a checkpoint, of the previous checkpoint, and of the next checkpoint. `None` stands for a
    /// checkpoint that does not exist.
    fn around(&self, position: u64) -> Result<(OpenFile, Option<OpenFile>, Option<OpenFile>)> {
        let index = self.read_index();
        let open = |number: &u32| index.open(&self.dir, *number);
        let removed = index.order.get(&position).ok_or_else(|| self.missing(position))?;
        let previous = index.order.range(..position).next_back().map(|(_, number)| open(number));
        let mut behind = index.order.range(position..).skip(1);
        let next = behind.next().map(|(_, number)| open(number));
        Ok((open(removed)?, previous.transpose()?, next.transpose()?))
    }

    /// The list that the file at `position` gets when the checkpoint `gone`, directly before it, is removed.
    fn joined(&self, gone: &Directory, next: &Lists, before: Option<u64>, position: u64) -> Result<Lists> {
        if gone.back.is_empty() {
            return Ok(Lists::overlay(&[&gone.list, next]));
        }
        let before = match before {
            Some(before) => self.maps_behind(before)?,
            None => crate::map::Maps::new(self.shape.ram_pages, self.shape.disk_blocks),
        };
        Ok(Lists::changes(&self.maps_at(position)?, &before))
    }

    fn write_carrier(&self, carrier: &Carrier) -> Result<Part> {
        let footer = carrier.footer();
        let mut part = Part::create(checkpoint_path(&self.dir, footer.number))?;
        part.write(&MAGIC)?;
        self.copy_blobs(&carrier.blobs, &mut part)?;
        let OpenFile { file, path, footer: old } = &carrier.old;
        part.write(&old.read_head(file, path)?)?;
        part.write(&old.read_packed_state(file, path)?)?;
        part.write(&carrier.packed_directory)?;
        part.write(&footer.to_bytes())?;
        part.sync()?;
        assert_eq!(part.len(), carrier.file_len(), "the file is as long as its footer says");
        Ok(part)
    }

    fn copy_blobs(&self, blobs: &[(u64, Row)], part: &mut Part) -> Result<()> {
        let follows = |a: &(u64, Row), b: &(u64, Row)| {
            a.1.file == b.1.file && a.1.offset + u64::from(a.1.len) == b.1.offset
        };
        let mut bytes = Vec::new();
        for extent in blobs.chunk_by(follows).flat_map(|extent| extent.chunks(COPY_BLOBS)) {
            let first = &extent[0].1;
            let open = self.read_index().open(&self.dir, first.file)?;
            bytes.resize(extent.iter().map(|(_, row)| usize::from(row.len)).sum(), 0);
            open.file
                .read_exact_at(&mut bytes, first.offset)
                .map_err(StoreError::io(&open.path, "read a page"))?;
            for (id, row) in extent {
                let at = (row.offset - first.offset) as usize;
                if crc32fast::hash(&bytes[at..at + usize::from(row.len)]) != row.crc {
                    let place = format!("version {id} at byte {}", row.offset);
                    return Err(StoreError::damaged(&open.path, place, "its CRC-32 is wrong"));
                }
            }
            part.write(&bytes)?;
        }
        Ok(())
    }

    fn carry_out(&self, plan: Plan, part: Option<Part>) -> Result<Entry> {
        let mut index = self.write_index();
        if let (Some(mut part), Some(carrier)) = (part, plan.carrier) {
            let (listed, file) = part.listed(carrier.old.footer.number)?;
            part.rename()?;
            take_over(&mut index, &carrier, listed, &file);
        }
        if let Err(error) = folder::remove(&checkpoint_path(&self.dir, plan.number)) {
            // The removed checkpoint's file could not be deleted, so it stays. The blobs that other checkpoints
            // need are now in two files. The other blobs are still only in this file.
            plan.refs_beside.into_iter().for_each(|(id, change)| index.blobs.refer(id, change));
            plan.lost_beside.iter().for_each(|id| index.blobs.remove(*id));
            return Err(error);
        }
        for (id, change) in plan.refs {
            index.blobs.refer(id, change);
        }
        plan.lost.iter().chain(&plan.lost_beside).for_each(|id| index.blobs.remove(*id));
        let entry = index.files[&plan.number].entry.clone();
        index.remove(plan.number);
        drop(index);
        self.forget(plan.position);
        Ok(entry)
    }
}

/// Updates the index after the neighbour's file was replaced.
fn take_over(index: &mut Index, carrier: &Carrier, listed: folder::Listed, file: &Arc<std::fs::File>) {
    let footer = carrier.footer();
    let head = index.files[&footer.number].entry.head.clone();
    index.insert(footer, &carrier.directory, head, listed, file);
    for (id, offset, _) in carrier.directory.places() {
        let row = index.blobs.get_mut(id).expect("blobs that move are in the table");
        (row.file, row.offset) = (footer.number, offset);
    }
}

/// Adds `change` to the reference count of every version in the lists.
fn count(refs: &mut BTreeMap<u64, i64>, lists: &[&Lists], change: i64) {
    for id in lists.iter().flat_map(|lists| lists.versions()) {
        *refs.entry(id).or_default() += change;
    }
}

/// The blobs that the store reads from this file. A blob that is in two files is read from only one of the two.
fn held_by(index: &Index, number: u32, directory: &Directory) -> Vec<(u64, Row)> {
    let rows = directory.places().filter_map(|(id, _, _)| Some((id, *index.blobs.get(id)?)));
    rows.filter(|(_, row)| row.file == number).collect()
}

/// The bases of the deltas that are lost. A returned base may be lost, too.
fn bases_of_lost(blobs: &[(u64, Row)], refs: &BTreeMap<u64, i64>) -> Vec<u64> {
    let lost = blobs.iter().filter(|(id, row)| is_lost(*id, row, refs));
    lost.filter_map(|(_, row)| row.base).map(NonZeroU64::get).collect()
}

/// Splits the blobs. Returns the blobs to which a list or a delta refers, and the ids of the other blobs.
fn sort_out(blobs: Vec<(u64, Row)>, refs: &BTreeMap<u64, i64>) -> (Vec<(u64, Row)>, Vec<u64>) {
    let (lost, kept): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|(id, row)| is_lost(*id, row, refs));
    (kept, lost.into_iter().map(|(id, _)| id).collect())
}

fn is_lost(id: u64, row: &Row, refs: &BTreeMap<u64, i64>) -> bool {
    i64::from(row.refs) + refs.get(&id).copied().unwrap_or(0) == 0
}

fn carrier((old, mut directory): (OpenFile, Directory), blobs: Vec<(u64, Row)>) -> Carrier {
    let mut last = 0;
    directory.blobs.clear();
    for (id, row) in &blobs {
        let step = NonZeroU64::new(id - last).expect("ids ascend from 1");
        directory.blobs.push(BlobEntry {
            step,
            base: row.base,
            len: row.len,
            digest: row.digest,
            crc: row.crc,
        });
        last = *id;
    }
    let raw = postcard::to_stdvec(&directory).expect("a directory has nothing that cannot be encoded");
    let (packed_directory, section) = pack_section(&raw);
    Carrier { old, directory, packed_directory, section, blobs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Space;

    #[test]
    fn a_merge_takes_no_larger_file_than_it_may() {
        let example = || {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::create(dir.path(), 4, 0).unwrap();
            for position in [10, 20] {
                let mut draft = store.add(position, 0).unwrap();
                draft.page(Space::Ram, position % 4, &[position as u8; PAGE_BYTES]).unwrap();
                draft.page(Space::Ram, 1, &[position as u8 + 1; PAGE_BYTES]).unwrap();
                draft.finish(&[], &[]).unwrap();
            }
            (dir, store)
        };
        let (_dir, store) = example();
        store.remove(10).unwrap();
        let merged = store.entries()[0].bytes;
        let (_dir, store) = example();
        let before = store.entries();
        let within = |limit| store.remove_within(&mut store.writer().unwrap(), 10, limit).unwrap();
        assert_eq!((within(merged - 1), store.entries()), (None, before.clone()));
        assert_eq!(within(merged).as_ref(), Some(&before[0]));
        assert_eq!(store.entries()[0].bytes, merged);
    }
}
