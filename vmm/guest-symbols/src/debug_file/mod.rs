//! Types and variables of a file with debug information (DWARF): a program, a library, or a kernel's `vmlinux`.
//!
//! A type is converted to the kernel's own format (BTF), with all types to which it refers. So one reader of types, `typed.rs`,
//! serves both. The conversion is lazy, because the debug information of a kernel has hundreds of megabytes.
//!
//! Follows the DWARF standard, version 5, sections 4 and 5. The file is not trusted: sizes and counts have limits.

mod convert;
mod entries;
mod records;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use gimli::constants as dw;
use gimli::{
    AttributeValue, DebugInfoOffset, Dwarf, DwarfSections, EndianSlice, LittleEndian, Operation, SectionId,
    UnitRef,
};
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{
    CompressedData, CompressionFormat, Object, ObjectKind, ObjectSection, ObjectSymbol, SymbolKind,
};

use self::entries::{Definition, Entry, Reader, name_of, reference};
use super::typed::{self, NamedType, TypeBytes};

/// The largest size in bytes of a file that is read, and of a section after decompression.
const MAX_BYTES: u64 = 4 << 30;
/// The largest number of namespaces inside one another.
const MAX_DEPTH: isize = 16;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the debug information of {}: {source}", path.display())]
pub struct Unusable {
    path: PathBuf,
    source: io::Error,
}

/// A variable of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The variable's address in the file.
    pub address: u64,
    /// The variable's size in bytes, if the file has no type for the variable and the size is known.
    pub size: Option<u64>,
    /// The place of the variable's type in the debug information.
    kind: Option<DebugInfoOffset>,
}

/// A type of a file, with all types to which it refers.
pub struct Converted {
    /// The types in the kernel's format.
    pub bytes: TypeBytes,
    /// The type itself.
    pub kind: NamedType,
}

/// A file with debug information.
pub struct DebugFile {
    path: PathBuf,
    sections: DwarfSections<Vec<u8>>,
    is_movable: bool,
    /// The first address that the file's first loaded part has, and that part's offset in the file.
    first: (u64, u64),
    variables: HashMap<String, Declared>,
    /// The definitions of types by name: at most one for each tag.
    types: HashMap<String, Vec<Definition>>,
}

impl fmt::Debug for DebugFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DebugFile {
    /// Reads a file's debug information and symbols.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not an ELF file for x86-64, or has neither debug information nor symbols.
    pub fn open(path: &Path) -> Result<DebugFile, Unusable> {
        let bytes = plain_file::read(path, MAX_BYTES);
        let file = bytes.and_then(|bytes| DebugFile::parse(path, &bytes));
        file.map_err(|source| Unusable { path: path.to_path_buf(), source })
    }

    fn parse(path: &Path, bytes: &[u8]) -> io::Result<DebugFile> {
        let elf = ElfFile64::<LittleEndianElf>::parse(bytes)
            .map_err(|_| bad("it is not an ELF file for x86-64"))?;
        let sections = DwarfSections::load(|id| section(&elf, id))?;
        let mut file = DebugFile {
            path: path.to_path_buf(),
            is_movable: elf.kind() == ObjectKind::Dynamic,
            first: first_loaded(&elf),
            sections,
            variables: HashMap::new(),
            types: HashMap::new(),
        };
        let mut index = Index::default();
        index.add_units(&file.dwarf()).map_err(|error| bad(&format!("it is damaged ({error})")))?;
        index.add_symbols(&elf);
        (file.variables, file.types) = (index.variables, index.types);
        if file.variables.is_empty() && file.types.is_empty() {
            return Err(bad("it has neither debug information nor symbols (stripped?)"));
        }
        Ok(file)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel chooses the addresses of the file: a library or a position-independent program.
    pub fn is_movable(&self) -> bool {
        self.is_movable
    }

    /// The distance between the addresses in the file and in a process that has mapped the part of the file at
    /// `file_offset` to `address`.
    pub fn distance(&self, address: u64, file_offset: u64) -> u64 {
        let (first, offset) = self.first;
        address.wrapping_sub(file_offset).wrapping_sub(first.wrapping_sub(offset))
    }

    /// A variable by its name.
    pub fn variable(&self, name: &str) -> Option<Declared> {
        self.variables.get(name).copied()
    }

    /// A variable's type. `None` if the file has only the variable's symbol.
    pub fn type_of(&self, variable: &Declared) -> Option<Converted> {
        let (bytes, numbers) = convert::types(&self.dwarf(), &self.types, &[variable.kind?]);
        Some(Converted { bytes: TypeBytes::of_bytes(bytes), kind: NamedType::from(numbers[0]) })
    }

    /// Finds a type by its name in C, as [`super::btf::Btf::type_named`] does.
    pub fn type_named(&self, name: &str) -> Option<Converted> {
        let definitions = self.types.get(&typed::plain_name(name))?;
        let roots: Vec<DebugInfoOffset> = definitions.iter().map(|definition| definition.at).collect();
        let (bytes, _) = convert::types(&self.dwarf(), &self.types, &roots);
        let bytes = TypeBytes::of_bytes(bytes);
        let kind = bytes.kernel().ok()?.type_named(name)?;
        Some(Converted { bytes, kind })
    }

    fn dwarf(&self) -> Dwarf<Reader<'_>> {
        self.sections.borrow(|section| EndianSlice::new(section, LittleEndian))
    }
}

type LittleEndianElf = object::LittleEndian;

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

fn section(elf: &ElfFile64<'_, LittleEndianElf>, id: SectionId) -> io::Result<Vec<u8>> {
    let Some(section) = elf.section_by_name(id.name()) else { return Ok(Vec::new()) };
    let data = section.compressed_data().map_err(|_| bad("it is cut off"))?;
    decompressed(&data).map(Cow::into_owned)
}

fn decompressed<'a>(data: &CompressedData<'a>) -> io::Result<Cow<'a, [u8]>> {
    let bytes = match data.format {
        CompressionFormat::None => return Ok(Cow::Borrowed(data.data)),
        CompressionFormat::Zlib => limited(ZlibDecoder::new(data.data))?,
        CompressionFormat::Zstandard => limited(zstd::Decoder::new(data.data)?)?,
        _ => {
            return Err(bad(
                "its sections are compressed in an unknown way: use 'objcopy --decompress-debug-sections'",
            ));
        }
    };
    Ok(Cow::Owned(bytes))
}

fn limited(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let count = reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if count as u64 > MAX_BYTES { Err(bad("a section is too large")) } else { Ok(bytes) }
}

/// The address of the first loaded part of a file, and the part's offset in the file.
fn first_loaded(elf: &ElfFile64<'_, LittleEndianElf>) -> (u64, u64) {
    let endian = elf.endian();
    let headers: &[<FileHeader64<LittleEndianElf> as object::read::elf::FileHeader>::ProgramHeader] =
        elf.elf_program_headers();
    let mut loaded = headers.iter().filter(|header| header.p_type(endian) == PT_LOAD);
    loaded.next().map_or((0, 0), |header| (header.p_vaddr(endian), header.p_offset(endian)))
}

/// Variables and types by name.
#[derive(Default)]
struct Index {
    variables: HashMap<String, Declared>,
    types: HashMap<String, Vec<Definition>>,
}

impl Index {
    fn add_units(&mut self, dwarf: &Dwarf<Reader<'_>>) -> gimli::Result<()> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            self.add_unit(unit.unit_ref(dwarf))?;
        }
        Ok(())
    }

    /// Adds the unit's variables and types, also inside namespaces, but not inside functions.
    fn add_unit(&mut self, unit: UnitRef<'_, Reader<'_>>) -> gimli::Result<()> {
        let mut entries = unit.entries();
        // The first entry is the unit itself.
        let mut found = entries.next_dfs()?.is_some();
        while found {
            found = match entries.current() {
                Some(entry) if !holds_names(entry) => {
                    self.add(unit, entry);
                    entries.next_sibling()?.is_some() || entries.next_dfs()?.is_some()
                }
                _ => entries.next_dfs()?.is_some(),
            };
        }
        Ok(())
    }

    fn add<'a>(&mut self, unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>) {
        let Some(at) = entry.offset.to_debug_info_offset(&unit.header) else { return };
        if entry.tag == dw::DW_TAG_variable {
            if let Some((name, variable)) = variable(unit, entry) {
                self.variables.entry(name).or_insert(variable);
            }
        } else if is_definition(entry)
            && let Some(name) = name_of(unit, entry)
        {
            let known = self.types.entry(name).or_default();
            if !known.iter().any(|definition| definition.tag == entry.tag) {
                known.push(Definition { tag: entry.tag, at });
            }
        }
    }

    /// Adds the variables that only the symbol table has.
    fn add_symbols(&mut self, elf: &ElfFile64<'_, LittleEndianElf>) {
        for symbol in
            elf.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Data)
        {
            let Ok(name) = symbol.name() else { continue };
            let variable = Declared { address: symbol.address(), size: Some(symbol.size()), kind: None };
            self.variables.entry(name.to_string()).or_insert(variable);
        }
    }
}

/// Whether an entry's children may be variables and types with a name of their own.
fn holds_names(entry: &Entry<'_>) -> bool {
    let holds = [dw::DW_TAG_compile_unit, dw::DW_TAG_partial_unit, dw::DW_TAG_namespace];
    holds.contains(&entry.tag) && entry.depth < MAX_DEPTH
}

fn is_definition(entry: &Entry<'_>) -> bool {
    let types = [
        dw::DW_TAG_base_type,
        dw::DW_TAG_typedef,
        dw::DW_TAG_structure_type,
        dw::DW_TAG_class_type,
        dw::DW_TAG_union_type,
        dw::DW_TAG_enumeration_type,
    ];
    types.contains(&entry.tag) && entry.attr(dw::DW_AT_declaration).is_none()
}

/// The name, address and type of a variable with a fixed address.
fn variable<'a>(unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>) -> Option<(String, Declared)> {
    let address = fixed_address(unit, entry)?;
    // The definition of a variable that was declared before has only a reference to the declaration.
    let declaration = match entry.attr_value(dw::DW_AT_specification) {
        Some(AttributeValue::UnitRef(at)) => Some(unit.entry(at).ok()?),
        _ => None,
    };
    let both = || [Some(entry), declaration.as_ref()].into_iter().flatten();
    let name = both().find_map(|entry| name_of(unit, entry))?;
    let kind = both().find_map(|entry| reference(unit.unit, entry));
    Some((name, Declared { address, size: None, kind }))
}

fn fixed_address<'a>(unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>) -> Option<u64> {
    let location = entry.attr(dw::DW_AT_location)?.exprloc_value()?;
    let mut operations = location.operations(unit.encoding());
    let address = match operations.next().ok()?? {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => unit.address(index).ok()?,
        _ => return None,
    };
    // A second operation, as for thread-local variables, would change the meaning.
    operations.next().ok()?.is_none().then_some(address)
}
