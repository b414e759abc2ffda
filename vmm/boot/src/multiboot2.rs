//! Multiboot2 2.0: header tags, loading by ELF headers or by the address tag, boot information tags.
//!
//! The machine is a PC without EFI and without a display. A kernel that requests information about EFI or a
//! display, or a framebuffer, starts without this information. A kernel that can only start on EFI is
//! refused.

use super::bytes::{slice_at, u16_at, u32_at};
use super::elf::{Elf, SectionHeaders};
use super::entry::{self, CpuEntry};
use super::error::BootError;
use super::loader::{LOADER_NAME, LoadedModule, Loader, TEXT_LIMIT};
use super::memory_map::LEGACY_HOLE_END;
use super::multiboot1::{LoadAddresses, basic_memory_kib};

const HEADER_MAGIC: u32 = 0xE852_50D6;
const HEADER_SEARCH_BYTES: u64 = 32768;
const ARCHITECTURE_I386: u32 = 0;
/// The value of EAX at the entry point.
const BOOT_MAGIC: u32 = 0x36D7_6289;

const TAG_END: u16 = 0;
const TAG_INFORMATION_REQUEST: u16 = 1;
const TAG_ADDRESS: u16 = 2;
const TAG_ENTRY: u16 = 3;
const TAG_CONSOLE_FLAGS: u16 = 4;
const TAG_FRAMEBUFFER: u16 = 5;
const TAG_MODULE_ALIGNMENT: u16 = 6;
const TAG_EFI_BOOT_SERVICES: u16 = 7;
const TAG_EFI_ENTRY_I386: u16 = 8;
const TAG_EFI_ENTRY_AMD64: u16 = 9;
const TAG_RELOCATABLE: u16 = 10;
const FLAG_OPTIONAL: u16 = 1;
const CONSOLE_REQUIRED: u32 = 1;

const INFO_COMMAND_LINE: u32 = 1;
const INFO_LOADER_NAME: u32 = 2;
const INFO_MODULE: u32 = 3;
const INFO_BASIC_MEMORY: u32 = 4;
const INFO_MEMORY_MAP: u32 = 6;
const INFO_ELF_SECTIONS: u32 = 9;
const INFO_ACPI_OLD: u32 = 14;
const INFO_ACPI_NEW: u32 = 15;
const INFO_LOAD_BASE: u32 = 21;
/// The highest type of boot information in the specification; the first type is 0.
const INFO_LAST: u32 = INFO_LOAD_BASE;

/// The header's offset in the file, and its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    offset: u64,
    architecture: u32,
    length: u32,
}

/// Finds the header: 8-aligned in the first 32 KiB, with four words whose sum is 0.
pub(super) fn find_header(bytes: &[u8]) -> Option<Header> {
    (0..HEADER_SEARCH_BYTES - 15).step_by(8).find_map(|offset| {
        let magic = u32_at(bytes, offset).filter(|magic| *magic == HEADER_MAGIC)?;
        let (architecture, length) = (u32_at(bytes, offset + 4)?, u32_at(bytes, offset + 8)?);
        let sum =
            magic.wrapping_add(architecture).wrapping_add(length).wrapping_add(u32_at(bytes, offset + 12)?);
        (sum == 0).then_some(Header { offset, architecture, length })
    })
}

/// The requirements in the tags of the kernel's header.
#[derive(Debug, Default)]
struct Demands {
    addresses: Option<LoadAddresses>,
    entry: Option<u32>,
    has_efi_entry: bool,
    relocation: Option<Relocation>,
}

/// The relocation tag. A kernel with this tag may be loaded at other addresses than it was linked for.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    min: u32,
    max: u32,
    align: u32,
}

/// Loads a Multiboot2 kernel.
pub(super) fn load(loader: &mut Loader<'_>) -> Result<CpuEntry, BootError> {
    let header =
        find_header(loader.kernel()).ok_or_else(|| loader.malformed("it has no Multiboot2 header"))?;
    if header.architecture != ARCHITECTURE_I386 {
        let found = format!("a Multiboot2 kernel for architecture {}", header.architecture);
        return Err(BootError::WrongArchitecture { image: loader.kernel_name(), found });
    }
    let demands = read_demands(loader, header)?;
    loader.check_command_line(TEXT_LIMIT)?;
    let mut info = Info::new();
    let rip = match demands.addresses {
        Some(addresses) => load_by_addresses(loader, addresses, demands.entry)?,
        None => load_elf(loader, &demands, &mut info)?,
    };
    let modules = loader.load_modules()?;
    describe_machine(loader, &modules, &mut info);
    let info = loader.place(&info.finish(), 8)?;
    entry::protected32(loader, rip, BOOT_MAGIC, info)
}

fn read_demands(loader: &Loader<'_>, header: Header) -> Result<Demands, BootError> {
    let ends_early = || loader.malformed("its Multiboot2 header ends early");
    let tags = slice_at(loader.kernel(), header.offset, u64::from(header.length)).ok_or_else(ends_early)?;
    let mut demands = Demands::default();
    let mut at = 16;
    loop {
        let (kind, flags) = u16_at(tags, at).zip(u16_at(tags, at + 2)).ok_or_else(ends_early)?;
        let size = u64::from(u32_at(tags, at + 4).ok_or_else(ends_early)?);
        if kind == TAG_END {
            return Ok(demands);
        }
        let body = size
            .checked_sub(8)
            .and_then(|length| slice_at(tags, at + 8, length))
            .ok_or_else(|| loader.malformed(format!("its Multiboot2 header tag {kind} has a wrong size")))?;
        read_tag(loader, header, kind, flags & FLAG_OPTIONAL == 0, body, &mut demands)?;
        at += size.next_multiple_of(8);
    }
}

fn read_tag(
    loader: &Loader<'_>,
    header: Header,
    kind: u16,
    required: bool,
    body: &[u8],
    demands: &mut Demands,
) -> Result<(), BootError> {
    let word = |index: u64| {
        u32_at(body, index * 4)
            .ok_or_else(|| loader.malformed(format!("its Multiboot2 header tag {kind} is too short")))
    };
    let lacks = |feature: String, remedy| {
        Err(BootError::Unsupported { image: loader.kernel_name(), feature, remedy })
    };
    match kind {
        TAG_INFORMATION_REQUEST if required => return check_request(loader, body),
        TAG_ADDRESS => {
            let (load, load_end) = (word(1)?, word(2)?);
            let header_offset = header.offset;
            let addresses =
                LoadAddresses { header_offset, header: word(0)?, load, load_end, bss_end: word(3)? };
            demands.addresses = Some(addresses);
        }
        TAG_ENTRY => demands.entry = Some(word(0)?),
        TAG_CONSOLE_FLAGS if required && word(0)? & CONSOLE_REQUIRED != 0 => {
            return lacks("a display".to_string(), "build it for a serial console");
        }
        TAG_FRAMEBUFFER if required => {
            log::warn!("{} asks for a framebuffer and gets none", loader.kernel_name());
        }
        TAG_EFI_BOOT_SERVICES if required => {
            return lacks("EFI boot services".to_string(), "use a kernel that also starts without EFI");
        }
        TAG_EFI_ENTRY_I386 | TAG_EFI_ENTRY_AMD64 => demands.has_efi_entry = true,
        TAG_RELOCATABLE => {
            demands.relocation = Some(Relocation { min: word(0)?, max: word(1)?, align: word(2)? });
        }
        TAG_INFORMATION_REQUEST | TAG_CONSOLE_FLAGS | TAG_FRAMEBUFFER => {}
        TAG_MODULE_ALIGNMENT | TAG_EFI_BOOT_SERVICES => {}
        unknown if required => {
            return lacks(format!("the unknown Multiboot2 feature {unknown}"), "mark the tag as optional");
        }
        _ => {}
    }
    Ok(())
}

/// Checks a request for boot information. A kernel may request all types of the specification. Like GRUB, the loader
/// leaves out what the machine does not have: EFI, a framebuffer, APM, SMBIOS, a network card that loaded the kernel.
fn check_request(loader: &Loader<'_>, body: &[u8]) -> Result<(), BootError> {
    let mut requested = body.chunks_exact(4).filter_map(|word| u32_at(word, 0));
    match requested.find(|kind| *kind > INFO_LAST) {
        None => Ok(()),
        Some(kind) => Err(BootError::Unsupported {
            image: loader.kernel_name(),
            feature: format!("Multiboot2 information of the unknown type {kind}"),
            remedy: "mark the request as optional",
        }),
    }
}

fn load_by_addresses(
    loader: &mut Loader<'_>,
    mut addresses: LoadAddresses,
    entry: Option<u32>,
) -> Result<u32, BootError> {
    let entry =
        entry.ok_or_else(|| loader.malformed("it has an address tag without an entry address tag"))?;
    if addresses.load == u32::MAX {
        let start = u64::from(addresses.header).checked_sub(addresses.header_offset);
        let start = start.ok_or_else(|| loader.malformed("its header's address is below its file offset"))?;
        addresses.load = start as u32;
    }
    addresses.load(loader, entry)
}

fn load_elf(loader: &mut Loader<'_>, demands: &Demands, info: &mut Info) -> Result<u32, BootError> {
    if !Elf::is_elf(loader.kernel()) {
        if demands.has_efi_entry {
            let feature = "EFI (it has no entry point for a PC without EFI)".to_string();
            let remedy = "use a kernel that also starts without EFI";
            return Err(BootError::Unsupported { image: loader.kernel_name(), feature, remedy });
        }
        return Err(loader.malformed("it is not an ELF file and its Multiboot2 header has no address tag"));
    }
    let elf = Elf::parse(loader.images.kernel)?;
    let base = load_base(loader, &elf, demands.relocation)?;
    let shift = base.wrapping_sub(elf.extent().map_or(base, |extent| extent.0));
    elf.load(loader, shift)?;
    let entry = demands.entry.map_or_else(|| elf.physical_entry(), u64::from);
    if !elf.contains(entry) {
        return Err(loader.malformed(format!("its entry point {entry:#x} lies outside of what it loads")));
    }
    if demands.relocation.is_some() {
        info.tag(INFO_LOAD_BASE, &(base as u32).to_le_bytes());
    }
    if let Some(sections) = elf.load_sections(loader, shift)? {
        info.tag(INFO_ELF_SECTIONS, &section_tag(&sections));
    }
    Ok(entry.wrapping_add(shift) as u32)
}

/// The address at which the kernel's first byte is loaded: the linked address, unless the relocation tag or this
/// machine's memory excludes the linked address.
fn load_base(
    loader: &mut Loader<'_>,
    elf: &Elf<'_>,
    relocation: Option<Relocation>,
) -> Result<u64, BootError> {
    let Some((start, end)) = elf.extent() else { return Ok(0) };
    let Some(Relocation { min, max, align }) = relocation else { return Ok(start) };
    let (min, max, align) = (u64::from(min), u64::from(max), u64::from(align));
    let linked_place_fits = start >= min.max(LEGACY_HOLE_END) && end - 1 <= max;
    if linked_place_fits && end <= loader.placer.low_ram_end() {
        return Ok(start);
    }
    if !align.is_power_of_two() {
        return Err(loader.malformed(format!("an alignment of {align} in its relocation tag")));
    }
    // Nothing is in memory yet, so all of the memory above 1 MiB is free.
    let base = min.max(LEGACY_HOLE_END).next_multiple_of(align);
    let size = end - start;
    if base.saturating_add(size) > max + 1 {
        return Err(BootError::UnusableAddress { image: loader.kernel_name(), start: min, end: max });
    }
    Ok(base)
}

fn section_tag(sections: &SectionHeaders) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [sections.count, sections.entry_size, sections.names_index] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body.extend_from_slice(&sections.bytes);
    body
}

fn describe_machine(loader: &Loader<'_>, modules: &[LoadedModule], info: &mut Info) {
    info.tag(INFO_COMMAND_LINE, &text(loader.images.cmdline));
    info.tag(INFO_LOADER_NAME, &text(LOADER_NAME));
    for module in modules {
        let mut body = (module.start as u32).to_le_bytes().to_vec();
        body.extend_from_slice(&((module.start + module.size) as u32).to_le_bytes());
        body.extend_from_slice(&text(&module.cmdline));
        info.tag(INFO_MODULE, &body);
    }
    let (lower_kib, upper_kib) = basic_memory_kib(loader);
    info.tag(INFO_BASIC_MEMORY, &[lower_kib.to_le_bytes(), upper_kib.to_le_bytes()].concat());
    info.tag(INFO_MEMORY_MAP, &memory_map_tag(loader));
    info.tag(INFO_ACPI_OLD, &crate::acpi::rsdp_v1());
    info.tag(INFO_ACPI_NEW, &crate::acpi::rsdp());
}

fn memory_map_tag(loader: &Loader<'_>) -> Vec<u8> {
    let mut body = [24_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    for range in &loader.map {
        body.extend_from_slice(&range.start.to_le_bytes());
        body.extend_from_slice(&range.length.to_le_bytes());
        body.extend_from_slice(&(range.kind as u64).to_le_bytes());
    }
    body
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// The boot information under construction.
struct Info {
    bytes: Vec<u8>,
}

impl Info {
    fn new() -> Info {
        Info { bytes: vec![0; 8] }
    }

    /// Appends a tag, padded so that the next tag is 8-aligned.
    fn tag(&mut self, kind: u32, body: &[u8]) {
        self.bytes.extend_from_slice(&kind.to_le_bytes());
        self.bytes.extend_from_slice(&(8 + body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(body);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Ends the tags and fills in the total size.
    fn finish(mut self) -> Vec<u8> {
        self.tag(0, &[]);
        let total = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        self.bytes
    }
}
