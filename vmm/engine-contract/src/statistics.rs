//! The statistics of an engine, for benchmarks.

/// An engine's counts so far, if it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Statistics {
    /// Entries into the guest.
    pub entries: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Times that the guest was stopped without an exit.
    pub forced: u64,
    /// Hits of breakpoints at the RIP of a landing place, where the guest must stop.
    pub breakpoints: u64,
    /// Landing places that the software CPU reached.
    pub landed_by_software: u64,
    /// Instructions that the software CPU emulated because KVM could not.
    pub emulated: u64,
    /// Landings by the count of branches.
    pub landings: Landings,
}

/// The counts of landings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Landings {
    /// Landings that reached their landing place.
    pub landed: u64,
    /// Breakpoints met on the way.
    pub hits: u64,
    /// Landings that went beyond their landing place.
    pub overshot: u64,
    /// Overflows of the branch counter that never came. A watchdog found out.
    pub lost_overflows: u64,
    /// The largest delay of an overflow, in branches.
    pub largest_skid: u64,
}
