//! Tests an unmodified gdb on a recording of a stock kernel. gdb goes from the end back to the last write of a
//! kernel variable, and then one instruction further back. Then gdb goes forward over the write, and to both ends
//! of the recording.

use history::timeline::Timeline;
use machine::script::Script;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, repository};
use tests::record::{open, record};

/// The kernel variable that every timer tick writes.
const VARIABLE: &str = "jiffies_64";

/// Returns a gdb command that prints a name, RIP and the variable's value.
fn show(name: &str, address: &str) -> String {
    format!("printf \"{name} %lx %lu\\n\", $rip, *(unsigned long *) {address}")
}

fn gdb_commands(address: &str) -> Vec<String> {
    let commands = [
        "set pagination off",
        "SHOW end",
        "WATCH",
        "reverse-continue",
        "SHOW before-write",
        "stepi",
        "SHOW after-write",
        "reverse-stepi",
        "SHOW before-again",
        "reverse-stepi",
        "SHOW one-before",
        "reverse-continue",
        "SHOW earlier-write",
        "continue",
        "SHOW forward",
        "delete",
        "reverse-continue",
        // At the start the variable's address is not mapped, so print 0 in its place.
        "printf \"start %lx 0\\n\", $rip",
        "continue",
        "SHOW end-again",
        // A search without a hit must not move the session.
        "monitor goto 50%",
        "monitor position",
        "monitor back-to call 0x1234567",
        "monitor position",
        "monitor forward-to call 0x1234567",
        "monitor position",
        "source gdb/commands/tt.py",
        "checkpoint",
        "detach",
    ];
    let expand = |command: &&str| match command.split_once(' ') {
        Some(("SHOW", name)) => show(name, address),
        _ if *command == "WATCH" => format!("watch *(unsigned long *) {address}"),
        _ => command.to_string(),
    };
    commands.iter().map(expand).collect()
}

/// Returns RIP and the variable's value from the line in which gdb printed `name`.
fn shown(transcript: &str, name: &str) -> (u64, u64) {
    let line = transcript.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no '{name}' in gdb's output:\n{transcript}"));
    let (rip, value) = line.split_once(' ').expect("two numbers");
    (
        u64::from_str_radix(rip, 16).unwrap_or_else(|_| panic!("{line}: {transcript}")),
        value.parse().unwrap_or_else(|_| panic!("{line}: {transcript}")),
    )
}

#[test]
fn gdb_goes_back_to_the_last_write_of_a_kernel_variable() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("session.ttvm");
    let command = format!("grep -w {VARIABLE} /proc/kallsyms");
    let mut script = Script::shell(&[&command, "poweroff -f"]);
    let guest = Guest::linux(&CLOUD, &BUSYBOX, "", 256);
    record(&guest, &path, &mut script);
    let text = script.text();
    let line = text.lines().find(|line| line.ends_with(&format!(" {VARIABLE}")) && line.len() < 60);
    let digits = line.and_then(|line| line.split(' ').next()).expect("the guest prints the address");
    let address = format!("0x{digits}");

    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let start = timeline.machine().cpu().rip();
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.machine().cpu().rip();
    let transcript = batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        gdb.current_dir(repository());
        batch::attach(&mut gdb, socket, &gdb_commands(&address));
        gdb
    });
    check(&transcript, start, end);
}

fn check(transcript: &str, start: u64, end: u64) {
    let shown = |name| shown(transcript, name);
    let (last_rip, last) = shown("end");
    assert_eq!(last_rip, end, "{transcript}");
    // Before the last write, the variable has its second-last value. After the last write, it has its last value.
    let (write_rip, before) = shown("before-write");
    assert_eq!(before, last - 1, "{transcript}");
    assert_eq!(shown("after-write").1, last, "{transcript}");
    assert_eq!(shown("before-again"), (write_rip, before), "{transcript}");
    let (one_before, value) = shown("one-before");
    assert!(value == before && (1..=15).contains(&write_rip.wrapping_sub(one_before)), "{transcript}");
    assert_eq!(shown("earlier-write"), (write_rip, before - 1), "{transcript}");
    assert_eq!(shown("forward").1, before, "{transcript}");
    assert_eq!(shown("start").0, start, "{transcript}");
    assert_eq!(shown("end-again"), (end, last), "{transcript}");
    assert!(batch::ends_of_history(transcript) >= 2, "{transcript}");
    assert_eq!(transcript.matches("the position is unchanged").count(), 2, "{transcript}");
    let is_place =
        |line: &&str| line.split(' ').count() == 3 && line.bytes().all(|byte| b"0123456789 ".contains(&byte));
    let places: Vec<&str> = transcript.lines().filter(is_place).collect();
    assert!(places.len() == 3 && places.iter().all(|place| *place == places[0]), "{places:?}: {transcript}");
    assert!(transcript.contains("would call fork() in the guest"), "{transcript}");
}
