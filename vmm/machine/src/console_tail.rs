//! The end of the guest's console output. The tail is part of the machine's state, so a user can see and search the
//! output at any point of a run. A kernel without the pvpanic driver reports a panic only on the console.

/// Linux prints this text when a panic's report is complete.
const PANIC_END: &[u8] = b"---[ end Kernel panic";
/// Linux prints this text when a panic's report begins. A kernel that reboots on a panic (`panic=-1`) does not
/// print the text for the end.
pub const PANIC_BEGIN: &[u8] = b"Kernel panic - not syncing";
/// The size of the tail in bytes.
const TAIL_BYTES: usize = 8192;
/// A number of bytes of console output that no guest reaches.
const MAX_LENGTH_BYTES: u64 = 1 << 62;

/// The end of the console's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleTail {
    /// Number of bytes that the guest has written to the console so far.
    pub(super) length_bytes: u64,
    /// The last [`TAIL_BYTES`] of the output, or all output if there is less. The tail does not depend on the
    /// pieces in which the output came, so that equal machines have equal states.
    pub(super) tail: Vec<u8>,
}

impl ConsoleTail {
    /// Appends output. Returns whether a panic's report ended in this output.
    pub fn push(&mut self, output: &[u8]) -> bool {
        let before = self.tail.len().saturating_sub(PANIC_END.len() - 1);
        self.length_bytes += output.len() as u64;
        self.tail.extend_from_slice(output);
        let panicked = find(&self.tail[before..], PANIC_END).is_some();
        self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        panicked
    }

    /// Whether the length and the tail can belong together. A stored state may come from strangers.
    pub fn is_possible(&self) -> bool {
        let kept = self.length_bytes.min(TAIL_BYTES as u64);
        self.tail.len() as u64 == kept && self.length_bytes <= MAX_LENGTH_BYTES
    }

    /// The end of the output: at most 8 KiB.
    pub fn text(&self) -> &[u8] {
        &self.tail
    }

    /// Number of bytes that the guest has written to the console so far.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Whether an occurrence of `wanted` ends in the last `fresh_bytes` bytes of output.
    pub fn ended_with(&self, wanted: &[u8], fresh_bytes: usize) -> bool {
        let from = self.tail.len().saturating_sub(fresh_bytes + wanted.len().saturating_sub(1));
        find(&self.tail[from..], wanted).is_some()
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len().max(1)).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_output_leads_to_is_possible_and_else_nothing() {
        let mut tail = ConsoleTail::default();
        for length in [0, 1, 5000, 3192, 1, 9000] {
            tail.push(&vec![b'x'; length]);
            assert!(tail.is_possible(), "{}", tail.length_bytes);
        }
        for length_bytes in [0, TAIL_BYTES as u64 - 1, MAX_LENGTH_BYTES + 1] {
            assert!(!ConsoleTail { length_bytes, ..tail.clone() }.is_possible(), "{length_bytes}");
        }
        assert!(!ConsoleTail { length_bytes: 5, tail: vec![0; 4] }.is_possible());
    }

    #[test]
    fn the_end_of_a_report_is_found_across_chunks() {
        let mut tail = ConsoleTail::default();
        assert!(!tail.push(b"[ 1.0] Kernel panic - not syncing\n[ 1.1] ---[ end Ker"));
        assert!(tail.push(b"nel panic - not syncing: x ]---\n"));
        assert!(!tail.push(b"-----[ end trace"));
    }

    #[test]
    fn text_is_found_once_where_it_is_completed() {
        let mut tail = ConsoleTail::default();
        let mut found = Vec::new();
        for (number, piece) in ["lo", "gin: ", "x", "login: login: "].iter().enumerate() {
            tail.push(piece.as_bytes());
            if tail.ended_with(b"login:", piece.len()) {
                found.push(number);
            }
        }
        assert_eq!(found, [1, 3]);
    }

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = ConsoleTail::default();
        (0..100_000_u32).for_each(|n| {
            tail.push(&[n as u8]);
        });
        assert_eq!(tail.length_bytes(), 100_000);
        assert_eq!(tail.text().len(), TAIL_BYTES);
        assert_eq!(tail.text().last(), Some(&(99_999_u32 as u8)));
    }
}
