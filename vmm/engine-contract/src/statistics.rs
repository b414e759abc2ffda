//! What an engine did, for benchmarks.

/// What an engine did so far, where it counts that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Statistics {
    /// Entries into the guest.
    pub entries: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Times that the guest was stopped without an exit.
    pub forced: u64,
    /// Breakpoints that were met on the way to a landing place.
    pub breakpoints: u64,
    /// Landing places that the software CPU went to.
    pub landed_by_software: u64,
    /// Instructions that KVM could not emulate and the software CPU did.
    pub emulated: u64,
    /// Landing places that were found by their count of branches.
    pub landings: Landings,
}

/// What happened in landings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Landings {
    /// Landings that came to their landing place.
    pub landed: u64,
    /// Breakpoints met on the way.
    pub hits: u64,
    /// Landings that went beyond their landing place.
    pub overshot: u64,
    /// Overflows that never came, and that the watchdog found.
    pub lost_overflows: u64,
    /// Most branches that an overflow came late.
    pub largest_skid: u64,
}
