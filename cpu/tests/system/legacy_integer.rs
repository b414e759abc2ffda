//! Integer instructions of 32-bit code that 64-bit code does not have, or has only in other widths (SDM vol. 2).

use cpu::Stop;

use crate::harness::*;

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const HLT: u8 = 0xf4;
const CS: usize = 1;
const DS: usize = 3;
/// Prefixes for operand size 16 and address size 16.
const O16: u8 = 0x66;
const A16: u8 = 0x67;

/// A machine with these bytes of 32-bit code, followed by HLT.
fn machine(code: &[u8]) -> Machine {
    let mut m = Machine::protected();
    m.state.rip = CODE;
    m.put(CODE, &[code, &[HLT]].concat());
    m
}

/// AX and the flags in `flags` after one instruction.
fn adjusted(code: &[u8], ax: u64, flags_before: u64, flags: u64) -> (u64, u64) {
    let mut m = machine(code);
    m.state.gpr[0] = 0x5678_0000 | ax;
    m.state.rflags = 2 | flags_before;
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.rip, m.state.gpr[0] >> 16), (CODE + code.len() as u64 + 1, 0x5678));
    (m.state.gpr[0] & 0xffff, m.state.rflags & flags)
}

#[test]
fn aaa_and_aas_make_unpacked_digits() {
    const AAA: u8 = 0x37;
    const AAS: u8 = 0x3f;
    let cases = [
        (AAA, 0x0305, 0, 0x0305, false),
        (AAA, 0x0309, 0, 0x0309, false),
        (AAA, 0x0319, CF, 0x0309, false),
        (AAA, 0x030a, 0, 0x0400, true),
        (AAA, 0x0300, AF, 0x0406, true),
        (AAA, 0x03ff, 0, 0x0505, true),
        (AAS, 0x0305, 0, 0x0305, false),
        (AAS, 0x0309, CF, 0x0309, false),
        (AAS, 0x0319, 0, 0x0309, false),
        (AAS, 0x030a, 0, 0x0204, true),
        (AAS, 0x0300, AF, 0x010a, true),
        (AAS, 0x0304, AF, 0x010e, true),
    ];
    for (opcode, ax, flags, expected, carries) in cases {
        let expected = (expected, if carries { AF | CF } else { 0 });
        assert_eq!(adjusted(&[opcode], ax, flags, AF | CF), expected, "{opcode:#x} {ax:#x} {flags:#x}");
    }
}

#[test]
fn aam_and_aad_divide_and_multiply_by_any_base() {
    const AAM: u8 = 0xd4;
    const AAD: u8 = 0xd5;
    let cases = [
        (AAM, 0x0947, 10, 0x0701, 0),
        (AAM, 0x00ff, 16, 0x0f0f, PF),
        (AAM, 0x00c8, 1, 0xc800, ZF | PF),
        (AAM, 0x00c8, 0xff, 0x00c8, SF),
        (AAM, 0x0007, 8, 0x0007, 0),
        (AAD, 0x0705, 10, 0x004b, PF),
        (AAD, 0x0c0f, 16, 0x00cf, SF | PF),
        (AAD, 0xff01, 2, 0x00ff, SF | PF),
        (AAD, 0x0100, 0, 0x0000, ZF | PF),
    ];
    for (opcode, ax, base, expected, flags) in cases {
        let found = adjusted(&[opcode, base], ax, 0, SF | ZF | PF);
        assert_eq!(found, (expected, flags), "{opcode:#x} {ax:#x} by {base}");
    }
    let mut m = machine(&[AAM, 0]);
    m.state.gpr[0] = 0x1234;
    assert_eq!((m.run_to_handler(), m.state.gpr[0]), (0, 0x1234));
}

#[test]
fn daa_and_das_correct_both_digits() {
    const DAA: u8 = 0x27;
    const DAS: u8 = 0x2f;
    let cases = [
        (DAA, 0x1299, 0, 0x1299, SF | PF),
        (DAA, 0x129a, 0, 0x1200, ZF | PF | AF | CF),
        (DAA, 0x120a, 0, 0x1210, AF),
        (DAA, 0x1205, AF, 0x120b, AF),
        (DAA, 0x1205, CF, 0x1265, PF | CF),
        (DAS, 0x1206, AF, 0x1200, ZF | PF | AF),
        // The low digit's correction borrows.
        (DAS, 0x1205, AF, 0x12ff, SF | PF | AF | CF),
        (DAS, 0x1200, AF, 0x12fa, SF | PF | AF | CF),
        (DAS, 0x1299, 0, 0x1299, SF | PF),
        (DAS, 0x129a, 0, 0x1234, AF | CF),
        (DAS, 0x1220, CF, 0x12c0, SF | PF | CF),
    ];
    for (opcode, ax, flags, expected, flags_after) in cases {
        let found = adjusted(&[opcode], ax, flags, CF | PF | AF | ZF | SF);
        assert_eq!(found, (expected, flags_after), "{opcode:#x} {ax:#x} {flags:#x}");
    }
}

#[test]
fn salc_fills_al_with_the_carry() {
    assert_eq!(adjusted(&[0xd6], 0x1234, CF, CF), (0x12ff, CF));
    assert_eq!(adjusted(&[0xd6], 0x1234, AF, CF), (0x1200, 0));
}

#[test]
fn bound_compares_signed_indices() {
    for (index, in_range) in
        [(-6_i32, false), (-5, true), (0, true), (7, true), (8, false), (i32::MIN, false)]
    {
        // BOUND with a 32-bit and a 16-bit register. A 16-bit index is the low half of the register.
        for code in [&[0x62, 0x01][..], &[O16, 0x62, 0x01]] {
            if code[0] == O16 && index == i32::MIN {
                continue;
            }
            let mut m = machine(code);
            m.state.gpr[0] =
                if code[0] == O16 { 0x7fff_0000 | u64::from(index as u16) } else { index as u32 as u64 };
            m.state.gpr[1] = DATA;
            if code[0] == O16 {
                m.put(DATA, &[(-5_i16).to_le_bytes(), 7_i16.to_le_bytes()].concat());
            } else {
                m.put(DATA, &[(-5_i32).to_le_bytes(), 7_i32.to_le_bytes()].concat());
            }
            assert_eq!(m.run(), Stop::Halted);
            let expected = if in_range { CODE + code.len() as u64 + 1 } else { handler(5) + 1 };
            assert_eq!(m.state.rip, expected, "{index} {code:x?}");
        }
    }
}

#[test]
fn both_bounds_lie_within_the_segment() {
    for (code, bytes) in [(&[0x62, 0x01][..], 8), (&[O16, 0x62, 0x01], 4)] {
        for (missing, vector) in [(0, None), (1, Some(13))] {
            let mut m = machine(code);
            m.state.gpr[1] = DATA;
            m.state.segments[DS].limit = (DATA + bytes - 1 - missing) as u32;
            if let Some(vector) = vector {
                assert_eq!(m.run_to_handler(), vector, "{bytes} bytes");
            } else {
                assert_eq!(m.run(), Stop::Halted);
                assert_eq!(m.state.rip, CODE + code.len() as u64 + 1, "{bytes} bytes");
            }
        }
    }
}

#[test]
fn calls_push_an_offset_of_the_operand_size() {
    // Calls that skip one HLT and reach the next, in a segment whose offsets fit 16 bits.
    for (code, pushed) in [(&[0xe8, 1, 0, 0, 0, HLT][..], 4), (&[O16, 0xe8, 1, 0, HLT], 2)] {
        let mut m = machine(code);
        (m.state.segments[CS].base, m.state.rip) = (CODE, 0);
        let stack = m.state.gpr[4];
        m.put(stack - 8, &[0xcc; 8]);
        assert_eq!(m.run(), Stop::Halted);
        let back = code.len() as u64 - 1;
        assert_eq!((m.state.rip, stack - m.state.gpr[4]), (back + 2, pushed));
        let found = if pushed == 4 { u64::from(m.stack32(0)) } else { u64::from(m.stack16(0)) };
        assert_eq!(found, back, "{pushed} bytes");
    }
}

#[test]
fn enter_and_leave_push_and_pop_an_offset_of_the_operand_size() {
    let mut m = machine(&[0xc8, 8, 0, 0, 0xc9]);
    let stack = m.state.gpr[4];
    m.state.gpr[5] = 0x1234_5678;
    m.put(stack - 8, &[0xcc; 8]);
    m.run_steps(1);
    assert_eq!((m.state.gpr[4], m.state.gpr[5]), (stack - 12, stack - 4));
    m.run_steps(1);
    assert_eq!((m.state.gpr[4], m.state.gpr[5]), (stack, 0x1234_5678));
}

#[test]
fn jumps_beyond_the_last_offset_go_on_at_the_first() {
    // The jump is executed at the first offset of one segment, then at the last of another. Both jumps are
    // the same code at the same linear address.
    let long = &[0xe9, 0x20, 0, 0, 0][..];
    let short = &[O16, 0xe9, 0x20, 0][..];
    for (code, last) in [(long, 0xffff_fff0_u64), (short, 0xfff0)] {
        let mut m = machine(code);
        let length = code.len() as u64;
        for rip in [0, last] {
            let base = CODE.wrapping_sub(rip) & 0xffff_ffff;
            let target = (rip + length + 0x20) & (last | 0xf);
            (m.state.segments[CS].base, m.state.rip) = (base, rip);
            m.run_steps(1);
            assert_eq!(m.state.rip, target, "{length} bytes at {rip:#x}");
        }
    }
}

#[test]
fn loops_count_in_the_register_of_the_address_size() {
    const LOOP: u8 = 0xe2;
    const LOOPE: u8 = 0xe1;
    const LOOPNE: u8 = 0xe0;
    const JCXZ: u8 = 0xe3;
    let cases = [
        (&[LOOP][..], 0xabcd_0001, 0, 0xabcd_0000, true),
        (&[LOOP], 1, 0, 0, false),
        (&[LOOP], 0, 0, 0xffff_ffff, true),
        (&[A16, LOOP], 0xabcd_0001, 0, 0xabcd_0000, false),
        (&[A16, LOOP], 0xabcd_0000, 0, 0xabcd_ffff, true),
        (&[LOOPE], 2, ZF, 1, true),
        (&[LOOPE], 2, 0, 1, false),
        (&[A16, LOOPE], 0xabcd_0001, ZF, 0xabcd_0000, false),
        (&[A16, LOOPE], 0xabcd_0002, ZF, 0xabcd_0001, true),
        (&[LOOPNE], 2, 0, 1, true),
        (&[LOOPNE], 2, ZF, 1, false),
        (&[A16, LOOPNE], 0xabcd_0001, 0, 0xabcd_0000, false),
        (&[A16, LOOPNE], 0xabcd_0002, 0, 0xabcd_0001, true),
        (&[JCXZ], 0xabcd_0000, 0, 0xabcd_0000, false),
        (&[JCXZ], 0, 0, 0, true),
        (&[A16, JCXZ], 0xabcd_0000, 0, 0xabcd_0000, true),
        (&[A16, JCXZ], 0xabcd_0001, 0, 0xabcd_0001, false),
    ];
    for (opcode, ecx, flags, after, taken) in cases {
        // Jumps over one HLT to the next.
        let code = [opcode, &[1, HLT]].concat();
        let mut m = machine(&code);
        m.state.gpr[1] = ecx;
        m.state.rflags = 2 | flags;
        assert_eq!(m.run(), Stop::Halted);
        let rip = CODE + code.len() as u64 + u64::from(taken);
        assert_eq!((m.state.gpr[1], m.state.rip), (after, rip), "{opcode:x?} with {ecx:#x}");
    }
}

#[test]
fn returns_pop_an_offset_of_the_operand_size() {
    const TARGET: u64 = 0x9000;
    // The code, and the number of bytes that it pops.
    let cases = [(&[0xc3][..], 4), (&[0xc2, 8, 0], 12), (&[O16, 0xc3], 2), (&[O16, 0xc2, 8, 0], 10)];
    for (code, popped) in cases {
        let mut m = machine(code);
        m.put(TARGET, &[HLT]);
        // The stack has other bytes above the return address. A RET that reads too many bytes would return to
        // another offset.
        let offset = if code[0] == O16 { 0x7777_0000 | TARGET } else { TARGET };
        m.put64(KERNEL_STACK - 64, 0x7777_7777 << 32 | offset);
        m.state.gpr[4] = KERNEL_STACK - 64;
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!((m.state.rip, m.state.gpr[4]), (TARGET + 1, KERNEL_STACK - 64 + popped), "{code:x?}");
    }
}

/// XLAT's table is at the data segment's base plus BX, EBX or RBX. The sum of this register and AL wraps at the
/// address width.
#[test]
fn xlat_looks_up_al_in_a_table() {
    // Mode, bytes, the base register, and the offset of entry 0x13.
    let cases: [(u32, &[u8], u64, u64); 6] = [
        (64, &[0xd7], DATA, DATA + 0x13),
        (64, &[0x67, 0xd7], 0xdead_beef_0000_0000 | DATA, DATA + 0x13),
        (64, &[0x67, 0xd7], 0xffff_fff8, 0xb),
        (32, &[0xd7], DATA, DATA + 0x13),
        (32, &[0xd7], 0xffff_fff8, 0xb),
        (32, &[0x67, 0xd7], 0x5555_fff8, 0xb),
    ];
    for (bits, bytes, base, offset) in cases {
        let mut m = if bits == 64 { Machine::long() } else { Machine::protected() };
        let segment_base = if bits == 64 { 0 } else { 0x4000 };
        m.state.segments[3].base = segment_base;
        m.state.gpr[0] = 0x7777_7713;
        m.state.gpr[3] = base;
        m.put(CODE, bytes);
        m.put(segment_base + offset, &[0xa5]);
        assert_eq!(m.run_steps(1), cpu::Stop::Budget);
        assert_eq!(
            (m.state.gpr[0], m.state.rip),
            (0x7777_77a5, CODE + bytes.len() as u64),
            "{bits} {bytes:x?}"
        );
    }
    let mut m = Machine::protected();
    m.state.segments[3].limit = DATA as u32 + 0x12;
    (m.state.gpr[0], m.state.gpr[3]) = (0x13, DATA);
    m.put(CODE, &[0xd7]);
    assert_eq!(m.run_to_handler(), 13, "behind the segment's limit");
}
