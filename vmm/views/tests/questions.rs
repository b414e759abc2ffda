//! Tests the questions over a whole run with a guest that looks like Linux.

use std::ops::Range;

use history::never;
use history::timeline::Timeline;
use machine::position::Instructions;
use tiny_guest::linux::{self, CALLS};
use views::calls::Calls;
use views::debug_files::DebugFiles;
use views::difference::Side;
use views::filters::Filters;
use views::profile::Order;
use views::{calls, profile, tree, values};

/// The number of system calls that the guest makes.
const CALLS_MADE: u32 = 5;

fn timeline() -> (tempfile::TempDir, Timeline) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, ..) = linux::record(directory.path(), "r.ttvm", CALLS_MADE, None);
    (directory, Timeline::open(&recording).unwrap())
}

fn filters(words: &[&str]) -> Filters {
    Filters::parse(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>()).unwrap()
}

fn calls_of(timeline: &mut Timeline, function: &str, words: &[&str], part: Range<u64>) -> Calls {
    let filters = filters(words);
    let question = calls::Question { function, filters: &filters, limit: 7 };
    question.answer(timeline, Instructions(part.start)..Instructions(part.end), &mut never).unwrap()
}

#[test]
fn calls_have_their_thread_arguments_result_and_caller() {
    let (_directory, mut timeline) = timeline();
    let whole = 0..timeline.end().0;
    let found = calls_of(&mut timeline, "*_switch*", &[], whole.clone());
    assert!(found.calls.len() == 7 && found.is_cut && !found.interrupted);
    let begins: Vec<u64> = found.calls.iter().map(|call| call.at.instruction).collect();
    assert_eq!(begins, [81, 87, 177, 183, 273, 279, 369]);
    let first = found.calls[0].to_string();
    assert_eq!(
        first,
        "insn:81  0.000000081 s  5 (alpha)  __switch_to(rdi = 0xffff888000145000, rsi = 0xffff888000146000, \
         rdx = 0x7fff0000, rcx = 0xffffffff8112006f, r8 = 0x0, r9 = 0x0) = 0xffffffff81148008  in 3 instructions, \
         0.000000003 s  from do_syscall_64+0x26"
    );
    let returned = found.calls[0].returned.clone().unwrap();
    assert_eq!((returned.instruction, returned.instructions), (84, 3));

    let beta = calls_of(&mut timeline, "__switch_to", &["pid:6"], whole.clone());
    assert_eq!(
        beta.calls.iter().map(|call| call.at.instruction).collect::<Vec<_>>(),
        [87, 183, 279, 375, 471]
    );
    assert!(!beta.is_cut && beta.calls.iter().all(|call| call.caller == "do_syscall_64+0x3f"));
    // The part ends before the second call returns.
    let part = calls_of(&mut timeline, "do_syscall_64", &[], 60..170);
    let ends: Vec<bool> = part.calls.iter().map(|call| call.returned.is_some()).collect();
    assert_eq!(ends, [true, false]);
    assert!(part.calls[1].to_string().contains("  does not return here  "), "{}", part.calls[1]);
    assert!(calls_of(&mut timeline, "__switch_to", &["comm:worker"], whole).calls.is_empty());
}

#[test]
fn functions_that_do_not_exist_and_too_many_functions_are_refused() {
    let (_directory, mut timeline) = timeline();
    let part = Instructions(0)..timeline.end();
    let filters = Filters::default();
    let question = calls::Question { function: "no_such_function", filters: &filters, limit: 1 };
    let error = question.answer(&mut timeline, part.clone(), &mut never).unwrap_err().to_string();
    assert!(error.starts_with("'no_such_function' is no function of the guest's kernel: write"), "{error}");
    let longer = self::filters(&["longer:1s"]);
    let question = calls::Question { function: "decoy", filters: &longer, limit: 1 };
    let error = question.answer(&mut timeline, part, &mut never).unwrap_err().to_string();
    assert_eq!(error, "longer: is a filter for system calls only");
}

#[test]
fn values_are_listed_from_the_beginning_of_the_part() {
    let (_directory, mut timeline) = timeline();
    let filters = Filters::default();
    let files = DebugFiles::default();
    let question = |all_writes, limit| values::Question {
        variable: "calls",
        files: &files,
        filters: &filters,
        all_writes,
        as_bytes: false,
        limit,
    };
    let whole = Instructions(0)..timeline.end();
    let found = question(false, 100).answer(&mut timeline, whole.clone(), &mut never).unwrap();
    assert_eq!(found.heading(), format!("calls at {CALLS:#x}, at first not mapped"));
    let lines: Vec<String> = found.writes.iter().map(|write| write.to_string()).collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], "insn:91  0.000000092 s  5 (alpha)  do_syscall_64+0x4c  0x1");
    assert_eq!(lines[4], "insn:475  0.000000476 s  5 (alpha)  do_syscall_64+0x4c  0x5");
    let part = Instructions(100)..Instructions(300);
    let found = question(false, 100).answer(&mut timeline, part, &mut never).unwrap();
    assert!(found.heading().ends_with(", at first 0x1"), "{}", found.heading());
    assert_eq!(found.writes.iter().map(|write| write.at.instruction).collect::<Vec<_>>(), [187, 283]);
    let found = question(true, 3).answer(&mut timeline, whole, &mut never).unwrap();
    assert_eq!(found.writes.len(), 3);
}

#[test]
fn a_tree_has_calls_interrupts_and_the_calls_in_them() {
    let (_directory, mut timeline) = timeline();
    let mut tree = |question: tree::Question, from, to| {
        question.answer(&mut timeline, Instructions(from)..Instructions(to), &mut never).unwrap()
    };
    let question = tree::Question { thread: None, depth: 8, with_programs: false };
    let found = tree(question, 60, 200);
    assert_eq!((found.pid, found.name.as_deref(), found.is_cut), (Some(5), Some("alpha"), false));
    let shape = |node: &tree::Node| (node.instruction, node.function.clone(), node.instructions);
    let outer: Vec<_> = found.calls.iter().map(shape).collect();
    assert_eq!(
        outer,
        [
            (65, "decoy".to_string(), Some(1)),
            (68, "do_syscall_64".to_string(), Some(44)),
            (161, "decoy".to_string(), Some(1)),
            (164, "do_syscall_64".to_string(), None),
        ]
    );
    let inner: Vec<_> = found.calls[1].calls.iter().map(shape).collect();
    assert_eq!(
        inner,
        [
            (71, "interrupt 3".to_string(), Some(2)),
            (75, "interrupt 14".to_string(), Some(3)),
            (81, "__switch_to".to_string(), Some(9)),
        ]
    );
    assert_eq!(found.calls[1].result.as_deref(), Some("0x5"));
    assert_eq!(found.calls[1].arguments[1].value, "0x150000");
    let text = found.to_string();
    assert!(
        text.starts_with("thread 5 (alpha)\ninsn:65  ") && text.contains("  not ended  do_syscall_64("),
        "{text}"
    );

    // Deeper calls are counted.
    let flat = tree(tree::Question { depth: 1, ..question }, 60, 150);
    assert!(flat.calls[1].calls.is_empty() && flat.calls[1].deeper == 3, "{flat}");
    assert!(flat.to_string().contains("  +3 calls"), "{flat}");
    let beta = tree(tree::Question { thread: Some(6), ..question }, 60, 200);
    let calls: Vec<_> = beta.calls.iter().map(|node| node.function.as_str()).collect();
    assert!(beta.pid == Some(6) && calls.iter().all(|function| *function == "__switch_to"), "{beta}");
}

#[test]
fn a_profile_counts_calls_and_instructions() {
    let (_directory, mut timeline) = timeline();
    let whole = Instructions(0)..timeline.end();
    let mut profile = |order, limit| {
        let question = profile::Question { order, limit };
        question.answer(&mut timeline, whole.clone(), &mut never).unwrap()
    };
    let found = profile(Order::Own, 100);
    let rows: Vec<_> = found
        .functions
        .iter()
        .map(|function| (function.function.as_str(), function.calls, function.own, function.total))
        .collect();
    assert_eq!(rows, [("do_syscall_64", 5, 190, 220), ("__switch_to", 10, 30, 30), ("decoy", 5, 5, 5)]);
    assert_eq!((found.calls, found.outside, found.instructions), (20, 519 - 225, 519));
    assert_eq!(found.folded(), "decoy 5\ndo_syscall_64 190\ndo_syscall_64;__switch_to 30\n");
    assert!(
        found.to_string().contains("           5            190   36.6            220   42.4  do_syscall_64")
    );
    let first = |profile: profile::Profile| profile.functions[0].function.clone();
    assert_eq!(first(profile(Order::Calls, 1)), "__switch_to");
    assert_eq!(first(profile(Order::Total, 1)), "do_syscall_64");
    assert!(profile(Order::Own, 2).has_more && !profile(Order::Own, 3).has_more);
}

#[test]
fn two_states_differ_in_what_the_guest_changed() {
    let (_directory, mut timeline) = timeline();
    timeline.seek(Instructions(85), &mut never).unwrap();
    let before = Side::of(timeline.machine_mut()).unwrap();
    timeline.seek(Instructions(200), &mut never).unwrap();
    let difference = before.to(timeline.machine_mut(), 10).unwrap();
    assert_eq!((difference.from.instruction, difference.to.instruction), (85, 200));
    let changes = difference.variables.iter().map(|change| (&*change.name, &*change.old, &*change.new));
    let current = ("current_task", "0xffff888000146000", "0xffff888000145000");
    assert_eq!(changes.collect::<Vec<_>>(), [("calls", "0x0", "0x2"), current], "{difference}");
    assert!(difference.registers.iter().any(|register| register.name == "rip"), "{difference}");
    assert_eq!(difference.console.as_deref(), Some("call\ncall"), "{difference}");
    assert!(difference.pages_changed == 3 && difference.blocks_changed == 0, "{difference}");
}
