//! Steps and runs of a guest with several processors: `alpha` and `beta` on the first, and `worker` on the second.

use gdb::{DebugTarget, FIRST_CPU, Stop, WatchKind, Watchpoint};
use gdb_server::GdbTarget;
use history::never;
use tiny_guest::linux::{CALLS, COUNTED};

use crate::guest::{Asked, Guest, several, unknown_several};

/// The second processor, and the end of its first turn that ends with a write.
const SECOND: gdb::Thread = FIRST_CPU + 1;
/// The position at which the first processor gets the seat for the second time. The second processor has it before.
const SECOND_TURN: u64 = 100_000;

/// The guest at a thread switch of the first processor, after a turn of the second.
fn at_a_switch() -> Guest {
    let mut guest = several();
    assert_eq!(guest.go_to("__switch_to").0, 100_011);
    guest
}

fn seat(target: &mut GdbTarget<'_>) -> gdb::Thread {
    let position = target.ask("position");
    position.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_step_of_a_waiting_processor_lets_the_others_run_first() {
    let mut guest = at_a_switch();
    let counting = guest.kernel.address_of("start_secondary");
    let mut target = guest.target();
    let before = target.read_registers(SECOND).unwrap();
    assert_eq!(target.step_forward(SECOND, &mut never), Ok(Stop::Step));
    assert_eq!(target.selected_cpu(), SECOND);
    let after = target.read_registers(SECOND).unwrap();
    assert!((counting..counting + 0x100).contains(&after.rip));
    assert!(after.rip != before.rip && after.rip.abs_diff(before.rip) <= 64, "one instruction");
    assert!(target.position() > 100_011 + 20, "the first processor went on to its next PAUSE");
    // The step back undoes the same instruction, and the other processor's instructions after it.
    assert_eq!(target.step_backward(SECOND, &mut never), Ok(Stop::Step));
    assert_eq!(target.read_registers(SECOND).unwrap().rip, before.rip);
    assert_eq!(target.selected_cpu(), SECOND);
}

#[test]
fn steps_that_follow_the_cpu_take_the_processor_that_gdb_shows() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.ask("step-interrupts on");
    let before = target.read_registers(SECOND).unwrap();
    assert_eq!(target.step_forward(SECOND, &mut never), Ok(Stop::Step));
    assert_eq!(target.selected_cpu(), SECOND);
    let after = target.read_registers(SECOND).unwrap();
    assert_ne!(after.rip, before.rip);
    let at = target.position();
    assert_eq!(target.step_backward(SECOND, &mut never), Ok(Stop::Step));
    assert_eq!((target.position(), target.read_registers(SECOND).unwrap().rip), (at - 1, before.rip));
    // From the first processor's place, the step back undoes more.
    target.ask("goto 100011");
    assert_eq!(target.step_backward(SECOND, &mut never), Ok(Stop::Step));
    assert!(target.position() < SECOND_TURN);
    assert_ne!(target.read_registers(SECOND).unwrap().rip, before.rip);
    // A breakpoint in the other processor's turn ends the step.
    let decoy = guest.kernel.address_of("decoy");
    let mut target = guest.target();
    target.ask("step-interrupts on");
    target.ask("goto 100070");
    target.break_at(decoy);
    target.ask("goto 100011");
    assert_eq!(target.step_forward(SECOND, &mut never), Ok(Stop::Breakpoint(decoy)));
    assert_eq!(target.selected_cpu(), FIRST_CPU);
}

#[test]
fn a_step_over_pause_waits_for_the_processors_next_turn() {
    let mut guest = several();
    let body = guest.kernel.address_of("do_syscall_64");
    let mut target = guest.target();
    target.break_at(body);
    assert_eq!(target.forward(), Stop::Breakpoint(body));
    target.clear_breakpoint(body);
    // PUSH, MOV and PAUSE. After PAUSE the second processor has the seat.
    target.step();
    target.step();
    let pause = target.registers();
    assert_eq!(target.step(), Stop::Step);
    assert_eq!((target.selected_cpu(), target.registers().rip), (FIRST_CPU, pause.rip + 2));
    let after_pause = target.position();
    assert!(after_pause < SECOND_TURN, "the step itself needs no turn of the other");
    assert_eq!((target.step(), target.selected_cpu()), (Stop::Step, FIRST_CPU));
    assert!(target.position() > SECOND_TURN, "the next step does");
    assert_eq!(target.registers().rsp, pause.rsp);
    // Backward the turn of the other is undone as well.
    let after_exception = target.registers();
    assert_eq!((target.step_back(), target.selected_cpu()), (Stop::Step, FIRST_CPU));
    assert_ne!(target.registers().rip, after_exception.rip);
    assert!(target.position() <= SECOND_TURN + 2);
    assert_eq!((target.step_back(), target.registers().rip), (Stop::Step, pause.rip));
    assert!(target.position() < after_pause);
}

#[test]
fn a_watchpoint_of_a_waiting_processors_write_names_its_processor() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    let counted = Watchpoint { address: COUNTED, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(counted).unwrap();
    let hit = Stop::Watchpoint { kind: WatchKind::Write, address: COUNTED };
    assert_eq!((target.forward(), target.selected_cpu()), (hit, SECOND));
    assert_eq!((target.backward(), target.selected_cpu()), (hit, SECOND));
    // The last write of a turn: after it the other processor has the seat already.
    target.ask("goto 99999");
    target.shown();
    assert_eq!((target.forward(), target.selected_cpu()), (hit, SECOND));
    assert_eq!(target.position(), SECOND_TURN);
    target.clear_watchpoint(counted);
    let calls = Watchpoint { address: CALLS, length: 8, kind: WatchKind::Write };
    target.set_watchpoint(calls).unwrap();
    assert_eq!(target.forward(), Stop::Watchpoint { kind: WatchKind::Write, address: CALLS });
    assert_eq!(target.selected_cpu(), FIRST_CPU);
}

#[test]
fn runs_of_a_chosen_processor_show_it_until_they_stop_elsewhere() {
    let mut guest = at_a_switch();
    let counting = guest.kernel.address_of("start_secondary") + 20;
    let mut target = guest.target();
    target.ask("threads look-at 2");
    assert_eq!((target.selected_cpu(), seat(&mut target)), (SECOND, FIRST_CPU));
    // A run begins with the chosen processor, and ends where the breakpoint is.
    let switch = target.read_registers(FIRST_CPU).unwrap().rip;
    target.break_at(switch);
    assert_eq!((target.forward(), target.selected_cpu()), (Stop::Breakpoint(switch), FIRST_CPU));
    target.clear_breakpoint(switch);
    let inside = (counting..).find(|address| {
        let mut code = [0; 3];
        target.read_memory(SECOND, *address, &mut code);
        code == [0x48, 0xff, 0x01]
    });
    let inside = inside.unwrap();
    target.break_at(inside);
    assert_eq!((target.forward(), target.selected_cpu()), (Stop::Breakpoint(inside), SECOND));
}

#[test]
fn a_search_may_choose_a_processor() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    let in_vain = target.ask("forward-to write calls cpu:1");
    assert!(in_vain.starts_with("not found between here and the end; "), "{in_vain}");
    assert!(target.ask("forward-to write calls cpu:0").starts_with("write to "));
    let list = target.ask("traps write:counted cpu:0 99000 101000");
    assert_eq!(list, "nowhere in that part of the recording\n");
    let list = target.ask("traps write:counted cpu:1 pid:2 99990 101000");
    assert!(list.starts_with("hit:0    insn:999"), "{list}");
}

#[test]
fn a_thread_that_goes_on_on_another_processor_is_told() {
    let mut guest = at_a_switch();
    let current = guest.kernel.address_of("current_task");
    let mut target = guest.target();
    let inside = target.read_registers(SECOND).unwrap().rip;
    // gdb's own breakpoint belongs to the thread `alpha`.
    target.step();
    target.set_breakpoint(inside).unwrap();
    target.step();
    // In a fork, the two processors exchange their threads.
    let tasks = [target.word(current + 0x10), target.word(current)];
    for (task, place) in tasks.into_iter().zip([current, current + 0x10]) {
        target.write_memory(FIRST_CPU, place, &task.to_le_bytes()).unwrap();
    }
    assert_eq!((target.forward(), target.selected_cpu()), (Stop::Elsewhere, SECOND));
    let message = target.take_message().unwrap();
    assert_eq!(message, "The thread 5 (alpha) goes on here, on processor 1.");
    assert_eq!(target.read_registers(SECOND).unwrap().rip, inside);
}

#[test]
fn a_processor_that_never_started_takes_no_step() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    let stop = target.step_forward(FIRST_CPU + 2, &mut never).unwrap();
    assert_eq!(stop, Stop::HistoryEnd);
    assert_eq!(target.ask("break-in here").lines().count(), 2);
}

/// The places of a processor after steps, as positions and instruction pointers.
fn walk(target: &mut GdbTarget<'_>, cpu: gdb::Thread, steps: usize, forward: bool) -> Vec<(u64, u64)> {
    let mut step = || {
        let stop = match forward {
            true => target.step_forward(cpu, &mut never),
            false => target.step_backward(cpu, &mut never),
        };
        assert_eq!((stop, target.selected_cpu()), (Ok(Stop::Step), cpu));
        (target.read_registers(cpu).unwrap().rip, target.read_registers(cpu).unwrap().rbx)
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn steps_back_are_the_mirror_image_of_steps_on_each_processor() {
    let (_directory, mut timeline) = unknown_several();
    let mut target = GdbTarget::new(&mut timeline);
    for follows in ["off", "on"] {
        for cpu in [1, 2, 3] {
            // The turns are some thousand steps long. The walk passes the end of one.
            target.ask(&format!("step-interrupts {follows}"));
            target.ask("goto 250000");
            target.shown();
            let there = walk(&mut target, cpu, 40, true);
            let back = walk(&mut target, cpu, 39, false);
            let expected: Vec<_> = there.iter().rev().skip(1).copied().collect();
            assert_eq!(back, expected, "{cpu} {follows}");
        }
    }
}

#[test]
fn a_switch_of_threads_is_undone_on_its_processor() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.ask("goto +8");
    target.shown();
    // The second switch leads back to `alpha`.
    let after = target.position();
    let alphas = target.registers();
    assert_eq!((target.step_back(), target.selected_cpu()), (Stop::Step, FIRST_CPU));
    assert_eq!(target.position(), after - 7);
    assert_eq!((target.step(), target.position()), (Stop::Step, after));
    assert_eq!(target.registers(), alphas);
}
