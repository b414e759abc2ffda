//! A kernel's file with symbols, such as the `vmlinux` of Debian's `-dbg` packages: how far the guest's kernel was moved
//! from where the file has it (KASLR).
//!
//! Only the table of symbols is read, and it may say anything: follows the ELF-64 object file format, version 1.5, and
//! trusts no length. Whether the file is of this very kernel is told by comparing all functions that both name once.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Symbols;
use super::kallsyms::IMAGE;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHF_ALLOC: u64 = 2;
const STT_FUNC: u8 = 2;
const SHN_UNDEF: u16 = 0;
const EM_X86_64: u16 = 62;
/// The largest table that is read.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// What both the file and the kernel name, by which the distance between them is measured.
const LANDMARKS: [&str; 3] = ["_stext", "_text", "startup_64"];
/// With fewer functions in common it is not a kernel's file.
const MIN_COMMON: usize = 64;
/// As many of a hundred have to be where they should be.
const MIN_AGREEING_PERCENT: usize = 99;

/// How a file and the guest's kernel go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The file is of this kernel.
    Kernel(Placement),
    /// The file is not of a kernel.
    NoKernel,
}

/// Where a file's sections are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// So many bytes further up than the file says.
    pub distance: u64,
    /// But for these, by name and address: variables that each CPU has, whose addresses are offsets.
    pub fixed: Vec<(String, u64)>,
}

impl Placement {
    /// The gdb command, without a newline, that adds a file's symbols.
    pub fn load_command(&self, path: &Path) -> String {
        let mut command = format!("add-symbol-file {}", quoted(path));
        if self.distance != 0 {
            let _ = write!(command, " -o {:#x}", self.distance);
            for (name, address) in &self.fixed {
                let _ = write!(command, " -s {name} {address:#x}");
            }
        }
        command
    }
}

/// Why a file's symbols are of no use.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read, or is something else.
    #[error("cannot use the symbols of {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// It is of another kernel.
    #[error(
        "{} is of another kernel than the guest's: {agreeing} of {common} functions that both have are where they \
         should be", path.display()
    )]
    OtherKernel {
        /// The file.
        path: PathBuf,
        /// Functions that both have.
        common: usize,
        /// Those of them that are where they should be, if the distance can be measured at all.
        agreeing: usize,
    },
}

/// Compares the symbols in a file with those of the guest's kernel.
pub fn compare(path: &Path, symbols: &Symbols) -> Result<Match, Unusable> {
    let contents = read(path).map_err(|source| Unusable::Unreadable { path: path.to_path_buf(), source })?;
    let (distance, common, agreeing) = compare_functions(&contents.functions, symbols);
    match distance {
        _ if common < MIN_COMMON => Ok(Match::NoKernel),
        Some(distance) if agreeing * 100 >= common * MIN_AGREEING_PERCENT => {
            Ok(Match::Kernel(Placement { distance, fixed: contents.fixed }))
        }
        _ => Err(Unusable::OtherKernel { path: path.to_path_buf(), common, agreeing }),
    }
}

/// A path as gdb's commands take it.
pub fn quoted(path: &Path) -> String {
    let mut text = String::from("\"");
    for c in path.to_string_lossy().chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text + "\""
}

fn read(path: &Path) -> io::Result<Contents> {
    let file = File::open(path)?;
    // Others can be without an end, or wait for somebody.
    if !file.metadata()?.is_file() {
        return Err(bad("it is not a plain file"));
    }
    contents(file)
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// The addresses of functions, by name; of names that occur more than once `None`.
type Functions = BTreeMap<Vec<u8>, Option<u64>>;

/// What is read of a file.
pub(super) struct Contents {
    functions: Functions,
    /// See [`Placement`].
    fixed: Vec<(String, u64)>,
}

/// The distance from the file to the guest's kernel, how many functions can be compared, and how many agree with it.
fn compare_functions(functions: &Functions, symbols: &Symbols) -> (Option<u64>, usize, usize) {
    let known = |name: &str| functions.get(name.as_bytes()).copied().flatten();
    let distance = |name: &&str| Some(symbols.address_of(name)?.wrapping_sub(known(name)?));
    let distance = LANDMARKS.iter().find_map(distance);
    let (mut common, mut agreeing) = (0, 0);
    for (name, address) in functions {
        let Some((name, &Some(address))) = str::from_utf8(name).ok().zip(Some(address)) else { continue };
        let mut kernel = symbols.all_named(name).filter(|symbol| symbol.module.is_none() && symbol.is_code());
        if let (Some(symbol), None) = (kernel.next(), kernel.next()) {
            common += 1;
            agreeing += usize::from(distance == Some(symbol.address.wrapping_sub(address)));
        }
    }
    (distance, common, agreeing)
}

/// Reads a file's functions and landmarks, and which of its sections are not where the kernel is.
pub(super) fn contents(mut file: impl Read + Seek) -> io::Result<Contents> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(|_| bad("it is not an ELF file"))?;
    if !header.starts_with(b"\x7fELF\x02\x01") || u16_at(&header, 18) != EM_X86_64 {
        return Err(bad("it is not an ELF file for x86-64"));
    }
    let size = u64::from(u16_at(&header, 60)) * SECTION_BYTES as u64;
    let sections = table(&mut file, u64_at(&header, 40), size)?;
    let (sections, _) = sections.as_chunks::<SECTION_BYTES>();
    let mut contents = |section: &[u8]| table(&mut file, u64_at(section, 24), u64_at(section, 32));
    let symtab = sections.iter().find(|section| u32_at(*section, 4) == SHT_SYMTAB);
    let symtab = symtab.ok_or_else(|| bad("it has no symbols (stripped?)"))?;
    let strtab = sections.get(u32_at(symtab, 40) as usize).ok_or_else(|| bad("its symbols have no names"))?;
    let functions = functions(&contents(symtab)?, &contents(strtab)?);
    let names = sections.get(usize::from(u16_at(&header, 62))).map(|section| contents(section));
    let names = names.transpose()?.unwrap_or_default();
    let is_fixed = |section: &&[u8; SECTION_BYTES]| {
        u64_at(*section, 8) & SHF_ALLOC != 0 && u64_at(*section, 16) < IMAGE.start
    };
    let fixed = sections.iter().filter(is_fixed).filter_map(|section| {
        let name = str::from_utf8(text_at(&names, u32_at(section, 0))).ok()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_word = !name.is_empty() && name.bytes().all(is_plain);
        is_word.then(|| (name.to_string(), u64_at(section, 16)))
    });
    Ok(Contents { functions, fixed: fixed.collect() })
}

fn functions(symbols: &[u8], names: &[u8]) -> Functions {
    let mut functions = Functions::new();
    for symbol in symbols.as_chunks::<SYMBOL_BYTES>().0 {
        let name = text_at(names, u32_at(symbol, 0));
        let is_landmark = LANDMARKS.iter().any(|landmark| landmark.as_bytes() == name);
        let is_function = symbol[4] & 0xf == STT_FUNC || is_landmark;
        if is_function && u16_at(symbol, 6) != SHN_UNDEF && !name.is_empty() {
            let address = u64_at(symbol, 8);
            functions.entry(name.to_vec()).and_modify(|known| *known = None).or_insert(Some(address));
        }
    }
    functions
}

/// The text that begins at a place in a table of them.
fn text_at(table: &[u8], at: u32) -> &[u8] {
    let text = table.get(at as usize..).unwrap_or_default();
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Reads a part of the file.
fn table(file: &mut (impl Read + Seek), offset: u64, size: u64) -> io::Result<Vec<u8>> {
    if size > MAX_TABLE_BYTES {
        return Err(bad("a table in it is too large"));
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset)).map_err(|_| bad("a table in it is nowhere"))?;
    file.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(bad("it is cut off")) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
