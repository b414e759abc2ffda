//! Fuzzes the data that a client sends to the gdb server. The server gets the input's bytes unchanged, and then
//! gets the input's lines as packets with right checksums. The debugged machine is the toy machine of the gdb
//! crate's own tests.

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

/// A file that is always readable. So the server sees a client that has already sent all its data.
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
    /// A toy machine that no session may change. All sessions use this toy, because making a new `Toy` takes longer
    /// than a session.
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
