//! Tests ttvm's list of a kernel's reports, with a stock kernel that has no console. Also tests what a search shows
//! about system calls, threads and values.

use std::path::Path;

use history::timeline::Timeline;
use machine::error::exit_code;
use serde_json::Value;
use tests::gdb::batch;
use tests::guests::{Artefact, BUGS, BUSYBOX, CLOUD, repository};
use tests::program::{json, run};
use tests::record::open;

fn record(directory: &Path, initrd: &Artefact, cmdline: &str) -> (Option<i32>, String) {
    let (kernel, initrd) = (CLOUD.path(), initrd.path());
    let images = ["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.to_str().unwrap()];
    let machine = ["--memory", "128M", "--unpaced", "--cmdline", cmdline];
    let (code, _, said) = run(directory, &[&["record", "-o", "r.ttvm"][..], &images, &machine].concat());
    (code, said)
}

/// In this test, neither the console nor the end of the run shows the panic: the kernel has no console, and
/// reboots.
#[test]
fn a_panic_without_a_console_is_found_in_the_kernels_log() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let (code, said) = record(directory, &BUSYBOX, "panic=-1 ttvm.run=\"echo c >/proc/sysrq-trigger\"");
    assert!(said.contains("the guest's kernel panicked, and the guest reset itself"), "{said}");
    assert_eq!(code, Some(exit_code::FAILED), "{said}");
    let reports = json(directory, &["reports", "r.ttvm", "--json"]);
    let [report] = &reports.as_array().unwrap()[..] else { panic!("{reports}") };
    assert_eq!((&report["kind"], &report["name"]), (&Value::from("panic"), &Value::from("sh")), "{report}");
    assert_eq!(report["line"], "Kernel panic - not syncing: sysrq triggered crash");
    for at in ["panic", "report:1"] {
        let state = json(directory, &["state", "r.ttvm", "--at", at, "--backtrace", "--dmesg", "--json"]);
        assert_eq!(state["instruction"], report["instruction"], "{at}");
        assert_eq!(state["dmesg"].as_array().unwrap().last().unwrap()["text"], report["line"], "{at}");
        assert_eq!(state["thread"]["name"], "sh", "{at}");
    }
    let (code, _, said) = run(directory, &["state", "r.ttvm", "--at", "fault"]);
    assert!(code == Some(exit_code::USAGE) && said.contains("no exception in the kernel"), "{said}");
}

/// In this test, the kernel calls a function at address 0. ttvm must find the position of this fault, although the
/// stack may have changed until the end of the report.
#[test]
fn the_instruction_that_faulted_is_a_place() {
    if !BUGS.exists() {
        return skip::test(format!("{} is not there", BUGS.path().display()));
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let (code, said) = record(directory, &BUGS, "panic=-1 bug=null-call");
    assert_eq!(code, Some(exit_code::FAILED), "{said}");
    let reports = json(directory, &["reports", "r.ttvm", "--json"]);
    let kinds: Vec<_> = reports.as_array().unwrap().iter().map(|report| report["kind"].clone()).collect();
    assert_eq!(kinds, ["oops", "panic"], "{reports}");
    let state = json(directory, &["state", "r.ttvm", "--at", "fault", "--json"]);
    assert_eq!(state["registers"]["rip"], "0x0", "{state}");
    let (fault, oops) = (state["instruction"].as_u64().unwrap(), reports[0]["instruction"].as_u64().unwrap());
    assert!(fault < oops && oops - fault < 10_000, "{fault} {oops}");
}

#[test]
fn searches_say_what_system_calls_were_asked_and_gave_and_who_waits() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let (code, said) = record(directory, &BUSYBOX, "ttvm.run=\"cat /none; sleep 2; true\"");
    assert_eq!(code, Some(exit_code::DONE), "{said}");
    let search = |more: &[&str]| {
        let found = json(directory, &[&["search", "r.ttvm"][..], more, &["--json"]].concat());
        found["hits"].as_array().unwrap().clone()
    };
    let all = search(&["syscall:open*", "comm:cat", "--all"]);
    let of_none = |hit: &&Value| hit["call"]["arguments"].to_string().contains("/none");
    let hit = all.iter().find(of_none).unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(
        (&hit["call"]["result"], &hit["name"]),
        (&Value::from("-ENOENT"), &Value::from("cat")),
        "{hit}"
    );
    assert!(all.iter().all(|hit| hit["name"] == "cat"), "{all:?}");
    // A search for only the last hit has the same result.
    let last = search(&["syscall:open*", "comm:cat"]);
    assert_eq!((&last[0]["call"], &last[0]["instruction"]), (&hit["call"], &hit["instruction"]));
    let long = search(&["syscall:*nanosleep", "longer:1s", "--all"]);
    let [sleep] = &long[..] else { panic!("{long:?}") };
    let seconds = sleep["call"]["seconds"].as_f64().unwrap();
    assert!(sleep["name"] == "sleep" && (2.0..2.1).contains(&seconds), "{sleep}");
    assert_eq!(search(&["syscall", "longer:1s", "comm:sleep"])[0]["call"], sleep["call"]);
    let pid = format!("pid:{}", sleep["pid"]);
    let exit = search(&["syscall", &pid]);
    assert_eq!(exit[0]["call"]["name"], "exit_group", "{exit:?}");
    let ticks = search(&["write:jiffies_64+8", "comm:swapper/0"]);
    let value = |name: &str| {
        let digits = ticks[0][name].as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap()
    };
    assert!(ticks[0]["pid"] == 0 && value("new") > value("old"), "{ticks:?}");
    let middle = format!("{}s", sleep["guest_seconds"].as_f64().unwrap() + 1.0);
    let state = json(directory, &["state", "r.ttvm", "--at", &middle, "--processes", "--json"]);
    let waits = |name: &str| {
        let tasks = state["processes"].as_array().unwrap();
        tasks.iter().find(|task| task["name"] == name).unwrap_or_else(|| panic!("{tasks:?}"))["waits_in"]
            .clone()
    };
    assert_eq!((waits("sleep"), waits("kthreadd")), ("hrtimer_nanosleep".into(), "kthreadd".into()));
    let (code, _, said) = run(directory, &["search", "r.ttvm", "break:do_exit", "longer:1s"]);
    assert!(code == Some(exit_code::USAGE) && said.contains("for system calls only"), "{said}");

    // gdb begins at the recording's end.
    let mut timeline =
        Timeline::open(&open(&directory.join("r.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let commands = [
        "tt search syscall open* comm:cat",
        &format!("tt back-to last-syscall {pid}"),
        "tt search syscall longer:1s",
    ];
    let said = batch::serve(&mut timeline, directory, |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    assert!(said.contains(&format!("before: insn:{} system call", hit["instruction"])), "{said}");
    assert!(said.contains("after: nowhere"), "{said}");
    assert!(said.contains(&format!("instruction {} of", exit[0]["instruction"])), "{said}");
    assert!(said.contains("only `ttvm search` takes the filter"), "{said}");
}
