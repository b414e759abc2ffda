//! Tests of the library, with guests of a few instructions.

mod flows;
mod others;
