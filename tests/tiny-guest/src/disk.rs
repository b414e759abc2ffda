//! A disk with one partition, whose file system has some files. The guest does not use the disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use machine::config::MachineOptions;
use machine::position::Instructions;
use recording::{Recordable, Recording};

use super::{DENSE, POWER_ON, Script, options, write_kernel};

/// The first byte of the partition.
pub const START: usize = 1 << 20;
/// The size of the partition in bytes.
pub const PARTITION_BYTES: usize = 4 << 20;
/// The size of the disk in bytes. The partition ends before the disk.
pub const DISK_BYTES: usize = START + PARTITION_BYTES + (1 << 20) + 512;
/// The contents of `/escape`: a control sequence, a byte that is no UTF-8, and a zero.
pub const ESCAPE: &[u8] = b"red \x1b[31m\xff\0";
/// The contents of `/folder/text`, to which `/link` leads.
pub const TEXT: &str = "a text\n";
/// The size of the file `/long`, which has only the letter `x`.
pub const LONG_BYTES: usize = 100_000;

/// Makes the disk. Uses files in `directory`. Returns `None` if the host has no mke2fs.
pub fn make(directory: &Path) -> Option<Vec<u8>> {
    let files = directory.join("files");
    fs::create_dir_all(files.join("folder")).unwrap();
    fs::write(files.join("folder/text"), TEXT).unwrap();
    fs::write(files.join("long"), "x".repeat(LONG_BYTES)).unwrap();
    fs::write(files.join("escape"), ESCAPE).unwrap();
    fs::set_permissions(files.join("escape"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("folder/text", files.join("link")).unwrap();
    let image = directory.join("partition");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-L", "data", "-d"]).arg(&files).arg(&image);
    let made = make.arg(format!("{}k", PARTITION_BYTES >> 10)).output().ok()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut disk = vec![0; DISK_BYTES];
    // The first entry of an MBR table.
    disk[446 + 4] = 0x83;
    disk[446 + 8..][..4].copy_from_slice(&(START as u32 / 512).to_le_bytes());
    disk[446 + 12..][..4].copy_from_slice(&(PARTITION_BYTES as u32 / 512).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let partition = fs::read(image).unwrap();
    disk[START..][..partition.len()].copy_from_slice(&partition);
    disk[DISK_BYTES - 1] = 0x77;
    Some(disk)
}

/// Records a guest with this disk.
pub fn record(directory: &Path, name: &str, disk: &[u8]) -> Recording<Instructions> {
    let path = directory.join("disk");
    fs::write(&path, disk).unwrap();
    let options = MachineOptions { disk: Some(path), ..options(write_kernel(directory, 1000)) };
    let folder = directory.join(name);
    let mut guest = Recordable::new(&options, POWER_ON).unwrap();
    guest.record_in(&folder).unwrap().checks(DENSE).run(Script(Vec::new())).unwrap();
    super::open(&folder)
}
