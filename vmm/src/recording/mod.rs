//! Recordings: what is written down of a run, and giving it back.
//!
//! [`opened`] is a recording on disk; [`manifest`] says what it is of, [`log`] holds what came in, [`checkpoints`] the machine at
//! some points. Two inputs know the log: the [`recorder`] writes it, the [`player`] gives what is in it. The [`checkpointer`] decides when
//! checkpoints are taken, at a [`pace`]; the [`trail`] keeps two more for the end. [`pack`] makes one file of everything.

pub mod checkpointer;
pub mod checkpoints;
pub mod console_digest;
pub mod cursor;
pub mod files;
mod head_v1;
pub mod log;
pub mod manifest;
mod manifest_v4;
mod moment_v1;
pub mod opened;
pub mod pace;
pub mod pack;
pub mod player;
pub mod recorder;
pub mod trail;

pub use files::{CHECKPOINTS, EVENTS, MANIFEST};
pub use manifest::{FORMAT_VERSION, Manifest};
pub use opened::{Opened, Recording, Recounted};
