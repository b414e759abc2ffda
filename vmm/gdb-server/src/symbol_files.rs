//! Files with symbols, types and frames, which gdb loads.

use std::path::{Path, PathBuf};

use gdb::Refusal;
use guest_symbols::dwarf::DebugInfo;
use guest_symbols::vmlinux::Placement;
use guest_symbols::{Symbols, elf};
use tempfile::TempDir;

/// The files of one session.
#[derive(Default)]
pub(super) struct SymbolFiles {
    /// Where files are made, if not in the host's folder for temporary ones.
    folder: Option<PathBuf>,
    files: Option<TempDir>,
    /// The files that gdb has loaded: it reads how functions were called when it first asks for that.
    loaded: Option<TempDir>,
    /// Files that were made in this session.
    count: usize,
}

impl SymbolFiles {
    /// Makes files in this folder from now on.
    pub fn make_in(&mut self, folder: &Path) {
        self.folder = Some(folder.to_path_buf());
    }

    /// Keeps the newest files, which gdb has loaded, in place of those that it loaded before.
    pub fn keep_loaded(&mut self) {
        if let Some(files) = self.files.take() {
            self.loaded = Some(files);
        }
    }

    /// Writes a file, which stays until gdb has loaded others or the session ends. Returns the command that loads it.
    pub fn write(&mut self, name: &str, symbols: &Symbols, debug: &DebugInfo) -> Result<String, Refusal> {
        let failed =
            |error: std::io::Error| Refusal::new(format!("cannot write a file with symbols: {error}"));
        let files = match self.files.take() {
            Some(files) => files,
            None => {
                let folder = self.folder.clone().unwrap_or_else(std::env::temp_dir);
                tempfile::Builder::new().prefix("ttvm-symbols-").tempdir_in(folder).map_err(failed)?
            }
        };
        self.count += 1;
        let path = files.path().join(format!("{name}-{}", self.count));
        self.files = Some(files);
        std::fs::write(&path, elf::with_debug_info(symbols, debug)).map_err(failed)?;
        Ok(Placement::default().load_command(&path) + "\n")
    }
}
