//! Why a saved chip could not be brought back.
//!
//! Saved states may come from files that strangers made, so every `restore` checks what the chip's code
//! relies on; a state that no chip can be in is refused instead of panicking later.

use std::borrow::Cow;

/// A saved state that no chip can be in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved state of the {chip} is impossible: {what}")]
pub struct RestoreError {
    /// The chip, by the name its module documentation uses.
    pub chip: &'static str,
    /// What is wrong with the state.
    pub what: Cow<'static, str>,
}

impl RestoreError {
    /// `Ok` when `possible`, else the error for `chip` saying `what`.
    pub fn unless(possible: bool, chip: &'static str, what: &'static str) -> Result<(), RestoreError> {
        if possible { Ok(()) } else { Err(RestoreError { chip, what: what.into() }) }
    }
}
