//! The guest's disk as the disk has it at the machine's present position: partitions, file systems and files.
//!
//! The package `guest-disk` reads the bytes. This module gives it the machine's disk, and has the texts for people.

use std::fmt::{Display, Formatter, Result as Written};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use guest_disk::partitions::{self, Partition, Table};
use guest_disk::{ByteSource, Entry, FileSystem, Files, Kind, Part};
use jiff::Timestamp;
use machine::Machine;
use machine::disk::OverlayDisk;
use machine::error::Error;
use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;

use crate::visible::in_a_line;

/// The contents of the guest's disk at one position. The contents stay when the machine goes to other positions. Clones
/// share one open image.
#[derive(Clone)]
pub struct DiskContents {
    disk: Arc<Mutex<OverlayDisk>>,
    size_bytes: u64,
}

/// The whole disk, or one of its partitions.
pub type Volume = Part<DiskContents>;

/// The partitions and file systems of a disk.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DiskInfo {
    /// The size of the disk in bytes.
    pub size_bytes: u64,
    /// The kind of the table of partitions, `mbr` or `gpt`, if the disk has a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<&'static str>,
    /// The partitions.
    pub partitions: Vec<PartitionInfo>,
    /// The file system of a disk without partitions, if its kind is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<FileSystem>,
}

/// A partition and its file system.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct PartitionInfo {
    /// The entry in the table.
    #[serde(flatten)]
    pub partition: Partition,
    /// The file system, if its kind is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<FileSystem>,
}

/// The files of a folder.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Listing {
    /// The path that was listed.
    pub path: String,
    /// The files.
    #[serde(flatten)]
    pub listing: guest_disk::Listing,
}

impl DiskContents {
    /// The contents of the machine's disk now.
    pub fn of(machine: &mut Machine<Instructions>) -> Result<DiskContents, Error> {
        let Some(disk) = machine.disk_mut() else {
            let why = "the machine of this recording has no disk; record with --disk";
            return Err(Error::Usage(why.to_string()));
        };
        let disk = disk.copy()?;
        Ok(DiskContents { size_bytes: disk.size_bytes(), disk: Arc::new(Mutex::new(disk)) })
    }

    /// The partitions and file systems.
    pub fn info(&self) -> Result<DiskInfo, Error> {
        let table = self.table()?;
        let of = |partition: &Partition| {
            let mut volume = self.part(partition);
            let file_system = FileSystem::of(&mut volume).map_err(trouble)?;
            Ok(PartitionInfo { partition: partition.clone(), file_system })
        };
        let partitions = table.iter().flat_map(|table| &table.partitions).map(of);
        let file_system = match table {
            None => FileSystem::of(&mut self.clone()).map_err(trouble)?,
            Some(_) => None,
        };
        Ok(DiskInfo {
            size_bytes: self.size_bytes,
            table: table.as_ref().map(|table| table.kind),
            partitions: partitions.collect::<Result<_, Error>>()?,
            file_system,
        })
    }

    /// The partition with this number, or the whole disk.
    pub fn volume(&self, number: Option<u32>) -> Result<Volume, Error> {
        let Some(number) = number else { return Ok(Part::of(self.clone(), 0, self.size_bytes)) };
        let Some(table) = self.table()? else {
            let why = "the disk has no table of partitions at this position; leave out --partition";
            return Err(Error::Usage(why.to_string()));
        };
        match table.partitions.iter().find(|partition| partition.number == number) {
            Some(partition) => Ok(self.part(partition)),
            None => Err(Error::Usage(format!(
                "the disk has no partition {number} at this position; it has {}",
                numbers(&table)
            ))),
        }
    }

    /// The files of a partition, or of the whole disk if it has no partitions.
    pub fn files(&self, partition: Option<u32>) -> Result<Files, Error> {
        if let (None, Some(table)) = (partition, self.table()?) {
            return Err(Error::Usage(format!(
                "the disk has partitions; choose one with --partition N, or partition:N in gdb: {}",
                numbers(&table)
            )));
        }
        Files::open(self.volume(partition)?).map_err(trouble)
    }

    fn table(&self) -> Result<Option<Table>, Error> {
        partitions::read(&mut self.clone()).map_err(trouble)
    }

    fn part(&self, partition: &Partition) -> Volume {
        Part::of(self.clone(), partition.start_bytes, partition.size_bytes)
    }
}

impl ByteSource for DiskContents {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        disk.read_bytes(offset, to).map_err(io::Error::other)
    }
}

/// Lists a folder, at most `most` files.
pub fn list(files: &mut Files, path: &[u8], most: usize) -> Result<Listing, Error> {
    let listing = files.list(path, most).map_err(trouble)?;
    Ok(Listing { path: String::from_utf8_lossy(path).into_owned(), listing })
}

/// The error of a request about a disk. All these errors depend on the guest's disk and on the request.
pub fn trouble(error: guest_disk::Error) -> Error {
    match error {
        guest_disk::Error::Read(source) => {
            Error::Host { what: "cannot read the guest's disk".to_string(), source }
        }
        other => Error::Usage(other.to_string()),
    }
}

fn numbers(table: &Table) -> String {
    let numbers: Vec<String> = table.partitions.iter().map(|it| it.number.to_string()).collect();
    numbers.join(", ")
}

/// A size for people, such as `2.0 GiB`.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut amount = bytes as f64;
    let mut unit = "bytes";
    for larger in UNITS {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = larger;
    }
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{amount:.1} {unit}") }
}

fn file_system_text(found: Option<&FileSystem>) -> String {
    let Some(found) = found else { return "no known file system".to_string() };
    let mut text = found.kind.to_string();
    if let Some(label) = &found.label {
        text += &format!(", label {}", in_a_line(label));
    }
    if let Some(uuid) = &found.uuid {
        text += &format!(", UUID {uuid}");
    }
    if found.journal_in_use {
        text += ", journal in use";
    }
    text
}

/// The text for people.
impl Display for DiskInfo {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "disk      {:>12} bytes ({})", self.size_bytes, size(self.size_bytes))?;
        let Some(kind) = self.table else {
            return write!(f, "\n          no partitions: {}", file_system_text(self.file_system.as_ref()));
        };
        write!(f, ", {} partitions ({kind})", self.partitions.len())?;
        for PartitionInfo { partition, file_system } in &self.partitions {
            let Partition { number, start_bytes, size_bytes, type_text, name } = partition;
            let name = name.as_ref().map(|name| format!(", name {}", in_a_line(name))).unwrap_or_default();
            let content = file_system_text(file_system.as_ref());
            write!(
                f,
                "\npartition {number:<3} from byte {start_bytes}, {} ({size_bytes} bytes), type {type_text}{name}: {content}",
                size(*size_bytes)
            )?;
        }
        Ok(())
    }
}

/// The kind and the permissions, as `ls -l` shows them.
fn permissions(entry: &Entry) -> String {
    let bit = |mask: u16, letter: char| if entry.mode & mask != 0 { letter } else { '-' };
    // A set bit of the first mask replaces the x of its group.
    let execute =
        |special: u16, mask: u16, letter: char| match (entry.mode & special != 0, entry.mode & mask != 0) {
            (false, _) => bit(mask, 'x'),
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        };
    [
        entry.kind.letter(),
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        execute(0o4000, 0o100, 's'),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        execute(0o2000, 0o010, 's'),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        execute(0o1000, 0o001, 't'),
    ]
    .iter()
    .collect()
}

/// The size in bytes, or the numbers of a device, as `ls -l` shows them.
fn size_or_device(entry: &Entry) -> String {
    match entry.device {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => entry.size_bytes.to_string(),
    }
}

/// A time as text, in UTC.
fn time(seconds: i64) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{seconds} s"),
    }
}

/// The text for people: a line for each file, as `ls -l` shows it. Times are in UTC.
impl Display for Listing {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let entries = &self.listing.entries;
        let width =
            |of: fn(&Entry) -> String| entries.iter().map(|it| of(it).len()).max().unwrap_or_default();
        let (uid, gid) = (width(|it| it.uid.to_string()), width(|it| it.gid.to_string()));
        let bytes = width(size_or_device);
        for (number, entry) in entries.iter().enumerate() {
            let line_feed = if number > 0 { "\n" } else { "" };
            let name = in_a_line(&entry.name);
            if let Some(damage) = entry.damage.as_ref().filter(|_| entry.kind != Kind::Link) {
                write!(f, "{line_feed}??????????  {name}: {}", in_a_line(damage))?;
                continue;
            }
            write!(
                f,
                "{line_feed}{} {:>uid$} {:>gid$} {:>bytes$} {} {name}",
                permissions(entry),
                entry.uid,
                entry.gid,
                size_or_device(entry),
                time(entry.modified_seconds)
            )?;
            match (&entry.target, &entry.damage) {
                (Some(target), _) => write!(f, " -> {}", in_a_line(target))?,
                (None, Some(damage)) => write!(f, " -> ?: {}", in_a_line(damage))?,
                (None, None) => {}
            }
        }
        if self.listing.has_more {
            write!(f, "\nthese are only the first {}", entries.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: Kind, mode: u16) -> Entry {
        Entry {
            name: name.to_string(),
            kind,
            mode,
            uid: 0,
            gid: 1000,
            size_bytes: 4096,
            modified_seconds: 1_700_000_000,
            device: None,
            target: None,
            damage: None,
        }
    }

    #[test]
    fn listings_look_like_those_of_ls() {
        let entries = vec![
            entry("bin", Kind::Folder, 0o755),
            Entry { device: Some((4, 64)), ..entry("ttyS0", Kind::CharacterDevice, 0o620) },
            Entry { target: Some("bin\u{1b}[2J".into()), ..entry("link", Kind::Link, 0o777) },
            entry("passwd\nroot", Kind::Regular, 0o4711),
            Entry { uid: 65534, ..entry("tmp", Kind::Folder, 0o1776) },
            Entry { damage: Some("its inode is bad".into()), ..entry("x", Kind::Unknown, 0) },
        ];
        let listing = Listing { path: "/".into(), listing: guest_disk::Listing { entries, has_more: true } };
        let expected = "drwxr-xr-x     0 1000  4096 2023-11-14 22:13:20 bin
crw--w----     0 1000 4, 64 2023-11-14 22:13:20 ttyS0
lrwxrwxrwx     0 1000  4096 2023-11-14 22:13:20 link -> bin\\u001b[2J
-rws--x--x     0 1000  4096 2023-11-14 22:13:20 passwd\\u000aroot
drwxrwxrwT 65534 1000  4096 2023-11-14 22:13:20 tmp
??????????  x: its inode is bad
these are only the first 6";
        assert_eq!(listing.to_string(), expected);
        assert_eq!(time(i64::MAX), format!("{} s", i64::MAX));
    }

    #[test]
    fn sizes_are_shown_with_their_unit() {
        let shown = [0, 1023, 1024, 1536, 2 << 30, u64::MAX].map(size);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "2.0 GiB", "16384.0 PiB"]);
    }
}
