//! The virtual machine monitor: the machine, what comes into it from outside, recordings of that, and travel
//! through them. The binary `ttvm` is a thin layer over this library.
//!
//! Where to start reading: [`machine`] is the whole machine and its run loop; [`inputs`] is the one door
//! through which anything from outside comes in; [`timeline`] is time travel.

pub mod acpi;
pub mod bisect;
pub mod board;
pub mod boot;
pub mod checkpointer;
pub mod checkpoints;
pub mod checks;
pub mod comparable;
pub mod compare_checkpoints;
pub mod config;
pub mod console_tail;
pub mod debug;
pub mod disk;
pub mod divergence;
pub mod engine;
pub mod error;
pub mod event_log;
pub mod host;
pub mod inputs;
pub mod kvm_engine;
pub mod log_diff;
pub mod machine;
pub mod pack;
pub mod player;
pub mod position;
pub mod ram_digest;
pub mod recorder;
pub mod recording;
pub mod registers;
pub mod replay;
pub mod symbols;
pub mod timeline;
mod trail;
pub mod translate;
pub mod translations;
pub mod verify;
pub mod written_pages;
