//! The needs of a process after it is locked in.

use std::path::PathBuf;

/// The rights that a process still needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and folders to read, with everything below the folders.
    pub read: Vec<PathBuf>,
    /// Folders whose files are looked up one below the other, as a server of these files does: with links and their status.
    pub folders: Vec<PathBuf>,
    /// Folders in which files and folders are read, written, created, renamed and removed.
    pub written: Vec<PathBuf>,
    /// Devices that are opened later for reading, writing and ioctls.
    pub devices: Vec<PathBuf>,
    /// Whether the process accepts clients on a socket that is already bound.
    pub clients: bool,
    /// Whether the process waits for a program that it started before the lock-in.
    pub helper: bool,
    /// Whether the process makes copies of itself (branches), waits for them and asks them to end.
    pub branches: bool,
    /// Whether the guest runs on KVM.
    pub kvm: bool,
    /// Whether the guest uses devices of the host through VFIO.
    pub vfio: bool,
}

impl Needs {
    /// Whether the process opens any file by its name.
    pub(crate) fn names_files(&self) -> bool {
        let lists = [&self.read, &self.folders, &self.written, &self.devices];
        lists.iter().any(|list| !list.is_empty())
    }
}
