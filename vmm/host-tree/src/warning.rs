//! Warnings about files that the guest does not see as they are.

use std::fmt;
use std::path::PathBuf;

/// A file or a folder that the guest does not see as the host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path on the host.
    pub path: PathBuf,
    /// The difference.
    pub kind: WarningKind,
}

/// The difference that a [`Warning`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarningKind {
    /// A folder cannot be listed, for this reason. The guest sees an empty folder.
    EmptyFolder(String),
    /// An entry of a folder cannot be looked at, for this reason. The guest does not see the entry.
    Missing(String),
    /// The user may not read the file. The guest sees an empty file.
    EmptyFile,
    /// A file cannot be read, for this reason. The guest gets errors.
    Unreadable(String),
    /// A file changed after its folder was listed. The guest gets errors for parts that it has not read.
    Changed,
    /// The disk has no room for the entry.
    NoRoom,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            WarningKind::EmptyFolder(why) => write!(f, "{path}: the guest sees an empty folder: {why}"),
            WarningKind::Missing(why) => write!(f, "{path}: the guest does not see this: {why}"),
            WarningKind::EmptyFile => write!(f, "{path}: the guest sees an empty file: you may not read it"),
            WarningKind::Unreadable(why) => write!(f, "{path}: the guest gets errors: {why}"),
            WarningKind::Changed => {
                write!(f, "{path}: the guest gets errors: the file changed during the run")
            }
            WarningKind::NoRoom => write!(f, "{path}: the guest's disk has no room for this"),
        }
    }
}
