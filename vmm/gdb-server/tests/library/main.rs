//! Tests of a target without gdb. The tests are one program, because linking many programs takes longer than running
//! the tests.

mod bounds;
mod devices;
mod finish;
mod guest;
mod monitor;
mod origins;
mod points;
mod processes;
mod processors;
mod remote;
mod sessions;
mod steps;
mod steps_back;
