//! Why a guest image cannot be started. Every text names the file and, if possible, the remedy.

use thiserror::Error;

/// Why the boot images could not be loaded. The field `image` is the name that the caller gives in [`crate::Image`].
#[derive(Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are what the sentences say.
pub enum BootError {
    /// The bytes are not a kernel.
    #[error(
        "{image} is not a bootable kernel: it looks like {looks_like}; give a bzImage, an ELF vmlinux, or a \
         PVH or Multiboot kernel"
    )]
    NotAKernel { image: String, looks_like: String },
    /// The image is a kernel, but this loader or a 64-bit PC cannot start it.
    #[error("{image} is {found}; ttvm starts x86 kernels, and Linux only as a 64-bit (x86-64) kernel")]
    WrongArchitecture { image: String, found: String },
    /// The file is shorter than its headers say.
    #[error(
        "{image} is truncated: {what} ends at byte {needed} and the file has {size}; fetch or build it again"
    )]
    Truncated { image: String, what: &'static str, needed: u64, size: u64 },
    /// A header contradicts itself.
    #[error("{image} has a damaged header: {problem}; fetch or build it again")]
    Malformed { image: String, problem: String },
    /// The machine has too little memory for the image.
    #[error(
        "{image} needs at least {needed_mib} MiB of memory and the machine has {have_mib} MiB; use --memory \
         {needed_mib}M or more"
    )]
    TooLittleMemory { image: String, needed_mib: u64, have_mib: u64 },
    /// The image requires addresses where no PC has free RAM.
    #[error(
        "{image} wants to be loaded at {start:#x}..{end:#x}, where this machine has no free RAM; link it into 1 MiB..3 GiB"
    )]
    UnusableAddress { image: String, start: u64, end: u64 },
    /// The initrd does not fit below the kernel's limit, whatever the memory size.
    #[error(
        "{image} ({size} bytes) does not fit below {limit:#x}, where {kernel} expects its initrd; make it smaller"
    )]
    InitrdTooLarge { image: String, kernel: String, size: u64, limit: u64 },
    /// The command line is longer than the kernel (or the loader) accepts.
    #[error("the command line is {length} bytes long and {image} accepts {limit}; shorten --cmdline")]
    CommandLineTooLong { image: String, length: u64, limit: u64 },
    /// A text contains a NUL. The guest would see the text end at the NUL.
    #[error("{what} contains a NUL character, which would end it early; remove it")]
    EmbeddedNul { what: String },
    /// The kernel requires a feature that this loader or machine does not have.
    #[error("{image} asks for {feature}, which this machine does not offer; {remedy}")]
    Unsupported { image: String, feature: String, remedy: &'static str },
    /// The image does not support the requested protocol.
    #[error("{image} cannot be started by the {protocol} protocol: {why}; choose another protocol or none")]
    WrongProtocol { image: String, protocol: &'static str, why: String },
    /// Linux takes one initrd and no other modules.
    #[error(
        "{image} is started by the Linux protocol, which has no place for the module {module}; use an initrd"
    )]
    ModulesNotSupported { image: String, module: String },
}
