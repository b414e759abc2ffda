//! Starts a guest without firmware: fills guest memory and returns the CPU's first state.
//!
//! ```
//! use boot::{BootImages, Image};
//! use guest_ram::GuestRam;
//!
//! // A Multiboot kernel of one instruction (hlt) at 1 MiB.
//! let (magic, flags, load) = (0x1bad_b002_u32, 1 << 16, 0x10_0000);
//! let check = 0_u32.wrapping_sub(magic).wrapping_sub(flags);
//! let header = [magic, flags, check, load, load, load + 33, load + 33, load + 32];
//! let mut kernel: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
//! kernel.push(0xf4);
//!
//! let ram = GuestRam::new(4 << 20)?;
//! let entry = boot::load(&ram, &BootImages::new(Image { name: "tiny", bytes: &kernel }))?;
//! assert_eq!((entry.rip, ram.load_u8(entry.rip)), (0x10_0020, 0xf4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`load`] puts a kernel, its modules, the memory map and the ACPI tables into RAM. The crate supports five
//! protocols, each in its own file. Two protocols are Linux bzImage and Linux ELF (kernel document "The
//! Linux/x86 Boot Protocol", 64-bit entry). The other protocols are PVH (Xen's `start_info.h`, direct boot
//! ABI), Multiboot 0.6.96 and Multiboot2 2.0. [`Protocol`] describes which protocol the crate chooses if the
//! caller names none. The crate `object` reads ELF files. Multiboot's headers and tables are written by hand
//! after the specifications.
//!
//! The crate deliberately does not run firmware, read files, or ask the host for anything. The crate does not
//! decompress images: a bzImage unpacks itself. [`packed_kernel`] is for callers that need the kernel's own
//! code before it runs. All inputs are bytes that the caller holds. Images may come from strangers, so no
//! length in them is trusted, and no input causes a panic.

#![forbid(unsafe_code)]

pub mod acpi;
mod bytes;
mod detect;
mod elf;
mod entry;
mod error;
mod images;
mod linux;
mod loader;
mod memory_map;
mod multiboot1;
mod multiboot2;
pub mod packed_kernel;
mod protocol;
mod pvh;
#[cfg(test)]
mod tests;
pub mod time_reads;

pub use entry::{BOOT_CS, BOOT_DS, BOOT_TR, CpuEntry, CpuMode, SegmentState, TableRegister};
pub use error::BootError;
use guest_ram::GuestRam;
pub use images::{BootImages, Image, Module};
pub use linux::{is_bzimage, release};
use loader::Loader;
pub use memory_map::{EBDA_START, LEGACY_HOLE_END, LEGACY_HOLE_START, MemoryRange, RangeKind, memory_map};
pub use protocol::Protocol;

/// The smallest RAM that the loader accepts, in bytes. RAM needs room for the first megabyte and for a kernel.
const SMALLEST_RAM_BYTES: u64 = 2 << 20;

/// Fills `ram` for a start with `images` and returns the CPU's first state. RAM outside of the images does not change.
/// So most of a fresh guest's RAM stays untouched, and costs nothing to checkpoint.
pub fn load(ram: &GuestRam, images: &BootImages<'_>) -> Result<CpuEntry, BootError> {
    check_texts(images)?;
    let protocol = match images.protocol {
        Some(protocol) => detect::check(images.kernel, protocol)?,
        None => detect::detect(images.kernel)?,
    };
    if ram.size_bytes() < SMALLEST_RAM_BYTES {
        return Err(BootError::TooLittleMemory {
            image: images.kernel.name.to_string(),
            needed_mib: SMALLEST_RAM_BYTES >> 20,
            have_mib: ram.size_bytes() >> 20,
        });
    }
    let tables = acpi::write_tables(ram.memory(), images.pci, &images.apic_ids, &images.translated_slots);
    let mut loader = Loader::new(ram, images, &tables);
    write_bios_data_area(&loader);
    match protocol {
        Protocol::LinuxBzImage => linux::load_bzimage(&mut loader),
        Protocol::LinuxElf => linux::load_elf(&mut loader),
        Protocol::Pvh => pvh::load(&mut loader),
        Protocol::Multiboot1 => multiboot1::load(&mut loader),
        Protocol::Multiboot2 => multiboot2::load(&mut loader),
    }
}

fn check_texts(images: &BootImages<'_>) -> Result<(), BootError> {
    if images.cmdline.contains('\0') {
        return Err(BootError::EmbeddedNul { what: "the kernel command line".to_string() });
    }
    match images.modules.iter().find(|module| module.cmdline.contains('\0')) {
        Some(module) => {
            Err(BootError::EmbeddedNul { what: format!("the text of module {}", module.image.name) })
        }
        None => Ok(()),
    }
}

/// Writes the words of the BIOS data areas that kernels read even without a BIOS. The words are the address
/// of the first serial port, the size of conventional memory, and the address and size of the extended area.
fn write_bios_data_area(loader: &Loader<'_>) {
    loader.write(0x400, &devices::layout::SERIAL_PORT.to_le_bytes());
    loader.write(0x40E, &((EBDA_START >> 4) as u16).to_le_bytes());
    loader.write(0x413, &((EBDA_START >> 10) as u16).to_le_bytes());
    let ebda_kib = (LEGACY_HOLE_START - EBDA_START).div_ceil(1024) as u8;
    loader.write(EBDA_START, &[ebda_kib]);
}
