//! An ELF file with nothing but symbols, for gdb: `symbol-file`, `add-symbol-file`, or as the program itself.
//!
//! Follows the ELF-64 object file format, version 1.5, and the gABI: sections that are allocated but hold no bytes
//! (`SHT_NOBITS`), as in files that `objcopy --only-keep-debug` leaves, so that debuggers read memory from the
//! target. Local symbols come first, in groups that each begin with the name of their module as a file.

use super::{Access, Section, Symbol, Symbols};

const HEADER_BYTES: u64 = 64;
const SYMBOL_BYTES: u64 = 24;
/// Numbers of sections from here on mean something special.
const MAX_SECTIONS: usize = 0xff00 - 4;

const ET_EXEC: u16 = 2;
const EM_X86_64: u16 = 62;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const SHN_ABS: u16 = 0xfff1;
const STB_LOCAL: u8 = 0;
const STB_GLOBAL: u8 = 1;
const STB_WEAK: u8 = 2;
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_FILE: u8 = 4;

/// The file's contents.
pub fn file(symbols: &Symbols) -> Vec<u8> {
    let sections = &symbols.sections()[..symbols.sections().len().min(MAX_SECTIONS)];
    let (table, locals, names) = symbol_table(symbols, sections.len());
    let mut section_names = Strings::default();
    let mut headers = vec![SectionHeader::default()];
    headers.extend(sections.iter().map(|section| SectionHeader::of(section, &mut section_names)));
    let strings_number = headers.len() as u32 + 1;
    let mut file = vec![0; HEADER_BYTES as usize];
    let mut append = |bytes: &[u8], header: SectionHeader| {
        file.resize(file.len().next_multiple_of(8), 0);
        let (offset, size) = (file.len() as u64, bytes.len() as u64);
        file.extend_from_slice(bytes);
        SectionHeader { offset, size, ..header }
    };
    let symtab = SectionHeader {
        name: section_names.add(".symtab"),
        kind: SHT_SYMTAB,
        link: strings_number,
        info: locals,
        align: 8,
        entry_bytes: SYMBOL_BYTES,
        ..SectionHeader::default()
    };
    headers.push(append(&table, symtab));
    let strings = |name| SectionHeader { name, kind: SHT_STRTAB, align: 1, ..SectionHeader::default() };
    headers.push(append(&names.bytes, strings(section_names.add(".strtab"))));
    let name = section_names.add(".shstrtab");
    headers.push(append(&section_names.bytes, strings(name)));
    file.resize(file.len().next_multiple_of(8), 0);
    let header = elf_header(file.len() as u64, headers.len() as u16);
    file[..HEADER_BYTES as usize].copy_from_slice(&header);
    file.extend(headers.iter().flat_map(SectionHeader::bytes));
    file
}

/// Texts that are found by where they begin.
struct Strings {
    bytes: Vec<u8>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { bytes: vec![0] }
    }
}

impl Strings {
    fn add(&mut self, text: &str) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        at
    }
}

/// The symbol table, how many of its entries come before the global ones, and the names.
fn symbol_table(symbols: &Symbols, sections: usize) -> (Vec<u8>, u32, Strings) {
    let mut names = Strings::default();
    let mut table = vec![0; SYMBOL_BYTES as usize];
    let files = [None].into_iter().chain((0..symbols.modules().len()).map(Some));
    let mut locals: Vec<&Symbol> =
        symbols.all().iter().filter(|symbol| binding(symbol) == STB_LOCAL).collect();
    locals.sort_by_key(|symbol| symbol.module);
    let mut locals = locals.into_iter().peekable();
    for module in files {
        let file = module.map_or("vmlinux", |number: usize| &symbols.modules()[number]);
        table.extend(entry(names.add(file), STT_FILE, SHN_ABS, 0, 0));
        while let Some(symbol) = locals.next_if(|symbol| symbol.module == module) {
            table.extend(symbol_entry(symbol, sections, &mut names));
        }
    }
    let count = table.len() as u64 / SYMBOL_BYTES;
    for symbol in symbols.all().iter().filter(|symbol| binding(symbol) != STB_LOCAL) {
        table.extend(symbol_entry(symbol, sections, &mut names));
    }
    (table, count as u32, names)
}

fn binding(symbol: &Symbol) -> u8 {
    match symbol.class {
        b'w' | b'W' | b'v' | b'V' => STB_WEAK,
        _ if symbol.is_global() => STB_GLOBAL,
        _ => STB_LOCAL,
    }
}

fn symbol_entry(symbol: &Symbol, sections: usize, names: &mut Strings) -> [u8; SYMBOL_BYTES as usize] {
    let section = symbol.section.filter(|&number| number < sections);
    let kind = match section {
        None => STT_NOTYPE,
        Some(_) if symbol.is_code() || matches!(symbol.class, b'w' | b'W') => STT_FUNC,
        Some(_) => STT_OBJECT,
    };
    let number = section.map_or(SHN_ABS, |number| number as u16 + 1);
    let info = binding(symbol) << 4 | kind;
    entry(names.add(&symbol.name), info, number, symbol.address, symbol.size)
}

/// `Elf64_Sym`.
fn entry(name: u32, info: u8, section: u16, value: u64, size: u64) -> [u8; SYMBOL_BYTES as usize] {
    let mut bytes = [0; SYMBOL_BYTES as usize];
    bytes[..4].copy_from_slice(&name.to_le_bytes());
    bytes[4] = info;
    bytes[6..8].copy_from_slice(&section.to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes[16..].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// `Elf64_Shdr`.
#[derive(Default)]
struct SectionHeader {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry_bytes: u64,
}

impl SectionHeader {
    /// For a part of the kernel, whose bytes are not in the file.
    fn of(section: &Section, names: &mut Strings) -> SectionHeader {
        let flags = match section.access {
            Access::Code => SHF_ALLOC | SHF_EXECINSTR,
            Access::Constants => SHF_ALLOC,
            Access::Data => SHF_ALLOC | SHF_WRITE,
        };
        SectionHeader {
            name: names.add(&section.name),
            kind: SHT_NOBITS,
            flags,
            address: section.start,
            offset: HEADER_BYTES,
            size: section.size,
            align: 1,
            ..SectionHeader::default()
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([self.name, self.kind].iter().flat_map(|word| word.to_le_bytes()));
        let words = [self.flags, self.address, self.offset, self.size];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend([self.link, self.info].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend([self.align, self.entry_bytes].iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }
}

/// `Elf64_Ehdr`: little-endian, for System V, without program headers or an entry.
fn elf_header(section_headers: u64, count: u16) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &ET_EXEC.to_le_bytes());
    put(18, &EM_X86_64.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(40, &section_headers.to_le_bytes());
    put(52, &(HEADER_BYTES as u16).to_le_bytes());
    put(58, &64u16.to_le_bytes());
    put(60, &count.to_le_bytes());
    put(62, &(count - 1).to_le_bytes());
    bytes
}
