//! Exceptions, interrupts and transfers of long mode.

use cpu::{SegReg, Stop};
use iced_x86::code_asm::*;

use crate::harness::*;

const RF: u64 = 1 << 16;
const IF: u64 = 1 << 9;

/// A name, the selector, and the vector and error code if it is refused.
type SelectorCase = (&'static str, u16, Option<(u8, u64)>);

#[test]
fn a_fault_at_level_0_pushes_an_aligned_five_word_frame() {
    let mut m = Machine::long();
    m.state.gpr[4] = KERNEL_STACK - 5;
    m.state.rflags |= IF;
    m.code(64, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    assert_eq!(m.state.gpr[4], ((KERNEL_STACK - 5) & !15) - 40);
    let frame: Vec<u64> = (0..5).map(|n| m.stack64(n)).collect();
    let expected = [CODE, KERNEL_CS.into(), 2 | IF | RF, KERNEL_STACK - 5, KERNEL_DS.into()];
    assert_eq!(frame, expected);
    assert_eq!(m.state.rflags & (IF | RF), 0, "an interrupt gate clears IF");
    assert_eq!(m.counts.steps, 2, "the delivery and HLT");
}

#[test]
fn a_trap_gate_keeps_if() {
    let mut m = Machine::long();
    m.long_gate(6, handler(6), 0x8f00, 0);
    m.state.rflags |= IF;
    m.code(64, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    assert_ne!(m.state.rflags & IF, 0);
}

#[test]
fn interrupt_stacks_are_used_at_any_level() {
    let mut m = Machine::long();
    m.long_gate(6, handler(6), 0x8e00, 1);
    m.code(64, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    assert_eq!(m.state.gpr[4], IST1 - 40);
    assert_eq!(m.state.segments[2].selector, KERNEL_DS, "the level is the same: SS stays");
}

#[test]
fn segment_loads_report_the_selector() {
    let cases: &[SelectorCase] = &[
        ("good", KERNEL_DS, None),
        ("null", 0, None),
        ("null with RPL", 3, None),
        ("beyond the table", 0x1238, Some((13, 0x1238))),
        ("RPL is not in the code", 0x123b, Some((13, 0x1238))),
        ("in an LDT that is not there", 0x0f, Some((13, 0x0c))),
        ("system descriptor", TR, Some((13, TR.into()))),
        ("not present", NOT_PRESENT_DS, Some((11, NOT_PRESENT_DS.into()))),
        ("readable code", KERNEL_CS, None),
        ("RPL above DPL", KERNEL_DS | 3, Some((13, KERNEL_DS.into()))),
        ("read-only data", READ_ONLY_DS, None),
    ];
    for &(name, selector, expected) in cases {
        let mut m = Machine::long();
        m.state.gpr[0] = selector.into();
        m.code(64, |a| {
            a.mov(ds, eax).unwrap();
            a.int3().unwrap();
        });
        let vector = m.run_to_handler();
        match expected {
            None => {
                assert_eq!(vector, 3, "{name}");
                assert_eq!(m.state.segments[SegReg::Ds as usize].selector, selector, "{name}");
            }
            Some((wanted, code)) => {
                assert_eq!((vector, m.stack64(0)), (wanted, code), "{name}");
                assert_eq!(m.stack64(1), CODE, "{name}");
                assert_eq!(m.state.segments[SegReg::Ds as usize].selector, KERNEL_DS, "{name}");
            }
        }
    }
}

#[test]
fn stack_segment_loads_are_stricter() {
    let cases: &[SelectorCase] = &[
        ("good", KERNEL_DS, None),
        ("null at level 0", 0, None),
        ("null with RPL 3", 3, Some((13, 0))),
        ("read-only", READ_ONLY_DS, Some((13, READ_ONLY_DS.into()))),
        ("not present", NOT_PRESENT_DS, Some((12, NOT_PRESENT_DS.into()))),
        ("user data", USER_DS, Some((13, u64::from(USER_DS & !3)))),
        ("code", KERNEL_CS, Some((13, KERNEL_CS.into()))),
    ];
    for &(name, selector, expected) in cases {
        let mut m = Machine::long();
        m.state.gpr[0] = selector.into();
        m.code(64, |a| {
            a.mov(ss, eax).unwrap();
            a.int3().unwrap();
        });
        let vector = m.run_to_handler();
        match expected {
            None => assert_eq!((vector, m.state.segments[2].selector), (3, selector), "{name}"),
            Some(wanted) => assert_eq!((vector, m.stack64(0)), wanted, "{name}"),
        }
    }
}

#[test]
fn loading_a_segment_sets_the_accessed_bit() {
    let mut m = Machine::long();
    m.put64(GDT + u64::from(FREE1), DATA32 & !(1 << 40));
    m.state.gpr[0] = FREE1.into();
    m.code(64, |a| {
        a.mov(es, eax).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.ram().load_u64(GDT + u64::from(FREE1)), DATA32);
    assert_eq!(m.state.segments[0].attributes & 1, 1);
}

#[test]
fn user_faults_switch_stacks() {
    let mut m = Machine::long().in_user_mode();
    m.state.rflags |= IF;
    m.code(64, |a| a.hlt().unwrap());
    assert_eq!(m.run_to_handler(), 13);
    assert_eq!(m.state.gpr[4], KERNEL_STACK - 48);
    let frame: Vec<u64> = (0..6).map(|n| m.stack64(n)).collect();
    let expected = [0, USER_CODE, USER_CS64.into(), 2 | IF | RF, USER_STACK, USER_DS.into()];
    assert_eq!(frame, expected);
    assert_eq!(m.state.segments[1].selector, KERNEL_CS);
    assert_eq!(m.state.segments[2].selector, 0);
    assert_eq!(m.cpu.core().cpl, 0);
}

#[test]
fn page_faults_tell_what_and_where() {
    const P: u64 = 1;
    const W: u64 = 2;
    const U: u64 = 4;
    const RSVD: u64 = 8;
    const I: u64 = 16;
    struct Case {
        name: &'static str,
        user: bool,
        clear: u64,
        set: u64,
        write: bool,
        error: u64,
    }
    let case = |name, user, clear, set, write, error| Case { name, user, clear, set, write, error };
    let cases = [
        case("absent, user read", true, 1, 0, false, U),
        case("absent, user write", true, 1, 0, true, U | W),
        case("absent, supervisor write", false, 1, 0, true, W),
        case("read-only, user write", true, 2, 0, true, P | U | W),
        case("read-only, supervisor write under WP", false, 2, 0, true, P | W),
        case("supervisor page, user read", true, 4, 0, false, P | U),
        case("reserved address bit", true, 0, 1 << 45, false, P | U | RSVD),
        case("reserved address bit, supervisor write", false, 0, 1 << 40, true, P | W | RSVD),
    ];
    for c in cases {
        let mut m = if c.user { Machine::long().in_user_mode() } else { Machine::long() };
        m.page(DATA, c.clear, c.set);
        m.state.gpr[1] = DATA + 0x123;
        m.code(64, |a| {
            // SIDT writes its operand; the far load reads it.
            if c.write { a.sidt(ptr(rcx)).unwrap() } else { a.lfs(eax, fword_ptr(rcx)).unwrap() }
        });
        assert_eq!(m.run_to_handler(), 14, "{}", c.name);
        assert_eq!((m.stack64(0), m.state.cr2), (c.error, DATA + 0x123), "{}", c.name);
    }
    // Fetches from a page that is absent or no-execute.
    for (clear, set, error) in [(1, 0, U | I), (0, 1 << 63, P | U | I), (4, 0, P | U | I)] {
        let mut m = Machine::long().in_user_mode();
        m.page(USER_CODE, clear, set);
        m.code(64, |a| a.hlt().unwrap());
        assert_eq!(m.run_to_handler(), 14);
        assert_eq!((m.stack64(0), m.state.cr2), (error, USER_CODE));
        assert_eq!(m.stack64(1), USER_CODE);
    }
}

#[test]
fn an_access_across_pages_faults_at_the_second() {
    let mut m = Machine::long();
    m.page(DATA + 0x1000, 1, 0);
    m.state.gpr[1] = DATA + 0xffc;
    m.put(DATA + 0xff0, &[0xaa; 16]);
    m.code(64, |a| a.sidt(ptr(rcx)).unwrap());
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.state.cr2, DATA + 0x1000);
    assert_eq!(m.ram().load_u32(DATA + 0xffc), 0xaaaa_aaaa, "nothing was written");
}

#[test]
fn smap_and_smep_keep_the_supervisor_out_of_user_pages() {
    const SMEP: u64 = 1 << 20;
    const SMAP: u64 = 1 << 21;
    let supervisor_pages = |m: &Machine| {
        for page in [IDT, GDT, TSS, CODE, HANDLERS, KERNEL_STACK - 1] {
            m.page(page, 4, 0);
        }
    };
    let mut m = Machine::long();
    supervisor_pages(&m);
    m.state.cr4 |= SMAP;
    m.state.gpr[1] = DATA;
    m.code(64, |a| {
        a.stac().unwrap();
        a.sidt(ptr(rcx)).unwrap();
        a.clac().unwrap();
        a.sidt(ptr(rcx)).unwrap();
    });
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!((m.stack64(0), m.state.cr2), (3, DATA));
    assert_eq!(m.stack64(1), CODE + 3 + 3 + 3, "STAC let the first one through");

    let mut m = Machine::long();
    supervisor_pages(&m);
    m.state.cr4 |= SMEP;
    m.page(CODE, 0, 4);
    m.code(64, |a| a.hlt().unwrap());
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!((m.stack64(0), m.state.cr2), (0x11, CODE));
}

#[test]
fn software_interrupts_obey_the_gates_level() {
    let mut m = Machine::long().in_user_mode();
    m.code(64, |a| a.int(0x80).unwrap());
    assert_eq!(m.run_to_handler(), 13);
    assert_eq!((m.stack64(0), m.stack64(1)), (0x80 * 8 + 2, USER_CODE));

    let mut m = Machine::long().in_user_mode();
    m.long_gate(0x80, handler(0x80), 0xee00, 0);
    m.code(64, |a| a.int(0x80).unwrap());
    assert_eq!(m.run_to_handler(), 0x80);
    assert_eq!(m.stack64(0), USER_CODE + 2, "the return address is behind the instruction");
    assert_eq!(m.stack64(2) & RF, 0);
    assert_eq!(m.counts.steps, 2);
}

#[test]
fn iretq_goes_to_user_code_and_back() {
    let mut m = Machine::long();
    let frame = KERNEL_STACK - 40;
    let words = [USER_CODE, USER_CS64.into(), 0x3202, USER_STACK, USER_DS.into()];
    for (n, word) in (0..).zip(words) {
        m.put64(frame + 8 * n, word);
    }
    m.state.gpr[4] = frame;
    m.code(64, |a| a.iretq().unwrap());
    m.code_at(64, USER_CODE, USER_CODE, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    let seen: Vec<u64> = (0..5).map(|n| m.stack64(n)).collect();
    assert_eq!(seen, [USER_CODE, USER_CS64.into(), 0x3202 | RF, USER_STACK, USER_DS.into()]);
    // DS had DPL 0, so user code must not keep it.
    assert_eq!(m.state.segments[SegReg::Ds as usize].selector, 0);
}

#[test]
fn iretq_checks_its_frame() {
    let cases: &[(&str, [u64; 5], u8, u64)] = &[
        ("null CS", [CODE, 0, 2, 0, 0], 13, 0),
        ("data as CS", [CODE, KERNEL_DS.into(), 2, 0, 0], 13, KERNEL_DS.into()),
        ("SS of another level", [CODE, KERNEL_CS.into(), 2, 0, USER_DS.into()], 13, u64::from(USER_DS & !3)),
        ("null SS for user", [CODE, USER_CS64.into(), 2, 0, 3], 13, 0),
        ("RIP not canonical", [1 << 50, KERNEL_CS.into(), 2, 0, 0], 13, 0),
        ("SS not present", [CODE, KERNEL_CS.into(), 2, 0, NOT_PRESENT_DS.into()], 12, NOT_PRESENT_DS.into()),
    ];
    for &(name, frame, vector, code) in cases {
        let mut m = Machine::long();
        for (n, word) in (0..).zip(frame) {
            m.put64(DATA + 8 * n, word);
        }
        m.state.gpr[4] = DATA;
        m.code(64, |a| a.iretq().unwrap());
        assert_eq!(m.run_to_handler(), vector, "{name}");
        assert_eq!((m.stack64(0), m.stack64(1), m.stack64(4)), (code, CODE, DATA), "{name}");
    }
}

#[test]
fn iret_pops_the_stack_pointer_even_at_the_same_level() {
    let mut m = Machine::long();
    for (n, word) in (0..).zip([CODE + 0x100, KERNEL_CS.into(), 2, 0x1234_5678, KERNEL_DS.into()]) {
        m.put64(DATA + 8 * n, word);
    }
    m.state.gpr[4] = DATA;
    m.code(64, |a| a.iretq().unwrap());
    m.code_at(64, CODE + 0x100, CODE + 0x100, |a| a.hlt().unwrap());
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.gpr[4], 0x1234_5678);
}

#[test]
fn syscall_and_sysret_are_each_others_inverse() {
    let mut m = Machine::long().in_user_mode();
    m.state.msrs.star = 0x0018_0008_0000_0000;
    m.state.msrs.lstar = CODE;
    m.state.msrs.sfmask = 0x200;
    m.state.rflags |= IF | 1;
    m.code(64, |a| {
        a.syscall().unwrap();
        a.ud2().unwrap();
    });
    m.code_at(64, CODE, CODE, |a| a.sysretq().unwrap());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[1], m.state.gpr[11]), (CODE, USER_CODE + 2, 2 | IF | 1));
    assert_eq!(m.state.rflags, 3, "IF is masked, CF stays");
    assert_eq!((m.state.segments[1].selector, m.state.segments[2].selector), (8, 16));
    assert_eq!(m.state.gpr[4], USER_STACK);
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.rflags), (USER_CODE + 2, 2 | IF | 1));
    assert_eq!((m.state.segments[1].selector, m.state.segments[2].selector), (0x2b, 0x23));
    assert_eq!(m.cpu.core().cpl, 3);
    assert!(m.state.segments[1].long());
}

#[test]
fn syscall_needs_efer_sce_and_sysenter_does_not_exist() {
    let mut m = Machine::long().in_user_mode();
    m.state.msrs.efer &= !1;
    m.code(64, |a| a.syscall().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    let mut m = Machine::long().in_user_mode();
    m.state.msrs.sysenter_cs = 8;
    m.code(64, |a| a.sysenter().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    let mut m = Machine::long().in_user_mode();
    m.code(64, |a| a.sysretq().unwrap());
    assert_eq!(m.run_to_handler(), 13);
}

#[test]
fn compatibility_code_enters_through_cstar() {
    let mut m = Machine::long().in_user_mode();
    m.state.segments[1].selector = USER_CS32;
    m.state.segments[1].attributes = 0xc0fb;
    m.state.msrs.star = 0x0018_0008_0000_0000;
    m.state.msrs.cstar = CODE;
    m.code(32, |a| a.syscall().unwrap());
    m.code_at(64, CODE, CODE, |a| a.sysret().unwrap());
    m.run_steps(1);
    assert_eq!(m.state.rip, CODE);
    assert!(m.state.segments[1].long());
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.segments[1].selector), (USER_CODE + 2, 0x1b));
    assert!(!m.state.segments[1].long() && m.state.segments[1].big());
}

#[test]
fn faults_combine_to_double_faults() {
    // The handler of #GP is not present: a contributory fault after a contributory one.
    let mut m = Machine::long();
    m.long_gate(13, handler(13), 0x0e00, 0);
    m.state.gpr[0] = 0x1238;
    m.code(64, |a| a.mov(ds, eax).unwrap());
    assert_eq!(m.run_to_handler(), 8);
    assert_eq!((m.stack64(0), m.stack64(1)), (0, CODE));

    // The handler of #UD is not present: a contributory fault after a benign one is delivered, marked external.
    let mut m = Machine::long();
    m.long_gate(6, handler(6), 0x0e00, 0);
    m.code(64, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 11);
    assert_eq!(m.stack64(0), 6 * 8 + 3);

    // A page fault whose frame cannot be pushed.
    let mut m = Machine::long();
    m.long_gate(8, handler(8), 0x8e00, 1);
    m.page(DATA, 1, 0);
    m.page(DATA + 0x1000, 1, 0);
    m.state.gpr[1] = DATA;
    m.state.gpr[4] = DATA + 0x2000;
    m.code(64, |a| a.sidt(ptr(rcx)).unwrap());
    assert_eq!(m.run_to_handler(), 8);
    assert_eq!(m.state.cr2, DATA + 0x1ff8, "the second page fault's address");
    assert_eq!(m.stack64(4), DATA + 0x2000, "RSP is what it was");
}

#[test]
fn a_fault_on_the_way_to_the_double_fault_shuts_down() {
    let mut m = Machine::long();
    m.state.idtr.limit = 0;
    m.code(64, |a| a.ud2().unwrap());
    assert_eq!(m.run(), Stop::Shutdown);
    assert!(m.state.shut_down);
    assert_eq!((m.state.rip, m.state.gpr[4]), (CODE, KERNEL_STACK));
    assert_eq!(m.run(), Stop::Shutdown, "nothing wakes it");
}

#[test]
fn external_interrupts_wait_for_if_and_the_shadow() {
    let mut m = Machine::long();
    m.bus.vector = 0x40;
    m.bus.signals.interrupt = true;
    m.code(64, |a| {
        a.cli().unwrap();
        a.sti().unwrap();
        a.pushfq().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 0x40);
    assert_eq!(m.stack64(0), CODE + 3, "one instruction behind STI");
    assert_eq!(m.stack64(2) & RF, 0);
}

/// The interrupt comes exactly one instruction after STI, although the CPU's block of decoded code has further
/// instructions.
#[test]
fn an_interrupt_that_waited_comes_one_instruction_behind_sti() {
    let mut m = Machine::long();
    m.state.gpr[0] = 0;
    m.bus.vector = 0x40;
    m.bus.signals.interrupt = true;
    m.code(64, |a| {
        a.nop().unwrap();
        a.sti().unwrap();
        for _ in 0..8 {
            a.inc(eax).unwrap();
        }
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 0x40);
    assert_eq!((m.stack64(0), m.state.gpr[0]), (CODE + 4, 1));
}

#[test]
fn sti_hlt_is_woken() {
    let mut m = Machine::long();
    m.code(64, |a| {
        a.sti().unwrap();
        a.hlt().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.rip, CODE + 2);
    m.bus.vector = 0x41;
    m.bus.signals.interrupt = true;
    assert_eq!(m.run_to_handler(), 0x41);
    assert_eq!(m.stack64(0), CODE + 2);
    assert!(m.state.halted);
}

#[test]
fn mov_ss_holds_nmis_back_and_nmis_block_nmis() {
    let mut m = Machine::long();
    m.state.gpr[0] = KERNEL_DS.into();
    m.code(64, |a| {
        a.mov(ss, eax).unwrap();
        a.cli().unwrap();
        a.ud2().unwrap();
    });
    m.run_steps(1);
    m.bus.signals.nmi = true;
    assert_eq!(m.run_to_handler(), 2);
    assert_eq!(m.stack64(0), CODE + 3);
    assert!(m.state.nmi_blocked);
    m.bus.signals.nmi = true;
    assert_eq!(m.run(), Stop::Halted, "a second NMI waits");
    assert!(m.bus.signals.nmi);
    // IRETQ unblocks NMIs: the NMI arrives before the interrupted program continues.
    m.state.halted = false;
    m.state.rip = CODE + 0x200;
    m.code(64, |a| a.iretq().unwrap());
    assert_eq!(m.run_to_handler(), 2);
    assert_eq!(m.stack64(0), CODE + 3);
}

#[test]
fn a_call_gate_switches_to_the_kernels_stack() {
    let mut m = Machine::long().in_user_mode();
    let gate = 0xec00_u64 << 32 | u64::from(KERNEL_CS) << 16 | CODE & 0xffff | (CODE >> 16 & 0xffff) << 48;
    m.put64(GDT + u64::from(FREE1), gate);
    m.put64(GDT + u64::from(FREE1) + 8, 0);
    m.put64(DATA, 0);
    m.put(DATA + 4, &FREE1.to_le_bytes());
    m.state.gpr[1] = DATA;
    m.code(64, |a| a.db(&[0xff, 0x19]).unwrap());
    m.code_at(64, CODE, CODE, |a| a.db(&[0x48, 0xcb]).unwrap());
    m.code_at(64, USER_CODE + 2, USER_CODE + 2, |a| a.ud2().unwrap());
    m.run_steps(1);
    let frame: Vec<u64> = (0..4).map(|n| m.stack64(n)).collect();
    assert_eq!(frame, [USER_CODE + 2, USER_CS64.into(), USER_STACK, USER_DS.into()]);
    assert_eq!((m.state.rip, m.state.segments[1].selector, m.state.segments[2].selector), (CODE, 8, 0));
    m.run_steps(1);
    assert_eq!((m.state.rip, m.state.gpr[4]), (USER_CODE + 2, USER_STACK));
    assert_eq!((m.state.segments[1].selector, m.state.segments[2].selector), (USER_CS64, USER_DS));
}

#[test]
fn far_returns_change_between_64_bit_and_compatibility_mode() {
    let mut m = Machine::long();
    m.put64(DATA, CODE + 0x100);
    m.put64(DATA + 8, KERNEL_CS32.into());
    m.state.gpr[4] = DATA;
    m.code(64, |a| a.db(&[0x48, 0xcb]).unwrap());
    m.code_at(32, CODE + 0x100, CODE + 0x100, |a| a.db(&[0xea, 0, 2, 2, 0, 8, 0]).unwrap());
    m.code_at(64, CODE + 0x200, CODE + 0x200, |a| {
        a.swapgs().unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.rip, CODE + 0x204);
    assert_eq!(m.state.gpr[4], DATA + 16);
}

#[test]
fn a_push_to_a_stack_that_is_not_canonical_is_a_stack_fault() {
    let mut m = Machine::long();
    m.long_gate(12, handler(12), 0x8e00, 1);
    m.state.gpr[4] = 1 << 60;
    m.code(64, |a| a.pushfq().unwrap());
    assert_eq!(m.run_to_handler(), 12);
    assert_eq!((m.stack64(0), m.stack64(4)), (0, 1 << 60));
}

/// The delivery of the NMI raises a stack fault, whose handler has its own stack. When this handler reads a
/// misaligned operand from its stack, no trace of the failed delivery may remain.
#[test]
fn an_nmi_without_a_stack_leaves_nothing_behind() {
    let mut m = Machine::long();
    m.long_gate(12, handler(12), 0x8e00, 1);
    m.state.cr4 |= 0x200;
    m.state.gpr[4] = 1 << 60;
    m.bus.signals.nmi = true;
    m.state.gpr[3] = 0;
    // INC EBX; MOVAPS XMM0, [RSP + 1]: #GP(0), as for every operand.
    m.put(handler(12), &[0xff, 0xc3, 0x0f, 0x28, 0x44, 0x24, 1]);
    assert_eq!((m.run_to_handler(), m.state.gpr[3]), (13, 1));
}

#[test]
fn an_instruction_has_at_most_15_bytes() {
    for (prefixes, vector) in [(14, 3), (15, 13)] {
        for start in [CODE, CODE + 0xff8] {
            let mut m = Machine::long();
            m.state.rip = start;
            m.put(start, &[0x66; 15][..prefixes]);
            // CLI, INT3.
            m.put(start + prefixes as u64, &[0xfa, 0xcc]);
            assert_eq!(m.run_to_handler(), vector, "{prefixes} prefixes at {start:#x}");
        }
    }
}

/// The base of a TSS or local descriptor table has 64 bits. A refused descriptor does not change.
#[test]
fn lldt_and_ltr_refuse_bases_that_are_not_canonical() {
    const LDT_TYPE: u64 = 2;
    const TSS_TYPE: u64 = 9;
    for (kind, bytes) in [(LDT_TYPE, [0x0f, 0x00, 0xd0]), (TSS_TYPE, [0x0f, 0x00, 0xd8])] {
        for (upper, taken) in
            [(0x7fff, true), (0x8000, false), (0xffff_7fff, false), (0xffff_8000, true), (1 << 20, false)]
        {
            let mut m = Machine::long();
            let descriptor = tss_descriptor(DATA, kind);
            m.put64(GDT + u64::from(FREE1), descriptor);
            m.put64(GDT + u64::from(FREE1) + 8, upper);
            m.state.gpr[0] = FREE1.into();
            m.code(64, |a| {
                a.db(&bytes).unwrap();
                a.ud2().unwrap();
            });
            let vector = m.run_to_handler();
            assert_eq!(vector, if taken { 6 } else { 13 }, "type {kind}, upper half {upper:#x}");
            let loaded = if kind == LDT_TYPE { m.state.ldtr } else { m.state.tr };
            if taken {
                assert_eq!((loaded.selector, loaded.base), (FREE1, DATA | upper << 32));
            } else {
                assert_eq!((m.stack64(0), m.stack64(1)), (FREE1.into(), CODE));
                assert_ne!(loaded.selector, FREE1);
                assert_eq!(m.ram().load_u64(GDT + u64::from(FREE1)), descriptor);
            }
        }
    }
}

/// Two pages that are adjacent for the program, and far apart in RAM.
#[test]
fn an_access_that_crosses_a_page_goes_on_where_that_is_mapped() {
    const PAGE: u64 = 0x9_0000;
    const SECOND: u64 = 0xb_0000;
    let bytes: Vec<u8> = (1..=32).collect();
    for in_first in 0..=16 {
        let mut m = Machine::long();
        m.put64(TABLES + 0x3000 + 8 * ((PAGE >> 12) + 1), SECOND | 7);
        let address = PAGE + 0x1000 - in_first;
        let (first, second) = bytes[..16].split_at(in_first as usize);
        m.put(address, first);
        m.put(SECOND, second);
        m.state.cr4 |= 1 << 9;
        m.state.gpr[1] = address;
        m.code(64, |a| {
            // The load is executed twice, so that the second access finds both pages in the TLB.
            for register in [xmm1, xmm2] {
                a.movdqu(register, xmmword_ptr(rcx)).unwrap();
            }
            a.paddb(xmm2, xmm2).unwrap();
            a.movdqu(xmmword_ptr(rcx), xmm2).unwrap();
            a.mov(rax, qword_ptr(rcx + 4)).unwrap();
            a.hlt().unwrap();
        });
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!(m.state.xmm[1].to_le_bytes(), bytes[..16], "{in_first} bytes in the first page");
        let doubled: Vec<u8> = bytes[..16].iter().map(|byte| byte * 2).collect();
        let mut stored = [0; 16];
        m.ram().read_bytes(address, &mut stored[..in_first as usize]);
        m.ram().read_bytes(SECOND, &mut stored[in_first as usize..]);
        assert_eq!(stored, doubled[..], "{in_first} bytes in the first page");
        assert_eq!(m.state.gpr[0].to_le_bytes(), doubled[4..12], "{in_first} bytes in the first page");
    }
}

/// Loads an XMM register across the end of the lowest page, whose address is 0.
#[test]
fn a_vector_that_leaves_the_lowest_page_ends_in_the_next() {
    const TABLE: u64 = 0xe_0000;
    let mut m = Machine::long();
    // Move the interrupt table away from a page that will be remapped.
    let mut gates = [0; 0x1000];
    m.ram().read_bytes(IDT, &mut gates);
    m.put(TABLE, &gates);
    m.state.idtr.base = TABLE;
    m.put64(TABLES + 0x3000 + 8, DATA | 7);
    m.put(0xff8, &[0x11; 16]);
    m.put(DATA, &[0x22; 8]);
    m.state.cr4 |= 1 << 9;
    m.state.gpr[1] = 0xff8;
    m.code(64, |a| {
        a.movdqu(xmm0, xmmword_ptr(rcx - 0x10)).unwrap();
        a.movdqu(xmm1, xmmword_ptr(rcx)).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.xmm[1], 0x2222_2222_2222_2222_1111_1111_1111_1111);
}

#[test]
fn a_byte_at_a_page_s_end_is_one_byte() {
    let mut m = Machine::long();
    m.page(DATA + 0x1000, 1, 0);
    m.put(DATA + 0xfff, &[0xa5]);
    m.state.cr4 |= 1 << 9;
    m.state.gpr[1] = DATA + 0xfff;
    m.code(64, |a| {
        a.pinsrb(xmm0, byte_ptr(rcx), 3).unwrap();
        a.hlt().unwrap();
    });
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!(m.state.xmm[0], 0xa5 << 24);
}

/// Nothing is mapped at these addresses. An access raises #PF if all its bytes have canonical addresses, otherwise #GP.
#[test]
fn the_last_byte_of_an_access_may_be_the_last_canonical_one() {
    for (address, vector) in [(0x7fff_ffff_fff8, 14), (0x7fff_ffff_fff9, 13), (0x7fff_ffff_ffff, 13)] {
        let mut m = Machine::long();
        m.state.gpr[1] = address;
        m.code(64, |a| a.mov(rax, qword_ptr(rcx)).unwrap());
        assert_eq!(m.run_to_handler(), vector, "{address:#x}");
    }
}

/// A segment prefix applies to the source of a string instruction and to the table of XLAT, never to the target (SDM
/// vol. 2).
#[test]
fn string_sources_may_have_another_segment() {
    const FS: u8 = 0x64;
    const SOURCE: u64 = 0x10;
    const TARGET: u64 = DATA + 0x800;
    // The code, the byte in AL after it, and the byte at the target.
    let cases = [
        (&[FS, 0xac][..], 0x77, 0x55),
        (&[FS, 0xa4], 0x77, 0x77),
        (&[0xf3, FS, 0xa4], 0x77, 0x77),
        (&[FS, 0xa6], 0x77, 0x55),
        (&[FS, 0xaa], 0x77, 0x77),
        (&[FS, 0xd7], 0x66, 0x55),
    ];
    for (code, low, target) in cases {
        let mut m = Machine::long();
        m.state.segments[SegReg::Fs as usize].base = DATA;
        m.put(DATA + SOURCE, &[0x77]);
        m.put(DATA + SOURCE + 0x77, &[0x66]);
        m.put(TARGET, &[0x55]);
        m.state.gpr[0] = 0x77;
        m.state.gpr[1] = 1;
        m.state.gpr[3] = SOURCE;
        m.state.gpr[6] = SOURCE;
        m.state.gpr[7] = TARGET;
        m.put(CODE, &[code, &[0xf4]].concat());
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!(m.state.rip, CODE + code.len() as u64 + 1, "{code:x?}");
        let mut found = [0];
        m.ram().read_bytes(TARGET, &mut found);
        assert_eq!((m.state.gpr[0], found[0]), (low, target), "{code:x?}");
        if code.last() == Some(&0xa6) {
            // 0x77 compared with 0x55 is neither equal nor below.
            assert_eq!(m.state.rflags & 0x41, 0, "{code:x?}");
        }
    }
}
