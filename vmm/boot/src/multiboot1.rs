//! Multiboot 0.6.96: header, loading by ELF headers or by the header's own addresses, boot information.

use super::bytes::{put, u32_at};
use super::elf::Elf;
use super::entry::{self, CpuEntry};
use super::error::BootError;
use super::loader::{LOADER_NAME, LoadedModule, Loader, TEXT_LIMIT};
use super::memory_map::{EBDA_START, LEGACY_HOLE_END};

const HEADER_MAGIC: u32 = 0x1BAD_B002;
const HEADER_SEARCH_BYTES: u64 = 8192;
/// The value of EAX at the entry point.
const BOOT_MAGIC: u32 = 0x2BAD_B002;

/// The header flag that requests page-aligned modules. The loader always aligns modules to pages.
const WANTS_PAGE_ALIGNMENT: u32 = 1 << 0;
/// The header flag that requests memory information. The loader always gives this information.
const WANTS_MEMORY_INFO: u32 = 1 << 1;
const WANTS_VIDEO_MODE: u32 = 1 << 2;
/// The header flags that a loader must obey. The loader refuses a kernel that sets an unknown flag in this mask.
const REQUIRED_FLAGS: u32 = 0xFFFF;
const HAS_ADDRESSES: u32 = 1 << 16;

const INFO_SIZE: usize = 120;
const INFO_MEMORY: u32 = 1 << 0;
const INFO_COMMAND_LINE: u32 = 1 << 2;
const INFO_MODULES: u32 = 1 << 3;
const INFO_MEMORY_MAP: u32 = 1 << 6;
const INFO_LOADER_NAME: u32 = 1 << 9;

/// The header's offset in the file, and its flags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    offset: u64,
    flags: u32,
}

/// Finds the header: 4-aligned in the first 8 KiB, with three words whose sum is 0.
pub(super) fn find_header(bytes: &[u8]) -> Option<Header> {
    (0..HEADER_SEARCH_BYTES - 11).step_by(4).find_map(|offset| {
        let magic = u32_at(bytes, offset).filter(|magic| *magic == HEADER_MAGIC)?;
        let (flags, checksum) = (u32_at(bytes, offset + 4)?, u32_at(bytes, offset + 8)?);
        (magic.wrapping_add(flags).wrapping_add(checksum) == 0).then_some(Header { offset, flags })
    })
}

/// Loads a Multiboot kernel.
pub(super) fn load(loader: &mut Loader<'_>) -> Result<CpuEntry, BootError> {
    let header =
        find_header(loader.kernel()).ok_or_else(|| loader.malformed("it has no Multiboot header"))?;
    check_demands(loader, header)?;
    loader.check_command_line(TEXT_LIMIT)?;
    // The header's addresses take precedence even in an ELF file, as the specification says.
    let rip = if header.flags & HAS_ADDRESSES != 0 {
        load_by_addresses(loader, header)?
    } else {
        load_elf(loader)?
    };
    let modules = loader.load_modules()?;
    let info = place_info(loader, &modules)?;
    entry::protected32(loader, rip, BOOT_MAGIC, info)
}

fn check_demands(loader: &Loader<'_>, header: Header) -> Result<(), BootError> {
    let known = WANTS_PAGE_ALIGNMENT | WANTS_MEMORY_INFO;
    let unknown = header.flags & REQUIRED_FLAGS & !known;
    let feature = match unknown {
        0 => return Ok(()),
        WANTS_VIDEO_MODE => "a video mode".to_string(),
        flags => format!("Multiboot features that do not exist (flags {flags:#x})"),
    };
    let remedy = "build it for a serial console";
    Err(BootError::Unsupported { image: loader.kernel_name(), feature, remedy })
}

fn load_elf(loader: &mut Loader<'_>) -> Result<u32, BootError> {
    if !Elf::is_elf(loader.kernel()) {
        return Err(loader.malformed("it is not an ELF file and its Multiboot header has no addresses"));
    }
    let elf = Elf::parse(loader.images.kernel)?;
    elf.load(loader, 0)?;
    let entry = elf.physical_entry();
    u32::try_from(entry)
        .ok()
        .filter(|_| elf.contains(entry))
        .ok_or_else(|| loader.malformed(format!("its entry point {entry:#x} lies outside of what it loads")))
}

/// Loads by the five address fields that follow the checksum ("a.out kludge").
fn load_by_addresses(loader: &mut Loader<'_>, header: Header) -> Result<u32, BootError> {
    let field = |index: u64| {
        u32_at(loader.kernel(), header.offset + 12 + index * 4)
            .ok_or_else(|| loader.malformed("its Multiboot header ends early"))
    };
    let addresses = LoadAddresses {
        header_offset: header.offset,
        header: field(0)?,
        load: field(1)?,
        load_end: field(2)?,
        bss_end: field(3)?,
    };
    let entry = field(4)?;
    addresses.load(loader, entry)
}

/// Address fields with the same meaning in both Multiboot versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadAddresses {
    /// The header's offset in the file.
    pub(super) header_offset: u64,
    /// The header's address in memory.
    pub(super) header: u32,
    /// The address of the first loaded byte. File bytes before that byte are not loaded. In version 2, a value with
    /// all bits set means that loading begins at the start of the file.
    pub(super) load: u32,
    /// The address of the end of the loaded bytes. 0 means that loading ends at the end of the file.
    pub(super) load_end: u32,
    /// The address of the end of the cleared bytes. 0 means that no bytes are cleared.
    pub(super) bss_end: u32,
}

impl LoadAddresses {
    /// Loads the part of the file at these addresses and returns the entry point.
    pub(super) fn load(self, loader: &mut Loader<'_>, entry: u32) -> Result<u32, BootError> {
        let offset = u64::from(self.header)
            .checked_sub(u64::from(self.load))
            .and_then(|distance| self.header_offset.checked_sub(distance))
            .ok_or_else(|| {
                loader.malformed("its load address and its header's address do not fit together")
            })?;
        let load = u64::from(self.load);
        let rest_of_file = (loader.kernel().len() as u64).saturating_sub(offset);
        let load_end = if self.load_end == 0 { load + rest_of_file } else { u64::from(self.load_end) };
        let memory_end = load_end.max(u64::from(self.bss_end));
        let file_size = load_end
            .checked_sub(load)
            .ok_or_else(|| loader.malformed("its load end lies before its start"))?;
        loader.load_part(load, memory_end - load, offset, file_size)?;
        if u64::from(entry) < load || u64::from(entry) >= memory_end {
            return Err(loader.malformed(format!("its entry point {entry:#x} lies outside of what it loads")));
        }
        Ok(entry)
    }
}

/// The KiB of memory below 640 KiB, and the KiB from 1 MiB to the first hole.
pub(super) fn basic_memory_kib(loader: &Loader<'_>) -> (u32, u32) {
    let upper = loader.placer.low_ram_end() - LEGACY_HOLE_END;
    ((EBDA_START / 1024) as u32, (upper / 1024) as u32)
}

fn place_info(loader: &mut Loader<'_>, modules: &[LoadedModule]) -> Result<u64, BootError> {
    let mut info = vec![0; INFO_SIZE];
    let mut field = |at: usize, value: u64| put(&mut info, at, &(value as u32).to_le_bytes());
    let (lower_kib, upper_kib) = basic_memory_kib(loader);
    let flags = INFO_MEMORY | INFO_COMMAND_LINE | INFO_MODULES | INFO_MEMORY_MAP | INFO_LOADER_NAME;
    field(0, u64::from(flags));
    field(4, u64::from(lower_kib));
    field(8, u64::from(upper_kib));
    field(16, loader.place_text(loader.images.cmdline)?);
    field(20, modules.len() as u64);
    field(24, place_module_list(loader, modules)?);
    let map = memory_map_entries(loader);
    field(44, map.len() as u64);
    field(48, loader.place(&map, 16)?);
    field(64, loader.place_text(LOADER_NAME)?);
    loader.place(&info, 16)
}

fn place_module_list(loader: &mut Loader<'_>, modules: &[LoadedModule]) -> Result<u64, BootError> {
    let mut list = Vec::new();
    for module in modules {
        let text = loader.place_text(&module.cmdline)?;
        for field in [module.start, module.start + module.size, text, 0] {
            list.extend_from_slice(&(field as u32).to_le_bytes());
        }
    }
    loader.place(&list, 16)
}

/// The memory map. Each entry begins with its size, which does not include the size field itself.
fn memory_map_entries(loader: &Loader<'_>) -> Vec<u8> {
    let mut map = Vec::new();
    for range in &loader.map {
        map.extend_from_slice(&20_u32.to_le_bytes());
        map.extend_from_slice(&range.start.to_le_bytes());
        map.extend_from_slice(&range.length.to_le_bytes());
        map.extend_from_slice(&(range.kind as u32).to_le_bytes());
    }
    map
}
