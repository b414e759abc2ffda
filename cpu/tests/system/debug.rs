//! Single-stepping, RF, the guest's debug registers.

use cpu::{AddressKind, Met, Stop, SystemCalls, Trap, Traps, WatchKind, Watchpoint};
use iced_x86::code_asm::*;

use crate::harness::*;

const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;
const BS: u64 = 1 << 14;
const BD: u64 = 1 << 13;
const ONES: u64 = 0xffff_0ff0;

#[test]
fn tf_traps_after_each_instruction() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.code(64, |a| {
        a.cli().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.state.dr6), (CODE + 1, ONES | BS));
    assert_ne!(m.stack64(2) & TF, 0);
    assert_eq!(m.state.rflags & TF, 0);
    assert_eq!(m.counts.steps, 3, "CLI, the delivery, HLT");
}

#[test]
fn popf_that_sets_tf_traps_after_the_next_instruction() {
    let mut m = Machine::long();
    m.put64(DATA, 2 | TF);
    m.state.gpr[4] = DATA;
    m.code(64, |a| {
        a.popfq().unwrap();
        a.cli().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!(m.stack64(0), CODE + 2);
}

#[test]
fn a_software_interrupt_is_not_followed_by_the_trap() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.code(64, |a| a.int3().unwrap());
    assert_eq!(m.run_to_handler(), 3);
    assert_eq!(m.state.dr6, ONES);
}

#[test]
fn mov_ss_holds_the_trap_back() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.gpr[0] = KERNEL_DS.into();
    m.code(64, |a| {
        a.mov(ss, eax).unwrap();
        a.cli().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!(m.stack64(0), CODE + 3);
}

/// With TF set, no single-step trap follows MOV SS (SDM vol. 3, 6.8.3). If the next instruction calls a handler, no
/// trap comes in that handler either.
#[test]
fn mov_ss_has_no_trap_of_its_own() {
    for next in [&[0xcc][..], &[0xcd, 3], &[0x0f, 0x05]] {
        for user in [false, true] {
            let mut m = debugged(user);
            m.state.rflags |= TF;
            let rip = m.state.rip;
            m.code(64, |a| {
                a.mov(ss, eax).unwrap();
                a.db(next).unwrap();
            });
            assert_eq!(m.run_to_handler(), 3, "{next:x?}, user {user}");
            assert_eq!(m.state.dr6, ONES, "{next:x?}, user {user}");
            if next[0] != 0x0f {
                assert_eq!(m.stack64(0), rip + 2 + next.len() as u64);
            }
        }
    }
    let mut m = debugged(false);
    m.state.rflags |= TF;
    m.code(64, |a| {
        a.mov(ss, eax).unwrap();
        a.ud2().unwrap();
    });
    assert_eq!((m.run_to_handler(), m.stack64(0), m.state.dr6), (6, CODE + 2, ONES));
}

/// A machine whose EAX holds a selector for SS. User code may execute INT3 and SYSCALL, and both use handler 3.
fn debugged(user: bool) -> Machine {
    let mut m = Machine::long();
    m.long_gate(3, handler(3), 0xee00, 0);
    m.state.msrs.star = u64::from(KERNEL_CS) << 32;
    m.state.msrs.lstar = handler(3);
    m.state.msrs.sfmask = TF;
    if user {
        m = m.in_user_mode();
    }
    m.state.gpr[0] = if user { USER_DS } else { KERNEL_DS }.into();
    m.put64(DATA, m.state.gpr[0]);
    m
}

/// If MOV SS hits a data breakpoint, the debug exception comes after the next instruction. If that instruction is
/// INT1, INT1 and breakpoint make one debug exception. If that instruction is INT3, INT n or SYSCALL, the exception
/// comes before its handler's first instruction. User code and privileged code behave alike.
#[test]
fn mov_ss_holds_a_data_breakpoint_back_into_the_next_instruction() {
    const READS_AND_WRITES: u64 = 3 << 16;
    for (next, traps_in_handler) in
        [(&[0xf1][..], false), (&[0xcc], true), (&[0xcd, 3], true), (&[0x0f, 0x05], true)]
    {
        for user in [false, true] {
            let mut m = debugged(user);
            m.state.dr[1] = DATA;
            m.state.dr7 = 0x400 | 1 << 2 | READS_AND_WRITES << 4;
            m.state.gpr[7] = DATA;
            let behind = m.state.rip + 2 + next.len() as u64;
            m.code(64, |a| {
                a.mov(ss, word_ptr(rdi)).unwrap();
                a.db(next).unwrap();
            });
            assert_eq!(m.run_to_handler(), 1, "{next:x?}, user {user}");
            assert_eq!(m.state.dr6, ONES | 2, "{next:x?}, user {user}");
            assert_eq!(m.state.pending_debug, 0);
            let expected = if traps_in_handler { handler(3) } else { behind };
            assert_eq!(m.stack64(0), expected, "{next:x?}, user {user}");
        }
    }
}

/// On AMD's processors, MOV SS delays traps but not faults.
#[test]
fn instruction_breakpoints_are_met_behind_mov_ss() {
    let mut m = debugged(false);
    m.state.rflags |= TF;
    m.state.dr[0] = DATA;
    m.state.dr[1] = CODE + 2;
    m.state.dr7 = 0x400 | 1 | 1 << 2 | 3 << 16;
    m.state.gpr[7] = DATA;
    m.code(64, |a| {
        a.mov(ss, word_ptr(rdi)).unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.state.dr6), (CODE + 2, ONES | 3), "with what MOV SS met");
}

/// If SYSRET sets TF, the single-step trap comes right after SYSRET. If POPF or IRET sets TF, the trap comes after
/// the next instruction.
#[test]
fn sysret_that_sets_tf_traps_at_once() {
    for (tf_before, tf_after) in [(false, true), (true, true), (true, false)] {
        let mut m = debugged(false);
        m.state.msrs.star |= (0x18 | 3) << 48;
        m.state.rflags |= if tf_before { TF } else { 0 };
        m.state.gpr[1] = USER_CODE;
        m.state.gpr[11] = 2 | if tf_after { TF } else { 0 };
        m.code(64, |a| a.sysretq().unwrap());
        m.code_at(64, USER_CODE, USER_CODE, |a| {
            a.nop().unwrap();
            a.ud2().unwrap();
        });
        let (vector, rip, cause) =
            if tf_after { (1, USER_CODE, ONES | BS) } else { (6, USER_CODE + 1, ONES) };
        assert_eq!(m.run_to_handler(), vector, "TF {tf_before}, then {tf_after}");
        assert_eq!((m.stack64(0), m.stack64(1), m.state.dr6), (rip, u64::from(USER_CS64), cause));
    }
}

#[test]
fn hlt_under_tf_traps() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.code(64, |a| a.hlt().unwrap());
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!(m.stack64(0), CODE + 1);
}

#[test]
fn a_trap_comes_before_interrupts() {
    let mut m = Machine::long();
    m.state.rflags |= TF | 0x200;
    m.bus.vector = 0x40;
    m.code(64, |a| {
        a.out(0x80, al).unwrap();
        a.ud2().unwrap();
    });
    m.run_steps(1);
    m.bus.signals.interrupt = true;
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!(m.bus.acknowledged, 0);
}

#[test]
fn instruction_breakpoints_are_faults_that_rf_passes() {
    let mut m = Machine::long();
    m.state.dr[2] = CODE + 1;
    m.state.dr7 = 0x400 | 1 << 4;
    m.code(64, |a| {
        a.cli().unwrap();
        a.cli().unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.state.dr6), (CODE + 1, ONES | 4));
    assert_eq!(m.stack64(2) & RF, 0);
    // The handler sets RF in the frame and returns.
    m.put64(m.state.gpr[4] + 16, m.stack64(2) | RF);
    m.state.halted = false;
    m.state.rip = CODE + 0x200;
    m.code(64, |a| a.iretq().unwrap());
    assert_eq!(m.run_to_handler(), 6);
    assert_eq!(m.stack64(0), CODE + 2);
    assert_eq!(m.state.rflags & RF, 0);
}

#[test]
fn data_breakpoints_trap_after_the_access() {
    const WRITES: u64 = 1 << 16;
    const ALL: u64 = 3 << 16;
    const EIGHT: u64 = 2 << 18;
    for (bits, offset, write, hit) in [
        (WRITES | EIGHT, 0, true, true),
        (WRITES | EIGHT, 4, true, true),
        (WRITES | EIGHT, 0, false, false),
        (ALL | EIGHT, 0, false, true),
        (WRITES, 8, true, false),
        (WRITES, u64::MAX, true, true),
    ] {
        let mut m = Machine::long();
        m.state.dr[0] = DATA;
        m.state.dr7 = 0x400 | 1 | bits;
        m.state.gpr[1] = DATA.wrapping_add(offset);
        m.code(64, |a| {
            if write {
                a.sidt(ptr(rcx)).unwrap()
            } else {
                a.lfs(eax, fword_ptr(rcx)).unwrap()
            }
            a.ud2().unwrap();
        });
        let vector = m.run_to_handler();
        assert_eq!(vector, if hit { 1 } else { 6 }, "{bits:#x} {offset:#x}");
        if hit {
            assert_eq!((m.stack64(0), m.state.dr6 & 0xf), (CODE + 3, 1));
        }
    }
}

#[test]
fn general_detection_guards_the_debug_registers() {
    let mut m = Machine::long();
    m.state.dr7 |= 1 << 13;
    m.code(64, |a| a.mov(dr0, rax).unwrap());
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.state.dr6), (CODE, ONES | BD));
    assert_eq!(m.state.dr7, 0x400, "delivery clears GD");
}

#[test]
fn dr4_and_dr5_are_aliases_without_de() {
    let mut m = Machine::long();
    m.state.dr7 = 0x402;
    m.code(64, |a| {
        a.mov(rax, dr5).unwrap();
        a.hlt().unwrap();
    });
    m.run();
    assert_eq!(m.state.gpr[0], 0x402);
    m.state.halted = false;
    m.state.rip = CODE;
    m.state.cr4 |= 8;
    assert_eq!(m.run_to_handler(), 6);
}

#[test]
fn btf_traps_on_taken_branches_only() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.msrs.debugctl = 2;
    for (n, word) in (0..).zip([CODE + 0x100, KERNEL_CS.into()]) {
        m.put64(DATA + 8 * n, word);
    }
    m.state.gpr[4] = DATA;
    m.code(64, |a| {
        a.cli().unwrap();
        a.db(&[0x48, 0xcb]).unwrap();
    });
    m.code_at(64, CODE + 0x100, CODE + 0x100, |a| a.ud2().unwrap());
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!(m.stack64(0), CODE + 0x100);
    assert_eq!(m.state.msrs.debugctl, 0, "the exception clears BTF");
}

/// The iterations of a repeated instruction do not count as branches, so no branch trap comes between two
/// iterations.
#[test]
fn btf_does_not_trap_between_iterations() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.msrs.debugctl = 2;
    (m.state.gpr[1], m.state.gpr[6], m.state.gpr[7]) = (3, DATA, DATA + 0x100);
    m.code(64, |a| {
        a.rep().movsb().unwrap();
        a.nop().unwrap();
        a.jmp(CODE + 0x100).unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.state.gpr[1]), (CODE + 0x100, 0));
}

#[test]
fn system_calls_are_counted_and_trapped_by_number() {
    let mut m = Machine::long();
    m.state.msrs.star = u64::from(KERNEL_CS) << 32;
    m.state.msrs.lstar = handler(0x90);
    m.state.msrs.efer |= 1;
    m.state.gpr[0] = 39;
    m.code(64, |a| a.syscall().unwrap());
    let traps = |numbers: &[u64]| Traps {
        system_calls: SystemCalls::Numbered(numbers.iter().copied().collect()),
        ..Traps::default()
    };
    for (traps, expected) in [
        (traps(&[38]), Stop::Halted),
        (traps(&[38, 39]), Stop::Met(Met::Trap(Trap::SystemCall(39)))),
        (
            Traps { system_calls: SystemCalls::All, ..Traps::default() },
            Stop::Met(Met::Trap(Trap::SystemCall(39))),
        ),
    ] {
        m.load();
        m.cpu.set_traps(traps);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), expected);
        assert_eq!(m.cpu.system_calls(), m.counts.system_calls + 1);
        if expected != Stop::Halted {
            assert_eq!((m.cpu.steps(), m.cpu.rip()), (m.counts.steps + 1, handler(0x90)));
        }
    }
}

#[test]
fn int_80h_is_a_system_call_and_other_vectors_are_not() {
    let mut m = Machine::long();
    m.code(64, |a| {
        a.int(0x80).unwrap();
    });
    m.run_to_handler();
    assert_eq!(m.counts.system_calls, 1);
    let mut m = Machine::long();
    m.code(64, |a| a.int(0x81).unwrap());
    m.run_to_handler();
    assert_eq!(m.counts.system_calls, 0);
}

#[test]
fn sysenter_is_a_system_call_and_sysexit_is_not() {
    let mut m = Machine::protected().in_user_mode();
    m.state.msrs.sysenter_cs = KERNEL_CS.into();
    m.state.msrs.sysenter_esp = KERNEL_STACK;
    m.state.msrs.sysenter_eip = CODE;
    m.state.gpr[0] = 39;
    m.state.gpr[2] = USER_CODE + 0x100;
    m.code(32, |a| a.sysenter().unwrap());
    m.code_at(32, CODE, CODE, |a| a.sysexit().unwrap());
    m.load();
    m.cpu.set_traps(Traps { system_calls: SystemCalls::All, ..Traps::default() });
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Trap(Trap::SystemCall(39))));
    assert_eq!((m.cpu.steps(), m.cpu.rip(), m.cpu.system_calls()), (1, CODE, 1));
    m.cpu.set_traps(Traps::default());
    assert_eq!(m.cpu.run(&mut m.bus, 2, u64::MAX), Stop::Budget);
    assert_eq!((m.cpu.rip(), m.cpu.system_calls()), (USER_CODE + 0x100, 1));
    // A SYSENTER that faults is not a system call.
    m.state.msrs.sysenter_cs = 0;
    assert_eq!((m.run_to_handler(), m.counts.system_calls), (13, 0));
}

#[test]
fn returns_from_handlers_and_system_calls_are_trapped() {
    let returns = Traps { returns: true, ..Traps::default() };
    let mut m = Machine::protected().in_user_mode();
    m.state.msrs.sysenter_cs = KERNEL_CS.into();
    m.state.msrs.sysenter_esp = KERNEL_STACK;
    m.state.msrs.sysenter_eip = CODE;
    m.state.gpr[2] = USER_CODE + 0x100;
    m.code(32, |a| a.sysenter().unwrap());
    m.code_at(32, CODE, CODE, |a| a.sysexit().unwrap());
    m.load();
    m.cpu.set_traps(returns.clone());
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Trap(Trap::Return)));
    assert_eq!((m.cpu.steps(), m.cpu.rip()), (2, USER_CODE + 0x100));

    let mut m = Machine::long();
    m.code(64, |a| {
        a.mov(rax, rsp).unwrap();
        a.push(0).unwrap();
        a.push(rax).unwrap();
        a.pushfq().unwrap();
        a.push(i32::from(KERNEL_CS)).unwrap();
        a.push(CODE as i32 + 0x100).unwrap();
        a.iretq().unwrap();
    });
    m.load();
    let begin = m.counts.steps;
    m.cpu.set_traps(returns);
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Trap(Trap::Return)));
    assert_eq!((m.cpu.steps(), m.cpu.rip()), (begin + 7, CODE + 0x100));
}

/// The delivery of an exception or interrupt is a separate step. The run reports the trap after this step even if
/// the step is the last of the budget.
#[test]
fn deliveries_are_trapped_by_vector() {
    for budget in [2, 100] {
        let mut m = Machine::long();
        m.state.rflags |= 0x200;
        m.bus.vector = 0x40;
        m.code(64, |a| {
            a.out(0x80, al).unwrap();
            a.ud2().unwrap();
        });
        m.load();
        m.cpu.set_traps(Traps { vectors: [0x40, 6].into_iter().collect(), ..Traps::default() });
        let begin = m.counts.steps;
        assert_eq!(m.cpu.run(&mut m.bus, begin + 1, u64::MAX), Stop::Budget);
        m.bus.signals.interrupt = true;
        assert_eq!(m.cpu.run(&mut m.bus, begin + budget, u64::MAX), Stop::Met(Met::Trap(Trap::Vector(0x40))));
        assert_eq!((m.cpu.steps(), m.cpu.rip()), (begin + 2, handler(0x40)));
        let mut fault = m.cpu.state();
        fault.rip = CODE + 2;
        m.cpu.set_state(&fault);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Trap(Trap::Vector(6))));
        assert_eq!(m.cpu.rip(), handler(6));
    }
}

#[test]
fn a_breakpoint_where_nothing_is_mapped_stops_before_the_fault() {
    let mut m = Machine::long();
    let nowhere = 0x1234_5000_0000;
    m.state.rip = nowhere;
    m.load();
    m.cpu.set_breakpoints([(AddressKind::Linear, nowhere)]);
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Breakpoint));
    assert_eq!((m.cpu.rip(), m.cpu.steps()), (nowhere, m.counts.steps));
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, m.cpu.steps()), Stop::Halted, "in the handler of the fault");
    m.state = m.cpu.state();
    assert_eq!(m.stack64(1), nowhere);
}

/// The test runs twice. The second time, a breakpoint of the guest that is never hit makes the CPU execute single
/// steps.
#[test]
fn a_breakpoint_stops_beside_the_guest_s_own_and_not_where_the_run_began() {
    for own in [false, true] {
        let mut m = Machine::long();
        m.code(64, |a| {
            a.nop().unwrap();
            a.nop().unwrap();
            a.hlt().unwrap();
        });
        if own {
            m.state.dr[0] = DATA;
            m.state.dr7 |= 1;
        }
        m.load();
        m.cpu.set_breakpoints([CODE, CODE + 1].map(|address| (AddressKind::Linear, address)));
        let origin = m.counts.steps;
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Breakpoint));
        assert_eq!((m.cpu.rip(), m.cpu.steps()), (CODE, origin));
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, origin), Stop::Met(Met::Breakpoint));
        assert_eq!((m.cpu.rip(), m.cpu.steps()), (CODE + 1, origin + 1));
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, origin + 1), Stop::Halted);
        assert_eq!(m.cpu.rip(), CODE + 3);
    }
}

/// The breakpoint has the same page offset as RIP. The CPU compares the page offsets before it compares the pages.
#[test]
fn a_breakpoint_of_another_page_does_not_stop_where_nothing_is_mapped() {
    for flags in [0, RF] {
        let mut m = Machine::long();
        m.state.rip = 0x1234_5000_0000;
        m.state.rflags |= flags;
        m.load();
        m.cpu.set_breakpoints([(AddressKind::Linear, DATA)]);
        assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Halted);
        assert_eq!(m.cpu.rip(), handler(14) + 1);
    }
}

/// A stop before a non-canonical address must leave no trace of the fault that the address would raise.
#[test]
fn a_breakpoint_at_no_canonical_address_leaves_nothing_behind() {
    let nowhere = 0x8000_0000_0000_0000;
    let mut m = Machine::long();
    m.state.gpr[4] = DATA;
    // MOVAPS XMM0, [RSP + 1] raises #GP(0) for its alignment.
    m.put(CODE, &[0x0f, 0x28, 0x44, 0x24, 1]);
    m.state.cr4 |= 0x200;
    let here = m.state.clone();
    m.state.rip = nowhere;
    m.load();
    m.cpu.set_breakpoints([(AddressKind::Linear, nowhere)]);
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Met(Met::Breakpoint));
    m.cpu.set_registers(&here);
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Halted);
    assert_eq!(m.cpu.rip(), handler(13) + 1);
}

#[test]
fn a_fault_under_tf_is_not_followed_by_the_trap() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.gpr[1] = 1 << 40;
    m.code(64, |a| a.mov(eax, dword_ptr(rcx)).unwrap());
    assert_eq!(m.run_to_handler(), 14);
    assert_eq!(m.state.dr6, ONES);
}

/// A stop at a watchpoint must not lose the pending single-step trap.
#[test]
fn a_trap_that_waits_behind_a_watchpoint_comes_when_the_run_goes_on() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.gpr[1] = DATA;
    m.code(64, |a| {
        a.mov(dword_ptr(rcx), eax).unwrap();
        a.ud2().unwrap();
    });
    m.load();
    let (space, kind) = (AddressKind::Linear, WatchKind::Write);
    m.cpu.set_watchpoints([Watchpoint { space, address: DATA, length: 4, kind }]);
    let stop = m.cpu.run(&mut m.bus, u64::MAX, u64::MAX);
    assert!(matches!(stop, Stop::Met(Met::Watchpoint(_))), "{stop:?}");
    assert_eq!(m.cpu.run(&mut m.bus, u64::MAX, u64::MAX), Stop::Halted);
    assert_eq!(m.cpu.rip(), handler(1) + 1);
}

#[test]
fn a_store_onto_code_under_tf_is_followed_by_the_trap() {
    let mut m = Machine::long();
    m.state.rflags |= TF;
    m.state.gpr[1] = CODE + 2;
    m.state.gpr[0] = 0x9090_9090;
    m.code(64, |a| {
        a.mov(dword_ptr(rcx), eax).unwrap();
        a.ud2().unwrap();
    });
    assert_eq!(m.run_to_handler(), 1);
    assert_eq!((m.stack64(0), m.counts.steps), (CODE + 2, 3));
}
