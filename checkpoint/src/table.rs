//! The place of every stored version of a page: a sorted table with 48 bytes for each version.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// XXH3-128 of a page's contents, little endian.
pub type Digest = [u8; 16];

/// The store's data about one stored version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The digest of the page's contents.
    pub digest: Digest,
    /// Offset of the blob's bytes in the file.
    pub offset: u64,
    /// The id of the full version from which this delta differs; `None` for a full version.
    pub base: Option<NonZeroU64>,
    /// The number of the file that holds the version.
    pub file: u32,
    /// Number of page lists and deltas that refer to the version. A version without references stays in its file
    /// until a merge rewrites the file.
    pub refs: u32,
    /// CRC-32 of the blob's bytes in the file.
    pub crc: u32,
    /// Number of the blob's bytes in the file.
    pub len: u16,
    /// The low bits of the version's id; [`BlobTable`] sets these bits.
    pub low: u16,
}

const LOW_BITS: u32 = 12;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;

/// The rows, sorted by id. Ids are assigned in ascending order, so nearly all insertions append a row at the end.
#[derive(Default)]
pub(crate) struct BlobTable {
    chunks: BTreeMap<u64, Vec<Row>>,
}

impl BlobTable {
    pub fn get(&self, id: u64) -> Option<&Row> {
        let chunk = self.chunks.get(&(id >> LOW_BITS))?;
        find(chunk, id).ok().map(|at| &chunk[at])
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Row> {
        let chunk = self.chunks.get_mut(&(id >> LOW_BITS))?;
        find(chunk, id).ok().map(|at| &mut chunk[at])
    }

    /// Adds a row, or replaces the row with the same id.
    pub fn insert(&mut self, id: u64, mut row: Row) {
        row.low = (id & LOW_MASK) as u16;
        let chunk = self.chunks.entry(id >> LOW_BITS).or_default();
        match find(chunk, id) {
            Ok(at) => chunk[at] = row,
            Err(at) => chunk.insert(at, row),
        }
    }

    pub fn remove(&mut self, id: u64) {
        let Some(chunk) = self.chunks.get_mut(&(id >> LOW_BITS)) else { return };
        if let Ok(at) = find(chunk, id) {
            chunk.remove(at);
        }
        if chunk.is_empty() {
            self.chunks.remove(&(id >> LOW_BITS));
        }
    }

    /// Adds `change` to the references of a version.
    ///
    /// # Panics
    ///
    /// If there is no such version, or if its number of references would become negative or too large. Callers add
    /// 1 when they make a reference, and subtract 1 when they drop it.
    pub fn refer(&mut self, id: u64, change: i64) {
        let row = self.get_mut(id).expect("a version that is referred to is in the table");
        let refs = i64::from(row.refs) + change;
        row.refs = u32::try_from(refs).expect("references are counted up before they are counted down");
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Row)> {
        self.chunks
            .iter()
            .flat_map(|(high, rows)| rows.iter().map(move |r| (high << LOW_BITS | u64::from(r.low), r)))
    }

    /// The largest id in the table; 0 if it is empty.
    pub fn last(&self) -> u64 {
        self.chunks.last_key_value().map_or(0, |(high, rows)| {
            high << LOW_BITS | u64::from(rows.last().expect("empty chunks are removed").low)
        })
    }
}

fn find(chunk: &[Row], id: u64) -> Result<usize, usize> {
    let low = (id & LOW_MASK) as u16;
    match chunk.last() {
        Some(last) if last.low < low => Err(chunk.len()),
        _ => chunk.binary_search_by_key(&low, |row| row.low),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(offset: u64) -> Row {
        Row { digest: [0; 16], offset, base: None, file: 1, refs: 0, crc: 0, len: 1, low: 0 }
    }

    #[test]
    fn rows_are_found_in_whatever_order_they_came() {
        let mut table = BlobTable::default();
        let ids = [1, 4096, 4095, 70_000, 3, 2, 1 << 40, 4097];
        for id in ids {
            table.insert(id, row(id * 10));
        }
        for id in ids {
            assert_eq!(table.get(id).map(|r| r.offset), Some(id * 10), "{id}");
        }
        assert_eq!(table.last(), 1 << 40);
        let mut ascending = ids;
        ascending.sort_unstable();
        assert!(table.iter().map(|(id, row)| (id, row.offset)).eq(ascending.map(|id| (id, id * 10))));
        table.remove(1 << 40);
        table.remove(5);
        assert!(table.get(1 << 40).is_none() && table.get(5).is_none());
        assert_eq!((table.last(), table.iter().count()), (70_000, ids.len() - 1));
    }

    #[test]
    fn a_row_is_48_bytes() {
        assert_eq!(size_of::<Row>(), 48);
    }
}
