//! Recordings: what is written down of a run, and reading it again.
//!
//! To make a recording, start with [`Recordable`]: a machine and its description; `vmm/history/examples` has whole programs.
//! To understand one, start with [`recorder`] and [`player`]: the two inputs that know the log, of which one writes it and the
//! other gives what is in it. [`opened`] is a recording on disk; [`manifest`] says which machine it is of,
//! [`mod@log`] holds what came in, [`checkpoints`] the machine at some points. The [`checkpointer`] decides
//! when checkpoints are taken, at a [`pace`]; the [`trail`] keeps two more for the end. [`pack`] makes one
//! file of everything. `vmm/recording/FORMAT.md` describes the files.
//!
//! Nothing here asks the host for input or time (that is [`host`]) or decides what to do with a
//! recording (that is [`history::replay`] and [`history::timeline`]).

#![forbid(unsafe_code)]

pub mod checkpointer;
pub mod checkpoints;
pub mod console_digest;
pub mod cursor;
pub mod files;
mod head_v1;
pub mod log;
pub mod manifest;
mod manifest_v5;
mod moment_v1;
pub mod new_recording;
pub mod opened;
pub mod pace;
pub mod pack;
pub mod player;
pub mod recordable;
pub mod recorder;
pub mod relink;
pub mod trail;

pub use files::{CHECKPOINTS, EVENTS, MANIFEST};
pub use manifest::{FORMAT_VERSION, Manifest};
pub use new_recording::NewRecording;
pub use opened::{Opened, Recording, Recounted, create_folder};
pub use recordable::Recordable;
