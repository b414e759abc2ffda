//! Results that the manuals leave open, and that differ between processors of different vendors. Such results are
//! undefined flags and results, x87 pointers, and encodings that one vendor decodes differently. For such results
//! the software CPU follows Intel's processors. So only a comparison with an Intel processor can include all
//! results. On other processors the comparison leaves out open results, and the golden vectors ([`crate::golden`])
//! check them.
//!
//! "SDM" is Intel's Software Developer's Manual, "APM" AMD's Architecture Programmer's Manual.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, RflagsBits};

use crate::allowed::take_extended;
use crate::case::Case;
use crate::compare::Pair;
use crate::layout::{DATA, DATA_BYTES};
use crate::state::{FxImage, Outcome};

/// How much of an outcome is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// All results are compared. The reference is an Intel processor, or recorded results of an Intel processor.
    Everything,
    /// Only results that the manuals define are compared.
    Defined,
}

impl Compared {
    /// Returns the part of an outcome that can be compared with this host's processor.
    pub fn here() -> Compared {
        if is_intel() { Compared::Everything } else { Compared::Defined }
    }
}

/// Whether the host has one of Intel's processors.
pub fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

/// Returns the flags that an instruction leaves undefined, as RFLAGS bits.
pub fn flags(case: &Case) -> u64 {
    const BITS: [(u32, u64); 6] = [
        (RflagsBits::CF, CF),
        (RflagsBits::PF, PF),
        (RflagsBits::AF, AF),
        (RflagsBits::ZF, ZF),
        (RflagsBits::SF, SF),
        (RflagsBits::OF, OF),
    ];
    let undefined = case.instruction.rflags_undefined();
    let bits = BITS.iter().filter(|(theirs, _)| undefined & theirs != 0).fold(0, |all, (_, ours)| all | ours);
    match shift_count(case) {
        Some(0) => 0,
        Some(1) => bits & !OF,
        // SDM vol. 2, RCL: OF is undefined for a count of more than one, even if operand and CF end with their old
        // values.
        Some(_) if matches!(case.instruction.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr) => bits | OF,
        Some(count) if loses_carry(case, count) => bits | CF,
        _ => bits,
    }
}

/// The masked count of a shift or rotate; `None` for other instructions.
fn shift_count(case: &Case) -> Option<u64> {
    use Mnemonic::*;
    let instruction = &case.instruction;
    if !matches!(instruction.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd) {
        return None;
    }
    let last = instruction.op_count() - 1;
    let count = match instruction.op_kind(last) {
        OpKind::Register => case.registers.gpr[1],
        _ => instruction.immediate(last),
    };
    Some(count & if size(case) == 8 { 63 } else { 31 })
}

/// Whether CF is undefined after a shift by `count`. SDM vol. 2, SAL/SAR/SHL/SHR: CF is undefined if SHL or SHR shift
/// by the operand's size or more.
fn loses_carry(case: &Case, count: u64) -> bool {
    use Mnemonic::*;
    matches!(case.instruction.mnemonic(), Shl | Sal | Shr) && count >= 8 * size(case) as u64
}

/// Returns the size of the first operand in bytes.
fn size(case: &Case) -> usize {
    match case.instruction.op_kind(0) {
        OpKind::Register => case.instruction.op_register(0).size(),
        _ => case.instruction.memory_size().size(),
    }
}

/// The x87 condition codes that an instruction leaves undefined, as bits of the status word.
fn conditions(case: &Case) -> u16 {
    const BITS: [(u32, u16); 4] = [
        (RflagsBits::C0, 1 << 8),
        (RflagsBits::C1, 1 << 9),
        (RflagsBits::C2, 1 << 10),
        (RflagsBits::C3, 1 << 14),
    ];
    let undefined = case.instruction.rflags_undefined();
    BITS.iter().filter(|(theirs, _)| undefined & theirs != 0).fold(0, |all, (_, ours)| all | ours)
}

/// The number of the general register whose contents are undefined, after BSF and BSR of zero and after 16-bit BSWAP;
/// otherwise `None`.
fn register(case: &Case, native: &Outcome) -> Option<usize> {
    use Mnemonic::*;
    let open = match case.instruction.mnemonic() {
        Bsf | Bsr => native.registers.rflags & ZF != 0,
        Bswap => size(case) == 2,
        _ => false,
    };
    open.then(|| case.instruction.op_register(0).full_register().number())
}

/// Whether processors of different vendors decode these bytes as different instructions. The comparison skips such
/// a case. AMD's processors
///
/// - obey an operand-size prefix of near branches (SDM vol. 2 and APM vol. 3, Jcc, JMP, CALL, RET);
/// - let REP and REPNE choose whether LOOPE or LOOPNE is executed (APM vol. 3, 1.2.6, has no such use of the prefixes);
/// - decode F3 90 with REX.B as XCHG, while Intel's processors decode it as PAUSE (SDM vol. 2 and APM vol. 3,
///   PAUSE);
/// - read four bytes for MOVSXD to a 16-bit register, while Intel's processors read two (SDM vol. 2 and APM vol. 3,
///   MOVSXD);
/// - raise #UD for 0F 0D, PREFETCH, with a register operand (APM vol. 3, PREFETCHlevel; reserved NOP in the SDM's
///   opcode map).
pub fn decoded_otherwise(case: &Case) -> bool {
    use Mnemonic::*;
    let decode = |options| Decoder::with_ip(64, &case.bytes, case.registers.rip, options).decode();
    let (theirs, ours) = (decode(DecoderOptions::AMD), decode(DecoderOptions::NONE));
    let prefixes = &case.code()[..ours.len() - 1];
    let otherwise = match ours.mnemonic() {
        Loope | Loopne => prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3)),
        Pause => prefixes.last().is_some_and(|rex| rex & 0xf1 == 0x41),
        Reservednop => prefixes.windows(2).any(|opcode| opcode == [0x0f, 0x0d]),
        Movsxd => ours.code() == Code::Movsxd_r16_rm16,
        _ => false,
    };
    let near = !matches!(ours.flow_control(), FlowControl::Next | FlowControl::XbeginXabortXend);
    otherwise || theirs != ours || theirs.code() != ours.code() || near && prefixes.contains(&0x66)
}

/// A kind of cases whose whole result is open.
struct Whole {
    name: &'static str,
    #[allow(dead_code, reason = "for the reader")]
    manual: &'static str,
    applies: fn(&Case, &Pair<'_>) -> bool,
}

const WHOLE: &[Whole] = &[
    Whole {
        name: "open: 16-bit SHLD and SHRD by more than 16",
        manual: "SDM vol. 2, SHLD: \"If the count is greater than the operand size, the result is undefined\"",
        applies: |case, _| {
            let double = matches!(case.instruction.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd);
            double && size(case) == 2 && shift_count(case).is_some_and(|count| count > 16)
        },
    },
    Whole {
        name: "open: faults of instructions that access memory in an order of their own",
        manual: "SDM vol. 3, 6.9: the order of faults of one instruction's execution is model-specific",
        applies: |case, pair| {
            use Mnemonic::*;
            let several = matches!(
                case.instruction.mnemonic(),
                Maskmovdqu
                    | Maskmovq
                    | Fxsave
                    | Fxsave64
                    | Fxrstor
                    | Fxrstor64
                    | Fnsave
                    | Fnstenv
                    | Frstor
                    | Fldenv
                    | Enter
                    | Cmpsb
                    | Cmpsw
                    | Cmpsd
                    | Cmpsq
            );
            several && faulted(pair)
        },
    },
    Whole {
        name: "open: whether an x87 store to bad memory faults or raises its own unmasked exception",
        manual: "SDM vol. 3, 6.9: the order of faults of one instruction's execution is model-specific",
        applies: |case, pair| {
            use Mnemonic::*;
            const UNMASKED: u16 = 1 << 7;
            matches!(case.instruction.mnemonic(), Fst | Fstp | Fist | Fistp | Fisttp | Fbstp)
                && pair.native.fault.is_some()
                && pair.soft.fault.is_none()
                && pair.soft.registers.fx.status() & UNMASKED != 0
        },
    },
    Whole {
        name: "open: what an x87 store of ten bytes that faults has written in front of the bad page",
        manual: "SDM vol. 3, 6.5: a fault leaves the state before the instruction; of parts that were written nothing is said",
        applies: |case, pair| {
            matches!(case.instruction.mnemonic(), Mnemonic::Fstp | Mnemonic::Fbstp)
                && size(case) == 10
                && pair.native.fault.is_some()
                && pair.native.fault == pair.soft.fault
        },
    },
    Whole {
        name: "open: whether an MMX store that faults has left the x87 state",
        manual: "SDM vol. 1, 9.5.1: an MMX instruction clears TOS and the tags; of one that faults nothing is said",
        applies: |case, pair| {
            matches!(case.instruction.mnemonic(), Mnemonic::Movd | Mnemonic::Movq | Mnemonic::Movntq)
                && case.instruction.op_kind(0) == OpKind::Memory
                && case.instruction.op_register(1).is_mm()
                && pair.native.fault.is_some()
                && pair.soft.fault.is_some()
        },
    },
    Whole {
        name: "open: whether FSCALE by zero raises unmasked underflow",
        manual: "SDM vol. 2, FSCALE: ST(0) scaled by zero is ST(0); vol. 1, 8.5.5: an unmasked tiny result underflows",
        applies: |case, pair| {
            const UNDERFLOW: u16 = 1 << 4;
            let fx = &case.registers.fx;
            case.instruction.mnemonic() == Mnemonic::Fscale
                && fx.control() & UNDERFLOW == 0
                && fx.sign_exponent(0) & 0x7fff == 0
                && fx.sign_exponent(1) & 0x7fff == 0
                && fx.mantissa(1) == 0
                && pair.native.registers.fx.status() & UNDERFLOW != 0
        },
    },
    Whole {
        name: "open: whether FPREM and FPREM1 by infinity raise unmasked underflow",
        manual: "SDM vol. 2, FPREM: ST(0) divided by infinity is ST(0); vol. 1, 8.5.5: an unmasked tiny result underflows",
        applies: |case, pair| {
            const UNDERFLOW: u16 = 1 << 4;
            let fx = &case.registers.fx;
            matches!(case.instruction.mnemonic(), Mnemonic::Fprem | Mnemonic::Fprem1)
                && fx.control() & UNDERFLOW == 0
                && fx.sign_exponent(0) & 0x7fff == 0
                && fx.sign_exponent(1) & 0x7fff == 0x7fff
                && fx.mantissa(1) == 1 << 63
                && pair.native.registers.fx.status() & UNDERFLOW != 0
        },
    },
    Whole {
        name: "open: which NaN DPPS and DPPD leave",
        // Comparisons have shown that AMD's processors add the products in another order.
        manual: "SDM vol. 1, table 4-7: the first operand's NaN; which operand is the first in the sum is open",
        applies: |case, pair| only_nans_differ(case, pair),
    },
    Whole {
        name: "open: bit 17 of MXCSR",
        manual: "APM vol. 1, 4.2.2: MM, misaligned exception mask; reserved in the SDM, so that loading it faults",
        applies: |case, pair| {
            matches!(case.instruction.mnemonic(), Mnemonic::Ldmxcsr)
                && pair.soft.fault.is_some_and(|f| f.vector == 13)
        },
    },
    Whole {
        name: "open: whether a branch to a non-canonical address or its target faults",
        manual: "SDM vol. 2, JMP: #GP at the branch; processors of others fault at the fetch",
        applies: |case, pair| {
            let branch = !matches!(case.instruction.flow_control(), FlowControl::Next);
            let general = |outcome: &Outcome| outcome.fault.is_some_and(|f| f.vector == 13);
            branch && general(pair.native) && general(pair.soft)
        },
    },
    Whole {
        name: "open: steps of FPREM and FPREM1 with exponents far apart",
        manual: "SDM vol. 2, FPREM: \"N is an implementation-dependent number between 32 and 63\"",
        applies: |case, _| {
            let exponent = |n| case.registers.fx.sign_exponent(n) & 0x7fff;
            let remainder = matches!(case.instruction.mnemonic(), Mnemonic::Fprem | Mnemonic::Fprem1);
            remainder && exponent(0).saturating_sub(exponent(1)) >= 63
        },
    },
    Whole {
        name: "open: arguments outside the domain of transcendental functions",
        manual: "SDM vol. 2, F2XM1, FYL2XP1: the result is undefined; FSIN: pi of 66 bits, in the APM exact",
        applies: |case, _| outside_domain(case),
    },
    Whole {
        name: "open: FBLD of digits above 9",
        manual: "SDM vol. 2, FBLD: \"attempting to load an invalid encoding produces an undefined result\"",
        applies: |case, _| case.instruction.mnemonic() == Mnemonic::Fbld && !is_decimal(case),
    },
];

fn faulted(pair: &Pair<'_>) -> bool {
    pair.native.fault.is_some() || pair.soft.fault.is_some()
}

/// Whether the instruction is DPPS or DPPD, and the two results differ only in elements that are NaNs in both
/// results.
fn only_nans_differ(case: &Case, pair: &Pair<'_>) -> bool {
    let lane_bits = match case.instruction.mnemonic() {
        Mnemonic::Dpps => 32,
        Mnemonic::Dppd => 64,
        _ => return false,
    };
    let is_nan = |lane: u128| match lane_bits {
        32 => f32::from_bits(lane as u32).is_nan(),
        _ => f64::from_bits(lane as u64).is_nan(),
    };
    let result = case.instruction.op_register(0).number();
    let [native, soft] = [pair.native, pair.soft].map(|outcome| outcome.registers.fx.xmm(result));
    let lanes =
        |of: u128| (0..128).step_by(lane_bits).map(move |at| of >> at & (u128::MAX >> (128 - lane_bits)));
    native != soft && lanes(native).zip(lanes(soft)).all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

fn outside_domain(case: &Case) -> bool {
    use Mnemonic::*;
    const HALF: u16 = 0x3ffe;
    let fx = &case.registers.fx;
    let exponent = fx.sign_exponent(0) & 0x7fff;
    match case.instruction.mnemonic() {
        F2xm1 => exponent > 0x3fff || exponent == 0x3fff && fx.mantissa(0) != 1 << 63,
        // The operand's magnitude must be at most 1 - sqrt(2) / 2, which is a little above a quarter.
        Fyl2xp1 => exponent >= HALF - 1,
        Fsin | Fcos | Fsincos | Fptan => exponent >= HALF,
        _ => false,
    }
}

fn is_decimal(case: &Case) -> bool {
    let digits = case.writes.first().and_then(|write| write.bytes[..write.length].get(..9));
    digits.is_some_and(|bytes| bytes.iter().all(|byte| byte >> 4 < 10 && byte & 15 < 10))
}

/// Returns the reason why the case's whole result is open. Returns `None` if the whole result is not open.
pub fn whole(case: &Case, pair: &Pair<'_>) -> Option<&'static str> {
    WHOLE.iter().find(|rule| (rule.applies)(case, pair)).map(|rule| rule.name)
}

/// Where the manuals leave results open, copies the processor's results to `soft` and `soft_data`.
pub fn apply(case: &Case, pair: &Pair<'_>, soft: &mut Outcome, soft_data: &mut [u8]) {
    let native = &pair.native.registers;
    let take = |to: &mut u64, from: u64, bits: u64| *to = *to & !bits | from & bits;
    take(&mut soft.registers.rflags, native.rflags, flags(case));
    if let Some(open) = register(case, pair.native) {
        soft.registers.gpr[open] = native.gpr[open];
    }
    for &open in upper_halves(case, pair) {
        take(&mut soft.registers.gpr[open], native.gpr[open], !0 << 32);
    }
    apply_x87(case, &native.fx, &mut soft.registers.fx);
    for open in data(case) {
        let range = open.start.min(soft_data.len())..open.end.min(soft_data.len());
        soft_data[range.clone()].copy_from_slice(&pair.native_data[range]);
    }
}

/// Returns the registers whose upper halves are open after a repeated string instruction with 32-bit addresses. The
/// instruction moves no data if ECX is 0 or its first iteration faults. The manuals do not say whether the
/// instruction then writes ECX, ESI and EDI, which clears the upper halves.
fn upper_halves(case: &Case, pair: &Pair<'_>) -> &'static [usize] {
    const RCX_RSI_RDI: &[usize] = &[1, 6, 7];
    let instruction = &case.instruction;
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let short = case.code()[..instruction.len() - 1].contains(&0x67);
    let begun = pair.native.registers.gpr[1] as u32 != case.registers.gpr[1] as u32;
    if instruction.is_string_instruction() && repeated && short && !begun { RCX_RSI_RDI } else { &[] }
}

fn apply_x87(case: &Case, native: &FxImage, soft: &mut FxImage) {
    use Mnemonic::*;
    // Bits 6, 7 and 13 to 15 are reserved.
    const CONTROL: u16 = 0x1f3f;
    let open = conditions(case);
    soft.set_status(soft.status() & !open | native.status() & open);
    soft.set_control(soft.control() & CONTROL | native.control() & !CONTROL);
    // APM vol. 5, FXSAVE: AMD's processors save opcode and pointers only while an exception is pending.
    soft.set_opcode(native.opcode());
    soft.set_instruction_pointer(native.instruction_pointer());
    soft.set_data_pointer(native.data_pointer());
    if matches!(case.instruction.mnemonic(), F2xm1 | Fyl2x | Fyl2xp1 | Fsin | Fcos | Fsincos | Fptan | Fpatan)
    {
        // Both processors' results are within one unit in the last place of the exact result.
        take_extended(native, soft, 2);
    }
}

/// The ranges of the writable data whose bytes are open in an x87 image in memory: pointers, opcode and reserved bytes.
fn data(case: &Case) -> Vec<std::ops::Range<usize>> {
    use Mnemonic::*;
    let Some(write) = case.writes.first() else { return Vec::new() };
    let ranges = match (case.instruction.mnemonic(), size(case)) {
        (Fxsave | Fxsave64, _) => {
            let slots = (0..8).map(|n| 32 + 16 * n + 10..48 + 16 * n);
            [5..24, 28..32, 416..512].into_iter().chain(slots).collect()
        }
        // SDM vol. 1, figures 8-9 and 8-11: the 32-bit and the 16-bit environment.
        (Fnstenv, 28) | (Fnsave, 108) => Vec::from([2..4, 6..8, 10..28]),
        (Fnstenv | Fnsave, _) => Vec::from([6..10, 10..14]),
        _ => Vec::new(),
    };
    debug_assert!((DATA..DATA + DATA_BYTES).contains(&write.address));
    let start = (write.address - DATA) as usize;
    ranges.into_iter().map(|range| start + range.start..start + range.end).collect()
}

/// Inverts all open parts of an outcome, except results for which a tolerance exists. Then the outcome differs from
/// the software CPU's outcome as much as the manuals permit, as on a processor of another vendor.
pub fn disturb(case: &Case, outcome: &mut Outcome, data_bytes: &mut [u8]) {
    outcome.registers.rflags ^= flags(case);
    let fx = &mut outcome.registers.fx;
    fx.set_status(fx.status() ^ conditions(case));
    fx.set_opcode(fx.opcode() ^ 0x7ff);
    fx.set_instruction_pointer(!fx.instruction_pointer());
    fx.set_data_pointer(!fx.data_pointer());
    if outcome.fault.is_some() {
        return;
    }
    if let Some(open) = register(case, outcome) {
        outcome.registers.gpr[open] ^= u64::MAX;
    }
    for range in data(case) {
        let end = range.end.min(data_bytes.len());
        data_bytes[range.start.min(end)..end].iter_mut().for_each(|byte| *byte ^= 0xff);
    }
}
