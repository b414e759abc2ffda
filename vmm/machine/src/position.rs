//! Points in a run: counts of instructions, counts of exits, moments. `notation` parses the texts that people write for
//! positions. `vmm/machine/POSITIONS.md` explains positions.

use std::fmt::{self, Debug, Display, Formatter};
use std::hash::Hash;
use std::ops::{Add, Sub};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A place in a run, as a count since the start of the run. Each unit has its own type, so that counts of different
/// units cannot be mixed. The difference of two counts is a plain number.
///
/// `machine::unit` has the behaviour of machines that depends on the unit.
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
    /// The unit's name, in the singular.
    const ONE: &str;
    /// A place beyond the end of every run.
    const MAX: Self;

    /// The place after `number` units.
    fn new(number: u64) -> Self;
    /// The number of units.
    fn number(self) -> u64;
    /// The place as a [`Position`], for messages and for code that handles both units.
    fn position(self) -> Position;
    /// The length of a part of a run with `number` units.
    fn length(number: u64) -> Length;

    /// The place `number` units later, at most [`Count::MAX`].
    fn saturating_add(self, number: u64) -> Self {
        Self::new(self.number().saturating_add(number))
    }

    /// The distance from the place `earlier`; 0 if `earlier` is in fact the later place.
    fn saturating_since(self, earlier: Self) -> u64 {
        self.number().saturating_sub(earlier.number())
    }

    /// The place `number` units earlier, or the first place.
    fn saturating_back(self, number: u64) -> Self {
        Self::new(self.number().saturating_sub(number))
    }
}

/// A count of instructions and deliveries, as the software CPU counts them. The count includes each completed
/// instruction, each iteration of a repeated string instruction, and each delivery of an exception or
/// interrupt. A count identifies a point between two instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instructions(pub u64);

/// A count of exits. Every engine can count exits, also an engine that does not count instructions. The count
/// includes accesses to ports and to memory that is not RAM. The count also includes accesses to the board's
/// model-specific registers, unless the board refuses them. The count also includes each HLT, and each forced stop
/// of the guest between these events. A count stands for all points between two exits.
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

/// A place in a run, in either unit. Messages use this type. In JSON it is the field `instruction` or `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// The place after this number of instructions.
    Instruction(Instructions),
    /// The place after this number of exits.
    Exit(Exits),
}

impl Position {
    /// The number of instructions or exits.
    pub fn number(self) -> u64 {
        match self {
            Position::Instruction(at) => at.number(),
            Position::Exit(at) => at.number(),
        }
    }

    /// The place as a count of type `C`. The caller must be sure that the place is counted in this unit.
    pub fn counted<C: Count>(self) -> C {
        C::new(self.number())
    }

    /// The position as a person writes it.
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

/// The length of a part of a run. Messages use this type. In JSON it is the field `instructions` or `exits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// A number of [`Instructions`].
    Instructions(u64),
    /// A number of [`Exits`].
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
/// Points are ordered by count and then by time. While the CPU is halted, time passes at one count, so only
/// `time_ns` distinguishes these points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment<C> {
    /// The count since the start of the run.
    pub count: C,
    /// Virtual nanoseconds since power-on.
    pub time_ns: u64,
}

impl<C: Count> Display for Moment<C> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.9} s guest time)", self.count.position(), self.time_ns as f64 / 1e9)
    }
}
