//! A PCI function of the host, through the Linux kernel's VFIO, and the memory that it may access ([`Area`]).
//!
//! ```no_run
//! use vfio::{Area, Function, PAGE_BYTES};
//!
//! let function = Function::open("0000:00:1d.0")?;
//! println!("vendor {:02x?}", &function.config()?[..2]);
//! // The function may write to one page, which it sees at address 0.
//! let area = Area::new(PAGE_BYTES)?;
//! function.map(0, &area, 0, true)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate moves bytes and interrupts and knows nothing of guests. The function can access only memory that
//! [`Function::map`] mapped, because the kernel programs the host's IOMMU. See the kernel's
//! Documentation/driver-api/vfio.rst.
//!
//! Two files use `unsafe`: `ioctls.rs` for the ioctls, and `area.rs` for memory that the function writes while this
//! process reads it. The dozen ioctls are written by hand. The crate vfio-ioctls would map BARs and memory by itself,
//! and depends on vm-memory and a device model.

mod area;
mod function;
mod ioctls;

pub use area::{Area, CHUNK_BYTES, PAGE_BYTES};
pub use function::{Event, Function, Interrupts};

/// Why a function cannot be used: a sentence with advice.
#[derive(Debug)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
