//! Every encoding from D8 to DF with random states, compared with the processor.
//!
//! `X87_CASES` sets the number of states for each encoding, and `X87_SEED` the seed. `X87_ONLY` limits the test to
//! instructions whose name contains it.

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};

use crate::guest::Guest;
use crate::host::Host;
use crate::machine::Machine;
use seeded::{Operands, setting};

/// C1 in the status word.
const C1: u16 = 1 << 9;
/// Underflow in the status word, and its mask in the control word.
const UE: u16 = 1 << 4;
/// A base register in ModR/M.
const RCX: u8 = 1;

/// All encodings that exist, with register operands and with a memory operand at RCX.
fn encodings() -> Vec<(Vec<u8>, Code)> {
    let memory = (0..8).map(|digit| digit << 3 | RCX);
    let modrms: Vec<u8> = (0xc0..=0xff).chain(memory).collect();
    let mut encodings = Vec::new();
    for escape in 0xd8..=0xdf {
        for &modrm in &modrms {
            for prefixes in [&[][..], &[0x66]] {
                let bytes = [prefixes, &[escape, modrm]].concat();
                let code = Decoder::new(64, &bytes, DecoderOptions::NONE).decode().code();
                if code != Code::INVALID && (prefixes.is_empty() || depends_on_operand_size(code)) {
                    encodings.push((bytes, code));
                }
            }
        }
    }
    encodings
}

fn depends_on_operand_size(code: Code) -> bool {
    use Mnemonic::*;
    matches!(code.mnemonic(), Fldenv | Fnstenv | Fnsave | Frstor)
}

/// Whether the instruction ignores pending exceptions.
fn does_not_wait(code: Code) -> bool {
    use Mnemonic::*;
    matches!(code.mnemonic(), Fninit | Fnclex | Fnstcw | Fnstsw | Fnstenv | Fnsave)
}

/// Whether processors may round the result differently.
fn is_transcendental(code: Code) -> bool {
    use Mnemonic::*;
    matches!(code.mnemonic(), F2xm1 | Fyl2x | Fyl2xp1 | Fsin | Fcos | Fsincos | Fptan | Fpatan)
}

#[test]
fn every_encoding_does_what_the_processor_does() {
    let vendor = std::arch::x86_64::__cpuid(0);
    if [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() != b"GenuineIntel" {
        return skip::test("not an Intel processor, which the unit follows where the manual leaves room");
    }
    let (cases, seed) = (setting("X87_CASES", 200), setting("X87_SEED", 1));
    let only = std::env::var("X87_ONLY").unwrap_or_default();
    println!("X87_CASES={cases} X87_SEED={seed}");
    let mut guest = Guest::new();
    let mut failures = 0;
    for (bytes, code) in encodings() {
        if !format!("{code:?}").contains(&only) {
            continue;
        }
        let wrong = compare(&mut guest, &bytes, code, cases, seed);
        if wrong != 0 {
            println!("{code:?} {bytes:02x?}: {wrong} of {cases} differ");
            failures += 1;
        }
    }
    assert_eq!(failures, 0, "encodings that differ");
    if !keeps_pointers_alike() {
        skip::test("x87 pointers: the processor changes FOP and FDP at other times");
    }
}

fn compare(guest: &mut Guest, bytes: &[u8], code: Code, cases: u64, seed: u64) -> u64 {
    let mut host = Host::new(bytes);
    let mut random = Operands::new(seed);
    let mut wrong = 0;
    for _ in 0..cases {
        let before = Machine::random(&mut random, does_not_wait(code));
        // SAFETY: an x87 instruction with its memory operand at RCX. If the instruction waits, no
        // exception is pending.
        let theirs = unsafe { host.run(&before) };
        let (ours, vector) = guest.run_machine(&before, bytes);
        if vector.is_some() || !same(code, &ours, &theirs) {
            wrong += 1;
            if wrong <= 2 {
                println!(
                    "{code:?} {bytes:02x?} vector {vector:?}\nbefore {before:?}\nours   {ours:?}\ntheirs {theirs:?}\n"
                );
            }
        }
    }
    wrong
}

/// Whether the processor updates FOP and FDP when our CPU does (SDM vol. 1, 8.1.8). If not, pointers are not compared.
fn keeps_pointers_alike() -> bool {
    let basic = std::arch::x86_64::__cpuid(0);
    let deprecations = 1 << 6 | 1 << 13;
    basic.ebx.to_le_bytes() == *b"Genu"
        && basic.eax >= 7
        && std::arch::x86_64::__cpuid_count(7, 0).ebx & deprecations == deprecations
}

fn same(code: Code, ours: &Machine, theirs: &Machine) -> bool {
    let (mut ours, mut theirs) = (ours.clone(), theirs.clone());
    if is_transcendental(code) {
        let borderline = theirs.registers[..2].iter().any(|&register| is_borderline(register));
        if borderline && theirs.control & UE == 0 {
            // One of the processor and our CPU may have an unmasked underflow, and the other may have none. The two
            // results then look entirely different.
            return true;
        }
        let uncertain = C1 | if borderline { UE } else { 0 };
        ours.status &= !uncertain;
        theirs.status &= !uncertain;
        for (our, their) in ours.registers.iter_mut().zip(&theirs.registers) {
            if (our.1 ^ their.1) & 0x8000 == 0 && ordinal(*our).abs_diff(ordinal(*their)) <= 1 {
                *our = *their;
            }
        }
    }
    if !keeps_pointers_alike() {
        for machine in [&mut ours, &mut theirs] {
            machine.forget_pointers(code);
        }
    }
    ours == theirs
}

/// Whether the last place decides if the value is tiny.
fn is_borderline(register: (u64, u16)) -> bool {
    ordinal(register).abs_diff(1 << 63) <= 1
}

/// The rank of the magnitude among all magnitudes.
fn ordinal((mantissa, sign_exponent): (u64, u16)) -> u128 {
    let exponent = u128::from(sign_exponent & 0x7fff);
    // The integer bit of a normal number counts as the lowest bit of its exponent.
    (exponent.saturating_sub(1) << 63) + u128::from(mantissa)
}
