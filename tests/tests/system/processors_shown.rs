//! Tests what ttvm and other tools show of a guest whose four processors are all busy.

use std::path::Path;
use std::process::Command;

use machine::config::{MachineOptions, Processors};
use serde_json::{Value, json};
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options};
use tests::program::{missing, ttvm};
use tests::shared::Shared;
use tests::tools::{output, python, vmlinux};

const PROCESSORS: u8 = 4;

/// Records the guest as `r.ttvm` in a folder. Each processor gets an endless loop, and then the guest powers off.
fn record(directory: &Path) {
    static GUEST: Shared = Shared::new();
    let options = || MachineOptions {
        processors: Processors::new(PROCESSORS).expect("a machine can have four"),
        ..linux_options(&CLOUD, &BUSYBOX, "", 256)
    };
    let commands = ["for i in 1 2 3 4; do while :; do :; done & done", "sleep 0.2; echo busy", "poweroff -f"];
    GUEST.copy_to(&directory.join("r.ttvm"), || Guest::new(&options()), &commands);
}

fn ask(directory: &Path, arguments: &[&str]) -> Value {
    let text = output(Command::new(ttvm()).current_dir(directory).args(arguments).arg("--json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is a list"))
}

/// Returns a position at which each processor runs a shell in its loop.
fn busy(directory: &Path) -> String {
    // Look for the text at the end of a line, because the shell also echoes the command.
    let said = ask(directory, &["search", "r.ttvm", "console:busy\r", "--all"]);
    let at =
        list(&said["hits"]).last().expect("the guest said so")["instruction"].as_u64().expect("a number");
    format!("insn:{}", at - 30_000_000)
}

#[test]
fn a_state_shows_each_processor() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    record(directory);
    let at = busy(directory);
    let state = ask(directory, &["state", "r.ttvm", "--at", &at, "--processes"]);
    let rows = list(&state["processors"]);
    assert_eq!(rows.len(), usize::from(PROCESSORS));
    let running: Vec<_> = rows.iter().filter(|row| row["activity"] == "running").collect();
    assert_eq!(running.len(), 1, "{rows:?}");
    assert_eq!((&running[0]["number"], &running[0]["pid"]), (&state["processor"], &state["thread"]["pid"]));
    for (number, row) in rows.iter().enumerate() {
        assert_eq!((&row["number"], &row["name"]), (&json!(number), &json!("sh")), "{rows:?}");
        let mut marked = list(&state["processes"]).iter().filter(|task| task["processor"] == number);
        let task = marked.next().expect("the running task is marked");
        assert_eq!((&task["pid"], &task["current"], task.get("waits_in")), (&row["pid"], &json!(true), None));
        assert!(marked.next().is_none(), "{state}");
        let cpu = number.to_string();
        let one = ask(directory, &["state", "r.ttvm", "--at", &at, "--cpu", &cpu, "--backtrace"]);
        assert_eq!((&one["processor"], &one["thread"]["pid"]), (&json!(number), &row["pid"]));
        assert_eq!((&one["registers"]["rip"], &one["code"][0]["address"]), (&row["rip"], &row["rip"]));
        assert_eq!(one["registers"]["cr3"].as_str().map(|cr3| cr3.len() > 3), Some(true), "{one}");
    }
    let current: Vec<_> = list(&state["processes"]).iter().filter(|task| task["current"] == true).collect();
    assert_eq!(current.len(), usize::from(PROCESSORS));
}

/// Checks that the threads of each processor follow one another, and that one processor at most has a turn. Prints the
/// number of switches of each processor, the number of turns, and the time of all turns.
const DECODE: &str = r#"
import collections, json, sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
names, running, switches, depth = {}, {}, collections.Counter(), collections.Counter()
turns, turn, ran_ns, last = 0, None, 0, 0
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        names[packet.track_descriptor.uuid] = packet.track_descriptor.name
    for event in packet.ftrace_events.event:
        cpu, switch = packet.ftrace_events.cpu, event.sched_switch
        assert running.get(cpu, switch.prev_pid) == switch.prev_pid, event
        running[cpu] = switch.next_pid
        switches[cpu] += 1
        assert event.timestamp >= last
        last = event.timestamp
    if packet.HasField("track_event"):
        event, track = packet.track_event, packet.track_event.track_uuid
        assert packet.timestamp >= last
        last = packet.timestamp
        name = names[track]
        depth[track] += {TrackEvent.TYPE_SLICE_BEGIN: 1, TrackEvent.TYPE_SLICE_END: -1}.get(event.type, 0)
        assert depth[track] >= 0
        if name.startswith("processor "):
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert turn is None, event
                turn, turns = (name, last), turns + 1
            else:
                assert turn[0] == name
                ran_ns += last - turn[1]
                turn = None
assert turn is None and not any(depth.values())
print(json.dumps({"switches": switches, "turns": turns, "ran_ns": ran_ns}))
"#;

#[test]
fn a_trace_has_the_turns_of_all_processors_and_their_switches() {
    let Some(python) = python() else {
        return skip::test("there is no Python with perfetto: run scripts/setup");
    };
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    record(directory);
    let counts = ask(directory, &["trace", "r.ttvm", "-o", "trace"]);
    let text = output(Command::new(python).current_dir(directory).args(["-c", DECODE, "trace"]));
    let trace: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(trace["turns"], counts["turns"]);
    // The turns take as many nanoseconds as there are instructions: an instruction takes one nanosecond, and
    // processors execute instructions only in turns.
    assert_eq!(trace["ran_ns"], ask(directory, &["state", "r.ttvm", "--at", "end"])["instruction"]);
    let found = |filter: &[&str]| {
        let search = ["search", "r.ttvm", "break:__switch_to", "--all", "--limit", "1000000"];
        list(&ask(directory, &[&search[..], filter].concat())["hits"]).clone()
    };
    let all = found(&[]);
    for number in 0..PROCESSORS {
        let of_one = found(&[&format!("cpu:{number}")]);
        assert_eq!(trace["switches"][number.to_string()], of_one.len(), "{number}");
        let chosen: Vec<_> = all.iter().filter(|hit| hit["processor"] == number).cloned().collect();
        assert_eq!(chosen, of_one, "{number}");
    }
}

/// Prints the task and the first address on the stack of each processor.
const DRGN: &str = r#"
import json, sys
import drgn
from drgn.helpers.linux.cpumask import for_each_online_cpu
from drgn.helpers.linux.sched import cpu_curr
program = drgn.Program()
program.set_core_dump(sys.argv[1])
program.load_debug_info([sys.argv[2]])
tasks = [cpu_curr(program, cpu) for cpu in for_each_online_cpu(program)]
print(json.dumps([[task.pid.value_(), hex(program.stack_trace(task)[0].pc)] for task in tasks]))
"#;

#[test]
fn drgn_and_crash_show_all_processors() {
    let Some(python) = python() else { return skip::test("there is no Python with drgn: run scripts/setup") };
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    record(directory);
    let at = busy(directory);
    let report = ask(directory, &["dump", "r.ttvm", "--at", &at, "-o", "vmcore"]);
    let Some(vmlinux) = vmlinux(report["kernel"].as_str().expect("the note was found")) else {
        return skip::test("there is no debug information; guest-images/debug-information says why");
    };
    let state = ask(directory, &["state", "r.ttvm", "--at", &at]);
    let rows = list(&state["processors"]);
    let vmlinux = vmlinux.to_str().expect("a path in UTF-8");
    let text = output(Command::new(python).current_dir(directory).args(["-c", DRGN, "vmcore", vmlinux]));
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let expected: Vec<Value> = rows.iter().map(|row| json!([row["pid"], row["rip"]])).collect();
    assert_eq!(*list(&found), expected);

    if let Some(why) = missing(&["crash"]) {
        return skip::test(why);
    }
    std::fs::write(directory.join("commands"), "ps\nbt -a\nhelp -r\nquit\n").expect("the folder is ours");
    let mut crash = Command::new("crash");
    let said = output(crash.current_dir(directory).args(["-s", "-i", "commands", vmlinux, "vmcore"]));
    let marked = said.lines().filter(|line| line.starts_with('>')).count();
    assert_eq!(marked, rows.len(), "{said}");
    for (number, row) in rows.iter().enumerate() {
        let is_heading = |line: &&str| {
            line.starts_with(&format!("PID: {} ", row["pid"])) && line.contains(&format!(" CPU: {number} "))
        };
        assert_eq!(said.lines().filter(is_heading).count(), 1, "{number}: {said}");
        let rip = row["rip"].as_str().expect("digits").trim_start_matches("0x");
        assert!(said.contains(&format!("RIP: {rip:0>16}")), "{number}: {said}");
    }
}
