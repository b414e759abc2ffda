//! Tells a process whether it is a fork of the process that set the mark.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// The kernel maps whole pages.
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// A page that the kernel clears in every fork (madvise(2), MADV_WIPEONFORK). Looking at the page takes no system call.
pub(super) struct ForkMark(NonNull<u8>);

// SAFETY: the page belongs to this value alone, whichever thread has it.
unsafe impl Send for ForkMark {}

impl ForkMark {
    /// A mark that is set. `None` if the host has no memory, or a kernel before Linux 4.14.
    pub fn new() -> Option<ForkMark> {
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let page = unsafe { mmap_anonymous(None, PAGE, both, MapFlags::MAP_PRIVATE) }.ok()?;
        let mark = ForkMark(page.cast());
        // SAFETY: the page was just mapped.
        unsafe { madvise(page, PAGE.get(), MmapAdvise::MADV_WIPEONFORK) }.ok()?;
        mark.set();
        Some(mark)
    }

    /// Whether this process is a fork of the process that set the mark.
    #[inline]
    pub fn is_in_a_fork(&self) -> bool {
        // SAFETY: the page is mapped while this value lives. The kernel changes the page, so the access is volatile.
        unsafe { self.0.read_volatile() == 0 }
    }

    /// Sets the mark in this process.
    pub fn set(&self) {
        // SAFETY: the page is mapped while this value lives. The kernel changes the page, so the access is volatile.
        unsafe { self.0.write_volatile(1) }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the page belongs to this value, and nothing points into it any more.
        let _ = unsafe { munmap(self.0.cast(), PAGE.get()) };
    }
}
