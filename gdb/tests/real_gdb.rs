//! Runs an unmodified gdb in batch mode against the toy machine.
//!
//! Without gdb, each test is skipped.

mod common;

use std::process::{Command, Stdio};
use std::thread;

use common::Toy;
use gdb::{Listener, SessionEnd, serve};

/// Runs gdb once per list of commands, all against one server. Returns each output and how each session ended. Skips
/// the test if there is no gdb.
fn run_gdb(address: &str, toy: Toy, scripts: &[&[&str]]) -> Option<Vec<(String, SessionEnd)>> {
    if Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_err() {
        skip::test("there is no gdb on this machine");
        return None;
    }
    let listener = Listener::bind(address).expect("a free address");
    let remote = format!("target remote {}", listener.gdb_address());
    let count = scripts.len();
    let server = thread::spawn(move || {
        let mut toy = toy;
        let mut ends = Vec::new();
        serve(&listener, &mut toy, |end| {
            ends.push(end.clone());
            ends.len() < count
        })
        .expect("clients come");
        ends
    });
    let outputs: Vec<_> = scripts.iter().map(|script| gdb_output(&remote, script)).collect();
    Some(outputs.into_iter().zip(server.join().expect("the server survives")).collect())
}

fn gdb_output(remote: &str, script: &[&str]) -> String {
    // gdb writes the server's texts to its error output. Merging both outputs keeps their order.
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh", "gdb"]);
    command.args([
        "-nx",
        "-batch",
        "-ex",
        "set confirm off",
        "-ex",
        "set width 0",
        "-ex",
        "set architecture i386:x86-64",
    ]);
    command.args(["-ex", remote]);
    script.iter().for_each(|line| {
        command.args(["-ex", &format!("echo \\n> {line}\\n"), "-ex", line]);
    });
    let output = command.stdin(Stdio::null()).output().expect("gdb runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The output of each command, in the order of the commands.
fn sections(output: &str) -> Vec<&str> {
    output.split("\n> ").skip(1).collect()
}

/// Runs one script. Each line of the script has texts that gdb's answer must contain.
fn check(toy: Toy, script: &[(&str, &[&str])]) {
    let lines: Vec<_> = script.iter().map(|(line, _)| *line).collect();
    let Some(sessions) = run_gdb("127.0.0.1:0", toy, &[&lines]) else { return };
    let (output, _) = &sessions[0];
    println!("{output}");
    let sections = sections(output);
    assert_eq!(sections.len(), script.len(), "gdb stopped at an error");
    for (section, (line, expected)) in sections.iter().zip(script) {
        for text in *expected {
            assert!(section.contains(text), "after `{line}` expected {text:?} in {section:?}");
        }
    }
}

#[test]
fn registers_and_memory_are_shown() {
    check(
        Toy::new(),
        &[
            ("p $pc", &["0x1000"]),
            (
                "x/4i $pc",
                &["mov    $0x2000,%rbx", "add    $0x3,%al", "mov    %al,(%rbx)", "mov    (%rbx),%dl"],
            ),
            (
                "info registers",
                &[
                    "rsp            0x8000 ",
                    "[ IF IOPL=0 ]",
                    "gs_base        0xffff888000000000 ",
                    "k_gs_base ",
                ],
            ),
            ("info registers cr0 cr3 efer", &["[ PE MP ET NE WP PG ]", "0x1234000 ", "[ SCE LME LMA NXE ]"]),
            ("info registers float", &["st0            1.5", "fctrl          0x37f"]),
            ("info registers vector", &["xmm1 ", "v4_float = {0x3fc00000, ", "mxcsr "]),
            (
                "info all-registers",
                &["rax ", "st7 ", "fop ", "xmm15 ", "mxcsr ", "fs_base ", "cr8 ", "efer "],
            ),
            ("p $cr3", &["= 19087360"]),
            ("p/x $efer", &["= 0xd01"]),
            ("p $xmm1.v4_float[2]", &["= 1.5"]),
            ("p $al", &["= 0"]),
            ("info threads", &["vCPU 0"]),
            ("x/2xb 0xfffe", &["0xfffe:\t0x00\t0x00"]),
        ],
    );
}

#[test]
fn instructions_are_stepped_both_ways() {
    check(
        Toy::new(),
        &[
            ("stepi", &["0x0000000000001007"]),
            ("stepi 3", &["0x000000000000100d"]),
            ("p $al", &["= 3"]),
            ("x/1xb 0x2000", &["0x03"]),
            ("reverse-stepi", &["0x000000000000100b"]),
            ("reverse-stepi 2", &["0x0000000000001007"]),
            ("p $al", &["= 0"]),
            ("x/1xb 0x2000", &["0x00"]),
            ("reverse-stepi", &["0x0000000000001000"]),
            ("reverse-stepi", &["No more reverse-execution history"]),
            ("p $pc", &["0x1000"]),
            // A step that arrives at a breakpoint hits it. A step that starts at a breakpoint does not stop
            // there.
            ("break *0x1009", &[]),
            ("stepi 2", &["Breakpoint 1, 0x0000000000001009"]),
            ("stepi", &["0x000000000000100b"]),
            ("reverse-stepi", &["Breakpoint 1, 0x0000000000001009"]),
            ("reverse-stepi", &["0x0000000000001007"]),
        ],
    );
}

#[test]
fn breakpoints_and_both_ends_of_history() {
    check(
        Toy::new(),
        &[
            ("break *0x1010", &["Breakpoint 1"]),
            ("hbreak *0x1009", &["assisted breakpoint 2"]),
            ("continue", &["Breakpoint 2, 0x0000000000001009"]),
            ("continue", &["Breakpoint 1, 0x0000000000001010"]),
            ("continue", &["Breakpoint 2, 0x0000000000001009"]),
            ("reverse-continue", &["Breakpoint 1, 0x0000000000001010"]),
            ("reverse-continue", &["Breakpoint 2, 0x0000000000001009"]),
            ("p $rcx", &["= 0"]),
            ("reverse-continue", &["No more reverse-execution history", "0x0000000000001000"]),
            ("delete", &[]),
            ("continue", &["No more reverse-execution history"]),
            ("monitor where", &["instruction 200"]),
            ("reverse-stepi", &["0x0"]),
            ("monitor where", &["instruction 199"]),
            ("reverse-continue", &["No more reverse-execution history", "0x0000000000001000"]),
            ("break *0x1010 if $rcx == 20", &["Breakpoint 3"]),
            ("continue", &["Breakpoint 3, 0x0000000000001010"]),
            ("p $rcx", &["= 20"]),
            ("ignore 3 0", &[]),
            ("condition 3 $rcx == 7", &[]),
            ("reverse-continue", &["Breakpoint 3, 0x0000000000001010"]),
            ("p $rcx", &["= 7"]),
        ],
    );
}

#[test]
fn the_last_write_is_found_by_going_back() {
    check(
        Toy::new(),
        &[
            ("continue", &["No more reverse-execution history"]),
            ("x/1ub 0x2000", &["0x2000:\t99"]),
            ("watch *(unsigned char *)0x2000", &["Hardware watchpoint 1"]),
            (
                "reverse-continue",
                &["Hardware watchpoint 1", "Old value = 99", "New value = 96", "0x0000000000001009"],
            ),
            ("reverse-continue", &["Old value = 96", "New value = 93"]),
            ("continue", &["Old value = 93", "New value = 96", "0x000000000000100b"]),
            ("delete", &[]),
            ("rwatch *(unsigned char *)0x2000", &["Hardware read watchpoint 2"]),
            ("reverse-continue", &["Hardware read watchpoint 2", "Value = "]),
            ("delete", &[]),
            ("awatch *(unsigned char *)0x2000", &["Hardware access (read/write) watchpoint 3"]),
            ("continue", &["Hardware access (read/write) watchpoint 3"]),
        ],
    );
}

#[test]
fn refusals_and_monitor_output_reach_the_user() {
    check(
        Toy::new(),
        &[
            ("monitor where", &["instruction 0"]),
            ("monitor nonsense", &["unknown command: nonsense"]),
            ("monitor long", &["0123456789abcde\n0123456789abcde"]),
        ],
    );
    let scripts: [&[&str]; 2] = [&["set var $rax = 5"], &["stepi", "set var *(char *)0x3000 = 5"]];
    let Some(sessions) = run_gdb("127.0.0.1:0", Toy::new(), &scripts) else { return };
    let outputs: Vec<_> = sessions.iter().map(|(output, _)| output.as_str()).collect();
    assert!(outputs[0].contains("Could not write register \"rax\""), "{}", outputs[0]);
    assert!(outputs[0].contains("the recorded past cannot be changed"), "{}", outputs[0]);
    assert!(outputs[1].contains("Cannot access memory at address 0x3000"), "{}", outputs[1]);
}

#[test]
fn a_greeting_reaches_the_user_once() {
    let toy = Toy { greeting: Some("source this"), ..Toy::new() };
    let scripts: [&[&str]; 2] = [&["stepi"], &["stepi"]];
    let Some(sessions) = run_gdb("127.0.0.1:0", toy, &scripts) else { return };
    let greeted: Vec<_> =
        sessions.iter().map(|(output, _)| output.matches("source this\n").count()).collect();
    assert_eq!(greeted, [1, 0], "{sessions:?}");
}

#[test]
fn writes_that_are_accepted_stick() {
    check(
        Toy { writable: true, ..Toy::new() },
        &[
            ("set var $rax = 0x1122334455667788", &[]),
            ("set var $xmm3.uint128 = 7", &[]),
            ("set var $st1 = 2.5", &[]),
            ("set var $cr2 = 0xdead", &[]),
            ("set var *(int *)0x3000 = 0x24237d2a", &[]),
            ("p/x $rax", &["= 0x1122334455667788"]),
            ("p $xmm3.uint128", &["= 7"]),
            ("p $st1", &["= 2.5"]),
            ("p/x $cr2", &["= 0xdead"]),
            ("p/x *(int *)0x3000", &["= 0x24237d2a"]),
        ],
    );
}

#[test]
fn clients_come_and_go_on_both_kinds_of_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let unix = format!("unix:{}", folder.path().join("gdb").display());
    for address in ["127.0.0.1:0", &unix] {
        let scripts: [&[&str]; 4] = [
            &["break *0x1010", "continue", "monitor where", "detach"],
            &["monitor where", "stepi", "monitor where", "kill"],
            &["monitor where", "continue", "disconnect"],
            // After this command gdb's script ends, without `detach`, `kill` or `disconnect`.
            &["monitor where"],
        ];
        let Some(sessions) = run_gdb(address, Toy::new(), &scripts) else { return };
        let expected = [
            (["instruction 5", "Breakpoint 1, 0x0000000000001010"], SessionEnd::Detached),
            (["instruction 5", "instruction 6"], SessionEnd::Killed),
            // The first session's breakpoint is gone.
            (["instruction 6", "No more reverse-execution history"], SessionEnd::Closed),
            (["instruction 200", ""], SessionEnd::Detached),
        ];
        for ((output, end), (texts, expected_end)) in sessions.iter().zip(expected) {
            texts.iter().for_each(|text| assert!(output.contains(text), "{text:?} in {output}"));
            assert_eq!(*end, expected_end, "{output}");
        }
    }
}
