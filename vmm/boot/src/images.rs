//! The images to load at start, in the caller's memory.

use devices::pci::PciRevision;

use super::protocol::Protocol;

/// A file's contents and its name for errors.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// File name, only for errors.
    pub name: &'a str,
    /// The whole file.
    pub bytes: &'a [u8],
}

/// A PVH or Multiboot module.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// The module itself.
    pub image: Image<'a>,
    /// The module's command line.
    pub cmdline: &'a str,
}

/// Everything to load at start.
#[derive(Clone, Debug)]
pub struct BootImages<'a> {
    /// The kernel.
    pub kernel: Image<'a>,
    /// Linux's initial RAM disk. The other protocols pass this image as the first module.
    pub initrd: Option<Image<'a>>,
    /// Modules (PVH and Multiboot only).
    pub modules: Vec<Module<'a>>,
    /// The kernel's command line, without a NUL.
    pub cmdline: &'a str,
    /// The protocol to use. With `None`, the loader chooses the protocol by the image (see [`Protocol`]).
    pub protocol: Option<Protocol>,
    /// Entropy for Linux's random number generator. The entropy is part of the guest's initial image, so the
    /// caller records it or derives it from the recording.
    pub rng_seed: Option<[u8; 32]>,
    /// The PCI slots, on bus 0, of the functions that the host passes to the guest. These functions access memory
    /// through an IOMMU.
    pub translated_slots: Vec<u8>,
    /// The APIC ids of the processors, which the ACPI tables list.
    pub apic_ids: Vec<u8>,
    /// The revision of the PCI bus. The ACPI tables describe the wiring of this revision.
    pub pci: PciRevision,
}

impl<'a> BootImages<'a> {
    /// Images with only a kernel. There is no command line, no other image and no seed.
    pub fn new(kernel: Image<'a>) -> BootImages<'a> {
        BootImages {
            kernel,
            initrd: None,
            modules: Vec::new(),
            cmdline: "",
            protocol: None,
            rng_seed: None,
            translated_slots: Vec::new(),
            apic_ids: vec![0],
            pci: PciRevision::default(),
        }
    }
}
