//! A recording on disk: a directory with a readable manifest and the event log. `FORMAT.md` describes both files.
//! Opening a recording reads the manifest and the log, and builds no machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Store;

use crate::checkpoints::{open_around_damage, open_checkpoints};
use crate::disk_seen;
use crate::files::{EVENTS, IMAGES, MANIFEST, START, inside};
use crate::log::{Log, LogRecord, LogWriter, read_log};
use crate::manifest::{Cut, Manifest};
use crate::manifest_text::read_manifest;
use crate::player::MOST_STEPS_WITHOUT_RECORD;
use machine::Counter;
use machine::config::{ImageFile, MachineConfig, hash_image};
use machine::contents_hash::Scheme;
use machine::error::Error;
use machine::position::{Count, Exits, Instructions};
use machine::start::Images;
use machine::start::Start;
use machine::starting_state::{Effort, StartingState, WriteProgress};
use machine::unit::Unit;

/// An opened recording whose positions are counted in `C`.
#[derive(Clone, Debug)]
pub struct Recording<C> {
    /// The recording's directory.
    pub path: PathBuf,
    /// The recording's manifest. The paths of carried images include the recording's directory.
    pub manifest: Manifest,
    /// The event log.
    pub log: Arc<Log<C>>,
    /// The original log, which counts exits, if `log` was made from it by recounting in instructions.
    pub recounted: Option<Arc<Recounted>>,
}

/// The log of exits from which a log in instructions was made, and the part of the run that the new log covers.
#[derive(Clone, Debug)]
pub struct Recounted {
    /// The log that counts exits.
    pub log: Arc<Log<Exits>>,
    /// The exit at which the recounted part begins: 0 for the whole run.
    pub from: Exits,
    /// Number of events that the recounted log leaves out: all events before `from`, except power-on, with which every
    /// log begins.
    pub skipped: usize,
}

impl Recounted {
    /// The number in the whole run of the event with this index in the recounted log.
    pub fn number_of(&self, index: usize) -> usize {
        if index == 0 { 0 } else { index + self.skipped }
    }

    /// The index in the recounted log of the event with this number in the whole run. `None` if the event lies before
    /// the recounted part.
    pub fn index_of(&self, number: usize) -> Option<usize> {
        match (number, self.from.number()) {
            (number, 0) => Some(number),
            (0, _) => None,
            (number, _) => number.checked_sub(self.skipped).filter(|&index| index > 0),
        }
    }
}

impl<C: Unit> Recording<C> {
    /// Whether the log covers only the end of the run, recounted from some exit on. Such a part of a run begins with a
    /// checkpoint.
    pub fn is_part(&self) -> bool {
        self.recounted.as_ref().is_some_and(|exits| exits.from > Exits(0))
    }

    /// Makes the directory and the manifest, in the default format, and opens the log for writing. Never overwrites
    /// an existing recording.
    pub fn create(path: &Path, machine: &MachineConfig) -> Result<LogWriter, Error> {
        create_folder(path)?;
        Recording::<C>::begin(path, machine)
    }

    /// Does the same as [`Recording::create`], but for a machine that starts from a starting state, and in an
    /// existing empty folder. If the new recording is cut out of a longer recording, `cut` describes the part that
    /// the new recording lacks. The starting state is then compressed with [`Effort::Small`]. `progress` gets the
    /// amount of the state that is written.
    pub fn begin_from(
        path: &Path,
        machine: &MachineConfig,
        state: &StartingState,
        cut: Option<Cut>,
        progress: &mut WriteProgress<'_>,
    ) -> Result<LogWriter, Error> {
        create_images(path)?;
        let file = path.join(inside(START));
        let mut manifest = Manifest { cut, ..Manifest::new(machine.clone()) };
        let effort = if cut.is_some() { Effort::Small } else { Effort::Fast };
        state.write(&file, manifest.format, effort, progress)?;
        let inside = ImageFile { path: inside(START), ..hash_image(&file, Scheme::Whole)? };
        manifest.machine.start = Start::State { state: inside, booted: machine.start.booted().clone() };
        Recording::<C>::begin_as(path, &manifest)
    }

    /// Does the same as [`Recording::create`], but in an existing empty folder.
    pub fn begin(path: &Path, machine: &MachineConfig) -> Result<LogWriter, Error> {
        Recording::<C>::begin_as(path, &Manifest::new(machine.clone()))
    }

    /// Does the same as [`Recording::begin`], but with this manifest and in the manifest's format.
    pub fn begin_as(path: &Path, manifest: &Manifest) -> Result<LogWriter, Error> {
        let begun = Recording::<C>::write_beginning(path, manifest);
        if begun.is_err() {
            forget_beginning(path);
        }
        begun
    }

    fn write_beginning(path: &Path, manifest: &Manifest) -> Result<LogWriter, Error> {
        let file = path.join(MANIFEST);
        std::fs::write(&file, manifest.text()).map_err(Error::file("write", &file))?;
        manifest.machine.disk.iter().for_each(|disk| disk_seen::note(path, disk));
        let mut log = LogWriter::create(&path.join(EVENTS), manifest.format)?;
        log.append(&LogRecord::<C>::Machine(manifest.machine_hash()))?;
        Ok(log)
    }

    /// Reads the images that the recording was made with, and checks that they have not changed. A disk image is not
    /// hashed if size, times and inode show that it is the file that was hashed last.
    pub fn read_images(&self) -> Result<Images, Error> {
        let images = self.manifest.machine.read_images(self.manifest.format)?;
        disk_seen::check(&self.path, &self.manifest.machine)?;
        Ok(images)
    }

    /// Opens the recording's checkpoints for reading, and checks that they belong to the recording; `None` if the
    /// recording has no checkpoints. The checkpoints' positions are in the recording's unit. Leaves out damaged
    /// checkpoints, with a warning. Damage of a page's contents is noticed only when the page is read.
    pub fn checkpoints(&self) -> Result<Option<Arc<Store>>, Error> {
        open_around_damage(&self.path, &self.log)
    }

    /// Does the same as [`Recording::checkpoints`], but any damage is an error.
    pub fn whole_checkpoints(&self) -> Result<Option<Arc<Store>>, Error> {
        open_checkpoints(&self.path, &self.log)
    }

    fn with_log(path: &Path, mut manifest: Manifest) -> Result<Recording<C>, Error> {
        let log = read_log(&path.join(EVENTS), manifest.format)?;
        if log.event_count() == 0 {
            return Err(Error::recording(
                path.join(EVENTS),
                "the recording's log is empty: it was cut off before the run began, so there is nothing to replay",
            ));
        }
        if C::NAMES_ONE_PLACE && log.longest_stretch() > MOST_STEPS_WITHOUT_RECORD {
            let why = format!(
                "is damaged: {} instructions without a record, where a recorder writes one for each 16 million",
                log.longest_stretch()
            );
            return Err(Error::recording(path.join(EVENTS), why));
        }
        if log.machine_hash != manifest.machine_hash() {
            let why = "does not describe the machine of the event log: it was changed; put the original back";
            return Err(Error::recording(path.join(MANIFEST), why));
        }
        for (_, image) in manifest.machine.images_mut() {
            image.path = path.join(&image.path);
        }
        Ok(Recording { path: path.to_path_buf(), manifest, log: Arc::new(log), recounted: None })
    }
}

/// An opened recording, of either unit.
#[derive(Clone, Debug)]
pub enum Opened {
    /// A recording made by the software engine.
    ByInstructions(Recording<Instructions>),
    /// A recording made by KVM, or for KVM.
    ByExits(Recording<Exits>),
}

/// Empties the folder of a recording that could not begin, so that no one takes the remaining files for a recording.
/// The folder itself stays, because the caller made it.
pub(super) fn forget_beginning(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // The caller reports why the recording could not begin, so ignore a failure to remove files.
        let _ = match entry.file_type() {
            Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
            _ => std::fs::remove_file(entry.path()),
        };
    }
}

/// Returns an error if the path cannot be a recording.
pub(super) fn must_be_a_directory(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    Err(Error::recording(path, "there is no recording here; a recording is a folder"))
}

impl Opened {
    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Opened, Error> {
        must_be_a_directory(path)?;
        let manifest = read_manifest(&path.join(MANIFEST))?;
        Ok(match manifest.machine.profile().counter {
            Counter::Instructions => Opened::ByInstructions(Recording::with_log(path, manifest)?),
            Counter::Exits => Opened::ByExits(Recording::with_log(path, manifest)?),
        })
    }

    /// The recording's manifest.
    pub fn manifest(&self) -> &Manifest {
        match self {
            Opened::ByInstructions(recording) => &recording.manifest,
            Opened::ByExits(recording) => &recording.manifest,
        }
    }
}

/// Evaluates an expression with the recording in an [`Opened`], of either unit.
#[macro_export]
macro_rules! with_recording {
    ($opened:expr, $recording:ident => $body:expr) => {
        match $opened {
            $crate::Opened::ByInstructions($recording) => $body,
            $crate::Opened::ByExits($recording) => $body,
        }
    };
}

/// Makes the folder of carried images, unless it exists.
pub(super) fn create_images(recording: &Path) -> Result<(), Error> {
    let images = recording.join(IMAGES);
    if images.is_dir() {
        return Ok(());
    }
    std::fs::create_dir(&images).map_err(Error::file("create", &images))
}

/// Makes a recording's folder. Never overwrites an existing recording.
pub fn create_folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir(path).map_err(|source| Error::file("create", path)(existing(source)))
}

/// If the error says that a file of this name exists, adds advice for the user.
fn existing(source: std::io::Error) -> std::io::Error {
    if source.kind() != std::io::ErrorKind::AlreadyExists {
        return source;
    }
    let why = "exists already, and ttvm never overwrites files; remove it or choose another name";
    std::io::Error::new(source.kind(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{log_of_payloads, parse_log};
    use machine::Format;

    #[test]
    fn events_keep_their_numbers_in_a_part() {
        let log = Arc::new(parse_log(&log_of_payloads([]), Format::default()).unwrap());
        let whole = Recounted { log: log.clone(), from: Exits(0), skipped: 0 };
        let part = Recounted { log, from: Exits(7), skipped: 4 };
        for (exits, numbers) in [(whole, [0, 1, 2]), (part.clone(), [0, 5, 6])] {
            assert_eq!([0, 1, 2].map(|index| exits.number_of(index)), numbers);
            assert_eq!([1, 2].map(|n| exits.index_of(numbers[n])), [Some(1), Some(2)]);
        }
        assert!((0..5).all(|number| part.index_of(number).is_none()));
    }
}
