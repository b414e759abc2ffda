//! The modules of a kernel: an index of the modules in a kernel tree, and the modules that the disk needs.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest_init::Module;
use machine::error::Error;

/// The names of the modules that the disk needs.
const WANTED: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];
/// The largest sizes in bytes of a list of modules, and of a module's file.
const MOST_LIST_BYTES: u64 = 64 << 20;
const MOST_MODULE_BYTES: u64 = 256 << 20;

/// The files of a kernel tree that depmod(8) reads, besides the modules.
const LISTS: [&str; 3] = ["modules.order", "modules.builtin", "modules.builtin.modinfo"];

/// Makes a folder of modules as `make modules_install` does, below the folder `temporary`. The modules are links to the files in the
/// tree. `None` if the tree has no modules.
pub fn index(tree: &Path, release: &str, temporary: &Path) -> Result<Option<PathBuf>, Error> {
    let tree = tree.canonicalize().map_err(Error::file("open", tree))?;
    let order = tree.join("modules.order");
    let text = match plain_file::read(&order, MOST_LIST_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", order)(error)),
    };
    let modules: Vec<PathBuf> =
        text.lines().filter_map(in_tree).filter(|path| tree.join(path).is_file()).collect();
    if modules.is_empty() {
        return Ok(None);
    }
    let folder = temporary.join("lib/modules").join(release);
    for module in &modules {
        let link = folder.join("kernel").join(module);
        let above = link.parent().unwrap_or(&folder);
        std::fs::create_dir_all(above).map_err(Error::file("create", above))?;
        symlink(tree.join(module), &link).map_err(Error::file("create", &link))?;
    }
    for list in LISTS {
        let (from, to) = (tree.join(list), folder.join(list));
        if from.is_file() {
            std::fs::copy(&from, &to).map_err(Error::file("copy", &to))?;
        }
    }
    run_depmod(temporary, release)?;
    Ok(Some(folder))
}

/// The path in the tree of a module in `modules.order`. Older kernels write `kernel/fs/a.ko`, newer kernels `fs/a.o`.
fn in_tree(line: &str) -> Option<PathBuf> {
    let path = line.trim().strip_prefix("kernel/").unwrap_or(line.trim());
    let name = path.strip_suffix(".ko").or_else(|| path.strip_suffix(".o"))?;
    let path = PathBuf::from(format!("{name}.ko"));
    path.components().all(|part| matches!(part, std::path::Component::Normal(_))).then_some(path)
}

fn run_depmod(base: &Path, release: &str) -> Result<(), Error> {
    let mut command = Command::new("depmod");
    // Users without privileges often have no /sbin in PATH.
    let search = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    command.env("PATH", search).arg("-b").arg(base).arg(release).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| {
        let why = format!(
            "cannot start depmod, which indexes the tree's modules: {error}; install kmod, or give --modules"
        );
        Error::Unsupported(why)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().to_string();
    Err(Error::Unsupported(format!("depmod cannot index the tree's modules: {said}")))
}

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
    fn modules_of_old_and_new_trees_are_found() {
        let path = |line| in_tree(line).map(|path| path.to_str().unwrap().to_string());
        assert_eq!(path("kernel/fs/ext4/ext4.ko").as_deref(), Some("fs/ext4/ext4.ko"));
        assert_eq!(path("fs/ext4/ext4.o").as_deref(), Some("fs/ext4/ext4.ko"));
        assert_eq!(path("../secret.ko"), None);
        assert_eq!(path(""), None);
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir_all(tree.join("fs")).unwrap();
        assert!(index(&tree, "6.1.0", folder.path()).unwrap().is_none(), "a kernel without modules");
        std::fs::write(tree.join("modules.order"), "fs/missing.o\n").unwrap();
        assert!(
            index(&tree, "6.1.0", folder.path()).unwrap().is_none(),
            "a kernel whose modules are not built"
        );
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
