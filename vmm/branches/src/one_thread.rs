//! Counts the threads of this process. This also works in a sandbox.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::error::Error;

/// The folder /proc/self/task has one link for each thread, and this number of other links.
const OTHER_LINKS: u64 = 2;

/// Watches the number of this process's threads.
pub struct OneThread(File);

impl OneThread {
    /// Opens the folder of the threads. A process that enters a sandbox must call this function before it enters.
    pub fn watch() -> Result<OneThread, Error> {
        File::open("/proc/self/task").map(OneThread).map_err(Error::Threads)
    }

    /// Waits until the calling thread is the process's only thread. The kernel may count a thread for a moment after it
    /// was joined.
    ///
    /// # Errors
    ///
    /// If other threads still exist after some time.
    pub fn wait(&self) -> Result<(), Error> {
        const MOST_WAITS: u32 = 200;
        const WAIT: Duration = Duration::from_millis(5);
        for _ in 0..MOST_WAITS {
            if self.count()? == 1 {
                return Ok(());
            }
            std::thread::sleep(WAIT);
        }
        Err(Error::SeveralThreads(self.count()?))
    }

    /// The number of threads. The folder's link count includes one for each thread (proc(5)).
    fn count(&self) -> Result<u64, Error> {
        let links = self.0.metadata().map_err(Error::Threads)?.nlink();
        Ok(links.saturating_sub(OTHER_LINKS))
    }
}
