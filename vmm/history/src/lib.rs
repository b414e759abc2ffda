//! Replays a recording, verifies it, travels to any place in it, and searches it.
//!
//! ```
//! use history::replay::verify::verify;
//! use history::timeline::Timeline;
//! use machine::position::Instructions;
//!
//! let folder = tempfile::tempdir()?;
//! let (recording, _end) = tiny_guest::record(folder.path(), "r.ttvm", 1_000, Vec::new());
//!
//! let mut timeline = Timeline::open(&recording)?;
//! timeline.seek(Instructions(5_000), &mut || false)?;
//! timeline.step_backward(&mut || false)?;
//! assert_eq!(timeline.position(), Instructions(4_999));
//!
//! assert!(verify(&recording, None, |_what, _at| {})?.equal());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with [`open()`] and [`timeline`], which is time travel. [`replay`] runs a recording again and compares the run
//! with the log. A timeline needs positions in instructions. [`recount`] makes a log with such positions for a
//! recording that counts exits. [`cut`] makes a small recording of a recording's end. [`recording::Recordable`] makes
//! recordings. `TRAVEL.md` has the design.
//!
//! `vmm/history/examples` has programs that record a guest, go to a place, run backwards and search. These
//! examples need no KVM, no terminal and no gdb.

#![forbid(unsafe_code)]

pub mod cut;
mod open;
pub mod panicked;
pub mod recount;
pub mod replay;
pub mod timeline;
mod workers;

/// The packages whose types time travel uses, for programs that depend on no other package of ttvm.
pub use ::{machine, recording};
pub use open::{never, open, open_recording};
