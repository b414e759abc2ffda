//! The setup of the guest's first process.

use crate::cpio::Archive;
use crate::{INIT, STATUS_BYTES};

/// The largest size of the list of texts in bytes, and the largest number of arguments and of variables. The first process has
/// room for so many.
const MOST_BYTES: usize = 1 << 20;
const MOST_TEXTS: usize = 4096;
/// The first bytes of a block with a status.
const MAGIC: &[u8; 8] = b"TTVMEXIT";

/// The setup of the guest's first process.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The command and its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// The environment of the command, as `NAME=VALUE`. The command is looked for in the folders of PATH.
    pub environment: Vec<Vec<u8>>,
    /// The folder in which the command runs.
    pub folder: Vec<u8>,
    /// The user and the group of the command.
    pub user: (u32, u32),
    /// The columns and rows of the host's terminal; `None` if the output goes to a file or a pipe.
    pub terminal: Option<(u16, u16)>,
    /// Whether the command's standard input is empty.
    pub no_input: bool,
    /// Whether the guest has a `/tmp` of its own.
    pub own_tmp: bool,
    /// The offset in bytes on the disk of the block for the command's status.
    pub status_at: u64,
    /// The modules that the kernel needs to find and mount the disk, in the order in which they are loaded.
    pub modules: Vec<Module>,
}

/// A module of the kernel.
#[derive(Clone, Debug)]
pub struct Module {
    /// The name of its file, for messages.
    pub name: String,
    /// The contents of its file, not compressed.
    pub contents: Vec<u8>,
}

/// The reason for which a setup cannot be given to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no command.
    NoCommand,
    /// A text has a zero byte, which no argument or variable can have.
    ZeroByte,
    /// The command and the environment are too long.
    TooLong,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Error::NoCommand => "there is no command",
            Error::ZeroByte => "an argument or a variable has a zero byte",
            Error::TooLong => "the command and its environment have more than 4096 texts, or more than 1 MiB",
        })
    }
}

impl std::error::Error for Error {}

impl Setup {
    /// The initial RAM disk for this setup.
    ///
    /// # Errors
    ///
    /// If the command or its environment cannot be given to the guest.
    pub fn initrd(&self) -> Result<Vec<u8>, Error> {
        let mut archive = Archive::default();
        archive.folder("dev");
        archive.device("dev/console", (5, 1));
        archive.program("init", INIT);
        archive.file("setup", &self.text()?);
        archive.folder("modules");
        for (number, module) in self.modules.iter().enumerate() {
            archive.file(&module_path(number, module)[1..], &module.contents);
        }
        Ok(archive.finish())
    }

    /// The file `/setup`: entries of a letter, a text and a zero.
    fn text(&self) -> Result<Vec<u8>, Error> {
        if self.arguments.is_empty() {
            return Err(Error::NoCommand);
        }
        let mut text = Text(Vec::new());
        for argument in &self.arguments {
            text.add(b'a', argument)?;
        }
        for variable in &self.environment {
            text.add(b'e', variable)?;
        }
        for (number, module) in self.modules.iter().enumerate() {
            text.add(b'm', module_path(number, module).as_bytes())?;
        }
        let (columns, rows) = self.terminal.unwrap_or_default();
        let numbers = [
            (b'u', u64::from(self.user.0)),
            (b'g', u64::from(self.user.1)),
            (b'w', columns.into()),
            (b'h', rows.into()),
            (b's', self.status_at),
        ];
        for (letter, number) in numbers {
            text.add(letter, number.to_string().as_bytes())?;
        }
        let flags = [(b't', self.terminal.is_some()), (b'n', self.no_input), (b'T', self.own_tmp)];
        for (letter, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            text.add(*letter, b"")?;
        }
        text.add(b'c', &self.folder)?;
        let is_too_long = self.arguments.len().max(self.environment.len()) > MOST_TEXTS;
        if is_too_long || text.0.len() > MOST_BYTES { Err(Error::TooLong) } else { Ok(text.0) }
    }
}

/// The path of a module in the initial RAM disk.
fn module_path(number: usize, module: &Module) -> String {
    format!("/modules/{number:03}-{}", module.name)
}

/// The text of the file `/setup`.
struct Text(Vec<u8>);

impl Text {
    fn add(&mut self, letter: u8, text: &[u8]) -> Result<(), Error> {
        if text.contains(&0) {
            return Err(Error::ZeroByte);
        }
        self.0.push(letter);
        self.0.extend(text);
        self.0.push(0);
        Ok(())
    }
}

/// The command's status in the block at [`Setup::status_at`], in the form of a shell's `$?`. A command that a signal ended has
/// 128 plus the signal's number. `None` if the first process has not written a status.
pub fn status(block: &[u8; STATUS_BYTES]) -> Option<u8> {
    let number = i32::from_le_bytes(block[8..12].try_into().expect("four bytes"));
    let number = u8::try_from(number).ok();
    number.filter(|_| block.starts_with(MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_names_all_that_the_first_process_needs() {
        let module = Module { name: "ext4.ko".to_string(), contents: b"module".to_vec() };
        let setup = Setup {
            arguments: vec![b"ls".to_vec(), b"-l".to_vec()],
            environment: vec![b"PATH=/bin".to_vec()],
            folder: b"/src".to_vec(),
            user: (1000, 100),
            terminal: Some((120, 40)),
            no_input: true,
            status_at: 4096,
            modules: vec![module],
            ..Setup::default()
        };
        let text = String::from_utf8(setup.text().unwrap()).unwrap();
        let entries: Vec<&str> = text.split_terminator('\0').collect();
        let expected = [
            "als",
            "a-l",
            "ePATH=/bin",
            "m/modules/000-ext4.ko",
            "u1000",
            "g100",
            "w120",
            "h40",
            "s4096",
            "t",
            "n",
            "c/src",
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn setups_that_the_first_process_cannot_read_are_refused() {
        let setup = |arguments: Vec<Vec<u8>>| Setup { arguments, ..Setup::default() }.initrd().err();
        assert_eq!(setup(Vec::new()), Some(Error::NoCommand));
        assert_eq!(setup(vec![b"a\0b".to_vec()]), Some(Error::ZeroByte));
        assert_eq!(setup(vec![vec![b'x'; MOST_BYTES]]), Some(Error::TooLong));
        assert_eq!(setup(vec![b"x".to_vec(); MOST_TEXTS + 1]), Some(Error::TooLong));
        assert_eq!(setup(vec![b"x".to_vec(); MOST_TEXTS]), None);
    }

    #[test]
    fn a_status_is_read_only_from_its_own_block() {
        let mut block = [0; STATUS_BYTES];
        assert_eq!(status(&block), None);
        block[..8].copy_from_slice(MAGIC);
        assert_eq!(status(&block), Some(0));
        block[8..12].copy_from_slice(&137_i32.to_le_bytes());
        assert_eq!(status(&block), Some(137));
        block[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
        assert_eq!(status(&block), None);
    }

    /// cpio, which Debian has, is the second opinion.
    #[test]
    fn other_programs_unpack_the_initial_ram_disk() {
        let folder = tempfile::tempdir().unwrap();
        let module = Module { name: "a.ko".to_string(), contents: b"12345".to_vec() };
        let arguments = vec![b"ls".to_vec()];
        let setup = Setup { arguments, modules: vec![module], ..Setup::default() };
        let file = folder.path().join("initrd");
        std::fs::write(&file, setup.initrd().unwrap()).unwrap();
        let list = std::process::Command::new("cpio")
            .args(["--quiet", "-tv"])
            .stdin(std::fs::File::open(&file).unwrap())
            .output()
            .expect("cpio must be installed: run scripts/setup");
        let list = String::from_utf8(list.stdout).unwrap();
        let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
        let names: Vec<&str> = lines.iter().map(|line| *line.last().unwrap()).collect();
        assert_eq!(names, ["dev", "dev/console", "init", "setup", "modules", "modules/000-a.ko"]);
        assert!(lines[1][0].starts_with("crw") && list.contains("5,   1"), "{list}");
        assert!(lines[2][0].starts_with("-rwx") && lines[5][4] == "5", "{list}");
    }
}
