//! The companion: a small helper process outside of the sandbox. `ttvm debug` starts a companion, and so does a run
//! that may be recorded later. The companion runs gdb, if the user wants gdb. At the end of `ttvm debug`, the
//! companion removes its temporary folder and its socket.
//!
//! ```text
//!   ttvm debug (locked in) ── pipe ──► companion ── runs ──► gdb
//!                                      a byte: start gdb; end of file: ttvm debug has ended, so remove the files
//! ```
//!
//! A process in its sandbox can neither make nor remove a folder. So ttvm makes the folder of a later recording
//! before the run. At the end of the run the companion removes the control socket, and the folder if it is empty.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use machine::error::{Error, exit_code};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use recording::files::IMAGES;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Run gdb for `ttvm debug`, and remove files when the other process ends. Only ttvm itself starts this verb
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The descriptor of the pipe on which the other process says when to start gdb
    #[arg(long)]
    pipe: i32,
    /// A folder to remove
    #[arg(long)]
    folder: Option<PathBuf>,
    /// A folder to remove if it is empty
    #[arg(long)]
    empty_folder: Option<PathBuf>,
    /// A socket to remove
    #[arg(long)]
    socket: Option<PathBuf>,
    /// gdb and its arguments
    #[arg(last = true)]
    gdb: Vec<String>,
}

/// The files that the companion removes when the other process ends.
#[derive(Clone, Copy, Default)]
pub struct Leftovers<'a> {
    /// A folder to remove with its contents.
    pub folder: Option<&'a Path>,
    /// A folder to remove if it is empty.
    pub empty_folder: Option<&'a Path>,
    /// A socket to remove.
    pub socket: Option<&'a Path>,
}

/// A handle on the companion. Dropping the handle makes the companion remove the files, and waits until the companion
/// ends.
pub struct Companion {
    /// The pipe to the companion. `None` after the pipe was closed, which makes the companion remove the files.
    pipe: Option<PipeWriter>,
    process: Child,
}

impl Companion {
    /// Starts the companion. The companion runs this gdb when the server is ready, and removes the files `left` at the
    /// end.
    pub fn start(left: &Leftovers<'_>, gdb: Option<Command>) -> Result<Companion, Error> {
        let failed = |source| Error::Host { what: "cannot start the helper process".to_string(), source };
        let (reader, pipe) = std::io::pipe().map_err(failed)?;
        let mut command = command(&reader, left).map_err(failed)?;
        match gdb {
            Some(gdb) => {
                let changes = gdb.get_envs().filter_map(|(name, value)| Some((name, value?)));
                command.arg("--").arg(gdb.get_program()).args(gdb.get_args()).envs(changes);
            }
            None => {
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            }
        }
        Ok(Companion { process: command.spawn().map_err(failed)?, pipe: Some(pipe) })
    }

    /// Lets the companion start gdb, waits until gdb ends, and returns gdb's exit code.
    pub fn run_gdb(mut self) -> i32 {
        // Ignores a failure. If the companion has already ended, its exit code says why.
        let _ = self.pipe.as_mut().map(|pipe| pipe.write_all(b"\n"));
        let status = self.process.wait();
        status.ok().and_then(|status| status.code()).unwrap_or(exit_code::FAILED)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.process.wait();
    }
}

/// The command that starts this program once more. The new process inherits the pipe's reading end.
fn command(reader: &PipeReader, left: &Leftovers<'_>) -> std::io::Result<Command> {
    fcntl(reader.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["debug-companion", "--pipe", &reader.as_raw_fd().to_string()]);
    let Leftovers { folder, empty_folder, socket } = *left;
    for (option, path) in [("--folder", folder), ("--empty-folder", empty_folder), ("--socket", socket)] {
        if let Some(path) = path {
            command.arg(option).arg(std::path::absolute(path)?);
        }
    }
    Ok(command)
}

/// Runs the companion.
pub fn run(args: &Args) -> Result<i32, Error> {
    let failed = |source| Error::Host { what: "cannot watch the helper process".to_string(), source };
    // A terminal sends signals to all its processes. The companion ignores these signals, which are for the process
    // that started it or for gdb.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    let files = Files {
        folder: args.folder.clone(),
        empty_folder: args.empty_folder.clone(),
        socket: args.socket.clone().and_then(Socket::of),
    };
    let mut pipe = File::open(format!("/proc/self/fd/{}", args.pipe)).map_err(failed)?;
    let gdb = (wait(&mut pipe) && !args.gdb.is_empty()).then(|| start_gdb(&args.gdb)).transpose()?;
    let Some(mut gdb) = gdb else {
        files.remove();
        return Ok(exit_code::DONE);
    };
    let when_gone = files.clone();
    std::thread::spawn(move || {
        while wait(&mut pipe) {}
        when_gone.remove();
    });
    let status = gdb.wait().map_err(failed)?;
    files.remove();
    exit(status.code().unwrap_or(exit_code::FAILED))
}

/// Waits for a byte from the pipe. Returns false if no more bytes will come.
fn wait(pipe: &mut File) -> bool {
    loop {
        match pipe.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

fn start_gdb(words: &[String]) -> Result<Child, Error> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).spawn().map_err(|error| {
        Error::Unsupported(format!(
            "cannot start {}: {error}; install gdb, or leave --gdb out and attach one yourself",
            words[0]
        ))
    })
}

/// The files to remove.
#[derive(Clone)]
struct Files {
    folder: Option<PathBuf>,
    empty_folder: Option<PathBuf>,
    socket: Option<Socket>,
}

/// A socket's path, and the identity of its file. The companion does not remove a later file of the same name.
#[derive(Clone)]
struct Socket {
    path: PathBuf,
    identity: Identity,
}

/// Identifies a socket's file. File systems reuse an inode number for the next new file, so the identity includes the
/// time of its creation.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

impl Socket {
    fn of(path: PathBuf) -> Option<Socket> {
        Some(Socket { identity: Identity::of(&path)?, path })
    }
}

impl Identity {
    fn of(path: &Path) -> Option<Identity> {
        let file = path.symlink_metadata().ok()?;
        // Connecting to a socket, or changing its mode, does not change its modification time.
        let made = (file.mtime(), file.mtime_nsec());
        file.file_type().is_socket().then(|| Identity { device: file.dev(), inode: file.ino(), made })
    }
}

impl Files {
    /// Removes the files that still exist.
    fn remove(&self) {
        let _ = self.folder.as_ref().map(std::fs::remove_dir_all);
        if let Some(folder) = &self.empty_folder {
            // This folder remains if a recording failed while it copied its first image. Folders with contents stay.
            let _ = std::fs::remove_dir(folder.join(IMAGES));
            let _ = std::fs::remove_dir(folder);
        }
        if let Some(socket) = &self.socket
            && Identity::of(&socket.path).as_ref() == Some(&socket.identity)
        {
            let _ = std::fs::remove_file(&socket.path);
        }
    }
}
