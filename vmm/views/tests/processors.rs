//! Tests the views of a machine with several processors: a guest that looks like Linux runs on two of three.

use history::never;
use history::timeline::{Direction, Timeline, TravelStop};
use machine::position::Instructions;
use tiny_guest::linux::{self, Kernel};
use views::core_file;
use views::filters::Filters;
use views::hits::{Found, Search, Wanted};
use views::memory::Range;
use views::processors::Activity;
use views::state::{Running, State, StateOptions};
use views::tasks::Task;
use views::trace;

const PROCESSORS: u8 = 3;
const CALLS_MADE: u32 = 3;
const TURN_STEPS: u64 = 100_000;

fn timeline() -> (tempfile::TempDir, Timeline, Kernel) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, kernel) = linux::record_several(directory.path(), "r.ttvm", CALLS_MADE, PROCESSORS);
    let timeline = Timeline::open(&recording).unwrap();
    (directory, timeline, kernel)
}

/// Goes to the second thread switch: processor 0 runs, and processor 1 has had a turn.
fn go_to_a_switch(timeline: &mut Timeline, kernel: &Kernel) {
    timeline.set_breakpoints(vec![kernel.address_of("__switch_to")]);
    assert!(matches!(timeline.run_forward(&mut never).unwrap(), TravelStop::Hit(_)));
}

fn state(timeline: &Timeline, processor: Option<usize>) -> State {
    let memory = vec![Range { address: linux::COUNTED, length: 8 }];
    let options =
        StateOptions { processor, memory, processes: true, instructions: 1, ..StateOptions::default() };
    State::of(timeline.machine(), &options).unwrap()
}

#[test]
fn a_state_lists_all_processors_or_shows_one() {
    let (_directory, mut timeline, kernel) = timeline();
    go_to_a_switch(&mut timeline, &kernel);
    let running = state(&timeline, None);
    assert_eq!((running.processor, running.activity), (Some(0), None));
    let rows = running.processors.as_ref().unwrap();
    let told: Vec<_> = rows.iter().map(|row| (row.number, row.activity, row.pid)).collect();
    let expected =
        [(0, Activity::Running, Some(5)), (1, Activity::Waiting, Some(2)), (2, Activity::NotStarted, None)];
    assert_eq!(told, expected);
    assert_eq!((rows[0].name.as_deref(), rows[0].place.as_deref()), (Some("alpha"), Some("__switch_to+0x0")));
    assert!(rows[1].place.as_ref().unwrap().starts_with("start_secondary+0x"), "{rows:?}");
    let text = running.to_string();
    let lines: Vec<_> = text.split("\n\nprocessors\n").nth(1).unwrap().lines().take(3).collect();
    let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(words(lines[0])[..4], ["0", "running", "5", "(alpha)"]);
    assert_eq!(words(lines[0])[5], "<__switch_to+0x0>");
    assert_eq!(words(lines[1])[..7], ["1", "waiting", "for", "its", "turn", "2", "(worker)"]);
    assert_eq!(words(lines[2]), ["2", "not", "started"]);
    assert!(text.contains("\non processor 0\n"), "{text}");

    let other = state(&timeline, Some(1));
    assert_eq!(
        (other.processor, other.activity, other.processors.as_ref()),
        (Some(1), Some(Activity::Waiting), None)
    );
    assert_eq!(other.thread, Some(Running { pid: 2, process: 2, name: "worker".to_string() }));
    assert_eq!(other.place, rows[1].place);
    assert_eq!(other.registers.values["rip"], rows[1].rip);
    assert_eq!(other.code[0].address, rows[1].rip);
    assert_eq!(other.memory, running.memory);
    assert!(other.to_string().contains("\non processor 1, waiting for its turn\n"));
    let options = StateOptions { processor: Some(1), backtrace: true, ..StateOptions::default() };
    let backtrace = State::of(timeline.machine(), &options).unwrap().backtrace.unwrap();
    assert!(backtrace.frames[0].name().starts_with("start_secondary"), "{backtrace:?}");

    let unstarted = state(&timeline, Some(2));
    assert_eq!((unstarted.activity, unstarted.thread.as_ref()), (Some(Activity::NotStarted), None));
    assert!(unstarted.to_string().contains("\non processor 2, not started\n"), "{unstarted}");
    let options = StateOptions { processor: Some(2), ..options };
    let error = State::of(timeline.machine(), &options).unwrap_err().to_string();
    assert_eq!(error, "there is no backtrace to show: processor 2 has not started");
    let options = StateOptions { processor: Some(3), ..StateOptions::default() };
    let error = State::of(timeline.machine(), &options).unwrap_err().to_string();
    assert_eq!(error, "there is no processor 3: this machine has processors 0 to 2");
}

#[test]
fn each_running_task_is_marked_with_its_processor() {
    let (_directory, mut timeline, kernel) = timeline();
    go_to_a_switch(&mut timeline, &kernel);
    let tasks = state(&timeline, None).processes.unwrap().tasks;
    let told: Vec<_> = tasks.iter().map(|task| (task.pid, task.current, task.processor)).collect();
    assert_eq!(told, [(0, false, None), (2, true, Some(1)), (5, true, Some(0)), (6, false, None)]);
    let by_pid = |pid: u32| tasks.iter().find(|task| task.pid == pid).unwrap();
    // The saved registers of a running task are old, so `waits_in` must be missing.
    assert_eq!(by_pid(2).waits_in, None);
    assert!(by_pid(6).waits_in.is_some());
    let first = |task: &Task| task.line().split_whitespace().next().unwrap().to_string();
    assert_eq!([0, 2, 5].map(|pid| first(by_pid(pid))), ["0", "1", "0"]);
    assert_eq!(by_pid(2).line().find("kernel"), by_pid(6).line().find("0x"), "the columns stay");
}

fn found(timeline: &mut Timeline, condition: &str, filters: &[&str], wanted: Wanted) -> Found {
    let filters = Filters::parse(&filters.iter().map(|word| word.to_string()).collect::<Vec<_>>()).unwrap();
    Search { condition, filters: &filters, wanted, backtrace: false }.run(timeline, &mut never).unwrap()
}

#[test]
fn a_search_says_the_processor_and_can_ask_for_one() {
    let (_directory, mut timeline, _) = timeline();
    let all = Wanted::All { from: Instructions(0), to: timeline.end(), limit: 100 };
    let calls = found(&mut timeline, "syscall", &[], all);
    assert_eq!(calls.hits.len(), CALLS_MADE as usize);
    assert!(calls.hits.iter().all(|hit| hit.processor == Some(0) && hit.pid == Some(5)));
    assert!(calls.to_string().contains("  5 (alpha)  on processor 0  write("), "{calls}");
    // The results of calls do not depend on the filter.
    let on_first = found(&mut timeline, "syscall", &["cpu:0"], all);
    assert_eq!(on_first.to_string(), calls.to_string());
    assert!(calls.hits[0].call.as_ref().unwrap().result.is_some());
    assert!(found(&mut timeline, "syscall", &["cpu:1"], all).hits.is_empty());
    assert!(found(&mut timeline, "write:counted", &["cpu:0"], all).hits.is_empty());
    let counted = found(&mut timeline, "write:counted", &["cpu:1", "comm:worker"], all);
    assert_eq!(counted.hits.len(), 100);
    assert!(counted.hits.iter().all(|hit| hit.processor == Some(1) && hit.name.as_deref() == Some("worker")));
    for (from, direction) in [(Instructions(0), Direction::Forward), (timeline.end(), Direction::Backward)] {
        let one = found(&mut timeline, "write:counted", &["cpu:1"], Wanted::One { from, direction });
        assert_eq!((one.hits.len(), one.hits[0].processor), (1, Some(1)), "{direction:?}");
        let one = found(&mut timeline, "break:__switch_to", &[], Wanted::One { from, direction });
        assert_eq!(one.hits[0].processor, Some(0), "{direction:?}");
    }
    let filters = Filters { processor: Some(3), ..Filters::default() };
    let search = Search { condition: "syscall", filters: &filters, wanted: all, backtrace: false };
    let error = search.run(&mut timeline, &mut never).unwrap_err().to_string();
    assert_eq!(error, "there is no processor 3: this machine has processors 0 to 2");
}

/// The last step of a turn belongs to the processor that executes the step, although it is already the next processor's
/// turn after the step.
#[test]
fn the_last_step_of_a_turn_is_its_processors() {
    let (_directory, mut timeline, _) = timeline();
    let ends = (1..=u64::from(CALLS_MADE)).map(|turn| turn * TURN_STEPS);
    let mut last_steps = 0;
    for end in ends {
        let part = (Instructions(end - 20), Instructions(end));
        let all = Wanted::All { from: part.0, to: part.1, limit: 100 };
        let hits = found(&mut timeline, "write:counted", &[], all).hits;
        assert!(hits.iter().all(|hit| hit.processor == Some(1) && hit.pid == Some(2)), "{end}");
        let Some(last) = hits.last().filter(|hit| hit.instruction == end - 1) else { continue };
        last_steps += 1;
        timeline.seek(part.1, &mut never).unwrap();
        assert_eq!(timeline.machine().cpu().seat(), 0);
        for (from, direction) in [(part.1, Direction::Backward), (part.1 - 1, Direction::Forward)] {
            let one =
                found(&mut timeline, "write:counted", &["pid:2", "cpu:1"], Wanted::One { from, direction });
            assert_eq!((one.hits[0].processor, one.hits[0].pid), (Some(1), Some(2)), "{direction:?}");
            assert_eq!((&one.hits[0].old, &one.hits[0].new), (&last.old, &last.new));
        }
    }
    assert!(last_steps > 0, "a turn ends with a write");
}

#[test]
fn a_core_file_has_the_registers_of_each_processor() {
    let (directory, mut timeline, kernel) = timeline();
    go_to_a_switch(&mut timeline, &kernel);
    let path = directory.path().join("core");
    let written = core_file::write(timeline.machine(), &path).unwrap();
    assert_eq!(written.pid, Some(5));
    let bytes = std::fs::read(&path).unwrap();
    let number = |at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    // The first program header has the notes: for each processor NT_PRSTATUS and QEMU's note, both with names of five bytes.
    let mut at = number(64 + 8, 8) as usize;
    for processor in timeline.machine().all_processors() {
        assert_eq!((number(at, 4), number(at + 4, 4), number(at + 8, 4)), (5, 336, 1));
        let status = at + 20;
        assert_eq!(number(status + 32, 4), processor.number() as u64 + 1);
        assert_eq!(number(status + 112 + 16 * 8, 8), processor.state().rip);
        at = status + 336;
        assert_eq!((number(at, 4), number(at + 4, 4), &bytes[at + 12..at + 16]), (5, 440, &b"QEMU"[..]));
        assert_eq!(number(at + 20 + 416, 8), processor.state().cr3);
        at += 20 + 440;
    }
    assert_eq!(&bytes[at + 12..at + 22], b"VMCOREINFO");
}

#[test]
fn a_trace_has_the_turns() {
    let (directory, mut timeline, _) = timeline();
    let (whole, path) = ((Instructions(0), timeline.end()), directory.path().join("trace"));
    let counts = trace::write(&mut timeline, whole, &path, &mut never, |_| {}).unwrap();
    // Each call gives the other processor a turn, and the last turn of processor 0 follows.
    assert_eq!(counts.turns, Some(2 * u64::from(CALLS_MADE) + 1));
    assert_eq!((counts.system_calls, counts.switches), (CALLS_MADE.into(), 2 * u64::from(CALLS_MADE)));
}
