//! The program as a user runs it. One program of tests, because linking many takes longer than running them; those that open
//! terminals are apart, because whatever else starts a process at that moment would hand it the terminal.

#[path = "../common/mod.rs"]
mod common;

mod carried_images;
mod checkpoints_at_exits;
mod command_line;
mod cut_off;
mod damaged_commands;
mod debug_clients;
mod debug_private;
mod exports;
mod folders;
mod going_live;
mod hostile_inputs;
mod kept;
mod kernel_reports;
mod limits;
mod passthrough_refused;
mod private_files;
mod sandbox;
mod server;
mod shells;
mod strangers;
mod travel_verbs;
mod verbs;
