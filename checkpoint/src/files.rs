//! A store's files, for code that copies a whole store.

use std::fs::File;
use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::folder::{HEADER_BYTES, HEADER_NAME, MAX_NUMBER, checkpoint_name};
use crate::store::Store;

/// A file of a store, open for reading.
#[derive(Clone, Debug)]
pub struct StoreFile {
    /// The checkpoint's number; `None` for the store's header.
    pub number: Option<u32>,
    /// The file's name in the store's folder.
    pub name: String,
    /// The open file. The content stays the same, even if a writer replaces or deletes the file in the folder.
    pub file: Arc<File>,
    /// The file's size in bytes.
    pub bytes: u64,
}

impl Store {
    /// The header, and then the files of all checkpoints by number. A copy of the store needs exactly these files.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    pub fn files(&self) -> Result<Vec<StoreFile>> {
        let path = self.dir.join(HEADER_NAME);
        let header = plain_file::open(&path).map_err(StoreError::io(&path, "open the store's header"))?;
        let name = HEADER_NAME.to_string();
        let header = StoreFile { number: None, name, file: Arc::new(header), bytes: HEADER_BYTES as u64 };
        let index = self.read_index();
        let checkpoints = index.files.iter().map(|(&number, stored)| {
            let file = index.open(&self.dir, number)?.file;
            let name = checkpoint_name(number);
            Ok(StoreFile { number: Some(number), name, file, bytes: stored.entry.bytes })
        });
        [Ok(header)].into_iter().chain(checkpoints).collect()
    }
}

/// The name of a store's file: of the checkpoint with this number, or of the header. `None` if the number is not valid.
pub fn file_name(number: Option<u32>) -> Option<String> {
    match number {
        None => Some(HEADER_NAME.to_string()),
        Some(number) => (number <= MAX_NUMBER).then(|| checkpoint_name(number)),
    }
}
