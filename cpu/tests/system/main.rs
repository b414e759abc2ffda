//! Protection, exceptions and system instructions, checked through the public interface only.

mod control;
mod debug;
mod harness;
mod legacy;
mod long_mode;
mod models;
mod peek;
mod random;
mod real;
mod registers;
mod watchpoints;
