//! Files with debug information that a person named: programs, libraries, or the kernel's `vmlinux`. This module finds where
//! their variables are in the guest.

use std::path::{Path, PathBuf};

use guest_symbols::Symbols;
use guest_symbols::debug_file::{Converted, DebugFile};
use guest_symbols::mappings::Mappings;
use guest_symbols::tasks::Processes;
use guest_symbols::vmlinux::{Match, compare};
use machine::Processor;
use machine::error::Error;
use machine::position::Instructions;

/// Below this address, a kernel's file has offsets of per-CPU variables, which do not move with the kernel.
const KERNEL_SPACE: u64 = 1 << 63;

/// Files with debug information, in the order in which names are looked up.
#[derive(Debug, Default)]
pub struct DebugFiles(Vec<DebugFile>);

impl PartialEq for DebugFiles {
    fn eq(&self, other: &DebugFiles) -> bool {
        self.paths().eq(other.paths())
    }
}

impl Eq for DebugFiles {}

/// A variable of a file, placed in the guest.
pub(crate) struct Placed {
    pub address: u64,
    /// The size in bytes, if there is no type and the size is known.
    pub size: Option<u64>,
    pub kind: Option<Converted>,
}

impl DebugFiles {
    /// Opens the files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or has neither debug information nor symbols.
    pub fn open(paths: &[PathBuf]) -> Result<DebugFiles, Error> {
        let open =
            |path: &PathBuf| DebugFile::open(path).map_err(|unusable| Error::Usage(unusable.to_string()));
        Ok(DebugFiles(paths.iter().map(open).collect::<Result<_, _>>()?))
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(DebugFile::path)
    }

    /// The files' paths for a message, after the words "the guest's kernel".
    pub(crate) fn alternatives(&self) -> String {
        self.paths().map(|path| format!(" or {}", path.display())).collect()
    }

    /// Whether a file has this variable.
    pub(crate) fn have(&self, name: &str) -> bool {
        self.0.iter().any(|file| file.variable(name).is_some())
    }

    /// A variable of the first file that has it. `None` if no file has it. The error is a sentence.
    pub(crate) fn variable(
        &self,
        name: &str,
        processor: &Processor<'_, Instructions>,
        symbols: Option<&Symbols>,
    ) -> Result<Option<Placed>, String> {
        let found = self.0.iter().find_map(|file| Some((file, file.variable(name)?)));
        let Some((file, declared)) = found else { return Ok(None) };
        let distance = match symbols.map(|symbols| compare(file.path(), symbols)) {
            Some(Ok(Match::Kernel(_))) if declared.address < KERNEL_SPACE => 0,
            Some(Ok(Match::Kernel(placement))) => placement.distance,
            Some(Err(unusable)) => return Err(unusable.to_string()),
            _ => distance_in_process(file, processor, symbols)?,
        };
        let address = declared.address.wrapping_add(distance);
        Ok(Some(Placed { address, size: declared.size, kind: file.type_of(&declared) }))
    }

    /// A type of the first file that has it.
    pub(crate) fn type_named(&self, name: &str) -> Option<Converted> {
        self.0.iter().find_map(|file| file.type_named(name))
    }
}

/// The distance between a program's addresses in its file and in the guest. A program that the kernel moves is looked for in
/// the running process, then in all others.
fn distance_in_process(
    file: &DebugFile,
    processor: &Processor<'_, Instructions>,
    symbols: Option<&Symbols>,
) -> Result<u64, String> {
    if !file.is_movable() {
        return Ok(0);
    }
    let path = file.path().display();
    let unknown = |why: String| format!("the address of {path} in the guest is unknown: {why}");
    let symbols = symbols.ok_or_else(|| unknown("the guest's kernel has no symbols".to_string()))?;
    let mappings = Mappings::of_kernel(processor, symbols).map_err(|missing| unknown(missing.to_string()))?;
    let processes = Processes::of_guest(processor).map_err(|none| unknown(none.to_string()))?;
    let running = processes.current.iter().map(|thread| thread.task);
    let tasks = running.chain(processes.all.iter().map(|process| process.task));
    let mapped = tasks.flat_map(|task| mappings.of_task(processor, task)).find(|mapping| {
        Path::new(&mapping.path).file_name().is_some_and(|name| Some(name) == file.path().file_name())
    });
    let none = || unknown("no process has mapped it at this position; choose another position".to_string());
    mapped.map(|mapping| file.distance(mapping.range.start, mapping.offset)).ok_or_else(none)
}
