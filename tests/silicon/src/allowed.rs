//! Every allowed difference from the real processor, with its reason and the manual's words. The list is complete:
//! any other difference is a failure. `compare.rs` does not compare state that the operating system sets: IF, IOPL,
//! RF, reserved bytes of FXSAVE images. `compare.rs` also does not compare the P bit that Linux sets in error codes
//! of page faults on kernel addresses.
//!
//! "SDM" is Intel's Software Developer's Manual, "APM" AMD's Architecture Programmer's Manual.

use std::collections::BTreeMap;

use iced_x86::Mnemonic;

use crate::case::Case;
use crate::compare::Pair;
use crate::state::{FxImage, Outcome};

/// Maps each [`Rule::name`] to the number of differences that the rule has allowed.
pub type Uses = BTreeMap<String, u64>;

/// The part of the outcome that a rule does not compare.
enum Scope {
    /// These RFLAGS bits may differ.
    Flags(u64),
    /// The two exceptions may differ, because the manual permits both.
    Exception,
    /// The last places of x87 results may differ by `ulps` units. C1 may differ, too, which says whether the last
    /// rounding was upwards.
    Extended { ulps: u64 },
    /// Single-precision results may differ: each of the two results has a relative error of less than 1.5 * 2^-12.
    Approximation,
    /// The bits of the x87 pointers from bit 48 on may differ.
    PointerTops,
}

/// One allowed difference.
struct Rule {
    /// The short name of the rule, which the report prints.
    name: &'static str,
    /// The passage of the manual that permits the difference.
    #[allow(dead_code, reason = "for the reader")]
    manual: &'static str,
    applies: fn(&Case, &Pair<'_>) -> bool,
    scope: Scope,
}

const ARITHMETIC: u64 = 0x8d5;

const RULES: &[Rule] = &[
    Rule {
        name: "flags at a page fault inside REP CMPS and REP SCAS",
        // To restore EFLAGS, the software CPU would have to save EFLAGS before the first iteration. The CPU would
        // also have to keep this copy when a run stops between two iterations. A handler that returns to the
        // instruction cannot notice the difference, because CMPS and SCAS do not read the flags.
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
    Rule {
        name: "address of a page fault inside the operand of MASKMOVDQU and MASKMOVQ",
        manual: "SDM vol. 2, MASKMOVDQU: \"an implementation-dependent number\" of bytes is accessed at a time",
        applies: |case, pair| {
            use Mnemonic::*;
            let page_fault = |outcome: &Outcome| outcome.fault.is_some_and(|f| f.vector == 14);
            matches!(case.instruction.mnemonic(), Maskmovdqu | Maskmovq)
                && page_fault(pair.native)
                && page_fault(pair.soft)
        },
        scope: Scope::Exception,
    },
    Rule {
        name: "address of a page fault inside the operand of FXSAVE and FXRSTOR",
        manual: "SDM vol. 3, 6.9: the order of faults of one instruction's execution is model-specific",
        applies: |case, pair| {
            use Mnemonic::*;
            let page_fault = |outcome: &Outcome| outcome.fault.is_some_and(|f| f.vector == 14);
            matches!(case.instruction.mnemonic(), Fxsave | Fxsave64 | Fxrstor | Fxrstor64)
                && page_fault(pair.native)
                && page_fault(pair.soft)
        },
        scope: Scope::Exception,
    },
    Rule {
        name: "last place of x87 transcendental functions",
        manual: "SDM vol. 1, 8.3.10: errors below 1 ulp, or 1.5 ulp when not rounding to nearest",
        applies: |case, _| {
            use Mnemonic::*;
            let mnemonic = case.instruction.mnemonic();
            matches!(mnemonic, F2xm1 | Fyl2x | Fyl2xp1 | Fsin | Fcos | Fsincos | Fptan | Fpatan)
        },
        scope: Scope::Extended { ulps: 1 },
    },
    Rule {
        name: "approximations of RCPPS, RCPSS, RSQRTPS and RSQRTSS",
        manual: "SDM vol. 2, RCPPS and RSQRTPS: relative error of at most 1.5 * 2^-12",
        applies: |case, _| {
            use Mnemonic::*;
            matches!(case.instruction.mnemonic(), Rcpps | Rcpss | Rsqrtps | Rsqrtss)
        },
        scope: Scope::Approximation,
    },
    Rule {
        name: "x87 pointers that are not canonical in 48 bits",
        // Linear addresses have 48 bits in the CPU model, but 57 bits on processors with five-level paging.
        manual: "unwritten; they are made canonical in the width of linear addresses (SDM vol. 2, CPUID 80000008H)",
        applies: |case, _| case.instruction.mnemonic() == Mnemonic::Fxrstor64,
        scope: Scope::PointerTops,
    },
];

fn compares(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq)
}

/// Whether processor and software CPU raised different exceptions for an operand that reaches into the non-canonical
/// addresses. One of the two raised a page fault just below these addresses, and the other raised #GP or #SS.
fn in_the_hole(pair: &Pair<'_>) -> bool {
    const HOLE: u64 = 0x8000_0000_0000;
    let (Some(native), Some(soft)) = (pair.native.fault, pair.soft.fault) else { return false };
    let general = |vector| matches!(vector, 12 | 13);
    let (page_fault, other) = if native.vector == 14 { (native, soft) } else { (soft, native) };
    page_fault.vector == 14 && general(other.vector) && (HOLE - 16..HOLE).contains(&page_fault.address)
}

/// Where a rule allows a difference, copies the processor's result to `soft`.
pub fn apply(case: &Case, pair: &Pair<'_>, soft: &mut Outcome, uses: &mut Uses) {
    for rule in RULES.iter().filter(|rule| (rule.applies)(case, pair)) {
        let before = soft.clone();
        match rule.scope {
            Scope::Flags(bits) => {
                soft.registers.rflags ^= (soft.registers.rflags ^ pair.native.registers.rflags) & bits;
            }
            Scope::Exception => soft.fault = pair.native.fault,
            Scope::Extended { ulps } => {
                take_extended(&pair.native.registers.fx, &mut soft.registers.fx, ulps)
            }
            Scope::PointerTops => take_pointer_tops(&pair.native.registers.fx, &mut soft.registers.fx),
            Scope::Approximation => take_approximations(&pair.native.registers.fx, &mut soft.registers.fx),
        }
        if *soft != before {
            *uses.entry(rule.name.to_string()).or_default() += 1;
        }
    }
}

/// Copies C1 from `native` to `soft`. Also copies ST(0) and ST(1) if their values in `native` and `soft` differ by
/// at most `ulps` units in the last place.
pub fn take_extended(native: &FxImage, soft: &mut FxImage, ulps: u64) {
    const C1: u16 = 1 << 9;
    // The exception's flag, and the bits ES and B, which an unmasked exception sets.
    const UNDERFLOW: u16 = 1 << 4 | 1 << 7 | 1 << 15;
    const OVERFLOW: u16 = 1 << 3 | 1 << 7 | 1 << 15;
    // At the limits of the exponent, a tiny rounding error decides whether a result underflows or overflows.
    let exponents = [0, 1].map(|n| native.sign_exponent(n) & 0x7fff);
    let smallest = exponents.iter().any(|&exponent| exponent <= 1);
    let largest = exponents.iter().any(|&exponent| exponent >= 0x7ffe);
    let limits = if smallest { UNDERFLOW } else { 0 } | if largest { OVERFLOW } else { 0 };
    if (soft.status() ^ native.status()) & limits != 0 {
        // Unmasked exceptions also change opcode and pointers (SDM vol. 1, 8.1.8 and
        // 8.1.9).
        soft.set_opcode(native.opcode());
        soft.set_data_pointer(native.data_pointer());
    }
    let given_up = C1 | limits;
    soft.set_status(soft.status() & !given_up | native.status() & given_up);
    for n in 0..2 {
        let distance = (place(native, n, 0) - place(soft, n, 0)).unsigned_abs();
        // On an unmasked underflow, the processor multiplies the result by 2^24576 (SDM vol. 1, 8.5.5).
        let scaled = (place(native, n, 0) - place(soft, n, 24_576)).unsigned_abs();
        if distance <= u128::from(ulps) || smallest && scaled <= u128::from(ulps) {
            soft.set_st(n, native.mantissa(n), native.sign_exponent(n));
        }
    }
}

/// Returns a register's contents as one number: sign, exponent minus `scale`, and fraction without the integer bit.
fn place(fx: &FxImage, n: usize, scale: i128) -> i128 {
    let exponent = i128::from(fx.sign_exponent(n)) - scale;
    (exponent << 63) | i128::from(fx.mantissa(n) << 1 >> 1)
}

/// Copies the x87 pointers to `soft` if their low 48 bits are the same.
fn take_pointer_tops(native: &FxImage, soft: &mut FxImage) {
    let canonical = |pointer: u64| (pointer << 16) as i64 >> 16;
    if canonical(native.instruction_pointer()) as u64 == soft.instruction_pointer() {
        soft.set_instruction_pointer(native.instruction_pointer());
    }
    if canonical(native.data_pointer()) as u64 == soft.data_pointer() {
        soft.set_data_pointer(native.data_pointer());
    }
}

/// Copies single-precision lanes to `soft` if the two sides' values are close enough.
fn take_approximations(native: &FxImage, soft: &mut FxImage) {
    const TOLERANCE: f64 = 2.0 * 1.5 / 4096.0;
    for n in 0..16 {
        let (theirs, ours) = (native.xmm(n), soft.xmm(n));
        let mut taken = ours;
        for lane in (0..128).step_by(32) {
            let [a, b] = [theirs, ours].map(|v| f64::from(f32::from_bits((v >> lane) as u32)));
            // The processor flushes tiny results to zero. An approximation of the smallest normal number may be
            // tiny.
            let flushed = a == 0.0 && b.abs() <= f64::from(f32::MIN_POSITIVE) * (1.0 + TOLERANCE);
            if flushed || (a - b).abs() <= a.abs() * TOLERANCE {
                taken = taken & !(0xffff_ffff << lane) | theirs & 0xffff_ffff << lane;
            }
        }
        soft.set_xmm(n, taken);
    }
}
