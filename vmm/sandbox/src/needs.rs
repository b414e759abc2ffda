//! The needs of a process after it is locked in.

use std::path::PathBuf;

/// The rights that a process still needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and folders to read, with everything below the folders.
    pub read: Vec<PathBuf>,
    /// Folders in which files and folders are read, written, created, renamed and removed.
    pub written: Vec<PathBuf>,
    /// Devices that are opened later for reading, writing and ioctls.
    pub devices: Vec<PathBuf>,
    /// Whether clients are accepted on a socket that is already bound.
    pub clients: bool,
    /// Whether a program that was started before is waited for.
    pub helper: bool,
    /// Whether copies of the process are made, waited for and asked to end.
    pub branches: bool,
    /// Whether the guest runs on KVM.
    pub kvm: bool,
    /// Whether the guest has devices of the host, by VFIO.
    pub vfio: bool,
}

impl Needs {
    /// Whether any file is opened by its name.
    pub(crate) fn names_files(&self) -> bool {
        !(self.read.is_empty() && self.written.is_empty() && self.devices.is_empty())
    }
}
