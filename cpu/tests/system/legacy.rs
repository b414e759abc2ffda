//! Protected mode without long mode: 16- and 32-bit gates, virtual-8086 mode, tasks, 32-bit and PAE paging.

use cpu::{SegReg, Segment, Stop, TableRegister};
use iced_x86::code_asm::*;

use crate::harness::*;

const RF: u32 = 1 << 16;
const VM: u32 = 1 << 17;
const NT: u32 = 1 << 14;
const IF: u32 = 1 << 9;

fn words32(m: &Machine, count: u64) -> Vec<u32> {
    (0..count).map(|n| m.stack32(n)).collect()
}

#[test]
fn faults_at_the_same_level_push_three_words() {
    let mut m = Machine::protected();
    m.state.rflags |= u64::from(IF);
    m.code(32, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    assert_eq!(words32(&m, 3), [CODE as u32, KERNEL_CS.into(), 2 | IF | RF]);
    assert_eq!(m.state.gpr[4], KERNEL_STACK - 12);
    assert_eq!(m.state.rflags as u32 & (IF | RF), 0);
}

#[test]
fn faults_of_user_code_switch_stacks_and_iret_returns() {
    let mut m = Machine::protected().in_user_mode();
    m.code(32, |a| a.hlt().unwrap());
    assert_eq!(m.run_to_handler(), 13);
    let expected = [0, USER_CODE as u32, USER_CS32.into(), 2 | RF, USER_STACK as u32, u32::from(USER_DS)];
    assert_eq!(words32(&m, 6), expected);
    assert_eq!((m.state.segments[2].selector, m.cpu.core().cpl), (KERNEL_DS, 0));
    m.state.gpr[4] += 4;
    m.state.halted = false;
    m.state.rip = CODE;
    m.code(32, |a| a.iretd().unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4], m.cpu.core().cpl), (USER_CODE, USER_STACK, 3));
    assert_eq!(m.state.segments[SegReg::Ds as usize].selector, USER_DS);
}

#[test]
fn sixteen_bit_gates_push_sixteen_bit_words() {
    let mut m = Machine::protected();
    m.gate(6, handler(6) as u32 & 0xffff, 0x8600);
    m.put64(GDT + 8, CODE32 & !(0xff << 56) | (HANDLERS & 0xff_0000) << 16);
    m.gate(6, handler(6) as u32 & 0xffff, 0x8600);
    m.code(32, |a| a.ud2().unwrap());
    m.run_steps(1);
    assert_eq!(m.state.gpr[4], KERNEL_STACK - 6);
    assert_eq!((m.stack16(0), m.stack16(1), m.stack16(2)), (CODE as u16, KERNEL_CS, 2));
    assert_eq!(m.state.rip, handler(6) & 0xffff);
    assert_eq!(m.state.segments[1].base, HANDLERS & 0xff_0000);
}

#[test]
fn a_bad_inner_stack_is_an_invalid_tss() {
    let cases: &[(&str, u16, u8, u32)] = &[
        ("null", 0, 10, 1),
        ("wrong RPL", KERNEL_DS | 3, 10, u32::from(KERNEL_DS) | 1),
        ("user data", USER_DS & !3, 10, u32::from(USER_DS & !3) | 1),
        ("beyond the table", 0x1230, 10, 0x1231),
        ("not present", NOT_PRESENT_DS, 12, u32::from(NOT_PRESENT_DS) | 1),
        ("code", KERNEL_CS, 10, u32::from(KERNEL_CS) | 1),
    ];
    for &(name, stack, vector, code) in cases {
        let mut m = Machine::protected().in_user_mode();
        m.put32(TSS + 8, stack.into());
        // Conforming code, which needs no stack, handles the follow-up fault.
        m.put64(GDT + u64::from(FREE1), CODE32 | 4 << 40);
        m.gate_to(vector, FREE1, handler(vector) as u32, 0x8e00);
        m.code(32, |a| a.ud2().unwrap());
        m.run_steps(1);
        assert_eq!(m.state.rip, handler(vector), "{name}");
        assert_eq!(words32(&m, 3), [code, USER_CODE as u32, USER_CS32.into()], "{name}");
    }
}

fn v86() -> Machine {
    let mut m = Machine::protected();
    m.state.rflags |= u64::from(VM);
    for segment in &mut m.state.segments {
        *segment = Segment { selector: 0x6000, base: 0x6_0000, limit: 0xffff, attributes: 0xf3 };
    }
    m.state.rip = 0x10;
    m.state.gpr[4] = 0x1000;
    m
}

#[test]
fn virtual_8086_mode_is_left_with_all_segments_on_the_stack() {
    let mut m = v86();
    m.code(16, |a| a.hlt().unwrap());
    assert_eq!(m.run_to_handler(), 13);
    let expected = [0, 0x10, 0x6000, 2 | RF | VM, 0x1000, 0x6000, 0x6000, 0x6000, 0x6000, 0x6000];
    assert_eq!(words32(&m, 10), expected);
    assert_eq!(m.state.rflags as u32 & VM, 0);
    for register in [SegReg::Ds, SegReg::Es, SegReg::Fs, SegReg::Gs] {
        assert_eq!(m.state.segments[register as usize].selector, 0);
        assert!(!m.state.segments[register as usize].present());
    }
    // Return from the handler.
    m.state.gpr[4] += 4;
    m.state.halted = false;
    m.state.rip = CODE;
    m.code(32, |a| a.iretd().unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4]), (0x10, 0x1000));
    assert_ne!(m.state.rflags as u32 & VM, 0);
    assert_eq!(m.cpu.core().cpl, 3);
    assert!(m.state.segments.iter().all(|s| s.selector == 0x6000 && s.base == 0x6_0000 && s.limit == 0xffff));
}

#[test]
fn virtual_8086_mode_traps_by_iopl() {
    let programs: [(&str, &[u8]); 6] = [
        ("cli", &[0xfa]),
        ("sti", &[0xfb]),
        ("pushf", &[0x9c]),
        ("popf", &[0x9d]),
        ("int", &[0xcd, 0x20]),
        ("iret", &[0xcf]),
    ];
    for (name, bytes) in programs {
        let mut m = v86();
        m.put(0x6_0010, bytes);
        assert_eq!(m.run_to_handler(), 13, "{name}");
        assert_eq!((m.stack32(0), m.stack32(1)), (0, 0x10), "{name}");
    }
    // INT3 is not checked against IOPL. INT n uses its gate if IOPL is 3.
    for (iopl, bytes, vector) in [(0, &[0xcc][..], 3), (3 << 12, &[0xcd, 0x20][..], 0x20)] {
        let mut m = v86();
        m.state.rflags |= iopl;
        m.gate(vector, handler(vector) as u32, 0xee00);
        m.put(0x6_0010, bytes);
        assert_eq!(m.run_to_handler(), vector);
    }
    let mut m = v86();
    m.put(0x6_0010, &[0x0f, 0x00, 0xd8]);
    assert_eq!(m.run_to_handler(), 6, "LTR is undefined here");
}

fn two_tasks() -> Machine {
    let mut m = Machine::protected();
    m.put64(GDT + u64::from(FREE1), tss_descriptor(TSS2, 9));
    let fields = [
        (32, CODE as u32 + 0x100),
        (36, 0x2),
        (40, 0xaaaa_0000),
        (56, USER_STACK as u32),
        (72, KERNEL_DS.into()),
        (76, KERNEL_CS.into()),
        (80, KERNEL_DS.into()),
        (84, KERNEL_DS.into()),
        (88, 0),
        (92, 0),
    ];
    for (offset, value) in fields {
        m.put32(TSS2 + offset, value);
    }
    m.state.gpr[0] = 0x1234_5678;
    m
}

#[test]
fn a_far_call_to_a_tss_nests_and_iret_returns() {
    let mut m = two_tasks();
    m.code(32, |a| a.db(&[0x9a, 0, 0, 0, 0, FREE1 as u8, 0]).unwrap());
    m.code_at(32, CODE + 0x100, CODE + 0x100, |a| a.iretd().unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[0], m.state.gpr[4]), (CODE + 0x100, 0xaaaa_0000, USER_STACK));
    assert_eq!((m.state.tr.selector, m.state.tr.base), (FREE1, TSS2));
    assert_eq!(m.state.rflags as u32, 2 | NT);
    assert_ne!(m.state.cr0 & 8, 0, "TS is set");
    assert_eq!(m.ram().load_u16(TSS2), TR, "the link");
    assert_eq!(m.ram().load_u32(TSS + 32), CODE as u32 + 7);
    assert_eq!(m.ram().load_u32(TSS + 40), 0x1234_5678);
    assert_eq!(m.ram().load_u8(GDT + u64::from(FREE1) + 5), 0x8b, "busy");
    assert_eq!(m.ram().load_u8(GDT + u64::from(TR) + 5), 0x8b, "still busy");
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[0], m.state.gpr[4]), (CODE + 7, 0x1234_5678, KERNEL_STACK));
    assert_eq!(m.state.tr.selector, TR);
    assert_eq!(m.state.rflags as u32 & NT, 0);
    assert_eq!(m.ram().load_u8(GDT + u64::from(FREE1) + 5), 0x89, "available");
}

#[test]
fn a_far_jump_to_a_tss_does_not_nest() {
    let mut m = two_tasks();
    m.code(32, |a| a.db(&[0xea, 0, 0, 0, 0, FREE1 as u8, 0]).unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.rflags), (CODE + 0x100, 2));
    assert_eq!(m.ram().load_u8(GDT + u64::from(TR) + 5), 0x89);
    // The current task is busy, so a jump to it is refused.
    m.code(32, |a| a.db(&[0xea, 0, 0, 0, 0, FREE1 as u8, 0]).unwrap());
    assert_eq!(m.run_to_handler(), 13);
    assert_eq!(m.stack32(0), u32::from(FREE1));
}

#[test]
fn a_task_gate_takes_an_exception_with_its_error_code() {
    let mut m = two_tasks();
    m.gate_to(13, FREE1, 0, 0x8500);
    m.code_at(32, CODE + 0x100, CODE + 0x100, |a| a.hlt().unwrap());
    m.state.gpr[0] = 0x1238;
    m.code(32, |a| a.mov(ds, eax).unwrap());
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.tr.selector, FREE1);
    assert_eq!(m.state.gpr[4], USER_STACK - 4);
    assert_eq!(m.stack32(0), 0x1238);
    assert_eq!(m.ram().load_u32(TSS + 32), CODE as u32, "the fault's address");
}

/// Each of two tasks faults as soon as the CPU enters it. The task gate of this fault's vector leads to the other
/// task. Each task's TSS overlaps its own descriptor: the TSS's field for EDI is the descriptor's upper half. So
/// leaving the task stores EDI into the descriptor, which makes the task available again.
#[test]
fn tasks_that_lead_to_each_other_for_ever_shut_the_cpu_down() {
    const TABLE: u64 = 0x9_0000;
    const NOT_PRESENT_CS: u64 = 0x100;
    let mut m = Machine::protected();
    m.state.gdtr = TableRegister { base: TABLE, limit: 0xfff };
    m.put64(TABLE + NOT_PRESENT_CS, CODE32 & !(1 << 47));
    for (selector, code, vector) in [(0x200, 0, 11), (0x400, NOT_PRESENT_CS, 10)] {
        let task = TABLE + selector + 4 - 68;
        let descriptor = tss_descriptor(task, 9);
        m.put32(task + 76, code as u32);
        m.put64(TABLE + selector, descriptor);
        m.gate_to(vector, selector as u16, 0, 0x8500);
    }
    m.gate_to(0x20, 0x200, 0, 0x8500);
    m.code(32, |a| {
        a.int(0x20).unwrap();
    });
    assert_eq!(m.run(), Stop::Shutdown);
    assert_eq!(m.state.tr.selector, 0x200, "the last of an odd number of switches");
}

#[test]
fn a_fault_while_loading_the_new_task_is_the_new_tasks() {
    let mut m = two_tasks();
    m.put32(TSS2 + 84, 0x1238);
    m.code(32, |a| a.db(&[0xea, 0, 0, 0, 0, FREE1 as u8, 0]).unwrap());
    assert_eq!(m.run_to_handler(), 10);
    assert_eq!(words32(&m, 2), [0x1238, CODE as u32 + 0x100]);
    assert_eq!(m.state.tr.selector, FREE1);
}

#[test]
fn a_32_bit_call_gate_copies_parameters() {
    let mut m = Machine::protected().in_user_mode();
    let gate = 0xec00_u64 << 32 | 2 << 32 | u64::from(KERNEL_CS) << 16 | CODE & 0xffff | (CODE >> 16) << 48;
    m.put64(GDT + u64::from(FREE1), gate);
    m.put32(USER_STACK, 0x1111);
    m.put32(USER_STACK + 4, 0x2222);
    m.code(32, |a| a.db(&[0x9a, 0, 0, 0, 0, FREE1 as u8, 0]).unwrap());
    m.code_at(32, CODE, CODE, |a| a.db(&[0xca, 8, 0]).unwrap());
    m.run_steps(1);
    let frame = [USER_CODE as u32 + 7, USER_CS32.into(), 0x1111, 0x2222, USER_STACK as u32, USER_DS.into()];
    assert_eq!(words32(&m, 6), frame);
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4]), (USER_CODE + 7, USER_STACK + 8));
}

#[test]
fn sysenter_and_sysexit() {
    let mut m = Machine::protected().in_user_mode();
    m.state.msrs.sysenter_cs = KERNEL_CS.into();
    m.state.msrs.sysenter_esp = KERNEL_STACK;
    m.state.msrs.sysenter_eip = CODE;
    m.state.rflags |= u64::from(IF);
    m.state.gpr[1] = 0x1000;
    m.state.gpr[2] = 0x2000;
    m.code(32, |a| a.sysenter().unwrap());
    m.code_at(32, CODE, CODE, |a| a.sysexit().unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4], m.cpu.core().cpl), (CODE, KERNEL_STACK, 0));
    assert_eq!(m.state.rflags as u32 & IF, 0);
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4], m.cpu.core().cpl), (0x2000, 0x1000, 3));
    assert_eq!((m.state.segments[1].selector, m.state.segments[2].selector), (0x1b, 0x23));
}

/// Turns 32-bit paging on with one 4 MiB page and one table.
fn paged_32bit() -> Machine {
    let mut m = Machine::protected();
    m.put32(TABLES, 0x87);
    m.put32(TABLES + 4, (TABLES as u32 + 0x1000) | 7);
    m.put32(TABLES + 0x1000, DATA as u32 | 7);
    m.state.cr3 = TABLES;
    m.state.cr4 = 0x10;
    m.state.cr0 |= 0x8001_0000;
    m
}

#[test]
fn paging_with_32_bit_entries() {
    let mut m = paged_32bit();
    m.state.gpr[1] = 0x40_0010;
    m.code(32, |a| {
        a.sidt(ptr(ecx)).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.ram().load_u16(DATA + 0x10), 0x7ff);
    assert_eq!(m.ram().load_u32(TABLES + 0x1000) & 0x60, 0x60, "accessed and dirty");
    assert_eq!(m.ram().load_u32(TABLES + 4) & 0x60, 0x20, "a directory entry has no dirty bit");

    for (entry, error) in [(0, 2), (DATA as u32 | 5, 3)] {
        let mut m = paged_32bit();
        m.put32(TABLES + 0x1000, entry);
        m.state.gpr[1] = 0x40_0010;
        m.code(32, |a| a.sidt(ptr(ecx)).unwrap());
        assert_eq!(m.run_to_handler(), 14);
        assert_eq!((m.stack32(0), m.state.cr2), (error, 0x40_0010));
    }
}

#[test]
fn a_translation_of_one_page_size_is_not_used_under_another() {
    let mut m = paged_32bit();
    // The page table identity-maps the code, like the large page before.
    m.put32(TABLES, (TABLES as u32 + 0x2000) | 7);
    for page in 0..1024 {
        m.put32(TABLES + 0x2000 + 4 * page, (page as u32) << 12 | 7);
    }
    // With PSE, a large page of the first 4 MiB; without PSE, a page table at 0.
    m.put32(TABLES + 8, 0x87);
    m.put32(4 * (DATA >> 12), (DATA as u32 + 0x1000) | 7);
    m.put32(DATA, 0x1111);
    m.put32(DATA + 0x1000, 0x2222);
    m.state.gpr[1] = 0x80_0000 + DATA;
    m.code(32, |a| {
        a.mov(eax, ptr(ecx)).unwrap();
        a.mov(edx, cr4).unwrap();
        a.and(edx, !0x10).unwrap();
        a.mov(cr4, edx).unwrap();
        a.mov(edx, ptr(ecx)).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.gpr[0], m.state.gpr[2]), (0x1111, 0x2222));
}

fn paged_pae() -> Machine {
    let mut m = Machine::protected();
    m.put64(TABLES, (TABLES + 0x1000) | 1);
    m.put64(TABLES + 0x1000, 0x87);
    m.put64(TABLES + 0x1008, 0x87 | 1 << 63);
    m.state.gpr[0] = 0x8001_0031;
    m.state.cr3 = TABLES;
    m.state.cr4 = 0x20;
    m
}

#[test]
fn pae_loads_its_directory_pointers_with_paging() {
    let mut m = paged_pae();
    m.code(32, |a| {
        a.mov(cr0, eax).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.pdptes, [(TABLES + 0x1000) | 1, 0, 0, 0]);

    for bad in [1 << 1, 1 << 5, 1 << 8, 1 << 40, 1 << 63] {
        let mut m = paged_pae();
        m.put64(TABLES + 8, 1 | bad);
        m.code(32, |a| a.mov(cr0, eax).unwrap());
        assert_eq!(m.run_to_handler(), 13, "{bad:#x}");
        assert_eq!(m.state.cr0 >> 31, 0);
    }
}

/// The other bits of a directory pointer that is not present do not matter.
#[test]
fn an_absent_directory_pointer_of_pae_leads_nowhere() {
    for (present, vector) in [(1, 3), (0, 14)] {
        let mut m = paged_pae();
        m.put64(TABLES + 8, (TABLES + 0x1000) | present);
        m.state.gpr[1] = 0x4000_0000 + DATA;
        m.code(32, |a| {
            a.mov(cr0, eax).unwrap();
            a.mov(edx, dword_ptr(ecx)).unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), vector);
    }
}

#[test]
fn no_execute_is_reserved_until_it_is_enabled() {
    for (efer, error) in [(0, 9), (0x800, 1 | 0x10)] {
        let mut m = paged_pae();
        m.state.msrs.efer = efer;
        m.state.gpr[1] = 0x20_0000;
        m.code(32, |a| {
            a.mov(cr0, eax).unwrap();
            a.db(&[0xea, 0, 0, 0x20, 0, 8, 0]).unwrap();
        });
        assert_eq!(m.run_to_handler(), 14);
        assert_eq!((m.stack32(0), m.state.cr2), (error, 0x20_0000));
    }
}

#[test]
fn expand_down_segments_and_limits() {
    // Limit 0xfff, expand-down, big: every offset above the limit is inside.
    let down = DATA32 & !(1 << 55) & !0xf_ffff & !(0xf << 48) | 0xfff | 4 << 40;
    for (descriptor, offset, vector) in [
        (down, 0x1000, 3),
        (down, 0xfff, 13),
        (down, 0xffff_fffb, 13),
        (DATA32 & !(1 << 55) & !(0xf << 48) & !0xffff | 0xfff, 0xffa, 3),
        (DATA32 & !(1 << 55) & !(0xf << 48) & !0xffff | 0xfff, 0xffb, 13),
    ] {
        let mut m = Machine::protected();
        m.put64(GDT + u64::from(FREE1), descriptor);
        m.state.gpr[0] = FREE1.into();
        m.state.gpr[1] = offset;
        m.code(32, |a| {
            a.mov(es, eax).unwrap();
            a.sidt(ptr(ecx).es()).unwrap();
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), vector, "{offset:#x}");
    }
}

/// Tests implied operands, whose address is not in the instruction: operands on the stack, and operands of string
/// instructions.
#[test]
fn implied_operands_have_limits_and_rights_too() {
    const UD2: [u8; 2] = [0x0f, 0x0b];
    // For a two-byte operand at DATA: its segment, the vector of its faults, and whether it is written.
    let cases: [(&str, [u8; 2], SegReg, u8, bool); 5] = [
        ("push ax", [0x66, 0x50], SegReg::Ss, 12, true),
        ("pop ax", [0x66, 0x58], SegReg::Ss, 12, false),
        ("lodsw", [0x66, 0xad], SegReg::Ds, 13, false),
        ("stosw", [0x66, 0xab], SegReg::Es, 13, true),
        ("scasw", [0x66, 0xaf], SegReg::Es, 13, false),
    ];
    for (name, code, segment, vector, writes) in cases {
        for (too_far, read_only) in [(0, false), (1, false), (0, true)] {
            // Use user mode, where handlers of faults have a separate stack.
            let mut m = Machine::protected().in_user_mode();
            m.put(USER_CODE, &code);
            m.put(USER_CODE + 2, &UD2);
            let address = DATA + too_far;
            m.state.gpr[4] = if name == "push ax" { address + 2 } else { address };
            (m.state.gpr[6], m.state.gpr[7]) = (address, address);
            let data = &mut m.state.segments[segment as usize];
            data.limit = DATA as u32 + 1;
            if read_only {
                data.attributes &= !2;
            }
            let faults = too_far > 0 || read_only && writes;
            let expected = if faults { vector } else { 6 };
            assert_eq!(m.run_to_handler(), expected, "{name}, {too_far} too far, read-only {read_only}");
        }
    }
}

#[test]
fn questions_about_selectors() {
    let cases: &[(u16, bool, Option<u32>)] = &[
        (KERNEL_DS, true, Some(0xcf_9300)),
        (0, false, None),
        (0x1230, false, None),
        (TR, false, Some(0x8b00)),
        (KERNEL_CS, true, Some(0xcf_9b00)),
        (KERNEL_DS | 3, false, None),
    ];
    for &(selector, readable, rights) in cases {
        let mut m = Machine::protected();
        m.state.gpr[0] = selector.into();
        m.state.gpr[2] = 0xdead_beef;
        m.code(32, |a| {
            a.verr(ax).unwrap();
            a.pushfd().unwrap();
            a.lar(edx, eax).unwrap();
            a.pushfd().unwrap();
            a.hlt().unwrap();
        });
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!(m.stack32(1) & 0x40 != 0, readable, "VERR {selector:#x}");
        assert_eq!(m.stack32(0) & 0x40 != 0, rights.is_some(), "LAR {selector:#x}");
        assert_eq!(m.state.gpr[2] as u32, rights.unwrap_or(0xdead_beef), "LAR {selector:#x}");
    }
    let mut m = Machine::protected();
    m.state.gpr[0] = TR.into();
    m.code(32, |a| {
        a.lsl(edx, eax).unwrap();
        a.hlt().unwrap();
    });
    m.run();
    assert_eq!(m.state.gpr[2], 0x7ff);
}

#[test]
fn ports_by_iopl_and_bitmap() {
    // The bitmap allows port 0x61, but not 0x62.
    let map = |m: &Machine| {
        m.ram().store_u16(TSS + 102, 0x100);
        m.put(TSS + 0x100, &[0xff; 0x40]);
        m.put(TSS + 0x100 + 0x61 / 8, &[!(1 << 1)]);
    };
    for (iopl, port, size, vector) in
        [(0, 0x61, 1, 3), (0, 0x62, 1, 13), (0, 0x61, 2, 13), (3, 0x62, 1, 3), (0, 0x8000, 1, 13)]
    {
        let mut m = Machine::protected().in_user_mode();
        map(&m);
        m.gate(3, handler(3) as u32, 0xee00);
        m.state.rflags |= iopl << 12;
        m.state.gpr[2] = port;
        m.code(32, |a| {
            match size {
                1 => a.in_(al, dx).unwrap(),
                _ => a.in_(ax, dx).unwrap(),
            }
            a.int3().unwrap();
        });
        assert_eq!(m.run_to_handler(), vector, "port {port:#x}, IOPL {iopl}");
        if vector == 3 {
            assert_eq!(m.state.gpr[0] & 0xff, port & 0xff);
        }
    }
}

#[test]
fn pusha_and_popa_move_all_registers_but_the_stack_pointer() {
    for (prefix, bytes) in [(&[][..], 4), (&[0x66], 2)] {
        let mut m = Machine::protected();
        let mask = (1_u64 << (8 * bytes)) - 1;
        let before: Vec<u64> =
            (0..8).map(|n| if n == 4 { KERNEL_STACK } else { 0x1111_2221 * (n + 1) }).collect();
        m.state.gpr[..8].copy_from_slice(&before);
        // PUSHA; XOR of all but ESP with themselves; POPA; HLT.
        let clear = [0xc0, 0xc9, 0xd2, 0xdb, 0xed, 0xf6, 0xff].map(|operands| [0x31, operands]);
        m.put(CODE, &[prefix, &[0x60], clear.as_flattened(), prefix, &[0x61, 0xf4]].concat());
        assert_eq!(m.run(), Stop::Halted);
        for n in 0..8 {
            let pushed = m.ram().load_u64(KERNEL_STACK - bytes * (n + 1)) & mask;
            assert_eq!(pushed, before[n as usize] & mask, "pushed, {bytes} bytes, register {n}");
            let expected = if n == 4 { KERNEL_STACK } else { before[n as usize] & mask };
            assert_eq!(m.state.gpr[n as usize], expected, "popped, {bytes} bytes, register {n}");
        }
    }
}

/// Checks DAA and DAS with the sums and differences of all two-digit decimal numbers.
#[test]
fn decimal_adjustment_gives_decimal_sums_and_differences() {
    let mut m = Machine::protected();
    let packed = |number: u64| number / 10 << 4 | number % 10;
    let results = |m: &mut Machine, a: u64, b: u64| {
        (m.state.rip, m.state.gpr[0], m.state.gpr[3]) = (CODE, packed(a), packed(b));
        m.run_steps(2);
        (m.state.gpr[0], m.state.rflags & 1)
    };
    m.code(32, |a| {
        a.add(al, bl).unwrap();
        a.daa().unwrap();
    });
    for (a, b) in (0..100).flat_map(|a| (0..100).map(move |b| (a, b))) {
        let expected = (packed((a + b) % 100), u64::from(a + b > 99));
        assert_eq!(results(&mut m, a, b), expected, "{a} + {b}");
    }
    let mut m = Machine::protected();
    m.code(32, |a| {
        a.sub(al, bl).unwrap();
        a.das().unwrap();
    });
    for (a, b) in (0..100).flat_map(|a| (0..100).map(move |b| (a, b))) {
        let expected = (packed((100 + a - b) % 100), u64::from(a < b));
        assert_eq!(results(&mut m, a, b), expected, "{a} - {b}");
    }
}
