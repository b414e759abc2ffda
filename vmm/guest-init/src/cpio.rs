//! Archives that the kernel unpacks as the first root (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

/// The modes of a folder, a program, a file and a character device.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const DEVICE: u32 = 0o020_600;

/// An archive that is being made.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a folder.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, FILE, (0, 0), contents);
    }

    /// Adds a program.
    pub fn program(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), contents);
    }

    /// Adds a character device with this major and minor number.
    pub fn device(&mut self, path: &str, number: (u32, u32)) {
        self.entry(path, DEVICE, number, &[]);
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let name_bytes = path.len() as u32 + 1;
        // Inode, mode, user, group, links, time, size, the file's device, the node's device, the length of the name, and a
        // check sum. This format does not use the check sum.
        let size_bytes = contents.len() as u32;
        let fields = [self.entries, mode, 0, 0, 1, 0, size_bytes, 0, 0, device.0, device.1, name_bytes, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08X}").bytes()));
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
