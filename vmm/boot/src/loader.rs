//! The common parts of all protocols: guest memory during loading, free memory, and the memory map for the guest.

use guest_ram::{GuestMemory, GuestRam};
use vm_memory::{Bytes, GuestAddress};

use super::bytes::slice_at;
use super::error::BootError;
use super::images::{BootImages, Image};
use super::memory_map::{ClaimError, MemoryRange, Placer, memory_map};
use crate::acpi::AcpiTables;

const PAGE_SIZE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The longest command line in bytes, for protocols without their own limit.
pub(super) const TEXT_LIMIT: u64 = 32 * 1024;

/// The loader's name for Multiboot kernels.
pub(super) const LOADER_NAME: &str = "ttvm";

/// Guest memory during loading.
pub(super) struct Loader<'a> {
    memory: &'a GuestMemory,
    pub(super) images: &'a BootImages<'a>,
    pub(super) placer: Placer,
    pub(super) map: Vec<MemoryRange>,
    pub(super) rsdp: u64,
}

/// The initial RAM disk or a boot module, which the loader has put into guest memory.
pub(super) struct LoadedModule {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) cmdline: String,
}

impl<'a> Loader<'a> {
    pub(super) fn new(ram: &'a GuestRam, images: &'a BootImages<'a>, acpi: &AcpiTables) -> Loader<'a> {
        Loader {
            memory: ram.memory(),
            images,
            placer: Placer::new(ram.layout()),
            map: memory_map(ram.layout(), acpi),
            rsdp: acpi.rsdp,
        }
    }

    /// The kernel's bytes.
    pub(super) fn kernel(&self) -> &'a [u8] {
        self.images.kernel.bytes
    }

    /// The kernel's name, for errors.
    pub(super) fn kernel_name(&self) -> String {
        self.images.kernel.name.to_string()
    }

    /// The error that the kernel is malformed.
    pub(super) fn malformed(&self, problem: impl Into<String>) -> BootError {
        BootError::Malformed { image: self.kernel_name(), problem: problem.into() }
    }

    /// The error that RAM does not reach up to `end`.
    pub(super) fn too_little_memory(&self, image: &str, end: u64) -> BootError {
        BootError::TooLittleMemory {
            image: image.to_string(),
            needed_mib: end.div_ceil(MIB),
            have_mib: self.placer.low_ram_end() / MIB,
        }
    }

    /// Writes into RAM that was reserved before by `claim` or a function that places bytes.
    pub(super) fn write(&self, start: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(start)).expect("the placer hands out only RAM");
    }

    /// Clears RAM that `claim` reserved before.
    fn clear(&self, start: u64, length: u64) {
        static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
        let step = ZEROES.len() as u64;
        for done in (0..length).step_by(ZEROES.len()) {
            self.write(start + done, &ZEROES[..(length - done).min(step) as usize]);
        }
    }

    /// Reserves `start..start + length` for the kernel.
    pub(super) fn claim(&mut self, start: u64, length: u64) -> Result<(), BootError> {
        let image = self.kernel_name();
        let Some(end) = start.checked_add(length) else {
            return Err(BootError::UnusableAddress { image, start, end: u64::MAX });
        };
        self.placer.claim(start, end).map_err(|error| match error {
            ClaimError::BeyondRam => self.too_little_memory(&image, end),
            ClaimError::NeverRam => BootError::UnusableAddress { image, start, end },
            ClaimError::Taken => self.malformed(format!("two parts overlap at {start:#x}..{end:#x}")),
        })
    }

    /// Reserves `memory_size` bytes at `start`, copies `file_size` bytes of the kernel's file from `file_offset` there,
    /// and clears the rest.
    pub(super) fn load_part(
        &mut self,
        start: u64,
        memory_size: u64,
        file_offset: u64,
        file_size: u64,
    ) -> Result<(), BootError> {
        if file_size > memory_size {
            return Err(self.malformed("a part has more bytes in the file than in memory"));
        }
        let bytes = slice_at(self.kernel(), file_offset, file_size).ok_or_else(|| BootError::Truncated {
            image: self.kernel_name(),
            what: "a loaded part",
            needed: file_offset.saturating_add(file_size),
            size: self.kernel().len() as u64,
        })?;
        self.claim(start, memory_size)?;
        self.write(start, bytes);
        self.clear(start + file_size, memory_size - file_size);
        Ok(())
    }

    /// Puts bytes at the lowest free address (in conventional memory as long as there is room).
    pub(super) fn place(&mut self, bytes: &[u8], align: u64) -> Result<u64, BootError> {
        let name = self.images.kernel.name;
        self.place_from(bytes, align, 0, name)
    }

    /// Puts a text and its terminating NUL into free memory.
    pub(super) fn place_text(&mut self, text: &str) -> Result<u64, BootError> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.place(&bytes, 16)
    }

    /// Puts bytes at the lowest free address above 1 MiB, for data whose size depends on the image.
    pub(super) fn place_above_1_mib(&mut self, bytes: &[u8]) -> Result<u64, BootError> {
        let name = self.images.kernel.name;
        self.place_from(bytes, 16, MIB, name)
    }

    fn place_from(&mut self, bytes: &[u8], align: u64, from: u64, image: &str) -> Result<u64, BootError> {
        let length = bytes.len() as u64;
        let start = self.placer.lowest(length, align, from).ok_or_else(|| {
            // The free ranges were too small. RAM that is larger by `length` bytes is enough.
            self.too_little_memory(image, self.placer.low_ram_end() + length.next_multiple_of(PAGE_SIZE))
        })?;
        self.write(start, bytes);
        Ok(start)
    }

    /// Loads the initrd and the modules. The initrd is the first module, without a command line. Each image is
    /// page-aligned, at the lowest free address above 1 MiB.
    pub(super) fn load_modules(&mut self) -> Result<Vec<LoadedModule>, BootError> {
        let images = self.images;
        let initrd = images.initrd.iter().map(|image| (*image, ""));
        let modules = images.modules.iter().map(|module| (module.image, module.cmdline));
        initrd.chain(modules).map(|(image, cmdline)| self.load_module(image, cmdline)).collect()
    }

    fn load_module(&mut self, image: Image<'_>, cmdline: &str) -> Result<LoadedModule, BootError> {
        let start = self.place_from(image.bytes, PAGE_SIZE, MIB, image.name)?;
        Ok(LoadedModule { start, size: image.bytes.len() as u64, cmdline: cmdline.to_string() })
    }

    /// Fails if the command line exceeds `limit` bytes, not counting its NUL.
    pub(super) fn check_command_line(&self, limit: u64) -> Result<(), BootError> {
        let length = self.images.cmdline.len() as u64;
        if length > limit {
            return Err(BootError::CommandLineTooLong { image: self.kernel_name(), length, limit });
        }
        Ok(())
    }
}
