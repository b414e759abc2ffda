//! `ttvm disk`: reads the guest's disk as the disk has it at one position.

use std::ffi::OsString;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use guest_disk::{ByteSource, Files};
use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::position::Count;
use schemars::JsonSchema;
use serde::Serialize;
use views::disk::{DiskContents, DiskInfo, Listing, Volume, list, trouble};

use crate::disk_server::{Served, ServerArgs};
use crate::help::POSITIONS;
use crate::interrupt::Interrupt;
use crate::output::{BytesOutput, print_answer, say};
use crate::sandbox_arg::of_disk_server;
use crate::travel::PlaceArgs;

/// Read the guest's disk at a position: list and show files, export an image, mount
///
/// The guest may still have newer data in its memory, which it has not written to the disk.
///
/// Examples:
///   ttvm disk R.ttvm info
///   ttvm disk R.ttvm --at panic ls /var/log
///   ttvm disk R.ttvm --at 12.5s cat /var/log/syslog > syslog
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Read the partition with this number, as in `info`
    #[arg(long, value_name = "N", global = true)]
    partition: Option<u32>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the partitions and file systems
    ///
    /// Examples:
    ///   ttvm disk R.ttvm info
    ///   ttvm disk R.ttvm --at 50% info --json
    #[command(verbatim_doc_comment)]
    Info,
    /// List a folder of an ext2, ext3 or ext4 file system, like ls -l
    ///
    /// Times are in UTC. Links in the path are followed.
    ///
    /// Examples:
    ///   ttvm disk R.ttvm ls /etc
    ///   ttvm disk R.ttvm --at 50% ls / --partition 1
    #[command(verbatim_doc_comment)]
    Ls {
        /// The folder's or the file's path
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Write a file of an ext2, ext3 or ext4 file system to standard output
    ///
    /// A terminal shows control characters as escapes. Files and pipes get the bytes as they are.
    ///
    /// Examples:
    ///   ttvm disk R.ttvm cat /etc/fstab
    ///   ttvm disk R.ttvm --at panic cat /var/log/journal.bin > journal.bin
    #[command(verbatim_doc_comment)]
    Cat {
        /// The file's path
        path: OsString,
    },
    /// Write the disk, or a partition, to a raw image
    ///
    /// Zeroes take no space on the disk.
    ///
    /// Examples:
    ///   ttvm disk R.ttvm --at panic export -o disk.img
    #[command(verbatim_doc_comment)]
    Export {
        /// The new file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Serve the disk, or a partition, by NBD, and show how to mount it
    ///
    /// The disk can only be read. ^C ends the server. ttvm refuses other users of this host, apart from root.
    ///
    /// Examples:
    ///   ttvm disk R.ttvm mount
    ///   ttvm disk R.ttvm --at 50% mount --listen unix:disk.socket
    #[command(verbatim_doc_comment)]
    Mount(ServerArgs),
}

/// The position of an answer.
#[derive(Clone, Copy, JsonSchema, Serialize)]
struct At {
    /// The number of instructions before the position.
    instruction: u64,
    /// The guest's time at the position.
    guest_seconds: f64,
}

impl At {
    fn of(timeline: &Timeline) -> At {
        let now = timeline.machine().moment();
        At { instruction: now.count.number(), guest_seconds: now.time_ns as f64 / 1e9 }
    }
}

/// The JSON that `ttvm disk` prints.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only the schema is used")]
pub enum Printed<'a> {
    /// `ttvm disk R info`.
    Info(Placed<DiskInfo>),
    /// `ttvm disk R ls`.
    Ls(Placed<Listing>),
    /// `ttvm disk R export`.
    Export(Placed<Exported<'a>>),
    /// `ttvm disk R mount`.
    Mount(Placed<Served>),
}

/// An answer, with its position.
#[derive(JsonSchema, Serialize)]
pub struct Placed<T> {
    #[serde(flatten)]
    at: At,
    #[serde(flatten)]
    answer: T,
}

impl<T: std::fmt::Display> std::fmt::Display for Placed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.answer.fmt(f)
    }
}

/// The largest number of files in a listing.
const MOST_LISTED: usize = 1_000_000;
/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// A run of zeroes of this length is left out of a sparse file.
const HOLE_BYTES: usize = 4096;

pub fn run(args: &Args) -> Result<i32, Error> {
    match &args.action {
        Action::Info => {
            let (at, contents) = args.open()?;
            print_answer(&Placed { at, answer: contents.info()? }, args.json)?;
        }
        Action::Ls { path } => {
            let (at, contents) = args.open()?;
            let mut files = args.files(&contents)?;
            let answer = list(&mut files, path.as_bytes(), MOST_LISTED)?;
            if args.json || !answer.listing.entries.is_empty() {
                print_answer(&Placed { at, answer }, args.json)?;
            }
        }
        Action::Cat { path } => {
            let (_, contents) = args.open()?;
            cat(&mut args.files(&contents)?, path.as_bytes())?;
        }
        Action::Export { output } => {
            // Tests now whether the file can be made, because going to the position may take long.
            drop(NewFile::begin(output)?);
            let (at, contents) = args.open()?;
            let answer = export(contents.volume(args.partition)?, output)?;
            print_answer(&Placed { at, answer }, args.json)?;
        }
        Action::Mount(server) => mount(args, server)?,
    }
    Ok(exit_code::DONE)
}

impl Args {
    /// The disk at the position.
    fn open(&self) -> Result<(At, DiskContents), Error> {
        let mut timeline = self.place.open()?;
        Ok((At::of(&timeline), DiskContents::of(timeline.machine_mut())?))
    }

    fn files(&self, contents: &DiskContents) -> Result<Files, Error> {
        let files = contents.files(self.partition)?;
        if let Some(why) = files.unread_journal() {
            say(&format!(
                "ttvm: the last changes may be missing, because ttvm cannot read the journal: {why}"
            ));
        }
        Ok(files)
    }
}

fn cat(files: &mut Files, path: &[u8]) -> Result<(), Error> {
    let interrupt = Interrupt::catch()?;
    let mut file = files.read(path).map_err(trouble)?;
    let mut output = BytesOutput::begin();
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        if interrupt.poll() {
            return Err(Error::Interrupted);
        }
        let count = file.read(&mut bytes).map_err(trouble)?;
        if count == 0 || !output.put(&bytes[..count])? {
            return output.end();
        }
    }
}

/// A disk image that was written.
#[derive(JsonSchema, Serialize)]
pub struct Exported<'a> {
    /// The image's file.
    file: &'a Path,
    /// The size of the disk in bytes.
    size_bytes: u64,
    /// The number of bytes that the image takes on the host's disk.
    disk_bytes: u64,
}

impl std::fmt::Display for Exported<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Exported { file, size_bytes, disk_bytes } = self;
        write!(f, "{}: {size_bytes} bytes; {disk_bytes} bytes on the disk", file.display())
    }
}

fn export(mut volume: Volume, output: &Path) -> Result<Exported<'_>, Error> {
    let interrupt = Interrupt::catch()?;
    let mut new = NewFile::begin(output)?;
    let size_bytes = volume.size_bytes();
    let mut bytes = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < size_bytes {
        if interrupt.poll() {
            return Err(Error::Interrupted);
        }
        let count = (size_bytes - at).min(CHUNK_BYTES as u64) as usize;
        let chunk = &mut bytes[..count];
        volume.read_at(at, chunk).map_err(|error| trouble(error.into()))?;
        write_sparse(new.file(), at, chunk).map_err(Error::file("write", output))?;
        at += count as u64;
    }
    new.file().set_len(size_bytes).map_err(Error::file("write", output))?;
    const SECTOR: u64 = 512;
    Ok(Exported { file: output, size_bytes, disk_bytes: new.finish()?.blocks() * SECTOR })
}

/// Writes the parts of a chunk that have other bytes than zeroes.
fn write_sparse(file: &mut std::fs::File, at: u64, chunk: &[u8]) -> std::io::Result<()> {
    for (number, part) in chunk.chunks(HOLE_BYTES).enumerate() {
        if part.iter().any(|&byte| byte != 0) {
            file.seek(SeekFrom::Start(at + (number * HOLE_BYTES) as u64))?;
            file.write_all(part)?;
        }
    }
    Ok(())
}

fn mount(args: &Args, address: &ServerArgs) -> Result<(), Error> {
    let server = address.reserve()?;
    let lock_in = |opened: &_, folder: &_, engine| address.lock_in(&of_disk_server(opened, folder, engine));
    let mut timeline = args.place.open_after(lock_in)?;
    let (at, contents) = (At::of(&timeline), DiskContents::of(timeline.machine_mut())?);
    // The server does not need the guest's memory.
    drop(timeline);
    let volume = contents.volume(args.partition)?;
    let has_partitions = args.partition.is_none() && contents.info()?.table.is_some();
    server.open()?;
    print_answer(&Placed { at, answer: server.served(&volume, has_partitions) }, args.json)?;
    server.serve(&volume)
}
