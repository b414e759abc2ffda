//! Tests of the library, with guests of a few instructions.

mod arming;
mod devices;
mod flows;
mod onward;
mod others;
