//! The 64-bit Linux boot protocol, for bzImages and for ELF vmlinux files (kernel documentation,
//! "The Linux/x86 Boot Protocol" and "x86 zero page").

use super::bytes::{has_at, put, slice_at, u8_at, u16_at, u32_at, u64_at};
use super::elf::Elf;
use super::entry::{self, CpuEntry};
use super::error::BootError;
use super::loader::{Loader, TEXT_LIMIT};
use super::memory_map::LEGACY_HOLE_END;

const PAGE_SIZE: u64 = 4096;
/// Where the setup header starts, in the image and in `boot_params`.
const HEADER_START: u64 = 0x1F1;
/// The end of the setup header's space in `boot_params`.
const HEADER_LIMIT: u64 = 0x290;
/// The magic number at the end of the boot sector.
const BOOT_FLAG: u16 = 0xAA55;
/// The first protocol version with a flag for the 64-bit entry.
const FIRST_VERSION_WITH_XLOADFLAGS: u16 = 0x020C;
const XLF_KERNEL_64: u16 = 1;
const LOADED_HIGH: u8 = 1;
/// The `type_of_loader` value for a loader without an assigned number.
const UNDEFINED_LOADER: u8 = 0xFF;
const NORMAL_VIDEO_MODE: u16 = 0xFFFF;
/// The distance in bytes from the 32-bit entry up to the 64-bit entry.
const ENTRY_64: u64 = 0x200;
/// The highest address of an initrd byte, for kernels without a setup header.
const DEFAULT_INITRD_ADDRESS_MAX: u64 = 0x7FFF_FFFF;
/// `COMMAND_LINE_SIZE` of x86 Linux, minus the NUL.
const VMLINUX_COMMAND_LINE_LIMIT: u64 = 2047;
/// The largest number of entries of the memory map in `boot_params`.
const E820_TABLE_ENTRIES: usize = 128;
/// The type of a `setup_data` node with entropy for the random number generator.
const SETUP_RNG_SEED: u32 = 9;

/// Whether the file has a Linux setup header.
pub fn is_bzimage(bytes: &[u8]) -> bool {
    has_at(bytes, 0x202, b"HdrS") && u16_at(bytes, 0x1FE) == Some(BOOT_FLAG)
}

/// The release of the kernel in a bzImage, such as `6.1.0-57-cloud-amd64`: the first word of the text to which the setup header
/// points (field `kernel_version`).
pub fn release(image: &[u8]) -> Option<String> {
    const LONGEST_BYTES: usize = 200;
    if !is_bzimage(image) {
        return None;
    }
    let at = match u16_at(image, 0x20E)? {
        0 => return None,
        offset => usize::from(offset) + 0x200,
    };
    let text = image.get(at..)?;
    let word = text[..text.len().min(LONGEST_BYTES)].split(|byte| !byte.is_ascii_graphic()).next()?;
    (!word.is_empty()).then(|| String::from_utf8_lossy(word).into_owned())
}

/// A loaded kernel, from a bzImage or an ELF file.
struct Kernel {
    /// `boot_params`, with the fields of the setup header that the image defines.
    boot_params: Vec<u8>,
    entry: u64,
    /// The end of the memory that the kernel uses before it manages memory itself.
    end: u64,
    initrd_address_max: u64,
    command_line_limit: u64,
}

/// Loads a bzImage.
pub(super) fn load_bzimage(loader: &mut Loader<'_>) -> Result<CpuEntry, BootError> {
    let bytes = loader.kernel();
    check_version(loader)?;
    let setup_sectors = match u8_at(bytes, HEADER_START) {
        Some(0) | None => 4,
        Some(sectors) => u64::from(sectors),
    };
    let header_field =
        |at| u32_at(bytes, at).map(u64::from).ok_or_else(|| loader.malformed("a short header"));
    let payload_at = (setup_sectors + 1) * 512;
    let payload_size = header_field(0x1F4)? * 16;
    let available = (bytes.len() as u64).saturating_sub(payload_at);
    // The last unit of 16 bytes may be partial.
    if payload_size == 0 || available.div_ceil(16) * 16 < payload_size {
        return Err(BootError::Truncated {
            image: loader.kernel_name(),
            what: "the compressed kernel",
            needed: payload_at + payload_size.max(16),
            size: bytes.len() as u64,
        });
    }
    let start = u64_at(bytes, 0x258).unwrap_or(0);
    // A relocatable kernel that is loaded below its preferred address moves up to this address before it unpacks. So a
    // lower address would not save memory, and the loader tries none.
    let file_size = payload_size.min(available);
    let memory_size = header_field(0x260)?.max(file_size);
    if start < LEGACY_HOLE_END {
        return Err(loader.malformed(format!("a preferred load address of {start:#x}, below 1 MiB")));
    }
    let limits = (header_field(0x22C)?, header_field(0x238)?);
    loader.load_part(start, memory_size, payload_at, file_size)?;
    let mut boot_params = copy_header(loader)?;
    put(&mut boot_params, 0x214, &(start as u32).to_le_bytes());
    start_linux(
        loader,
        Kernel {
            boot_params,
            entry: start + ENTRY_64,
            end: start + memory_size,
            initrd_address_max: limits.0,
            command_line_limit: if limits.1 == 0 { 255 } else { limits.1 },
        },
    )
}

fn check_version(loader: &Loader<'_>) -> Result<(), BootError> {
    let bytes = loader.kernel();
    let version = u16_at(bytes, 0x206).unwrap_or(0);
    let wrong = |found: String| BootError::WrongArchitecture { image: loader.kernel_name(), found };
    if version < FIRST_VERSION_WITH_XLOADFLAGS {
        let (major, minor) = (version >> 8, version & 0xFF);
        return Err(wrong(format!(
            "a Linux kernel with boot protocol {major}.{minor:02}, which has no 64-bit entry (2.12, Linux 3.8, \
             is the first)"
        )));
    }
    if u16_at(bytes, 0x236).unwrap_or(0) & XLF_KERNEL_64 == 0 {
        return Err(wrong("a 32-bit Linux kernel".to_string()));
    }
    if u8_at(bytes, 0x211).unwrap_or(0) & LOADED_HIGH == 0 {
        return Err(wrong("a zImage, which runs below 1 MiB".to_string()));
    }
    Ok(())
}

fn copy_header(loader: &Loader<'_>) -> Result<Vec<u8>, BootError> {
    let bytes = loader.kernel();
    let end = (0x202 + u64::from(u8_at(bytes, 0x201).unwrap_or(0))).min(HEADER_LIMIT);
    let header = end
        .checked_sub(HEADER_START)
        .and_then(|length| slice_at(bytes, HEADER_START, length))
        .filter(|_| end >= 0x264)
        .ok_or_else(|| loader.malformed("its setup header is too short for its version"))?;
    let mut boot_params = vec![0; PAGE_SIZE as usize];
    put(&mut boot_params, HEADER_START as usize, header);
    Ok(boot_params)
}

/// Loads an x86-64 ELF file.
pub(super) fn load_elf(loader: &mut Loader<'_>) -> Result<CpuEntry, BootError> {
    let elf = Elf::parse(loader.images.kernel)?;
    elf.load(loader, 0)?;
    let entry = elf.physical_entry();
    if !elf.contains(entry) {
        return Err(loader.malformed(format!("its entry point {entry:#x} lies outside of what it loads")));
    }
    start_linux(
        loader,
        Kernel {
            boot_params: synthetic_header(),
            entry,
            end: elf.extent().map_or(0, |extent| extent.1),
            initrd_address_max: DEFAULT_INITRD_ADDRESS_MAX,
            command_line_limit: VMLINUX_COMMAND_LINE_LIMIT,
        },
    )
}

/// A setup header for a kernel that has none, because it is not in a bzImage.
fn synthetic_header() -> Vec<u8> {
    let mut boot_params = vec![0; PAGE_SIZE as usize];
    put(&mut boot_params, 0x1FE, &BOOT_FLAG.to_le_bytes());
    put(&mut boot_params, 0x202, b"HdrS");
    put(&mut boot_params, 0x206, &0x020F_u16.to_le_bytes());
    put(&mut boot_params, 0x211, &[LOADED_HIGH]);
    put(&mut boot_params, 0x22C, &(DEFAULT_INITRD_ADDRESS_MAX as u32).to_le_bytes());
    put(&mut boot_params, 0x236, &XLF_KERNEL_64.to_le_bytes());
    put(&mut boot_params, 0x238, &(VMLINUX_COMMAND_LINE_LIMIT as u32).to_le_bytes());
    boot_params
}

fn start_linux(loader: &mut Loader<'_>, kernel: Kernel) -> Result<CpuEntry, BootError> {
    if let Some(module) = loader.images.modules.first() {
        let (image, module) = (loader.kernel_name(), module.image.name.to_string());
        return Err(BootError::ModulesNotSupported { image, module });
    }
    loader.check_command_line(kernel.command_line_limit.min(TEXT_LIMIT))?;
    let mut boot_params = kernel.boot_params;
    put(&mut boot_params, 0x070, &loader.rsdp.to_le_bytes());
    put(&mut boot_params, 0x1FA, &NORMAL_VIDEO_MODE.to_le_bytes());
    put(&mut boot_params, 0x210, &[UNDEFINED_LOADER]);
    let command_line = loader.place_text(loader.images.cmdline)?;
    put(&mut boot_params, 0x228, &(command_line as u32).to_le_bytes());
    let (start, size) = load_initrd(loader, kernel.end, kernel.initrd_address_max)?;
    put(&mut boot_params, 0x218, &(start as u32).to_le_bytes());
    put(&mut boot_params, 0x21C, &(size as u32).to_le_bytes());
    let nodes: Vec<_> = loader.images.rng_seed.iter().map(|seed| (SETUP_RNG_SEED, seed.as_slice())).collect();
    let chain = place_setup_data(loader, &nodes)?;
    put(&mut boot_params, 0x250, &chain.to_le_bytes());
    put_e820(loader, &mut boot_params);
    let boot_params = loader.place(&boot_params, PAGE_SIZE)?;
    entry::long64(loader, kernel.entry, boot_params)
}

/// Puts the initrd as high as the kernel can reach, outside of the memory where the kernel unpacks itself. Returns the
/// initrd's address and size, or (0, 0) if there is no initrd.
fn load_initrd(loader: &mut Loader<'_>, kernel_end: u64, address_max: u64) -> Result<(u64, u64), BootError> {
    let Some(initrd) = loader.images.initrd else { return Ok((0, 0)) };
    let size = initrd.bytes.len() as u64;
    let limit = address_max.min(DEFAULT_INITRD_ADDRESS_MAX) + 1;
    let needed_end = kernel_end.next_multiple_of(PAGE_SIZE) + size.next_multiple_of(PAGE_SIZE);
    if needed_end > limit {
        let (image, kernel) = (initrd.name.to_string(), loader.kernel_name());
        return Err(BootError::InitrdTooLarge { image, kernel, size, limit });
    }
    let start = loader.placer.highest(size, PAGE_SIZE, limit).filter(|start| *start >= kernel_end);
    let start = start.ok_or_else(|| loader.too_little_memory(initrd.name, needed_end))?;
    loader.write(start, initrd.bytes);
    Ok((start, size))
}

/// Links (type, contents) nodes into a `setup_data` chain in memory. Returns the address of the first node, or 0 if
/// there is none. Each node is placed separately, so any kind of node can be added.
fn place_setup_data(loader: &mut Loader<'_>, nodes: &[(u32, &[u8])]) -> Result<u64, BootError> {
    let mut next = 0_u64;
    for (kind, contents) in nodes.iter().rev() {
        let mut node = next.to_le_bytes().to_vec();
        node.extend_from_slice(&kind.to_le_bytes());
        node.extend_from_slice(&(contents.len() as u32).to_le_bytes());
        node.extend_from_slice(contents);
        next = loader.place(&node, 16)?;
    }
    Ok(next)
}

fn put_e820(loader: &Loader<'_>, boot_params: &mut [u8]) {
    let map = &loader.map[..loader.map.len().min(E820_TABLE_ENTRIES)];
    boot_params[0x1E8] = map.len() as u8;
    for (index, range) in map.iter().enumerate() {
        let at = 0x2D0 + index * 20;
        put(boot_params, at, &range.start.to_le_bytes());
        put(boot_params, at + 8, &range.length.to_le_bytes());
        put(boot_params, at + 16, &(range.kind as u32).to_le_bytes());
    }
}
