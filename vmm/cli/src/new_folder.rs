//! The folder of a new recording.

use std::path::Path;
use std::thread::JoinHandle;

use machine::error::Error;
use recording::create_folder;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

/// A folder that was made for a recording. If the recording does not begin, the folder is removed with its contents,
/// even if a signal ends the process.
pub struct NewFolder<'a> {
    /// The folder to remove. `None` if the folder must stay.
    path: Option<&'a Path>,
    guard: Option<Guard>,
}

/// A thread that waits for signals, and removes the folder when a signal comes.
struct Guard {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl NewFolder<'_> {
    /// Makes the folder. Never overwrites an existing folder.
    pub fn make(path: &Path) -> Result<NewFolder<'_>, Error> {
        let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(no_signals)?;
        create_folder(path)?;
        let mut folder = NewFolder { path: Some(path), guard: None };
        folder.guard = Some(Guard::new(signals, path).map_err(no_signals)?);
        Ok(folder)
    }

    /// Stops watching for signals. From now on the recorder handles signals, and ends the run with an end record.
    pub fn leave_signals(&mut self) {
        if let Some(Guard { handle, thread }) = self.guard.take() {
            handle.close();
            // If a signal has just arrived, `join` does not return, because the thread ends the process.
            let _ = thread.join();
        }
    }

    /// Makes the folder stay, because the recording has begun.
    pub fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for NewFolder<'_> {
    fn drop(&mut self) {
        self.leave_signals();
        // The caller reports why the recording did not begin. A failure to remove the folder is less important and is
        // ignored.
        let _ = self.path.map(std::fs::remove_dir_all);
    }
}

impl Guard {
    fn new(mut signals: Signals, path: &Path) -> std::io::Result<Guard> {
        let (handle, path) = (signals.handle(), path.to_path_buf());
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                remove(&path);
                let _ = emulate_default_handler(signal);
            }
        };
        Ok(Guard { handle, thread: std::thread::Builder::new().spawn(wait)? })
    }
}

/// Removes a folder while another thread may add a file.
fn remove(path: &Path) {
    const MOST_TRIES: u32 = 100;
    for _ in 0..MOST_TRIES {
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
    }
}

fn no_signals(source: std::io::Error) -> Error {
    Error::Host { what: "cannot watch for signals".to_string(), source }
}
