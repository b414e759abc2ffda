//! Checks results and flags of integer instructions against separate formulas, and undefined flags against the CPU's
//! definitions.

use cpu::Stop;

use crate::harness::*;

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
const ALL: u64 = CF | PF | AF | ZF | SF | OF;

const INPUTS: u64 = 0x10_0000;
const OUTPUTS: u64 = 0x40_0000;

/// RAX, RBX and RCX before an instruction.
type Input = [u64; 3];

/// RAX and the arithmetic flags after an instruction, and RDX, which was zero before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Output {
    rax: u64,
    rdx: u64,
    flags: u64,
}

/// Executes an instruction on RAX, RBX, RCX and RDX, with the same flags for each input.
fn execute(instruction: &[u8], flags: u64, inputs: &[Input]) -> Vec<Output> {
    let mut m = Machine::long();
    for (n, value) in inputs.iter().flatten().enumerate() {
        m.put64(INPUTS + 8 * n as u64, *value);
    }
    let flag_bytes = ((flags | 2) as u32).to_le_bytes();
    let code = [
        // Loads the inputs.
        &[0x48, 0x8b, 0x06, 0x48, 0x8b, 0x5e, 0x08, 0x48, 0x8b, 0x4e, 0x10, 0x31, 0xd2][..],
        // PUSH imm32, POPFQ; the instruction; PUSHFQ, POP [RDI + 16].
        &[0x68],
        &flag_bytes,
        &[0x9d],
        instruction,
        &[0x9c, 0x8f, 0x47, 0x10],
        // Stores RAX and RDX, advances RSI and RDI, and counts R15 down.
        &[
            0x48, 0x89, 0x07, 0x48, 0x89, 0x57, 0x08, 0x48, 0x83, 0xc6, 24, 0x48, 0x83, 0xc7, 24, 0x49, 0xff,
            0xcf,
        ],
    ]
    .concat();
    let back = -(code.len() as i32 + 6);
    m.put(CODE, &[&code[..], &[0x0f, 0x85], &back.to_le_bytes(), &[0xf4]].concat());
    m.state.gpr[6] = INPUTS;
    m.state.gpr[7] = OUTPUTS;
    m.state.gpr[15] = inputs.len() as u64;
    assert_eq!(m.run_steps(40 * inputs.len() as u64 + 10), Stop::Halted, "{instruction:02x?}");
    assert_eq!(m.state.gpr[15], 0, "{instruction:02x?} raised an exception");
    let word = |n: usize| m.ram().load_u64(OUTPUTS + 8 * n as u64);
    let output = |n| Output { rax: word(3 * n), rdx: word(3 * n + 1), flags: word(3 * n + 2) & ALL };
    (0..inputs.len()).map(output).collect()
}

/// An instruction's encodings for operands of 8, 16, 32 and 64 bits. `opcode` is the opcode of the 32-bit form; the
/// 8-bit form's opcode is one less. `rest` is the bytes after the opcode.
fn widths(opcode: &[u8], rest: &[u8]) -> [(u32, Vec<u8>); 4] {
    let (last, before) = opcode.split_last().expect("there is one");
    let byte = [before, &[last - 1], rest].concat();
    let other = |prefix: &[u8]| [prefix, opcode, rest].concat();
    [(8, byte), (16, other(&[0x66])), (32, other(&[])), (64, other(&[0x48]))]
}

const VALUES: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x0f,
    0x10,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0x7fff_ffff,
    0x8000_0001,
    0x7fff_ffff_ffff_fffe,
    0xa5a5_c3c3_8001_ff80,
];

fn pairs() -> Vec<Input> {
    VALUES.into_iter().flat_map(|a| VALUES.into_iter().map(move |b| [a, b, 0])).collect()
}

fn bytes() -> Vec<Input> {
    (0..256).flat_map(|a| (0..256).map(move |b| [a, b, 0])).collect()
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

fn sign(bits: u32, value: u64) -> bool {
    value >> (bits - 1) & 1 != 0
}

fn signed(bits: u32, value: u64) -> i128 {
    i128::from(((value << (64 - bits)) as i64) >> (64 - bits))
}

/// The register after a write of the result. A 32-bit write clears the upper half.
fn merged(bits: u32, old: u64, result: u64) -> u64 {
    if bits == 32 { result & mask(32) } else { old & !mask(bits) | result & mask(bits) }
}

fn flag(bit: u64, set: bool) -> u64 {
    if set { bit } else { 0 }
}

/// ZF, SF and PF of a result.
fn of_result(bits: u32, result: u64) -> u64 {
    let result = result & mask(bits);
    let even = (result as u8).count_ones().is_multiple_of(2);
    flag(ZF, result == 0) | flag(SF, sign(bits, result)) | flag(PF, even)
}

/// `a + b + carry`, or `a - b - carry`.
fn sum(bits: u32, subtract: bool, a: u64, b: u64, carry: u64) -> (u64, u64) {
    let (a, b) = (a & mask(bits), b & mask(bits));
    let combine =
        |a: i128, b: i128| if subtract { a - b - i128::from(carry) } else { a + b + i128::from(carry) };
    let exact = combine(a.into(), b.into());
    let result = exact as u64 & mask(bits);
    let fits = combine(signed(bits, a), signed(bits, b)) == signed(bits, result);
    let low = combine((a & 15).into(), (b & 15).into());
    let flags = of_result(bits, result)
        | flag(CF, exact != i128::from(result))
        | flag(OF, !fits)
        | flag(AF, !(0..16).contains(&low));
    (result, flags)
}

#[test]
fn additions_and_subtractions() {
    let instructions: [(&str, u8, bool, bool, bool); 5] = [
        ("add", 0x01, false, false, true),
        ("adc", 0x11, false, true, true),
        ("sbb", 0x19, true, true, true),
        ("sub", 0x29, true, false, true),
        ("cmp", 0x39, true, false, false),
    ];
    for (name, opcode, subtract, with_carry, keeps) in instructions {
        for (bits, code) in widths(&[opcode], &[0xd8]) {
            let inputs = if bits == 8 { bytes() } else { pairs() };
            for before in [0, ALL] {
                let carry = if with_carry { before & CF } else { 0 };
                for (input, output) in inputs.iter().zip(execute(&code, before, &inputs)) {
                    let (result, flags) = sum(bits, subtract, input[0], input[1], carry);
                    let rax = if keeps { merged(bits, input[0], result) } else { input[0] };
                    assert_eq!(output, Output { rax, rdx: 0, flags }, "{name} {bits} {input:x?} {before:#x}");
                }
            }
        }
    }
}

#[test]
fn increments_decrements_and_negations() {
    for (name, group, digit) in
        [("inc", 0xff, 0xc0), ("dec", 0xff, 0xc8), ("neg", 0xf7, 0xd8), ("not", 0xf7, 0xd0)]
    {
        for (bits, code) in widths(&[group], &[digit]) {
            let inputs = pairs();
            for before in [0, ALL] {
                for (input, output) in inputs.iter().zip(execute(&code, before, &inputs)) {
                    let kept = |(result, flags): (u64, u64)| (result, flags & !CF | before & CF);
                    let (result, flags) = match name {
                        "inc" => kept(sum(bits, false, input[0], 1, 0)),
                        "dec" => kept(sum(bits, true, input[0], 1, 0)),
                        "neg" => sum(bits, true, 0, input[0], 0),
                        _ => (!input[0], before),
                    };
                    let rax = merged(bits, input[0], result);
                    assert_eq!(output, Output { rax, rdx: 0, flags }, "{name} {bits} {input:x?} {before:#x}");
                }
            }
        }
    }
}

#[test]
fn logical_operations_clear_cf_of_and_af() {
    type Operation = fn(u64, u64) -> u64;
    let instructions: [(&str, u8, bool, Operation); 4] = [
        ("or", 0x09, true, |a, b| a | b),
        ("and", 0x21, true, |a, b| a & b),
        ("xor", 0x31, true, |a, b| a ^ b),
        ("test", 0x85, false, |a, b| a & b),
    ];
    for (name, opcode, keeps, operation) in instructions {
        for (bits, code) in widths(&[opcode], &[0xd8]) {
            let inputs = pairs();
            for (input, output) in inputs.iter().zip(execute(&code, ALL, &inputs)) {
                let result = operation(input[0], input[1]);
                let rax = if keeps { merged(bits, input[0], result) } else { input[0] };
                let flags = of_result(bits, result);
                assert_eq!(output, Output { rax, rdx: 0, flags }, "{name} {bits} {input:x?}");
            }
        }
    }
}

/// The undefined flags of a product: SF and PF from the low half, ZF and AF clear.
fn product_flags(bits: u32, low: u64, significant: bool) -> u64 {
    of_result(bits, low) & (SF | PF) | flag(CF | OF, significant)
}

#[test]
fn multiplications() {
    for (name, digit, by_sign) in [("mul", 0xe3, false), ("imul", 0xeb, true)] {
        for (bits, code) in widths(&[0xf7], &[digit]) {
            let inputs = pairs();
            for (input, output) in inputs.iter().zip(execute(&code, ALL, &inputs)) {
                let (a, b) = (input[0] & mask(bits), input[1] & mask(bits));
                let product = if by_sign {
                    signed(bits, a) * signed(bits, b)
                } else {
                    (u128::from(a) * u128::from(b)) as i128
                };
                let (low, high) = (product as u64 & mask(bits), (product >> bits) as u64 & mask(bits));
                let whole = if by_sign { signed(bits, low) } else { i128::from(low) };
                let flags = product_flags(bits, low, whole != product);
                let (rax, rdx) = if bits == 8 {
                    (merged(16, input[0], high << 8 | low), 0)
                } else {
                    (merged(bits, input[0], low), merged(bits, 0, high))
                };
                assert_eq!(output, Output { rax, rdx, flags }, "{name} {bits} {input:x?}");
            }
        }
    }
}

#[test]
fn multiplications_of_two_operands() {
    for (bits, prefix) in [(16, &[0x66][..]), (32, &[]), (64, &[0x48])] {
        // IMUL RAX, RBX; IMUL RAX, RBX, -7.
        for (code, constant) in [(&[0x0f, 0xaf, 0xc3][..], None), (&[0x6b, 0xc3, 0xf9], Some(-7_i128))] {
            let code = [prefix, code].concat();
            let inputs = pairs();
            for (input, output) in inputs.iter().zip(execute(&code, ALL, &inputs)) {
                let product = signed(bits, input[1]) * constant.unwrap_or(signed(bits, input[0]));
                let low = product as u64 & mask(bits);
                let flags = product_flags(bits, low, signed(bits, low) != product);
                let rax = merged(bits, input[0], low);
                assert_eq!(output, Output { rax, rdx: 0, flags }, "{bits} {constant:?} {input:x?}");
            }
        }
    }
}

/// Divisions change no flags.
#[test]
fn divisions() {
    for (name, digit, by_sign) in [("div", 0xf3, false), ("idiv", 0xfb, true)] {
        for (bits, code) in widths(&[0xf7], &[digit]) {
            // RDX is zero, so the dividend is not negative. The exception is 8 bits, where AH is the dividend's upper
            // half.
            let dividend = |input: &Input| {
                let a = input[0] & mask(if bits == 8 { 16 } else { bits });
                if by_sign && bits == 8 { signed(16, a) } else { i128::from(a) }
            };
            let divisor = |input: &Input| {
                let b = input[1] & mask(bits);
                if by_sign { signed(bits, b) } else { i128::from(b) }
            };
            let fits = |quotient: i128| {
                let low = quotient as u64 & mask(bits);
                quotient == if by_sign { signed(bits, low) } else { i128::from(low) }
            };
            let all = if bits == 8 { bytes() } else { pairs() };
            let possible = |input: &Input| divisor(input) != 0 && fits(dividend(input) / divisor(input));
            let inputs = all.into_iter().filter(possible).collect::<Vec<_>>();
            for before in [0, ALL] {
                for (input, output) in inputs.iter().zip(execute(&code, before, &inputs)) {
                    let (a, b) = (dividend(input), divisor(input));
                    let (quotient, remainder) = ((a / b) as u64 & mask(bits), (a % b) as u64 & mask(bits));
                    let (rax, rdx) = if bits == 8 {
                        (merged(16, input[0], remainder << 8 | quotient), 0)
                    } else {
                        (merged(bits, input[0], quotient), merged(bits, 0, remainder))
                    };
                    assert_eq!(output, Output { rax, rdx, flags: before }, "{name} {bits} {input:x?}");
                }
            }
        }
    }
}

/// A shift or rotate by one bit: the new value and CF.
fn one_step(name: &str, bits: u32, value: u64, carry: bool) -> (u64, bool) {
    let (top, bottom) = (sign(bits, value), value & 1 != 0);
    let high = |set: bool| flag(1 << (bits - 1), set);
    match name {
        "rol" => (value << 1 | u64::from(top), top),
        "ror" => (value >> 1 | high(bottom), bottom),
        "rcl" => (value << 1 | u64::from(carry), top),
        "rcr" => (value >> 1 | high(carry), bottom),
        "shl" => (value << 1, top),
        "shr" => (value >> 1, bottom),
        _ => (value >> 1 | high(top), bottom),
    }
}

/// Tests every count in CL. OF has the value of a shift by one bit.
#[test]
fn shifts_and_rotates() {
    let names = ["rol", "ror", "rcl", "rcr", "shl", "shr", "sar"];
    for (name, digit) in names.into_iter().zip([0xc0, 0xc8, 0xd0, 0xd8, 0xe0, 0xe8, 0xf8]) {
        for (bits, code) in widths(&[0xd3], &[digit]) {
            let counts = (0..70).map(|count| {
                [VALUES, VALUES.map(|value| !value)].concat().into_iter().map(move |v| [v, 0, count])
            });
            let inputs = counts.flatten().collect::<Vec<Input>>();
            for before in [0, ALL] {
                for (input, output) in inputs.iter().zip(execute(&code, before, &inputs)) {
                    let (rax, flags) = shifted(name, bits, input, before);
                    assert_eq!(output, Output { rax, rdx: 0, flags }, "{name} {bits} {input:x?} {before:#x}");
                }
            }
        }
    }
}

fn shifted(name: &str, bits: u32, input: &Input, before: u64) -> (u64, u64) {
    let count = input[2] & if bits == 64 { 63 } else { 31 };
    let original = input[0] & mask(bits);
    if count == 0 {
        return (merged(bits, input[0], original), before);
    }
    let (mut value, mut carry) = (original, before & CF != 0);
    for _ in 0..count {
        let (next, out) = one_step(name, bits, value, carry);
        (value, carry) = (next & mask(bits), out);
    }
    let (was_top, was_next) = (sign(bits, original), sign(bits, original << 1));
    let flags = match name {
        "rol" => before & !(CF | OF) | flag(CF, carry) | flag(OF, was_top != was_next),
        "ror" => before & !(CF | OF) | flag(CF, carry) | flag(OF, was_top != (original & 1 != 0)),
        // A full turn changes nothing.
        "rcl" | "rcr" if count.is_multiple_of(u64::from(bits) + 1) => before,
        "rcl" => before & !(CF | OF) | flag(CF, carry) | flag(OF, was_top != was_next),
        "rcr" => before & !(CF | OF) | flag(CF, carry) | flag(OF, was_top != (before & CF != 0)),
        "shl" => of_result(bits, value) | flag(CF, carry) | flag(OF, was_top != was_next),
        "shr" => of_result(bits, value) | flag(CF, carry) | flag(OF, was_top),
        _ => of_result(bits, value) | flag(CF, carry),
    };
    (merged(bits, input[0], value), flags)
}

/// SHLD and SHRD of RAX by RBX. OF has the value of a shift by one; AF is clear. 16-bit counts above 16 shift
/// in the operand again.
#[test]
fn double_shifts() {
    for (name, opcode, left) in [("shld", 0xa5, true), ("shrd", 0xad, false)] {
        for (bits, prefix) in [(16, &[0x66][..]), (32, &[]), (64, &[0x48])] {
            let code = [prefix, &[0x0f, opcode, 0xd8]].concat();
            let inputs =
                (0..70).flat_map(|count| pairs().into_iter().step_by(3).map(move |[a, b, _]| [a, b, count]));
            let inputs = inputs.collect::<Vec<Input>>();
            for (input, output) in inputs.iter().zip(execute(&code, ALL, &inputs)) {
                let count = input[2] & if bits == 64 { 63 } else { 31 };
                let (rax, flags) = if count == 0 {
                    (merged(bits, input[0], input[0]), ALL)
                } else {
                    let (value, flags) = double_shifted(bits, left, input, count);
                    (merged(bits, input[0], value), flags)
                };
                assert_eq!(output, Output { rax, rdx: 0, flags }, "{name} {bits} {input:x?}");
            }
        }
    }
}

fn double_shifted(bits: u32, left: bool, input: &Input, count: u64) -> (u64, u64) {
    let (original, filler) = (input[0] & mask(bits), input[1] & mask(bits));
    let filler_bit = |n: u64| {
        let (from, n) = if n < u64::from(bits) { (filler, n) } else { (original, n - u64::from(bits)) };
        from >> (if left { u64::from(bits) - 1 - n } else { n }) & 1
    };
    let (mut value, mut carry) = (original, false);
    for n in 0..count {
        carry = if left { sign(bits, value) } else { value & 1 != 0 };
        let shifted =
            if left { value << 1 | filler_bit(n) } else { value >> 1 | filler_bit(n) << (bits - 1) };
        value = shifted & mask(bits);
    }
    let by_one = if left { sign(bits, original << 1) } else { filler & 1 != 0 };
    let flags = of_result(bits, value) | flag(CF, carry) | flag(OF, sign(bits, original) != by_one);
    (value, flags)
}

/// BSF and BSR. PF follows the result, and all other flags except ZF are clear. If no bit is set, the
/// destination does not change.
#[test]
fn bit_scans() {
    for (name, opcode) in [("bsf", 0xbc), ("bsr", 0xbd)] {
        for (bits, prefix) in [(16, &[0x66][..]), (32, &[]), (64, &[0x48])] {
            let code = [prefix, &[0x0f, opcode, 0xc3]].concat();
            let single = (0..64).map(|bit| [0x1234_5678_9abc_def0, 1 << bit, 0]);
            let inputs = pairs().into_iter().chain(single).collect::<Vec<_>>();
            for (input, output) in inputs.iter().zip(execute(&code, ALL & !ZF, &inputs)) {
                let source = input[1] & mask(bits);
                let expected = if source == 0 {
                    (input[0], ZF | PF)
                } else {
                    let bit = if name == "bsf" { source.trailing_zeros() } else { source.ilog2() };
                    (merged(bits, input[0], bit.into()), of_result(64, bit.into()) & PF)
                };
                assert_eq!((output.rax, output.flags), expected, "{name} {bits} {input:x?}");
            }
        }
    }
}

/// LZCNT and TZCNT: CF if no bit is set, ZF for a count of zero, the others clear.
#[test]
fn bit_counts() {
    for (name, opcode) in [("tzcnt", 0xbc), ("lzcnt", 0xbd), ("popcnt", 0xb8)] {
        for (bits, prefix) in [(16, &[0x66, 0xf3][..]), (32, &[0xf3]), (64, &[0xf3, 0x48])] {
            let code = [prefix, &[0x0f, opcode, 0xc3]].concat();
            let single = (0..64).map(|bit| [u64::MAX, 1 << bit, 0]);
            let inputs = pairs().into_iter().chain(single).collect::<Vec<_>>();
            for (input, output) in inputs.iter().zip(execute(&code, ALL, &inputs)) {
                let source = input[1] & mask(bits);
                let (count, flags) = match name {
                    "tzcnt" => (source.trailing_zeros().min(bits), flag(CF, source == 0)),
                    "lzcnt" => (source.leading_zeros() - (64 - bits), flag(CF, source == 0)),
                    _ => (source.count_ones(), 0),
                };
                let expected = (merged(bits, input[0], count.into()), flags | flag(ZF, count == 0));
                assert_eq!((output.rax, output.flags), expected, "{name} {bits} {input:x?}");
            }
        }
    }
}

/// BT, BTS, BTR and BTC with a register as bit number: only CF changes.
#[test]
fn bit_tests() {
    for (name, opcode) in [("bt", 0xa3), ("bts", 0xab), ("btr", 0xb3), ("btc", 0xbb)] {
        for (bits, prefix) in [(16, &[0x66][..]), (32, &[]), (64, &[0x48])] {
            let code = [prefix, &[0x0f, opcode, 0xd8]].concat();
            let inputs = VALUES.into_iter().flat_map(|value| (0..130).map(move |bit| [value, bit, 0]));
            let inputs = inputs.collect::<Vec<Input>>();
            for before in [0, ALL] {
                for (input, output) in inputs.iter().zip(execute(&code, before, &inputs)) {
                    let bit = 1 << (input[1] % u64::from(bits));
                    let result = match name {
                        "bt" => input[0],
                        "bts" => merged(bits, input[0], input[0] | bit),
                        "btr" => merged(bits, input[0], input[0] & !bit),
                        _ => merged(bits, input[0], input[0] ^ bit),
                    };
                    let flags = before & !CF | flag(CF, input[0] & bit != 0);
                    assert_eq!((output.rax, output.flags), (result, flags), "{name} {bits} {input:x?}");
                }
            }
        }
    }
}

#[test]
fn a_product_whose_only_bit_is_the_33rd_is_not_zero() {
    // MUL RBX and IMUL RAX, RBX clear ZF, which the manual leaves undefined.
    for multiply in [&[0x48, 0xf7, 0xe3][..], &[0x48, 0x0f, 0xaf, 0xc3]] {
        let found = execute(multiply, ALL, &[[1 << 16, 1 << 16, 0]]);
        assert_eq!((found[0].rax, found[0].flags & (ZF | CF | OF)), (1 << 32, 0), "{multiply:x?}");
    }
}
