//! What can be done with a recording: replay it, compare it, go to any place, search it.
//!
//! Start with [`open`] and [`timeline`], which is time travel. [`replay`] runs a recording again and compares. [`recount`] counts
//! a recording of exits in instructions, which a timeline needs. To make a recording, see [`recording::Recordable`].
//!
//! `vmm/history/examples` has programs that record a guest, go to a place, run backwards and search. None of them needs KVM, a
//! terminal or gdb.

#![forbid(unsafe_code)]

mod open;
pub mod recount;
pub mod replay;
pub mod timeline;

/// What time travel speaks of, for programs that depend on this package alone.
pub use ::{machine, recording};
pub use open::{never, open, open_recording};
