//! The statistics of an engine, for benchmarks.

/// An engine's counts since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Statistics {
    /// Entries into the guest.
    pub entries: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Forced stops: times that the engine stopped the guest without an exit.
    pub forced: u64,
    /// Hits of breakpoints at the RIP of a landing place, where the guest must stop.
    pub breakpoints: u64,
    /// Landing places that the software CPU reached.
    pub landed_by_software: u64,
    /// Instructions that the software CPU emulated because KVM could not.
    pub emulated: u64,
    /// Runs to a landing place that used the count of branches.
    pub landings: Landings,
}

/// Counts of landings. A landing is a run to a landing place by the count of branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Landings {
    /// Landings that reached their landing place.
    pub landed: u64,
    /// Hits of breakpoints during landings.
    pub hits: u64,
    /// Landings that went beyond their landing place.
    pub overshot: u64,
    /// Times that the branch counter's overflow signal never came, and a watchdog stopped the guest.
    pub lost_overflows: u64,
    /// The largest delay of an overflow signal, in branches.
    pub largest_skid: u64,
}
