//! What can be done with a recording: replay it, compare it, go to any place, search it.
//!
//! Start with [`timeline`], which is time travel. [`replay`] runs a recording again and compares. [`recount`] counts a
//! recording of exits in instructions, which a timeline needs.

#![forbid(unsafe_code)]

pub mod recount;
pub mod replay;
pub mod timeline;
