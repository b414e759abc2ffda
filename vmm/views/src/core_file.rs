//! Writes a machine's memory and registers as an ELF core file, in the format of Linux's own crash dumps
//! (`vmcore`). Tools such as crash and drgn read such a file.
//!
//! ```text
//! headers
//! notes       for each processor its registers (`core_notes.rs`); VMCOREINFO: the kernel's description of itself
//! RAM         from a multiple of 4096 on, in the order of physical addresses; pages of zeroes are holes in the file
//! ```
//!
//! Each part of RAM is a PT_LOAD segment with its physical address. If the kernel is known, the segment also has the
//! virtual address at which the kernel maps this part. A further segment describes the kernel's image, and shares its
//! bytes in the file with the segment of RAM (`kernel/kexec_core.c`, `fs/proc/vmcore.c`, `include/linux/elfcore.h`).

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guest_ram::PAGE_SIZE;
use guest_symbols::tasks::Tasks;
use guest_symbols::{KernelView, Symbols, vmcoreinfo};
use object::Endianness;
use object::elf::{
    ELFOSABI_NONE, EM_X86_64, ET_CORE, FileFlags, NoteType, PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE, ProgramFlags,
};
use object::write::elf::{FileHeader, ProgramHeader, Writer};
use schemars::JsonSchema;
use serde::Serialize;

use crate::core_notes;
use machine::error::Error;
use machine::new_file::NewFile;
use machine::unit::Unit;
use machine::{Machine, Processor};

/// A summary of a written file.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Written {
    /// The file's length.
    pub file_bytes: u64,
    /// The bytes of the file that take space on the disk.
    pub disk_bytes: u64,
    /// Bytes of guest RAM that the file describes.
    pub memory_bytes: u64,
    /// Pages of guest RAM that are all zeroes. These pages are holes in the file.
    pub zero_pages: u64,
    /// The number of the running process or thread, if known. With several processors, this is the thread on the
    /// processor whose turn it is.
    pub pid: Option<u32>,
    /// The kernel's release, from its VMCOREINFO note; `None` if memory has no such note.
    pub kernel: Option<String>,
    /// The file's segments.
    pub segments: Vec<Segment>,
}

/// A segment: a range of memory in the file.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Segment {
    /// The segment's physical address.
    pub physical: u64,
    /// The address at which the kernel maps the segment, if known.
    #[serde(rename = "virtual")]
    pub virtual_address: Option<u64>,
    /// The segment's size.
    pub bytes: u64,
}

/// Writes a core file of the machine's current state to a new path. An error leaves no file behind.
pub fn write<U: Unit>(machine: &Machine<U>, to: &Path) -> Result<Written, Error> {
    let mut file = NewFile::begin(to)?;
    let written = write_to(machine, file.file()).map_err(Error::file("write", to))?;
    file.finish()?;
    Ok(written)
}

/// Writes a core file of the machine's current state to an empty file.
pub fn write_to<U: Unit>(machine: &Machine<U>, file: &mut File) -> io::Result<Written> {
    let contents = Contents::of(machine);
    let zero_pages = contents.write(machine, file)?;
    let metadata = file.metadata()?;
    let kernel = contents.vmcoreinfo.as_deref().and_then(|text| vmcoreinfo::value(text, "OSRELEASE"));
    Ok(Written {
        file_bytes: metadata.len(),
        disk_bytes: metadata.blocks() * 512,
        memory_bytes: machine.ram().size_bytes(),
        zero_pages,
        pid: contents.pid,
        kernel: kernel.map(str::to_string),
        segments: contents.segments,
    })
}

/// The text of the kernel's VMCOREINFO note, found by its symbol or by a search of RAM.
fn find_vmcoreinfo<U: Unit>(machine: &Machine<U>, symbols: Option<&Symbols>) -> Option<Vec<u8>> {
    symbols.and_then(|symbols| vmcoreinfo::of_kernel(machine, symbols)).or_else(|| {
        let mut bytes = [0; 2 * PAGE_SIZE as usize];
        let mut pages = machine
            .ram()
            .layout()
            .ranges()
            .flat_map(|(gpa, _, length)| (gpa..gpa + length).step_by(PAGE_SIZE as usize));
        pages.find_map(|gpa| {
            let count = machine.read_physical(gpa, &mut bytes);
            vmcoreinfo::in_note(&bytes[..count]).map(<[u8]>::to_vec)
        })
    })
}

/// The contents of the file besides RAM.
struct Contents {
    vmcoreinfo: Option<Vec<u8>>,
    pid: Option<u32>,
    segments: Vec<Segment>,
    notes: Vec<u8>,
}

impl Contents {
    fn of<U: Unit>(machine: &Machine<U>) -> Contents {
        let symbols = Symbols::of_guest(machine).ok();
        let vmcoreinfo = find_vmcoreinfo(machine, symbols.as_ref());
        let tasks = symbols.as_ref().and_then(|symbols| Tasks::of_kernel(machine, symbols).ok());
        let pid = tasks.and_then(|tasks| tasks.current(machine)).map(|thread| thread.id);
        let of_processor =
            |processor: Processor<'_, U>| core_notes::of_processor(processor.state(), processor.number());
        let mut notes: Vec<u8> = machine.all_processors().flat_map(of_processor).collect();
        if let Some(text) = &vmcoreinfo {
            notes.extend(core_notes::note(vmcoreinfo::NAME, NoteType(0), text));
        }
        Contents { vmcoreinfo, pid, segments: segments(machine, symbols.as_ref()), notes }
    }

    /// Writes the whole file. Returns the number of pages that are holes.
    fn write<U: Unit>(&self, machine: &Machine<U>, file: &mut File) -> io::Result<u64> {
        let head = self.head(machine);
        let data_at = data_offset(head.len() as u64);
        let mut out = BufWriter::with_capacity(1 << 20, &mut *file);
        out.write_all(&head)?;
        let ram = machine.ram();
        let (mut page, mut zeroes) = ([0; PAGE_SIZE as usize], 0);
        // The offset in the file at which the next bytes are written.
        let mut end = head.len() as u64;
        for offset in (0..ram.size_bytes()).step_by(page.len()) {
            ram.read_bytes(offset, &mut page);
            if page.iter().all(|&byte| byte == 0) {
                zeroes += 1;
                continue;
            }
            if end != data_at + offset {
                out.seek(SeekFrom::Start(data_at + offset))?;
            }
            out.write_all(&page)?;
            end = data_at + offset + PAGE_SIZE;
        }
        out.flush()?;
        drop(out);
        file.set_len(data_at + ram.size_bytes())?;
        Ok(zeroes)
    }

    /// All bytes before RAM.
    fn head<U: Unit>(&self, machine: &Machine<U>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
        writer.reserve_file_header();
        writer.reserve_program_headers(1 + self.segments.len() as u32);
        let notes_at = writer.reserve(self.notes.len() as u64, 4);
        let data_at = data_offset(writer.reserved_len());
        let header = FileHeader {
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            e_type: ET_CORE,
            e_machine: EM_X86_64,
            e_entry: 0,
            e_flags: FileFlags(0),
        };
        writer.write_file_header(&header).expect("a vector takes any number of bytes");
        writer.write_align_program_headers();
        writer.write_program_header(&ProgramHeader {
            p_type: PT_NOTE,
            p_flags: ProgramFlags(0),
            p_offset: notes_at,
            p_vaddr: 0,
            p_paddr: 0,
            p_filesz: self.notes.len() as u64,
            p_memsz: self.notes.len() as u64,
            p_align: 4,
        });
        for segment in &self.segments {
            let offset = machine.ram().layout().offset_of(segment.physical).expect("segments lie in RAM");
            writer.write_program_header(&ProgramHeader {
                p_type: PT_LOAD,
                p_flags: PF_R | PF_W | PF_X,
                p_offset: data_at + offset,
                p_vaddr: segment.virtual_address.unwrap_or(0),
                p_paddr: segment.physical,
                p_filesz: segment.bytes,
                p_memsz: segment.bytes,
                // Linux's own dumps have the value 0 here. crash recognises a kernel's core file by this value.
                p_align: 0,
            });
        }
        writer.write_align(4);
        writer.write(&self.notes);
        bytes
    }
}

/// The offset of RAM in the file: the next page after the headers.
fn data_offset(head_bytes: u64) -> u64 {
    head_bytes.next_multiple_of(PAGE_SIZE)
}

/// The segments: all of RAM, and the kernel's image if it is known.
fn segments<U: Unit>(machine: &Machine<U>, symbols: Option<&Symbols>) -> Vec<Segment> {
    let image = symbols.and_then(|symbols| image(machine, symbols));
    let direct_map = symbols.and_then(|symbols| direct_map(machine, symbols));
    let ram = machine.ram().layout().ranges().map(|(physical, _, bytes)| Segment {
        physical,
        virtual_address: direct_map.map(|base| base.wrapping_add(physical)),
        bytes,
    });
    // Readers take the first segment's offset for the end of the headers, so RAM comes first.
    ram.chain(image).collect()
}

/// The core file's segment for the kernel's image, if the image is contiguous in physical memory.
fn image<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Option<Segment> {
    let (start, end) = (symbols.address_of("_text")?, symbols.address_of("_end")?);
    let physical = KernelView::all(machine).find_map(|view| view.physical(start))?;
    let bytes = end.checked_sub(start).filter(|&bytes| bytes > 0)?.checked_next_multiple_of(PAGE_SIZE)?;
    let layout = machine.ram().layout();
    let length =
        layout.offset_of(physical.checked_add(bytes - 1)?)?.checked_sub(layout.offset_of(physical)?)?;
    (length == bytes - 1).then_some(Segment { physical, virtual_address: Some(start), bytes })
}

/// The virtual address at which the kernel maps physical address zero.
fn direct_map<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Option<u64> {
    let variable = symbols.address_of("page_offset_base")?;
    let read = |view: KernelView<'_>| {
        let mut bytes = [0; 8];
        (view.read(variable, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    };
    KernelView::all(machine).find_map(read)
}
