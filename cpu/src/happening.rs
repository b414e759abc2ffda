//! Plain data: the happenings of a CPU step, and the kinds of happenings that an observer wants.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;

use iced_x86::Instruction;

use crate::debug_points::SystemCalls;
use crate::ranges::AddressKind;

/// The kinds of happenings that an observer wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Fetches of instructions whose first byte is in one of these address ranges.
    pub fetches: Places,
    /// Fetches of the instructions that this filter selects, at every address.
    pub instructions: Option<InstructionFilter>,
    /// Loads that touch a byte in one of these address ranges.
    pub loads: Places,
    /// Stores that touch a byte in one of these address ranges.
    pub stores: Places,
    /// Whether the observer wants branches.
    pub branches: bool,
    /// Near calls and returns, which cost much less than all branches.
    pub calls: Calls,
    /// JMP and Jcc to one of these addresses (RIP). Compilers make such jumps from calls at a function's end.
    pub jumps_to: Arc<BTreeSet<u64>>,
    /// System calls with these numbers.
    pub system_calls: SystemCalls,
    /// Deliveries through these entries of the interrupt table.
    pub deliveries: Vectors,
}

/// A condition on instructions. Two filters are equal if one is a copy of the other.
#[derive(Clone)]
pub struct InstructionFilter(Arc<dyn Fn(&Instruction) -> bool + Send + Sync>);

impl InstructionFilter {
    /// A filter that selects the instructions for which the condition holds. The condition must depend only on the
    /// instruction's bytes and mode, because the CPU asks when it decodes code.
    pub fn new(condition: impl Fn(&Instruction) -> bool + Send + Sync + 'static) -> InstructionFilter {
        InstructionFilter(Arc::new(condition))
    }

    pub(crate) fn selects(&self, instruction: &Instruction) -> bool {
        (self.0)(instruction)
    }
}

impl fmt::Debug for InstructionFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("InstructionFilter")
    }
}

impl PartialEq for InstructionFilter {
    fn eq(&self, other: &InstructionFilter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for InstructionFilter {}

/// The code whose near calls and returns an observer wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// No code.
    #[default]
    None,
    /// Code in the upper half of the address space, where kernels have their code.
    UpperHalf,
    /// All code.
    All,
}

impl Calls {
    /// Whether the calls of the code at an address are wanted.
    #[inline]
    pub(crate) fn contain(self, rip: u64) -> bool {
        match self {
            Calls::None => false,
            Calls::UpperHalf => rip >> 63 != 0,
            Calls::All => true,
        }
    }
}

/// A set of address ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Places {
    /// The empty set.
    #[default]
    None,
    /// Every address.
    All,
    /// The addresses in these ranges.
    In(Vec<Place>),
}

/// A range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address space of `addresses`.
    pub space: AddressKind,
    /// The first and the last byte.
    pub addresses: RangeInclusive<u64>,
}

/// A set of entries of the interrupt table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Every entry of the interrupt table.
    All,
    /// The entries of the interrupt table with these numbers (vectors).
    Numbered(BTreeSet<u8>),
}

impl Default for Vectors {
    fn default() -> Vectors {
        Vectors::Numbered(BTreeSet::new())
    }
}

impl Vectors {
    /// Whether the set has the entry with this number.
    pub(crate) fn contain(&self, vector: u8) -> bool {
        match self {
            Vectors::All => true,
            Vectors::Numbered(numbers) => numbers.contains(&vector),
        }
    }
}

/// The step and the instruction of a happening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The number of steps before the step of the happening.
    pub step: u64,
    /// RIP of the executed instruction. For an interrupt, RIP of the next instruction of the interrupted code.
    pub rip: u64,
}

/// A happening of a step.
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
        /// The bytes that were read.
        value: Bytes,
    },
    /// Memory is written.
    Store {
        /// Linear address of the first byte.
        address: u64,
        /// Guest-physical address of the first byte.
        physical: u64,
        /// The old bytes; `None` outside RAM.
        before: Option<Bytes>,
        /// The bytes that were written.
        after: Bytes,
    },
    /// A jump, call or return completed, near or far. SYSCALL and similar instructions are branches too.
    Branch {
        /// RIP of the next instruction.
        to: u64,
        /// Whether the branch is conditional.
        conditional: bool,
        /// `false` for a conditional branch that falls through.
        taken: bool,
    },
    /// A near call completed.
    Call {
        /// RIP of the called function.
        to: u64,
        /// The return address.
        back: u64,
    },
    /// A near return completed.
    Return {
        /// RIP of the next instruction.
        to: u64,
    },
    /// JMP or Jcc jumped to a wanted address.
    Jump {
        /// RIP of the next instruction.
        to: u64,
    },
    /// A system call was entered, by SYSCALL, SYSENTER or INT 80h.
    SystemCall {
        /// The system call's number: RAX.
        number: u64,
    },
    /// Control passed through an entry of the interrupt table: an exception, interrupt, NMI or INT n.
    Delivery {
        /// The entry's number in the interrupt table.
        vector: u8,
        /// The error code, if there is one.
        error_code: Option<u32>,
    },
}

/// The bytes of one read or write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    length: u8,
    bytes: [u8; Bytes::MOST],
}

impl Bytes {
    /// The largest number of bytes that a value holds.
    pub const MOST: usize = 64;

    /// Copies the bytes. Panics if there are more than [`Bytes::MOST`].
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
