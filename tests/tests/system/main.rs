//! Whole-system tests, which run real kernels on the whole machine. All tests are in one program, so the test
//! harness can divide the host's processors among them. Run with `--release` (scripts/test does): an unoptimised
//! CPU is too slow for kernels.

mod bugs;
mod command_lines;
mod debian;
mod determinism;
mod disk;
mod gdb_debian;
mod gdb_interrupts;
mod gdb_long;
mod gdb_mi;
mod gdb_processes;
mod gdb_processors;
mod gdb_session;
mod gdb_steps;
mod gdb_travel;
mod going_live;
mod hits;
mod kernel_reports;
mod kernels;
mod kexec;
mod kvm_lab;
mod network;
mod network_peers;
mod network_tap;
mod newer_kernels;
mod newest_gdb;
mod other_kernels;
mod other_processor;
mod other_tools;
mod passthrough;
mod processors;
mod processors_shown;
mod questions;
mod readme;
mod recordings;
mod seeks;
mod stock;
mod symbols;
mod symbols_add_up;
mod travel;
mod types_and_frames;
mod who_set;
mod workloads;
