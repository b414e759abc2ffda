//! A new file for another tool. The file appears under its name only when it is complete, and never replaces an
//! existing file.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::Error;

/// A file that is being written. [`NewFile::finish`] gives the file its name. Otherwise the file is removed when this
/// value is dropped.
pub struct NewFile {
    to: PathBuf,
    file: NamedTempFile,
}

impl NewFile {
    /// Begins a file that only its owner may read. Fails if something exists at the path.
    pub fn begin(to: &Path) -> Result<NewFile, Error> {
        if to.symlink_metadata().is_ok() {
            let source =
                io::Error::new(io::ErrorKind::AlreadyExists, "it exists already; choose another name");
            return Err(Error::file("create", to)(source));
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.metadata().map_err(Error::file("create", to))?;
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".ttvm-").permissions(Permissions::from_mode(0o600));
        // The original error message would name the temporary file and not `to`.
        let unmade = |error: io::Error| Error::file("create", to)(error.kind().into());
        let file = builder.tempfile_in(folder).map_err(unmade)?;
        Ok(NewFile { to: to.to_path_buf(), file })
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<Metadata, Error> {
        let metadata = self.file.as_file().metadata().map_err(Error::file("look at", &self.to))?;
        self.file
            .persist_noclobber(&self.to)
            .map_err(|error| Error::file("create", &self.to)(error.error))?;
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_is_named_as_the_user_has_named_it() {
        let to = Path::new("/proc/no such folder/file");
        let told = NewFile::begin(to).err().expect("there is no such folder").to_string();
        assert!(told.contains("cannot create /proc/no such folder/file: No such file"), "{told}");
        let told = NewFile::begin(Path::new("/proc/file")).err().expect("/proc takes no files").to_string();
        assert!(told.contains("cannot create /proc/file: ") && !told.contains(".ttvm-"), "{told}");
    }
}
