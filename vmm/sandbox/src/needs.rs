//! What a process asks for before it is locked in.

use std::path::PathBuf;

/// What a process goes on to need.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and folders that are read, folders with all below them.
    pub read: Vec<PathBuf>,
    /// Folders in which files and folders are read, written, made, renamed and removed.
    pub written: Vec<PathBuf>,
    /// Devices that are opened later, read, written and given ioctls.
    pub devices: Vec<PathBuf>,
    /// Clients are accepted on a socket that is bound already.
    pub clients: bool,
    /// A program that was started before is waited for.
    pub helper: bool,
    /// The guest runs on KVM.
    pub kvm: bool,
    /// The guest has devices of the host, by VFIO.
    pub vfio: bool,
}

impl Needs {
    /// Whether any file is reached by its name.
    pub(crate) fn names_files(&self) -> bool {
        !(self.read.is_empty() && self.written.is_empty() && self.devices.is_empty())
    }
}
