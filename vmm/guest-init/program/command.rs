//! Runs the command on the console, and waits for its end.

use core::ffi::{CStr, c_char};

use crate::calls::{self, NONE, call, path};
use crate::setup::Setup;
use crate::{CANNOT_START, say};

/// The status of a command that was not found, as of a shell.
const NOT_FOUND: i32 = 127;
/// The status of a command that a signal ended is this number plus the number of the signal, as in a shell.
const SIGNALLED: i32 = 128;
/// The longest path of a program in bytes.
const MOST_PATH_BYTES: usize = 4096;

/// The mark around the command's output. `guest_init::MARK` has the same text.
const MARK: &[u8] = b"\x1b]ttvm command\x07";

// Requests of tty_ioctl(4).
const TCGETS: usize = 0x5401;
const TCSETS: usize = 0x5402;
const TCSBRK: usize = 0x5409;
const TIOCSCTTY: usize = 0x540e;
const TIOCSWINSZ: usize = 0x5414;

/// The size of the kernel's `struct termios` in bytes, and where it has the output's and the local modes.
const TERMIOS_BYTES: usize = 64;
const OUTPUT_MODES: usize = 4;
const LOCAL_MODES: usize = 12;
const OPOST: u8 = 1;
const ECHO: u8 = 8;

/// Runs the command. Returns its status, as a shell gives it.
pub fn run(setup: &Setup) -> i32 {
    match call(calls::FORK, NONE) {
        Ok(0) => exit(lead(setup)),
        Ok(child) => {
            let status = await_end(child);
            say(&[MARK]);
            drain();
            status
        }
        Err(_) => CANNOT_START,
    }
}

fn exit(status: i32) -> i32 {
    let _ = call(calls::EXIT, [status as usize, 0, 0, 0, 0, 0]);
    status
}

/// Leads the session of the terminal, and runs the command in it. When the leader of a session exits, the kernel drops output that
/// the terminal has not printed. So the leader is not the command, and waits until everything is printed.
fn lead(setup: &Setup) -> i32 {
    let _ = call(calls::SETSID, NONE);
    open_console(setup);
    match call(calls::FORK, NONE) {
        Ok(0) => exit(begin(setup)),
        Ok(child) => {
            // The key ^C is for the command.
            let all = u64::MAX;
            let _ = call(calls::SIGPROCMASK, [0, (&raw const all) as usize, 0, size_of::<u64>(), 0, 0]);
            let status = await_end(child);
            drain();
            status
        }
        Err(_) => CANNOT_START,
    }
}

/// Waits for processes until the child has ended.
fn await_end(child: usize) -> i32 {
    loop {
        let mut status = 0_i32;
        let ended = call(calls::WAIT4, [usize::MAX, (&raw mut status) as usize, 0, 0, 0, 0]);
        if ended == Ok(child) {
            return match status & 0x7f {
                0 => status >> 8 & 0xff,
                signal => SIGNALLED + signal,
            };
        }
    }
}

/// Waits until the console has printed everything, which the kernel does not do when it powers off.
fn drain() {
    if let Ok(tty) = call(calls::OPEN, [path(b"/dev/ttyS0\0"), calls::O_RDWR, 0, 0, 0, 0]) {
        let _ = call(calls::IOCTL, [tty, TCSBRK, 1, 0, 0, 0]);
        let _ = call(calls::CLOSE, [tty, 0, 0, 0, 0, 0]);
    }
}

/// Becomes the command. Returns a status if the command cannot be started.
fn begin(setup: &Setup) -> i32 {
    let _ = call(calls::SETGROUPS, NONE);
    let became = call(calls::SETGID, [setup.group, 0, 0, 0, 0, 0])
        .and_then(|_| call(calls::SETUID, [setup.user, 0, 0, 0, 0, 0]));
    if became.is_err() {
        say(&[b"ttvm: the guest cannot become the user\n"]);
        return CANNOT_START;
    }
    if call(calls::CHDIR, [path(setup.folder), 0, 0, 0, 0, 0]).is_err() {
        say(&[b"ttvm: the guest cannot enter the folder ", without_zero(setup.folder), b"\n"]);
        return CANNOT_START;
    }
    say(&[MARK]);
    let name = text_at(setup.arguments[0]);
    match execute(setup, name) {
        calls::ENOENT => {
            say(&[b"ttvm: the guest finds no ", without_zero(name), b"\n"]);
            NOT_FOUND
        }
        _ => {
            say(&[b"ttvm: the guest cannot execute ", without_zero(name), b"\n"]);
            CANNOT_START
        }
    }
}

/// Makes the console the terminal of this process.
fn open_console(setup: &Setup) {
    let Ok(console) = call(calls::OPEN, [path(b"/dev/console\0"), calls::O_RDWR, 0, 0, 0, 0]) else { return };
    // /dev/console cannot be a controlling terminal, but the serial port behind it can.
    let tty = call(calls::OPEN, [path(b"/dev/ttyS0\0"), calls::O_RDWR, 0, 0, 0, 0]).unwrap_or(console);
    let _ = call(calls::IOCTL, [tty, TIOCSCTTY, 1, 0, 0, 0]);
    let mut modes = [0_u8; TERMIOS_BYTES];
    if call(calls::IOCTL, [tty, TCGETS, modes.as_mut_ptr() as usize, 0, 0, 0]).is_ok() {
        if !setup.terminal {
            modes[OUTPUT_MODES] &= !OPOST;
            modes[LOCAL_MODES] &= !ECHO;
        }
        let _ = call(calls::IOCTL, [tty, TCSETS, modes.as_ptr() as usize, 0, 0, 0]);
    }
    if setup.size != [0; 2] {
        let [columns, rows] = setup.size;
        let size = [rows, columns, 0, 0];
        let _ = call(calls::IOCTL, [tty, TIOCSWINSZ, size.as_ptr() as usize, 0, 0, 0]);
    }
    let input = match setup.no_input {
        true => call(calls::OPEN, [path(b"/dev/null\0"), 0, 0, 0, 0, 0]).unwrap_or(tty),
        false => tty,
    };
    for (from, to) in [(input, 0), (tty, 1), (tty, 2)] {
        let _ = call(calls::DUP2, [from, to, 0, 0, 0, 0]);
    }
}

/// Executes the program with this name, which ends in a zero. Returns the error number.
fn execute(setup: &Setup, name: &[u8]) -> i32 {
    if name.contains(&b'/') {
        return execute_path(setup, name);
    }
    let mut last = calls::ENOENT;
    for folder in setup.search.split(|&byte| byte == b':') {
        let mut place = [0_u8; MOST_PATH_BYTES];
        let length = folder.len() + 1 + name.len();
        if folder.is_empty() || length > place.len() {
            continue;
        }
        place[..folder.len()].copy_from_slice(folder);
        place[folder.len()] = b'/';
        place[folder.len() + 1..length].copy_from_slice(name);
        match execute_path(setup, &place[..length]) {
            calls::ENOENT => {}
            errno => last = errno,
        }
    }
    last
}

fn execute_path(setup: &Setup, place: &[u8]) -> i32 {
    let (arguments, environment) = (setup.arguments.as_ptr() as usize, setup.environment.as_ptr() as usize);
    call(calls::EXECVE, [path(place), arguments, environment, 0, 0, 0]).err().unwrap_or_default()
}

/// The text at an address of the setup, with its zero.
fn text_at(address: usize) -> &'static [u8] {
    if address == 0 {
        return b"\0";
    }
    // SAFETY: the address is in the file's buffer, where each text ends in a zero.
    unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes_with_nul()
}

fn without_zero(text: &[u8]) -> &[u8] {
    text.strip_suffix(b"\0").unwrap_or(text)
}
