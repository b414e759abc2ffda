//! Parses the texts that people write for positions, distances, times, sizes and counts. `vmm/machine/POSITIONS.md`
//! explains the positions.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A position as a person writes it. [`POSITIONS`] lists the notations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PositionSpec {
    /// The place before the first instruction.
    Start,
    /// The end of the recording.
    End,
    /// The place where the guest announced its panic.
    Panic,
    /// The place where the first line of the guest's first oops is complete.
    Oops,
    /// The place where the first line of the N-th report of the guest's kernel is complete, counted from 1.
    Report(u64),
    /// The instruction whose exception led to the last oops or panic.
    Fault,
    /// The place of the N-th recorded event, counted from 0.
    Event(u64),
    /// The place N instructions after the start of the recording.
    Instruction(u64),
    /// The place after N retired conditional branches.
    Branch(u64),
    /// The place where the guest has just entered the N-th system call.
    SystemCall(u64),
    /// The place where the guest has just entered the last system call of the recording.
    LastSystemCall,
    /// The first place with this virtual time.
    Nanoseconds(u64),
    /// The place after this share of all instructions, in percent.
    Percent(f64),
    /// The place at this distance after the debugger's present place, or after the start if there is no present
    /// place.
    After(Distance),
    /// The place at this distance before the debugger's present place, or before the end if there is no present
    /// place.
    Before(Distance),
}

/// The length of a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// A number of instructions.
    Instructions(u64),
    /// A number of nanoseconds of virtual time.
    Nanoseconds(u64),
}

/// The notations of a [`PositionSpec`], for messages.
pub const POSITIONS: &str = "start, end, panic, oops, fault, report:N, event:N, insn:N or N, branch:N, syscall:N, last-syscall, 12.5s, 5ms, 37%, +N, -N, +10ms or -10ms";

impl Display for Distance {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Distance::Instructions(number) => write!(f, "{number} instructions"),
            Distance::Nanoseconds(ns) => write!(f, "{} s", *ns as f64 / 1e9),
        }
    }
}

impl FromStr for PositionSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PositionSpec, String> {
        position(text).ok_or_else(|| format!("'{text}' is not a position: write {POSITIONS}"))
    }
}

fn position(text: &str) -> Option<PositionSpec> {
    match text {
        "start" => return Some(PositionSpec::Start),
        "end" => return Some(PositionSpec::End),
        "panic" => return Some(PositionSpec::Panic),
        "oops" => return Some(PositionSpec::Oops),
        "fault" => return Some(PositionSpec::Fault),
        "last-syscall" => return Some(PositionSpec::LastSystemCall),
        _ => {}
    }
    if let Some((kind, number)) = text.split_once(':') {
        let number = count(number)?;
        return match kind {
            "report" => (number > 0).then_some(PositionSpec::Report(number)),
            "event" => Some(PositionSpec::Event(number)),
            "insn" => Some(PositionSpec::Instruction(number)),
            "branch" => Some(PositionSpec::Branch(number)),
            "syscall" => Some(PositionSpec::SystemCall(number)),
            _ => None,
        };
    }
    if let Some(percent) = text.strip_suffix('%') {
        return decimal(percent).filter(|percent| *percent <= 100.0).map(PositionSpec::Percent);
    }
    if let Some(rest) = text.strip_prefix('+') {
        return distance(rest).map(PositionSpec::After);
    }
    if let Some(rest) = text.strip_prefix('-') {
        return distance(rest).map(PositionSpec::Before);
    }
    Some(match distance(text)? {
        Distance::Instructions(number) => PositionSpec::Instruction(number),
        Distance::Nanoseconds(ns) => PositionSpec::Nanoseconds(ns),
    })
}

fn distance(text: &str) -> Option<Distance> {
    count(text).map(Distance::Instructions).or_else(|| nanoseconds(text).map(Distance::Nanoseconds))
}

/// Parses a whole number: digits, perhaps grouped by `_`, or a form such as `1e9`, `2.5e6`, `10k`, `3M` and `1.5G`.
fn count(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    if let Ok(number) = digits.parse() {
        return Some(number).filter(|_| !digits.starts_with('+'));
    }
    let units = [("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9)];
    let with_unit = |(unit, factor): &(&str, f64)| Some(decimal(digits.strip_suffix(unit)?)? * factor);
    let number = units.iter().find_map(with_unit).or_else(|| decimal(&digits))?;
    // Beyond 2^53, an `f64` cannot hold every whole number.
    (number.fract() == 0.0 && number < (1_u64 << 53) as f64).then_some(number as u64)
}

/// Parses a distance that is not zero, in instructions or guest time.
pub fn distance_of(text: &str) -> Result<Distance, String> {
    let found =
        distance(text).filter(|found| !matches!(found, Distance::Instructions(0) | Distance::Nanoseconds(0)));
    found.ok_or_else(|| format!("'{text}' is no distance: write one like 10ms, 1s or 5e6"))
}

/// Parses a number of instructions: digits, perhaps grouped by `_`, or a form such as `60e9`, `10k` and `1.5G`.
pub fn instructions(text: &str) -> Result<u64, String> {
    count(text).ok_or_else(|| format!("'{text}' is no whole number: write one like 1000, 5M or 60e9"))
}

/// Parses a time, and returns nanoseconds: a number with ns, us, ms, s, m or h.
pub fn time(text: &str) -> Result<u64, String> {
    let bare = (text == "0").then_some(0);
    bare.or_else(|| nanoseconds(text))
        .ok_or_else(|| format!("'{text}' is no time: write one like 1s, 250ms or 2h"))
}

fn nanoseconds(text: &str) -> Option<u64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    units.iter().find_map(|(unit, ns)| Some((decimal(text.strip_suffix(unit)?.trim())? * ns) as u64))
}

/// Parses a number of bytes, with K, M, G, T or no unit after the number. 1.5G, 256MB and 256MiB are accepted too. The
/// units are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bad = || "write a size like 512M or 1.5G".to_string();
    let upper = text.to_ascii_uppercase();
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let with_unit = |(unit, shift): &(&str, u32)| {
        let forms = ["", "B", "IB"].map(|end| format!("{unit}{end}"));
        Some((forms.iter().find_map(|form| upper.strip_suffix(form))?, *shift))
    };
    let (number, shift) = units.iter().find_map(with_unit).unwrap_or((upper.as_str(), 0));
    let bytes = decimal(number).ok_or_else(bad)? * (1_u64 << shift) as f64;
    if bytes.fract() != 0.0 {
        return Err(bad());
    }
    if bytes >= (1_u64 << 53) as f64 { Err("that is too large".to_string()) } else { Ok(bytes as u64) }
}

/// Parses a number that is not negative. Refuses signs, infinity and the like.
fn decimal(text: &str) -> Option<f64> {
    let begins = text.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    text.parse().ok().filter(|number: &f64| begins && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_of_a_position_is_read() {
        let instructions = Distance::Instructions;
        for (text, expected) in [
            ("start", PositionSpec::Start),
            ("end", PositionSpec::End),
            ("panic", PositionSpec::Panic),
            ("oops", PositionSpec::Oops),
            ("fault", PositionSpec::Fault),
            ("report:2", PositionSpec::Report(2)),
            ("event:3", PositionSpec::Event(3)),
            ("insn:1_000_000", PositionSpec::Instruction(1_000_000)),
            ("insn:1e9", PositionSpec::Instruction(1_000_000_000)),
            ("insn:2.5e6", PositionSpec::Instruction(2_500_000)),
            ("1234", PositionSpec::Instruction(1234)),
            ("1.5G", PositionSpec::Instruction(1_500_000_000)),
            ("18446744073709551615", PositionSpec::Instruction(u64::MAX)),
            ("branch:7", PositionSpec::Branch(7)),
            ("syscall:3k", PositionSpec::SystemCall(3000)),
            ("last-syscall", PositionSpec::LastSystemCall),
            ("12.5s", PositionSpec::Nanoseconds(12_500_000_000)),
            ("5ms", PositionSpec::Nanoseconds(5_000_000)),
            ("2m", PositionSpec::Nanoseconds(120_000_000_000)),
            ("37%", PositionSpec::Percent(37.0)),
            ("+100", PositionSpec::After(instructions(100))),
            ("-1e6", PositionSpec::Before(instructions(1_000_000))),
            ("+10ms", PositionSpec::After(Distance::Nanoseconds(10_000_000))),
            ("-0.5s", PositionSpec::Before(Distance::Nanoseconds(500_000_000))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "x",
            "insn:",
            "insn:-1",
            "insn:+1",
            "insn:1.5",
            "1e-3",
            "1e300",
            "+",
            "--1",
            "+-1",
            "+37%",
            "101%",
            "nan%",
            "inf",
            "infs",
            "syscalls:1",
            "report:0",
            "oops:1",
        ] {
            assert!(text.parse::<PositionSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_sizes_are_read() {
        assert_eq!((time("0"), time("1.5s"), time("250 ms")), (Ok(0), Ok(1_500_000_000), Ok(250_000_000)));
        for text in ["", "1", "s", "-1s", "+1s", "nans", "1d"] {
            assert!(time(text).is_err(), "{text}");
        }
        for (text, expected) in [
            ("4096", 4096),
            ("64k", 64 << 10),
            ("256M", 256 << 20),
            ("256MB", 256 << 20),
            ("256MiB", 256 << 20),
            ("1.5G", 3 << 29),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1M", "1.0001K", "0.3", "1e300", "99999999T", "1X", "MB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
