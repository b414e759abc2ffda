//! A PCI function of the host, by the Linux kernel's VFIO, and the memory that it may see ([`Area`]).
//!
//! This crate moves bytes and interrupts and knows nothing of guests. The function reaches memory only where
//! [`Function::map`] says so: the kernel programs the host's IOMMU. See the kernel's Documentation/driver-api/vfio.rst.
//!
//! Unsafe are the ioctls, in `ioctls.rs`, and the memory that the function writes while it is read here, in `area.rs`.

mod area;
mod function;
mod ioctls;

pub use area::{Area, CHUNK_BYTES, PAGE_BYTES};
pub use function::{Event, Function, Interrupts};

/// Why a function cannot be used: a sentence that says what to do.
#[derive(Debug)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
