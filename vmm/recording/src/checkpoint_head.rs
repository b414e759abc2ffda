//! The head of a checkpoint: where it was taken, without the machine's state.

use machine::Machine;
use machine::position::Moment;
use machine::unit::Unit;

use crate::cursor::Cursor;

/// What a checkpoint says of itself without being unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointHead<C> {
    /// Where.
    pub at: Moment<C>,
    /// Retired conditional branches there; zero where exits are counted.
    pub branches: u64,
    /// System calls entered until there; zero where exits are counted.
    pub system_calls: u64,
    /// RIP there.
    pub rip: u64,
    /// How far the log was played.
    pub cursor: Cursor<C>,
}

impl<C: Unit> CheckpointHead<C> {
    /// The head of a checkpoint taken here, whose position need not be in what the machine counts.
    pub fn of<U: Unit>(machine: &Machine<U>, cursor: Cursor<C>) -> CheckpointHead<C> {
        let cpu = machine.cpu();
        let (branches, system_calls) =
            if C::NAMES_ONE_PLACE { (cpu.branches(), cpu.system_calls()) } else { (0, 0) };
        CheckpointHead { at: machine.moment_in(), branches, system_calls, rip: cpu.rip(), cursor }
    }
}
