//! e2fsck, the checker of e2fsprogs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ext4_layout::Block;

use super::{Disk, byte};

/// The largest part of a file whose bytes an image has.
const MOST_CONTENTS_BYTES: u64 = 1 << 20;

/// Writes a disk into a sparse file. The blocks are read in rising order.
pub fn write(disk: &mut Disk, path: &Path) {
    let image = File::create(path).unwrap();
    image.set_len(disk.layout.blocks() * 4096).unwrap();
    for number in 0..disk.layout.blocks() {
        let bytes = match disk.layout.block(number) {
            Block::Zero => continue,
            Block::File { offset, .. } if offset >= MOST_CONTENTS_BYTES => continue,
            Block::File { id, offset } => Box::new(std::array::from_fn(|at| byte(id, offset + at as u64))),
            Block::Made(bytes) => bytes,
        };
        image.write_all_at(&*bytes, number * 4096).unwrap();
    }
}

/// Runs a program of e2fsprogs on the disk's image. Returns its success and its output, or `None` if the host has no such
/// program.
pub fn run(program: &str, arguments: &[&str], image: &Path) -> Option<(bool, String)> {
    let output = Command::new(program).args(arguments).arg(image).env("LC_ALL", "C").output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// The problems that e2fsck finds in the disk; empty if it finds none, `None` if the host has no e2fsck.
pub fn problems(disk: &mut Disk) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    write(disk, &path);
    let (clean, text) = run("e2fsck", &["-fn"], &path)?;
    let known = |line: &&str| {
        !line.is_empty()
            && !line.starts_with("e2fsck 1.")
            && !line.starts_with("Pass ")
            && !line.contains(" files (")
    };
    let problems: Vec<String> = text.lines().filter(known).map(str::to_string).collect();
    assert_eq!(clean, problems.is_empty(), "{text}");
    Some(problems)
}

/// The problems of a lazy disk that do not stem from the numbers of used blocks, inodes and folders.
pub fn lazy_problems(disk: &mut Disk) -> Option<Vec<String>> {
    let counts = ["Block bitmap diff", "Inode bitmap diff", "Free ", "Directories count", "Fix? no"];
    let mut problems = problems(disk)?;
    problems.retain(|line| !counts.iter().any(|count| line.starts_with(count)));
    problems.retain(|line| !line.contains("WARNING: Filesystem still has errors"));
    Some(problems)
}
