//! A recording on disk: a directory with a manifest that a person can read, and the event log. `FORMAT.md`
//! describes both.

pub mod checkpointer;
pub mod checkpoints;
pub mod log;
pub mod pack;
pub mod player;
pub mod recorder;
pub mod trail;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Store;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::config::MachineConfig;
use crate::machine::hash_of;
use crate::position::{Counting, TimeBase};
use crate::recording::checkpoints::CheckpointHead;
use crate::recording::log::{Log, LogRecord, LogWriter, read_log};

/// Version of the format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 4;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The event log's file name.
pub const EVENTS: &str = "events.log";
/// The directory of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// No manifest is larger.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// What manifests call [`Counting::Instructions`] and [`Counting::Exits`].
const COUNTER_STEPS: &str = "steps";
const COUNTER_EXITS: &str = "exits";

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the program that made it.
    pub format_version: u32,
    /// The program and its version.
    pub made_by: String,
    /// The engine that recorded.
    pub engine: String,
    /// What positions are counted in: `steps` of the software engine, or `exits`, which any engine counts.
    pub counter: String,
    /// The machine.
    pub machine: MachineConfig,
}

impl Manifest {
    /// The manifest of a recording that this program makes now.
    pub fn new(machine: MachineConfig) -> Manifest {
        let exits = machine.time_base() == TimeBase::Exits;
        Manifest {
            format_version: FORMAT_VERSION,
            made_by: concat!("ttvm ", env!("CARGO_PKG_VERSION")).to_string(),
            engine: if exits { "kvm" } else { "soft" }.to_string(),
            counter: if exits { COUNTER_EXITS } else { COUNTER_STEPS }.to_string(),
            machine,
        }
    }

    /// Parses a manifest's text. Never panics, whatever it is.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let version = serde_json::from_str::<VersionOnly>(text)
            .map_err(|error| format!("is not a recording's manifest: {error}"))?;
        if version.format_version != FORMAT_VERSION {
            return Err(format!(
                "has format version {}, made by {:?}; this ttvm reads version {FORMAT_VERSION}: use the ttvm that made it",
                version.format_version, version.made_by
            ));
        }
        let manifest: Manifest =
            serde_json::from_str(text).map_err(|error| format!("is damaged: {error}"))?;
        manifest.machine.validate()?;
        let counter = match manifest.machine.time_base() {
            TimeBase::Instructions => COUNTER_STEPS,
            TimeBase::Exits => COUNTER_EXITS,
        };
        if manifest.counter != counter {
            let counts = format!("counts in {:?}", manifest.counter);
            return Err(format!("{counts}; for such a machine this ttvm counts in {counter} only"));
        }
        Ok(manifest)
    }

    /// The manifest as text, with its check.
    pub fn text(&self) -> String {
        let text = |check: u32| {
            let checked = Checked { manifest: self, check: format!("{check:08x}") };
            serde_json::to_string_pretty(&checked).expect("plain data in memory always serializes") + "\n"
        };
        text(crc32fast::hash(text(0).as_bytes()))
    }

    /// Hash of everything that determines the run. Where the images lie is no part of it: they may move.
    pub fn machine_hash(&self) -> [u8; 32] {
        let mut machine = self.machine.clone();
        machine.images_mut().for_each(|(_, image)| image.path = PathBuf::new());
        hash_of(&(&self.counter, machine))
    }
}

/// A manifest as it is written down.
#[derive(Serialize)]
struct Checked<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// CRC-32 of the text with zeroes in the place of it.
    check: String,
}

/// An opened recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its directory.
    pub path: PathBuf,
    /// What it is of. Paths of images that lie in the recording are made whole.
    pub manifest: Manifest,
    /// Its events.
    pub log: Log,
    /// What the positions in the log are.
    pub counting: Counting,
    /// What the log was translated from, if it was.
    pub exits: Option<Arc<Exits>>,
}

/// What a log that counts instructions was translated from, whole or from some exit on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exits {
    /// The log, which counts exits.
    pub log: Log,
    /// The exit at which what was translated begins: 0 where it is the whole run.
    pub from: u64,
    /// Events of it that the translated log leaves out: all before that exit but power-on, with which every log begins.
    pub skipped: usize,
}

impl Exits {
    /// The number in the whole run of an event in the translated log.
    pub fn number_of(&self, index: usize) -> usize {
        if index == 0 { 0 } else { index + self.skipped }
    }

    /// Where in the translated log an event of the whole run is; `None` where it lies before what was translated.
    pub fn index_of(&self, number: usize) -> Option<usize> {
        match (number, self.from) {
            (number, 0) => Some(number),
            (0, _) => None,
            (number, _) => number.checked_sub(self.skipped).filter(|&index| index > 0),
        }
    }
}

impl Recording {
    /// Whether it is the end of a run only, translated from some exit on: it begins with a checkpoint.
    pub fn is_part(&self) -> bool {
        self.exits.as_ref().is_some_and(|exits| exits.from > 0)
    }

    /// Makes the directory and the manifest, and opens the log for writing. An existing recording is never
    /// overwritten.
    pub fn create(path: &Path, machine: &MachineConfig) -> Result<LogWriter, Error> {
        std::fs::create_dir(path).map_err(|source| Error::file("create", path)(existing(source)))?;
        let manifest = Manifest::new(machine.clone());
        let file = path.join(MANIFEST);
        std::fs::write(&file, manifest.text()).map_err(Error::file("write", &file))?;
        let mut log = LogWriter::create(&path.join(EVENTS))?;
        log.append(&LogRecord::Machine(manifest.machine_hash()))?;
        Ok(log)
    }

    /// Opens the recording's checkpoints for reading, and checks that they are of this recording; `None` where it has
    /// none. Their positions are in what the recording counts.
    pub fn checkpoints(&self) -> Result<Option<Arc<Store>>, Error> {
        open_checkpoints(&self.path, &self.log, self.counting)
    }

    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Recording, Error> {
        if !path.is_dir() {
            return Err(Error::recording(path, "there is no recording here (it would be a directory)"));
        }
        let file = path.join(MANIFEST);
        let mut manifest = read_manifest(&file)?;
        let log = read_log(&path.join(EVENTS))?;
        if log.events.is_empty() {
            return Err(Error::recording(
                path.join(EVENTS),
                "holds no events: the recording was cut off before it began",
            ));
        }
        if log.machine_hash != manifest.machine_hash() {
            let why =
                "describes another machine than the one that the event log was recorded on: it was changed";
            return Err(Error::recording(&file, why));
        }
        for (_, image) in manifest.machine.images_mut() {
            image.path = path.join(&image.path);
        }
        let counting = match manifest.machine.time_base() {
            TimeBase::Instructions => Counting::Instructions,
            TimeBase::Exits => Counting::Exits,
        };
        Ok(Recording { path: path.to_path_buf(), manifest, log, counting, exits: None })
    }
}

/// Opens the checkpoints in a folder beside the log that they are of.
pub fn open_checkpoints(path: &Path, log: &Log, counting: Counting) -> Result<Option<Arc<Store>>, Error> {
    let directory = path.join(CHECKPOINTS);
    if !directory.is_dir() {
        return Ok(None);
    }
    let store = Store::open(&directory)?;
    for entry in store.entries() {
        if CheckpointHead::parse(&entry.head).is_some_and(|head| !head.cursor.is_of(log)) {
            let file = checkpoint::file_name(Some(entry.number)).unwrap_or_default();
            let (counted, at) = (counting.one(), entry.position);
            let why = format!("the checkpoint at {counted} {at} belongs to another recording");
            return Err(Error::recording(directory.join(file), why));
        }
    }
    Ok(Some(Arc::new(store)))
}

/// Says what to do about a name that is taken.
fn existing(source: std::io::Error) -> std::io::Error {
    if source.kind() != std::io::ErrorKind::AlreadyExists {
        return source;
    }
    let why = "something of this name exists, and recordings are never overwritten; remove it or choose another name";
    std::io::Error::new(source.kind(), why)
}

fn read_manifest(file: &Path) -> Result<Manifest, Error> {
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(MAX_MANIFEST_BYTES).read_to_string(&mut text))
        .map_err(|error| Error::recording(file, format!("cannot be read: {error}")))?;
    let manifest = Manifest::parse(&text).map_err(|why| Error::recording(file, why))?;
    if manifest.text() != text {
        ::log::warn!(
            "{} was edited since ttvm wrote it: what it says of the program, the engine and where images lie may be wrong",
            file.display()
        );
    }
    Ok(manifest)
}

#[derive(Deserialize)]
struct VersionOnly {
    format_version: u32,
    #[serde(default)]
    made_by: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::config::ImageFile;

    fn manifest() -> Manifest {
        let image = |name: &str| ImageFile { path: name.into(), hash: "00".repeat(32), size_bytes: 5 };
        Manifest::new(MachineConfig {
            cpu_model: cpu::CpuModel::default().name().to_string(),
            memory_bytes: 64 << 20,
            kernel: image("kernel"),
            initrd: None,
            modules: Vec::new(),
            cmdline: "console=ttyS0".to_string(),
            disk: Some(image("disk")),
            debug_ports: devices::DebugPorts { console: false, exit: None },
        })
    }

    #[test]
    fn events_keep_their_numbers_in_a_part() {
        let log = crate::recording::log::parse_log(&crate::recording::log::log_of_payloads([])).unwrap();
        let whole = Exits { log: log.clone(), from: 0, skipped: 0 };
        let part = Exits { log, from: 7, skipped: 4 };
        for (exits, numbers) in [(whole, [0, 1, 2]), (part.clone(), [0, 5, 6])] {
            assert_eq!([0, 1, 2].map(|index| exits.number_of(index)), numbers);
            assert_eq!([1, 2].map(|n| exits.index_of(numbers[n])), [Some(1), Some(2)]);
        }
        assert!((0..5).all(|number| part.index_of(number).is_none()));
    }

    #[test]
    fn images_may_move_and_nothing_else_may_change() {
        let (text, hash) = (manifest().text(), manifest().machine_hash());
        assert_eq!(Manifest::parse(&text).unwrap(), manifest());
        let hash_with =
            |from: &str, to: &str| Manifest::parse(&text.replace(from, to)).unwrap().machine_hash();
        assert_eq!(hash_with("\"kernel\",", "\"elsewhere\","), hash);
        assert_ne!(hash_with("ttyS0", "ttyS1"), hash);
        assert_ne!(hash_with("67108864", "134217728"), hash);
        assert_ne!(hash_with(": 5", ": 6"), hash);
    }

    #[test]
    fn an_edited_manifest_can_be_told_from_one_that_was_written() {
        let text = manifest().text();
        assert!(Manifest::parse(&text).unwrap().text() == text && text.contains("  \"check\": \""));
        let edits = [
            ("ttvm 0", "ttvm 9"),
            ("\"soft\"", "\"hard\""),
            ("\"disk\",", "\"task\","),
            ("{\n", "{\t"),
            ("}\n", "}"),
        ];
        for (from, to) in edits.into_iter().chain([("\"check\"", "\"chuck\"")]) {
            let edited = text.replacen(from, to, 1);
            assert!(edited != text && Manifest::parse(&edited).unwrap().text() != edited, "{from} to {to}");
        }
    }

    #[test]
    fn refusals_name_the_reason() {
        let text = manifest().text();
        for (from, to, expected) in [
            ("\"format_version\": ", "\"format_version\": 9", "has format version 9"),
            ("{", "[", "is not a recording's manifest"),
            ("\"steps\"", "\"retired\"", "counts in \"retired\""),
            ("67108864", "1152921504606846976", "memory"),
            ("67108864", "67108865", "memory"),
            ("\"cmdline\"", "\"commands\"", "is damaged"),
        ] {
            let why = Manifest::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
