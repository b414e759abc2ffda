//! The modules that a kernel needs to find and mount the disk.

use std::collections::BTreeMap;
use std::path::Path;

use guest_init::Module;
use machine::error::Error;

/// The names of the modules that the disk needs.
const WANTED: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];
/// The largest sizes in bytes of a list of modules, and of a module's file.
const MOST_LIST_BYTES: u64 = 64 << 20;
const MOST_MODULE_BYTES: u64 = 256 << 20;

/// Reads the modules in the order in which the kernel must load them. `folder` has a `modules.dep` of depmod(8). A module that is
/// not in this list is part of the kernel.
pub fn needed(folder: &Path) -> Result<Vec<Module>, Error> {
    let list = folder.join("modules.dep");
    let bytes = plain_file::read(&list, MOST_LIST_BYTES).map_err(Error::file("read", &list))?;
    let text = String::from_utf8_lossy(&bytes);
    order(&text).into_iter().map(|path| read(folder, path)).collect()
}

/// The paths of the needed modules in their order. `text` has a line for each module: its path, a colon, and the paths of the
/// modules that it needs. The module that must be loaded first is last.
fn order(text: &str) -> Vec<&str> {
    let lines: BTreeMap<String, (&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (name(path), (path, needs)))
        .collect();
    let mut paths = Vec::new();
    for wanted in WANTED {
        let Some((path, needs)) = lines.get(wanted) else { continue };
        for path in needs.split_whitespace().rev().chain([*path]) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

/// The name of the module in a file.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

fn read(folder: &Path, path: &str) -> Result<Module, Error> {
    let file = folder.join(path);
    let bytes = plain_file::read(&file, MOST_MODULE_BYTES).map_err(Error::file("read", &file))?;
    let contents = boot::packed_kernel::unpack_module(&bytes)
        .map_err(|why| Error::file("load", &file)(std::io::Error::other(why)))?;
    Ok(Module { name: name(path), contents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_the_modules_that_they_need() {
        let text = "kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz kernel/fs/jbd2/jbd2.ko.xz\n\
            kernel/lib/crc16.ko.xz:\n\
            kernel/drivers/virtio/virtio-pci.ko.xz: kernel/drivers/virtio/virtio.ko.xz\n\
            kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio.ko.xz\n\
            kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz\n";
        let names: Vec<String> = order(text).into_iter().map(name).collect();
        assert_eq!(names, ["virtio", "virtio_pci", "virtio_blk", "jbd2", "mbcache", "crc16", "ext4"]);
        assert!(order("").is_empty(), "a kernel that has all of them");
    }

    #[test]
    fn files_that_are_no_modules_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("modules.dep"), "ext4.ko:\n").unwrap();
        assert!(needed(folder.path()).unwrap_err().to_string().contains("ext4.ko"), "the file is missing");
        std::fs::write(folder.path().join("ext4.ko"), "text").unwrap();
        assert!(needed(folder.path()).unwrap_err().to_string().contains("not a module"));
        std::fs::write(folder.path().join("ext4.ko"), b"\x7fELF").unwrap();
        assert_eq!(needed(folder.path()).unwrap()[0].contents, b"\x7fELF");
    }
}
