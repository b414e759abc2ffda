//! Words that several parts of the board use.

use std::fmt::Display;

/// A time in seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Words in a list, or "none".
pub(super) fn listed<W: Display>(words: impl IntoIterator<Item = W>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    if words.is_empty() { "none".to_string() } else { words.join(", ") }
}

/// A level in words.
pub(super) fn level(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}
