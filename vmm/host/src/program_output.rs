//! Tells a program's output on the console from the kernel's output before and after it.

/// Divides the output at a mark, which the guest prints when its program begins and when its program has ended. The mark itself
/// belongs to no part. The mark's first byte must not occur in the mark again.
pub struct ProgramOutput {
    mark: Vec<u8>,
    /// Number of bytes of the mark that were printed last.
    matched: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Before,
    Program,
    After,
}

/// A part of the output.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Output while the program runs.
    Program(Vec<u8>),
    /// Output of the kernel before the program.
    Before(Vec<u8>),
    /// Output of the kernel after the program has ended.
    After(Vec<u8>),
}

impl ProgramOutput {
    /// Waits for a mark, which must not be empty.
    pub fn new(mark: &str) -> ProgramOutput {
        ProgramOutput { mark: mark.as_bytes().to_vec(), matched: 0, stage: Stage::Before }
    }

    /// Whether the program has begun.
    pub fn has_begun(&self) -> bool {
        self.stage != Stage::Before
    }

    /// Divides the next printed bytes. Holds bytes back while a mark may have begun.
    pub fn divide(&mut self, bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut part = Vec::new();
        for &byte in bytes {
            if byte != self.mark[self.matched] {
                part.extend(&self.mark[..std::mem::take(&mut self.matched)]);
            }
            if byte != self.mark[self.matched] {
                part.push(byte);
                continue;
            }
            self.matched += 1;
            if self.matched == self.mark.len() {
                parts.push(self.part(std::mem::take(&mut part)));
                self.matched = 0;
                self.stage = if self.stage == Stage::Before { Stage::Program } else { Stage::After };
            }
        }
        parts.push(self.part(part));
        parts
    }

    fn part(&self, bytes: Vec<u8>) -> Part {
        match self.stage {
            Stage::Before => Part::Before(bytes),
            Stage::Program => Part::Program(bytes),
            Stage::After => Part::After(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_divided_however_it_is_cut() {
        let printed = b"one\x1b[0m two \x1b\x1b]mark\x07three\x1b]mark\x07off".as_slice();
        for piece in 1..=printed.len() {
            let mut output = ProgramOutput::new("\x1b]mark\x07");
            let (mut before, mut program, mut after) = (Vec::new(), Vec::new(), Vec::new());
            for bytes in printed.chunks(piece) {
                for part in output.divide(bytes) {
                    match part {
                        Part::Before(bytes) => before.extend(bytes),
                        Part::Program(bytes) => program.extend(bytes),
                        Part::After(bytes) => after.extend(bytes),
                    }
                }
            }
            assert_eq!(before, b"one\x1b[0m two \x1b", "pieces of {piece}");
            assert_eq!(program, b"three", "pieces of {piece}");
            assert_eq!(after, b"off", "pieces of {piece}");
            assert!(output.has_begun());
        }
    }
}
