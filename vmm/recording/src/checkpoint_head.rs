//! The head of a checkpoint: the point where the checkpoint was taken, without the machine's state.

use machine::Machine;
use machine::position::Moment;
use machine::unit::Unit;

use crate::cursor::Cursor;

/// The part of a checkpoint that can be read without unpacking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointHead<C> {
    /// The checkpoint's position and time.
    pub at: Moment<C>,
    /// Retired conditional branches up to this checkpoint; zero in a recording that counts exits.
    pub branches: u64,
    /// System calls entered up to this checkpoint; zero in a recording that counts exits.
    pub system_calls: u64,
    /// RIP at the checkpoint.
    pub rip: u64,
    /// The checkpoint's place in the log.
    pub cursor: Cursor<C>,
}

impl<C: Unit> CheckpointHead<C> {
    /// Makes the head of a checkpoint of the machine's present state. The head may count in another unit than the
    /// machine.
    pub fn of<U: Unit>(machine: &Machine<U>, cursor: Cursor<C>) -> CheckpointHead<C> {
        let cpu = machine.cpu();
        let (branches, system_calls) =
            if C::NAMES_ONE_PLACE { (cpu.branches(), cpu.system_calls()) } else { (0, 0) };
        CheckpointHead { at: machine.moment_in(), branches, system_calls, rip: cpu.rip(), cursor }
    }
}
