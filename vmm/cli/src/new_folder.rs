//! The folder of a recording that is about to begin.

use std::path::Path;

use machine::error::Error;
use recording::create_folder;

/// A folder that was made for a recording. It is removed with all that is in it unless the recording begins.
pub struct NewFolder<'a>(Option<&'a Path>);

impl NewFolder<'_> {
    /// Makes it. An existing one is never overwritten.
    pub fn make(path: &Path) -> Result<NewFolder<'_>, Error> {
        create_folder(path)?;
        Ok(NewFolder(Some(path)))
    }

    /// Leaves it there.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFolder<'_> {
    fn drop(&mut self) {
        // What made it superfluous is told, and more important.
        let _ = self.0.map(std::fs::remove_dir_all);
    }
}
