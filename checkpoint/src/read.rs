//! Reads stored versions one at a time through a small cache. Also finds the places of versions in the files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::{Codec, digest, xor};
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::index::Index;
use crate::map::BlobId;
use crate::map::ZERO_PAGE;
use crate::page::{PAGE_BYTES, Page};
use crate::store::{Store, lock};
use crate::table::{Digest, Row};

/// Where a blob is stored: its file, its offset and length there, and the digest and CRC-32 to check it.
pub(crate) struct Place {
    pub id: u64,
    pub file: Arc<File>,
    pub path: PathBuf,
    pub offset: u64,
    pub len: usize,
    pub digest: Digest,
    pub crc: u32,
}

impl Place {
    pub fn damaged(&self, what: &str) -> StoreError {
        let Place { id, offset, .. } = self;
        StoreError::damaged(&self.path, format!("version {id} at byte {offset}"), what)
    }

    /// Reads and unpacks the blob, which is a page or a delta.
    pub fn load(&self, codec: &mut Codec, to: &mut Page) -> Result<()> {
        let mut bytes = [0; PAGE_BYTES];
        let bytes = &mut bytes[..self.len];
        self.file.read_exact_at(bytes, self.offset).map_err(StoreError::io(&self.path, "read a page"))?;
        unpack(codec, bytes, self.crc, to).map_err(|what| self.damaged(what))
    }

    pub fn check(&self, page: &Page) -> Result<()> {
        check(page, self.digest).map_err(|what| self.damaged(what))
    }
}

/// Unpacks a blob's `bytes` into a page or a delta, after checking their CRC-32. An error says what is wrong.
pub(crate) fn unpack(
    codec: &mut Codec,
    bytes: &[u8],
    crc: u32,
    to: &mut Page,
) -> std::result::Result<(), &'static str> {
    if crc32fast::hash(bytes) != crc {
        return Err("its CRC-32 is wrong");
    }
    if codec.unpack(bytes, to) { Ok(()) } else { Err("it cannot be unpacked") }
}

/// Compares a page with the stored digest. An error says what is wrong.
pub(crate) fn check(page: &Page, expected: Digest) -> std::result::Result<(), &'static str> {
    if digest(page) == expected { Ok(()) } else { Err("its digest is wrong") }
}

impl Store {
    /// Reads the contents of a stored version.
    ///
    /// # Errors
    ///
    /// If the store does not hold the version (any more), or if the version is damaged. The returned contents have
    /// the version's stored digest.
    pub fn read(&self, id: BlobId, to: &mut Page) -> Result<()> {
        let (place, base) = self.places(id.0)?;
        let Some(base) = base else {
            *to = *self.full_page(&place)?;
            return Ok(());
        };
        let base = self.full_page(&base)?;
        self.with_codec(|codec| place.load(codec, to))?;
        xor(to, &base);
        place.check(to)
    }

    /// The digest of a stored version's contents, as it was computed when they were written. `None` if the store
    /// does not hold the version (any more).
    pub fn digest_of(&self, id: BlobId) -> Option<Digest> {
        self.read_index().blobs.get(id.0).map(|row| row.digest)
    }

    /// The place of a version, and the place of its base. A full version has no base, so the second place is
    /// `None`.
    fn places(&self, id: u64) -> Result<(Place, Option<Place>)> {
        let index = self.read_index();
        let row = self.row(&index, id)?;
        let place = self.place(&index, id, row)?;
        let base = match row.base {
            Some(base) => Some(self.place(&index, base.get(), self.row(&index, base.get())?)?),
            None => None,
        };
        Ok((place, base))
    }

    fn row<'a>(&self, index: &'a Index, id: u64) -> Result<&'a Row> {
        // A version of an unfinished draft is in the table, but its file is not in the index yet.
        let row = index.blobs.get(id).filter(|row| index.files.contains_key(&row.file));
        row.ok_or_else(|| StoreError::new(&self.dir, StoreErrorKind::Gone(id)))
    }

    fn place(&self, index: &Index, id: u64, row: &Row) -> Result<Place> {
        let open = index.open(&self.dir, row.file)?;
        let (offset, len) = (row.offset, usize::from(row.len));
        Ok(Place { id, file: open.file, path: open.path, offset, len, digest: row.digest, crc: row.crc })
    }

    /// The contents of the full version `id`, through the cache.
    pub(crate) fn full_page_of(&self, id: u64) -> Result<Arc<Page>> {
        if let Some(page) = lock(&self.pages).get(id) {
            return Ok(page);
        }
        let place = {
            let index = self.read_index();
            self.place(&index, id, self.row(&index, id)?)?
        };
        self.full_page(&place)
    }

    fn full_page(&self, place: &Place) -> Result<Arc<Page>> {
        if let Some(page) = lock(&self.pages).get(place.id) {
            return Ok(page);
        }
        let mut page = ZERO_PAGE;
        self.with_codec(|codec| place.load(codec, &mut page))?;
        place.check(&page)?;
        let page = Arc::new(page);
        lock(&self.pages).put(place.id, &page);
        Ok(page)
    }
}
