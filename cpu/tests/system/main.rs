//! Protection, exceptions and system instructions, checked through the public interface only.

mod alignment;
mod coherence;
mod control;
mod cuts;
mod debug;
mod flags;
mod forks;
mod harness;
mod legacy;
mod legacy_integer;
mod long_mode;
mod models;
mod peek;
mod processors;
mod random;
mod real;
mod registers;
mod seats;
mod strings;
mod tables;
mod watchpoints;
