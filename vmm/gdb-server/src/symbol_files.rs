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
    /// The folder for the files, if not the host's folder for temporary files.
    folder: Option<PathBuf>,
    files: Option<TempDir>,
    /// The files that gdb has loaded. These files must stay, because gdb reads the unwind information from them
    /// only when it first uses the information.
    loaded: Option<TempDir>,
    /// The number of files made in this session.
    count: usize,
}

impl SymbolFiles {
    /// Chooses the folder for new files.
    pub fn make_in(&mut self, folder: &Path) {
        self.folder = Some(folder.to_path_buf());
    }

    /// Notes that gdb has loaded the newest files. Removes the files that gdb had loaded before.
    pub fn keep_loaded(&mut self) {
        if let Some(files) = self.files.take() {
            self.loaded = Some(files);
        }
    }

    /// Writes a file. The file stays until gdb has loaded newer files or the session ends. Returns the command that
    /// loads the file.
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
