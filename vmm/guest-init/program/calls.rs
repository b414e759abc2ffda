//! System calls of Linux on x86-64 (syscalls(2); arch/x86/entry/syscalls/syscall_64.tbl).

use core::arch::asm;

pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const OPEN: usize = 2;
pub const CLOSE: usize = 3;
pub const SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const PWRITE: usize = 18;
pub const DUP2: usize = 33;
pub const PAUSE: usize = 34;
pub const NANOSLEEP: usize = 35;
pub const FORK: usize = 57;
pub const EXECVE: usize = 59;
pub const EXIT: usize = 60;
pub const WAIT4: usize = 61;
pub const FSYNC: usize = 74;
pub const CHDIR: usize = 80;
pub const MKDIR: usize = 83;
pub const SYMLINK: usize = 88;
pub const SETUID: usize = 105;
pub const SETGID: usize = 106;
pub const SETSID: usize = 112;
pub const SETGROUPS: usize = 116;
pub const CHROOT: usize = 161;
pub const SYNC: usize = 162;
pub const MOUNT: usize = 165;
pub const SETHOSTNAME: usize = 170;
pub const REBOOT: usize = 169;
pub const FINIT_MODULE: usize = 313;

pub const O_WRONLY: usize = 1;
pub const O_RDWR: usize = 2;

pub const ENOENT: i32 = 2;
pub const ENODEV: i32 = 19;

/// No arguments.
pub const NONE: [usize; 6] = [0; 6];

/// Makes a system call. The error is the error number.
pub fn call(number: usize, arguments: [usize; 6]) -> Result<usize, i32> {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers give addresses of memory that lives during the call, with the sizes that the kernel expects.
    unsafe {
        asm!(
            "syscall",
            inout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            out("rcx") _, out("r11") _,
        );
    }
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}

/// The address of a text. The kernel expects a zero at the end of most texts.
pub fn path(text: &[u8]) -> usize {
    text.as_ptr() as usize
}

/// Waits for some milliseconds.
pub fn sleep_ms(ms: usize) {
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    let _ = call(NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]);
}
