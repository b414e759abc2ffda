//! The companion of `ttvm debug`, and of runs that may be recorded later: a small process beside them that is not locked in.
//! It runs gdb, where that is wanted, and removes the files that other programs find `ttvm debug` by, however that ends.
//!
//! ```text
//!   ttvm debug (locked in) ── pipe ──► companion ── runs ──► gdb
//!                                      a byte: gdb can come; the end: the server is gone, so remove the files
//! ```
//!
//! A locked-in process can neither make a folder nor remove one. So the folder of a later recording is made before the run,
//! and the companion removes it at the end if it is empty, and the control socket too.

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

/// What the companion does, as its own command line says.
#[derive(clap::Args)]
pub struct Args {
    /// The descriptor of the pipe on which the other process says that gdb can come
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

/// What there is to remove when the other process ends.
#[derive(Clone, Copy, Default)]
pub struct Leftovers<'a> {
    /// A folder with all that is in it.
    pub folder: Option<&'a Path>,
    /// A folder, if nothing is in it.
    pub empty_folder: Option<&'a Path>,
    /// A socket.
    pub socket: Option<&'a Path>,
}

/// The companion as `ttvm debug` sees it. When this is dropped, it removes the files, and has ended.
pub struct Companion {
    /// `None` once it was let go of.
    pipe: Option<PipeWriter>,
    process: Child,
}

impl Companion {
    /// Starts it. It removes what is left in the end, and runs this gdb once it may come.
    pub fn start(left: &Leftovers<'_>, gdb: Option<Command>) -> Result<Companion, Error> {
        let failed = |source| Error::Host { what: "cannot start a second process".to_string(), source };
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

    /// Lets gdb come, waits for its end, and gives its exit code.
    pub fn run_gdb(mut self) -> i32 {
        // If the companion has gone already, its exit code says why.
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

/// This program once more, with the end of the pipe, which it inherits.
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

/// The companion's own part.
pub fn run(args: &Args) -> Result<i32, Error> {
    let failed = |source| Error::Host { what: "cannot watch the process beside".to_string(), source };
    // Signals that a terminal sends to all its processes are for the other one, or for gdb.
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

/// Waits for a byte; `false` when none will come any more.
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
        Error::Unsupported(format!("cannot start {}: {error}; install gdb, or attach one yourself", words[0]))
    })
}

/// What there is to remove.
#[derive(Clone)]
struct Files {
    folder: Option<PathBuf>,
    empty_folder: Option<PathBuf>,
    socket: Option<Socket>,
}

/// A socket's file, and which one it is: another that gets its name later is not ours.
#[derive(Clone)]
struct Socket {
    path: PathBuf,
    identity: Identity,
}

/// What tells a socket's file from others. File systems give a number that has become free to the next file that is made, so
/// the time at which it was made belongs to it.
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
        // Nothing that connects to a socket, or changes its mode, counts as a modification.
        let made = (file.mtime(), file.mtime_nsec());
        file.file_type().is_socket().then(|| Identity { device: file.dev(), inode: file.ino(), made })
    }
}

impl Files {
    /// Removes what is still there.
    fn remove(&self) {
        let _ = self.folder.as_ref().map(std::fs::remove_dir_all);
        if let Some(folder) = &self.empty_folder {
            // A recording that failed while its first image was written has this one. What has something in it stays.
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
