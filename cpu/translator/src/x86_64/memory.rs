//! The memory of generated code, which is mapped twice. The mapping that is executed cannot be written, and the mapping
//! that is written cannot be executed.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, mremap, munmap,
};

/// After this many bytes of new code, the host's pages are removed from the writable mapping.
const GIVEN_BACK_AFTER: usize = 1 << 20;

/// Room for code.
pub(super) struct CodeMemory {
    written: NonNull<std::ffi::c_void>,
    executed: NonNull<std::ffi::c_void>,
    length: NonZeroUsize,
    used: usize,
    /// Value of `used` when the host's pages were last removed from the writable mapping.
    given_back: usize,
}

// SAFETY: the mappings belong to this value alone, whichever thread has it.
unsafe impl Send for CodeMemory {}

impl CodeMemory {
    /// Maps `length` bytes, which use memory only once they are written. `None` if the host does not allow
    /// such mappings.
    pub fn new(length: usize) -> Option<CodeMemory> {
        let length = NonZeroUsize::new(length)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let written = unsafe { mmap_anonymous(None, length, both, MapFlags::MAP_SHARED) }.ok()?;
        // With an old size of zero, mremap(2) maps shared memory once more. A memfd would work too, but is limited to
        // the largest file size of this process. SAFETY: the old mapping stays in place; the new one replaces nothing.
        let again = unsafe { mremap(written, 0, length.get(), MRemapFlags::MREMAP_MAYMOVE, None) };
        let executed = again.ok().filter(|&executed| {
            // SAFETY: the mapping is new, and nothing points into it.
            unsafe { mprotect(executed, length.get(), ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }.is_ok()
        });
        let Some(executed) = executed else {
            for mapping in [Some(written), again.ok()].into_iter().flatten() {
                // SAFETY: it was just mapped, and nothing points into it.
                let _ = unsafe { munmap(mapping, length.get()) };
            }
            return None;
        };
        Some(CodeMemory { written, executed, length, used: 0, given_back: 0 })
    }

    /// Host address of an offset, in the executable mapping.
    pub fn address(&self, offset: usize) -> u64 {
        self.executed.as_ptr() as u64 + offset as u64
    }

    /// Bytes that are still free.
    pub fn room(&self) -> usize {
        self.length.get() - self.used
    }

    /// Offset at which the next code is appended.
    pub fn next(&self) -> usize {
        self.used
    }

    /// Forgets all code after an offset.
    pub fn truncate(&mut self, used: usize) {
        self.used = self.used.min(used);
        self.given_back = self.given_back.min(used);
    }

    /// Appends code. Panics if the memory for code is full.
    pub fn append(&mut self, code: &[u8]) {
        let offset = self.used;
        self.used = (offset + code.len()).next_multiple_of(16).min(self.length.get());
        self.write(offset, code);
        if self.used - self.given_back >= GIVEN_BACK_AFTER {
            self.give_back();
        }
    }

    /// Removes the host's pages from the writable mapping. The executable mapping keeps the same pages. Otherwise the
    /// host would count each page twice as this process's memory.
    #[cold]
    fn give_back(&mut self) {
        self.given_back = self.used;
        // SAFETY: the mapping is shared, so its bytes stay the same; the next write maps its page again.
        let _ = unsafe { madvise(self.written, self.length.get(), MmapAdvise::MADV_DONTNEED) };
    }

    /// Overwrites code. Panics outside the memory.
    pub fn write(&mut self, offset: usize, code: &[u8]) {
        let end = offset.checked_add(code.len()).expect("no code is that long");
        assert!(end <= self.length.get(), "code outside its memory");
        // SAFETY: the range was just checked to lie inside the mapping, to which no Rust object belongs.
        unsafe {
            let to = self.written.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
        }
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        for mapping in [self.written, self.executed] {
            // SAFETY: both mappings have this length, and nothing executes or points into them after this value is
            // dropped.
            let _ = unsafe { munmap(mapping, self.length.get()) };
        }
    }
}
