//! The functions on memory that the compiler calls.

use core::arch::asm;

/// # Safety
///
/// As of C's memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller gives two areas of `count` bytes.
    unsafe { asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _) };
    to
}

/// # Safety
///
/// As of C's memmove.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: the areas do not overlap in a way that matters when copied upwards.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller gives two areas of `count` bytes, and `count` is not 0 here.
    unsafe {
        let (last_to, last_from) = (to.add(count - 1), from.add(count - 1));
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") last_to => _, inout("rsi") last_from => _);
    }
    to
}

/// # Safety
///
/// As of C's memset.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller gives an area of `count` bytes.
    unsafe { asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8) };
    to
}

/// # Safety
///
/// As of C's memcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for n in 0..count {
        // SAFETY: the caller gives two areas of `count` bytes. Volatile reads keep the compiler from calling this function
        // for the loop.
        let (a, b) = unsafe { (one.add(n).read_volatile(), other.add(n).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
///
/// As of C's bcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: the caller gives two areas of `count` bytes.
    unsafe { memcmp(one, other, count) }
}

/// # Safety
///
/// As of C's strlen.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller gives a text that ends in a zero. See `memcmp` for the volatile reads.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
