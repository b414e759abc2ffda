//! Replays a recording, compares it, goes to any place in it, and searches it.
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
//! Start with [`timeline`], which is time travel. [`replay`] runs a recording again and compares. [`recount`] counts a
//! recording of exits in instructions, which a timeline needs. `TRAVEL.md` has the design.

#![forbid(unsafe_code)]

pub mod recount;
pub mod replay;
pub mod timeline;
