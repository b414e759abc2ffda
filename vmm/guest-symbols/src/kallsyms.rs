//! Finds the kernel's own symbol tables in its memory.
//!
//! `scripts/kallsyms.c` writes the tables into the read-only data in one of these orders. Each table is aligned to
//! eight bytes, or to four from Linux 7.0 on:
//!
//! ```text
//! up to 6.3       6.4 to 6.19     from 7.0 on
//! offsets         num_syms        num_syms
//! relative_base   names           names
//! num_syms        markers         markers
//! names           token_table     token_table
//! markers         token_index     token_index
//! (others)        offsets         offsets
//! token_table     relative_base
//! token_index
//!
//! offsets        i32 each, one of:
//!                from 7.0 on         the address of the offset itself + offset
//!                no negative offset  relative_base + offset (from 6.15 on, and before that without
//!                                    CONFIG_KALLSYMS_ABSOLUTE_PERCPU)
//!                otherwise           relative_base - 1 - offset if the offset is negative, else the offset itself
//!                                    (per-CPU variables)
//! relative_base  u64, moved by KASLR
//! num_syms       u32
//! names          for each symbol its length (one byte, or two from 128 on) and that many tokens
//! markers        u32 each: where in the names every 256th name begins
//! token_table    256 texts, each with a NUL
//! token_index    u16 each: where in the token table each text begins
//! ```
//!
//! The search first looks for the token index and its token table, because hardly any other data looks like these two.
//! Then the search looks for the names, which are before the token table. Markers must follow the names and agree with
//! their lengths. Then the search tries the two possible places of the offsets. The offsets must give ascending
//! addresses. Kernels that store 64-bit addresses instead of offsets are not supported.

use std::ops::Range;

use super::guest_view::{KernelView, is_text};

/// The longest name, in bytes: `KSYM_NAME_LEN` of Linux.
pub const MAX_NAME_BYTES: usize = 512;
/// The largest number of symbols of the kernel, and also of all modules together.
pub const MAX_SYMBOLS: usize = 1 << 20;
/// The largest number of bytes of the names of the kernel's symbols, and also of the modules' symbols.
pub const MAX_NAMES_BYTES: usize = 64 << 20;

/// The address range of the kernel's image, wherever KASLR puts it (`Documentation/x86/x86_64/mm.rst`).
pub const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;

/// Memory is searched in pieces of at most this size. All tables must lie in the same piece.
const PIECE_BYTES: usize = 64 << 20;
/// When a piece is full, the next piece begins with the end of the previous one.
const OVERLAP_BYTES: usize = 16 << 20;
const PAGE_BYTES: usize = 4096;
/// The alignments of the tables: before Linux 7.0, and from 7.0 on.
const ALIGNMENTS: [usize; 2] = [8, 4];
/// The largest number of places that the search tries as token index.
const MAX_TOKEN_TABLES: usize = 16;
/// The least number of symbols of a kernel.
const MIN_SYMBOLS: usize = 64;
/// The largest number of steps of all attempts to read names. A kernel needs one step for each symbol, and some for
/// each place among the names that looks like the symbol count.
const MAX_NAME_STEPS: usize = 1 << 28;

/// A symbol as stored in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSymbol {
    /// The symbol's name.
    pub name: String,
    /// The symbol's address.
    pub address: u64,
    /// The symbol's size in bytes; 0 if unknown.
    pub size: u64,
    /// The symbol's class, as `nm` prints it.
    pub class: u8,
}

/// Whether a symbol's class means code.
pub(crate) fn is_code(class: u8) -> bool {
    matches!(class, b't' | b'T')
}

/// Searches the kernel's part of the address space for its tables. The symbols are ordered by address.
pub fn search(memory: KernelView<'_>) -> Option<Vec<RawSymbol>> {
    let mut piece = Vec::new();
    let mut page = [0; PAGE_BYTES];
    for address in IMAGE.step_by(PAGE_BYTES) {
        let mapped = memory.read(address, &mut page) == PAGE_BYTES;
        if mapped {
            piece.extend_from_slice(&page);
        }
        if !piece.is_empty() && (!mapped || piece.len() >= PIECE_BYTES) {
            let end = if mapped { address + PAGE_BYTES as u64 } else { address };
            if let Some(found) = tables_in(&piece, end - piece.len() as u64) {
                return Some(found);
            }
            let kept = if mapped { OVERLAP_BYTES } else { 0 };
            piece.drain(..piece.len() - kept);
        }
    }
    tables_in(&piece, IMAGE.end - piece.len() as u64)
}

/// The symbols, if all tables lie in `bytes`, which begin at `address`, a multiple of eight.
pub fn tables_in(bytes: &[u8], address: u64) -> Option<Vec<RawSymbol>> {
    let mut steps = MAX_NAME_STEPS;
    // An index begins with 0 and a greater number. This rules out nearly all places.
    let begins = |word: &[u8; 4]| word[..2] == [0; 2] && word[2..] != [0; 2];
    let places = bytes.as_chunks::<4>().0.iter().enumerate().filter(|(_, word)| begins(word));
    let tables = places.filter_map(|(number, _)| Tokens::with_index_at(bytes, 4 * number));
    tables.take(MAX_TOKEN_TABLES).find_map(|tokens| symbols(bytes, address, &tokens, &mut steps))
}

/// The token table.
struct Tokens<'a> {
    texts: Vec<&'a [u8]>,
    /// The range in the searched bytes from the start of the texts to the end of the index.
    range: Range<usize>,
}

impl<'a> Tokens<'a> {
    /// The table whose index begins at `at`, if there is one.
    fn with_index_at(bytes: &'a [u8], at: usize) -> Option<Tokens<'a>> {
        let index = bytes.get(at..at + 512)?;
        let start =
            |number: usize| usize::from(u16::from_le_bytes([index[2 * number], index[2 * number + 1]]));
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

    /// The texts at the offsets in `start`. `None` unless `table` consists of these texts and up to seven zeros.
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

fn symbols(bytes: &[u8], address: u64, tokens: &Tokens<'_>, steps: &mut usize) -> Option<Vec<RawSymbol>> {
    // Tries the nearest place before the tokens first: usually only names lie between the count and the tokens.
    (0..tokens.range.start & !3).step_by(4).rev().find_map(|at| {
        let count = count_at(bytes, at)?;
        let alignments = ALIGNMENTS.into_iter().filter(|alignment| at % alignment == 0);
        let (alignment, names) = alignments
            .filter_map(|alignment| Some((alignment, names_at(bytes, at, alignment, tokens, count, steps)?)))
            .next()?;
        let after = tokens.range.end.next_multiple_of(alignment);
        let before = at.checked_sub(8 + (4 * count).next_multiple_of(8));
        let addresses = before
            .and_then(|offsets| from_base(bytes, offsets, count))
            .or_else(|| from_base(bytes, after, count))
            .or_else(|| from_place(bytes, address, after, count))?;
        expand(bytes, &names, tokens, &addresses)
    })
}

/// The number at offset `at`, if it can be the number of a kernel's symbols.
fn count_at(bytes: &[u8], at: usize) -> Option<usize> {
    let count = u32_at(bytes, at)? as usize;
    (MIN_SYMBOLS..=MAX_SYMBOLS).contains(&count).then_some(count)
}

/// The ranges of the `count` names that follow the number at offset `number_at`. `None` unless markers that agree with
/// the names follow before the tokens.
fn names_at(
    bytes: &[u8],
    number_at: usize,
    alignment: usize,
    tokens: &Tokens<'_>,
    count: usize,
    steps: &mut usize,
) -> Option<Vec<Range<usize>>> {
    let (start, end) = (number_at + alignment, tokens.range.start);
    let padding = bytes.get(number_at + 4..start)?;
    // A name has at least two bytes: its length and its class.
    if padding.iter().any(|&byte| byte != 0) || end.checked_sub(start)? < 2 * count {
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
    let table = at.next_multiple_of(alignment);
    let agree = |(number, marker): (usize, &usize)| {
        u32_at(bytes, table + 4 * number).is_some_and(|stored| stored as usize == *marker)
    };
    markers.iter().enumerate().all(agree).then_some(names)
}

/// The offsets in the table that begins at `start`.
fn offsets(bytes: &[u8], start: usize, count: usize) -> Option<impl Iterator<Item = i32> + Clone> {
    let table = bytes.get(start..start + 4 * count)?;
    Some(table.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)))
}

/// Computes addresses from a table of offsets and the base that follows the table. Returns `None` if the addresses
/// cannot be a kernel's. The base must be in the range of kernel images, and the addresses must ascend from the base.
fn from_base(bytes: &[u8], start: usize, count: usize) -> Option<Vec<u64>> {
    let offsets = offsets(bytes, start, count)?;
    let base = u64_at(bytes, start + (4 * count).next_multiple_of(8)).filter(|base| IMAGE.contains(base))?;
    let with_absolute = offsets.clone().any(|offset| offset < 0);
    let address = |offset: i32| match (with_absolute, offset) {
        (true, ..0) => base.wrapping_add((-1 - i64::from(offset)) as u64),
        (true, _) => offset as u64,
        (false, _) => base.wrapping_add(u64::from(offset as u32)),
    };
    ascending(offsets.map(address))
}

/// The addresses that a table of offsets gives, if each offset is relative to its own place. `None` unless all
/// addresses are in the kernel's image and ascend. `address` is the address of the first byte of `bytes`.
fn from_place(bytes: &[u8], address: u64, start: usize, count: usize) -> Option<Vec<u64>> {
    let places = (address + start as u64..).step_by(4);
    let addresses =
        places.zip(offsets(bytes, start, count)?).map(|(at, offset)| at.wrapping_add_signed(offset.into()));
    ascending(addresses).filter(|addresses| addresses.iter().all(|address| IMAGE.contains(address)))
}

fn ascending(addresses: impl Iterator<Item = u64>) -> Option<Vec<u64>> {
    let addresses: Vec<u64> = addresses.collect();
    addresses.is_sorted().then_some(addresses)
}

/// Expands the names. The first character is the class.
fn expand(
    bytes: &[u8],
    names: &[Range<usize>],
    tokens: &Tokens<'_>,
    addresses: &[u64],
) -> Option<Vec<RawSymbol>> {
    let (mut found, mut room) = (Vec::with_capacity(names.len()), MAX_NAMES_BYTES);
    let mut text = Vec::with_capacity(2 * MAX_NAME_BYTES);
    for (name, &address) in names.iter().zip(addresses) {
        text.clear();
        for &token in &bytes[name.clone()] {
            text.extend_from_slice(tokens.texts[usize::from(token)]);
            if text.len() > MAX_NAME_BYTES {
                return None;
            }
        }
        let (&class, name) = text.split_first()?;
        room = room.checked_sub(text.len())?;
        // `nm` prints a question mark for a symbol of an unknown class, such as `__nosave_begin` in some kernels.
        if !(class.is_ascii_alphabetic() || class == b'?') || name.is_empty() {
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
