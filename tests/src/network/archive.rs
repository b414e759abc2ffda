//! A package archive for apt with one package, served over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::random::Random;

/// The package's name.
pub(super) const PACKAGE: &str = "ttvm-bulk";
/// The path of the file that the package installs.
pub(super) const INSTALLED: &str = "/usr/share/ttvm-bulk";
/// The size of the file that the package installs.
pub const BULK_BYTES: usize = 1 << 20;

/// A folder with a package and apt's list of packages.
pub struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Makes a package with one file, and apt's list of packages (`Packages`), in the folder `archive` in `directory`.
    pub fn new(directory: &Path) -> Archive {
        let (folder, tree) = (directory.join("archive"), directory.join("package"));
        let about = format!(
            "Package: {PACKAGE}\nVersion: 1\nArchitecture: all\nMaintainer: ttvm <ttvm@localhost>\nDescription: some bytes\n"
        );
        for folder in [&folder, &tree.join("DEBIAN"), &tree.join("usr/share")] {
            std::fs::create_dir_all(folder).expect("there is room for a package");
        }
        std::fs::write(tree.join("DEBIAN/control"), &about).expect("there is room for a package");
        let archive = Archive { folder };
        std::fs::write(tree.join(&INSTALLED[1..]), archive.bulk()).expect("there is room for a package");
        let package = archive.folder.join("bulk.deb");
        run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(&package));
        let sum = run(Command::new("sha256sum").arg(&package));
        let size = std::fs::metadata(&package).expect("dpkg-deb makes it").len();
        let list = format!("{about}Filename: ./bulk.deb\nSize: {size}\nSHA256: {}\n", &sum[..64]);
        std::fs::write(archive.folder.join("Packages"), list).expect("there is room for a list");
        archive
    }

    /// The contents of the package's file.
    pub fn bulk(&self) -> Vec<u8> {
        let mut random = Random::new(1);
        (0..BULK_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
    }

    /// Starts to serve the archive at this address of the host. Returns the port.
    pub fn serve(&self, host: Ipv4Addr) -> u16 {
        let listener = TcpListener::bind((host, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let folder = self.folder.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let folder = folder.clone();
                // Ignore errors, because a client may close its connection early.
                std::thread::spawn(move || drop(answer(&folder, stream)));
            }
        });
        port
    }
}

/// Answers one request.
fn answer(folder: &Path, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let name = request.split(' ').nth(1).and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let mut stream = reader.into_inner();
    match std::fs::read(folder.join(name)) {
        Ok(bytes) => {
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len())?;
            stream.write_all(&bytes)
        }
        Err(_) => write!(stream, "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    }
}

/// The output of a command that must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
