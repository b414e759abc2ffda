//! The names of the files in a recording.

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The event log's file name.
pub const EVENTS: &str = "events.log";
/// The directory of the images that a recording carries.
pub const IMAGES: &str = "images";
/// The name of a starting state among them.
pub const START: &str = "start";
/// The name of the note of the disk image that was hashed last.
pub const DISK_SEEN: &str = "disk.seen";
/// The name of the note that the guest's kernel panicked.
pub const PANICKED: &str = "panicked";
/// The directory of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
