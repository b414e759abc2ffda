//! An ELF file with symbols and debug information. gdb loads the file with `symbol-file` or `add-symbol-file`, or as
//! the program to debug.
//!
//! The file's sections are allocated but hold no bytes (`SHT_NOBITS`), as after `objcopy --only-keep-debug`. So
//! debuggers read memory from the guest, and not from the file. Local symbols come first, in groups by module. Each
//! group begins with a file symbol that has the module's name. The crate `object` writes the file's structures.

use std::iter;

use object::Endianness;
use object::elf::{
    ELFOSABI_NONE, EM_X86_64, ET_EXEC, FileFlags, FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHN_ABS,
    SHN_LORESERVE, SHT_NOBITS, SHT_PROGBITS, STB_GLOBAL, STB_LOCAL, STB_WEAK, STT_FILE, STT_FUNC, STT_NOTYPE,
    STT_OBJECT, SectionFlags, SymbolBind, SymbolInfo, SymbolOther,
};
use object::write::StringId;
use object::write::elf::{FileHeader, SectionHeader, SectionIndex, Sym, Writer};

use super::dwarf::DebugInfo;
use super::sections::{Access, Section};
use super::symbols::{Symbol, Symbols};

/// The largest number of sections of the kernel and its modules. The file's other sections are the null section, the
/// symbols, their names, the sections' names, and debug information.
const MAX_SECTIONS: usize = SHN_LORESERVE as usize - 4 - 8;

/// The reason why offsets of names fit into 32 bits. A kernel's names have some megabytes.
const FITS: &str = "names are shorter than four gigabytes";

/// A symbol for the file. The offset of the symbol's name is known only when all names have been collected.
struct NamedSym {
    name: StringId,
    sym: Sym,
}

/// The contents of a file with only symbols.
pub fn file(symbols: &Symbols) -> Vec<u8> {
    with_debug_info(symbols, &DebugInfo::default())
}

/// The contents of a file with symbols and debug information.
pub fn with_debug_info(symbols: &Symbols, debug: &DebugInfo) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(symbols, debug, &mut Writer::new(Endianness::Little, true, &mut bytes));
    bytes
}

/// Writes the file. The two groups of calls to the writer determine the order in the file. The first group reserves
/// space for all parts, the second group writes the parts.
fn write<'a>(symbols: &'a Symbols, debug: &'a DebugInfo, writer: &mut Writer<'a>) {
    let sections = &symbols.sections()[..symbols.sections().len().min(MAX_SECTIONS)];
    let section_names: Vec<StringId> =
        sections.iter().map(|section| writer.add_section_name(name_bytes(&section.name))).collect();
    let numbers: Vec<SectionIndex> = sections.iter().map(|_| writer.reserve_section_index()).collect();
    let debug_names = debug.sections().iter().map(|(name, _)| writer.add_section_name(name.as_bytes()));
    let debug_names: Vec<StringId> = debug_names.collect();
    debug.sections().iter().for_each(|_| {
        writer.reserve_section_index();
    });
    writer.reserve_null_symbol_index();
    let locals: Vec<NamedSym> = local_symbols(symbols, &numbers, writer);
    let globals = symbols.all().iter().filter(|symbol| binding(symbol) != STB_LOCAL);
    let globals: Vec<NamedSym> = globals.map(|symbol| reserve_symbol(symbol, &numbers, writer)).collect();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_file_header();
    writer.reserve_symtab();
    writer.reserve_strtab().expect(FITS);
    writer.reserve_shstrtab().expect(FITS);
    let debug_places = debug.sections().iter().map(|(_, bytes)| writer.reserve(bytes.len() as u64, 1));
    let debug_places: Vec<u64> = debug_places.collect();
    writer.reserve_section_headers();

    let header = FileHeader {
        os_abi: ELFOSABI_NONE,
        abi_version: 0,
        e_type: ET_EXEC,
        e_machine: EM_X86_64,
        e_entry: 0,
        e_flags: FileFlags(0),
    };
    writer.write_file_header(&header).expect("a vector takes any number of bytes");
    writer.write_null_symbol();
    for NamedSym { name, sym } in locals.iter().chain(&globals) {
        writer.write_symbol(&Sym { st_name: writer.string_offset(Some(*name)), ..sym.clone() });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    debug.sections().iter().for_each(|(_, bytes)| writer.write(bytes));
    writer.write_null_section_header();
    for (name, section) in section_names.into_iter().zip(sections) {
        writer.write_section_header(&kernel_section(writer.section_name_offset(Some(name)), section));
    }
    for ((name, place), (_, bytes)) in debug_names.into_iter().zip(debug_places).zip(debug.sections()) {
        writer.write_section_header(&debug_section(writer.section_name_offset(Some(name)), place, bytes));
    }
    writer.write_symtab_section_header(locals.len() as u32 + 1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
}

/// A section of the kernel, whose bytes are not in the file.
fn kernel_section(name: u32, section: &Section) -> SectionHeader {
    let flags = match section.access {
        Access::Code => SHF_ALLOC | SHF_EXECINSTR,
        Access::Constants => SHF_ALLOC,
        Access::Data => SHF_ALLOC | SHF_WRITE,
    };
    SectionHeader {
        sh_name: name,
        sh_type: SHT_NOBITS,
        sh_flags: flags,
        sh_addr: section.start,
        sh_offset: size_of::<FileHeader64<Endianness>>() as u64,
        sh_size: section.size,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    }
}

/// A section with debug information, which is in the file but is not loaded into memory.
fn debug_section(name: u32, place: u64, bytes: &[u8]) -> SectionHeader {
    SectionHeader {
        sh_name: name,
        sh_type: SHT_PROGBITS,
        sh_flags: SectionFlags(0),
        sh_addr: 0,
        sh_offset: place,
        sh_size: bytes.len() as u64,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    }
}

/// The local symbols: first the kernel's, then each module's. A file symbol precedes each group.
fn local_symbols<'a>(
    symbols: &'a Symbols,
    sections: &[SectionIndex],
    writer: &mut Writer<'a>,
) -> Vec<NamedSym> {
    let mut locals: Vec<&Symbol> =
        symbols.all().iter().filter(|symbol| binding(symbol) == STB_LOCAL).collect();
    locals.sort_by_key(|symbol| symbol.module);
    let mut locals = locals.into_iter().peekable();
    let files = iter::once("vmlinux").chain(symbols.modules().iter().map(String::as_str));
    let modules = iter::once(None).chain((0..symbols.modules().len()).map(Some));
    let mut table = Vec::new();
    for (file, module) in files.zip(modules) {
        writer.reserve_symbol_index(None);
        table.push(sym(writer.add_string(name_bytes(file)), None, STB_LOCAL | STT_FILE, 0, 0));
        while let Some(symbol) = locals.next_if(|symbol| symbol.module == module) {
            table.push(reserve_symbol(symbol, sections, writer));
        }
    }
    table
}

fn binding(symbol: &Symbol) -> SymbolBind {
    match symbol.class {
        b'w' | b'W' | b'v' | b'V' => STB_WEAK,
        _ if symbol.is_global() => STB_GLOBAL,
        _ => STB_LOCAL,
    }
}

fn reserve_symbol<'a>(symbol: &'a Symbol, sections: &[SectionIndex], writer: &mut Writer<'a>) -> NamedSym {
    let section = symbol.section.and_then(|number| sections.get(number)).copied();
    let kind = match section {
        None => STT_NOTYPE,
        Some(_) if symbol.is_code() || matches!(symbol.class, b'w' | b'W') => STT_FUNC,
        Some(_) => STT_OBJECT,
    };
    let name = writer.add_string(name_bytes(&symbol.name));
    writer.reserve_symbol_index(section);
    sym(name, section, binding(symbol) | kind, symbol.address, symbol.size)
}

fn sym(name: StringId, section: Option<SectionIndex>, info: SymbolInfo, value: u64, size: u64) -> NamedSym {
    let sym = Sym {
        section: section.map(|section| section.0),
        st_name: 0,
        st_info: info,
        st_other: SymbolOther(0),
        st_shndx: SHN_ABS,
        st_value: value,
        st_size: size,
    };
    NamedSym { name, sym }
}

/// A name up to its first NUL. The writer rejects NULs, and the file cannot store them.
fn name_bytes(name: &str) -> &[u8] {
    name.split('\0').next().unwrap_or_default().as_bytes()
}
