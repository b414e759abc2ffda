//! If the host refuses memory to a program, this crate prints a sentence and ends the program with an exit code.
//! Without the crate, the standard library ends the program with a signal, as if the program had crashed.
//!
//! ```
//! use refused_memory::SpokenRefusals;
//!
//! #[global_allocator]
//! static ALLOCATOR: SpokenRefusals = SpokenRefusals;
//!
//! assert_eq!(vec![7; 3].len(), 3);
//! ```
//!
//! The standard library's hook for this (`std::alloc::set_alloc_error_hook`) is not stable. So this crate has an
//! allocator, which passes each request to the system's allocator and checks the answer for null. The program
//! cannot continue after a refusal, because code that allocates a `Vec` or `Box` does not handle refusals. Code
//! that can work with less memory must map memory itself instead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::os::fd::BorrowedFd;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::termios::{InputFlags, LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};

/// The exit code of a process that gets no memory. `ttvm` uses the same code for every failed request.
pub const EXIT_CODE: i32 = 1;

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// The system's allocator. If the allocator refuses memory, the process prints a sentence and ends.
pub struct SpokenRefusals;

// SAFETY: all calls go to the system's allocator with the caller's own arguments. The allocator's answers go
// back to the caller unchanged, except null, which ends the process.
unsafe impl GlobalAlloc for SpokenRefusals {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of this function, and `System` has the same contract.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of this function, and `System` has the same contract.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of this function, and `System` has the same contract.
        or_end(unsafe { System.realloc(old, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of this function, and `System` has the same contract.
        unsafe { System.dealloc(old, layout) }
    }
}

#[inline]
fn or_end(memory: *mut u8, size_bytes: usize) -> *mut u8 {
    if memory.is_null() {
        end(size_bytes);
    }
    memory
}

/// Prints the number of refused bytes, and ends the process at once. This function allocates no memory.
#[cold]
fn end(size_bytes: usize) -> ! {
    let mut line = Cursor::new([0; 512]);
    // A sentence that does not fit is cut.
    let _ = write!(line, "ttvm: the host refuses {size_bytes} bytes of memory");
    let _ = write_reason(&mut line);
    let _ = writeln!(line);
    let length = line.position() as usize;
    end_raw_mode();
    let _ = nix::unistd::write(std::io::stderr(), &line.get_ref()[..length]);
    // SAFETY: `_exit` ends the process, and runs no other code of this program.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// Ends the raw mode of the terminal on standard input, so that the shell works as usual again. A process calls this
/// function before it ends without dropping its values.
pub fn end_raw_mode() {
    // SAFETY: this function only reads the terminal's mode and sets it. If the process has closed the descriptor,
    // the calls return an error.
    let stdin = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
    let Ok(mut mode) = tcgetattr(stdin) else { return };
    if mode.local_flags.contains(LocalFlags::ICANON) {
        return;
    }
    mode.local_flags |= LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN;
    mode.input_flags |= InputFlags::ICRNL | InputFlags::IXON;
    mode.output_flags |= OutputFlags::OPOST;
    // If the terminal no longer exists, its mode does not matter, so ignore the error.
    let _ = tcsetattr(stdin, SetArg::TCSANOW, &mode);
}

/// Appends the reason for the refusal, and advice.
fn write_reason(line: &mut Cursor<[u8; 512]>) -> std::io::Result<()> {
    match getrlimit(Resource::RLIMIT_AS) {
        Ok((limit, _)) if limit != libc::RLIM_INFINITY => {
            write!(line, ": this process may have {} MiB of address space (ulimit -v)", limit / MIB)?;
            // A process in the sandbox cannot read this number.
            if let Some(bytes) = address_space_bytes() {
                write!(line, ", of which {} MiB are taken", bytes / MIB)?;
            }
            write!(
                line,
                "; the guest's memory for each processor of the host, and 1024 MiB more, are always enough"
            )
        }
        _ => write!(line, ": end other programs, or allow this one more memory"),
    }
}

/// The size of this process's mappings, in bytes (proc(5), statm).
fn address_space_bytes() -> Option<u64> {
    let mut text = [0; 32];
    let count = File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    let pages = str::from_utf8(&text[..count]).ok()?.split_whitespace().next()?;
    pages.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_the_limit_or_what_there_is() {
        let mut line = Cursor::new([0; 512]);
        write_reason(&mut line).unwrap();
        let length = line.position() as usize;
        let text = str::from_utf8(&line.get_ref()[..length]).unwrap();
        assert!(text.contains("memory"), "{text}");
        assert!(address_space_bytes().unwrap() > MIB);
    }
}
