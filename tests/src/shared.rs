//! Recordings that several tests use. The first test that needs a recording makes it, and each test gets a copy.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

use crate::guests::{BUSYBOX, CLOUD, Guest};
use crate::record::record;
use machine::script::Script;

/// A recording in memory, once it is made. The recording has no folders: `record` makes no checkpoints.
pub struct Shared(OnceLock<Made>);

struct Made {
    files: Vec<(OsString, Vec<u8>)>,
    console: String,
}

impl Shared {
    /// Creates a shared recording that no test has requested yet.
    pub const fn new() -> Shared {
        Shared(OnceLock::new())
    }

    /// Writes the recording of `guest` at `path`, and returns the console's text. During the recording, `commands`
    /// are typed into the guest's shell.
    pub fn copy_to(&self, path: &Path, guest: impl FnOnce() -> Guest, commands: &[&str]) -> &str {
        let made = self.0.get_or_init(|| Made::by(&guest(), commands));
        std::fs::create_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (name, bytes) in &made.files {
            std::fs::write(path.join(name), bytes).expect("the folder is ours");
        }
        &made.console
    }
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::new()
    }
}

impl Made {
    fn by(guest: &Guest, commands: &[&str]) -> Made {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = directory.path().join("r.ttvm");
        let mut script = Script::shell(commands);
        record(guest, &path, &mut script);
        let entries = std::fs::read_dir(&path).expect("it was just written").flatten();
        let file = |entry: std::fs::DirEntry| {
            (entry.file_name(), std::fs::read(entry.path()).expect("a recording has files only"))
        };
        Made { files: entries.map(file).collect(), console: script.text() }
    }
}

/// Records a boot of the kernel that most tests boot, which starts some processes and powers off. KASLR is on.
pub fn record_boot(path: &Path) {
    static BOOT: Shared = Shared::new();
    let commands = ["sleep 1 & ls / | wc", "cat /proc/uptime", "poweroff -f"];
    BOOT.copy_to(path, || Guest::linux(&CLOUD, &BUSYBOX, "", 128), &commands);
}
