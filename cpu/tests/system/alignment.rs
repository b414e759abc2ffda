//! Alignment checks of user code (SDM vol. 3, 6.15, "Interrupt 17").

use iced_x86::code_asm::*;

use crate::harness::*;

const AC: u64 = 1 << 18;
const AM: u64 = 1 << 18;
/// The last 16 bytes of a page, so that misaligned accesses also cross its end.
const OPERAND: u64 = DATA + 0xff0;
const BREAKPOINT: u8 = 3;
const ALIGNMENT: u8 = 17;

/// User code with checked accesses. RSI and RDI point to an operand, and INT3 follows the instruction.
fn checked(code: &[u8], operand: u64) -> Machine {
    let mut m = Machine::long().in_user_mode();
    m.long_gate(BREAKPOINT, handler(BREAKPOINT), 0xee00, 0);
    m.state.cr0 |= AM;
    m.state.cr4 |= 0x600;
    m.state.rflags |= AC;
    (m.state.gpr[6], m.state.gpr[7]) = (operand, operand);
    m.state.gpr[1] = 2;
    m.put(USER_CODE, &[code, &[0xcc]].concat());
    m
}

#[test]
fn operands_are_as_aligned_as_the_manuals_say() {
    let cases: &[(&str, &[u8], u64)] = &[
        ("mov al, [rdi]", &[0x8a, 0x07], 1),
        ("mov ax, [rdi]", &[0x66, 0x8b, 0x07], 2),
        ("mov eax, [rdi]", &[0x8b, 0x07], 4),
        ("mov rax, [rdi]", &[0x48, 0x8b, 0x07], 8),
        ("mov [rdi], rax", &[0x48, 0x89, 0x07], 8),
        ("movbe eax, [rdi]", &[0x0f, 0x38, 0xf0, 0x07], 4),
        ("add [rdi], eax", &[0x01, 0x07], 4),
        ("xchg [rdi], rax", &[0x48, 0x87, 0x07], 8),
        ("cmpxchg8b [rdi]", &[0x0f, 0xc7, 0x0f], 8),
        ("bt [rdi], eax", &[0x0f, 0xa3, 0x07], 4),
        ("lfs eax, [rdi]", &[0x0f, 0xb4, 0x07], 4),
        ("lfs ax, [rdi]", &[0x66, 0x0f, 0xb4, 0x07], 2),
        ("lodsd", &[0xad], 4),
        ("rep stosd", &[0xf3, 0xab], 4),
        ("rep movsq", &[0xf3, 0x48, 0xa5], 8),
        ("cmpsw", &[0x66, 0xa7], 2),
        ("push [rdi]", &[0xff, 0x37], 8),
        ("pop [rdi]", &[0x8f, 0x07], 8),
        ("mov rsp, rdi; pop rax", &[0x48, 0x89, 0xfc, 0x58], 8),
        ("mov rsp, rdi; push 0", &[0x48, 0x89, 0xfc, 0x6a, 0x00], 8),
        ("mov rsp, rdi; enter 0, 0", &[0x48, 0x89, 0xfc, 0xc8, 0, 0, 0], 8),
        ("movups xmm0, [rdi]", &[0x0f, 0x10, 0x07], 16),
        ("movdqu [rdi], xmm0", &[0xf3, 0x0f, 0x7f, 0x07], 16),
        ("movss xmm0, [rdi]", &[0xf3, 0x0f, 0x10, 0x07], 4),
        ("movlps xmm0, [rdi]", &[0x0f, 0x12, 0x07], 8),
        ("maskmovdqu xmm0, xmm1", &[0x66, 0x0f, 0xf7, 0xc1], 1),
        ("ldmxcsr [rdi]", &[0x0f, 0xae, 0x17], 4),
        ("fld dword [rdi]", &[0xd9, 0x07], 4),
        ("fld qword [rdi]", &[0xdd, 0x07], 8),
        ("fld tbyte [rdi]", &[0xdb, 0x2f], 8),
        ("fild word [rdi]", &[0xdf, 0x07], 2),
        ("fldz; fstp tbyte [rdi]", &[0xd9, 0xee, 0xdb, 0x3f], 8),
        ("fnstenv [rdi]", &[0xd9, 0x37], 4),
        ("fnstenv [rdi], 14 bytes", &[0x66, 0xd9, 0x37], 2),
        ("fldenv [rdi]", &[0xd9, 0x27], 4),
        ("fnsave [rdi]", &[0xdd, 0x37], 4),
        ("frstor [rdi]", &[0xdd, 0x27], 4),
        ("clflush [rdi]", &[0x0f, 0xae, 0x3f], 1),
        ("prefetcht0 [rdi]", &[0x0f, 0x18, 0x0f], 1),
    ];
    for &(name, code, alignment) in cases {
        for offset in 0..16 {
            let mut m = checked(code, OPERAND + offset);
            m.state.fpu.control = 0x37f;
            m.state.fpu.valid = 0;
            let before = m.state.gpr;
            let aligned = offset % alignment == 0;
            let expected = if aligned { BREAKPOINT } else { ALIGNMENT };
            assert_eq!(m.run_to_handler(), expected, "{name} at offset {offset}");
            if !aligned {
                assert_eq!(m.stack64(0), 0, "{name}: the error code");
                assert_eq!(m.state.gpr[..4], before[..4], "{name} changes nothing");
                assert_eq!(m.state.gpr[5..], before[5..], "{name} changes nothing");
            }
        }
    }
}

/// SIDT stores the limit as an operand of two bytes, and the base after it as an operand of eight bytes (SDM vol.
/// 3, 3.5.1). The processor checks the alignment of both operands.
#[test]
fn sidt_is_aligned_by_its_parts() {
    for offset in 0..16 {
        let mut m = checked(&[0x0f, 0x01, 0x0f], OPERAND + offset);
        assert_eq!(m.run_to_handler() == BREAKPOINT, offset % 8 == 6, "{offset}");
    }
}

#[test]
fn alignment_is_checked_at_level_3_where_both_bits_ask_for_it() {
    const LOAD: &[u8] = &[0x8b, 0x07];
    for (am, ac) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut m = checked(LOAD, OPERAND + 1);
        m.state.cr0 = m.state.cr0 & !AM | if am { AM } else { 0 };
        m.state.rflags = m.state.rflags & !AC | if ac { AC } else { 0 };
        assert_eq!(m.run_to_handler() == ALIGNMENT, am && ac, "AM {am}, AC {ac}");
    }
    let mut m = Machine::long();
    m.state.cr0 |= AM;
    m.state.rflags |= AC;
    m.state.gpr[7] = OPERAND + 1;
    m.code(64, |a| {
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 6, "level 0");
}

/// A TLB entry that code without alignment checks has made does not let misaligned accesses of checked code pass. An
/// entry of checked code does not make unchecked accesses fault.
#[test]
fn the_check_comes_and_goes_with_the_flag() {
    let mut m = checked(&[], OPERAND + 2);
    m.state.rflags &= !AC;
    m.code(64, |a| {
        for flip in [true, true, false] {
            a.add(dword_ptr(rdi), 1).unwrap();
            a.nop().unwrap();
            if flip {
                a.pushfq().unwrap();
                a.xor(qword_ptr(rsp), AC as i32).unwrap();
                a.add(dword_ptr(rdi), 1).unwrap();
                a.sub(rdi, 2).unwrap();
                a.popfq().unwrap();
                a.add(dword_ptr(rdi), 1).unwrap();
                a.add(rdi, 2).unwrap();
            }
        }
        a.int3().unwrap();
    });
    // The first POPFQ sets AC. After this POPFQ the aligned addition succeeds, and the misaligned addition faults.
    assert_eq!(m.run_to_handler(), ALIGNMENT);
    assert_eq!(m.ram().load_u32(OPERAND), 1 | 2 << 16);
}

/// SDM vol. 3, table 6-2 gives the priorities of these two exceptions.
#[test]
fn a_page_fault_comes_before_an_alignment_check() {
    let mut m = checked(&[0x8b, 0x07], OPERAND + 15);
    m.page(OPERAND + 16, 1, 0);
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.state.cr2, OPERAND + 16);
}

#[test]
fn a_port_is_not_read_for_an_operand_that_is_not_aligned() {
    let mut m = checked(&[0x6d], OPERAND + 1);
    m.state.rflags |= 3 << 12;
    assert_eq!(m.run_to_handler(), ALIGNMENT);
    assert_eq!(m.ram().load_u32(OPERAND), 0);
}

/// The processor itself accesses descriptor tables and pushes a handler's frame. Even while user code runs, these
/// accesses are not checked for alignment.
#[test]
fn accesses_of_the_processor_itself_are_not_checked() {
    let mut m = checked(&[], OPERAND);
    m.state.gdtr.base = DATA + 1;
    for word in 0..16 {
        m.put64(DATA + 1 + 8 * word, m.ram().load_u64(GDT + 8 * word));
    }
    m.state.gpr[0] = USER_DS.into();
    m.code(64, |a| {
        a.mov(es, eax).unwrap();
        a.int3().unwrap();
    });
    assert_eq!(m.run_to_handler(), BREAKPOINT);
}
