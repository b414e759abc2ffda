//! Checks a whole store: every section, every blob, every reference.

use crate::codec::xor;
use crate::error::{Result, StoreError};
use crate::index::OpenFile;
use crate::map::ZERO_PAGE;
use crate::read::Place;
use crate::store::Store;

/// Number of blobs between two reports of progress.
const REPORT_BLOBS: usize = 1024;

impl Store {
    /// Reads the whole store: unpacks every blob, compares every digest and checksum, and checks the maps of every
    /// checkpoint. Opening the store has already checked the references. `progress` gets the number of bytes read so
    /// far, and the total number of bytes.
    ///
    /// # Errors
    ///
    /// The first error, with its file and place.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let files: Vec<(u32, u64)> = {
            let index = self.read_index();
            let file = |number: &u32| (*number, index.files[number].footer.file_len().unwrap_or(0));
            index.order.values().map(file).collect()
        };
        let total = files.iter().map(|(_, len)| len).sum();
        let mut done = 0;
        for (number, len) in files {
            let open = self.read_index().open(&self.dir, number)?;
            self.verify_file(&open, |bytes| progress(done + bytes, total))?;
            self.maps_at(open.footer.position)?;
            done += len;
            progress(done, total);
        }
        Ok(())
    }

    fn verify_file(&self, open: &OpenFile, mut progress: impl FnMut(u64)) -> Result<()> {
        let OpenFile { file, path, footer } = open;
        footer.read_head(file, path)?;
        footer.read_state(file, path)?;
        let directory = open.directory()?;
        for (count, (id, offset, blob)) in directory.places().enumerate() {
            let (file, path, len) = (file.clone(), path.clone(), usize::from(blob.len));
            let place = Place { id, file, path, offset, len, digest: blob.digest, crc: blob.crc };
            let mut page = ZERO_PAGE;
            self.with_codec(|codec| place.load(codec, &mut page))?;
            if let Some(base) = blob.base {
                let base = self.full_page_of(base.get()).map_err(|error| self.base_error(&place, error))?;
                xor(&mut page, &base);
            }
            place.check(&page)?;
            if count % REPORT_BLOBS == 0 {
                progress(offset);
            }
        }
        Ok(())
    }

    /// A base may be missing because a writer is thinning the store out. A missing base is no damage, but the
    /// version cannot be checked.
    fn base_error(&self, place: &Place, error: StoreError) -> StoreError {
        log::debug!("version {} of {} needs another: {error}", place.id, place.path.display());
        error
    }
}
