//! The clever parts of the translator, each of which can be left out: to find out which of them translates something wrongly.

/// A part of the translator that can be left out. What is translated does the same without it, and is slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Accesses of a block whose addresses differ by known constants share one look at the TLB.
    Groups,
    /// Where that look of a group fails, the block goes on in a copy of itself that looks for each access. Without it, the
    /// interpreter executes the rest of the block.
    Twins,
    /// In a small loop, a load expects the addend that it found in the round before.
    ExpectedAddends,
    /// Flags that follow from registers are not written.
    Recipes,
    /// Code jumps straight to the code of the next block.
    Links,
    /// Indirect branches, and those that are not linked, find their targets in a table.
    Jumps,
    /// What is translated once is placed at all addresses where the guest has it.
    Places,
    /// Where the interpreter has executed an instruction inside a block, generated code goes on behind it.
    Reentries,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 8] = [
        Part::Groups,
        Part::Twins,
        Part::ExpectedAddends,
        Part::Recipes,
        Part::Links,
        Part::Jumps,
        Part::Places,
        Part::Reentries,
    ];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Part::Groups => "groups",
            Part::Twins => "twins",
            Part::ExpectedAddends => "expected-addends",
            Part::Recipes => "recipes",
            Part::Links => "links",
            Part::Jumps => "jumps",
            Part::Places => "places",
            Part::Reentries => "reentries",
        }
    }

    /// The part of a name.
    pub fn named(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// Every part: what the translator does if it is not asked for less.
    pub const ALL: Parts = Parts(u8::MAX);
    /// No part.
    pub const NONE: Parts = Parts(0);

    /// Whether a part is in the set.
    pub fn has(self, part: Part) -> bool {
        self.0 >> part as u8 & 1 != 0
    }

    /// The set with a part.
    #[must_use]
    pub fn with(self, part: Part) -> Parts {
        Parts(self.0 | 1 << part as u8)
    }

    /// The set without a part.
    #[must_use]
    pub fn without(self, part: Part) -> Parts {
        Parts(self.0 & !(1 << part as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_left_out_one_by_one() {
        assert_eq!(Part::ALL.into_iter().fold(Parts::ALL, Parts::without), Parts::NONE);
        assert_eq!(Part::ALL.into_iter().fold(Parts::NONE, Parts::with), Parts::ALL);
        for part in Part::ALL {
            let others = Part::ALL.into_iter().filter(|other| Parts::ALL.without(part).has(*other));
            assert_eq!(others.count(), Part::ALL.len() - 1);
            assert_eq!(Part::named(part.name()), Some(part));
        }
    }
}
