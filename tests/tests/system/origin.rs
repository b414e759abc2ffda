//! Compares `origin` with the stacks that the guest's own tracer (ftrace) printed when the guest armed timers and queued
//! work items during the same run.

use std::path::Path;

use history::timeline::Timeline;
use machine::position::Instructions;
use origins::{Arming, ArmingEndKind, Kind, WhoArmed};
use tests::gdb::batch;
use tests::guests::{Artefact, BUSYBOX, CLOUD, TRIXIE, repository};
use tests::program::{json, run};
use tests::record::{open, record_script};

/// The events by which a callback is armed and called, and the words before the number that names the object.
const TIMER: Pair =
    Pair { kind: Kind::Timer, armed: "timer_start: ", called: "timer_expire_entry: ", object: "timer=" };
const HIGH_RESOLUTION_TIMER: Pair = Pair {
    kind: Kind::HighResolutionTimer,
    armed: "hrtimer_start: ",
    called: "hrtimer_expire_entry: ",
    object: "hrtimer=",
};
const WORK: Pair = Pair {
    kind: Kind::Work,
    armed: "workqueue_queue_work: ",
    called: "workqueue_execute_start: ",
    object: "work struct",
};
const SOFTIRQ: Pair =
    Pair { kind: Kind::Softirq, armed: "softirq_raise: ", called: "softirq_entry: ", object: "vec=" };
/// The compared callbacks. The second name is the function's name in the trace.
const COMPARED: [(Pair, &str, &str); 5] = [
    (TIMER, "process_timeout", "process_timeout"),
    (HIGH_RESOLUTION_TIMER, "hrtimer_wakeup", "hrtimer_wakeup"),
    (WORK, "blk_mq_run_work_fn", "blk_mq_run_work_fn"),
    (WORK, "wb_workfn", "wb_workfn"),
    (SOFTIRQ, "run_timer_softirq", "action=TIMER"),
];
/// The largest number of calls of a function that are compared.
const MOST_CALLS: usize = 3;
/// The largest number of calls between the end of the trace and the trace's text on the console.
const CALLS_AFTER: usize = 2;

/// The events of one kind of callback.
#[derive(Clone, Copy)]
struct Pair {
    kind: Kind,
    armed: &'static str,
    called: &'static str,
    object: &'static str,
}

/// Traces with stacks while a disk is mounted, written and unmounted, and while processes sleep, and wait for keys.
fn script() -> String {
    let armed =
        ["timer/timer_start", "timer/hrtimer_start", "workqueue/workqueue_queue_work", "irq/softirq_raise"];
    let called = [
        "timer/timer_expire_entry",
        "timer/hrtimer_expire_entry",
        "workqueue/workqueue_execute_start",
        "irq/softirq_entry",
    ];
    let (armed, called) = (armed.join(" "), called.join(" "));
    format!(
        "#!/bin/sh
mount -t tracefs none /sys/kernel/tracing
cd /sys/kernel/tracing
echo 20000 > buffer_size_kb
for e in {armed}; do echo stacktrace > events/$e/trigger; done
for e in {armed} {called}; do echo 1 > events/$e/enable; done
mount -t ext4 /dev/vda /mnt
echo text > /mnt/file; sync
sleep 0.05; sleep 0.05
stty -icanon min 0 time 1 < /dev/ttyS0; cat /dev/ttyS0; cat /dev/ttyS0; stty sane < /dev/ttyS0
dd if=/dev/zero of=/mnt/zeros bs=64k count=20 2> /dev/null
umount /mnt
echo 0 > tracing_on
echo TRACE BEGINS
cat trace
echo TRACE ENDS
"
    )
}

fn record_traced(directory: &Path, kernel: &Artefact, initrd: &Artefact) -> String {
    let disk = directory.join("disk");
    let made = std::process::Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).arg("16M").status();
    assert!(made.expect("mkfs.ext4 is there").success());
    record_script(directory, (kernel, initrd), &script(), Some(disk))
}

/// An event of the trace, and the stack that the trace lists behind the event.
struct Traced<'a> {
    text: &'a str,
    stack: Vec<&'a str>,
}

/// Parses a trace. A stack has a line ` => function` for each function.
fn read_trace(console: &str) -> Vec<Traced<'_>> {
    let trace = console.split("TRACE BEGINS").nth(1).and_then(|rest| rest.split("TRACE ENDS").next());
    let trace = trace.unwrap_or_else(|| panic!("there is no trace: {console}"));
    let mut events: Vec<Traced> = Vec::new();
    for line in trace.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("=> "), line.split_once(": ")) {
            (Some(function), _) => events.last_mut().expect("an event").stack.push(function),
            (None, Some((_, text))) if !text.starts_with("<stack trace>") => {
                events.push(Traced { text, stack: Vec::new() })
            }
            _ => {}
        }
    }
    events
}

/// The stacks with which a function was armed, one for each call of the function.
fn stacks<'a>(events: &'a [Traced<'a>], pair: Pair, function: &str) -> Vec<Vec<&'a str>> {
    let object = |text: &'a str| {
        let rest = text.split_once(pair.object)?.1;
        rest.trim_start_matches([' ', '=']).split([' ', ':']).next()
    };
    let is_function =
        |text: &str| text.split([' ', '=', ']', '[']).any(|word| word == function) || text.contains(function);
    let mut found = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let Some(called) = event.text.strip_prefix(pair.called).filter(|text| is_function(text)) else {
            continue;
        };
        let is_armed = |other: &&Traced<'a>| {
            other.text.strip_prefix(pair.armed).is_some_and(|text| object(text) == object(called))
        };
        let is_call = |other: &Traced<'a>| {
            other.text.strip_prefix(pair.called).is_some_and(|text| object(text) == object(called))
        };
        let mut before = events[..at].iter().rev();
        // A softirq that is raised again before it runs was pending already.
        let armed = if pair.kind == Kind::Softirq {
            before.by_ref().take_while(|other| !is_call(other)).filter(is_armed).last()
        } else {
            before.find(is_armed)
        };
        found.push(armed.map(|event| event.stack.clone()).unwrap_or_default());
    }
    found
}

/// The functions of an answer's stack, from the function that armed the callback on.
fn functions(answer: &Arming) -> Vec<&str> {
    let link = &answer.links[0];
    let by = link.by.as_deref().unwrap_or_default();
    let names = link.backtrace.iter().flat_map(|backtrace| &backtrace.frames);
    let names = names.map(|frame| frame.name().split('+').next().expect("there is a first part"));
    names.skip_while(|name| *name != by).collect()
}

/// Whether two stacks are the same from the first function of `ours` on. A callback that was armed before the trace has
/// no stack in the trace.
fn same(ours: &[&str], traced: &[&str]) -> bool {
    let begin = traced.iter().position(|name| Some(name) == ours.first());
    traced.is_empty() || begin.is_some_and(|begin| traced[begin..] == *ours)
}

fn who_armed(timeline: &mut Timeline, at: u64, limit: usize) -> Arming {
    let question = WhoArmed { function: None, processor: None, at: Instructions(at), limit };
    question.run(timeline, &mut || false).unwrap_or_else(|error| panic!("{at}: {error}"))
}

fn calls(directory: &Path, function: &str) -> Vec<u64> {
    let answer =
        json(directory, &["calls", "r.ttvm", function, "--from", "40%", "--json", "--limit", "100000"]);
    let calls = answer["calls"].as_array().expect("a list").iter();
    calls.map(|call| call["instruction"].as_u64().expect("a position")).collect()
}

fn is_as_traced(kernel: &Artefact, initrd: &Artefact) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let console = record_traced(directory.path(), kernel, initrd);
    let events = read_trace(&console);
    let mut timeline =
        Timeline::open(&open(&directory.path().join("r.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    let end = json(directory.path(), &["search", "r.ttvm", "console:TRACE BEGINS", "--json"]);
    let end = end["hits"][0]["instruction"].as_u64().unwrap_or_else(|| panic!("{end}"));
    for (pair, function, in_trace) in COMPARED {
        let traced = stacks(&events, pair, in_trace);
        let armed = traced.iter().filter(|stack| !stack.is_empty()).count();
        assert!(armed > 0, "{function} was not traced: {console}");
        let traced = &traced[traced.len().saturating_sub(MOST_CALLS)..];
        let before = calls(directory.path(), function).into_iter().filter(|call| *call < end).rev();
        let last = before.take(traced.len() + CALLS_AFTER);
        let answers: Vec<Arming> = last.map(|at| who_armed(&mut timeline, at, 1)).collect();
        assert!(answers.iter().all(|answer| answer.links[0].kind == pair.kind), "{function}");
        let ours: Vec<Vec<&str>> = answers.iter().rev().map(functions).collect();
        // The guest also calls the function after the trace.
        let is_same = |part: &[Vec<&str>]| part.iter().zip(traced).all(|(ours, traced)| same(ours, traced));
        assert!(ours.windows(traced.len()).any(is_same), "{function}:\n{traced:#?}\nis not in\n{ours:#?}");
    }
    other_kinds(directory.path(), &mut timeline);
}

/// The kinds without an event in the trace: an RCU callback, a handler of an interrupt, a kernel thread, and a pointer.
fn other_kinds(directory: &Path, timeline: &mut Timeline) {
    let mut last = |function: &str, limit| {
        let at = *calls(directory, function).last().unwrap_or_else(|| panic!("{function} is called"));
        who_armed(timeline, at, limit)
    };
    let answer = last("wakeme_after_rcu", 1);
    let link = &answer.links[0];
    assert_eq!((link.kind, link.by.as_deref()), (Kind::Rcu, Some("__wait_rcu_gp")), "{answer}");
    let answer = last("serial8250_interrupt", 1);
    let link = &answer.links[0];
    assert_eq!(link.kind, Kind::InterruptHandler, "{answer}");
    assert!(link.by.as_deref().is_some_and(|by| by.contains("8250")), "{answer}");
    let answer = last("kjournald2", 5);
    assert_eq!(answer.links.len(), 1, "{answer}");
    let (link, end) = (&answer.links[0], &answer.end);
    assert_eq!((link.kind, link.by.as_deref()), (Kind::KernelThread, Some("jbd2_journal_load")), "{answer}");
    assert_eq!(end.kind, ArmingEndKind::Program, "{answer}");
    assert!(end.text.contains("(mount), in the system call mount"), "{answer}");
    let answer = last("ext4_file_write_iter", 1);
    assert_eq!((answer.links[0].kind, answer.end.kind), (Kind::Pointer, ArmingEndKind::Pointer), "{answer}");
    let writes = answer.links[0].pointer.as_ref().map_or(0, |pointer| pointer.links.len());
    assert!(writes >= 2, "the pointer is loaded from memory that was written: {answer}");
}

#[test]
fn origins_are_as_the_guest_traced_them() {
    is_as_traced(&CLOUD, &BUSYBOX);
}

#[test]
fn origins_are_as_a_newer_guest_traced_them() {
    let [kernel, busybox] = &TRIXIE;
    if !kernel.exists() {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    is_as_traced(kernel, busybox);
}

/// gdb's command must have the same answer, and positions without a callback must get a sentence.
#[test]
fn gdb_asks_for_the_same_origin() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("r.ttvm");
    tests::shared::record_boot(&path);
    let listed = json(directory.path(), &["calls", "r.ttvm", "run_timer_softirq", "--json", "--limit", "1"]);
    let at = format!("insn:{}", listed["calls"][0]["instruction"]);
    let (_, answer, _) = run(directory.path(), &["origin", "r.ttvm", "--at", &at]);
    assert!(answer.contains("softirq run_timer_softirq") && answer.contains("  raised by "), "{answer}");
    let commands = [
        format!("source {}", repository().join("gdb/commands/tt.py").display()),
        format!("tt goto {at}"),
        "tt origin".to_string(),
        "tt origin no_such_function".to_string(),
    ];
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let said = batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    assert!(said.contains(answer.trim_end()), "{answer} is not in {said}");
    assert!(said.contains("'no_such_function' is not among the functions"), "{said}");
    let (code, out, told) = run(directory.path(), &["origin", "r.ttvm", "--at", "insn:1000"]);
    assert!(code != Some(0) && told.contains("no Linux kernel"), "{code:?} {out} {told}");
}
