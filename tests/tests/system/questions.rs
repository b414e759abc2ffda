//! Compares ttvm's answers to questions over a whole run with the trace that the guest's own tracer (ftrace)
//! printed during the same run.

use std::path::Path;

use history::timeline::Timeline;
use serde_json::Value;
use tests::gdb::batch;
use tests::guests::{Artefact, BUSYBOX, CLOUD, SID, repository};
use tests::program::{json, run};
use tests::record::{open, record_script};

/// The traced functions. The kernel calls them directly, through pointers, by tail calls, or in interrupts.
const FUNCTIONS: [&str; 7] = [
    "do_sys_openat2",
    "vfs_read",
    "vfs_write",
    "wake_up_new_task",
    "do_exit",
    // The handler of the timer's tick, in older and newer kernels.
    "tick_sched_timer",
    "tick_nohz_handler",
];

/// Prints the trace of some commands between two lines of marks. Sets the host's name several times.
fn script() -> String {
    let functions = FUNCTIONS.join(" ");
    format!(
        "#!/bin/sh
mount -t tracefs none /sys/kernel/tracing
cd /sys/kernel/tracing
echo 20000 > buffer_size_kb
for f in {functions}; do echo $f >> set_ftrace_filter; done 2> /dev/null
echo 1 > events/syscalls/sys_exit_openat/enable
echo function > current_tracer
hostname first
cat /init /nowhere > /dev/null
(sleep 0.02; ls -l /proc > /dev/null) &
ls / | sort | tail -n 2 > /tmp/x
hostname second-name
wait
echo 0 > tracing_on
hostname third
echo TRACE BEGINS
cat trace
echo TRACE ENDS
"
    )
}

/// A traced call: thread, function, and the function that called.
type Traced = (u64, String, String);

/// The calls of a trace, and the results of openat. A line of a call looks like this:
/// `cat-91 [000] ..... 1.6: vfs_read <-ksys_read`.
fn read_trace(console: &str) -> (Vec<Traced>, Vec<i64>) {
    let trace = console.split("TRACE BEGINS").nth(1).and_then(|rest| rest.split("TRACE ENDS").next());
    let trace = trace.unwrap_or_else(|| panic!("there is no trace: {console}"));
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for line in trace.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (head, what) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let pid = head.split(" [").next().and_then(|thread| thread.trim().rsplit_once('-'));
        let pid = pid.and_then(|(_, pid)| pid.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        if let Some(result) = what.strip_prefix("sys_openat -> ") {
            let value = u64::from_str_radix(result.trim_start_matches("0x"), 16);
            results.push(value.unwrap_or_else(|_| panic!("{line}")) as i64);
        } else if let Some((function, caller)) = what.split_once(" <-") {
            calls.push((pid, function.to_string(), caller.to_string()));
        }
    }
    (calls, results)
}

fn text<'a>(call: &'a Value, key: &str) -> &'a str {
    call[key].as_str().unwrap_or_else(|| panic!("{key} of {call}"))
}

fn is_as_traced(kernel: &Artefact, initrd: &Artefact) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let console = record_script(directory.path(), (kernel, initrd), &script(), None);
    let (traced, results) = read_trace(&console);
    assert!(traced.len() > 100 && results.len() > 5, "{console}");
    let ask =
        |arguments: &[&str]| json(directory.path(), &[arguments, &["--json", "--limit", "100000"]].concat());

    let (mut compared, mut all) = (0, Vec::new());
    for function in FUNCTIONS {
        let expected: Vec<(u64, &str)> =
            traced.iter().filter(|call| call.1 == function).map(|call| (call.0, call.2.as_str())).collect();
        if expected.is_empty() {
            continue;
        }
        compared += 1;
        let answer = ask(&["calls", "r.ttvm", function]);
        let calls = answer["calls"].as_array().expect("a list");
        let begins = |call: &Value| call["instruction"].as_u64().expect("a position");
        all.extend(calls.iter().map(|call| (begins(call), call["pid"].as_u64(), function)));
        let caller = |call| text(call, "caller").split('+').next().expect("there is a first part");
        let found: Vec<(u64, &str)> =
            calls.iter().map(|call| (call["pid"].as_u64().expect("a thread"), caller(call))).collect();
        // The function is also called before and after the trace, so look for the traced calls among all calls.
        let at = found.windows(expected.len()).position(|part| part == expected);
        assert!(at.is_some(), "{function}:\n{expected:?}\nis not in\n{found:?}");
        let open = calls.iter().filter(|call| call.get("returned").is_none());
        let may_not_return = if function == "do_exit" { calls.len() } else { 1 };
        assert!(open.count() <= may_not_return, "{function} returns");
    }

    assert!(compared >= FUNCTIONS.len() - 1, "{compared} functions were traced");

    tree_has(&mut all, directory.path());

    let answer = ask(&["calls", "r.ttvm", "do_sys_openat2"]);
    let opened: Vec<i64> = answer["calls"].as_array().expect("a list").iter().map(result_of).collect();
    let at = opened.windows(results.len()).position(|part| part == results);
    assert!(at.is_some(), "{results:?} is not in {opened:?}");
    let names: Vec<&str> = answer["calls"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|call| text(&call["arguments"][1], "value"))
        .collect();
    assert!(names.iter().any(|name| name.ends_with("\"/nowhere\"")), "{names:?}");

    let answer = ask(&["values", "r.ttvm", "(struct uts_namespace)init_uts_ns.name.nodename"]);
    let mut names: Vec<&str> =
        answer["writes"].as_array().expect("a list").iter().map(|write| text(write, "value")).collect();
    names.retain(|name| ["\"first\"", "\"second-name\"", "\"third\""].contains(name));
    assert_eq!(names, ["\"first\"", "\"second-name\"", "\"third\""], "{answer}");
}

/// Checks that a thread's tree has all listed calls, in the order of the list, each below the function that called
/// it.
fn tree_has(calls: &mut [(u64, Option<u64>, &str)], directory: &Path) {
    const COMPARED: usize = 6;
    /// A call through a pointer goes through a few instructions before the function begins.
    const THUNK: u64 = 20;
    calls.sort_unstable();
    let of_thread = |pid| calls.iter().filter(move |call| call.1 == pid);
    let enough = |call: &&(u64, Option<u64>, &str)| of_thread(call.1).count() >= COMPARED && call.1 > Some(1);
    let (_, pid, _) = calls.iter().rev().find(enough).expect("a thread makes some calls");
    let wanted: Vec<(u64, &str)> = of_thread(*pid).take(COMPARED).map(|call| (call.0, call.2)).collect();
    let (from, to) =
        (format!("insn:{}", wanted[0].0 - THUNK), format!("insn:{}", wanted[COMPARED - 1].0 + 1));
    let thread = pid.expect("it is known").to_string();
    let tree = json(
        directory,
        &["tree", "r.ttvm", "--from", &from, "--to", &to, "--thread", &thread, "--depth", "200", "--json"],
    );
    let mut found = Vec::new();
    flatten(&tree["calls"], "", &mut found);
    let is_wanted = |call: &&(u64, String, String)| FUNCTIONS.contains(&call.1.as_str());
    let names: Vec<(u64, &str)> =
        found.iter().filter(is_wanted).map(|call| (call.0, call.1.as_str())).collect();
    assert_eq!(names, wanted);
    let reads = found.iter().filter(|call| call.1 == "vfs_read" && !call.2.is_empty());
    assert!(reads.clone().all(|call| call.2 == "ksys_read"), "{:?}", reads.collect::<Vec<_>>());
}

/// All calls of a tree in the order of the run: position, function, and the function that called.
fn flatten(calls: &Value, parent: &str, found: &mut Vec<(u64, String, String)>) {
    for call in calls.as_array().expect("a list") {
        let name = text(call, "function");
        found.push((call["instruction"].as_u64().expect("a position"), name.to_string(), parent.to_string()));
        flatten(&call["calls"], name, found);
    }
}

/// The result of a call that returns a number or the name of an error.
fn result_of(call: &Value) -> i64 {
    match text(&call["returned"], "value") {
        "-ENOENT" => -2,
        number => number.parse().unwrap_or_else(|_| panic!("{call}")),
    }
}

#[test]
fn calls_and_values_are_as_the_guest_traced_them() {
    is_as_traced(&CLOUD, &BUSYBOX);
}

#[test]
fn calls_and_values_are_as_a_newer_guest_traced_them() {
    let [kernel, busybox] = &SID;
    if !kernel.exists() {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    is_as_traced(kernel, busybox);
}

/// If a process ends between two positions, `diff` must show that the process is gone, and that memory with objects
/// of processes differs.
#[test]
fn a_difference_has_the_process_that_ended_and_the_text_that_it_printed() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    tests::shared::record_boot(&directory.path().join("r.ttvm"));
    let ended = json(directory.path(), &["calls", "r.ttvm", "do_exit", "comm:cat", "--json"]);
    let (at, pid) = (&ended["calls"][0]["instruction"], &ended["calls"][0]["pid"]);
    let compare = |to: &str| json(directory.path(), &["diff", "r.ttvm", &format!("insn:{at}"), to, "--json"]);
    let difference = compare("+10e6");
    let tasks = difference["tasks"].as_array().expect("the kernel is known");
    let gone = tasks.iter().find(|task| task["pid"] == *pid).unwrap_or_else(|| panic!("{tasks:?}"));
    assert_eq!((gone["old"].as_str(), gone.get("new")), (Some("cat"), None), "{gone}");
    let memory = difference["memory"].as_array().expect("a list");
    let group = |what: &str| memory.iter().find(|group| group["what"] == what);
    assert!(
        group("objects of task_struct").is_some_and(|group| group["objects"].as_u64() > Some(0)),
        "{memory:?}"
    );
    assert!(group("memory of unknown use").is_none(), "{memory:?}");
    assert!(difference["variables_changed"].as_u64() > Some(5), "{difference}");
    let text = difference["console"].as_str().expect("the console grew");
    assert!(text.contains("# "), "{text}");
    let nothing = compare("+0");
    assert!(nothing["pages_changed"] == 0 && nothing["registers"] == serde_json::json!([]), "{nothing}");
    // The kernel fills the memory of its boot with 0xcc when it frees this memory.
    let over_the_boot =
        json(directory.path(), &["diff", "r.ttvm", "200ms", "end", "--limit", "100000", "--json"]);
    let changed = over_the_boot["variables"].as_array().expect("a list");
    assert!(changed.iter().any(|variable| variable["name"] == "jiffies_64"), "{}", changed.len());
    let freed = changed.iter().filter(|variable| variable["new"] == "0xcccccccccccccccc").count();
    assert_eq!(freed, 0, "variables of the boot");
}

/// gdb's `tt` commands must have the same answers, and `tt goto hit:0` must go to the first position of a list.
#[test]
fn gdb_asks_the_same_questions() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("r.ttvm");
    tests::shared::record_boot(&path);
    let listed = json(directory.path(), &["calls", "r.ttvm", "do_exit", "comm:cat", "--json"]);
    let at = listed["calls"][0]["instruction"].as_u64().expect("a position");
    let commands = [
        format!("source {}", repository().join("gdb/commands/tt.py").display()),
        "tt calls do_exit comm:cat".to_string(),
        "tt goto hit:0".to_string(),
        "tt tree +3000".to_string(),
        "tt diff +1000000".to_string(),
        "tt values (task_struct)init_task.comm".to_string(),
        "tt who-set $rsp".to_string(),
        "tt where-to $rsp to +2000".to_string(),
        "tt profile +100k".to_string(),
        "tt calls no_such_function".to_string(),
    ];
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let said = batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    for line in [
        format!("hit:0    insn:{at}  "),
        format!("instruction {at} of "),
        "do_exit(code = 0)".to_string(),
        "thread ".to_string(),
        "objects of task_struct".to_string(),
        "\"swapper/0\"".to_string(),
        "rsp ".to_string(),
        "(8 bytes)\n".to_string(),
        "computed with: rsp -> rsp".to_string(),
        "100000 instructions, ".to_string(),
        "'no_such_function' is no function of the guest's kernel".to_string(),
    ] {
        assert!(said.contains(&line), "{line} is not in {said}");
    }
}

#[test]
fn questions_that_make_no_sense_get_a_sentence() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("r.ttvm");
    tests::shared::record_boot(&path);
    for (arguments, sentence) in [
        (&["calls", "r.ttvm", "no_such_function"][..], "is no function of the guest's kernel"),
        (&["calls", "r.ttvm", "*"], "write a longer pattern"),
        (&["calls", "r.ttvm", "vfs_read", "longer:1ms"], "for system calls only"),
        (&["tree", "r.ttvm", "--from", "5", "--to", "1"], "swap the two positions"),
        (&["values", "r.ttvm", "no_such_variable"], "neither an address nor a symbol"),
        (&["values", "r.ttvm", "(struct nothing)init_task"], "has no type 'struct nothing'"),
        (&["values", "r.ttvm", "(struct task_struct)init_task.nothing"], "has no field 'nothing'"),
        (&["values", "r.ttvm", "(struct task_struct)init_task"], "has no bytes, or more than 4096"),
        (&["values", "r.ttvm", "(struct task_struct)init_task.mm->pgd"], "is NULL"),
        (&["values", "r.ttvm", "(struct task_struct)init_task.comm[16]"], "has no element 16"),
    ] {
        let (code, out, told) = run(directory.path(), arguments);
        assert!(code != Some(0) && told.contains(sentence), "{arguments:?}: {code:?} {out} {told}");
    }
}
