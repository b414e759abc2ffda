//! The memory of this process that no other process shares, for measurements (proc(5), smaps).

use std::collections::BTreeMap;

use machine::error::Error;
use serde::{Deserialize, Serialize};

const WHOLE: &str = "/proc/self/smaps_rollup";
const EACH: &str = "/proc/self/smaps";

/// The memory that only one branch uses, at one point of its run.
#[derive(Serialize, Deserialize)]
pub struct Memory {
    instructions: u64,
    /// Private_Clean and Private_Dirty of smaps_rollup.
    private_kib: u64,
    /// The size of the translated code that only this branch has. The kernel does not count this code as private,
    /// because the process has mapped it twice.
    code_kib: u64,
}

impl Memory {
    /// Measures the memory now. `instructions` is the number of instructions executed so far.
    pub fn now(instructions: u64) -> Result<Memory, Error> {
        let read = |path| std::fs::read_to_string(path).map_err(Error::file("read", path));
        Ok(Memory { instructions, private_kib: private(&read(WHOLE)?), code_kib: code(&read(EACH)?) })
    }
}

fn private(text: &str) -> u64 {
    text.lines().filter(|line| line.starts_with("Private_")).filter_map(kib).sum()
}

/// The number in a line like `Rss:  12 kB`.
fn kib(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The size in KiB of the branch's translated code. The function sums, over all shared mappings of files that this
/// process has also mapped writable, the proportional size minus the private size. Memory of the template is not
/// counted, because a branch does not map it writable.
fn code(text: &str) -> u64 {
    let mut memories = BTreeMap::<&str, (bool, u64)>::new();
    let mut inode = "";
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [range, rights, _, _, number, ..] = words[..]
            && range.contains('-')
        {
            inode = if rights.ends_with('s') { number } else { "" };
            let memory = memories.entry(inode).or_default();
            memory.0 |= rights.starts_with("rw");
        } else if let Some(memory) = memories.get_mut(inode).filter(|_| !inode.is_empty()) {
            match words[0] {
                "Pss:" => memory.1 += kib(line).unwrap_or(0),
                "Private_Clean:" | "Private_Dirty:" => memory.1 -= kib(line).unwrap_or(0).min(memory.1),
                _ => {}
            }
        }
    }
    memories.values().filter(|(is_written, _)| *is_written).map(|(_, own)| own).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_counted_once_and_only_if_it_is_ones_own() {
        let text = "\
7f00-7f10 rw-s 00000000 00:01 11   /dev/zero (deleted)
Rss: 8 kB
Pss: 4 kB
Private_Dirty: 0 kB
7f20-7f30 r-xs 00000000 00:01 11   /dev/zero (deleted)
Pss: 24 kB
Private_Dirty: 20 kB
7f30-7f40 r-xs 00000000 00:01 12   /dev/zero (deleted)
Pss: 100 kB
Private_Dirty: 0 kB
7f50-7f60 rw-p 00000000 00:00 0 
Pss: 1000 kB
Private_Dirty: 1000 kB
";
        assert_eq!((code(text), private(text)), (8, 1020));
    }
}
