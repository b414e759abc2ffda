//! Where generated code lies: one piece of memory, mapped twice. What is executed cannot be written, what is written cannot
//! be executed.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::unistd::ftruncate;

/// After so many bytes of new code, what it was written through is given back.
const GIVEN_BACK_AFTER: usize = 1 << 20;

/// Room for code.
pub(super) struct CodeMemory {
    written: NonNull<std::ffi::c_void>,
    executed: NonNull<std::ffi::c_void>,
    length: NonZeroUsize,
    used: usize,
    /// What was used when the host's pages were last taken out of the mapping that is written.
    given_back: usize,
}

// SAFETY: the mappings belong to this value alone, whichever thread has it.
unsafe impl Send for CodeMemory {}

impl CodeMemory {
    /// Maps `length` bytes, which take up memory only as they are used. `None` where the host does not allow it.
    pub fn new(length: usize) -> Option<CodeMemory> {
        let length = NonZeroUsize::new(length)?;
        let file: OwnedFd = memfd_create(c"ttvm-code", MFdFlags::MFD_CLOEXEC).ok()?;
        ftruncate(&file, length.get() as i64).ok()?;
        let map = |protection| {
            // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
            unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }.ok()
        };
        let written = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        let Some(executed) = map(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) else {
            // SAFETY: it was mapped just now, and nothing points into it.
            let _ = unsafe { munmap(written, length.get()) };
            return None;
        };
        Some(CodeMemory { written, executed, length, used: 0, given_back: 0 })
    }

    /// Host address of an offset.
    pub fn address(&self, offset: usize) -> u64 {
        self.executed.as_ptr() as u64 + offset as u64
    }

    /// Bytes that are still free.
    pub fn room(&self) -> usize {
        self.length.get() - self.used
    }

    /// Offset of what is appended next.
    pub fn next(&self) -> usize {
        self.used
    }

    /// Forgets all code behind an offset.
    pub fn truncate(&mut self, used: usize) {
        self.used = self.used.min(used);
        self.given_back = self.given_back.min(used);
    }

    /// Appends code. Panics when there is no room.
    pub fn append(&mut self, code: &[u8]) {
        let offset = self.used;
        self.used = (offset + code.len()).next_multiple_of(16).min(self.length.get());
        self.write(offset, code);
        if self.used - self.given_back >= GIVEN_BACK_AFTER {
            self.give_back();
        }
    }

    /// Takes the host's pages out of the mapping that is written. They stay in the one that is executed; without this, the
    /// process would be charged twice for each.
    #[cold]
    fn give_back(&mut self) {
        self.given_back = self.used;
        // SAFETY: the mapping is shared and of a file, so that its bytes stay what they are; the next write maps its page again.
        let _ = unsafe { madvise(self.written, self.length.get(), MmapAdvise::MADV_DONTNEED) };
    }

    /// Overwrites code. Panics outside the memory.
    pub fn write(&mut self, offset: usize, code: &[u8]) {
        let end = offset.checked_add(code.len()).expect("no code is that long");
        assert!(end <= self.length.get(), "code outside its memory");
        // SAFETY: the range lies inside the mapping, as just checked, which is nothing of Rust's.
        unsafe {
            let to = self.written.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
        }
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        for mapping in [self.written, self.executed] {
            // SAFETY: both were mapped with this length, and nothing executes or points into them once this value is gone.
            let _ = unsafe { munmap(mapping, self.length.get()) };
        }
    }
}
