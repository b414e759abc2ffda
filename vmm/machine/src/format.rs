//! The format in which a recording's files are stored.
//!
//! A recording's manifest names its format. Code that writes or reads stored bytes is given a [`Format`]. For each kind
//! of stored bytes, one place in the code chooses the layout by the format. This module chooses the layout of a
//! machine's state ([`MachineState`]). The package `recording` chooses the layout of the manifest, of the log's records
//! and of the heads of checkpoints. A new format is a new variant of [`Format`], and the compiler then reports these
//! places.
//!
//! Hashes of a machine's parts are the same in the logs of all formats.

use cpu::TurnState;
use serde::Deserialize;

use crate::machine_state::MachineState;
use crate::processors::{OtherProcessors, OtherProcessorsV1, SpinStateV1, TurnStateV1};
use crate::state_v1::MachineStateV1;

/// A format of stored bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Format 5: the types whose names end in `V1`, and `ManifestV5`.
    #[default]
    V5,
    /// Format 6: format 5 with additions for machines with several processors. After the machine's state in format
    /// 5 come the states of the other processors ([`OtherProcessorsV1`]). The manifest has the number of
    /// processors. The state of the turns follows ([`TurnStateV1`]), unless the counts alone determine whose turn
    /// it is. If a turn ends when its processor spins, the state of the search for spins comes last
    /// ([`SpinStateV1`]).
    V6,
}

impl Format {
    /// All formats that this program reads and writes.
    pub const ALL: [Format; 2] = [Format::V5, Format::V6];

    /// The number of the format in manifests.
    pub const fn version(self) -> u32 {
        match self {
            Format::V5 => 5,
            Format::V6 => 6,
        }
    }

    /// The format with this number.
    pub fn of_version(version: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.version() == version)
    }
}

impl MachineState {
    /// The state's bytes, as in checkpoints and starting states.
    pub fn to_bytes(&self, format: Format) -> Vec<u8> {
        match format {
            Format::V5 => postcard::to_stdvec(&MachineStateV1::from(self)),
            Format::V6 => {
                let both = (MachineStateV1::from(self), OtherProcessorsV1::from(&self.others));
                match &self.others.turns {
                    None => postcard::to_stdvec(&both),
                    Some(turns) => {
                        let with_turns = (both, TurnStateV1::from(turns));
                        match turns.spins {
                            None => postcard::to_stdvec(&with_turns),
                            Some(spins) => postcard::to_stdvec(&(with_turns, SpinStateV1::from(spins))),
                        }
                    }
                }
            }
        }
        .expect("plain data in memory always serializes")
    }

    /// Parses a machine's state; `None` if the bytes are not a valid state. The bytes may come from strangers.
    pub fn from_bytes(format: Format, bytes: &[u8]) -> Option<MachineState> {
        match format {
            Format::V5 => {
                let (state, rest) = postcard::take_from_bytes::<MachineStateV1>(bytes).ok()?;
                rest.is_empty().then(|| state.into())
            }
            Format::V6 => {
                let taken = postcard::take_from_bytes::<(MachineStateV1, OtherProcessorsV1)>(bytes);
                let ((state, others), rest) = taken.ok()?;
                let (turns, rest) = next_if_any::<TurnStateV1>(rest)?;
                let (spins, rest) = next_if_any::<SpinStateV1>(rest)?;
                let spins = spins.map(Into::into);
                let turns = turns.map(|turns| TurnState { spins, ..turns.into() });
                let others = OtherProcessors { turns, ..others.into() };
                rest.is_empty().then(|| MachineState { others, ..state.into() })
            }
        }
    }
}

/// Parses a value at the start of these bytes. Returns the value, and the bytes after the value. If there are no
/// bytes, returns no value. Returns the outer `None` if the bytes are not a valid value.
fn next_if_any<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<(Option<T>, &'a [u8])> {
    if bytes.is_empty() {
        return Some((None, bytes));
    }
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    Some((Some(value), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_number_of_its_own() {
        for format in Format::ALL {
            assert_eq!(Format::of_version(format.version()), Some(format));
        }
        assert_eq!([4, 7].map(Format::of_version), [None, None]);
    }
}
