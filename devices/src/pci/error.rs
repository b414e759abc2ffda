//! The error of restoring a saved bus.

/// Why a saved state cannot be restored into this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved PCI state does not fit this machine: {what}")]
pub struct StateError {
    what: String,
}

impl StateError {
    pub(crate) fn new(what: impl Into<String>) -> StateError {
        StateError { what: what.into() }
    }

    pub(crate) fn in_slot(self, slot: usize) -> StateError {
        StateError { what: format!("slot {slot}: {}", self.what) }
    }
}
