//! The first difference between a replay and its recording, with its place, the recorded value and the replayed value.

use crate::position::Position;

/// The first difference that replay found.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the replay diverged at {at} ({:.9} s guest time): {what}: recorded {expected}, replayed {actual}; compared last, and equal, at {last_good}{}",
    *time_ns as f64 / 1e9,
    around(neighbours)
)]
pub struct Divergence {
    /// The point at which the replay differs.
    pub at: Position,
    /// The virtual time at `at`, in nanoseconds.
    pub time_ns: u64,
    /// The last point before `at` where the same part of the machine was equal.
    pub last_good: Position,
    /// The virtual time at `last_good`, in nanoseconds.
    pub last_good_ns: u64,
    /// The name of the compared part that differs.
    pub what: &'static str,
    /// The recorded value.
    pub expected: String,
    /// The replayed value.
    pub actual: String,
    /// The recorded events around `at`, as text.
    pub neighbours: Vec<String>,
}

fn around(neighbours: &[String]) -> String {
    if neighbours.is_empty() { String::new() } else { format!("; events nearby: {}", neighbours.join(", ")) }
}
