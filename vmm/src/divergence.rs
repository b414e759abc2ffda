//! A replay that did not do what was recorded: where, what was expected, what happened.

use crate::position::{Counting, Moment};

/// The first difference that replay found.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the replay diverged at {} {} ({:.9} s guest time): {what}: recorded {expected}, replayed {actual}; \
     compared last, and equal, at {} {}{}",
    counting.one(),
    at.steps,
    at.time_ns as f64 / 1e9,
    counting.one(),
    last_good.steps,
    around(neighbours)
)]
pub struct Divergence {
    /// What steps are.
    pub counting: Counting,
    /// Where the replay was.
    pub at: Moment,
    /// The last point before it where the same part of the machine was compared and found equal.
    pub last_good: Moment,
    /// What differs.
    pub what: &'static str,
    /// The recorded value.
    pub expected: String,
    /// The replayed value.
    pub actual: String,
    /// Recorded events around the place.
    pub neighbours: Vec<String>,
}

fn around(neighbours: &[String]) -> String {
    if neighbours.is_empty() { String::new() } else { format!("; events nearby: {}", neighbours.join(", ")) }
}
