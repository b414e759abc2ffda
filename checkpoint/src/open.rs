//! Opens a store: finds a set of files that belong together, and checks all references between them.

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

/// Number of attempts. A writer merges files about once per checkpoint, so it does not change the folder during this
/// many attempts in a row.
const ATTEMPTS: usize = 100;

/// Reads all files of a folder to which another process may be writing.
///
/// A writer first puts the merged file in place and then deletes the other file. So files that all existed at one time
/// belong together. If a file vanishes between listing and opening, the next listing is newer.
pub(crate) fn load(dir: &Path, shape: Shape) -> Result<Index> {
    for _ in 1..ATTEMPTS {
        let before = folder::list(dir)?;
        let result = load_listed(dir, shape, &before);
        match result {
            Err(_) if folder::list(dir)? != before => continue,
            result => return result,
        }
    }
    load_listed(dir, shape, &folder::list(dir)?)
}

fn load_listed(dir: &Path, shape: Shape, listed: &[Listed]) -> Result<Index> {
    let mut index = Index::default();
    let mut lists = Vec::new();
    for seen in listed {
        let path = checkpoint_path(dir, seen.number);
        let file = Arc::new(plain_file::open(&path).map_err(StoreError::io(&path, "open"))?);
        let data = file.metadata().map_err(StoreError::io(&path, "look at"))?;
        let listed = Listed { number: seen.number, inode: data.ino(), len: data.len() };
        let directory = add_file(&mut index, shape, &path, listed, &file)?;
        add_blobs(&mut index, &path, listed.number, &directory)?;
        lists.push((listed.number, [directory.list, directory.back]));
    }
    check_bases(&mut index, dir)?;
    for (number, lists) in &lists {
        count_references(&mut index, &checkpoint_path(dir, *number), lists)?;
    }
    Ok(index)
}

pub(crate) fn add_file(
    index: &mut Index,
    shape: Shape,
    path: &Path,
    listed: Listed,
    file: &Arc<File>,
) -> Result<Directory> {
    let footer = Footer::read(file, path, listed.len)?;
    let wrong = |what: &str| StoreError::damaged(path, "footer", what);
    if footer.number != listed.number {
        return Err(wrong("it belongs to a file of another name"));
    }
    if footer.shape != shape {
        return Err(wrong("it belongs to another machine"));
    }
    if index.order.contains_key(&footer.position) {
        return Err(wrong("another file has the same position"));
    }
    let head = footer.read_head(file, path)?;
    let directory = footer.read_directory(file, path)?;
    index.insert(footer, &directory, head, listed, file);
    Ok(directory)
}

/// Enters a file's blobs in the table. A writer may be killed after putting a merged file in place and before deleting
/// the other. Some blobs are then in both files; they are equal, and the first one is used.
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
