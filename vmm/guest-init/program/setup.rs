//! The file `/setup` of the initial RAM disk. Each entry is a letter, a text and a zero. The package `guest-init` writes the
//! file.

use crate::calls::{self, call, path};

/// The largest size of the file in bytes.
const MOST_BYTES: usize = 1 << 20;
/// The largest number of arguments, and of variables of the environment.
pub const MOST_TEXTS: usize = 4096;

/// The contents of the file.
pub struct Setup {
    /// The command's arguments, and then a zero.
    pub arguments: [usize; MOST_TEXTS + 1],
    /// The command's environment, and then a zero.
    pub environment: [usize; MOST_TEXTS + 1],
    /// The value of PATH.
    pub search: &'static [u8],
    /// The folder in which the command runs.
    pub folder: &'static [u8],
    /// All entries, for the lists that are used once.
    text: &'static [u8],
    /// User and group of the command.
    pub user: usize,
    pub group: usize,
    /// Columns and rows of the terminal; 0 if there is no terminal.
    pub size: [u16; 2],
    /// Whether the command's standard input is empty.
    pub no_input: bool,
    /// Whether a terminal of the host shows the output, so that lines end in CR and LF.
    pub terminal: bool,
    /// Whether the guest has a `/tmp` of its own.
    pub own_tmp: bool,
    /// The offset on the disk, in bytes, of the block for the status.
    pub status_at: usize,
}

/// The file.
static mut FILE: [u8; MOST_BYTES] = [0; MOST_BYTES];

/// Reads the file.
pub fn read() -> Setup {
    let length = match call(calls::OPEN, [path(b"/setup\0"), 0, 0, 0, 0, 0]) {
        Ok(file) => fill(file),
        Err(_) => 0,
    };
    // SAFETY: there is one thread, and nothing writes to the buffer after this.
    let text: &'static [u8] = unsafe { core::slice::from_raw_parts((&raw const FILE).cast(), length) };
    let mut setup = Setup {
        arguments: [0; MOST_TEXTS + 1],
        environment: [0; MOST_TEXTS + 1],
        search: b"/usr/sbin:/usr/bin:/sbin:/bin",
        folder: b"/\0",
        text,
        user: 0,
        group: 0,
        size: [0; 2],
        no_input: false,
        terminal: false,
        own_tmp: false,
        status_at: 0,
    };
    let (mut arguments, mut variables) = (0, 0);
    for (letter, value) in entries(text) {
        let address = value.as_ptr() as usize;
        match letter {
            b'a' if arguments < MOST_TEXTS => {
                setup.arguments[arguments] = address;
                arguments += 1;
            }
            b'e' if variables < MOST_TEXTS => {
                setup.environment[variables] = address;
                variables += 1;
                if let Some(search) = value.strip_prefix(b"PATH=") {
                    setup.search = &search[..search.len() - 1];
                }
            }
            b'c' => setup.folder = value,
            b'u' => setup.user = number(value),
            b'g' => setup.group = number(value),
            b'w' => setup.size[0] = number(value) as u16,
            b'h' => setup.size[1] = number(value) as u16,
            b'n' => setup.no_input = true,
            b't' => setup.terminal = true,
            b'T' => setup.own_tmp = true,
            b's' => setup.status_at = number(value),
            _ => {}
        }
    }
    setup
}

impl Setup {
    /// The paths of the modules to load, in their order, each with a zero.
    pub fn modules(&self) -> impl Iterator<Item = &'static [u8]> {
        entries(self.text).filter(|(letter, _)| *letter == b'm').map(|(_, value)| value)
    }
}

fn fill(file: usize) -> usize {
    let mut length = 0;
    while length < MOST_BYTES {
        let at = (&raw mut FILE) as usize + length;
        match call(calls::READ, [file, at, MOST_BYTES - length, 0, 0, 0]) {
            Ok(0) | Err(_) => break,
            Ok(count) => length += count,
        }
    }
    let _ = call(calls::CLOSE, [file, 0, 0, 0, 0, 0]);
    length
}

/// The letter and the text of each entry. The text has the zero at its end.
fn entries(text: &'static [u8]) -> impl Iterator<Item = (u8, &'static [u8])> {
    text.split_inclusive(|&byte| byte == 0)
        .filter(|entry| entry.len() > 1 && entry.ends_with(b"\0"))
        .map(|entry| (entry[0], &entry[1..]))
}

fn number(text: &[u8]) -> usize {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: usize, digit| number.wrapping_mul(10).wrapping_add(usize::from(digit - b'0')))
}
