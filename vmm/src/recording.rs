//! A recording on disk: a directory with a manifest that a person can read, and the event log.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, MachineConfig};
use crate::error::Error;
use crate::event_log::{Log, LogWriter, read_log};

/// Version of the format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 1;

const MANIFEST: &str = "manifest.json";
const EVENTS: &str = "events.log";

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the program that made it.
    pub format_version: u32,
    /// The program and its version.
    pub made_by: String,
    /// What positions are counted in: `steps` of the software engine.
    pub counter: String,
    /// The machine.
    pub machine: MachineConfig,
}

/// An opened recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its directory.
    pub path: PathBuf,
    /// What it is of.
    pub manifest: Manifest,
    /// Its events.
    pub log: Log,
}

impl Recording {
    /// Makes the directory and the manifest, and opens the log for writing. An existing recording is never
    /// overwritten.
    pub fn create(path: &Path, machine: &MachineConfig) -> Result<LogWriter, Error> {
        std::fs::create_dir(path).map_err(Error::file("create", path))?;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            made_by: concat!("ttvm ", env!("CARGO_PKG_VERSION")).to_string(),
            counter: "steps".to_string(),
            machine: machine.clone(),
        };
        let text = serde_json::to_string_pretty(&manifest).expect("plain data in memory always serializes");
        let file = path.join(MANIFEST);
        std::fs::write(&file, text + "\n").map_err(Error::file("write", &file))?;
        LogWriter::create(&path.join(EVENTS))
    }

    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Recording, Error> {
        if !path.is_dir() {
            return Err(Error::recording(path, "there is no recording here (it would be a directory)"));
        }
        let file = path.join(MANIFEST);
        let text = std::fs::read_to_string(&file)
            .map_err(|error| Error::recording(&file, format!("cannot be read: {error}")))?;
        let version = serde_json::from_str::<VersionOnly>(&text)
            .map_err(|error| Error::recording(&file, format!("is not a recording's manifest: {error}")))?;
        if version.format_version != FORMAT_VERSION {
            let why = format!(
                "has format version {}, made by {}; this ttvm reads version {FORMAT_VERSION}",
                version.format_version, version.made_by
            );
            return Err(Error::recording(&file, why));
        }
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|error| Error::recording(&file, format!("is damaged: {error}")))?;
        if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&manifest.machine.memory_bytes) {
            let why = format!("is damaged: no machine has {} bytes of memory", manifest.machine.memory_bytes);
            return Err(Error::recording(&file, why));
        }
        let log = read_log(&path.join(EVENTS))?;
        if log.events.is_empty() {
            return Err(Error::recording(path, "holds no events: the recording was cut off before it began"));
        }
        Ok(Recording { path: path.to_path_buf(), manifest, log })
    }
}

#[derive(Deserialize)]
struct VersionOnly {
    format_version: u32,
    #[serde(default)]
    made_by: String,
}
