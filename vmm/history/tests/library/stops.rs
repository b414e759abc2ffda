//! Tests all events at which a run can stop, with a guest that makes system calls, prints and writes.

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::timeline::{
    Breakpoint, Cause, Condition, Filter, Hit, Stops, Timeline, TravelStop, Watch, address_space,
};
use machine::engine::EngineKind;
use machine::position::Instructions;
use tiny_guest::{STIRRED, record, record_calls};

const CALLS: u32 = 20;

fn timeline() -> (tempfile::TempDir, Timeline) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_calls(directory.path(), "r.ttvm", CALLS, None);
    let timeline = Timeline::open_with(&recording, 1).unwrap();
    (directory, timeline)
}

fn condition(text: &str) -> Stops {
    text.parse::<Condition>().unwrap().0
}

fn all(timeline: &mut Timeline, stops: Stops) -> Vec<Hit> {
    let end = timeline.end();
    timeline.set_stops(stops);
    timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap().found
}

/// The numbers of the guest's system calls.
fn numbers() -> impl Iterator<Item = u64> {
    (1..=u64::from(CALLS)).rev().map(|left| left % 4)
}

#[test]
fn system_calls_are_found_all_or_those_with_a_number() {
    let (_directory, mut timeline) = timeline();
    let hits = all(&mut timeline, condition("syscall"));
    let causes: Vec<Cause> = hits.iter().map(|hit| hit.cause).collect();
    assert_eq!(causes, numbers().map(Cause::SystemCall).collect::<Vec<_>>());
    assert!(hits.iter().all(|hit| hit.after == hit.before + 1));
    for number in 0..4 {
        let some = all(&mut timeline, condition(&format!("syscall-nr:{number}")));
        let expected = hits.iter().filter(|hit| hit.cause == Cause::SystemCall(number));
        assert_eq!(some, expected.copied().collect::<Vec<_>>());
    }
    assert_eq!(all(&mut timeline, condition("syscall-nr:4")), []);
    assert_eq!(all(&mut timeline, condition("vector:14")), []);
}

#[test]
fn text_on_the_console_is_found_where_its_last_byte_appears() {
    let (_directory, mut timeline) = timeline();
    let calls = all(&mut timeline, condition("syscall"));
    // The third instruction of each system call prints a digit. In the order of the calls, the digits are 3 2 1 0 3
    // 2 1 0 ...
    let found = all(&mut timeline, condition("console:10"));
    assert!(found.iter().all(|hit| hit.cause == Cause::Console(1) && hit.after == hit.before + 1));
    let zeroes = calls.iter().filter(|hit| hit.cause == Cause::SystemCall(0));
    let expected: Vec<Instructions> = zeroes.map(|hit| hit.after + 3).collect();
    assert_eq!(
        found.iter().map(|hit| hit.after).collect::<Vec<_>>(),
        expected[usize::from(CALLS.is_multiple_of(4))..]
    );
    assert_eq!(all(&mut timeline, condition("console:01")), []);
    // Goes to the hit and back.
    timeline.set_stops(condition("console:2103"));
    let stop = timeline.run_forward(&mut || false).unwrap();
    let there = timeline.position();
    assert_eq!(stop, TravelStop::Hit(Cause::Console(1)));
    assert!(timeline.machine().console().ended_with(b"2103", 1));
    timeline.run_forward(&mut || false).unwrap();
    assert_eq!(timeline.run_backward(&mut || false).unwrap(), stop);
    assert_eq!(timeline.run_backward(&mut || false).unwrap(), stop);
    assert_eq!(timeline.position() + 1, there);
}

#[test]
fn a_write_that_changes_nothing_is_no_change() {
    let (_directory, mut timeline) = timeline();
    let writes = all(&mut timeline, condition(&format!("write:{STIRRED}")));
    assert_eq!(writes.len() as u32, 2 * CALLS);
    let changes = all(&mut timeline, condition(&format!("change:{STIRRED}")));
    // The second write of each call writes the same value again.
    assert_eq!(changes, writes.iter().copied().step_by(2).collect::<Vec<_>>());
    let expected = Cause::Watch { kind: WatchKind::Write, address: STIRRED };
    assert!(changes.iter().all(|hit| hit.cause == expected));
    assert_eq!(all(&mut timeline, condition(&format!("read:{STIRRED}"))), []);
    assert_eq!(all(&mut timeline, condition(&format!("access:{STIRRED}"))).len(), writes.len());
}

#[test]
fn filters_decide_what_counts() {
    let (_directory, mut timeline) = timeline();
    let calls = all(&mut timeline, condition("syscall"));
    timeline.seek(calls[0].after, &mut || false).unwrap();
    let entry = Breakpoint::at(timeline.machine().cpu().rip());
    let of = |filter: Filter| Stops {
        breakpoints: vec![entry],
        filters: [(entry.address, filter)].into(),
        ..Stops::default()
    };
    let visits: Vec<Instructions> = calls.iter().map(|hit| hit.after).collect();
    let places = |hits: Vec<Hit>| hits.iter().map(|hit| hit.before).collect::<Vec<_>>();
    assert_eq!(places(all(&mut timeline, of(Filter::new(|_| true)))), visits);
    assert_eq!(places(all(&mut timeline, of(Filter::new(|_| false)))), []);
    let second = visits[1];
    let only = Filter::new(move |machine| machine.moment().count == second);
    assert_eq!(places(all(&mut timeline, of(only.clone()))), [second]);
    assert!(only.holds(timeline.machine()) == (timeline.position() == second));
    let write =
        Watchpoint { space: AddressKind::Linear, address: STIRRED, length: 1, kind: WatchKind::Write };
    let third = Filter::new(move |machine| machine.cpu().system_calls() == 3);
    let stops = Stops {
        watches: vec![Watch::from(write)],
        watch_filters: [(STIRRED, third)].into(),
        ..Stops::default()
    };
    assert_eq!(all(&mut timeline, stops).len(), 2);
}

#[test]
fn a_filter_is_equal_to_itself_alone() {
    let (one, other) = (Filter::new(|_| true), Filter::new(|_| true));
    assert_eq!(one, one.clone());
    assert_ne!(one, other);
    assert_eq!(format!("{one:?}"), "Filter");
}

#[test]
fn address_spaces_are_told_apart_by_the_page_of_their_root() {
    let (_directory, mut timeline) = timeline();
    timeline.seek(Instructions(50), &mut || false).unwrap();
    let mut spaces = Vec::new();
    for cr3 in [0x1234_5000, 0x1234_5018, 0x1234_6fff] {
        let mut state = timeline.machine().cpu().state();
        state.cr3 = cr3;
        timeline.change_registers(&state).unwrap();
        spaces.push(address_space(timeline.machine()));
    }
    assert_eq!(spaces, [0x1234_5000, 0x1234_5000, 0x1234_6000]);
}

#[test]
fn an_execution_breakpoint_at_a_physical_address_is_met() {
    let (_directory, mut timeline) = timeline();
    let linear = {
        timeline.seek(Instructions(100), &mut || false).unwrap();
        all_at(&mut timeline, AddressKind::Linear)
    };
    assert!(!linear.is_empty());
    assert_eq!(all_at(&mut timeline, AddressKind::Physical), linear);
}

/// All hits of a breakpoint at the machine's present instruction.
fn all_at(timeline: &mut Timeline, space: AddressKind) -> Vec<Hit> {
    let address = timeline.machine().cpu().rip();
    all(timeline, Stops { breakpoints: vec![Breakpoint { space, address }], ..Stops::default() })
}

#[test]
fn points_that_are_set_one_kind_at_a_time_are_all_stopped_at() {
    let (_directory, mut timeline) = timeline();
    let calls = all(&mut timeline, condition("syscall"));
    timeline.seek(calls[1].after, &mut || false).unwrap();
    let entry = timeline.machine().cpu().rip();
    timeline.seek(Instructions(0), &mut || false).unwrap();
    timeline.set_stops(Stops::default());
    timeline.set_breakpoints(vec![entry]);
    let point =
        Watchpoint { space: AddressKind::Linear, address: STIRRED, length: 1, kind: WatchKind::Write };
    timeline.set_watchpoints(vec![point]);
    let breakpoint = TravelStop::Hit(Cause::Breakpoint(entry));
    let write = TravelStop::Hit(Cause::Watch { kind: WatchKind::Write, address: STIRRED });
    for expected in [breakpoint, write, write, breakpoint, write, write] {
        assert_eq!(timeline.run_forward(&mut || false).unwrap(), expected);
    }
    timeline.set_breakpoints(Vec::new());
    assert_eq!(timeline.run_forward(&mut || false).unwrap(), write);
}

#[test]
fn an_engine_that_counts_no_instructions_is_refused_and_the_software_engine_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 10, Vec::new());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.use_engine(EngineKind::SOFT).unwrap();
    let refused = timeline
        .use_engine(EngineKind { counts_instructions: false, ..EngineKind::SOFT })
        .unwrap_err()
        .to_string();
    assert!(refused.contains("counts instructions"), "{refused}");
}
