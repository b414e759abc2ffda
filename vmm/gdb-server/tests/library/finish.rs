//! Runs to the breakpoints that gdb sets by itself, and ends of such runs where a program leaves a function otherwise.

use gdb::{DebugTarget, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use history::never;
use tiny_guest::linux::programs::TICKS;

use crate::guest::{Asked, Names, Programs, programs, programs_of_unknown_kernel};

/// gdb's command `finish`: runs to a return address on the stack.
fn finish(target: &mut GdbTarget<'_>, returns_to: u64) -> Stop {
    target.break_at(returns_to);
    let stop = target.forward();
    target.clear_breakpoint(returns_to);
    target.shown();
    stop
}

/// A run of gdb's `next`: a step into a call, and then a run to the return address, without showing the place between.
fn next_over_call(target: &mut GdbTarget<'_>, returns_to: u64) -> Stop {
    assert_eq!(target.step(), Stop::Step);
    target.set_breakpoint(returns_to).unwrap();
    let stop = target.forward();
    target.clear_breakpoint(returns_to);
    target.shown();
    stop
}

/// The position at which the program first enters the function that calls itself. The guest then is at the start. The
/// inner calls begin 5, 10 and 15 steps later, and return 18, 20 and 22 steps later.
fn first_recursion(guest: &mut Programs) -> u64 {
    let first = guest.go_to("recurse");
    guest.seek(0);
    first
}

fn left(thread: &str) -> String {
    format!(
        "The thread {thread} left the function without its return: by longjmp, an exception or the like. \
         It landed here."
    )
}

#[test]
fn a_function_is_finished_at_its_own_return() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let first = first_recursion(&mut guest);
        let (mut target, names) = guest.target_at("inner");
        let stack = target.registers().rsp;
        let after = names.of("after_inner");
        assert_eq!(
            (finish(&mut target, after), target.registers().rsp),
            (Stop::Breakpoint(after), stack + 8)
        );
        // A function that calls itself returns to the same address several times.
        target.ask(&format!("goto {}", first + 5));
        assert_eq!(names.at(&mut target), "recurse");
        let (after, stack) = (names.of("after_inner_recurse"), target.registers().rsp);
        assert_eq!(
            (finish(&mut target, after), target.registers().rsp),
            (Stop::Breakpoint(after), stack + 8)
        );
        assert_eq!(target.position(), first + 22);
        // This function has nothing on the stack but its return address.
        drop(target);
        for _ in 0..2 {
            guest.go_to("plain");
        }
        let (mut target, names) = guest.target();
        let (after, stack) = (names.of("after_inner_plain"), target.registers().rsp);
        assert_eq!(
            (finish(&mut target, after), target.registers().rsp),
            (Stop::Breakpoint(after), stack + 8)
        );
        assert_eq!(target.take_message(), None);
    }
}

#[test]
fn a_call_is_passed_by_next() {
    for mut guest in [programs(), programs_of_unknown_kernel()] {
        let first = first_recursion(&mut guest);
        let (mut target, names) = guest.target();
        // The call in the second round of the recursion.
        target.ask(&format!("goto {}", first + 9));
        target.shown();
        let (after, stack) = (names.of("after_inner_recurse"), target.registers().rsp);
        assert_eq!(next_over_call(&mut target, after), Stop::Breakpoint(after));
        assert_eq!((target.registers().rsp, target.position()), (stack, first + 20));
        drop(target);
        let call = guest.go_to("thrower") - 1;
        guest.seek(call);
        let (mut target, names) = guest.target();
        let after = names.of("after_thrower");
        assert_eq!(
            (next_over_call(&mut target, after), names.at(&mut target)),
            (Stop::Elsewhere, "landing".into())
        );
    }
}

#[test]
fn a_function_that_is_left_by_a_jump_ends_where_the_program_lands() {
    for (mut guest, thread) in [(programs(), "5 (alpha)"), (programs_of_unknown_kernel(), "")] {
        for (function, returns_to, landing) in [
            ("bad", "after_bad", "landing_of_signal"),
            ("bad_touch", "after_bad", "landing_of_signal"),
            ("thrower", "after_thrower", "landing"),
            ("deep", "after_deep", "landing"),
            ("deep", "after_thrower", "landing"),
            ("slow", "after_slow", "landing_of_slow"),
        ] {
            guest.seek(0);
            let (mut target, names) = guest.target_at(function);
            let stop = finish(&mut target, names.of(returns_to));
            let place = names.at(&mut target);
            assert_eq!((stop, place.as_str()), (Stop::Elsewhere, landing), "{function}");
            assert_eq!(target.take_message().unwrap(), left(thread));
        }
    }
}

#[test]
fn of_a_function_that_calls_itself_the_inner_call_is_left() {
    let mut guest = programs();
    for _ in 0..2 {
        guest.go_to("call_dive");
    }
    let (mut target, names) = guest.target();
    target.step();
    let after = names.of("after_dive");
    let stop = next_over_call(&mut target, after);
    assert_eq!((stop, names.at(&mut target)), (Stop::Elsewhere, "caught_in_dive".into()));
    // The outer call returns as usual.
    let stop = finish(&mut target, after);
    assert_eq!((stop, names.at(&mut target)), (Stop::Breakpoint(after), "after_dive".into()));
}

#[test]
fn the_return_of_a_caller_shows_that_a_function_was_left() {
    let mut guest = programs();
    for bytes in 2..8 {
        guest.go_to(&format!("call_{bytes}"));
        let (mut target, names) = guest.target_at("throws");
        // A later breakpoint must not be reached.
        target.break_at(names.of(&format!("later_{bytes}")));
        let stop = finish(&mut target, names.of("after_throws"));
        assert_eq!((stop, names.at(&mut target)), (Stop::Elsewhere, "caught".into()), "{bytes}");
        assert_eq!(target.take_message().unwrap(), left("5 (alpha)"));
    }
}

#[test]
fn a_breakpoint_or_watchpoint_before_the_landing_ends_the_run() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("slow");
    let at = target.position();
    target.break_at(names.of("jump"));
    assert_eq!(finish(&mut target, names.of("after_slow")), Stop::Breakpoint(names.of("jump")));
    target.clear_breakpoint(names.of("jump"));
    target.ask(&format!("goto {at}"));
    let ticks = Watchpoint { address: TICKS, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(ticks).unwrap();
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: TICKS };
    assert_eq!(finish(&mut target, names.of("after_slow")), hit);
    assert!(target.position() - at < 60_000);
}

#[test]
fn a_return_address_that_the_user_watches_is_not_watched_twice() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("bad");
    let (at, place) = (target.position(), target.registers().rsp);
    let watch = |address| Watchpoint { address, length: 4, kind: WatchKind::Access };
    for address in [place - 3, place, place + 7] {
        target.ask(&format!("goto {at}"));
        target.set_watchpoint(watch(address)).unwrap();
        let stop = finish(&mut target, names.of("after_bad"));
        // The next call after the jump out of the handler writes to the same place.
        let address = address.max(place);
        assert_eq!(stop, Stop::Watchpoint { kind: WatchKind::Access, address });
        assert_eq!(names.at(&mut target), "dive");
        [place - 3, place, place + 7].into_iter().for_each(|address| target.clear_watchpoint(watch(address)));
    }
    for address in [place - 4, place + 8] {
        target.ask(&format!("goto {at}"));
        target.set_watchpoint(watch(address)).unwrap();
        let stop = finish(&mut target, names.of("after_bad"));
        assert_eq!(
            (stop, names.at(&mut target)),
            (Stop::Elsewhere, "landing_of_signal".into()),
            "{address:#x}"
        );
        target.clear_watchpoint(watch(address));
    }
}

#[test]
fn another_thread_does_not_end_the_run() {
    let mut guest = programs();
    guest.go_to("after_yield");
    let at = guest.go_to("yield_inside");
    let (mut target, names) = guest.target();
    let stack = target.registers().rsp;
    // The other thread returns to the same address first.
    let after = names.of("after_yield_inside");
    target.ask("user-breakpoints");
    assert_eq!((finish(&mut target, after), target.registers().rsp), (Stop::Breakpoint(after), stack));
    // A breakpoint of the user stops both threads.
    target.ask(&format!("goto {at}"));
    target.ask(&format!("user-breakpoints {after:#x}"));
    assert_eq!(finish(&mut target, after), Stop::Breakpoint(after));
    assert_ne!(target.registers().rsp, stack);
}

#[test]
fn the_kernels_functions_are_finished_in_their_own_thread() {
    let mut guest = programs();
    guest.go_to("after_yield");
    let (mut target, names) = guest.target_at("switch_threads");
    let stack = target.registers().rsp;
    let returns_to = target.word(stack);
    assert_eq!(
        (finish(&mut target, returns_to), target.registers().rsp),
        (Stop::Breakpoint(returns_to), stack + 8)
    );
    target.ask("pass-calls");
    while target.registers().cs & 3 == 0 {
        target.step();
    }
    assert_eq!(names.at(&mut target), "after_yield_inside");
}

#[test]
fn a_function_whose_thread_ends_or_executes_another_program_is_not_finished() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("ending");
    assert_eq!(finish(&mut target, names.of("after_ending")), Stop::Elsewhere);
    assert_eq!(target.take_message().unwrap(), "The thread 6 (beta) has ended: it ran here last.");
    assert_eq!(target.registers().rip, names.of("switch") + 3);
    let (mut target, names) = guest.target_at("execs");
    assert_eq!(
        (finish(&mut target, names.of("after_execs")), names.at(&mut target)),
        (Stop::Elsewhere, "second".into())
    );
    let said = "The thread 5 (alpha) executes another program, which begins here.";
    assert_eq!(target.take_message().unwrap(), said);
}

#[test]
fn a_run_that_the_recording_cuts_off_says_so() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("second");
    // The breakpoint is gdb's own, because gdb sets it between two movements.
    target.step();
    target.set_breakpoint(names.of("touch")).unwrap();
    assert_eq!(target.forward(), Stop::HistoryEnd);
    assert_eq!(target.take_message().unwrap(), "The recording ends before the thread 5 (alpha) gets there.");
}

#[test]
fn breakpoints_of_the_user_stop_everywhere() {
    let mut guest = programs();
    let first = first_recursion(&mut guest);
    let after = guest.place("after_inner_recurse");
    let (mut target, names) = guest.target();
    let at_call = |target: &mut GdbTarget<'_>| {
        target.ask(&format!("goto {}", first + 5));
        target.shown();
    };
    at_call(&mut target);
    target.ask(&format!("user-breakpoints {after:#x}"));
    assert_eq!((finish(&mut target, after), target.position()), (Stop::Breakpoint(after), first + 18));
    at_call(&mut target);
    target.ask("user-breakpoints 0x1234");
    assert_eq!((finish(&mut target, after), target.position()), (Stop::Breakpoint(after), first + 22));
    // A breakpoint that is not at a return address stops in each call.
    at_call(&mut target);
    let recurse = names.of("recurse");
    target.break_at(recurse);
    assert_eq!((target.forward(), target.position()), (Stop::Breakpoint(recurse), first + 10));
    // A condition of a temporary breakpoint counts, too.
    at_call(&mut target);
    target.clear_breakpoint(recurse);
    target.set_conditions(after, &[gdb::Condition::new([0x22, 0, 0x27])]);
    assert!(matches!(finish(&mut target, after), Stop::Elsewhere | Stop::HistoryEnd));
    target.set_conditions(after, &[gdb::Condition::new([0x22, 1, 0x27])]);
    at_call(&mut target);
    assert_eq!((finish(&mut target, after), target.position()), (Stop::Breakpoint(after), first + 22));
}

#[test]
fn a_breakpoint_that_stays_between_movements_keeps_its_thread() {
    let mut guest = programs();
    guest.go_to("after_yield");
    let (mut target, names) = guest.target_at("yield_inside");
    let stack = target.registers().rsp;
    let after = names.of("after_yield_inside");
    // gdb sets its breakpoint, and steps and runs without showing a place.
    target.step();
    target.set_breakpoint(after).unwrap();
    target.step();
    assert_eq!((target.forward(), target.registers().rsp), (Stop::Breakpoint(after), stack));
}

#[test]
fn a_breakpoint_that_stays_keeps_its_frame_until_gdb_shows_a_place() {
    let mut guest = programs();
    let first = first_recursion(&mut guest);
    let (mut target, names) = guest.target();
    let after = names.of("after_inner_recurse");
    target.ask(&format!("goto {}", first + 5));
    target.shown();
    let stack = target.registers().rsp;
    // gdb sets the breakpoint once, and steps into an inner call.
    target.set_breakpoint(after).unwrap();
    for _ in 0..5 {
        target.step();
    }
    assert_eq!(target.registers().rsp, stack - 16);
    assert_eq!((target.forward(), target.registers().rsp), (Stop::Breakpoint(after), stack + 8));
    // After a place was shown, the breakpoint belongs to the frame there.
    target.ask(&format!("goto {}", first + 5));
    target.shown();
    for _ in 0..5 {
        target.step();
    }
    target.shown();
    assert_eq!((target.forward(), target.registers().rsp), (Stop::Breakpoint(after), stack - 8));
}

#[test]
fn a_temporary_breakpoint_may_be_in_an_inner_call() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("outer");
    // gdb's `step` runs to the first line behind a function's beginning.
    target.step();
    let inner = names.of("inner");
    target.set_breakpoint(inner).unwrap();
    assert_eq!((target.forward(), names.at(&mut target)), (Stop::Breakpoint(inner), "inner".into()));
}

#[test]
fn a_breakpoint_that_gdb_removed_can_become_one_of_the_user() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("after_yield");
    let switch = names.of("switch_threads");
    target.step();
    target.set_breakpoint(switch).unwrap();
    assert_eq!(target.forward(), Stop::Breakpoint(switch));
    let stack = target.registers().rsp;
    target.clear_breakpoint(switch);
    target.break_at(switch);
    assert_eq!(target.forward(), Stop::Breakpoint(switch));
    assert!(target.registers().rsp.abs_diff(stack) >= 0x1000, "the other thread stops, too");
}

#[test]
fn a_watched_switch_is_not_the_end_of_a_thread() {
    let mut guest = programs();
    guest.go_to("after_yield");
    let (mut target, names) = guest.target_at("yielding");
    let current = names.of("current_task");
    let switches = Watchpoint { address: current, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(switches).unwrap();
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: current };
    assert_eq!(finish(&mut target, names.of("after_yielding")), hit);
    assert_eq!(target.take_message(), None);
}

#[test]
fn in_a_fork_a_run_to_a_return_looks_for_no_landing() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("inner");
    let mut registers = target.registers();
    registers.r15 = 1;
    target.write_registers(1, &registers).unwrap();
    let after = names.of("after_inner");
    assert_eq!(finish(&mut target, after), Stop::Breakpoint(after));
}

#[test]
fn a_search_for_the_landing_can_be_interrupted() {
    let mut guest = programs();
    let (mut target, names) = guest.target_at("deep");
    target.break_at(names.of("after_deep"));
    assert_eq!(target.run_forward(&mut || true), Ok(Stop::Interrupted));
    // The next call has shown that the program has left the function.
    assert_eq!((names.at(&mut target), target.take_message()), ("inner".into(), None));
}

#[test]
fn a_run_to_a_return_can_be_interrupted() {
    let mut guest = programs();
    guest.go_to("yield");
    let (mut target, names) = guest.target_at("switch_threads");
    let stack = target.registers().rsp;
    let returns_to = target.word(stack);
    assert!(returns_to - names.of("sys_sched_yield") < 64);
    target.break_at(returns_to);
    assert_eq!(target.run_forward(&mut || true), Ok(Stop::Interrupted));
    assert!(target.registers().cs & 3 == 3, "the other thread is busy");
}

#[test]
fn a_run_backward_stops_in_the_same_frame() {
    let mut guest = programs();
    let first = first_recursion(&mut guest);
    let (mut target, names) = guest.target_at("after_recurse");
    let recurse = names.of("recurse");
    // gdb's `reverse-next` steps back into the function, and runs to its entry.
    assert_eq!(target.step_back(), Stop::Step);
    target.set_breakpoint(recurse).unwrap();
    assert_eq!((target.backward(), target.position()), (Stop::Breakpoint(recurse), first));
    target.clear_breakpoint(recurse);
    // For a breakpoint of the user each frame counts.
    target.ask(&format!("goto {}", first + 23));
    target.break_at(recurse);
    assert_eq!((target.backward(), target.position()), (Stop::Breakpoint(recurse), first + 15));
    target.clear_breakpoint(recurse);
    // `reverse-finish` from the middle: the frame is not yet known to be the innermost.
    target.ask("user-breakpoints");
    target.ask(&format!("goto {}", first + 23));
    target.shown();
    target.break_at(recurse);
    assert_eq!((target.backward(), target.position()), (Stop::Breakpoint(recurse), first + 15));
}

#[test]
fn a_run_backward_ends_where_its_thread_begins() {
    let mut guest: Programs = programs();
    let (mut target, names) = guest.target_at("beta_yields");
    target.step_back();
    target.set_breakpoint(names.of("after_outer")).unwrap();
    assert_eq!((target.backward(), names.at(&mut target)), (Stop::HistoryStart, "beta_main".into()));
    assert_eq!(target.take_message().unwrap(), "The thread 6 (beta) begins here.");
    let (mut target, names): (GdbTarget<'_>, Names<'_>) = guest.target_at("after_yielding");
    target.step_back();
    target.set_breakpoint(names.of("beta_yields")).unwrap();
    assert_eq!(target.run_backward(&mut never).unwrap(), Stop::HistoryStart);
    assert_eq!(target.position(), 0);
}
