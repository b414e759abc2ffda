//! Reads file systems that the tests make byte by byte, so that each structure has exactly the wanted values. The expected
//! contents follow from the values that the test writes.

mod image;
mod journal;
mod maps;
mod paths;
mod superblocks;
