//! Chooses the protocol of an image, and describes images that no protocol starts.

use super::bytes::has_at;
use super::elf::Elf;
use super::error::BootError;
use super::images::Image;
use super::protocol::Protocol;
use super::{linux, multiboot1, multiboot2};

/// The protocol of an image, for a caller that chooses none.
pub(super) fn detect(kernel: Image<'_>) -> Result<Protocol, BootError> {
    if linux::is_bzimage(kernel.bytes) {
        return Ok(Protocol::LinuxBzImage);
    }
    if multiboot2::find_header(kernel.bytes).is_some() {
        return Ok(Protocol::Multiboot2);
    }
    if multiboot1::find_header(kernel.bytes).is_some() {
        return Ok(Protocol::Multiboot1);
    }
    if !Elf::is_elf(kernel.bytes) {
        return Err(not_a_kernel(kernel));
    }
    detect_elf(&Elf::parse(kernel)?, kernel)
}

fn detect_elf(elf: &Elf<'_>, kernel: Image<'_>) -> Result<Protocol, BootError> {
    let is_64 = elf.is_x86_64();
    match elf.pvh_entry() {
        _ if is_64 && elf.is_linux() => Ok(Protocol::LinuxElf),
        Some(_) => Ok(Protocol::Pvh),
        None if is_64 => Ok(Protocol::LinuxElf),
        None => Err(BootError::WrongArchitecture {
            image: kernel.name.to_string(),
            found: "a 32-bit x86 ELF file without a Multiboot header or a PVH note".to_string(),
        }),
    }
}

/// Checks that an image can be started by the protocol that the caller names.
pub(super) fn check(kernel: Image<'_>, protocol: Protocol) -> Result<Protocol, BootError> {
    let why = match protocol {
        Protocol::LinuxBzImage => (!linux::is_bzimage(kernel.bytes)).then_some("it is not a bzImage"),
        Protocol::Multiboot2 => {
            multiboot2::find_header(kernel.bytes).is_none().then_some("it has no Multiboot2 header")
        }
        Protocol::Multiboot1 => {
            multiboot1::find_header(kernel.bytes).is_none().then_some("it has no Multiboot header")
        }
        Protocol::LinuxElf | Protocol::Pvh if !Elf::is_elf(kernel.bytes) => Some("it is not an ELF file"),
        Protocol::LinuxElf => (!Elf::parse(kernel)?.is_x86_64()).then_some("it is not an x86-64 ELF file"),
        Protocol::Pvh => Elf::parse(kernel)?.pvh_entry().is_none().then_some("it has no PVH entry note"),
    };
    match why {
        None => Ok(protocol),
        Some(why) => Err(BootError::WrongProtocol {
            image: kernel.name.to_string(),
            protocol: protocol.name(),
            why: why.to_string(),
        }),
    }
}

/// (offset, bytes at this offset, description of such a file).
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (0, b"\x1f\x8b", "a gzip file (unpack it first)"),
    (0, b"\xfd7zXZ\0", "an xz file (unpack it first)"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file (unpack it first)"),
    (0, b"BZh", "a bzip2 file (unpack it first)"),
    (0, b"\x04\x22\x4d\x18", "an lz4 file (unpack it first)"),
    (0, b"\x02\x21\x4c\x18", "an lz4 file (unpack it first)"),
    (0, b"070701", "a cpio archive (an initrd?)"),
    (0, b"070702", "a cpio archive (an initrd?)"),
    (0, b"!<arch>\n", "an ar archive or Debian package"),
    (0, b"QFI\xfb", "a qcow2 disk image"),
    (0, b"#!", "a script"),
    (0, b"\x27\x05\x19\x56", "a U-Boot uImage"),
    (0, b"MZ", "an EFI or DOS program without a Linux boot header"),
    (0x8001, b"CD001", "an ISO 9660 CD image"),
    (510, b"\x55\xaa", "a disk image with a boot sector"),
];

fn not_a_kernel(kernel: Image<'_>) -> BootError {
    let bytes = kernel.bytes;
    let image = kernel.name.to_string();
    if has_at(bytes, 0x38, b"ARM\x64") {
        return BootError::WrongArchitecture { image, found: "an arm64 Linux Image".to_string() };
    }
    if has_at(bytes, 0x30, b"RISCV\0\0\0") {
        return BootError::WrongArchitecture { image, found: "a RISC-V Linux Image".to_string() };
    }
    BootError::NotAKernel { image, looks_like: looks_like(bytes) }
}

fn looks_like(bytes: &[u8]) -> String {
    if let Some((_, _, what)) = SIGNATURES.iter().find(|(at, magic, _)| has_at(bytes, *at, magic)) {
        return what.to_string();
    }
    let head = &bytes[..bytes.len().min(512)];
    if bytes.is_empty() {
        "an empty file".to_string()
    } else if head.iter().all(|byte| *byte == 0) {
        "zeroes".to_string()
    } else if head.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        "a text file".to_string()
    } else {
        let start: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("unknown data (it starts with {})", start.join(" "))
    }
}
