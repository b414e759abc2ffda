//! Steps backward that follow their thread.

use gdb::{DebugTarget, FIRST_CPU, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use history::never;
use tiny_guest::linux::programs::{MAPPED, PIVOTS, SIGNALS, TICKS};

use crate::guest::{Asked, Names, linux, programs, programs_of_unknown_kernel};

/// A step of `target` with gdb's command `reverse-next`, which passes calls of the system.
fn back(target: &mut GdbTarget<'_>) -> Stop {
    target.ask("pass-calls");
    target.step_back()
}

/// The places of some steps back.
fn walk(target: &mut GdbTarget<'_>, names: &Names<'_>, steps: usize) -> Vec<String> {
    let step = |_| {
        assert_eq!(back(target), Stop::Step);
        names.at(target)
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_step_back_over_a_fault_ends_at_the_instruction() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let fault = guest.go_to("touch");
        let (mut target, names) = guest.target_at("after_touch");
        let after = target.position();
        assert_eq!((target.step_back(), names.at(&mut target)), (Stop::Step, "touch".into()));
        assert_eq!(target.position(), after - 1);
        // The instruction has begun once before, and faulted.
        assert_eq!((target.step_back(), names.at(&mut target)), (Stop::Step, "after_write".into()));
        assert_eq!(target.position(), fault - 1);
    }
}

#[test]
fn a_step_back_over_a_system_call_may_pass_it() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let call = guest.go_to("write");
        let (mut target, names) = guest.target_at("after_write");
        let after = target.position();
        assert_eq!((target.step_back(), target.position()), (Stop::Step, after - 1), "at SYSRET");
        assert_eq!(target.registers().cs & 3, 0);
        target.ask(&format!("goto {after}"));
        assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "write".into()));
        assert_eq!(target.position(), call);
    }
}

#[test]
fn a_step_back_over_a_signal_passes_its_handler() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let call = guest.go_to("kill");
        let handler = guest.go_to("handler");
        let (mut target, names) = guest.target_at("after_kill");
        assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "kill".into()));
        assert_eq!(target.position(), call);
        // The step back from the handler's beginning ends where the signal came.
        target.ask(&format!("goto {handler}"));
        assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "kill".into()));
        target.ask(&format!("goto {handler}"));
        target.shown();
        assert_eq!((target.step_back(), target.position()), (Stop::Step, handler - 1), "at IRET");
    }
}

#[test]
fn a_step_back_from_the_handler_of_a_fault_ends_at_the_fault() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let fault = guest.go_to("bad_touch");
        let (mut target, names) = guest.target_at("handler");
        assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "bad_touch".into()));
        assert_eq!(target.position(), fault);
        target.ask("pass-calls");
    }
}

#[test]
fn a_step_back_over_a_jump_to_another_frame_ends_at_the_call() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let after_bad = guest.place("after_bad");
        let (mut target, names) = guest.target_at("landing_of_signal");
        let landed = target.position();
        assert_eq!((back(&mut target), target.registers().rip), (Stop::Step, after_bad - 5), "at the call");
        target.ask(&format!("goto {landed}"));
        target.shown();
        assert_eq!((target.step_back(), names.at(&mut target)), (Stop::Step, "jumps".into()));
        drop(target);
        for (landing, after) in [("landing", "after_thrower"), ("landing_of_slow", "after_slow")] {
            let (mut target, names) = guest.target_at(landing);
            assert_eq!(
                (back(&mut target), target.registers().rip),
                (Stop::Step, names.of(after) - 5),
                "{landing}"
            );
        }
    }
}

#[test]
fn a_step_back_over_other_jumps_ends_at_the_jump() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("after_outer");
    let expected = ["outer_returns", "after_inner", "inner_returns", "inner"];
    assert_eq!(walk(&mut target, &names, 4), expected);
    drop(target);
    for (place, before) in [("after_frame", "frame_jumps"), ("after_pivot", "pivot_jumps")] {
        let (mut target, names) = guest.target_at(place);
        assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, before.into()));
    }
}

#[test]
fn an_instruction_between_a_stack_switch_and_its_jump_is_one_step() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("deep_jumps");
    let jump = target.registers().rip;
    for expected in [jump - 2, jump - 4, names.of("deep_sets_stack")] {
        assert_eq!((back(&mut target), target.registers().rip), (Stop::Step, expected));
    }
}

#[test]
fn only_a_jump_that_switches_stacks_leads_back_to_a_call() {
    let mut guest = programs();
    for (number, (moves, jump, switches)) in PIVOTS.into_iter().enumerate() {
        let landed = guest.go_to(&format!("after_pivot_{number}"));
        let (mut target, names) = guest.target();
        let begin = if switches { "call_before_pivot" } else { "pivot" };
        let expected = format!("{begin}_{number}");
        assert_eq!(
            (back(&mut target), names.at(&mut target)),
            (Stop::Step, expected),
            "{moves:x?} {jump:x?}"
        );
        drop(target);
        guest.seek(landed);
    }
}

#[test]
fn a_step_back_waits_until_its_thread_ran_before() {
    let mut guest = programs();
    let call = guest.go_to("yield");
    let after = guest.go_to("after_yield");
    let (mut target, names) = guest.target();
    assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "yield".into()));
    assert_eq!(target.position(), call);
    // In the kernel the thread switched away and back in one step.
    drop(target);
    guest.seek(after);
    let left = guest.go_to("switch");
    let (mut target, names) = guest.target();
    target.step();
    assert!(target.position() > left + 100);
    assert_eq!((target.step_back(), target.registers().rip), (Stop::Step, names.of("switch")));
    assert_eq!(target.position(), left, "the step back is the mirror image of the step");
}

#[test]
fn a_thread_begins_where_no_step_can_be_undone() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("beta_main");
    let begin = target.position();
    assert_eq!((back(&mut target), target.position()), (Stop::HistoryStart, begin));
    assert_eq!(target.take_message(), None, "a script has asked for the position");
    assert_eq!(back(&mut target), Stop::HistoryStart);
    assert_eq!(target.take_message().unwrap(), "The thread 6 (beta) begins here.");
    assert_eq!(names.at(&mut target), "beta_main");
    target.ask("goto start");
    assert_eq!(back(&mut target), Stop::HistoryStart);
}

#[test]
fn a_breakpoint_in_passed_code_ends_the_step_back() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("after_write");
    let after = target.position();
    let write = names.of("sys_write");
    target.break_at(write);
    assert_eq!((back(&mut target), target.registers().rip), (Stop::Breakpoint(write), write));
    target.clear_breakpoint(write);
    target.ask(&format!("goto {after}"));
    // A breakpoint elsewhere does not.
    target.break_at(names.of("handler"));
    assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "write".into()));
    // A breakpoint at the step's goal does not count, either.
    target.clear_breakpoint(names.of("handler"));
    target.break_at(names.of("write"));
    target.ask(&format!("goto {after}"));
    assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "write".into()));
}

#[test]
fn a_watchpoint_in_passed_code_ends_the_step_back() {
    let mut guest = programs();
    let call = guest.go_to("kill");
    let (mut target, names) = guest.target_at("after_kill");
    let after = target.position();
    let signals = Watchpoint { address: SIGNALS, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(signals).unwrap();
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: SIGNALS };
    assert_eq!(back(&mut target), hit);
    assert!(target.position() > call && target.position() < after);
    target.clear_watchpoint(signals);
    let ticks = Watchpoint { address: TICKS, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(ticks).unwrap();
    target.ask(&format!("goto {after}"));
    assert_eq!((back(&mut target), names.at(&mut target)), (Stop::Step, "kill".into()));
    // The thread's own access is told, too.
    let mapped = Watchpoint { address: u64::from(MAPPED), length: 8, kind: WatchKind::Access };
    target.set_watchpoint(mapped).unwrap();
    guest.seek(0);
    let (mut target, names) = guest.target_at("after_touch");
    target.set_watchpoint(mapped).unwrap();
    let hit = Stop::Watchpoint { kind: WatchKind::Access, address: mapped.address };
    assert_eq!((target.step_back(), names.at(&mut target)), (hit, "touch".into()));
    assert_eq!((target.step_back(), names.at(&mut target)), (Stop::Step, "after_write".into()));
}

#[test]
fn points_during_a_switch_or_a_jump_end_the_step_back() {
    let mut guest = programs();
    guest.go_to("yield");
    let (mut target, names) = guest.target_at("after_yield");
    let after = target.position();
    target.break_at(names.of("beta_yields"));
    assert_eq!(back(&mut target), Stop::Breakpoint(names.of("beta_yields")));
    target.clear_breakpoint(names.of("beta_yields"));
    let current = names.of("current_task");
    let switches = Watchpoint { address: current, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(switches).unwrap();
    target.ask(&format!("goto {after}"));
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: current };
    assert_eq!((back(&mut target), target.registers().rip), (hit, names.of("switch")));
    drop(target);
    guest.seek(0);
    let (mut target, names) = guest.target_at("landing");
    target.break_at(names.of("deep"));
    assert_eq!(back(&mut target), Stop::Breakpoint(names.of("deep")));
}

#[test]
fn an_interrupt_between_two_steps_is_undone_with_its_handler() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let (mut target, _) = guest.target();
        target.ask("goto 100000");
        target.ask("forward-to interrupt");
        target.ask("goto -1");
        let (at, before) = (target.position(), target.registers());
        target.step();
        let after = target.position();
        assert_eq!(after, at + 9);
        // First the instruction is undone, and then the handler with the instruction before it.
        assert_eq!((target.step_back(), target.registers()), (Stop::Step, before.clone()));
        assert_eq!(target.position(), after - 1);
        assert_eq!((target.step_back(), target.position()), (Stop::Step, at - 1));
        // The handler's own instructions are undone one by one.
        target.ask(&format!("goto {}", at + 3));
        assert_eq!((target.step_back(), target.position()), (Stop::Step, at + 2));
    }
}

#[test]
fn in_32_bit_mode_faults_and_interrupts_are_passed_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, fault) = tiny_guest::faulting::record_32_bits(directory.path(), "r.ttvm");
    let mut timeline = history::timeline::Timeline::open_with(&recording, 1).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    target.ask(&format!("forward-to call {fault:#x}"));
    let (at, stack) = (target.position(), target.registers().rsp);
    // The handler has an error code on its stack.
    assert_eq!((target.step(), target.registers().rip), (Stop::Step, fault + 2));
    assert_eq!((target.position(), target.registers().rsp), (at + 5, stack));
    assert_eq!((target.step_back(), target.position()), (Stop::Step, at + 4));
    assert_eq!((target.step_back(), target.position()), (Stop::Step, at - 1));
    target.ask("goto 20000");
    target.ask("forward-to interrupt");
    target.ask("goto -1");
    let (at, before) = (target.position(), target.registers());
    assert_eq!(target.step(), Stop::Step);
    assert_eq!((target.position(), target.registers().rsp), (at + 7, before.rsp));
    assert_eq!((target.step_back(), target.registers()), (Stop::Step, before));
    assert_eq!((target.step_back(), target.position()), (Stop::Step, at - 1));
}

#[test]
fn the_kernels_steps_back_pass_faults_and_breakpoint_exceptions() {
    let mut guest = programs();
    let copy = guest.go_to("copy");
    let (mut target, names) = guest.target_at("fault_with_repair");
    let fault = target.position();
    target.step();
    assert_eq!(target.registers().rip, names.of("after_repair"));
    let repaired = target.position();
    // The handler returned to other code. The instruction with the fault is the thread's own.
    assert!(repaired > fault + 40);
    assert_eq!((target.step_back(), target.position()), (Stop::Step, fault));
    target.ask(&format!("goto {fault}"));
    target.step_back();
    assert_eq!((target.step_back(), target.registers().rip), (Stop::Step, names.of("copy")));
    assert!(target.position() > copy + 40);
    assert_eq!((target.step_back(), target.position()), (Stop::Step, copy - 1));

    let mut guest = linux();
    guest.go_to("do_syscall_64");
    let mut target = guest.target();
    target.ask("goto +2");
    let at = target.position();
    target.step();
    assert!(target.position() > at + 2);
    assert_eq!((target.step_back(), target.position()), (Stop::Step, at), "INT3 is the thread's own");
    assert_eq!((target.step_back(), target.position()), (Stop::Step, at - 1));
}

#[test]
fn steps_back_may_follow_the_cpu() {
    let mut guest = programs();
    let (mut target, _) = guest.target_at("after_touch");
    target.ask("step-interrupts on");
    let after = target.position();
    for steps in 1..50 {
        assert_eq!((target.step_back(), target.position()), (Stop::Step, after - steps));
    }
    target.ask("goto start");
    assert_eq!(target.step_back(), Stop::HistoryStart);
}

#[test]
fn a_step_back_that_is_interrupted_stays() {
    let mut guest = programs();
    guest.go_to("yield");
    let (mut target, _) = guest.target_at("after_yield");
    let after = target.position();
    target.ask("pass-calls");
    let stop = target.step_backward(FIRST_CPU, &mut || true).unwrap();
    assert_eq!((stop, target.position()), (Stop::Interrupted, after));
    assert_eq!(target.step_backward(FIRST_CPU, &mut never), Ok(Stop::Step));
    // In the kernel, too, the other thread's long run is undone.
    drop(target);
    guest.seek(after);
    let (mut target, _) = guest.target();
    target.ask("back-to call __switch_to comm:beta");
    target.ask("forward-to write current_task");
    let (switched, stack) = (target.position(), target.registers().rsp);
    let stop = target.step_backward(FIRST_CPU, &mut || true).unwrap();
    assert_eq!((stop, target.position(), target.registers().rsp), (Stop::Interrupted, switched, stack));
}
