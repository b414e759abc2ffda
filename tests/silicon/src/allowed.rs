//! Every difference from the real processor that is allowed, each with its reason and the manual's words on it.
//! The list is complete: anything else is a failure.
//!
//! "SDM" is Intel's Software Developer's Manual, "APM" AMD's Architecture Programmer's Manual.

use std::collections::BTreeMap;

use iced_x86::Mnemonic;

use crate::case::Case;
use crate::compare::Pair;
use crate::state::Outcome;

/// How often each allowance was used, by [`Rule::name`].
pub type Uses = BTreeMap<String, u64>;

/// What a rule gives up.
enum Scope {
    /// RFLAGS bits of the result.
    Flags(u64),
}

/// One allowed difference.
struct Rule {
    /// Short name, as the report prints it.
    name: &'static str,
    /// Where the manual says so.
    #[allow(dead_code, reason = "for the reader")]
    manual: &'static str,
    mnemonics: &'static [Mnemonic],
    scope: Scope,
}

const RULES: &[Rule] = &[];

/// Makes `soft` equal to the processor's result wherever a rule allows them to differ.
pub fn apply(case: &Case, pair: &Pair<'_>, soft: &mut Outcome, _data: &mut Option<Vec<u8>>, uses: &mut Uses) {
    let mnemonic = case.instruction.mnemonic();
    for rule in RULES.iter().filter(|rule| rule.mnemonics.contains(&mnemonic)) {
        let used = match rule.scope {
            Scope::Flags(bits) => take_flags(pair, soft, bits),
        };
        if used {
            *uses.entry(rule.name.to_string()).or_default() += 1;
        }
    }
}

fn take_flags(pair: &Pair<'_>, soft: &mut Outcome, bits: u64) -> bool {
    let different = (soft.registers.rflags ^ pair.native.registers.rflags) & bits;
    soft.registers.rflags ^= different;
    different != 0
}
