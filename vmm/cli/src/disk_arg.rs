//! `--disk`: a raw disk image, or a folder. An image of another format is refused, with a message that names the format.
//!
//! A disk's bytes are mapped and hashed as they are in the file, so ttvm reads no other format. With another format,
//! the guest would see the file's own bytes, such as its headers, as the contents of the disk. Formats are recognised
//! by the magic numbers that QEMU's drivers check.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use machine::error::Error;

/// A prefix of paths. With this prefix, the file's bytes are the disk, even if they look like another format.
const RAW: &str = "raw:";

/// A disk image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskArg {
    /// The path of the image file, or of the folder.
    pub path: PathBuf,
    /// Whether the file's bytes are the disk, whatever they look like.
    is_raw: bool,
}

impl FromStr for DiskArg {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskArg, String> {
        let raw = text.strip_prefix(RAW);
        match raw.unwrap_or(text) {
            "" => Err("give a file".to_string()),
            path => Ok(DiskArg { path: path.into(), is_raw: raw.is_some() }),
        }
    }
}

impl DiskArg {
    /// Whether the path is a folder, whose files the guest gets as a disk.
    pub fn is_folder(&self) -> bool {
        !self.is_raw && self.path.is_dir()
    }

    /// Returns an error if the image has another format.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_raw {
            return Ok(());
        }
        let path = &self.path;
        let file = plain_file::open(path).map_err(Error::file("open", path))?;
        let Some(format) = format_of(&file).map_err(Error::file("read", path))? else { return Ok(()) };
        Err(Error::file("use", path)(std::io::Error::other(refusal(format, path))))
    }
}

/// One sentence that refuses the image and names the remedy.
fn refusal(format: &Format, path: &Path) -> String {
    let file = path.display();
    let remedy = match format.unpack {
        Some(unpack) => format!("unpack it by `{unpack} {file}`"),
        None => format!("convert it by `qemu-img convert -O raw {file} {file}.raw`"),
    };
    let name = format.name;
    format!(
        "it is {name} and not a raw disk; {remedy}, or give --disk {RAW}{file} if its bytes are the disk's own"
    )
}

/// An image format other than raw.
struct Format {
    name: &'static str,
    /// The program that unpacks the file; `None` for a disk format that QEMU converts.
    unpack: Option<&'static str>,
    /// The position of the magic number, from the beginning or from the end of the file.
    at: Place,
    magic: &'static [u8],
}

#[derive(Clone, Copy)]
enum Place {
    Start(u64),
    End(u64),
}

const fn disk(name: &'static str, at: Place, magic: &'static [u8]) -> Format {
    Format { name, unpack: None, at, magic }
}

const fn packed(name: &'static str, unpack: &'static str, magic: &'static [u8]) -> Format {
    Format { name, unpack: Some(unpack), at: Place::Start(0), magic }
}

const FORMATS: [Format; 19] = [
    disk("a qcow2 image", Place::Start(0), b"QFI\xfb"),
    disk("a QED image", Place::Start(0), b"QED\0"),
    disk("a VMDK image", Place::Start(0), b"KDMV"),
    disk("a VMDK image", Place::Start(0), b"COWD"),
    disk("a VMDK image", Place::Start(0), b"\xbe\xba\xfe\xca\0\0\0\0"),
    disk("the description of a VMDK image", Place::Start(0), b"# Disk DescriptorFile"),
    disk("a VHDX image", Place::Start(0), b"vhdxfile"),
    disk("a VHD image", Place::Start(0), b"conectix"),
    // A VHD image of fixed size is a raw disk with one extra sector at its end.
    disk("a VHD image", Place::End(512), b"conectix"),
    disk("a VDI image", Place::Start(0x40), b"\x7f\x10\xda\xbe"),
    disk("a Parallels image", Place::Start(0), b"WithoutFreeSpace"),
    disk("a Parallels image", Place::Start(0), b"WithouFreSpacExt"),
    disk("a Bochs image", Place::Start(0), b"Bochs Virtual HD Image\0"),
    disk("a DMG image", Place::End(512), b"koly"),
    packed("a gzip file", "gunzip -k", b"\x1f\x8b\x08"),
    packed("an xz file", "unxz -k", b"\xfd7zXZ\0"),
    packed("a zstd file", "unzstd", b"\x28\xb5\x2f\xfd"),
    packed("a bzip2 file", "bunzip2 -k", b"BZh"),
    packed("an lz4 file", "unlz4", b"\x04\x22\x4d\x18"),
];

/// The format of a file, if it is not a raw disk.
fn format_of(file: &File) -> std::io::Result<Option<&'static Format>> {
    let size_bytes = file.metadata()?.len();
    for format in &FORMATS {
        let at = match format.at {
            Place::Start(at) => Some(at),
            Place::End(before) => size_bytes.checked_sub(before),
        };
        let mut found = [0; 32];
        let found = &mut found[..format.magic.len()];
        let Some(at) = at.filter(|at| at + found.len() as u64 <= size_bytes) else { continue };
        file.read_exact_at(found, at)?;
        if found == format.magic {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_known_by_its_magic_and_raw_says_that_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let arg = |prefix: &str| format!("{prefix}{}", path.display()).parse::<DiskArg>().unwrap();
        for format in &FORMATS {
            let mut bytes = vec![0; 4096];
            let at = match format.at {
                Place::Start(at) => at,
                Place::End(before) => 4096 - before,
            } as usize;
            bytes[at..at + format.magic.len()].copy_from_slice(format.magic);
            std::fs::write(&path, &bytes).unwrap();
            let told = arg("").check().unwrap_err().to_string();
            assert!(told.contains(format.name) && told.contains("raw:"), "{told}");
            assert!(told.contains(format.unpack.unwrap_or("qemu-img convert -O raw")), "{told}");
            assert!(arg(RAW).check().is_ok());
        }
    }

    #[test]
    fn raw_disks_of_any_size_are_none_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        for bytes in [&b""[..], b"QF", &[0; 511], &[0xff; 513], b"\xeb\x63\x90\x10\x8e\xd0 GRUB"] {
            std::fs::write(&path, bytes).unwrap();
            assert!(path.display().to_string().parse::<DiskArg>().unwrap().check().is_ok());
        }
    }

    #[test]
    fn a_file_may_have_any_name() {
        let parsed = |text: &str| text.parse::<DiskArg>();
        assert_eq!(parsed("a:b"), Ok(DiskArg { path: "a:b".into(), is_raw: false }));
        assert_eq!(parsed("raw:raw:b"), Ok(DiskArg { path: "raw:b".into(), is_raw: true }));
        assert!(parsed("raw:").is_err() && parsed("").is_err());
    }
}
