//! Points in a run: counts of instructions, counts of exits, moments. How people write positions is in `notation`.
//! `vmm/machine/POSITIONS.md` explains them.

use std::fmt::{self, Debug, Display, Formatter};
use std::hash::Hash;
use std::ops::{Add, Sub};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A place in a run by what was counted up to it since power-on. The types that implement this differ, so
/// that a count of one thing is never taken for a count of another; the difference of two counts is a plain
/// number.
///
/// What machines do by what they count is in `machine::unit`.
pub trait Count:
    Copy
    + Default
    + Ord
    + Hash
    + Debug
    + Display
    + Serialize
    + DeserializeOwned
    + Add<u64, Output = Self>
    + Sub<Self, Output = u64>
    + Send
    + Sync
    + 'static
{
    /// What is counted, in the singular.
    const ONE: &str;
    /// A place beyond the end of every run.
    const MAX: Self;

    /// The place behind `number` of them.
    fn new(number: u64) -> Self;
    /// How many there were.
    fn number(self) -> u64;
    /// The place, for messages and for data that does not care which count it is.
    fn position(self) -> Position;
    /// A stretch of `number` of them.
    fn length(number: u64) -> Length;

    /// The place `number` further on, or [`Count::MAX`].
    fn saturating_add(self, number: u64) -> Self {
        Self::new(self.number().saturating_add(number))
    }

    /// The distance from an earlier place; 0 from a later one.
    fn saturating_since(self, earlier: Self) -> u64 {
        self.number().saturating_sub(earlier.number())
    }

    /// The place `number` before, or the first.
    fn saturating_back(self, number: u64) -> Self {
        Self::new(self.number().saturating_sub(number))
    }
}

/// Instructions and deliveries, as the software CPU counts them: one for each completed instruction, each
/// iteration of a repeated string instruction, each delivery of an exception or interrupt. Names a point
/// between two instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instructions(pub u64);

/// Exits: what any engine sees of the guest without counting instructions. One for each access to a port or
/// to memory that is no RAM, each access to a model-specific register of the board that is not refused, each
/// HLT, and each time that the guest was stopped without one. Names what lies between two exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exits(pub u64);

macro_rules! count {
    ($type:ident, $one:literal, $variant:ident) => {
        impl Count for $type {
            const ONE: &str = $one;
            const MAX: $type = $type(u64::MAX);

            fn new(number: u64) -> $type {
                $type(number)
            }
            fn number(self) -> u64 {
                self.0
            }
            fn position(self) -> Position {
                Position::$variant(self)
            }
            fn length(number: u64) -> Length {
                Length::$type(number)
            }
        }
        impl Add<u64> for $type {
            type Output = $type;

            fn add(self, number: u64) -> $type {
                $type(self.0 + number)
            }
        }
        impl Sub for $type {
            type Output = u64;

            fn sub(self, earlier: $type) -> u64 {
                self.0 - earlier.0
            }
        }
        impl Sub<u64> for $type {
            type Output = $type;

            fn sub(self, number: u64) -> $type {
                $type(self.0 - number)
            }
        }
        impl Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                Display::fmt(&self.0, f)
            }
        }
    };
}

count!(Instructions, "instruction", Instruction);
count!(Exits, "exit", Exit);

/// A place in a run, by either count: for messages, and, as the field `instruction` or `exit`, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Behind this number of instructions.
    Instruction(Instructions),
    /// Behind this number of exits.
    Exit(Exits),
}

impl Position {
    /// How many there were.
    pub fn number(self) -> u64 {
        match self {
            Position::Instruction(at) => at.number(),
            Position::Exit(at) => at.number(),
        }
    }

    /// The place as a count of type `C`, which the caller knows it to be.
    pub fn counted<C: Count>(self) -> C {
        C::new(self.number())
    }

    /// As a person writes it.
    pub fn short(self) -> String {
        match self {
            Position::Instruction(at) => format!("insn:{at}"),
            Position::Exit(at) => format!("exit:{at}"),
        }
    }
}

impl Display for Position {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Position::Instruction(at) => write!(f, "{} {at}", Instructions::ONE),
            Position::Exit(at) => write!(f, "{} {at}", Exits::ONE),
        }
    }
}

/// The length of a stretch of a run: for messages, and, as the field `instructions` or `exits`, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// In [`Instructions`].
    Instructions(u64),
    /// In [`Exits`].
    Exits(u64),
}

impl Display for Length {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Length::Instructions(number) => write!(f, "{number} instructions"),
            Length::Exits(number) => write!(f, "{number} exits"),
        }
    }
}

/// A point in a run, and the virtual time there.
///
/// Points are ordered by their count; while the CPU is halted time passes at one count, and `time_ns` tells
/// its points apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment<C> {
    /// What was counted since power-on.
    pub count: C,
    /// Virtual nanoseconds since power-on.
    pub time_ns: u64,
}

impl<C: Count> Display for Moment<C> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.9} s guest time)", self.count.position(), self.time_ns as f64 / 1e9)
    }
}
