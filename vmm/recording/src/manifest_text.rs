//! Writes a manifest as readable text with a checksum, hashes a manifest, and reads the text.

use std::io::Read;
use std::path::{Path, PathBuf};

use machine::Format;
use machine::error::Error;
use machine::hashes::hash_of;
use serde::{Deserialize, Serialize};

use crate::manifest::{Manifest, counter_of};
use crate::manifest_v5::{MachineConfigV5, ManifestV5};

/// The largest size in bytes of a manifest that is read.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;

impl Manifest {
    /// Parses a manifest's text. Never panics, whatever the text is.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let version = serde_json::from_str::<VersionOnly>(text)
            .map_err(|error| format!("is not a recording's manifest: {error}"))?;
        let Some(format) = Format::of_version(version.format_version) else {
            let read = Format::ALL.map(|format| format.version().to_string()).join(" and ");
            return Err(format!(
                "has format version {}, made by {:?}; this ttvm reads versions {read}: use the ttvm that made it",
                version.format_version, version.made_by
            ));
        };
        let manifest = match format {
            Format::V5 | Format::V6 => serde_json::from_str::<ManifestV5>(text)
                .map_err(|error| error.to_string())
                .and_then(|stored| stored.checked(format)),
        }
        .map_err(|error| format!("is damaged: {error}"))?;
        manifest.machine.validate()?;
        let counter = counter_of(&manifest.machine);
        if manifest.counter != counter {
            let counts = format!("counts in {:?}", manifest.counter);
            return Err(format!(
                "{counts}, but this ttvm counts in {counter} for such a machine; use the ttvm that \
                made it"
            ));
        }
        Ok(manifest)
    }

    /// The manifest as text, with its checksum.
    pub fn text(&self) -> String {
        match self.format {
            Format::V5 | Format::V6 => checked_text(&ManifestV5::from(self.clone())),
        }
    }

    /// Hash of the machine's description and the unit of positions, which determine the run together with the log. The
    /// hash leaves out the paths of the images, because the user may move images.
    pub fn machine_hash(&self) -> [u8; 32] {
        let mut machine = self.machine.clone();
        machine.files_mut().for_each(|(_, image)| image.path = PathBuf::new());
        match self.format {
            Format::V5 | Format::V6 => hash_of(&(&self.counter, MachineConfigV5::from(machine))),
        }
    }
}

/// The text of a manifest, with its checksum.
fn checked_text(manifest: &impl Serialize) -> String {
    let text = |check: u32| {
        let checked = Checked { manifest, check: format!("{check:08x}") };
        serde_json::to_string_pretty(&checked).expect("plain data in memory always serializes") + "\n"
    };
    text(crc32fast::hash(text(0).as_bytes()))
}

/// A manifest and its checksum, as written to the file.
#[derive(Serialize)]
struct Checked<'a, M> {
    #[serde(flatten)]
    manifest: &'a M,
    /// CRC-32 of the text, with zeroes in this field.
    check: String,
}

/// Reads the manifest in a file. Refuses an edited manifest.
pub(super) fn read_manifest(file: &Path) -> Result<Manifest, Error> {
    let mut text = String::new();
    plain_file::open(file)
        .and_then(|opened| opened.take(MAX_MANIFEST_BYTES).read_to_string(&mut text))
        .map_err(|error| Error::recording(file, format!("cannot be read: {error}")))?;
    let manifest = Manifest::parse(&text).map_err(|why| Error::recording(file, why))?;
    if manifest.text() != text {
        log::warn!(
            "{} was edited after ttvm wrote it: its program, engine and paths of images may be wrong",
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
    use machine::config::{ImageFile, MachineConfig, PassedDevice};
    use machine::start::{KernelFiles, Start};

    fn manifest() -> Manifest {
        let image = |name: &str| ImageFile { path: name.into(), hash: "00".repeat(32), size_bytes: 5 };
        Manifest::new(MachineConfig {
            cpu_model: cpu::CpuModel::default().name().to_string(),
            processors: Default::default(),
            memory_bytes: 64 << 20,
            start: Start::Kernel(KernelFiles {
                kernel: image("kernel"),
                initrd: None,
                modules: Vec::new(),
                cmdline: "console=ttyS0".to_string(),
            }),
            disk: Some(image("disk")),
            debug_ports: devices::DebugPortsV1 { console: false, exit: None },
            network: None,
            passthrough: Vec::new(),
        })
    }

    #[test]
    fn devices_of_the_host_are_part_of_the_machine_where_there_are_some() {
        let mut with = manifest();
        let ports = |irq| PassedDevice::Ports { first: 0x2f8, last: 0x2ff, irq };
        with.machine.passthrough.push(ports(None));
        assert!(with.text().contains("\"ports\"") && !manifest().text().contains("passthrough"));
        assert!(!with.text().contains("irq"));
        assert_eq!(Manifest::parse(&with.text()).unwrap(), with);
        assert_ne!(with.machine_hash(), manifest().machine_hash());
        let mut interrupting = manifest();
        interrupting.machine.passthrough.push(ports(Some(3)));
        assert_eq!(Manifest::parse(&interrupting.text()).unwrap(), interrupting);
        assert_ne!(with.machine_hash(), interrupting.machine_hash());
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
        assert_ne!(hash_with("\"size_bytes\": 5", "\"size_bytes\": 6"), hash);
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
