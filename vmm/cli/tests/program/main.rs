//! Tests the program as a user runs it. These tests are one program, because linking many programs takes longer than
//! running the tests. Tests that open terminals are separate, because a process started at the same moment would
//! inherit the terminal.

#[path = "../common/mod.rs"]
mod common;

mod branches;
mod carried_images;
mod checkpoints_at_exits;
mod command_line;
mod cut_off;
mod damaged_commands;
mod debug_clients;
mod debug_private;
mod disk;
mod exports;
mod folders;
mod going_live;
mod hostile_inputs;
mod kept;
mod kernel_reports;
mod limits;
mod messages;
mod passthrough_refused;
mod private_files;
mod questions;
mod sandbox;
mod server;
mod shells;
mod strangers;
mod travel_verbs;
mod verbs;
