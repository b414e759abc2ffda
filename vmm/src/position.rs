//! Points in a run.

use serde::{Deserialize, Serialize};

/// Virtual time that no run gets to, in nanoseconds: 146 years. Nothing overflows before it.
pub const MAX_TIME_NS: u64 = 1 << 62;

/// What the steps of a [`Moment`] are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// Instructions and deliveries, as the software CPU counts them.
    #[default]
    Instructions,
    /// Exits: what any engine sees of the guest without counting instructions. One for each access to a port or to memory
    /// that is no RAM, each access to a model-specific register of the board that is not refused, each HLT, and each time that
    /// the guest was stopped without one.
    Exits,
}

impl Counting {
    /// What one step is called.
    pub fn one(self) -> &'static str {
        match self {
            Counting::Instructions => "instruction",
            Counting::Exits => "exit",
        }
    }

    /// So many steps.
    pub fn length(self, steps: u64) -> Length {
        match self {
            Counting::Instructions => Length::Instructions(steps),
            Counting::Exits => Length::Exits(steps),
        }
    }
}

/// A number of steps, for a person, or, as a field of this name, for a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// See [`Counting::Instructions`].
    Instructions(u64),
    /// See [`Counting::Exits`].
    Exits(u64),
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Length::Instructions(steps) => write!(f, "{steps} instructions"),
            Length::Exits(steps) => write!(f, "{steps} exits"),
        }
    }
}

/// What lets virtual time pass while the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeBase {
    /// Each step is a nanosecond.
    #[default]
    Instructions,
    /// Each exit is a nanosecond; whatever else passed came in as an event.
    Exits,
}

/// A point between two instructions, and the virtual time there.
///
/// Points are ordered by `steps`; while the CPU is halted time passes at one step count, and `time_ns` tells
/// its points apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Steps executed since power-on (see [`cpu::Cpu::steps`]).
    pub steps: u64,
    /// Virtual nanoseconds since power-on: steps plus time spent idle.
    pub time_ns: u64,
}

/// A position as a person writes it: `start`, `end`, `panic`, `event:N`, `insn:N`, `branch:N`, `syscall:N`, `12.5s`, `37%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PositionSpec {
    /// The first instruction.
    Start,
    /// Where the recording ends.
    End,
    /// Where the guest announced its panic.
    Panic,
    /// The N-th recorded event, counted from 0.
    Event(u64),
    /// After N steps.
    Instruction(u64),
    /// After N retired conditional branches.
    Branch(u64),
    /// After N system calls were entered.
    SystemCall(u64),
    /// Virtual time.
    Nanoseconds(u64),
    /// Share of all steps, in percent.
    Percent(f64),
}

impl std::str::FromStr for PositionSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PositionSpec, String> {
        let bad = || {
            format!(
                "'{text}' is not a position: write start, end, panic, event:N, insn:N, branch:N, syscall:N, 12.5s \
                 or 37%"
            )
        };
        let number = |digits: &str| digits.replace('_', "").parse::<u64>().map_err(|_| bad());
        let decimal =
            |digits: &str| digits.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(bad);
        match text {
            "start" => return Ok(PositionSpec::Start),
            "end" => return Ok(PositionSpec::End),
            "panic" => return Ok(PositionSpec::Panic),
            _ => {}
        }
        if let Some((kind, digits)) = text.split_once(':') {
            return match kind {
                "event" => number(digits).map(PositionSpec::Event),
                "insn" => number(digits).map(PositionSpec::Instruction),
                "branch" => number(digits).map(PositionSpec::Branch),
                "syscall" => number(digits).map(PositionSpec::SystemCall),
                _ => Err(bad()),
            };
        }
        if let Some(digits) = text.strip_suffix('%') {
            let percent = decimal(digits)?;
            return if percent <= 100.0 { Ok(PositionSpec::Percent(percent)) } else { Err(bad()) };
        }
        if let Some(digits) = text.strip_suffix('s') {
            return Ok(PositionSpec::Nanoseconds((decimal(digits)? * 1e9) as u64));
        }
        Err(bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_is_read() {
        for (text, expected) in [
            ("start", PositionSpec::Start),
            ("end", PositionSpec::End),
            ("panic", PositionSpec::Panic),
            ("event:3", PositionSpec::Event(3)),
            ("insn:1_000_000", PositionSpec::Instruction(1_000_000)),
            ("branch:7", PositionSpec::Branch(7)),
            ("syscall:3", PositionSpec::SystemCall(3)),
            ("12.5s", PositionSpec::Nanoseconds(12_500_000_000)),
            ("37%", PositionSpec::Percent(37.0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "x", "insn:", "insn:-1", "-1s", "101%", "nan%", "syscalls:1"] {
            assert!(text.parse::<PositionSpec>().is_err(), "{text}");
        }
    }
}
