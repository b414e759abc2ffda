//! The memory of generated code, which is mapped twice. The mapping that is executed cannot be written, and the mapping
//! that is written cannot be executed.
//!
//! Both mappings show the same shared memory, so a fork of this process executes the same memory. A fork never writes
//! to that memory. Before its first write, a fork maps memory of its own for all new code. Before a fork changes a
//! [granule](GRANULE) of the old code, it copies this granule. Code stays at its addresses, so a fork keeps all code.
//! The process that forked must not write code while its forks live.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, mremap, munmap,
};

use super::fork_mark::ForkMark;

/// After this many bytes of new code, the host's pages are removed from the writable mapping.
const GIVEN_BACK_AFTER: usize = 1 << 20;
/// A fork copies old code in parts of this size.
const GRANULE: usize = 16 << 10;

/// A memory area for generated code, with its two mappings.
pub(super) struct CodeMemory {
    written: NonNull<c_void>,
    executed: NonNull<c_void>,
    length: NonZeroUsize,
    used: usize,
    /// Value of `used` when the host's pages were last removed from the writable mapping.
    given_back: usize,
    /// Tells whether this process is a fork of the process that mapped `written`.
    mark: ForkMark,
    /// In a fork: whether each granule is still the memory of the process that forked. The granules after the last
    /// element always belong to this process.
    foreign: Vec<bool>,
}

// SAFETY: the mappings belong to this value alone, whichever thread has it.
unsafe impl Send for CodeMemory {}

impl CodeMemory {
    /// Maps `length` bytes, which use memory only once they are written. `None` if the host does not allow
    /// such mappings.
    pub fn new(length: usize) -> Option<CodeMemory> {
        let length = NonZeroUsize::new(length.next_multiple_of(GRANULE))?;
        let mark = ForkMark::new()?;
        let written = map_to_write(length, MapFlags::MAP_SHARED)?;
        // With an old size of zero, mremap(2) maps shared memory once more. A memfd would work too, but is limited to
        // the largest file size of this process. SAFETY: the old mapping stays in place; the new one replaces nothing.
        let again = unsafe { mremap(written, 0, length.get(), MRemapFlags::MREMAP_MAYMOVE, None) };
        let executed = again.ok().filter(|&executed| {
            // SAFETY: the mapping is new, and nothing points into it.
            unsafe { mprotect(executed, length.get(), ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }.is_ok()
        });
        let Some(executed) = executed else {
            for mapping in [Some(written), again.ok()].into_iter().flatten() {
                // SAFETY: the mapping is new, and nothing points into it.
                let _ = unsafe { munmap(mapping, length.get()) };
            }
            return None;
        };
        Some(CodeMemory { written, executed, length, used: 0, given_back: 0, mark, foreign: Vec::new() })
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

    /// Discards all code after an offset.
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
        if self.mark.is_in_a_fork() {
            self.map_own();
        }
        if !self.foreign.is_empty() {
            self.make_own(offset..end);
        }
        // SAFETY: the range was just checked to lie inside the mapping, which contains no Rust object.
        unsafe {
            let to = self.written.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
        }
    }

    /// In a fork: maps memory that belongs to this process alone, in place of all unused memory.
    #[cold]
    fn map_own(&mut self) {
        // Without `MAP_NORESERVE`, the host may reserve memory for the whole mapping. But no fork writes much code.
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        let own = map_to_write(self.length, flags).expect("the host refuses a branch memory for its code");
        // SAFETY: the mapping belongs to this value, and nothing points into it.
        let _ = unsafe { munmap(self.written, self.length.get()) };
        self.written = own;
        self.foreign = vec![true; self.used.div_ceil(GRANULE)];
        self.given_back = self.used;
        self.execute_own(self.foreign.len() * GRANULE..self.length.get());
        self.mark.set();
    }

    /// Copies the granules of a range that are not this process's own.
    fn make_own(&mut self, bytes: Range<usize>) {
        let granules = bytes.start / GRANULE..bytes.end.div_ceil(GRANULE).min(self.foreign.len());
        for granule in granules {
            if std::mem::take(&mut self.foreign[granule]) {
                let at = granule * GRANULE;
                // SAFETY: both mappings have this granule, they do not overlap, and they contain no Rust object.
                unsafe {
                    let from = self.executed.as_ptr().cast::<u8>().add(at);
                    let to = self.written.as_ptr().cast::<u8>().add(at);
                    std::ptr::copy_nonoverlapping(from, to, GRANULE);
                }
                self.execute_own(at..at + GRANULE);
            }
        }
    }

    /// Maps a range of the writable memory into the executable mapping, at the same offset.
    fn execute_own(&self, bytes: Range<usize>) {
        let Some(length) = NonZeroUsize::new(bytes.len()) else { return };
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        // SAFETY: the range lies inside both mappings, which belong to this value. No code of the range runs now. With
        // an old size of zero the written mapping stays in place.
        let mapped = unsafe {
            let from = self.written.byte_add(bytes.start);
            let to = self.executed.byte_add(bytes.start);
            mremap(from, 0, length.get(), flags, Some(to))
                .and_then(|at| mprotect(at, length.get(), ProtFlags::PROT_READ | ProtFlags::PROT_EXEC))
        };
        mapped.expect("the host refuses a branch memory for its code");
    }
}

/// A new writable mapping.
fn map_to_write(length: NonZeroUsize, flags: MapFlags) -> Option<NonNull<c_void>> {
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
    unsafe { mmap_anonymous(None, length, both, flags) }.ok()
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

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, Pid, fork};

    use super::*;

    /// Code that returns a number.
    fn returning(number: u32) -> Vec<u8> {
        let mut code = vec![0xb8];
        code.extend(number.to_le_bytes());
        code.push(0xc3);
        code
    }

    fn call(memory: &CodeMemory, offset: usize) -> u32 {
        // SAFETY: the tests call only offsets at which they have written `returning`.
        unsafe { std::mem::transmute::<u64, extern "sysv64" fn() -> u32>(memory.address(offset))() }
    }

    /// Changes old code in some granules, adds new code, and checks all code. Returns the number of wrong results.
    fn diverge(memory: &mut CodeMemory, old: &[usize], number: u32) -> i32 {
        let mut wrong = i32::from(call(memory, old[0]) != 0);
        for (n, &at) in old.iter().enumerate().skip(1).step_by(3) {
            memory.write(at, &returning(number + n as u32));
        }
        let new: Vec<usize> = (0..5_000).map(|n| append(memory, number * 2 + n)).collect();
        for (n, &at) in old.iter().enumerate() {
            let expected = if n % 3 == 1 { number + n as u32 } else { n as u32 };
            wrong += i32::from(call(memory, at) != expected);
        }
        for (n, &at) in new.iter().enumerate() {
            wrong += i32::from(call(memory, at) != number * 2 + n as u32);
        }
        wrong
    }

    fn append(memory: &mut CodeMemory, number: u32) -> usize {
        let at = memory.next();
        memory.append(&returning(number));
        at
    }

    fn in_a_fork(body: impl FnOnce() -> i32) -> Pid {
        // SAFETY: the fork uses only memory and system calls, and ends without running anything else.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let code = body();
                // SAFETY: `_exit` ends the process, and runs no other code of this program.
                unsafe { nix::libc::_exit(code) }
            }
        }
    }

    #[test]
    fn forks_keep_all_code_and_change_only_their_own() {
        let Some(mut memory) = CodeMemory::new(1 << 20) else { return };
        let old: Vec<usize> = (0..10_000).map(|n| append(&mut memory, n)).collect();
        let forks: Vec<Pid> = (1..=10)
            .map(|number| {
                in_a_fork(|| {
                    let wrong = diverge(&mut memory, &old, number * 100_000);
                    // A fork of the fork gets memory of its own in the same way.
                    let again = in_a_fork(|| i32::from(!forks_again(&mut memory)));
                    wrong.min(1) + 2 * i32::from(waitpid(again, None) != Ok(WaitStatus::Exited(again, 0)))
                })
            })
            .collect();
        for fork in forks {
            assert_eq!(waitpid(fork, None), Ok(WaitStatus::Exited(fork, 0)));
        }
        for (n, &at) in old.iter().enumerate() {
            assert_eq!(call(&memory, at), n as u32);
        }
    }

    /// Empties the memory and fills it with other code.
    fn forks_again(memory: &mut CodeMemory) -> bool {
        memory.truncate(0);
        let new: Vec<usize> = (0..20_000).map(|n| append(memory, 7 * n)).collect();
        new.iter().enumerate().all(|(n, &at)| call(memory, at) == 7 * n as u32)
    }
}
