//! The first process of a guest that runs one command on files of the host.
//!
//! The process loads modules, mounts the disk as the root, and runs the command on the console. Then the process writes the
//! command's status to the disk, and powers off. The file `/setup` in the initial RAM disk says what to do (`setup.rs`).
//!
//! The program has no library: the host need not have a static C library, and the kernel may be as small as possible.

#![no_std]
#![no_main]

mod calls;
mod command;
mod memory;
mod mounts;
mod setup;

use core::arch::global_asm;
use core::panic::PanicInfo;

use calls::{NONE, call, path};
use setup::Setup;

// The kernel gives arguments on the stack, which this process does not need.
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {start}", "ud2", start = sym start);

/// The status of a command that could not be started, as of a shell.
const CANNOT_START: i32 = 126;
/// The first bytes of the block with the status.
const MAGIC: &[u8; 8] = b"TTVMEXIT";

extern "C" fn start() -> ! {
    let setup = setup::read();
    let ended = match mounts::enter_root(&setup) {
        Ok(()) => command::run(&setup),
        Err(why) => {
            say(&[b"ttvm: the guest cannot begin: ", why.text, b" (error ", &decimal(why.errno), b")\n"]);
            CANNOT_START
        }
    };
    end(&setup, ended)
}

/// The reason why the guest cannot run the command.
struct Failure {
    text: &'static [u8],
    errno: i32,
}

/// Writes the status to the disk, and powers off.
fn end(setup: &Setup, status: i32) -> ! {
    let _ = call(calls::SYNC, NONE);
    let mut block = [0_u8; 512];
    block[..8].copy_from_slice(MAGIC);
    block[8..12].copy_from_slice(&status.to_le_bytes());
    let disk = call(calls::OPEN, [path(b"/dev/vda\0"), calls::O_WRONLY, 0, 0, 0, 0]);
    if let Ok(disk) = disk {
        let _ = call(calls::PWRITE, [disk, block.as_ptr() as usize, block.len(), setup.status_at, 0, 0]);
        let _ = call(calls::FSYNC, [disk, 0, 0, 0, 0, 0]);
    }
    let _ = call(calls::REBOOT, [0xfee1_dead, 0x2812_1969, 0x4321_fedc, 0, 0, 0]);
    loop {
        let _ = call(calls::PAUSE, NONE);
    }
}

/// Writes to standard error, which is the console.
fn say(parts: &[&[u8]]) {
    for part in parts {
        let _ = call(calls::WRITE, [2, part.as_ptr() as usize, part.len(), 0, 0, 0]);
    }
}

/// A small number in decimal digits.
fn decimal(number: i32) -> [u8; 3] {
    let digit = |value: i32| b'0' + (value % 10) as u8;
    [digit(number / 100), digit(number / 10), digit(number)]
}

/// The library `core` names this function, which unwinds after a panic. Nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    say(&[b"ttvm: the guest's first process has a bug\n"]);
    let _ = call(calls::EXIT, [1, 0, 0, 0, 0, 0]);
    loop {}
}
