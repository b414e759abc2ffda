//! Tests of the library, with guests of a few instructions.

mod arming;
mod flows;
mod others;
