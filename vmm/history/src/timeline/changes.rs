//! A debugger's changes of registers and memory. The first change begins a [`Fork`]: a run from the present place that
//! is not the recorded run.

use cpu::CpuState;

use super::fork::Fork;
use super::stops::Armed;
use super::travel::Timeline;
use machine::error::Error;
use machine::position::Instructions;

impl Timeline {
    /// The place where the present fork began, if the machine is in a fork.
    pub fn forked_at(&self) -> Option<Instructions> {
        self.fork.as_ref().map(Fork::begun_at)
    }

    /// Replaces the CPU's registers. Begins a fork, unless the machine is in one.
    pub fn change_registers(&mut self, state: &CpuState) -> Result<(), Error> {
        self.begin_fork()?;
        self.walker.machine.change_registers(state);
        Ok(())
    }

    /// Writes memory at a linear address, for a debugger. Writes nothing and returns false unless all bytes are
    /// mapped to RAM. Begins a fork, unless the machine is in one.
    pub fn change_memory(&mut self, address: u64, bytes: &[u8]) -> Result<bool, Error> {
        if !self.walker.machine.can_change_memory(address, bytes.len()) {
            return Ok(false);
        }
        self.begin_fork()?;
        self.walker.machine.change_memory(address, bytes);
        Ok(true)
    }

    /// Moves the machine back to the place where the fork began. Returns this place, or `None` if the machine is in
    /// no fork.
    pub fn leave_fork(&mut self) -> Result<Option<Instructions>, Error> {
        let Some(fork) = &self.fork else { return Ok(None) };
        let root = fork.begun_at();
        Armed::disarm(&mut self.walker.machine);
        self.walker.restore(&fork.root)?;
        // Forget the fork only after the state was restored. If restoring fails, the machine is still in the fork.
        self.fork = None;
        Ok(Some(root))
    }

    fn begin_fork(&mut self) -> Result<(), Error> {
        if self.fork.is_none() {
            self.fork = Some(Fork { root: self.snapshot()? });
            self.walker.machine.go_on_after_end();
        }
        Ok(())
    }

    /// Returns an error in a fork, for actions that are possible only in the recorded run.
    pub(super) fn must_be_history(&self) -> Result<(), Error> {
        match self.forked_at() {
            None => Ok(()),
            Some(at) => Err(Error::Position(format!(
                "this is a scratch fork of the recording, begun at instruction {at}, and it only goes forward: \
                 'monitor back' returns to the recorded history"
            ))),
        }
    }
}
