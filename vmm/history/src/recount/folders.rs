//! The folders of a recording's recounted logs ([`crate::recount`]). Sessions (processes of ttvm that use the
//! recording) make these folders.
//!
//! Each log has a folder `instructions/FROM` in the recording, named after the exit where it begins. A session makes
//! the folder under a unique name, and renames it once the log is whole. So sessions that recount the same recording at
//! the same time do not disturb each other. All use the folder that was finished first. An unfinished folder to which
//! no process is writing was left by a killed session.

use std::fs::File;
use std::path::{Path, PathBuf};

use machine::Format;
use machine::error::Error;
use machine::position::Exits;
use recording::files::EVENTS;
use recording::log::{LogWriter, is_being_written};

/// The folder with all recounted logs of a recording.
pub const INSTRUCTIONS: &str = "instructions";
/// The name of an unfinished folder is its final name, this text, and a unique part.
const UNFINISHED: &str = ".new-";
/// A session holds a lock on this file while it begins or publishes a recounted log.
const LOCK: &str = "lock";

/// The folder of the recounted log that begins at an exit.
pub fn folder(recording: &Path, from: Exits) -> PathBuf {
    recording.join(INSTRUCTIONS).join(from.to_string())
}

/// A recounted log that is not finished. Dropping the draft removes its folder, unless the log was published.
pub struct RecountDraft {
    path: PathBuf,
    target: PathBuf,
}

impl RecountDraft {
    /// Makes a folder with an empty log. The log's file stays locked until the `LogWriter` is dropped. By the lock,
    /// other sessions know that this session still writes the log.
    pub fn begin(recording: &Path, from: Exits, format: Format) -> Result<(RecountDraft, LogWriter), Error> {
        let all = recording.join(INSTRUCTIONS);
        std::fs::create_dir_all(&all).map_err(Error::file("create", &all))?;
        let target = folder(recording, from);
        let lock = lock(&all)?;
        if lock.is_some() {
            remove_leftovers(&all);
        }
        let path = unused(&all, &format!("{from}{UNFINISHED}{}", std::process::id()))?;
        let draft = RecountDraft { path, target };
        let log = LogWriter::create(&draft.path.join(EVENTS), format)?;
        Ok((draft, log))
    }

    /// The unfinished folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its final name. Keeps an existing folder of this name if `is_usable` returns true for it.
    pub fn publish(self, log: LogWriter, is_usable: impl FnOnce(&Path) -> bool) -> Result<(), Error> {
        let all = self.path.parent().expect("it lies in the folder of all recounted logs");
        let lock = lock(all)?;
        if !is_usable(&self.target) {
            if self.target.exists() {
                std::fs::remove_dir_all(&self.target).map_err(Error::file("remove", &self.target))?;
            }
            std::fs::rename(&self.path, &self.target).map_err(Error::file("rename", &self.path))?;
        }
        drop((log, lock));
        Ok(())
    }
}

impl Drop for RecountDraft {
    fn drop(&mut self) {
        // If the folder cannot be removed now, the next session tries again.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Locks the file [`LOCK`], after other sessions have released it. `None` if the file system has no locks.
fn lock(all: &Path) -> Result<Option<File>, Error> {
    let path = all.join(LOCK);
    let file = plain_file::lock_file(&path).map_err(Error::file("open", &path))?;
    Ok(file.lock().is_ok().then_some(file))
}

/// Makes a folder with a name that is not taken.
fn unused(all: &Path, name: &str) -> Result<PathBuf, Error> {
    let mut number = 0;
    loop {
        let path = all.join(format!("{name}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(Error::file("create", path)(error)),
        }
    }
}

/// Removes folders left by killed sessions.
fn remove_leftovers(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let unfinished = entry.file_name().to_string_lossy().contains(UNFINISHED);
        if unfinished && !is_being_written(&entry.path().join(EVENTS)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(recording: &Path) -> Vec<String> {
        let listed = std::fs::read_dir(recording.join(INSTRUCTIONS)).unwrap();
        let mut names: Vec<_> = listed.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != LOCK);
        names.sort();
        names
    }

    #[test]
    fn who_comes_second_uses_what_is_there() {
        let recording = tempfile::tempdir().unwrap();
        let (first, first_log) = RecountDraft::begin(recording.path(), Exits(5), Format::default()).unwrap();
        let (second, second_log) =
            RecountDraft::begin(recording.path(), Exits(5), Format::default()).unwrap();
        std::fs::write(second.path().join("second"), "").unwrap();
        assert_eq!(names(recording.path()).len(), 2);
        second.publish(second_log, |target| target.exists()).unwrap();
        first.publish(first_log, |target| target.join("second").exists()).unwrap();
        assert_eq!(names(recording.path()), ["5"]);
        assert!(folder(recording.path(), Exits(5)).join("second").exists());
    }

    #[test]
    fn what_is_of_no_use_is_replaced() {
        let recording = tempfile::tempdir().unwrap();
        let old = folder(recording.path(), Exits(0));
        std::fs::create_dir_all(old.join("more")).unwrap();
        let (draft, log) = RecountDraft::begin(recording.path(), Exits(0), Format::default()).unwrap();
        draft.publish(log, |_| false).unwrap();
        assert!(old.join(EVENTS).exists() && !old.join("more").exists());
    }

    #[test]
    fn leftovers_go_when_the_next_one_begins() {
        let recording = tempfile::tempdir().unwrap();
        let (draft, log) = RecountDraft::begin(recording.path(), Exits(0), Format::default()).unwrap();
        // A killed process does not drop its draft, and neither does this test.
        std::mem::forget(draft);
        drop(log);
        let (alive, _log) = RecountDraft::begin(recording.path(), Exits(0), Format::default()).unwrap();
        let (given_up, log) = RecountDraft::begin(recording.path(), Exits(7), Format::default()).unwrap();
        drop((given_up, log));
        assert_eq!(names(recording.path()).len(), 1);
        assert!(alive.path().exists());
    }
}
