//! The engines that can execute the guest, and their names.

use std::fmt;
use std::str::FromStr;

use translator::{Part, Parts};

/// The engine of the software CPU that executes the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Only the interpreter.
    Interpreter,
    /// The translator, if the host has one, for blocks that ran often enough; the interpreter for the rest.
    Translator {
        /// Executions of a block before it is translated.
        after: u32,
        /// The optimisations that the translator uses.
        parts: Parts,
    },
    /// The translator for every block that it can translate. Every result that the host's instructions leave
    /// undefined is inverted. With this tier, tests check that no undefined result reaches the guest.
    Inverted,
}

/// Executions of a block by the interpreter before it is translated. Most blocks that run this often continue
/// to run, and a translation stays valid until the block's bytes change.
const WARM: u32 = 12;

impl Default for Tier {
    fn default() -> Tier {
        Tier::Translator { after: WARM, parts: Parts::ALL }
    }
}

/// The error for an unknown tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTier(String);

impl fmt::Display for UnknownTier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Part::ALL.map(Part::name).join(", ");
        write!(
            formatter,
            "{} is no tier: write interpreter, translator or plain; the last two take parts, like translator,-{} or \
             plain,+{}; the parts are {parts}",
            self.0,
            Part::Groups.name(),
            Part::Links.name()
        )
    }
}

impl std::error::Error for UnknownTier {}

/// Parses `interpreter`, `translator`, or `plain` for a translator without optimisations. `,-PART` removes a
/// part and `,+PART` adds a part.
impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(name: &str) -> Result<Tier, UnknownTier> {
        let unknown = || UnknownTier(name.to_string());
        let mut words = name.split(',');
        let mut parts = match words.next() {
            Some("interpreter") if name == "interpreter" => return Ok(Tier::Interpreter),
            Some("translator") => Parts::ALL,
            Some("plain") => Parts::NONE,
            _ => return Err(unknown()),
        };
        for word in words {
            let (sign, part) = word.split_at_checked(1).ok_or_else(unknown)?;
            let part = Part::named(part).ok_or_else(unknown)?;
            parts = match sign {
                "-" => parts.without(part),
                "+" => parts.with(part),
                _ => return Err(unknown()),
            };
        }
        Ok(Tier::Translator { after: WARM, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_have_names() {
        let translator = |parts| Ok(Tier::Translator { after: WARM, parts });
        let links = Parts::NONE.with(Part::Links);
        for (name, tier) in [
            ("interpreter", Ok(Tier::Interpreter)),
            ("translator", Ok(Tier::default())),
            ("plain", translator(Parts::NONE)),
            ("plain,+links", translator(links)),
            ("translator,-groups,-twins", translator(Parts::ALL.without(Part::Groups).without(Part::Twins))),
            ("translator,-expected-addends,+expected-addends", translator(Parts::ALL)),
        ] {
            assert_eq!(name.parse(), tier, "{name}");
        }
        for name in
            ["", "silicon", "interpreter,-links", "plain,links", "plain,", "translator,-wheels", "plain,é"]
        {
            assert_eq!(name.parse::<Tier>(), Err(UnknownTier(name.to_string())));
        }
    }
}
