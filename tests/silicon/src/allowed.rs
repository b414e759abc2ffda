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
    /// RFLAGS bits.
    Flags(u64),
    /// Which of two exceptions was raised.
    Exception,
}

/// One allowed difference.
struct Rule {
    /// Short name, as the report prints it.
    name: &'static str,
    /// Where the manual says so.
    #[allow(dead_code, reason = "for the reader")]
    manual: &'static str,
    applies: fn(&Case, &Pair<'_>) -> bool,
    scope: Scope,
}

const ARITHMETIC: u64 = 0x8d5;

const RULES: &[Rule] = &[
    Rule {
        name: "flags at a page fault inside REP CMPS and REP SCAS",
        // Restoring them would need state that outlives a stop between two iterations; a handler that returns
        // to the instruction cannot notice, since neither instruction reads the flags.
        manual: "SDM vol. 2, REP: \"EFLAGS is restored to the state prior to the execution of the instruction\"",
        applies: |case, pair| {
            let instruction = &case.instruction;
            let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
            repeated && compares(instruction.mnemonic()) && pair.native.fault.is_some()
        },
        scope: Scope::Flags(ARITHMETIC),
    },
    Rule {
        name: "#PF or #GP where an operand runs into the non-canonical hole",
        manual: "SDM vol. 3, 6.9: the order of faults of one instruction's execution is model-specific",
        applies: |case, pair| case.registers.rip == pair.native.registers.rip && in_the_hole(pair),
        scope: Scope::Exception,
    },
];

fn compares(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq)
}

/// One side raised a page fault on the last bytes below the hole, the other #GP or #SS.
fn in_the_hole(pair: &Pair<'_>) -> bool {
    const HOLE: u64 = 0x8000_0000_0000;
    let (Some(native), Some(soft)) = (pair.native.fault, pair.soft.fault) else { return false };
    let general = |vector| matches!(vector, 12 | 13);
    let (page_fault, other) = if native.vector == 14 { (native, soft) } else { (soft, native) };
    page_fault.vector == 14 && general(other.vector) && (HOLE - 16..HOLE).contains(&page_fault.address)
}

/// Makes `soft` equal to the processor's result wherever a rule allows them to differ.
pub fn apply(case: &Case, pair: &Pair<'_>, soft: &mut Outcome, uses: &mut Uses) {
    for rule in RULES.iter().filter(|rule| (rule.applies)(case, pair)) {
        let before = soft.clone();
        match rule.scope {
            Scope::Flags(bits) => {
                soft.registers.rflags ^= (soft.registers.rflags ^ pair.native.registers.rflags) & bits;
            }
            Scope::Exception => soft.fault = pair.native.fault,
        }
        if *soft != before {
            *uses.entry(rule.name.to_string()).or_default() += 1;
        }
    }
}
