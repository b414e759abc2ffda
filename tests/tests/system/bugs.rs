//! Tests the kernel modules that have a bug each. Each test records a run until the kernel panics. Then gdb goes
//! backwards from the panic to the cause, with a script of commands as a person would enter them (the *walk*). The
//! test compares the positions that gdb finds with markers such as `/* [1] */` in the modules' sources. The questions of
//! `ttvm` over the whole run must lead to the same markers.

use std::path::Path;
use std::process::{Command, Stdio};

use history::timeline::Timeline;
use machine::Outcome;
use machine::config::Processors;
use machine::script::Script;
use serde_json::Value;
use tests::gdb::batch;
use tests::guests::{BUGS, CLOUD_ELF, Guest, linux_options, repository};
use tests::program::{json, missing, serve, ttvm};
use tests::record::{open, record};
use tests::run::last_lines;
use tests::terminal::Terminal;

/// A bug, and the positions that gdb must reach, in this order.
struct Bug {
    name: &'static str,
    source: &'static str,
    /// The number of the guest's processors.
    processors: u8,
    places: &'static [Place],
    /// Finds the cause once more, with the questions of `ttvm`.
    ask: fn(&Asker),
}

struct Place {
    /// The word that the walk prints for the position: `culprit` for the cause of the bug, or `on the way`.
    what: &'static str,
    function: &'static str,
    /// The number of the marker in the source.
    marker: u32,
    /// The first bytes of the instruction's text, as gdb shows it.
    instruction: &'static str,
}

const fn place(what: &'static str, function: &'static str, marker: u32, instruction: &'static str) -> Place {
    Place { what, function, marker, instruction }
}

const NULL_CALL: Bug = Bug {
    name: "null-call",
    source: "postbox.c",
    processors: 1,
    places: &[
        place("culprit", "port_receive", 1, "jmp "),
        place("on the way", "unpack", 2, "mov %cl,"),
        place("culprit", "port_close", 3, "movq $0x0,"),
    ],
    ask: ask_who_took_the_reply,
};

const IRQ_RACE: Bug = Bug {
    name: "irq-race",
    source: "tokens.c",
    processors: 1,
    places: &[
        place("culprit", "take", 1, "mov %eax,"),
        place("on the way", "refill", 2, "mov %eax,"),
        place("on the way", "take", 3, "mov 0x"),
    ],
    ask: ask_for_the_lost_refill,
};

const STALE_OBJECT: Bug = Bug {
    name: "stale-object",
    source: "desk.c",
    processors: 1,
    places: &[
        place("on the way", "music", 3, "addl $0x1,"),
        place("on the way", "pin", 2, "call "),
        place("culprit", "hang_up", 1, "call "),
    ],
    // The test `objects::two_commands_explain_a_use_after_a_free` asks.
    ask: |_| {},
};

const ATOMIC_SLEEP: Bug = Bug {
    name: "atomic-sleep",
    source: "journal.c",
    processors: 1,
    places: &[place("culprit", "record_done", 1, "call "), place("on the way", "append", 2, "call ")],
    ask: ask_who_sleeps,
};

const LOST_REQUEST: Bug = Bug {
    name: "lost-request",
    source: "answers.c",
    processors: 1,
    places: &[
        place("on the way", "queue_up", 1, "addl $0x1,"),
        place("on the way", "next_question", 2, "movq $0x0,"),
        place("culprit", "ask", 3, "mov 0x"),
    ],
    ask: ask_who_saw_no_question,
};

const WRONG_LOCK: Bug = Bug {
    name: "wrong-lock",
    source: "till.c",
    processors: 2,
    places: &[
        place("culprit", "sell", 1, "mov "),
        place("on the way", "pay_back", 2, "sub "),
        place("culprit", "pay_back", 3, "call "),
    ],
    ask: ask_for_the_lost_returns,
};

const LOST_WAKEUP: Bug = Bug {
    name: "lost-wakeup",
    source: "bell.c",
    processors: 2,
    places: &[
        place("culprit", "porter", 2, "xchg "),
        place("on the way", "ring", 3, "movl $0x1,"),
        place("on the way", "porter", 1, "mov 0x"),
    ],
    ask: ask_who_sleeps_after_the_ring,
};

impl Bug {
    /// The path of the bug's source file, as debug information names the file.
    fn source(&self) -> String {
        format!("guest-images/bugs/{}/{}", self.name, self.source)
    }

    /// The number of the line with a marker.
    fn line_of(&self, marker: u32) -> usize {
        let text = std::fs::read_to_string(repository().join(self.source())).expect("the module's source");
        let marker = format!("/* [{marker}] */");
        let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| line.ends_with(&marker)).collect();
        assert_eq!(lines.len(), 1, "{marker} marks one line of {}", self.source());
        lines[0].0 + 1
    }

    /// Returns the beginning of the line that the walk's summary must have for a position.
    fn expected(&self, place: &Place) -> String {
        let Place { what, function, marker, instruction } = place;
        format!("{what}: {function} {}:{} {instruction}", self.source(), self.line_of(*marker))
    }
}

/// Asks questions about a bug's recording, and reads the answers.
struct Asker<'a> {
    bug: &'a Bug,
    directory: &'a Path,
}

impl Asker<'_> {
    fn ask(&self, verb: &str, rest: &[&str]) -> Value {
        json(self.directory, &[&[verb, "bug.ttvm"], rest, &["--json"]].concat())
    }

    /// The line of the module's source for a place such as `take+0x1f`, as gdb knows it.
    fn line(&self, place: &str) -> usize {
        let module =
            self.bug.source().replace("guest-images/bugs", "guest-images/out/bugs").replace(".c", ".ko");
        let mut gdb = batch::gdb();
        let output =
            gdb.arg(repository().join(module)).args(["-ex", &format!("info line *({place})")]).output();
        let said = batch::said(&output.expect("gdb can be started"));
        let line = said.split_once("Line ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        line.unwrap_or_else(|| panic!("{place}: {said}"))
    }

    /// The writes that led to a value at the fault, the last first. Each write must be at a marker of the source.
    fn who_set(&self, location: &str, function: &str, marker: u32) -> Vec<Value> {
        let answer = self.ask("who-set", &[location, "--at", "fault"]);
        let links = answer["links"].as_array().expect("a list").clone();
        let place = text(&links[0], "function");
        assert_eq!(function_of(place), function, "{answer}");
        assert_eq!(self.line(place), self.bug.line_of(marker), "{answer}");
        links
    }

    /// The writes of a variable: the function that wrote, the value, and the position.
    fn values(&self, variable: &str, rest: &[&str]) -> Vec<(String, u64, u64)> {
        let answer = self.ask("values", &[&[variable, "--limit", "100000"], rest].concat());
        let write = |write: &Value| {
            let value = text(write, "value").trim_start_matches("0x");
            let value = u64::from_str_radix(value, 16).unwrap_or_else(|_| panic!("{write}"));
            (function_of(text(write, "place")).to_string(), value, position(write))
        };
        answer["writes"].as_array().expect("a list").iter().map(write).collect()
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn position(value: &Value) -> u64 {
    value["instruction"].as_u64().unwrap_or_else(|| panic!("the position of {value}"))
}

/// The function in a place such as `take+0x1f`.
fn function_of(place: &str) -> &str {
    place.split('+').next().expect("there is a first part")
}

/// The letter went to port 2. The functions of the ports are 32 bytes apart, and the first is at offset 8.
fn ask_who_took_the_reply(asker: &Asker) {
    asker.who_set("ports+72:8", "port_close", 3);
}

/// Between two writes by `take`, a timer refilled the bucket. The second write is as if there was no refill.
fn ask_for_the_lost_refill(asker: &Asker) {
    let writes = asker.values("bucket:4", &[]);
    let lost: Vec<_> = writes
        .windows(3)
        .filter(|w| (&*w[0].0, &*w[1].0, &*w[2].0) == ("take", "refill", "take") && w[2].1 < w[0].1)
        .collect();
    let [[before, refill, after]] = &lost[..] else { panic!("one refill is lost: {lost:?}") };
    assert!(refill.1 == before.1 + 25 && after.1 + 4 >= before.1, "{lost:?}");
    let origin = asker.ask("origin", &["--at", &format!("insn:{}", refill.2)]);
    let armed = origin.to_string();
    assert!(armed.contains("high-resolution-timer") && armed.contains("[tokens]"), "{armed}");
}

/// The last record that is done sleeps in an interrupt of the disk.
fn ask_who_sleeps(asker: &Asker) {
    let answer = asker.ask("calls", &["record_done", "--limit", "100000"]);
    let calls = answer["calls"].as_array().expect("a list");
    let (last, others) = calls.split_last().expect("a record is done");
    assert!(last.get("returned").is_none() && others.iter().all(|call| call.get("returned").is_some()));
    let at = format!("insn:{}", position(last));
    let origin = asker.ask("origin", &["--at", &at]).to_string();
    assert!(origin.contains("interrupt-handler") && origin.contains("vp_find_vqs"), "{origin}");
    let tree = asker.ask("tree", &["--from", &at, "--to", "panic"]).to_string();
    assert!(tree.contains("__down") && tree.contains("schedule"), "{tree}");
}

/// The desk's current question is behind the 8 bytes of the device's registers.
fn ask_who_saw_no_question(asker: &Asker) {
    asker.who_set("desk+8:8", "next_question", 2);
}

/// `sell` computed the money, lost its turn, and wrote the money at last. Meanwhile others were paid.
fn ask_for_the_lost_returns(asker: &Asker) {
    let links = asker.who_set("till:8", "sell", 1);
    let (written, computed) = (&links[0], links.last().expect("there is one"));
    assert_eq!(function_of(text(computed, "function")), "sell");
    let [from, to] = [computed, written].map(|link| format!("insn:{}", position(link)));
    let lost = asker.values("till:8", &["--from", &from, "--to", &to]);
    assert!(!lost.is_empty() && lost.iter().all(|(function, ..)| function == "pay_back"), "{lost:?}");
}

/// The bell rang before the porter said that he sleeps, so nobody wakes him.
fn ask_who_sleeps_after_the_ring(asker: &Asker) {
    let rung = asker.who_set("rings:4", "ring", 3);
    let asleep = asker.who_set("(struct task_struct *)porter_task->__state", "porter", 2);
    assert!(position(&rung[0]) < position(&asleep[0]), "{rung:?} {asleep:?}");
    assert_eq!((rung[0]["processor"].as_u64(), asleep[0]["processor"].as_u64()), (Some(1), Some(0)));
}

/// The guest's kernel parameters: the parameters of all bugs, which are in a file, and the bug's name.
fn parameters(name: &str) -> String {
    let common = std::fs::read_to_string(repository().join("guest-images/bugs/cmdline"));
    format!("{} bug={name}", common.expect("the parameters for all bugs").trim())
}

/// Records until the panic's report is complete, and stores the console's text in a file.
fn record_panic(bug: &Bug, directory: &Path) {
    let mut options = linux_options(&CLOUD_ELF, &BUGS, &parameters(bug.name), 128);
    options.processors = Processors::new(bug.processors).expect("it is a number of processors");
    let disk = directory.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("the folder is ours");
    options.disk = Some(disk);
    let mut script = Script::silent();
    let (_, end) = record(&Guest::new(&options), &directory.join("bug.ttvm"), &mut script);
    assert_eq!(end.outcome, Outcome::Panic, "{}", last_lines(&script));
    std::fs::write(directory.join("console.log"), script.output()).expect("the folder is ours");
}

/// Does the same as [`record_panic`], but in the lab (`scripts/kvm-lab`). The guest has a device of the lab.
fn record_panic_with_device(bug: &Bug, directory: &Path) {
    let lab = directory.join("lab");
    let mut command = Command::new(repository().join("guest-images/bugs/with-device"));
    let output = command.arg(bug.name).args([&ttvm(), &lab]).stdin(Stdio::null()).output();
    let output = output.expect("the script can be started");
    let said = batch::said(&output);
    assert_eq!(output.status.code(), Some(1), "what ttvm record ends with after a panic: {said}");
    std::fs::rename(lab.join("guest.log"), directory.join("console.log"))
        .expect("the guest printed something");
    let unpacked = Command::new(ttvm())
        .args(["unpack".as_ref(), lab.join("lab.packed").as_os_str(), "-o".as_ref()])
        .arg(directory.join("bug.ttvm"))
        .status();
    assert!(unpacked.is_ok_and(|status| status.success()), "{said}");
}

/// Runs the walk's script while the recording is served. Returns the script's output.
fn walk_back(name: &str, directory: &Path) -> String {
    let mut timeline =
        Timeline::open(&open(&directory.join("bug.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    batch::serve(&mut timeline, directory, |socket| {
        let mut walk = Command::new(repository().join("guest-images/bugs/walk"));
        walk.arg(name).args([&directory.join("console.log"), socket]);
        walk
    })
}

/// Types the walk's commands into a gdb in a terminal. Returns the shown text.
fn type_walk(name: &str, directory: &Path) -> Vec<String> {
    let bugs = repository().join("guest-images/bugs");
    let mut introduction = Command::new(bugs.join("walk"));
    introduction.args(["--introduction", name]).arg(directory.join("console.log"));
    let introduction = introduction.output().expect("the script can be started");
    assert!(introduction.status.success(), "{}", batch::said(&introduction));
    std::fs::write(directory.join("introduction.gdb"), introduction.stdout).expect("the folder is ours");
    let arguments = ["bug.ttvm", "--at", "end", "--once", "--listen", "unix:typed.socket"];
    let mut server = serve(directory, &arguments);
    let terminal = Terminal::open(directory, directory);
    terminal.enter("gdb --quiet --nx -ex 'set architecture i386:x86-64'");
    let walk = std::fs::read_to_string(bugs.join(name).join("walk.gdb")).expect("the walk's commands");
    let begin = [
        "source introduction.gdb".to_string(),
        format!("source {}", bugs.join("common.gdb").display()),
        "target remote typed.socket".to_string(),
    ];
    let is_command = |line: &&str| !line.is_empty() && !line.starts_with('#') && !line.starts_with("echo ");
    let lines = begin.iter().map(String::as_str).chain(walk.lines().filter(is_command));
    for line in lines {
        terminal.wait_for_a_prompt(&["(gdb)", ">"]);
        terminal.enter(line);
    }
    terminal.wait_for_prompt("(gdb)");
    terminal.enter("detach");
    terminal.wait_for_prompt("(gdb)");
    assert!(server.wait().expect("it is ours").success());
    terminal.lines()
}

/// Returns the lines in which gdb prints a frame or an instruction, which show the positions that gdb reached. The
/// lines are without arguments, because the text of arguments depends on the terminal's character set.
fn places<'text>(lines: impl Iterator<Item = &'text str>) -> Vec<String> {
    let of_place = lines.filter(|line| line.starts_with("#0 ") || line.starts_with("=> "));
    let place = |line: &str| {
        let (function, behind) = line.split_once(" (").unwrap_or((line, ""));
        let source = behind.rsplit_once(") at ").map_or("", |(_, source)| source);
        let words: Vec<&str> = function.split_whitespace().chain([source]).collect();
        words.join(" ")
    };
    of_place.map(place).collect()
}

fn gdb_finds_the_cause(bug: &Bug, record: impl FnOnce(&Bug, &Path)) {
    if !BUGS.exists() {
        return skip::test("there is no guest with bugs; guest-images/bugs/build says why");
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    record(bug, directory.path());
    let transcript = walk_back(bug.name, directory.path());
    let is_place =
        |line: &&str| bug.places.iter().any(|place| line.starts_with(&format!("{}: ", place.what)));
    let found: Vec<_> = transcript.lines().filter(is_place).collect();
    assert_eq!(found.len(), bug.places.len(), "{transcript}");
    for (found, place) in found.iter().zip(bug.places) {
        let expected = bug.expected(place);
        assert!(found.starts_with(&expected), "'{found}' instead of '{expected}':\n{transcript}");
    }
    (bug.ask)(&Asker { bug, directory: directory.path() });
    if let Some(why) = missing(&["tmux"]) {
        return skip::test(why);
    }
    let typed = type_walk(bug.name, directory.path());
    let shown = places(typed.iter().map(String::as_str));
    assert_eq!(shown, places(transcript.lines()), "{}", typed.join("\n"));
}

#[test]
fn null_call() {
    gdb_finds_the_cause(&NULL_CALL, record_panic);
}

#[test]
fn irq_race() {
    gdb_finds_the_cause(&IRQ_RACE, record_panic);
}

#[test]
fn stale_object() {
    gdb_finds_the_cause(&STALE_OBJECT, record_panic);
}

#[test]
fn atomic_sleep() {
    gdb_finds_the_cause(&ATOMIC_SLEEP, record_panic);
}

#[test]
fn wrong_lock() {
    gdb_finds_the_cause(&WRONG_LOCK, record_panic);
}

#[test]
fn lost_wakeup() {
    gdb_finds_the_cause(&LOST_WAKEUP, record_panic);
}

#[test]
fn lost_request() {
    gdb_finds_the_cause(&LOST_REQUEST, record_panic_with_device);
}
