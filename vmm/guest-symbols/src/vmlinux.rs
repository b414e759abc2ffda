//! A kernel's file with symbols, such as the `vmlinux` of Debian's `-dbg` packages. This module finds the distance
//! between the addresses in the file and in the guest (KASLR).
//!
//! Only the symbol table is read, by the crate `object`. A kernel with debug information has hundreds of megabytes, so
//! no other part of the file is loaded. The file may be hostile. The size of the loaded parts is checked here, because
//! a sparse file can be larger than memory. To check that the file belongs to the guest's kernel, the module compares
//! the addresses of all functions whose names occur once in both.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use object::elf::{
    EM_X86_64, FileHeader64, SHF_ALLOC, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, SectionHeader64, Sym64,
};
use object::pod::slice_from_bytes;
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::read::{ReadCache, StringTable};
use object::{LittleEndian, ReadRef};

use super::kallsyms::IMAGE;
use super::symbols::Symbols;

/// The largest size in bytes of a table that is read.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Symbols that both the file and the kernel have. The difference of such a symbol's addresses is the distance between
/// file and kernel.
const LANDMARKS: [&str; 3] = ["_stext", "_text", "startup_64"];
/// A file that has fewer functions than this in common with the guest's kernel is not accepted as a kernel.
const MIN_COMMON: usize = 64;
/// The percentage of functions that must be at the expected address.
const MIN_AGREEING_PERCENT: usize = 99;

/// The relation of a file to the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The file belongs to this kernel.
    Kernel(Placement),
    /// The file is not a kernel.
    NoKernel,
}

/// The addresses of a file's sections in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The number of bytes to add to the file's addresses to get the guest's addresses.
    pub distance: u64,
    /// The sections that are not moved, by name and address. Such sections have the per-CPU variables, whose addresses
    /// are offsets.
    pub fixed: Vec<(String, u64)>,
}

impl Placement {
    /// The gdb command, without a newline, that loads a file's symbols.
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

/// Why a file's symbols cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file cannot be read, or is not an ELF file with symbols.
    #[error("cannot use the symbols of {}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error from reading the file.
        source: io::Error,
    },
    /// The file is of another kernel.
    #[error(
        "{} is not of the guest's kernel: {agreeing} of {common} common functions are at the expected addresses; \
         use the file of the same build",
        path.display()
    )]
    OtherKernel {
        /// The path of the file.
        path: PathBuf,
        /// The number of functions in both the file and the guest's kernel.
        common: usize,
        /// The number of compared functions at the expected address, if the distance can be measured.
        agreeing: usize,
    },
}

/// Compares a file's symbols with the guest kernel's symbols.
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

/// A path, quoted for gdb's commands.
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
    contents(plain_file::open(path)?)
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// The addresses of functions, by name; `None` for names that occur more than once.
type Functions = BTreeMap<Vec<u8>, Option<u64>>;

/// The loaded contents of a file.
pub(super) struct Contents {
    functions: Functions,
    /// The sections that are not moved (see [`Placement::fixed`]).
    fixed: Vec<(String, u64)>,
}

/// The distance between the addresses in the file and in the guest's kernel. Also the number of functions in both,
/// and how many of these functions have this distance.
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

/// Reads a file's functions and landmarks, and the sections outside of the kernel's image.
pub(super) fn contents(file: impl Read + Seek) -> io::Result<Contents> {
    let file = &ReadCache::new(file);
    let header: &FileHeader64<LittleEndian> = file.read_at(0).map_err(|()| bad("it is not an ELF file"))?;
    if !header.is_supported() || header.is_big_endian() || header.e_machine(LittleEndian) != EM_X86_64 {
        return Err(bad("it is not an ELF file for x86-64"));
    }
    let count = header.shnum(LittleEndian, file).map_err(|_| bad("it is cut off"))?;
    limited((count as u64).saturating_mul(size_of::<SectionHeader64<LittleEndian>>() as u64))?;
    let sections = header.section_headers(LittleEndian, file).map_err(|_| bad("it is cut off"))?;
    let table = |section: &SectionHeader64<LittleEndian>| {
        limited(section.sh_size(LittleEndian))?;
        section.data(LittleEndian, file).map_err(|_| bad("it is cut off"))
    };
    let symtab = sections.iter().find(|section| section.sh_type(LittleEndian) == SHT_SYMTAB);
    let symtab = symtab.ok_or_else(|| bad("it has no symbols (stripped?)"))?;
    let strtab = sections.get(symtab.sh_link(LittleEndian) as usize);
    let strtab = strtab.ok_or_else(|| bad("its symbols have no names"))?;
    let functions = functions(table(symtab)?, texts(table(strtab)?));
    let names = sections.get(usize::from(header.e_shstrndx(LittleEndian).0)).map(table).transpose()?;
    let names = texts(names.unwrap_or_default());
    let is_fixed = |section: &&SectionHeader64<LittleEndian>| {
        section.sh_flags(LittleEndian).contains(SHF_ALLOC) && section.sh_addr(LittleEndian) < IMAGE.start
    };
    let fixed = sections.iter().filter(is_fixed).filter_map(|section| {
        let name = str::from_utf8(section.name(LittleEndian, names).ok()?).ok()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_word = !name.is_empty() && name.bytes().all(is_plain);
        is_word.then(|| (name.to_string(), section.sh_addr(LittleEndian)))
    });
    Ok(Contents { functions, fixed: fixed.collect() })
}

fn functions(symbols: &[u8], names: StringTable<'_>) -> Functions {
    let mut functions = Functions::new();
    let count = symbols.len() / size_of::<Sym64<LittleEndian>>();
    let (symbols, _) = slice_from_bytes::<Sym64<LittleEndian>>(symbols, count).expect("so many fit");
    for symbol in symbols {
        let name = symbol.name(LittleEndian, names).unwrap_or_default();
        let is_landmark = LANDMARKS.iter().any(|landmark| landmark.as_bytes() == name);
        let is_function = symbol.st_type() == STT_FUNC || is_landmark;
        if is_function && symbol.st_shndx(LittleEndian) != SHN_UNDEF && !name.is_empty() {
            let address = symbol.st_value(LittleEndian);
            functions.entry(name.to_vec()).and_modify(|known| *known = None).or_insert(Some(address));
        }
    }
    functions
}

fn texts(table: &[u8]) -> StringTable<'_> {
    StringTable::new(table, 0, table.len() as u64)
}

/// Returns an error if a part of a file is too large to load.
fn limited(size_bytes: u64) -> io::Result<()> {
    if size_bytes > MAX_TABLE_BYTES { Err(bad("a table in it is too large")) } else { Ok(()) }
}
