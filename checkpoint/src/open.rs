//! Opens a store: finds a set of files that belong together, and checks all references between them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::folder::{self, Listed, checkpoint_path};
use crate::format::{Directory, Footer, Shape};
use crate::index::Index;
use crate::list::Lists;
use crate::table::Row;

/// Number of attempts to read the folder. The first two attempts read all files, and later attempts only files that no
/// earlier attempt has read. So it is unlikely that a writer changes the folder during this many attempts in a row.
const ATTEMPTS: usize = 100;

/// Reads all files of a folder to which another process may be writing.
///
/// A writer that removes a checkpoint first replaces the next file by the merged one, and then deletes the removed
/// file. So files that all existed at one time belong together. If a file vanishes between listing and opening, the
/// next attempt lists the folder again.
pub(crate) fn load(dir: &Path, shape: Shape) -> Result<Index> {
    let mut known = None;
    for _ in 1..ATTEMPTS {
        let before = folder::list(dir)?;
        let result = load_listed(dir, shape, &before, known.as_mut());
        match result {
            Err(_) if folder::list(dir)? != before => known.get_or_insert_default(),
            result => return result,
        };
    }
    load_listed(dir, shape, &folder::list(dir)?, known.as_mut())
}

/// Contents of the files that earlier attempts have read. The first attempt stores nothing in this map, because
/// nearly every first attempt succeeds.
type Known = BTreeMap<Listed, Contents>;

/// The parts of a file that are needed to open a store.
#[derive(Clone)]
pub(crate) struct Contents {
    footer: Footer,
    head: Vec<u8>,
    directory: Directory,
}

fn load_listed(dir: &Path, shape: Shape, listed: &[Listed], mut known: Option<&mut Known>) -> Result<Index> {
    let mut index = Index::default();
    let mut lists = Vec::new();
    for seen in listed {
        let path = checkpoint_path(dir, seen.number);
        let (file, listed) = open(&path, seen.number)?;
        let contents = match known.as_ref().and_then(|known| known.get(&listed)) {
            Some(contents) => contents.clone(),
            None => Contents::read(&path, shape, listed, &file)?,
        };
        if let Some(known) = &mut known {
            known.entry(listed).or_insert_with(|| contents.clone());
        }
        let directory = enter(&mut index, &path, listed, &file, contents)?;
        add_blobs(&mut index, &path, listed.number, &directory)?;
        lists.push((listed.number, [directory.list, directory.back]));
    }
    check_bases(&mut index, dir)?;
    for (number, lists) in &lists {
        count_references(&mut index, &checkpoint_path(dir, *number), lists)?;
    }
    Ok(index)
}

/// Opens a checkpoint's file. Returns the open file, and the entry that this file has in a listing.
pub(crate) fn open(path: &Path, number: u32) -> Result<(Arc<File>, Listed)> {
    let file = Arc::new(plain_file::open(path).map_err(StoreError::io(path, "open"))?);
    let data = file.metadata().map_err(StoreError::io(path, "look at"))?;
    Ok((file, Listed { number, inode: data.ino(), len: data.len() }))
}

impl Contents {
    /// Reads a file, and checks everything that does not need the other files.
    pub fn read(path: &Path, shape: Shape, listed: Listed, file: &File) -> Result<Contents> {
        let footer = Footer::read(file, path, listed.len)?;
        let wrong = |what: &str| StoreError::damaged(path, "footer", what);
        if footer.number != listed.number {
            return Err(wrong("it belongs to a file of another name"));
        }
        if footer.shape != shape {
            return Err(wrong("it belongs to another machine"));
        }
        let head = footer.read_head(file, path)?;
        let directory = footer.read_directory(file, path)?;
        Ok(Contents { footer, head, directory })
    }
}

/// Enters a file in the index, and returns the file's directory.
pub(crate) fn enter(
    index: &mut Index,
    path: &Path,
    listed: Listed,
    file: &Arc<File>,
    contents: Contents,
) -> Result<Directory> {
    let Contents { footer, head, directory } = contents;
    if index.order.contains_key(&footer.position) {
        return Err(StoreError::damaged(path, "footer", "another file has the same position"));
    }
    index.insert(footer, &directory, head, listed, file);
    Ok(directory)
}

/// Enters a file's blobs in the table. A writer may be killed after putting a merged file in place and before deleting
/// the removed file. Then both files have some blobs in common. Such blobs are equal, and the first copy is used.
pub(crate) fn add_blobs(index: &mut Index, path: &Path, number: u32, directory: &Directory) -> Result<()> {
    for (id, offset, blob) in directory.places() {
        if let Some(twin) = index.blobs.get(id) {
            if (twin.digest, twin.crc, twin.base) != (blob.digest, blob.crc, blob.base) {
                return Err(StoreError::damaged(
                    path,
                    format!("version {id}"),
                    "two files have different contents",
                ));
            }
            continue;
        }
        let row = Row {
            digest: blob.digest,
            offset,
            base: blob.base,
            file: number,
            refs: 0,
            crc: blob.crc,
            len: blob.len,
            low: 0,
        };
        index.blobs.insert(id, row);
    }
    Ok(())
}

/// Checks that bases of deltas are full versions, and counts these references.
fn check_bases(index: &mut Index, dir: &Path) -> Result<()> {
    let deltas: Vec<_> =
        index.blobs.iter().filter_map(|(id, row)| Some((id, row.base?.get(), row.file))).collect();
    for (id, base, file) in deltas {
        if index.blobs.get(base).is_none_or(|row| row.base.is_some()) {
            let path = checkpoint_path(dir, file);
            return Err(StoreError::damaged(&path, format!("version {id}"), "its base version is missing"));
        }
        index.blobs.refer(base, 1);
    }
    Ok(())
}

fn count_references(index: &mut Index, path: &Path, lists: &[Lists]) -> Result<()> {
    for id in lists.iter().flat_map(Lists::versions) {
        match index.blobs.get_mut(id) {
            Some(row) => row.refs = row.refs.saturating_add(1),
            None => return Err(StoreError::damaged(path, "directory", format!("no file has version {id}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn a_second_attempt_reads_only_new_files() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 2, 0).unwrap();
        let shape = Shape { ram_pages: 2, disk_blocks: 0 };
        for position in [0, 10, 20] {
            store.add(position, position).unwrap().finish(&[], &[]).unwrap();
        }
        let listed = folder::list(dir.path()).unwrap();
        let mut vanished = listed.clone();
        vanished.push(Listed { number: 99, inode: 1, len: 1 });
        let mut known = Known::default();
        assert!(load_listed(dir.path(), shape, &vanished, Some(&mut known)).is_err());
        for seen in &listed {
            let path = checkpoint_path(dir.path(), seen.number);
            std::fs::write(path, vec![0; seen.len as usize]).unwrap();
        }
        let index = load_listed(dir.path(), shape, &listed, Some(&mut known)).unwrap();
        assert_eq!(index.order.keys().copied().collect::<Vec<_>>(), [0, 10, 20]);
        assert!(load_listed(dir.path(), shape, &listed, None).is_err(), "the first attempt reads all");
    }
}
