//! ELF files as kernels: headers, loadable segments, notes, sections (System V gABI, chapters 4 and 5).

use std::ops::Range;

use super::bytes::{has_at, slice_at, u16_at, u32_at, u64_at};
use super::loader::Loader;
use super::{BootError, Image};

/// `EM_386`.
pub(super) const MACHINE_386: u16 = 3;
/// `EM_X86_64`.
pub(super) const MACHINE_X86_64: u16 = 62;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHF_ALLOC: u64 = 2;
pub(super) const SHF_EXECINSTR: u64 = 4;
const SHT_NOBITS: u32 = 8;
const NOTE_XEN_GUEST_OS: u32 = 6;
const NOTE_XEN_PHYS32_ENTRY: u32 = 18;

/// One program header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    kind: u32,
    file_offset: u64,
    virtual_address: u64,
    pub(super) physical_address: u64,
    file_size: u64,
    pub(super) memory_size: u64,
}

/// Where the section headers are.
#[derive(Clone, Copy, Debug)]
struct SectionTable {
    offset: u64,
    entry_size: u16,
    count: u16,
    names_index: u16,
}

/// A little-endian x86 ELF executable.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    image: Image<'a>,
    pub(super) is_64: bool,
    pub(super) machine: u16,
    entry: u64,
    segments: Vec<Segment>,
    sections: SectionTable,
}

/// The section headers as a guest gets them, with the addresses of everything that was loaded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SectionHeaders {
    pub(super) count: u32,
    pub(super) entry_size: u32,
    pub(super) names_index: u32,
    pub(super) bytes: Vec<u8>,
}

impl<'a> Elf<'a> {
    pub(super) fn is_elf(bytes: &[u8]) -> bool {
        has_at(bytes, 0, b"\x7fELF")
    }

    /// Reads the file header and the program headers.
    pub(super) fn parse(image: Image<'a>) -> Result<Elf<'a>, BootError> {
        let bytes = image.bytes;
        let header_end = if bytes.get(4) == Some(&1) { 52 } else { 64 };
        let header =
            slice_at(bytes, 0, header_end).ok_or_else(|| truncated(image, "the ELF header", header_end))?;
        let machine = u16_at(header, 18).unwrap_or(0);
        check_machine(image, header, machine)?;
        let is_64 = header[4] == 2;
        let half = |at| u16_at(header, at).unwrap_or(0);
        let word = |at64, at32| {
            let value = if is_64 { u64_at(header, at64) } else { u32_at(header, at32).map(u64::from) };
            value.unwrap_or(0)
        };
        let tail = if is_64 { 54 } else { 42 };
        let sections = SectionTable {
            offset: word(40, 32),
            entry_size: half(tail + 4),
            count: half(tail + 6),
            names_index: half(tail + 8),
        };
        let segments = read_segments(image, is_64, word(32, 28), half(tail), half(tail + 2))?;
        Ok(Elf { image, is_64, machine, entry: word(24, 24), segments, sections })
    }

    /// The segments that go into memory.
    pub(super) fn loadable(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD && segment.memory_size != 0)
    }

    /// The physical address of the entry point. Kernels linked to run elsewhere than they are loaded give
    /// a virtual address; others (Linux) give a physical one already.
    pub(super) fn physical_entry(&self) -> u64 {
        let holder = self
            .loadable()
            .find(|s| self.entry >= s.virtual_address && self.entry - s.virtual_address < s.memory_size);
        match holder {
            Some(segment) => segment.physical_address.wrapping_add(self.entry - segment.virtual_address),
            None => self.entry,
        }
    }

    /// Physical addresses from the first to behind the last loaded byte. `None` without a segment, or if
    /// one leaves the address space (loading then fails).
    pub(super) fn extent(&self) -> Option<(u64, u64)> {
        let start = self.loadable().map(|s| s.physical_address).min()?;
        let ends = self.loadable().map(|s| s.physical_address.checked_add(s.memory_size));
        Some((start, ends.collect::<Option<Vec<u64>>>()?.into_iter().max()?))
    }

    /// Copies every loadable segment to its physical address plus `shift` (modulo 2^64).
    pub(super) fn load(&self, loader: &mut Loader<'_>, shift: u64) -> Result<(), BootError> {
        if self.loadable().next().is_none() {
            return Err(loader.malformed("it has no loadable segment"));
        }
        for segment in self.loadable() {
            let start = segment.physical_address.wrapping_add(shift);
            loader.load_part(start, segment.memory_size, segment.file_offset, segment.file_size)?;
        }
        Ok(())
    }

    /// Whether `address` lies in a loaded segment.
    pub(super) fn contains(&self, address: u64) -> bool {
        self.loadable().any(|s| address >= s.physical_address && address - s.physical_address < s.memory_size)
    }

    /// The 32-bit entry point of the PVH note.
    pub(super) fn pvh_entry(&self) -> Option<u32> {
        let value = self.notes().find(|n| n.owner == b"Xen" && n.kind == NOTE_XEN_PHYS32_ENTRY)?.value;
        // The note has the word size of the file's class, and some 64-bit kernels still write four bytes.
        let entry = u64_at(value, 0).or_else(|| u32_at(value, 0).map(u64::from))?;
        u32::try_from(entry).ok()
    }

    /// Whether the notes say that this is Linux: it leaves notes of its own, or a Xen one with its name.
    pub(super) fn is_linux(&self) -> bool {
        self.notes().any(|note| {
            note.owner == b"Linux"
                || (note.owner == b"Xen"
                    && note.kind == NOTE_XEN_GUEST_OS
                    && note.value.starts_with(b"linux"))
        })
    }

    fn notes(&self) -> impl Iterator<Item = Note<'a>> {
        let bytes = self.image.bytes;
        self.segments
            .iter()
            .filter(|segment| segment.kind == PT_NOTE)
            .filter_map(move |segment| slice_at(bytes, segment.file_offset, segment.file_size))
            .flat_map(|rest| Notes { rest })
    }

    /// The section headers in the file. A stripped or damaged table is not needed to run: there are none then.
    fn section_headers(&self) -> Option<&'a [u8]> {
        let table = self.sections;
        let smallest = if self.is_64 { 64 } else { 40 };
        let size = u64::from(table.entry_size) * u64::from(table.count);
        let headers = slice_at(self.image.bytes, table.offset, size)?;
        (table.count != 0 && table.entry_size >= smallest).then_some(headers)
    }

    /// Where in a 64-bit file the executable sections are. `None` if there are no section headers, or one of them lies.
    pub(super) fn code_sections(&self) -> Option<Vec<Range<usize>>> {
        let mut found = Vec::new();
        for header in self.section_headers()?.chunks_exact(usize::from(self.sections.entry_size)) {
            if u64_at(header, 8)? & SHF_EXECINSTR == 0 || u32_at(header, 4)? == SHT_NOBITS {
                continue;
            }
            let (offset, size) = (u64_at(header, 24)?, u64_at(header, 32)?);
            slice_at(self.image.bytes, offset, size)?;
            found.push(offset as usize..(offset + size) as usize);
        }
        Some(found)
    }

    /// The section headers for the guest. Sections that no segment loads (symbols, names) are put into memory
    /// here; their headers get the new address. `shift` is what [`Elf::load`] was given.
    pub(super) fn load_sections(
        &self,
        loader: &mut Loader<'_>,
        shift: u64,
    ) -> Result<Option<SectionHeaders>, BootError> {
        let table = self.sections;
        let Some(headers) = self.section_headers() else { return Ok(None) };
        let mut bytes = headers.to_vec();
        for header in bytes.chunks_exact_mut(usize::from(table.entry_size)) {
            self.place_section(loader, header, shift)?;
        }
        Ok(Some(SectionHeaders {
            count: u32::from(table.count),
            entry_size: u32::from(table.entry_size),
            names_index: u32::from(table.names_index),
            bytes,
        }))
    }

    fn place_section(&self, loader: &mut Loader<'_>, header: &mut [u8], shift: u64) -> Result<(), BootError> {
        let word = |at64, at32| {
            let value = if self.is_64 { u64_at(header, at64) } else { u32_at(header, at32).map(u64::from) };
            value.unwrap_or(0)
        };
        let (flags, address, offset, size) = (word(8, 8), word(16, 12), word(24, 16), word(32, 20));
        let kind = u32_at(header, 4).unwrap_or(0);
        let new_address = if flags & SHF_ALLOC != 0 {
            address.wrapping_add(shift)
        } else {
            match slice_at(self.image.bytes, offset, size) {
                Some(bytes) if size != 0 && kind != SHT_NOBITS => loader.place_above_1_mib(bytes)?,
                _ => return Ok(()),
            }
        };
        if self.is_64 {
            header[16..24].copy_from_slice(&new_address.to_le_bytes());
        } else {
            header[12..16].copy_from_slice(&(new_address as u32).to_le_bytes());
        }
        Ok(())
    }
}

fn truncated(image: Image<'_>, what: &'static str, needed: u64) -> BootError {
    BootError::Truncated { image: image.name.to_string(), what, needed, size: image.bytes.len() as u64 }
}

fn check_machine(image: Image<'_>, header: &[u8], machine: u16) -> Result<(), BootError> {
    let little_endian = header[5] == 1;
    if little_endian && matches!(machine, MACHINE_386 | MACHINE_X86_64) && matches!(header[4], 1 | 2) {
        return match u16_at(header, 16) {
            Some(2 | 3) => Ok(()),
            _ => Err(BootError::NotAKernel {
                image: image.name.to_string(),
                looks_like: "an ELF file that is not executable (an object file or core dump)".to_string(),
            }),
        };
    }
    let machine = if little_endian { machine } else { machine.swap_bytes() };
    let found = match machine {
        8 => "a MIPS ELF file".to_string(),
        20 | 21 => "a PowerPC ELF file".to_string(),
        22 => "an s390 ELF file".to_string(),
        40 => "a 32-bit Arm ELF file".to_string(),
        183 => "an arm64 ELF file".to_string(),
        243 => "a RISC-V ELF file".to_string(),
        258 => "a LoongArch ELF file".to_string(),
        other => format!("an ELF file for machine number {other}"),
    };
    Err(BootError::WrongArchitecture { image: image.name.to_string(), found })
}

fn read_segments(
    image: Image<'_>,
    is_64: bool,
    offset: u64,
    entry_size: u16,
    count: u16,
) -> Result<Vec<Segment>, BootError> {
    let smallest = if is_64 { 56 } else { 32 };
    if count != 0 && entry_size < smallest {
        let problem = format!("program headers of {entry_size} bytes");
        return Err(BootError::Malformed { image: image.name.to_string(), problem });
    }
    let size = u64::from(entry_size) * u64::from(count);
    let table = slice_at(image.bytes, offset, size)
        .ok_or_else(|| truncated(image, "the program header table", offset.saturating_add(size)))?;
    let headers = table.chunks_exact(usize::from(entry_size.max(1)));
    Ok(headers.map(|header| read_segment(header, is_64)).collect())
}

fn read_segment(header: &[u8], is_64: bool) -> Segment {
    let word = |at64, at32| {
        let value = if is_64 { u64_at(header, at64) } else { u32_at(header, at32).map(u64::from) };
        value.unwrap_or(0)
    };
    Segment {
        kind: u32_at(header, 0).unwrap_or(0),
        file_offset: word(8, 4),
        virtual_address: word(16, 8),
        physical_address: word(24, 12),
        file_size: word(32, 16),
        memory_size: word(40, 20),
    }
}

struct Note<'a> {
    owner: &'a [u8],
    kind: u32,
    value: &'a [u8],
}

/// Walks a note segment; stops at the first note that does not fit.
struct Notes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let bytes = self.rest;
        let (owner_size, value_size) = (u64::from(u32_at(bytes, 0)?), u64::from(u32_at(bytes, 4)?));
        let kind = u32_at(bytes, 8)?;
        let value_at = 12 + owner_size.next_multiple_of(4);
        let owner = slice_at(bytes, 12, owner_size)?;
        let value = slice_at(bytes, value_at, value_size)?;
        let next = usize::try_from(value_at + value_size.next_multiple_of(4)).ok()?;
        self.rest = bytes.get(next..).unwrap_or(&[]);
        Some(Note { owner: owner.strip_suffix(b"\0").unwrap_or(owner), kind, value })
    }
}
