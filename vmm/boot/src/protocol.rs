//! The protocols and their names.

/// How a kernel is started.
///
/// An image may speak several protocols (Xen speaks three). Left to itself the loader takes, in this order:
/// bzImage; Multiboot 2; Multiboot 1 (both have a checksummed header that is there on purpose, and both
/// promise a bare PC, which this machine is); the 64-bit Linux protocol for a 64-bit ELF file that is Linux
/// by its notes (it needs no 32-bit trampoline and gets every field of `boot_params`); PVH where the file
/// has the PVH note; and the Linux protocol for any other x86-64 ELF file.
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
