//! The virtual machine monitor: the machine, what comes into it from outside, recordings of that, and travel
//! through them. The binary `ttvm` is a thin layer over this library.
//!
//! Where to start reading: [`machine`] is the whole machine and its run loop; [`machine::inputs`] is the one door
//! through which anything from outside comes in; [`timeline`] is time travel. The folders use one another from the top
//! of this list downward, never upward.

#![forbid(unsafe_code)]

pub mod debug;
pub mod divergence;
pub mod engine;
pub mod error;
pub mod exits;
pub mod live;
pub mod machine;
pub mod position;
pub mod recording;
pub mod replay;
pub mod timeline;
