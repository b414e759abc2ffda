//! Tests trees of calls, calls and values with guests whose kernel runs a program or calls functions through pointers.

use std::ops::Range;

use history::never;
use history::timeline::{Breakpoint, Stops, Timeline};
use machine::error::Error;
use machine::position::{Count, Instructions};
use tiny_guest::linux::callbacks::{self, Pending, TIMER};
use tiny_guest::linux::{self, CALLS, Places, programs, task};
use views::debug_files::DebugFiles;
use views::difference::Side;
use views::filters::Filters;
use views::hits::{Search, Wanted};
use views::tree::{Node, Question, Tree};
use views::{calls, profile, values};

struct Guest {
    _directory: tempfile::TempDir,
    timeline: Timeline,
    places: Places,
}

impl Guest {
    fn with_program() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, kernel, mut places) = programs::record(directory.path(), "r.ttvm", true);
        for name in ["do_syscall_64", "deliver_signal", "asm_exc_page_fault", "asm_exc_int3"] {
            places.insert(name.to_string(), kernel.address_of(name));
        }
        Guest { timeline: Timeline::open(&recording).unwrap(), places, _directory: directory }
    }

    fn with_callbacks() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, places) = callbacks::record(directory.path(), "r.ttvm", Pending::Variable);
        Guest { timeline: Timeline::open(&recording).unwrap(), places, _directory: directory }
    }

    /// The positions in a part at which the named instruction is next.
    fn all(&mut self, part: Range<u64>, place: &str) -> Vec<u64> {
        let breakpoints = vec![Breakpoint::at(self.places[place])];
        self.timeline.set_stops(Stops { breakpoints, ..Stops::default() });
        let (from, to) = (Instructions(part.start), Instructions(part.end));
        let hits = self.timeline.hits(from, to, usize::MAX, &mut never).unwrap();
        self.timeline.set_stops(Stops::default());
        hits.found.iter().map(|hit| hit.before.number()).collect()
    }

    /// The first position at which the named instruction is next.
    fn at(&mut self, place: &str) -> u64 {
        let end = self.timeline.end().number();
        self.all(0..end, place)[0]
    }

    fn tree(&mut self, from: u64, to: u64, with_programs: bool) -> Tree {
        let question = Question { thread: None, depth: 20, with_programs };
        question.answer(&mut self.timeline, Instructions(from)..Instructions(to), &mut never).unwrap()
    }

    fn name(&self, function: &str) -> String {
        format!("{:#x}", self.places[function])
    }
}

/// A call: its position, its function, its number of instructions, and its calls.
#[derive(Debug, PartialEq)]
struct Shape(u64, String, Option<u64>, Vec<Shape>);

fn shapes(calls: &[Node]) -> Vec<Shape> {
    // A tick of the timer may come at any place.
    let calls = calls.iter().filter(|node| node.function != "interrupt 32");
    calls
        .map(|node| Shape(node.instruction, node.function.clone(), node.instructions, shapes(&node.calls)))
        .collect()
}

#[test]
fn the_functions_of_a_program_are_nodes_if_wanted() {
    let mut guest = Guest::with_program();
    let (outer, after) = (guest.at("outer"), guest.at("after_outer"));
    let (inner, back) = (guest.all(outer..after, "inner")[0], guest.at("after_inner"));
    let called = Shape(inner, guest.name("inner"), Some(back - inner), Vec::new());
    let expected = Shape(outer, guest.name("outer"), Some(after - outer), vec![called]);
    let found = guest.tree(outer - 1, after, true);
    assert_eq!(shapes(&found.calls), [expected], "{found}");
    let text = format!("insn:{outer:<12} {:>10}  {}()", after - outer, guest.name("outer"));
    assert!(found.to_string().contains(&text), "{found}");
    let found = guest.tree(outer - 1, after, false);
    let none = "thread 5 (alpha)\nno call of this thread in that part of the recording";
    assert!(shapes(&found.calls).is_empty() && found.to_string().starts_with(none), "{found}");

    // A function calls itself three times. The innermost call returns first.
    let end = guest.at("after_recurse");
    let begins = guest.all(after..end, "recurse");
    let found = guest.tree(after, end, true);
    let mut calls = shapes(&found.calls);
    for begin in begins {
        let Shape(at, function, length, inside) = calls.pop().unwrap();
        assert_eq!((at, function), (begin, guest.name("recurse")), "{found}");
        assert!(length.is_some() && calls.is_empty(), "{found}");
        calls = inside;
    }
    assert!(calls.is_empty(), "{found}");
}

#[test]
fn a_system_call_has_the_exceptions_in_it() {
    let mut guest = Guest::with_program();
    let (write, after) = (guest.at("write"), guest.at("after_write"));
    let call = guest.all(write..after, "do_syscall_64")[0];
    let found = guest.tree(write, after, false);
    let nodes = shapes(&found.calls);
    let faults = guest.all(write..after, "asm_exc_page_fault");
    let inner = guest.all(write..after, "asm_exc_int3");
    assert_eq!((nodes.len(), faults.len(), inner.len()), (1, 2, 2), "{found}");
    let Shape(at, function, length, inside) = &nodes[0];
    assert_eq!((*at, &**function, length.is_some()), (call, "do_syscall_64", true), "{found}");
    for ((node, fault), breakpoint) in inside.iter().zip(faults).zip(inner) {
        let Shape(at, function, length, inside) = node;
        assert_eq!((*at, &**function, length.is_some()), (fault, "interrupt 14", true), "{found}");
        // The handler of the breakpoint is one instruction.
        assert_eq!(
            inside[..],
            [Shape(breakpoint, "interrupt 3".to_string(), Some(1), Vec::new())],
            "{found}"
        );
    }

    let (kill, after) = (guest.at("kill"), guest.at("handler"));
    let deliver = guest.all(kill..after, "deliver_signal")[0];
    let found = guest.tree(kill, after, false);
    let Shape(_, function, length, inside) = &shapes(&found.calls)[0];
    assert_eq!((&**function, length.is_some(), inside.len()), ("do_syscall_64", true, 1), "{found}");
    assert_eq!((inside[0].0, &*inside[0].1), (deliver, "deliver_signal"), "{found}");
}

#[test]
fn a_jump_out_of_functions_ends_their_calls_at_the_next_return() {
    let mut guest = Guest::with_program();
    let (thrower, landing) = (guest.at("thrower"), guest.at("landing"));
    let yields = guest.at("yield");
    let inner = guest.all(landing..yields, "inner")[0];
    let found = guest.tree(thrower - 1, yields, true);
    let nodes = shapes(&found.calls);
    let deep = guest.at("deep");
    let Shape(at, function, length, inside) = &nodes[0];
    assert_eq!((*at, function, inside[0].0), (thrower, &guest.name("thrower"), deep), "{found}");
    // The call of `inner` after the jump is in the list of open calls until it returns.
    let returned = guest.all(inner..yields, "inner_returns")[0] + 1;
    assert_eq!(*length, Some(returned - thrower), "{found}");
    assert_eq!(inside[0].2, Some(returned - deep), "{found}");
}

#[test]
fn a_call_through_a_thunk_is_a_call_of_the_function() {
    let mut guest = Guest::with_callbacks();
    let (begin, work) = (guest.at("process_one_work"), guest.at("work_runs"));
    let found = guest.tree(begin, work + 3, false);
    let expected = Shape(work, "work_runs".to_string(), Some(2), Vec::new());
    assert_eq!(shapes(&found.calls), [expected], "{found}");

    let filters = Filters::default();
    let end = guest.timeline.end();
    for (function, caller, call) in [
        ("work_runs", "process_one_work", "process_one_work.calls"),
        ("timer_ticks", "call_timer_fn", "call_timer_fn.calls"),
        ("thread_runs", "kthread", "kthread.calls"),
    ] {
        let question = calls::Question { function, filters: &filters, limit: 10 };
        let found = question.answer(&mut guest.timeline, Instructions(0)..end, &mut never).unwrap();
        let at = guest.at(function);
        let found = &found.calls[0];
        assert_eq!((found.at.instruction, &*found.function), (at, function), "{found}");
        assert_eq!(found.caller.split('+').next(), Some(caller), "{found}");
        let returned = found.returned.as_ref().unwrap();
        let length = returned.instruction - at;
        assert_eq!((returned.instructions, length >= 2), (length, true), "{found}");
        guest.timeline.seek(Instructions(returned.instruction), &mut never).unwrap();
        let rip = guest.timeline.machine().cpu().rip();
        assert!((2..=7).contains(&(rip - guest.places[call])), "{found}");
    }
    // The jump to the function counts as a call of the function.
    let question = profile::Question { order: profile::Order::Calls, limit: 1000 };
    let found = question.answer(&mut guest.timeline, Instructions(0)..end, &mut never).unwrap();
    let calls =
        |name: &str| found.functions.iter().find(|row| row.function == name).map(|row| (row.calls, row.own));
    assert_eq!((calls("work_runs"), calls("timer_ticks")), (Some((1, 2)), Some((1, 3))), "{found}");
}

fn values_of(
    timeline: &mut Timeline,
    (variable, words): (&str, &[&str]),
    (all_writes, as_bytes, limit): (bool, bool, usize),
    poll: &mut dyn FnMut() -> bool,
) -> Result<values::Values, Error> {
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    let filters = Filters::parse(&words).unwrap();
    let end = timeline.end();
    let question = values::Question {
        variable,
        files: &DebugFiles::default(),
        filters: &filters,
        all_writes,
        as_bytes,
        limit,
    };
    question.answer(timeline, Instructions(0)..end, &mut *poll)
}

#[test]
fn a_field_is_followed_by_the_kernels_types() {
    let mut guest = Guest::with_callbacks();
    let variable = format!("(timer_list){TIMER:#x}.expires");
    let armed = guest.at("mod_timer.arms");
    let found = values_of(&mut guest.timeline, (&variable, &[]), (true, false, 10), &mut never).unwrap();
    let heading = format!("int {variable} at {:#x}, at first not mapped", TIMER + 0x10);
    assert_eq!(found.heading(), heading);
    let first = &found.writes[0];
    assert_eq!((first.at.instruction, &*first.value), (armed, "100"), "{found}");
    assert!(first.place.starts_with("mod_timer+"), "{found}");
    let changes = values_of(&mut guest.timeline, (&variable, &[]), (false, false, 10), &mut never).unwrap();
    assert_eq!((found.writes.len(), changes.writes.len()), (3, 1), "{found}");
}

#[test]
fn values_have_a_length_a_form_and_filters() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, ..) = linux::record(directory.path(), "r.ttvm", 5, None);
    let mut timeline = Timeline::open(&recording).unwrap();
    let mut last = |variable: &str, as_bytes| {
        let found = values_of(&mut timeline, (variable, &[]), (true, as_bytes, 10), &mut never).unwrap();
        found.writes.last().unwrap().value.clone()
    };
    assert_eq!(last("calls", true), "0500000000000000");
    assert_eq!(last("calls:1", false), "0x5");
    assert_eq!(last(&format!("{:#x}:9", CALLS - 1), false), "000500000000000000");
    assert_eq!(last(&format!("{:#x}", CALLS - 1), false), "0x500");

    let mut text = |words: &[&str], limit| {
        let found = values_of(&mut timeline, ("calls", words), (true, false, limit), &mut never).unwrap();
        (found.writes.len(), found.to_string())
    };
    let (count, shown) = text(&["pid:6"], 10);
    assert!(count == 0 && shown.ends_with("\nnot written in that part of the recording"), "{shown}");
    assert_eq!(text(&["pid:5"], 10).0, 5);
    let (count, shown) = text(&[], 3);
    assert!(count == 3 && shown.ends_with("\nthese are the first 3 writes: use --limit for more"), "{shown}");
    let (count, shown) = text(&[], 5);
    assert!(count == 5 && shown.ends_with("  0x5"), "{shown}");
    assert_eq!(text(&["cpu:0"], 10).0, 5);

    let pid = format!("(task_struct){:#x}.tgid", task(6));
    let found = values_of(&mut timeline, (&pid, &[]), (true, false, 9), &mut never).unwrap();
    assert_eq!((found.kind.as_deref(), &*found.address), (Some("int"), &*format!("{:#x}", task(6) + 0x3c)));
    for (variable, words, expected) in [
        ("(task_struct", &[][..], "a '(' has no ')'"),
        ("(nosuch)calls", &[], "the guest's kernel has no type 'nosuch'"),
        ("(task_struct)nosuch.pid", &[], "'nosuch' is neither an address nor a symbol"),
        ("nosuch", &[], "'nosuch' is neither an address nor a symbol of the guest's kernel"),
        ("calls:0", &[], "has no bytes, or more than"),
        ("calls:0x1000000", &[], "has no bytes, or more than"),
        ("calls:x", &[], "'calls:x' is neither"),
        ("calls", &["longer:1s"], "longer: is a filter for system calls only"),
        ("calls", &["cpu:4"], "processor"),
    ] {
        let error = values_of(&mut timeline, (variable, words), (true, false, 9), &mut never).unwrap_err();
        assert!(error.to_string().contains(expected), "{variable}: {error}");
    }
    let (recording, _) = tiny_guest::record(directory.path(), "tiny.ttvm", 100, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    let error =
        values_of(&mut timeline, ("(int)0x1000", &[]), (true, false, 9), &mut never).unwrap_err().to_string();
    assert!(error.contains("the guest's kernel has no type information"), "{error}");
}

/// The program's last call switches the machine off. The filter takes the end of the recording for the end of the call.
#[test]
fn a_call_that_never_returns_lasts_until_the_end_of_the_recording() {
    let mut guest = Guest::with_program();
    let end = guest.timeline.end();
    let mut last = |filters: &[&str], to| {
        let filters = Filters::parse(&filters.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        let wanted = Wanted::All { from: Instructions(0), to, limit: 1000 };
        let search = Search { condition: "syscall", filters: &filters, wanted, backtrace: false };
        search.run(&mut guest.timeline, &mut never).unwrap().hits.pop().unwrap()
    };
    let power_off = last(&[], end);
    assert_eq!(power_off.call.as_ref().unwrap().result, None);
    assert_eq!(last(&["longer:1ns"], end).instruction, power_off.instruction);
    // Before the end, it is not known how long the call lasts.
    assert!(last(&["longer:1ns"], end - 1).instruction < power_off.instruction);
}

#[test]
fn threads_of_a_tree_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, ..) = linux::record(directory.path(), "r.ttvm", 2, None);
    let mut timeline = Timeline::open(&recording).unwrap();
    let question = Question { thread: Some(77), depth: 3, with_programs: false };
    let part = Instructions(60)..Instructions(100);
    let error = question.answer(&mut timeline, part.clone(), &mut never).unwrap_err().to_string();
    assert!(error.starts_with("there is no thread 77 where the part begins"), "{error}");
    let (recording, _) = tiny_guest::record(directory.path(), "tiny.ttvm", 100, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    let error = question.answer(&mut timeline, part, &mut never).unwrap_err().to_string();
    assert_eq!(error, "there are no threads to choose from: leave --thread out");
}

#[test]
fn processes_differ_in_their_page_tables_and_states() {
    let mut guest = Guest::with_program();
    let (before, after) = (guest.at("yield"), guest.at("second"));
    guest.timeline.seek(Instructions(before), &mut never).unwrap();
    let side = Side::of(guest.timeline.machine_mut()).unwrap();
    guest.timeline.seek(Instructions(after), &mut never).unwrap();
    let difference = side.to(guest.timeline.machine_mut(), 0).unwrap();
    let tasks: Vec<String> = difference.tasks.as_ref().unwrap().iter().map(ToString::to_string).collect();
    let roots = format!("5 (alpha): page tables {:#x} -> {:#x}", linux::ROOT, programs::SECOND_ROOT);
    assert!(tasks.contains(&roots), "{tasks:?}");
    assert_eq!(tasks.len(), 2, "{tasks:?}");
    // No variable is listed, but all are counted.
    assert!(difference.variables.is_empty() && difference.variables_changed > 0, "{difference}");
    let line = format!("\n{} variables of the kernel, of which the first\n", difference.variables_changed);
    assert!(difference.to_string().contains(&line), "{difference}");
    assert_eq!(difference.console.as_deref(), Some(""));
    assert!(difference.to_string().ends_with("\nthe console shows nothing new"), "{difference}");
}

#[test]
fn an_earlier_console_has_another_text() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, ..) = linux::record(directory.path(), "r.ttvm", 5, None);
    let mut timeline = Timeline::open(&recording).unwrap();
    timeline.seek(Instructions(200), &mut never).unwrap();
    let later = Side::of(timeline.machine_mut()).unwrap();
    timeline.seek(Instructions(85), &mut never).unwrap();
    let difference = later.to(timeline.machine_mut(), 10).unwrap();
    assert!(difference.to_string().ends_with("\nthe consoles show different texts"), "{difference}");
}

/// The calls of a timer's function are millions of instructions apart, so the search can be interrupted between them.
#[test]
fn an_interrupted_list_of_calls_goes_on_where_it_ended() {
    let mut guest = Guest::with_callbacks();
    let (end, filters) = (guest.timeline.end(), Filters::default());
    let question = calls::Question { function: "call_timer_fn", filters: &filters, limit: 100 };
    let steps = |found: &calls::Calls| found.calls.iter().map(|call| call.at.instruction).collect::<Vec<_>>();
    let whole = question.answer(&mut guest.timeline, Instructions(0)..end, &mut never).unwrap();
    assert_eq!((whole.calls.len(), whole.interrupted, whole.goes_on_at), (7, false, None));
    let mut interrupted = 0;
    for polls in [0, 1, 2, 4, 8, 16, 32] {
        let mut poll = tiny_guest::interrupt_after(polls);
        match question.answer(&mut guest.timeline, Instructions(0)..end, &mut poll) {
            Err(Error::Interrupted) => {}
            Err(error) => panic!("{error}"),
            Ok(found) if found.interrupted => {
                let from = Instructions(found.goes_on_at.unwrap());
                let rest = question.answer(&mut guest.timeline, from..end, &mut never).unwrap();
                assert_eq!([steps(&found), steps(&rest)].concat(), steps(&whole), "{polls} polls");
                interrupted += 1;
            }
            Ok(found) => assert_eq!(steps(&found), steps(&whole)),
        }
    }
    println!("{interrupted} interrupted");

    // A function can be named by its address.
    let address = guest.name("call_timer_fn");
    let question = calls::Question { function: &address, ..question };
    let found = question.answer(&mut guest.timeline, Instructions(0)..end, &mut never).unwrap();
    assert_eq!((steps(&found), &found.calls[0].function), (steps(&whole), &"call_timer_fn".to_string()));
}
