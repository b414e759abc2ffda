//! Unpacks the ELF kernel inside a bzImage. Starting a bzImage does not need this module, because a bzImage
//! unpacks itself. The machine unpacks the kernel if it must rewrite the kernel's code before it runs
//! ([`crate::time_reads`]).
//!
//! The setup header has the offset and length of the packed kernel (kernel document "The Linux/x86 Boot
//! Protocol", `payload_offset` and `payload_length`). The packed kernel ends with four bytes for the unpacked
//! size. A packed kernel unpacks to an ELF file and, if the kernel can move, its relocations. A kernel at its
//! linked address needs no relocations.

use std::io::Read;

use super::bytes::{slice_at, u8_at, u16_at, u32_at};
use super::elf::Elf;
use super::linux::is_bzimage;

/// The first protocol version with the payload's offset.
const FIRST_VERSION_WITH_PAYLOAD: u16 = 0x0208;
const SECTOR_BYTES: u64 = 512;
/// The size in bytes of the largest kernel that [`unpack`] accepts.
const MAX_KERNEL_BYTES: u64 = 256 << 20;
/// The memory for unpacking, in addition to the kernel. The kernel's makefiles let xz look back over 32 MiB, and zstd
/// over a whole kernel.
const XZ_MEMORY_KIB: u32 = 48 << 10;
const ZSTD_WINDOW_LOG: u32 = 26;

/// The first bytes of a packed format, and its unpacking function.
type Format = (&'static [u8], fn(&[u8], usize) -> std::io::Result<Vec<u8>>);

/// The formats of current distributions' kernels.
const FORMATS: [Format; 4] = [
    (b"\xfd7zXZ\0", |packed, size| {
        read_to(lzma_rust2::XzReader::new_mem_limit(packed, false, XZ_MEMORY_KIB), size)
    }),
    (b"\x28\xb5\x2f\xfd", |packed, size| {
        let mut decoder = zstd::Decoder::new(packed)?.single_frame();
        decoder.window_log_max(ZSTD_WINDOW_LOG)?;
        read_to(decoder, size)
    }),
    (b"\x02\x21\x4c\x18", |packed, size| read_to(lz4_flex::frame::FrameDecoder::new(packed), size)),
    (b"\x1f\x8b", |packed, size| read_to(flate2::read::GzDecoder::new(packed), size)),
];

/// The ELF kernel in a bzImage, or why it cannot be unpacked.
pub fn unpack(image: &[u8]) -> Result<Vec<u8>, String> {
    let payload = payload(image).ok_or("it does not say where its payload is")?;
    let (packed, size) = payload.split_last_chunk::<4>().ok_or("its payload is too short")?;
    let size = u32::from_le_bytes(*size);
    if u64::from(size) > MAX_KERNEL_BYTES {
        return Err(format!("it claims to unpack to {size} bytes"));
    }
    let format = FORMATS.iter().find(|(magic, _)| packed.starts_with(magic));
    let (_, unpack) = format.ok_or("its compression is not xz, zstd, lz4 or gzip")?;
    let kernel = unpack(packed, size as usize).map_err(|error| format!("it cannot be unpacked: {error}"))?;
    if kernel.len() != size as usize || !Elf::is_elf(&kernel) {
        return Err(format!("its payload is not an ELF file of {size} bytes"));
    }
    Ok(kernel)
}

/// The ELF file of a kernel module, from the module's file, which may be packed. The error says why it cannot be unpacked.
pub fn unpack_module(file: &[u8]) -> Result<Vec<u8>, String> {
    let most_bytes = MAX_KERNEL_BYTES as usize;
    let module = match FORMATS.iter().find(|(magic, _)| file.starts_with(magic)) {
        Some((_, unpack)) => {
            unpack(file, most_bytes).map_err(|error| format!("it cannot be unpacked: {error}"))?
        }
        None => file.to_vec(),
    };
    if module.len() > most_bytes || !Elf::is_elf(&module) {
        return Err("it is not a module".to_string());
    }
    Ok(module)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    if !is_bzimage(image) || u16_at(image, 0x206)? < FIRST_VERSION_WITH_PAYLOAD {
        return None;
    }
    let setup_sectors = match u8_at(image, 0x1F1)? {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let start = (setup_sectors + 1) * SECTOR_BYTES + u64::from(u32_at(image, 0x248)?);
    slice_at(image, start, u32_at(image, 0x24C)?.into())
}

/// Reads to the end, but at most one byte more than the expected size.
fn read_to(from: impl Read, size: usize) -> std::io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    from.take(size as u64 + 1).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::tests::images::bzimage;
    use super::*;

    /// A bzImage with this payload. The unpacked size follows the payload, unless the packed format itself ends with
    /// the size.
    fn bzimage_of(packed: &[u8], size: usize) -> Vec<u8> {
        let mut file = bzimage();
        let payload = [packed, &(size as u32).to_le_bytes()].concat();
        let offset = file.len() as u32 - 1024;
        file[0x248..0x24C].copy_from_slice(&offset.to_le_bytes());
        file[0x24C..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        file.extend(payload);
        file
    }

    fn packed_in_each_way(kernel: &[u8]) -> [Vec<u8>; 4] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(kernel).unwrap();
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::default()).unwrap();
        xz.write_all(kernel).unwrap();
        // Linux's makefiles use the older of lz4's two file formats, so the test does too.
        let block = lz4_flex::block::compress(kernel);
        let lz4 = [b"\x02\x21\x4c\x18", (block.len() as u32).to_le_bytes().as_slice(), &block].concat();
        [lz4, gzip.finish().unwrap(), xz.finish().unwrap(), zstd::encode_all(kernel, 3).unwrap()]
    }

    #[test]
    fn kernels_are_unpacked_whatever_they_are_packed_with() {
        let kernel = [b"\x7fELF".as_slice(), &[7; 5000]].concat();
        for packed in packed_in_each_way(&kernel) {
            assert_eq!(unpack(&bzimage_of(&packed, kernel.len())), Ok(kernel.clone()));
            for wrong in [0, kernel.len() - 1, kernel.len() + 1] {
                let why = unpack(&bzimage_of(&packed, wrong)).unwrap_err();
                assert!(why.contains("not an ELF file"), "{why}");
            }
            let why = unpack(&bzimage_of(&packed, u32::MAX as usize)).unwrap_err();
            assert!(why.contains("claims"), "{why}");
        }
    }

    #[test]
    fn what_lies_is_refused() {
        assert!(unpack(b"MZ").is_err() && unpack(&bzimage()).is_err());
        let kernel = [b"\x7fELF".as_slice(), &[7; 500]].concat();
        for packed in packed_in_each_way(&kernel) {
            let file = bzimage_of(&packed, kernel.len());
            for length in 0..file.len() {
                assert!(unpack(&file[..length]).is_err(), "{length}");
            }
            for at in (0x1F1..0x260).chain(2048..file.len()) {
                let mut damaged = file.clone();
                damaged[at] ^= 0xff;
                let _ = unpack(&damaged);
            }
        }
        assert!(unpack(&bzimage_of(b"BZh91AY&SY", 5)).unwrap_err().contains("its compression is not"));
    }
}
