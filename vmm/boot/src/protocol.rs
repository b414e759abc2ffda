//! The protocols and their names.

/// A boot protocol.
///
/// An image may support several protocols (Xen supports three). If the caller names none, the loader takes the first
/// protocol of this list that the image supports:
///
/// 1. bzImage.
/// 2. Multiboot 2, then Multiboot 1. A Multiboot header is never an accident, because it has a
///    checksum. Both versions require a bare PC, like this machine.
/// 3. The 64-bit Linux protocol, for a 64-bit ELF file that is Linux by its notes. This protocol needs no
///    32-bit trampoline and fills every field of `boot_params`.
/// 4. PVH, if the file has the PVH note.
/// 5. The Linux protocol, for any other x86-64 ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Linux bzImage at its 64-bit entry.
    LinuxBzImage,
    /// An x86-64 ELF file at its entry point, by Linux's 64-bit rules.
    LinuxElf,
    /// An ELF file with a `XEN_ELFNOTE_PHYS32_ENTRY` note.
    Pvh,
    /// Multiboot 0.6.96.
    Multiboot1,
    /// Multiboot2 2.0.
    Multiboot2,
}

impl Protocol {
    /// The name in messages and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::LinuxBzImage => "bzimage",
            Protocol::LinuxElf => "linux-elf",
            Protocol::Pvh => "pvh",
            Protocol::Multiboot1 => "multiboot1",
            Protocol::Multiboot2 => "multiboot2",
        }
    }
}
