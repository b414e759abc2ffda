//! Steps forward that follow their thread.

use std::collections::BTreeSet;

use gdb::{DebugTarget, FIRST_CPU, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use history::never;
use tiny_guest::linux::programs::{MAPPED, SIGNALS, TICKS};

use crate::guest::{Asked, linux, programs, programs_of_unknown_kernel};

/// A step of `target` with gdb's command `next`, which passes calls of the system.
fn next(target: &mut GdbTarget<'_>) -> Stop {
    target.ask("pass-calls");
    target.step()
}

fn in_range(target: &mut GdbTarget<'_>, range: std::ops::Range<u64>) -> Stop {
    target.step_range(FIRST_CPU, range, &BTreeSet::new(), &mut never).unwrap()
}

#[test]
fn a_step_over_a_fault_ends_after_the_instruction() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("touch");
        let begun = target.position();
        assert_eq!((target.step(), names.at(&mut target)), (Stop::Step, "after_touch".to_string()));
        assert!(target.position() > begun + 40, "the handler ran");
        assert_eq!(target.take_message(), None);
    }
}

#[test]
fn a_step_into_a_system_call_may_be_passed() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let entry = guest.place("entry_SYSCALL_64");
        let at = guest.go_to("write");
        let (mut target, names) = guest.target();
        assert_eq!((target.step(), target.registers().rip), (Stop::Step, entry));
        target.ask(&format!("goto {at}"));
        assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Step, "after_write".to_string()));
        // Further steps also pass calls, until gdb shows a place.
        target.ask(&format!("goto {at}"));
        assert_eq!((target.step(), names.at(&mut target)), (Stop::Step, "after_write".to_string()));
        target.ask(&format!("goto {at}"));
        target.shown();
        assert_eq!((target.step(), target.registers().rip), (Stop::Step, entry));
    }
}

#[test]
fn a_system_call_by_an_interrupt_may_be_passed() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("int80");
        let at = target.position();
        target.step();
        assert_eq!(target.registers().rip, names.of("asm_int80_emulation"));
        target.ask(&format!("goto {at}"));
        assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Step, "after_int80".to_string()));
        assert_eq!(target.position(), at + 3);
    }
}

#[test]
fn a_breakpoint_in_a_system_call_ends_the_step() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("write");
    let call = target.position();
    target.break_at(names.of("sys_write"));
    assert_eq!(next(&mut target), Stop::Breakpoint(names.of("sys_write")));
    // At a breakpoint the kernel's first instruction is shown.
    let entry = names.of("entry_SYSCALL_64");
    target.break_at(entry);
    target.ask(&format!("goto {call}"));
    assert_eq!((next(&mut target), target.registers().rip), (Stop::Step, entry));
    target.clear_breakpoint(entry);
    target.ask(&format!("goto {call}"));
    let range = names.of("write")..names.of("after_write");
    assert_eq!(in_range(&mut target, range.clone()), Stop::Breakpoint(names.of("sys_write")));
    target.clear_breakpoint(names.of("sys_write"));
    let mapped = Watchpoint { address: u64::from(MAPPED) + 0x20_0000, length: 8, kind: WatchKind::Read };
    target.set_watchpoint(mapped).unwrap();
    target.ask(&format!("goto {call}"));
    let hit = Stop::Watchpoint { kind: WatchKind::Read, address: mapped.address };
    assert_eq!(next(&mut target), hit);
    target.ask(&format!("goto {call}"));
    assert_eq!(in_range(&mut target, range), hit);
}

#[test]
fn the_kernels_own_steps_pass_faults_and_breakpoint_exceptions() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("copy");
    let begun = target.position();
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, names.of("copy") + 3));
    assert!(target.position() > begun + 40, "the handler ran");
    target.step();
    assert_eq!(target.registers().rip, names.of("fault_with_repair"));
    // The handler returns to other code.
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, names.of("after_repair")));

    let mut guest = linux();
    guest.go_to("do_syscall_64");
    let mut target = guest.target();
    target.ask("goto +2");
    let before = target.registers();
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, before.rip + 1));
    assert_eq!(target.registers().rsp, before.rsp);
}

#[test]
fn a_signal_during_a_step_is_passed_with_its_handler() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("kill");
        let at = target.position();
        assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Step, "after_kill".to_string()));
        assert_eq!(target.word(SIGNALS), 1);
        target.ask(&format!("goto {at}"));
        let range = names.of("kill")..names.of("after_kill");
        assert_eq!(
            (in_range(&mut target, range), names.at(&mut target)),
            (Stop::Step, "after_kill".to_string())
        );
        // A breakpoint in the handler ends the step.
        target.ask(&format!("goto {at}"));
        target.break_at(names.of("handler_returns"));
        assert_eq!(next(&mut target), Stop::Breakpoint(names.of("handler_returns")));
    }
}

#[test]
fn a_fault_that_leads_to_a_signal_ends_the_step_at_the_handler() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("bad_touch");
        let at = target.position();
        assert_eq!((target.step(), names.at(&mut target)), (Stop::Step, "handler".to_string()));
        // The handler jumps out, so the kernel returns to the program only at the next system call.
        target.ask(&format!("goto {at}"));
        assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Step, "after_yield".to_string()));
    }
}

#[test]
fn a_step_waits_until_its_thread_runs_again() {
    // Without a known kernel, CR3 and the base of FS tell the threads of programs apart.
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("yield");
        let stack = target.registers().rsp;
        assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Step, "after_yield".to_string()));
        assert_eq!(target.registers().rsp, stack);
    }
    let mut guest = programs();
    let (mut target, names) = guest.target_at("yield");
    let at = target.position();
    target.ask(&format!("goto {at}"));
    let range = names.of("yield")..names.of("after_yield");
    assert_eq!(
        (in_range(&mut target, range), names.at(&mut target)),
        (Stop::Step, "after_yield".to_string())
    );
    // A breakpoint of the user stops in other threads, too.
    target.ask(&format!("goto {at}"));
    target.break_at(names.of("beta_yields"));
    assert_eq!(next(&mut target), Stop::Breakpoint(names.of("beta_yields")));
}

#[test]
fn the_kernels_switch_to_another_thread_is_one_step() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("switch");
    let (at, alphas) = (target.position(), target.registers().rsp);
    // At the switch the stack is already the other thread's. The next place of `alpha` is behind its switch back.
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, names.of("switch") + 3));
    assert_ne!(target.registers().rsp, alphas);
    assert!(target.position() > at + 100, "the other thread ran");
    target.step();
    assert_eq!(target.registers().rip, names.of("switched_back"));
}

#[test]
fn a_step_of_a_thread_that_ends_stays_where_it_ran_last() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("exit");
    assert_eq!(next(&mut target), Stop::Elsewhere);
    assert_eq!(target.take_message().unwrap(), "The thread 6 (beta) has ended: it ran here last.");
    assert_eq!(target.registers().rip, names.of("switch") + 3);
}

#[test]
fn a_step_into_another_program_says_so() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("exec");
    let at = target.position();
    let said = "The thread 5 (alpha) executes another program, which begins here.";
    assert_eq!((next(&mut target), names.at(&mut target)), (Stop::Elsewhere, "second".to_string()));
    assert_eq!(target.take_message().unwrap(), said);
    target.ask(&format!("goto {at}"));
    let range = names.of("exec")..names.of("after_exec");
    assert_eq!(
        (in_range(&mut target, range), names.at(&mut target)),
        (Stop::Elsewhere, "second".to_string())
    );
    assert_eq!(target.take_message().unwrap(), said);
}

#[test]
fn an_interrupt_during_a_step_is_passed() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, _) = guest.target();
        target.ask("goto 100000");
        target.ask("forward-to interrupt");
        let ticks = target.word(TICKS);
        target.ask("goto -1");
        let (at, before) = (target.position(), target.registers());
        assert_eq!(target.step(), Stop::Step);
        let after = target.registers();
        assert_eq!((after.cs, after.rsp, target.word(TICKS)), (before.cs, before.rsp, ticks + 1));
        assert!(
            after.rip != before.rip && after.rip.abs_diff(before.rip) <= 2,
            "the loop's next instruction"
        );
        assert_eq!(target.position(), at + 9);
        // In this mode steps follow the CPU.
        target.ask(&format!("goto {at}"));
        target.ask("step-interrupts on");
        assert_eq!(target.step(), Stop::Step);
        assert_eq!((target.registers().cs, target.position()), (8, at + 1));
        assert_eq!((target.step_back(), target.registers()), (Stop::Step, before.clone()));
        assert_eq!(in_range(&mut target, before.rip - 9..before.rip + 9), Stop::Step);
        assert_eq!((target.registers().cs, target.position()), (8, at + 1));
    }
}

#[test]
fn a_range_step_ends_at_breakpoints_and_behind_the_range() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("call_outer");
    let at = target.position();
    let (begin, end) = (names.of("outer"), names.of("inner"));
    let step = |target: &mut GdbTarget<'_>, breakpoints: &[u64]| {
        target.ask(&format!("goto {at}"));
        target.step();
        let breakpoints = breakpoints.iter().copied().collect();
        target.step();
        target.step_range(FIRST_CPU, begin..end, &breakpoints, &mut never).unwrap()
    };
    assert_eq!((step(&mut target, &[]), names.at(&mut target)), (Stop::Step, "inner".to_string()));
    let whole = begin..names.of("recurse");
    assert_eq!(
        (in_range(&mut target, whole.clone()), names.at(&mut target)),
        (Stop::Step, "after_outer".to_string())
    );
    // gdb's own list of breakpoints counts, too.
    let inner = names.of("inner");
    assert_eq!(step(&mut target, &[inner]), Stop::Breakpoint(inner));
    target.break_at(inner);
    assert_eq!(step(&mut target, &[inner]), Stop::Breakpoint(inner));
    // The target evaluates the conditions of its breakpoints itself.
    target.set_conditions(inner, &[gdb::Condition::new([0x22, 0, 0x27])]);
    assert_eq!(step(&mut target, &[inner]), Stop::Step);
    assert_eq!(
        (in_range(&mut target, whole), names.at(&mut target)),
        (Stop::Step, "after_outer".to_string())
    );
}

#[test]
fn a_fault_in_the_middle_of_a_range_is_passed() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, names) = guest.target_at("after_write");
        let range = names.of("after_write")..names.of("after_touch");
        let stop = in_range(&mut target, range);
        assert_eq!((stop, names.at(&mut target)), (Stop::Step, "after_touch".to_string()));
    }
}

#[test]
fn a_watchpoint_during_a_range_step_is_told() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("handler");
    let signals = Watchpoint { address: SIGNALS, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(signals).unwrap();
    let range = names.of("handler")..names.of("handler_returns") + 1;
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: SIGNALS };
    let after_write = names.of("call_in_handler") - 5;
    assert_eq!((in_range(&mut target, range), target.registers().rip), (hit, after_write));
}

#[test]
fn a_step_that_is_interrupted_elsewhere_stays() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("yield");
    let at = target.position();
    target.ask("pass-calls");
    assert_eq!(target.step_forward(FIRST_CPU, &mut || true), Ok(Stop::Interrupted));
    // The program's own step into the kernel is done.
    assert_eq!((target.registers().rip, target.position()), (names.of("entry_SYSCALL_64"), at + 1));
    let (mut target, names) = guest.target_at("slow");
    let range = names.of("slow")..names.of("call_of_slow");
    assert_eq!(target.step_range(FIRST_CPU, range, &BTreeSet::new(), &mut || true), Ok(Stop::Interrupted));
}

#[test]
fn the_recording_may_end_before_a_step() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("power_off");
    assert_eq!(next(&mut target), Stop::HistoryEnd);
    assert_eq!(target.take_message().unwrap(), "The recording ends before the thread 5 (alpha) gets there.");
    assert_eq!((target.step(), target.registers().rip), (Stop::HistoryEnd, names.of("sys_power_off") + 8));
}
