//! Tests that Debian's newest gdb works in the same way as gdb 13. Runs tests of other files in this folder once
//! more, with the newest gdb first in PATH.

use std::process::Command;

use tests::guests::repository;

/// Short tests of a session's commands: moves in both directions, steps in a thread, symbols, other threads,
/// interrupts, the machine interface.
const TESTS: [&str; 6] = [
    "gdb_interrupts::an_interrupt_ends_a_search_and_gdb_stays_in_step",
    "gdb_mi::front_ends_go_both_ways",
    "gdb_processes::processes_and_symbols_of_a_stock_kernel",
    "gdb_steps::steps_of_gdb_stay_in_their_process",
    "gdb_travel::a_long_session_agrees_with_single_stepping",
    "symbols_add_up::",
];

#[test]
fn does_what_gdb_13_does() {
    let folder = repository().join("guest-images/out/gdb-newest");
    if !folder.join("gdb").exists() {
        return skip::test("there is no newer gdb; guest-images/newest-gdb says why");
    }
    let others = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{others}", folder.display());
    let mut again = Command::new(std::env::current_exe().expect("this program has a path"));
    let again = again.args(["--test-threads", "1"]).args(TESTS).env("PATH", path);
    let output = again.output().expect("this program can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let passed = said.lines().filter(|line| line.ends_with(" ... ok")).count();
    assert!(passed >= TESTS.len(), "{said}");
}
