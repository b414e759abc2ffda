//! The error of restoring a saved chip.
//!
//! Saved states may come from strangers' files. So every `restore` checks the conditions that the chip's code
//! relies on. `restore` refuses an impossible state, which would otherwise cause a panic later.

use std::borrow::Cow;

/// The error of an impossible saved state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved state of the {chip} is impossible: {what}")]
pub struct RestoreError {
    /// The chip's name, as in its module documentation.
    pub chip: &'static str,
    /// The fault in the state.
    pub what: Cow<'static, str>,
}

impl RestoreError {
    /// `Ok` if `possible`, else the error `what` for `chip`.
    pub fn unless(possible: bool, chip: &'static str, what: &'static str) -> Result<(), RestoreError> {
        if possible { Ok(()) } else { Err(RestoreError { chip, what: what.into() }) }
    }
}
