//! The file server: a helper process that lists folders and reads files of the host for a guest's disk.
//!
//! ```text
//!   ttvm (locked in, no access to files) ── numbers of blocks ──► file server (locked in, reads the folder only)
//!                                        ◄── blocks ────────────
//! ```
//!
//! The process with the guest asks for numbers of blocks only. So a guest that broke out of that process cannot name a file.
//! The server reads the requests from its standard input, and writes the answers to its standard output. The server
//! ends when its standard input ends.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ext4_layout::{Options as Layout, Time};
use gathered_image::{BLOCK_BYTES, Contents, Source};
use host_tree::{Disk, Graft, Grafted, Options, Warning, WarningKind};
use machine::error::{Error, exit_code};
use sandbox::Needs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::output::say;
use crate::sandbox_arg::SandboxArgs;

/// The largest length of the message that the server could not start.
const MOST_MESSAGE_BYTES: u32 = 1 << 16;
/// Number of warnings that are printed about files that the user may not read, and about all others. A user who is not root may
/// not read many files of a host, and the guest seldom needs them.
const MOST_UNREADABLE: usize = 3;
const MOST_OTHERS: usize = 20;

/// The first byte of the server's first answer.
const READY: u8 = 0;
const REFUSED: u8 = 1;

/// The first byte of each block.
const ZERO: u8 = 0;
const BYTES: u8 = 1;
const UNREADABLE: u8 = 2;

/// Read files of a folder for the guest's disk. Only ttvm itself starts this verb
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The folder that becomes the root of the disk
    #[arg(long)]
    root: PathBuf,
    /// A path that the guest does not see (repeatable)
    #[arg(long)]
    hide: Vec<PathBuf>,
    /// A folder of the guest that is another folder of the host (repeatable, with --graft)
    #[arg(long)]
    graft_at: Vec<PathBuf>,
    /// The folder of the host for a --graft-at (repeatable)
    #[arg(long)]
    graft: Vec<PathBuf>,
    /// The UUID of the file system, as 32 digits
    #[arg(long, value_parser = parse_uuid)]
    uuid: Uuid,
    /// The time at which the file system seems to have been made, in seconds since 1970
    #[arg(long)]
    created: u32,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// The UUID of a file system.
#[derive(Clone, Copy)]
struct Uuid([u8; 16]);

fn parse_uuid(text: &str) -> Result<Uuid, String> {
    let number = u128::from_str_radix(text, 16).map_err(|error| error.to_string())?;
    Ok(Uuid(number.to_be_bytes()))
}

/// The folder that a server reads, and the file system that it makes.
pub struct Served<'a> {
    /// The folder.
    pub root: PathBuf,
    /// Paths that the guest does not see.
    pub hidden: &'a [PathBuf],
    /// Folders of the guest that are other folders of the host: the path in the guest, and the folder.
    pub grafts: &'a [(PathBuf, PathBuf)],
    /// The UUID of the file system.
    pub uuid: [u8; 16],
    /// The time at which the file system seems to have been made, in seconds since 1970.
    pub created_seconds: u32,
}

/// A handle on the server. Dropping the handle ends the server.
pub struct FileServer {
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    process: Child,
    blocks: u64,
}

impl FileServer {
    /// Starts the server.
    pub fn start(served: &Served<'_>, sandbox: SandboxArgs) -> Result<FileServer, Error> {
        let failed = |source| Error::Host { what: "cannot start the file server".to_string(), source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("file-server").arg("--root").arg(&served.root);
        for path in served.hidden {
            command.arg("--hide").arg(path);
        }
        for (at, folder) in served.grafts {
            command.arg("--graft-at").arg(at).arg("--graft").arg(folder);
        }
        let uuid = u128::from_be_bytes(served.uuid);
        command.args(["--uuid", &format!("{uuid:032x}"), "--created", &served.created_seconds.to_string()]);
        command.args(sandbox.as_arguments());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let requests = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let mut server = FileServer { requests, answers, process, blocks: 0 };
        server.blocks = server.await_start().map_err(failed)?.map_err(Error::Usage)?;
        Ok(server)
    }

    /// The number of blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads the server's first answer: the number of blocks, or the reason why there is no disk.
    fn await_start(&mut self) -> std::io::Result<Result<u64, String>> {
        let [first] = self.exact()?;
        if first == READY {
            return Ok(Ok(u64::from_le_bytes(self.exact()?)));
        }
        let length = u32::from_le_bytes(self.exact()?).min(MOST_MESSAGE_BYTES);
        let mut message = vec![0; length as usize];
        self.answers.read_exact(&mut message)?;
        Ok(Err(String::from_utf8_lossy(&message).into_owned()))
    }

    fn exact<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.answers.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn contents(&mut self) -> std::io::Result<Contents> {
        let [kind] = self.exact()?;
        Ok(match kind {
            ZERO => Contents::Zero,
            UNREADABLE => Contents::Unreadable,
            BYTES => Contents::Bytes(Box::new(self.exact::<BLOCK_BYTES>()?)),
            _ => return Err(std::io::Error::other("the file server gave an answer that makes no sense")),
        })
    }
}

impl Source for FileServer {
    fn read(&mut self, first: u64, count: u32) -> std::io::Result<Vec<Contents>> {
        let mut request = [0; 12];
        request[..8].copy_from_slice(&first.to_le_bytes());
        request[8..].copy_from_slice(&count.to_le_bytes());
        let requests = self.requests.as_mut().expect("it is open until the handle is dropped");
        requests.write_all(&request)?;
        (0..count).map(|_| self.contents()).collect()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.requests = None;
        // In the sandbox, a process without the right to wait for a helper would end here. The server ends by itself.
        if !sandbox::is_locked_in() {
            let _ = self.process.wait();
        }
    }
}

/// Runs the server.
pub fn run(args: &Args) -> Result<i32, Error> {
    let failed = |source| Error::Host { what: "the file server cannot answer".to_string(), source };
    // A terminal sends signals to all its processes. The server ends with the process that started it.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    // The type `Stdout` would search each block for the ends of lines.
    let out = std::io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut out = BufWriter::new(File::from(out));
    let mut disk = match open(args) {
        Ok(disk) => disk,
        Err(why) => {
            let why = why.to_string();
            out.write_all(&[REFUSED])
                .and_then(|()| out.write_all(&(why.len() as u32).to_le_bytes()))
                .and_then(|()| out.write_all(why.as_bytes()))
                .and_then(|()| out.flush())
                .map_err(failed)?;
            return Ok(exit_code::DONE);
        }
    };
    out.write_all(&[READY])
        .and_then(|()| out.write_all(&disk.blocks().to_le_bytes()))
        .and_then(|()| out.flush())
        .map_err(failed)?;
    let mut requests = std::io::stdin().lock();
    let mut warned = Warned::default();
    loop {
        let mut request = [0; 12];
        match requests.read_exact(&mut request) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(exit_code::DONE),
            Err(error) => return Err(failed(error)),
        }
        let first = u64::from_le_bytes(request[..8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(request[8..].try_into().expect("four bytes"));
        let answered =
            (0..u64::from(count)).try_for_each(|n| answer(&mut disk, first.saturating_add(n), &mut out));
        match answered.and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(exit_code::DONE),
            other => other.map_err(failed)?,
        }
        disk.take_warnings().iter().for_each(|warning| warned.say(warning));
    }
}

/// Opens the folder, and gives up all access to other files.
fn open(args: &Args) -> Result<Disk, Box<dyn std::error::Error>> {
    let time = Time { seconds: args.created.into(), ..Time::default() };
    let graft =
        |(at, folder): (&PathBuf, &PathBuf)| Graft { at: at.clone(), what: Grafted::Folder(folder.clone()) };
    let grafts = args.graft_at.iter().zip(&args.graft).map(graft).collect();
    let options = Options { hidden: args.hide.clone(), grafts, ..Options::new(&args.root, time) };
    let disk = Disk::new(Layout::new(args.uuid.0, args.created), &options)?;
    let folders = std::iter::once(&args.root).chain(&args.graft).cloned().collect();
    args.sandbox.lock_in(&Needs { folders, ..Needs::default() })?;
    Ok(disk)
}

/// Writes one block.
fn answer(disk: &mut Disk, block: u64, out: &mut impl Write) -> std::io::Result<()> {
    match disk.read_block(block) {
        Ok(None) => out.write_all(&[ZERO]),
        Ok(Some(bytes)) => out.write_all(&[BYTES]).and_then(|()| out.write_all(&*bytes)),
        Err(_) => out.write_all(&[UNREADABLE]),
    }
}

/// Numbers of warnings so far.
#[derive(Default)]
struct Warned {
    unreadable: usize,
    others: usize,
}

impl Warned {
    /// Prints a warning, unless there were many like it.
    fn say(&mut self, warning: &Warning) {
        let (count, most) = match warning.kind {
            WarningKind::EmptyFile | WarningKind::EmptyFolder(_) => (&mut self.unreadable, MOST_UNREADABLE),
            _ => (&mut self.others, MOST_OTHERS),
        };
        *count += 1;
        if *count <= most {
            say(&format!("ttvm: {warning}\r"));
        } else if *count == most + 1 {
            say("ttvm: there are more such files, which are not named here\r");
        }
    }
}
