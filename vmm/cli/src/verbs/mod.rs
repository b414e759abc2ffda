//! The verbs of the command line. Each file has a verb's arguments, and `run`, which executes it.

pub mod checkpoints;
pub mod completions;
pub mod control;
pub mod debug;
pub mod doctor;
pub mod drgn;
pub mod dump;
pub mod export_pcap;
pub mod info;
pub mod log;
pub mod ls;
pub mod man;
pub mod pack;
pub mod record;
pub mod relink;
pub mod replay;
pub mod reports;
pub mod rm;
pub mod run;
pub mod search;
pub mod state;
pub mod symbols;
pub mod trace;
pub mod unpack;
pub mod verify;
pub mod who_set;
