//! Places in the run that no exit names.

/// A place where a guest was stopped between two exits, by what its registers held there.
///
/// Registers may be the same at several such places. The machine, which knows RAM too, decides which it is; if
/// nothing differs at all, either will do, because the future is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Linear address of the next instruction.
    pub rip: u64,
    /// [`cpu::fold_registers`] of the general registers there.
    pub registers: u64,
    /// The guest's retired conditional branches there ([`cpu::CpuState::branches`]), if they were counted. An engine that
    /// counts them too finds the place by them; others do without.
    pub branches: Option<u64>,
    /// The place where the guest stands now was looked at and is not the one.
    pub not_here: bool,
}
