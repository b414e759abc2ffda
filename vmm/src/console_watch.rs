//! Recognises on the console that a Linux kernel has panicked, for kernels without the pvpanic driver.

use serde::{Deserialize, Serialize};

/// Text that Linux prints when a panic's report is complete.
const PANIC_END: &[u8] = b"---[ end Kernel panic";

/// Looks for the end of a panic's report in the console's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleWatch {
    /// Characters of [`PANIC_END`] seen in a row.
    matched: usize,
}

impl ConsoleWatch {
    /// Takes output, and says whether a panic's report ended in it.
    pub fn saw_panic_end(&mut self, output: &[u8]) -> bool {
        output.iter().any(|&byte| {
            if byte == PANIC_END[self.matched] {
                self.matched += 1;
            } else {
                self.matched = usize::from(byte == PANIC_END[0]);
            }
            if self.matched == PANIC_END.len() {
                self.matched = 0;
                return true;
            }
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_report_is_found_across_chunks() {
        let mut watch = ConsoleWatch::default();
        assert!(!watch.saw_panic_end(b"[ 1.0] Kernel panic - not syncing\n[ 1.1] ---[ end Ker"));
        assert!(watch.saw_panic_end(b"nel panic - not syncing: x ]---\n"));
        assert!(!watch.saw_panic_end(b"-----[ end trace"));
    }
}
