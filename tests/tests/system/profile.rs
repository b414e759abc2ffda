//! Compares `profile` with the trace that the guest's own tracer (ftrace) printed during the same run.

use std::collections::BTreeMap;

use tests::guests::{Artefact, BUSYBOX, CLOUD, SID};
use tests::program::json;
use tests::record::record_script;

/// A function that the guest calls right before and right after the commands.
const MARK: &str = "__x64_sys_sethostname";
/// The traced functions. Some call themselves, some are called by jumps or through pointers, and some in interrupts.
const FUNCTIONS: &str = "vfs_* path_* lookup_* dput fput __fput filp_close kmem_cache_alloc kmem_cache_free kfree \
    do_sys_openat2 getname_flags putname schedule try_to_wake_up ttwu_do_activate enqueue_task_fair update_curr \
    handle_mm_fault do_exit wake_up_new_task hrtimer_interrupt __run_timers run_timer_softirq rcu_core proc_* \
    seq_* security_* mntput* mntget dget* shmem_* tty_*";

/// Traces all calls of some functions during some commands.
fn script() -> String {
    format!(
        "#!/bin/sh
mount -t tracefs none /sys/kernel/tracing
cd /sys/kernel/tracing
echo 60000 > buffer_size_kb
set -f
exec 3> set_ftrace_filter
for f in {FUNCTIONS} {MARK}; do echo $f >&3; done 2> /dev/null
exec 3>&-
echo function > current_tracer
hostname first
ls -lR /sys/kernel/mm /etc > /dev/null
(sleep 0.02; cat /init | sort > /tmp/x) &
ln -s /init /tmp/link
readlink /tmp/link
wait
rm /tmp/link /tmp/x
hostname second
echo 0 > tracing_on
echo TRACE BEGINS
cat trace
echo TRACE ENDS
"
    )
}

/// The number of calls of each function between the two marks in the trace. A line of a call looks like this:
/// `cat-91 [000] ..... 1.6: vfs_read <-ksys_read`.
fn counted(console: &str) -> BTreeMap<String, u64> {
    let trace = console.split("TRACE BEGINS").nth(1).and_then(|rest| rest.split("TRACE ENDS").next());
    let trace = trace.unwrap_or_else(|| panic!("there is no trace: {console}"));
    let before = trace.lines().filter_map(|line| Some(line.split_once(" <-")?.0));
    let functions = before.map(|line| line.rsplit(": ").next().unwrap_or(line).trim());
    let marked = functions.skip_while(|function| *function != MARK).skip(1);
    let mut counts = BTreeMap::new();
    for function in marked.take_while(|function| *function != MARK) {
        *counts.entry(function.to_string()).or_default() += 1;
    }
    counts
}

fn is_as_counted(kernel: &Artefact, initrd: &Artefact) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let console = record_script(directory.path(), (kernel, initrd), &script(), None);
    let counted = counted(&console);
    assert!(counted.len() > 50 && counted.values().sum::<u64>() > 5_000, "{console}");
    let marks = json(directory.path(), &["calls", "r.ttvm", MARK, "--json"]);
    let marks = marks["calls"].as_array().expect("a list");
    assert_eq!(marks.len(), 2, "{marks:?}");
    let [from, to] = [&marks[0], &marks[1]].map(|mark| mark["instruction"].as_u64().expect("a position"));
    let part = [format!("insn:{from}"), format!("insn:{to}")];
    let arguments =
        ["profile", "r.ttvm", "--from", &part[0], "--to", &part[1], "--limit", "100000", "--json"];
    let profile = json(directory.path(), &arguments);
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let functions = profile["functions"].as_array().expect("a list");
    let found: BTreeMap<&str, u64> = functions
        .iter()
        .map(|function| (function["function"].as_str().expect("a name"), number(&function["calls"])))
        .collect();
    let own: u64 = functions.iter().map(|function| number(&function["own"])).sum();
    assert_eq!(own + number(&profile["outside"]), number(&profile["instructions"]));
    assert_eq!(number(&profile["instructions"]), to - from);

    let wrong: Vec<String> = counted
        .iter()
        .filter(|(name, calls)| found.get(name.as_str()) != Some(calls))
        .map(|(name, calls)| format!("{name}: {calls}, {:?}", found.get(name.as_str())))
        .collect();
    assert!(wrong.is_empty(), "{} of {} functions differ: {wrong:#?}", wrong.len(), counted.len());
}

#[test]
fn calls_are_counted_as_the_guest_counts_them() {
    is_as_counted(&CLOUD, &BUSYBOX);
}

#[test]
fn calls_of_a_newer_kernel_are_counted_as_the_guest_counts_them() {
    let [kernel, busybox] = &SID;
    is_as_counted(kernel, busybox);
}
