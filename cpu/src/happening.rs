//! Happenings in a step of the CPU, and the kinds of happenings that an observer wants: plain data.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, RangeInclusive};

use crate::debug_points::SystemCalls;
use crate::ranges::AddressKind;

/// The kinds of happenings that an observer wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Fetches of instructions whose first byte is in one of these places.
    pub fetches: Places,
    /// Loads of a byte in one of these places.
    pub loads: Places,
    /// Stores to a byte in one of these places.
    pub stores: Places,
    /// Branches.
    pub branches: bool,
    /// System calls with these numbers.
    pub system_calls: SystemCalls,
    /// Deliveries through these entries of the interrupt table.
    pub deliveries: Vectors,
}

/// A set of places in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Places {
    /// No place.
    #[default]
    None,
    /// Every place.
    All,
    /// These places.
    In(Vec<Place>),
}

/// A range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How the addresses are meant.
    pub space: AddressKind,
    /// The first and the last byte.
    pub addresses: RangeInclusive<u64>,
}

/// A set of entries of the interrupt table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Every one.
    All,
    /// Those with these numbers.
    Numbered(BTreeSet<u8>),
}

impl Default for Vectors {
    fn default() -> Vectors {
        Vectors::Numbered(BTreeSet::new())
    }
}

impl Vectors {
    /// Whether the entry of this number is one of the set.
    pub(crate) fn contain(&self, vector: u8) -> bool {
        match self {
            Vectors::All => true,
            Vectors::Numbered(numbers) => numbers.contains(&vector),
        }
    }
}

/// Where something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The step in which it happens, by the number of steps before it.
    pub step: u64,
    /// RIP of the instruction that is executed, or that an interrupt comes before.
    pub rip: u64,
}

/// Something that happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// An instruction is executed.
    Fetch,
    /// Memory is read.
    Load {
        /// Linear address of the first byte.
        address: u64,
        /// Guest-physical address of the first byte.
        physical: u64,
        /// What was read.
        value: Bytes,
    },
    /// Memory is written.
    Store {
        /// Linear address of the first byte.
        address: u64,
        /// Guest-physical address of the first byte.
        physical: u64,
        /// What was there; `None` where that is not RAM.
        before: Option<Bytes>,
        /// What was written.
        after: Bytes,
    },
    /// A jump, call or return completed, near or far, by SYSCALL and its like too.
    Branch {
        /// RIP of the next instruction.
        to: u64,
        /// Whether it depends on a condition.
        conditional: bool,
        /// `false` if it depends on a condition, and goes on with the instruction behind it.
        taken: bool,
    },
    /// A system call was entered, by SYSCALL, SYSENTER or INT 80h.
    SystemCall {
        /// Its number: RAX.
        number: u64,
    },
    /// Control passed through an entry of the interrupt table: an exception, interrupt, NMI or INT n.
    Delivery {
        /// The entry.
        vector: u8,
        /// The error code, if there is one.
        error_code: Option<u32>,
    },
}

/// What was read or written at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    length: u8,
    bytes: [u8; Bytes::MOST],
}

impl Bytes {
    /// How many they are at most.
    pub const MOST: usize = 64;

    /// Panics where there are too many.
    pub(crate) fn of(from: &[u8]) -> Bytes {
        let mut bytes = [0; Bytes::MOST];
        bytes[..from.len()].copy_from_slice(from);
        Bytes { length: from.len() as u8, bytes }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02x?}", &**self)
    }
}
