//! The reference for comparisons: this host's processor, or recorded results of a processor.

use std::io;

use crate::case::Case;
use crate::layout::{BATCH, DATA, PAD_AHEAD, PAD_BACK, slot};
use crate::native::{Exit, Native};
use crate::state::Outcome;

/// Determines the right result of each case. The caller may run batches in any order, but must run the cases of a
/// batch in ascending order.
pub trait Reference {
    /// Base address of FS in all cases.
    fn fs_base(&self) -> u64;
    /// Fills the read-only page. The caller calls this before the first batch.
    fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Begins a batch.
    fn start_batch(&mut self, batch: u64) -> io::Result<()>;
    /// Executes a case. `data` is the contents of the writable data, which already include the case's own bytes.
    /// The function updates `data`.
    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()>;
    /// Skips a case.
    fn skip(&mut self, _case: &Case) -> io::Result<()> {
        Ok(())
    }
}

/// A reference that imitates a processor of another vendor. Inverts every bit of the results that
/// [`open`](crate::open) lists as undefined, so the results differ as much as the manuals permit.
pub struct Disturbed<R>(pub R);

impl<R: Reference> Reference for Disturbed<R> {
    fn fs_base(&self) -> u64 {
        self.0.fs_base()
    }

    fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.seal_read_only(bytes)
    }

    fn start_batch(&mut self, batch: u64) -> io::Result<()> {
        self.0.start_batch(batch)
    }

    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()> {
        self.0.run(case, outcome, data)?;
        crate::open::disturb(case, outcome, data);
        Ok(())
    }

    fn skip(&mut self, case: &Case) -> io::Result<()> {
        self.0.skip(case)
    }
}

impl Reference for Native {
    fn fs_base(&self) -> u64 {
        self.fs_base
    }

    fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()> {
        Native::seal_read_only(self, bytes)
    }

    fn start_batch(&mut self, _batch: u64) -> io::Result<()> {
        for number in 0..BATCH {
            for (offset, exit) in [(PAD_BACK, Exit::Back), (PAD_AHEAD, Exit::Ahead)] {
                self.write_exit(slot(number) + offset, exit);
            }
        }
        Ok(())
    }

    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()> {
        let length = case.code().len() as u64;
        self.write_code(case.registers.rip, case.code());
        self.write_exit(case.registers.rip + length, Exit::Fell);
        self.write_data(DATA, data);
        Native::run(self, &case.registers, length, case.slot, outcome);
        self.read_data(data);
        Ok(())
    }
}
