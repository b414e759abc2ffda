//! The optimisations of the translator. Each optimisation can be switched off, to find the optimisation that
//! translates something wrongly.

/// An optimisation that can be switched off. Without an optimisation, translated code does the same, but
/// more slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Accesses of a block whose addresses differ by known constants share one TLB check.
    Groups,
    /// If the check of a group fails, the block continues in a copy of itself that checks every access. Without
    /// this optimisation, the interpreter executes the rest of the block.
    Twins,
    /// In a small loop, a load uses the TLB addend of the loop's previous round before the load's TLB check has
    /// ended.
    ExpectedAddends,
    /// Flags that can be computed from registers are not written.
    Recipes,
    /// Code jumps directly to the code of the next block.
    Links,
    /// Indirect branches, and branches that are not linked, find their targets in a table.
    Jumps,
    /// Code that was translated once is placed at all addresses where the guest maps its bytes.
    Places,
    /// After the interpreter has executed an instruction inside a block, generated code continues after that
    /// instruction.
    Reentries,
}

impl Part {
    /// All parts.
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

    /// The optimisation's name on command lines.
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

    /// The optimisation with this name, if there is one.
    pub fn named(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// Every optimisation, which is the translator's default.
    pub const ALL: Parts = Parts(u8::MAX);
    /// No part.
    pub const NONE: Parts = Parts(0);

    /// Whether an optimisation is in the set.
    pub fn has(self, part: Part) -> bool {
        self.0 >> part as u8 & 1 != 0
    }

    /// The set with this optimisation added.
    #[must_use]
    pub fn with(self, part: Part) -> Parts {
        Parts(self.0 | 1 << part as u8)
    }

    /// The set with this optimisation removed.
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
