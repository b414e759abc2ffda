//! The expected end of a case, and flags as letters.

use std::collections::BTreeMap;

use crate::case::{Case, Outcome, Token};
use crate::machine::Engine;

pub const RF: u64 = 1 << 16;
const LETTERS: [(char, u64); 12] = [
    ('c', 1),
    ('p', 1 << 2),
    ('a', 1 << 4),
    ('z', 1 << 6),
    ('s', 1 << 7),
    ('t', 1 << 8),
    ('i', 1 << 9),
    ('d', 1 << 10),
    ('o', 1 << 11),
    ('n', 1 << 14),
    ('r', RF),
    ('k', 1 << 18),
];

/// Mask and value of flags from their letters.
pub fn flags(letters: &str) -> (u64, u64) {
    letters.chars().filter(|letter| *letter != '?').fold((0, 0), |(mask, value), letter| {
        let known = LETTERS.iter().find(|(known, _)| letter.eq_ignore_ascii_case(known));
        let bit = known.unwrap_or_else(|| panic!("there is no flag {letter}")).1;
        (mask | bit, if letter.is_ascii_uppercase() { value | bit } else { value })
    })
}

/// Formats RFLAGS with its letters.
pub fn named_flags(value: u64) -> String {
    let name = |(letter, bit): &(char, u64)| {
        if value & bit != 0 { letter.to_ascii_uppercase() } else { *letter }
    };
    format!("{value:x} ({})", LETTERS.iter().map(name).collect::<String>())
}

/// The expected end of a case, including the expected differences of the engine.
pub struct Expected {
    pub outcome: Outcome,
    pub registers: BTreeMap<String, Vec<(u128, u128)>>,
    pub undefined: Vec<(String, u128)>,
    pub flags: Option<String>,
    pub memory: Vec<(u64, Vec<Option<u8>>)>,
    pub accesses: Vec<String>,
}

impl Expected {
    pub fn of(case: &Case, engine: Engine) -> Expected {
        let outcome = if case.mode.is_user() { Outcome::Vector(0x80, None) } else { Outcome::Halt };
        let mut expected = Expected {
            outcome,
            registers: BTreeMap::new(),
            undefined: Vec::new(),
            flags: None,
            memory: Vec::new(),
            accesses: Vec::new(),
        };
        expected.add(&case.end);
        for difference in case.differences.iter().filter(|difference| difference.on.applies_to(engine)) {
            expected.replace(&difference.end);
        }
        expected
    }

    /// Replaces expectations by the expectations of a difference.
    fn replace(&mut self, tokens: &[Token]) {
        for token in tokens {
            match token {
                Token::Register { name, .. } => {
                    self.registers.remove(name);
                }
                Token::Access(_) | Token::NoAccess => self.accesses.clear(),
                _ => {}
            }
        }
        self.add(tokens);
    }

    /// Bits of a register that may have any value.
    pub fn undefined(&self, name: &str) -> u128 {
        let of_it = self.undefined.iter().filter(|(known, _)| known == name);
        of_it.fold(0, |mask, (_, more)| mask | more)
    }

    fn add(&mut self, tokens: &[Token]) {
        for token in tokens.iter().cloned() {
            match token {
                Token::Outcome(outcome) => self.outcome = outcome,
                Token::Register { name, mask, value } => {
                    self.registers.entry(name).or_default().push((mask, value))
                }
                Token::Undefined { name, mask } => self.undefined.push((name, mask)),
                Token::Flags(letters) => self.flags = Some(letters),
                Token::Memory(address, bytes) => self.memory.push((address, bytes)),
                Token::NoAccess => {}
                Token::Access(access) => self.accesses.push(access.to_string()),
                Token::Interrupt(_) => panic!("an end requests no interrupt"),
            }
        }
    }
}
