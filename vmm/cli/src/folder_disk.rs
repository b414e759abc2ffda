//! `--disk FOLDER`: the guest gets the folder's files as a disk with an ext4 file system.
//!
//! The disk's blocks are made when the guest first reads them, by the [file server](crate::file_server). Each block is kept in
//! the recording, or in a temporary file if the run is not recorded. So a block never changes during a run, whatever happens to
//! the folder.

use std::path::{Path, PathBuf};

use gathered_image::Image;
use machine::error::Error;
use recording::create_gathered_disk;

use crate::file_server::{FileServer, Served};
use crate::sandbox_arg::SandboxArgs;

/// The folder of a disk, and the paths that the guest does not see.
pub struct FolderDisk<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Paths that the user hides, besides the usual ones.
    pub hidden: &'a [PathBuf],
    /// Folders of the guest that are other folders of the host: the path in the guest, and the folder.
    pub grafts: &'a [(PathBuf, PathBuf)],
    /// Number of blocks behind the file system, which the guest may use for anything.
    pub more_blocks: u64,
    /// The time at which the file system seems to have been made, in seconds since 1970.
    pub created_seconds: i64,
}

impl FolderDisk<'_> {
    /// Starts the file server, and makes the image. If the run is recorded, the image is in the recording's folder
    /// `recording`. Returns the image, and its path for messages.
    pub fn gather(&self, recording: Option<&Path>, sandbox: SandboxArgs) -> Result<(Image, PathBuf), Error> {
        let root = self.folder.canonicalize().map_err(Error::file("open", self.folder))?;
        if root.to_str().is_none() {
            let source = std::io::Error::other("its name is not valid UTF-8; rename it");
            return Err(Error::file("use", &root)(source));
        }
        let mut hidden = self.hidden.to_vec();
        hidden
            .extend(std::env::home_dir().iter().flat_map(|home| host_tree::Options::hidden_by_default(home)));
        // The guest must not see the recording that is being made, because the recording grows while the guest reads it.
        hidden.extend(recording.map(Path::to_path_buf));
        let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
        let uuid = host::random_bytes()?;
        let created_seconds = u32::try_from(self.created_seconds).unwrap_or_default();
        let served =
            Served { root: root.clone(), hidden: &hidden, grafts: self.grafts, uuid, created_seconds };
        let server = FileServer::start(&served, sandbox)?;
        let blocks = server.blocks() + self.more_blocks;
        let (image, path) = match recording {
            Some(folder) => create_gathered_disk(folder, blocks, uuid)?,
            None => {
                let folder = std::env::temp_dir();
                let image = Image::create_unnamed(&folder, blocks, uuid);
                let image = image.map_err(|error| {
                    let why = format!("cannot make a temporary file for the guest's disk: {error}");
                    Error::file("use", &folder)(std::io::Error::other(why))
                })?;
                (image, root)
            }
        };
        Ok((image.gather_from(server), path))
    }
}
