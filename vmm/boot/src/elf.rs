//! ELF files as kernels: loadable segments, notes, sections (System V gABI, chapters 4 and 5).
//!
//! The crate `object` reads the file's structures. This module replaces two of its checks. The crate refuses
//! files for other machines without naming the machine. The crate's walk over notes takes the padding from
//! the segment's alignment, but kernels always pad notes to four bytes.

use std::iter;
use std::ops::Range;

use object::elf::{
    ELFCLASS32, ELFMAG, EM_386, EM_AARCH64, EM_ARM, EM_LOONGARCH, EM_MIPS, EM_PPC, EM_PPC64, EM_RISCV,
    EM_S390, EM_X86_64, ET_DYN, ET_EXEC, FileHeader32, FileHeader64, Machine, NoteType, PT_LOAD, PT_NOTE,
    ProgramType, SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SectionHeader32, SectionHeader64, SymbolSection,
};
use object::pod::bytes_of_slice;
use object::read::elf::{FileHeader, Note, NoteIterator, ProgramHeader, SectionHeader};
use object::{Endianness, ReadRef};

use super::bytes::{has_at, slice_at, u32_at, u64_at};
use super::error::BootError;
use super::images::Image;
use super::loader::Loader;

/// Every file is read in this byte order. A file in the other byte order is refused, and the error names the file's
/// machine.
const LITTLE: Endianness = Endianness::Little;
const NOTE_ALIGNMENT: u64 = 4;
const NOTE_XEN_GUEST_OS: NoteType = NoteType(6);
const NOTE_XEN_PHYS32_ENTRY: NoteType = NoteType(18);

/// A program header, from a 32-bit or 64-bit file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    kind: ProgramType,
    file_offset: u64,
    virtual_address: u64,
    pub(super) physical_address: u64,
    file_size: u64,
    pub(super) memory_size: u64,
}

/// The section headers in the file. A kernel runs without them, so a stripped or damaged table counts as empty.
#[derive(Debug)]
enum Sections<'a> {
    Elf32(&'a [SectionHeader32<Endianness>]),
    Elf64(&'a [SectionHeader64<Endianness>]),
}

/// A little-endian x86 ELF executable.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    image: Image<'a>,
    machine: Machine,
    entry: u64,
    segments: Vec<Segment>,
    sections: Sections<'a>,
    names_index: SymbolSection,
}

/// The section headers as the guest gets them. Each header has the address of its section in guest memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SectionHeaders {
    pub(super) count: u32,
    pub(super) entry_size: u32,
    pub(super) names_index: u32,
    pub(super) bytes: Vec<u8>,
}

impl<'a> Elf<'a> {
    pub(super) fn is_elf(bytes: &[u8]) -> bool {
        has_at(bytes, 0, &ELFMAG)
    }

    /// Reads the file header, the program headers and the section headers.
    pub(super) fn parse(image: Image<'a>) -> Result<Elf<'a>, BootError> {
        // A file with an unknown class byte is read as 64-bit. `check_machine` then refuses the file and names its
        // machine.
        if image.bytes.get(4) == Some(&ELFCLASS32.0) {
            Elf::of_class::<FileHeader32<Endianness>>(image, Sections::Elf32)
        } else {
            Elf::of_class::<FileHeader64<Endianness>>(image, Sections::Elf64)
        }
    }

    fn of_class<H: FileHeader<Endian = Endianness>>(
        image: Image<'a>,
        sections: impl Fn(&'a [H::SectionHeader]) -> Sections<'a>,
    ) -> Result<Elf<'a>, BootError> {
        let bytes = image.bytes;
        let header: &H =
            bytes.read_at(0).map_err(|()| truncated(image, "the ELF header", size_of::<H>() as u64))?;
        check_machine(image, header)?;
        let segments = header.program_headers(LITTLE, bytes).map_err(|_| no_segments(image, header))?;
        Ok(Elf {
            image,
            machine: header.e_machine(LITTLE),
            entry: header.e_entry(LITTLE).into(),
            segments: segments.iter().map(Segment::of).collect(),
            sections: sections(header.section_headers(LITTLE, bytes).unwrap_or_default()),
            names_index: header.e_shstrndx(LITTLE),
        })
    }

    /// Whether the file is a 64-bit file for a 64-bit processor.
    pub(super) fn is_x86_64(&self) -> bool {
        self.machine == EM_X86_64 && matches!(self.sections, Sections::Elf64(_))
    }

    /// The segments that go into memory.
    pub(super) fn loadable(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD && segment.memory_size != 0)
    }

    /// The physical address of the entry point. Some files give the entry point as a virtual address in one of their
    /// segments. Other files (Linux's) give a physical address.
    pub(super) fn physical_entry(&self) -> u64 {
        let holder = self
            .loadable()
            .find(|s| self.entry >= s.virtual_address && self.entry - s.virtual_address < s.memory_size);
        match holder {
            Some(segment) => segment.physical_address.wrapping_add(self.entry - segment.virtual_address),
            None => self.entry,
        }
    }

    /// The physical addresses of the first loaded byte and of the end of the last. Returns `None` if the file has no
    /// loadable segment, or if a segment ends beyond the 64-bit address space. Loading then fails.
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
        let is_entry = |note: &KernelNote<'_>| is_xen(note, NOTE_XEN_PHYS32_ENTRY);
        let value = self.notes().find(is_entry)?.desc();
        // The note has the word size of the file's class, but some 64-bit kernels write four bytes.
        let entry = u64_at(value, 0).or_else(|| u32_at(value, 0).map(u64::from))?;
        u32::try_from(entry).ok()
    }

    /// Whether the kernel is Linux, by Linux's own notes or by a Xen note with Linux's name.
    pub(super) fn is_linux(&self) -> bool {
        self.notes().any(|note| {
            note.name() == b"Linux" || (is_xen(&note, NOTE_XEN_GUEST_OS) && note.desc().starts_with(b"linux"))
        })
    }

    /// The notes of each segment, up to the first note that ends beyond its segment.
    fn notes(&self) -> impl Iterator<Item = KernelNote<'a>> {
        let bytes = self.image.bytes;
        self.segments
            .iter()
            .filter(|segment| segment.kind == PT_NOTE)
            .filter_map(move |segment| slice_at(bytes, segment.file_offset, segment.file_size))
            .filter_map(|notes| NoteIterator::new(LITTLE, NOTE_ALIGNMENT, notes).ok())
            .flat_map(|mut notes| iter::from_fn(move || notes.next().ok().flatten()))
    }

    /// The executable sections' ranges in a 64-bit file. `None` if a section ends beyond the file.
    pub(super) fn code_sections(&self) -> Option<Vec<Range<usize>>> {
        let Sections::Elf64(headers) = self.sections else { return None };
        let is_code = |header: &&SectionHeader64<Endianness>| {
            header.sh_flags(LITTLE).contains(SHF_EXECINSTR) && header.sh_type(LITTLE) != SHT_NOBITS
        };
        let in_file = |header: &SectionHeader64<Endianness>| {
            let (offset, size) = header.file_range(LITTLE)?;
            slice_at(self.image.bytes, offset, size)?;
            Some(offset as usize..(offset + size) as usize)
        };
        headers.iter().filter(is_code).map(in_file).collect()
    }

    /// The section headers for the guest. This function also puts sections that no segment loads (symbols, names) into
    /// memory, and writes their new address into their headers. `shift` is the same as for [`Elf::load`].
    pub(super) fn load_sections(
        &self,
        loader: &mut Loader<'_>,
        shift: u64,
    ) -> Result<Option<SectionHeaders>, BootError> {
        let (count, bytes) = match self.sections {
            Sections::Elf32(headers) => {
                let set =
                    |header: &mut SectionHeader32<_>, address| header.sh_addr.set(LITTLE, address as u32);
                (headers.len(), self.place_sections(loader, shift, headers, set)?)
            }
            Sections::Elf64(headers) => {
                let set = |header: &mut SectionHeader64<_>, address| header.sh_addr.set(LITTLE, address);
                (headers.len(), self.place_sections(loader, shift, headers, set)?)
            }
        };
        Ok((count != 0).then(|| SectionHeaders {
            count: count as u32,
            entry_size: (bytes.len() / count) as u32,
            names_index: u32::from(self.names_index.0),
            bytes,
        }))
    }

    fn place_sections<S: SectionHeader<Endian = Endianness>>(
        &self,
        loader: &mut Loader<'_>,
        shift: u64,
        headers: &[S],
        set_address: impl Fn(&mut S, u64),
    ) -> Result<Vec<u8>, BootError> {
        let mut headers = headers.to_vec();
        for header in &mut headers {
            let address = if header.sh_flags(LITTLE).contains(SHF_ALLOC) {
                header.sh_addr(LITTLE).into().wrapping_add(shift)
            } else {
                match header.data(LITTLE, self.image.bytes) {
                    Ok(bytes) if !bytes.is_empty() => loader.place_above_1_mib(bytes)?,
                    _ => continue,
                }
            };
            set_address(header, address);
        }
        Ok(bytes_of_slice(&headers).to_vec())
    }
}

impl Segment {
    fn of(header: &impl ProgramHeader<Endian = Endianness>) -> Segment {
        Segment {
            kind: header.p_type(LITTLE),
            file_offset: header.p_offset(LITTLE).into(),
            virtual_address: header.p_vaddr(LITTLE).into(),
            physical_address: header.p_paddr(LITTLE).into(),
            file_size: header.p_filesz(LITTLE).into(),
            memory_size: header.p_memsz(LITTLE).into(),
        }
    }
}

/// Notes have the same layout in files of both classes.
type KernelNote<'a> = Note<'a, FileHeader64<Endianness>>;

fn is_xen(note: &KernelNote<'_>, kind: NoteType) -> bool {
    note.name() == b"Xen" && note.n_type(LITTLE) == kind
}

fn truncated(image: Image<'_>, what: &'static str, needed: u64) -> BootError {
    BootError::Truncated { image: image.name.to_string(), what, needed, size: image.bytes.len() as u64 }
}

/// Why the program headers cannot be read.
fn no_segments<H: FileHeader<Endian = Endianness>>(image: Image<'_>, header: &H) -> BootError {
    let entry_size = header.e_phentsize(LITTLE);
    if usize::from(entry_size) != size_of::<H::ProgramHeader>() {
        let problem = format!("program headers of {entry_size} bytes");
        return BootError::Malformed { image: image.name.to_string(), problem };
    }
    let size = u64::from(entry_size) * u64::from(header.e_phnum(LITTLE));
    let end = header.e_phoff(LITTLE).into().saturating_add(size);
    truncated(image, "the program header table", end)
}

fn check_machine(image: Image<'_>, header: &impl FileHeader<Endian = Endianness>) -> Result<(), BootError> {
    let endian = if header.is_little_endian() { LITTLE } else { Endianness::Big };
    let machine = header.e_machine(endian);
    let has_class = header.is_class_32() || header.is_class_64();
    if endian == LITTLE && has_class && matches!(machine, EM_386 | EM_X86_64) {
        return match header.e_type(LITTLE) {
            ET_EXEC | ET_DYN => Ok(()),
            _ => Err(BootError::NotAKernel {
                image: image.name.to_string(),
                looks_like: "an ELF file that is not executable (an object file or core dump)".to_string(),
            }),
        };
    }
    let found = match machine {
        EM_MIPS => "a MIPS ELF file".to_string(),
        EM_PPC | EM_PPC64 => "a PowerPC ELF file".to_string(),
        EM_S390 => "an s390 ELF file".to_string(),
        EM_ARM => "a 32-bit Arm ELF file".to_string(),
        EM_AARCH64 => "an arm64 ELF file".to_string(),
        EM_RISCV => "a RISC-V ELF file".to_string(),
        EM_LOONGARCH => "a LoongArch ELF file".to_string(),
        Machine(other) => format!("an ELF file for machine number {other}"),
    };
    Err(BootError::WrongArchitecture { image: image.name.to_string(), found })
}
