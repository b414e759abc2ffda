//! The first process of a guest that runs one command on files of the host, and the initial RAM disk around it.
//!
//! ```
//! use guest_init::Setup;
//!
//! let setup = Setup {
//!     arguments: vec!["uname".into(), "-r".into()],
//!     folder: "/".into(),
//!     status_at: 1 << 40,
//!     ..Setup::default()
//! };
//! let initrd = setup.initrd()?;
//! assert!(initrd.starts_with(b"070701"));
//! # Ok::<(), guest_init::Error>(())
//! ```
//!
//! The guest has a disk with an ext4 file system, `/dev/vda`. The first process (`program/`) loads the modules of the setup.
//! Then the process makes the disk the root, mounts `/proc` and its like, and runs the command on the console. At the end the process writes
//! the command's status to the block at [`Setup::status_at`], beyond the file system, and powers off. [`status`] reads this
//! block. A run that ended in another way has no status.
//!
//! `build.rs` compiles the first process. The first process is a static program without any library, so it runs on every kernel
//! and needs no file of the host.

#![forbid(unsafe_code)]

mod cpio;
mod setup;

pub use setup::{Error, Module, Setup, status};

/// The size in bytes of the block with the status.
pub const STATUS_BYTES: usize = 512;

/// The mark that the first process prints when the command begins, and when the command has ended. Other output comes from the
/// kernel. The mark is an operating system command of ISO 6429, which terminals ignore.
pub const MARK: &str = "\x1b]ttvm command\x07";

/// The first process: a static program for Linux on x86-64.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
