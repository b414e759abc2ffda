//! A view of guest RAM for users that do not own it.

use vm_memory::{Bytes, GuestAddress};

use crate::layout::RamLayout;
use crate::pages::GuestMemory;

/// A view of a guest's RAM. Another structure or another thread owns the guest's CPU.
///
/// A view accesses RAM through `vm-memory`, by volatile copies. A write through a view marks the page dirty, and is
/// queued for the CPU as a foreign write.
#[derive(Clone)]
pub struct RamView {
    memory: GuestMemory,
    layout: RamLayout,
}

impl RamView {
    pub(crate) fn new(memory: GuestMemory, layout: RamLayout) -> RamView {
        RamView { memory, layout }
    }

    /// RAM for device models.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The layout of RAM in guest-physical space.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// Size in bytes, a whole number of pages.
    pub fn size_bytes(&self) -> u64 {
        self.layout.size_bytes()
    }

    /// Copies bytes into RAM at `offset`, as a device does. The bytes must not cross the end of the low part of RAM.
    /// Panics if the bytes do not lie inside RAM.
    pub fn write_bytes(&self, offset: u64, from: &[u8]) {
        let gpa = GuestAddress(self.layout.gpa_of(offset));
        self.memory.write_slice(from, gpa).expect("the caller's offset lies inside RAM");
    }

    /// Copies bytes from RAM at `offset` to `to`. The bytes must not cross the end of the low part of RAM. Panics if
    /// the bytes do not lie inside RAM.
    pub fn read_bytes(&self, offset: u64, to: &mut [u8]) {
        let gpa = GuestAddress(self.layout.gpa_of(offset));
        self.memory.read_slice(to, gpa).expect("the caller's offset lies inside RAM");
    }
}
