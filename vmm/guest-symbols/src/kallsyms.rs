//! The kernel's own symbol tables in its memory.
//!
//! `scripts/kallsyms.c` writes them into the read-only data, each aligned to eight bytes, in this order
//! (Linux 6.1):
//!
//! ```text
//! offsets        i32 each: below zero  relative_base - 1 - offset
//!                          otherwise   the address itself (variables that each CPU has)
//!                          all from zero on: relative_base + offset (no CONFIG_KALLSYMS_ABSOLUTE_PERCPU)
//! relative_base  u64, moved by KASLR
//! num_syms       u32
//! names          for each symbol its length (one byte, or two from 128 on) and that many tokens
//! markers        u32 each: where in the names every 256th begins
//! token_table    256 texts, each with a NUL
//! token_index    u16 each: where in the token table each begins
//! ```
//!
//! Later kernels have offsets and relative_base after the token index, and other tables in between. What is
//! looked for is therefore: the token index with its table, which hardly anything else looks like; then the
//! names before that, which agree with markers right behind them; then offsets at one of the two places that
//! give ascending addresses. Kernels that store 64-bit addresses instead of offsets are not known here.

use std::ops::Range;

use super::guest_view::{KernelView, is_text};

/// The longest name that is kept, in bytes: `KSYM_NAME_LEN` of Linux.
pub const MAX_NAME_BYTES: usize = 512;
/// No more symbols are read, of the kernel and of all modules each.
pub const MAX_SYMBOLS: usize = 1 << 20;
/// No more bytes of names are kept, of the kernel and of all modules each.
pub const MAX_NAMES_BYTES: usize = 64 << 20;

/// Where the kernel's image is, wherever KASLR puts it (`Documentation/x86/x86_64/mm.rst`).
pub const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;

/// Memory is looked at in pieces of at most this size; tables have to lie in one.
const PIECE_BYTES: usize = 64 << 20;
/// When a piece is full, the next one begins with the end of this one.
const OVERLAP_BYTES: usize = 16 << 20;
const PAGE_BYTES: usize = 4096;
/// How many things that look like a token index are looked into.
const MAX_TOKEN_TABLES: usize = 16;
/// A kernel has more symbols than this.
const MIN_SYMBOLS: usize = 64;
/// The steps that all attempts at reading names may take: a kernel needs as many as it has symbols.
const MAX_NAME_STEPS: usize = 1 << 26;

/// A symbol as a table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSymbol {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: u64,
    /// Its size in bytes; 0 when not known.
    pub size: u64,
    /// Its class, as `nm` prints it.
    pub class: u8,
}

/// Whether a class is one of code.
pub(crate) fn is_code(class: u8) -> bool {
    matches!(class, b't' | b'T')
}

/// Searches the kernel's part of the address space for its tables. The symbols come by address.
pub fn search(memory: KernelView<'_>) -> Option<Vec<RawSymbol>> {
    let mut piece = Vec::new();
    let mut page = [0; PAGE_BYTES];
    for address in IMAGE.step_by(PAGE_BYTES) {
        let mapped = memory.read(address, &mut page) == PAGE_BYTES;
        if mapped {
            piece.extend_from_slice(&page);
        }
        if !piece.is_empty() && (!mapped || piece.len() >= PIECE_BYTES) {
            if let Some(found) = tables_in(&piece) {
                return Some(found);
            }
            let kept = if mapped { OVERLAP_BYTES } else { 0 };
            piece.drain(..piece.len() - kept);
        }
    }
    tables_in(&piece)
}

/// The symbols, when all tables lie in `bytes`, which begin at a multiple of eight.
pub fn tables_in(bytes: &[u8]) -> Option<Vec<RawSymbol>> {
    let mut steps = MAX_NAME_STEPS;
    let tables = (0..bytes.len()).step_by(4).filter_map(|at| Tokens::with_index_at(bytes, at));
    tables.take(MAX_TOKEN_TABLES).find_map(|tokens| symbols(bytes, &tokens, &mut steps))
}

/// The token table.
struct Tokens<'a> {
    texts: Vec<&'a [u8]>,
    /// Where the texts begin, and where the index ends.
    range: Range<usize>,
}

impl<'a> Tokens<'a> {
    /// The table whose index begins at `at`, if it does.
    fn with_index_at(bytes: &'a [u8], at: usize) -> Option<Tokens<'a>> {
        let index = bytes.get(at..at + 512)?;
        let start =
            |number: usize| usize::from(u16::from_le_bytes([index[2 * number], index[2 * number + 1]]));
        // All but the first few positions in memory end here.
        if start(0) != 0 || start(1) == 0 || (1..256).any(|number| start(number) <= start(number - 1)) {
            return None;
        }
        let shortest = start(255) + 1;
        (shortest..shortest + MAX_NAME_BYTES).find_map(|back| {
            let base = at.checked_sub(back)?;
            let texts = Tokens::texts(&bytes[base..at], &start)?;
            Some(Tokens { texts, range: base..at + 512 })
        })
    }

    /// The texts that begin where `start` says, when `table` is these texts and up to seven zeros.
    fn texts(table: &'a [u8], start: &dyn Fn(usize) -> usize) -> Option<Vec<&'a [u8]>> {
        let last = table.get(start(255)..)?;
        let end = start(255) + last.iter().position(|&byte| byte == 0)? + 1;
        let padding = &table[end..];
        if padding.len() >= 8 || padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        (0..256)
            .map(|number| {
                let after = if number < 255 { start(number + 1) } else { end };
                let (nul, text) = table[start(number)..after].split_last()?;
                (*nul == 0 && is_text(text)).then_some(text)
            })
            .collect()
    }
}

fn symbols(bytes: &[u8], tokens: &Tokens<'_>, steps: &mut usize) -> Option<Vec<RawSymbol>> {
    // The nearest candidate is tried first: nothing but names lies in between, usually.
    (0..tokens.range.start & !7).step_by(8).rev().find_map(|at| {
        let count = count_at(bytes, at)?;
        let names = names_at(bytes, at + 8, tokens.range.start, count, steps)?;
        let before = at.checked_sub(8 + (4 * count).next_multiple_of(8));
        let after = tokens.range.end.next_multiple_of(8);
        let addresses = [before, Some(after)]
            .into_iter()
            .flatten()
            .find_map(|offsets| addresses(bytes, offsets, count))?;
        expand(bytes, &names, tokens, &addresses)
    })
}

/// A number of symbols with the zeros after it.
fn count_at(bytes: &[u8], at: usize) -> Option<usize> {
    let count = usize::try_from(u64_at(bytes, at)?).ok()?;
    (MIN_SYMBOLS..=MAX_SYMBOLS).contains(&count).then_some(count)
}

/// Where each of `count` names is, if markers that agree with them follow.
fn names_at(
    bytes: &[u8],
    start: usize,
    end: usize,
    count: usize,
    steps: &mut usize,
) -> Option<Vec<Range<usize>>> {
    // A name has two bytes at least: its length and its class.
    if end.checked_sub(start)? < 2 * count {
        return None;
    }
    let (mut names, mut markers, mut at) = (Vec::new(), Vec::new(), start);
    for number in 0..count {
        *steps = steps.checked_sub(1)?;
        if number % 256 == 0 {
            markers.push(at - start);
        }
        let (length, from) = match (bytes[at], *bytes.get(at + 1)?) {
            (short @ 1..0x80, _) => (usize::from(short), at + 1),
            (low @ 0x80.., high) => (usize::from(low & 0x7f) | usize::from(high) << 7, at + 2),
            (0, _) => return None,
        };
        at = from + length;
        if length > MAX_NAME_BYTES || at >= end {
            return None;
        }
        names.push(from..at);
    }
    let table = at.next_multiple_of(8);
    let agree = |(number, marker): (usize, &usize)| {
        u32_at(bytes, table + 4 * number).is_some_and(|stored| stored as usize == *marker)
    };
    markers.iter().enumerate().all(agree).then_some(names)
}

/// The addresses that offsets stand for, if they are those of a kernel: a base in its image, ascending from
/// there.
fn addresses(bytes: &[u8], start: usize, count: usize) -> Option<Vec<u64>> {
    let table = bytes.get(start..start + 4 * count)?;
    let base = u64_at(bytes, start + (4 * count).next_multiple_of(8)).filter(|base| IMAGE.contains(base))?;
    let offsets = || table.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let with_absolute = offsets().any(|offset| offset < 0);
    let address = |offset: i32| match (with_absolute, offset) {
        (true, ..0) => base.wrapping_add((-1 - i64::from(offset)) as u64),
        (true, _) => offset as u64,
        (false, _) => base.wrapping_add(u64::from(offset as u32)),
    };
    let addresses: Vec<u64> = offsets().map(address).collect();
    addresses.is_sorted().then_some(addresses)
}

/// The names written out. The first character is the class.
fn expand(
    bytes: &[u8],
    names: &[Range<usize>],
    tokens: &Tokens<'_>,
    addresses: &[u64],
) -> Option<Vec<RawSymbol>> {
    let (mut found, mut room) = (Vec::with_capacity(names.len()), MAX_NAMES_BYTES);
    for (name, &address) in names.iter().zip(addresses) {
        let mut text = Vec::new();
        for &token in &bytes[name.clone()] {
            text.extend_from_slice(tokens.texts[usize::from(token)]);
            if text.len() > MAX_NAME_BYTES {
                return None;
            }
        }
        let (&class, name) = text.split_first()?;
        room = room.checked_sub(text.len())?;
        if !class.is_ascii_alphabetic() || name.is_empty() {
            return None;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        found.push(RawSymbol { name, address, size: 0, class });
    }
    Some(found)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
