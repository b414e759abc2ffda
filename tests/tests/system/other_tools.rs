//! Compares ttvm's output for other tools, and its backtraces, with these tools and with the guest itself.

use std::path::Path;
use std::process::{Command, Stdio};

use machine::Outcome;
use machine::script::Script;
use serde_json::Value;
use tests::guests::{
    Artefact, BUGS, BUSYBOX, CLOUD, CLOUD_ELF, Guest, SID, TRIXIE, linux_options, repository,
};
use tests::program::{missing, ttvm};
use tests::record::record;
use tests::shared::{Shared, record_boot};
use tests::tools::{output, python, vmlinux};

const NO_PYTHON: &str = "there is no Python with drgn and perfetto: run scripts/setup";

/// Returns the kernel that most tests boot, and newer kernels if they are installed, each with its initial RAM
/// disk.
fn kernels() -> impl Iterator<Item = [&'static Artefact; 2]> {
    let newer = [TRIXIE.each_ref(), SID.each_ref()];
    let newer = newer.into_iter().filter(|kernel| kernel.iter().all(|artefact| artefact.exists()));
    [[&CLOUD, &BUSYBOX]].into_iter().chain(newer)
}

/// Calls `look` for a boot of each kernel, with a folder that has the recording `r.ttvm`, and the console's text.
fn at_each_kernel(look: impl Fn(&Path, &str)) {
    static BOOTS: [Shared; 3] = [const { Shared::new() }; 3];
    for ([kernel, busybox], boot) in kernels().zip(&BOOTS) {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let guest = || Guest::linux(kernel, busybox, "", 256);
        let commands = ["sleep 1 & ls / | wc", "echo traced", "poweroff -f"];
        let console = boot.copy_to(&directory.path().join("r.ttvm"), guest, &commands);
        look(directory.path(), console);
    }
}

/// Records a bug until the panic's report is complete. Returns the console's text.
fn record_panic(name: &str, directory: &Path) -> String {
    let common = std::fs::read_to_string(repository().join("guest-images/bugs/cmdline"));
    let parameters = format!("{} bug={name}", common.expect("the parameters for all bugs").trim());
    let mut options = linux_options(&CLOUD_ELF, &BUGS, &parameters, 128);
    let disk = directory.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("the folder is ours");
    options.disk = Some(disk);
    let mut script = Script::silent();
    let (_, end) = record(&Guest::new(&options), &directory.join("r.ttvm"), &mut script);
    assert_eq!(end.outcome, Outcome::Panic, "{}", script.text());
    script.text()
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let text = output(Command::new(ttvm()).current_dir(directory).args(arguments).arg("--json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

fn run_python(python: &Path, directory: &Path, program: &str, arguments: &[&str]) -> Value {
    let text = output(Command::new(python).current_dir(directory).args(["-c", program]).args(arguments));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the functions of ttvm's backtrace, without the functions' sizes.
fn functions(told: &Value) -> Vec<String> {
    let frames = told["frames"].as_array().expect("frames");
    frames.iter().map(|frame| without_size(frame["function"].as_str().unwrap_or("?"))).collect()
}

/// Removes the size from a function's text: from `vfs_write+0xc7/0x3f0 [module]` it makes
/// `vfs_write+0xc7 [module]`.
fn without_size(function: &str) -> String {
    let (name, rest) = function.split_once('/').unwrap_or((function, ""));
    rest.split_once(' ').map_or(name.to_string(), |(_, module)| format!("{name} {module}"))
}

/// Returns the functions in the last call trace that the kernel printed, without the uncertain functions (`?`).
fn printed_trace(console: &str) -> Vec<String> {
    let begin = console.rfind("Call Trace:").expect("the report has a call trace");
    let lines =
        console[begin..].lines().skip(1).map(|line| line.split_once("] ").map_or(line, |(_, text)| text));
    let inside = lines.take_while(|line| !line.contains("</TASK>") && !line.contains("RIP: 0033"));
    // For an interrupt or exception, the kernel does not print the interrupted function as a line of the trace, but
    // as RIP with the registers.
    let function = |line: &str| {
        let text = line.strip_prefix("RIP: 0010:").or_else(|| line.strip_prefix(' '))?.trim();
        (text.contains("+0x") && !text.starts_with("? ")).then(|| without_size(text))
    };
    inside.filter_map(function).collect()
}

/// Tests three panics: an exception in a module, a panic that the kernel calls in an interrupt, and a panic that a
/// module calls.
#[test]
fn backtraces_at_a_panic_are_those_that_the_kernel_printed() {
    if !BUGS.exists() {
        return skip::test("there is no guest with bugs; guest-images/bugs/build says why");
    }
    for (name, module) in
        [("stale-object", "[desk]"), ("atomic-sleep", "[journal]"), ("irq-race", "[tokens]")]
    {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let console = record_panic(name, directory.path());
        let state = json(directory.path(), &["state", "r.ttvm", "--at", "panic", "--backtrace"]);
        let found = functions(&state["backtrace"]);
        // The guest's trace begins with the callers of the function that prints the trace.
        let printed = printed_trace(&console);
        let reporting = |function: &String| {
            ["panic+", "dump_stack_lvl+", "__schedule_bug"].iter().any(|name| function.starts_with(name))
        };
        let after = printed.iter().rposition(reporting).map_or(0, |last| last + 1);
        let expected = &printed[after..];
        assert!(expected.len() >= 4, "{name}: {printed:?}");
        assert!(found.ends_with(expected), "{name}: {found:#?} does not end with {expected:#?}");
        assert!(found.iter().any(|function| function.ends_with(module)), "{name}: {found:?}");
        in_gdb(directory.path(), &state["backtrace"]);
    }
}

/// Tests that gdb's commands print the same backtrace and the kernel's last message.
fn in_gdb(directory: &Path, told: &Value) {
    let mut gdb = Command::new(ttvm());
    gdb.current_dir(directory).args(["debug", "r.ttvm", "--at", "panic", "--gdb", "--", "--nx", "--batch"]);
    gdb.args(["-ex", "tt backtrace", "-ex", "tt dmesg 1"]).stdin(Stdio::null());
    let ended = gdb.output().expect("gdb can be run");
    let (said, warned) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && !warned.contains("No executable"), "{warned}");
    // gdb prints a frame when it attaches: "#0  0x... in NAME ()".
    let ours = said.lines().filter(|line| line.starts_with('#') && !line.contains(" in "));
    let mut frames = ours.map(|line| line.split_once(" 0x"));
    for frame in told["frames"].as_array().expect("frames") {
        let address = frame["address"].as_str().expect("an address").trim_start_matches("0x");
        let expected = format!("{address} {}", frame["function"].as_str().expect("a name"));
        assert_eq!(frames.next().flatten().map(|(_, rest)| rest), Some(expected.as_str()), "{said}");
    }
    assert!(said.contains("---[ end Kernel panic"), "{said}");
}

#[test]
fn rows_of_a_search_name_the_thread_and_who_called_whom() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    record_boot(&directory.path().join("r.ttvm"));
    let found =
        json(directory.path(), &["search", "r.ttvm", "break:__x64_sys_reboot", "--all", "--backtrace"]);
    let hits = found["hits"].as_array().expect("hits");
    assert_eq!(hits.len(), 1, "{found}");
    assert_eq!(hits[0]["name"], "poweroff");
    let what = hits[0]["what"].as_str().expect("words");
    assert!(what.ends_with(" <__x64_sys_reboot>"), "{what}");
    let functions = functions(&hits[0]["backtrace"]);
    let names: Vec<&str> = functions.iter().map(|text| text.split('+').next().expect("a name")).collect();
    assert_eq!(names, ["__x64_sys_reboot", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"]);
    let at = format!("insn:{}", hits[0]["instruction"]);
    let state = json(directory.path(), &["state", "r.ttvm", "--at", &at, "--processes", "--backtrace"]);
    assert_eq!(state["backtrace"], hits[0]["backtrace"]);
    let current = |task: &&Value| task["current"] == true;
    let processes = state["processes"].as_array().expect("processes");
    assert_eq!(processes.iter().find(current).expect("one runs")["pid"], hits[0]["pid"]);
}

#[test]
fn the_kernel_s_messages_are_those_on_its_console() {
    at_each_kernel(messages_of);
}

fn messages_of(directory: &Path, console: &str) {
    let text = output(Command::new(ttvm()).current_dir(directory).args([
        "state",
        "r.ttvm",
        "--dmesg",
        "--console",
        "0",
    ]));
    let (_, messages) = text.split_once("\nmessages\n").expect("there are messages");
    let messages: Vec<&str> = messages.lines().map(|line| line.trim_start_matches("  ").trim_end()).collect();
    let is_message = |line: &&str| line.starts_with('[') && line.get(5..7).is_some_and(|at| at.contains('.'));
    let printed: Vec<&str> = console.lines().map(str::trim_end).filter(is_message).collect();
    assert!(printed.len() > 100, "{console}");
    // The kernel's log also has debug messages, which the console does not show.
    let mut rest = messages.iter();
    for line in printed {
        assert!(
            rest.any(|message| *message == line),
            "'{line}' is not among the messages, or comes earlier: {text}"
        );
    }
}

/// Counts a trace's rows, checks that slices nest and times ascend, and prints the rows for a test.
const DECODE: &str = r#"
import collections, json, sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
begun, names, tracks, depth = collections.Counter(), collections.Counter(), {}, collections.Counter()
lines, switches, last, running = [], 0, 0, None
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    for event in packet.ftrace_events.event:
        switches += 1
        assert running in (None, event.sched_switch.prev_pid), event
        running = event.sched_switch.next_pid
        assert event.timestamp >= last
        last = event.timestamp
    if packet.HasField("track_event"):
        event = packet.track_event
        assert event.track_uuid in tracks and packet.timestamp >= last
        last = packet.timestamp
        if event.type == TrackEvent.TYPE_SLICE_END:
            depth[event.track_uuid] -= 1
            assert depth[event.track_uuid] >= 0
            continue
        begun[event.categories[0]] += 1
        names[event.name] += 1
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            depth[event.track_uuid] += 1
        if event.categories[0] == "console":
            lines.append(event.name)
assert not any(depth.values())
threads = {d.thread.tid: d.thread.thread_name for d in tracks.values() if d.HasField("thread")}
print(json.dumps({"begun": begun, "names": names, "switches": switches, "lines": lines, "threads": threads}))
"#;

#[test]
fn an_independent_reader_finds_in_a_trace_what_searches_find() {
    let Some(python) = python() else { return skip::test(NO_PYTHON) };
    at_each_kernel(|directory, console| trace_of(directory, console, &python));
}

fn trace_of(directory: &Path, console: &str, python: &Path) {
    let counts = json(directory, &["trace", "r.ttvm", "-o", "trace"]);
    let trace = run_python(python, directory, DECODE, &["trace"]);
    let searched = |condition: &str| {
        let found = json(directory, &["search", "r.ttvm", condition, "--all", "--limit", "1000000"]);
        Value::from(found["hits"].as_array().expect("hits").len())
    };
    let state = json(directory, &["state", "r.ttvm", "--at", "end", "--processes"]);
    assert_eq!(trace["begun"]["syscall"], state["system_calls"]);
    for (name, condition) in [
        ("page fault", "vector:14"),
        ("local timer", "vector:0xec"),
        ("execve", "syscall:execve"),
        ("reboot", "syscall:reboot"),
    ] {
        assert_eq!(trace["names"][name], searched(condition), "{name}");
        assert!(trace["names"][name].as_u64() > Some(0), "{name}");
    }
    assert_eq!(trace["switches"], searched("break:__switch_to"));
    for (kind, count) in [
        (&trace["begun"]["syscall"], "system_calls"),
        (&trace["begun"]["exception"], "exceptions"),
        (&trace["begun"]["interrupt"], "interrupts"),
        (&trace["switches"], "switches"),
        (&trace["begun"]["console"], "console_lines"),
    ] {
        assert_eq!(*kind, counts[count], "{count}");
    }
    let printed: Vec<String> =
        console.split('\n').map(|line| line.trim_end_matches('\r').to_string()).collect();
    let traced: Vec<&str> =
        trace["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    assert!(traced.len() > 100, "{traced:?}");
    assert_eq!(traced, &printed[..traced.len()]);
    for task in
        state["processes"].as_array().expect("processes").iter().filter(|task| task["current"] == true)
    {
        assert_eq!(trace["threads"][task["pid"].to_string()], task["name"]);
    }
}

#[test]
fn a_part_of_a_recording_is_traced_as_in_the_whole() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    record_boot(&directory.path().join("r.ttvm"));
    let trace = |name: &str, stretch: &[&str]| {
        json(directory.path(), &[&["trace", "r.ttvm", "-o", name][..], stretch].concat())
    };
    let whole = trace("whole", &[]);
    let (first, second) = (trace("first", &["--to", "60%"]), trace("second", &["--from", "60%"]));
    for count in ["system_calls", "exceptions", "interrupts", "switches"] {
        let sum = first[count].as_u64().expect("a number") + second[count].as_u64().expect("a number");
        assert_eq!(Value::from(sum), whole[count], "{count}");
    }
}

/// Without debug information drgn reads physical memory, and virtual memory through the page tables that VMCOREINFO
/// names.
const DRGN_READS: &str = r#"
import json, sys
import drgn
program = drgn.Program()
program.set_core_dump(sys.argv[1])
address, length = int(sys.argv[2], 16), int(sys.argv[3])
print(json.dumps({
    "kernel": bool(program.flags & drgn.ProgramFlags.IS_LINUX_KERNEL),
    "banner": program.read(address, length).hex(),
    "low": program.read(0x1000, 4096, True).hex(),
}))
"#;

#[test]
fn drgn_reads_a_core_file_without_debug_information() {
    let Some(python) = python() else { return skip::test(NO_PYTHON) };
    let directory = tempfile::tempdir().expect("a temporary folder");
    record_boot(&directory.path().join("r.ttvm"));
    let report = json(directory.path(), &["dump", "r.ttvm", "--at", "95%", "-o", "vmcore"]);
    output(Command::new(ttvm()).current_dir(directory.path()).args(["symbols", "r.ttvm", "-o", "symbols"]));
    let names = output(Command::new("nm").current_dir(directory.path()).arg("symbols"));
    let banner = names.lines().find(|line| line.ends_with(" linux_banner")).expect("the kernel has a banner");
    let banner = format!("0x{}", banner.split(' ').next().expect("an address"));
    let ranges = [format!("{banner}:14"), "0x1000:4096".to_string()];
    let at = ["state", "r.ttvm", "--at", "95%", "--memory", &ranges[0], "--physical", &ranges[1]];
    let state = json(directory.path(), &at);
    let read = run_python(&python, directory.path(), DRGN_READS, &["vmcore", &banner, "14"]);
    // Get the same backtraces with `ttvm drgn`, without a core file. Use the drgn that is installed with this
    // Python.
    let bin = python.parent().expect("it lies in a folder");
    let print = format!("print(prog.read({banner}, 14).hex(), prog.read(0x1000, 4096, True).hex())");
    let arguments = ["drgn", "r.ttvm", "--at", "95%", "--", "--no-default-symbols", "-e", &print];
    let said = output(Command::new(ttvm()).current_dir(directory.path()).env("PATH", bin).args(arguments));
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(
        words[words.len() - 2..],
        [&read["banner"], &read["low"]].map(|hex| hex.as_str().expect("digits"))
    );
    assert_eq!(read["kernel"], true);
    assert_eq!(
        read["banner"],
        "Linux version ".bytes().map(|byte| format!("{byte:02x}")).collect::<String>()
    );
    assert_eq!(read["banner"], state["memory"][0]["bytes"]);
    assert_eq!(read["low"], state["physical"][0]["bytes"]);
    assert!(report["kernel"].as_str().is_some_and(|release| release.ends_with("-cloud-amd64")), "{report}");
}

/// Prints the processes, and the running process's stack.
const DRGN_LISTS: &str = r#"
import json, sys
import drgn
from drgn.helpers.linux.pid import for_each_task
program = drgn.Program()
program.set_core_dump(sys.argv[1])
program.load_debug_info([sys.argv[2]])
tasks = sorted((task.pid.value_(), task.comm.string_().decode()) for task in for_each_task(program))
stack = [frame.pc for frame in program.stack_trace(int(sys.argv[3])) if not frame.is_inline]
print(json.dumps({"tasks": tasks, "stack": [hex(pc) for pc in stack], "uts": program["init_uts_ns"].name.release.string_().decode()}))
"#;

#[test]
fn drgn_and_crash_find_the_processes_and_the_stack_of_a_panic() {
    if !BUGS.exists() {
        return skip::test("there is no guest with bugs; guest-images/bugs/build says why");
    }
    let Some(python) = python() else { return skip::test(NO_PYTHON) };
    let directory = tempfile::tempdir().expect("a temporary folder");
    record_panic("stale-object", directory.path());
    let report = json(directory.path(), &["dump", "r.ttvm", "--at", "panic", "-o", "vmcore"]);
    let release = report["kernel"].as_str().expect("the note was found");
    let Some(vmlinux) = vmlinux(release) else {
        return skip::test("there is no debug information; guest-images/debug-information says why");
    };
    let state = json(directory.path(), &["state", "r.ttvm", "--at", "panic", "--processes", "--backtrace"]);
    let vmlinux = vmlinux.to_str().expect("a path in UTF-8");
    let pid = report["pid"].to_string();
    let found = run_python(&python, directory.path(), DRGN_LISTS, &["vmcore", vmlinux, &pid]);
    assert_eq!(found["uts"], release);
    let mut tasks: Vec<Value> = state["processes"].as_array().expect("processes").clone();
    tasks.retain(|task| task["pid"] != 0);
    tasks.sort_by_key(|task| task["pid"].as_u64());
    let tasks: Vec<Value> = tasks.iter().map(|task| serde_json::json!([task["pid"], task["name"]])).collect();
    let listed = found["tasks"].as_array().expect("tasks").iter().filter(|task| task[0] != 0).cloned();
    assert_eq!(listed.collect::<Vec<_>>(), tasks);
    let ours: Vec<&Value> = state["backtrace"]["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .map(|frame| &frame["address"])
        .collect();
    let drgns: Vec<&Value> = found["stack"].as_array().expect("a stack").iter().collect();
    // drgn shows one more frame, which is a frame of the program.
    assert_eq!(drgns[..ours.len()], ours, "{found:#}");

    if let Some(why) = missing(&["crash"]) {
        return skip::test(why);
    }
    let commands = "sys\np init_task.comm\nbt\nquit\n";
    std::fs::write(directory.path().join("commands"), commands).expect("the folder is ours");
    let mut crash = Command::new("crash");
    crash.current_dir(directory.path()).args(["-s", "-i", "commands", vmlinux, "vmcore"]);
    let said = output(&mut crash);
    for expected in [
        &format!("RELEASE: {release}"),
        "PANIC: \"Kernel panic - not syncing: Fatal exception\"",
        "\"swapper/0\\000",
        "[exception RIP: music+17]",
        "desk_write at ",
    ] {
        assert!(said.contains(expected), "no '{expected}' in {said}");
    }
}
