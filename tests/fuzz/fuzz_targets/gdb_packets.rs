//! Data from a client of the gdb server: the bytes as they are, and lines of the same bytes as packets with right
//! checksums. The target is the toy of the gdb crate's own tests.

#![no_main]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

use gdb::{SessionEnd, serve_stream};
use libfuzzer_sys::fuzz_target;

#[path = "../../../gdb/tests/common/mod.rs"]
mod common;

use common::{Toy, packet};

/// A file that is always readable, like the socket of a client that has sent everything in advance.
static READABLE: LazyLock<File> = LazyLock::new(|| File::open("/dev/null").expect("every Unix has one"));

struct Client {
    says: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Read for &mut Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.says.read(buffer)
    }
}

impl Write for &mut Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for &mut Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        READABLE.as_fd()
    }
}

thread_local! {
    /// A new toy takes longer than a session. So a toy that no session may write to is used again.
    static READ_ONLY: RefCell<Toy> = RefCell::new(Toy::new());
}

fn session(says: Vec<u8>, writable: bool) {
    if writable {
        return session_with(&mut Toy { writable, ..Toy::new() }, says);
    }
    READ_ONLY.with_borrow_mut(|toy| {
        toy.position = 0;
        toy.calls.clear();
        session_with(toy, says);
    });
}

fn session_with(toy: &mut Toy, says: Vec<u8>) {
    let mut client = Client { says: Cursor::new(says), heard: Vec::new() };
    let end = serve_stream(&mut client, toy);
    assert!(!matches!(end, SessionEnd::Lost(_)), "nothing here fails to read or to write");
    assert!(toy.breakpoints.is_empty() && toy.watchpoints.is_empty(), "stops are left behind");
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    let writable = mode & 2 != 0;
    if mode & 1 == 0 {
        return session(bytes.to_vec(), writable);
    }
    session(bytes.split(|&byte| byte == b'\n').flat_map(packet).collect(), writable);
});
