//! The commands `origin` and `object`, with the guest that arms callbacks.

use gdb::{DebugTarget, FIRST_CPU};
use gdb_server::GdbTarget;
use history::never;
use history::timeline::{Timeline, TravelStop};
use tiny_guest::linux::callbacks::{Pending, TIMER, WORK, record};

use crate::guest::{Asked, linux};

#[test]
fn the_origin_of_a_callback_is_shown_and_the_position_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, places) = record(directory.path(), "r.ttvm", Pending::Variable);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.set_breakpoints(vec![places["work_runs"]]);
    assert!(matches!(timeline.run_forward(&mut never).unwrap(), TravelStop::Hit(_)));
    timeline.set_breakpoints(Vec::new());
    let mut target = GdbTarget::new(&mut timeline);
    let at = target.position();
    let answer = target.ask("origin");
    let work = format!("\nwork item work_runs({WORK:#x}), called by process_one_work at insn:");
    let timer = format!("\ntimer timer_ticks({TIMER:#x}), called by call_timer_fn at insn:");
    assert!(answer.contains(&work) && answer.contains(&timer), "{answer}");
    assert!(answer.ends_with("\nfrom 5 (alpha), at the beginning of the stack\n"), "{answer}");
    assert_eq!(target.ask("origin work_runs"), answer);
    assert_eq!(target.ask("origin  work_runs "), answer);
    let refusal = target.ask("origin free_object");
    assert!(refusal.starts_with("error: ") && refusal.contains("free_object"), "{refusal}");
    assert_eq!((target.position(), target.registers().rip), (at, places["work_runs"]));
    assert_eq!(target.selected_cpu(), FIRST_CPU);
}

#[test]
fn object_takes_an_address_and_a_number() {
    let mut guest = linux();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    let usage = "error: write: monitor object ADDRESS [N]\n";
    for words in ["object", "object rsp x", "object rsp 1 2", "object rsp -1"] {
        assert_eq!(target.ask(words), usage, "{words}");
    }
    // This kernel has no allocator.
    for words in ["object rsp", "object calls 2"] {
        let answer = target.ask(words);
        assert!(answer.starts_with("error: ") && answer != usage, "{words}: {answer}");
    }
    assert_eq!(target.position(), 81);
}
