//! Tests a stock kernel on several processors: their topology, switching processors off and on, messages to all
//! processors, and policies of turns. The tests record and verify each run.

use std::path::Path;

use machine::error::exit_code;
use tests::guests::{Artefact, BUSYBOX, CLOUD, SID};
use tests::program::{json, run};

/// Records a guest that runs a command, and verifies the recording. Returns the console's text.
fn record(directory: &Path, [kernel, initrd]: [&Artefact; 2], options: &[&str], command: &str) -> String {
    let (kernel, initrd) = (kernel.path(), initrd.path());
    let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let cmdline = format!("console=ttyS0 ttvm.run=\"{command}\"");
    let machine = ["record", "-o", "r.ttvm", "--date", "1700000000", "--seed", "1", "--unpaced"];
    let kernel = ["--kernel", kernel.to_str().expect("UTF-8"), "--initrd", initrd.to_str().expect("UTF-8")];
    let rest = ["--cmdline", &cmdline, "--max-time", "60s"];
    let (code, console, said) = run(directory, &[&machine[..], &kernel, &rest, options].concat());
    assert_eq!(code, Some(exit_code::DONE), "{console}{said}");
    let (code, found, complaint) = run(directory, &["verify", "r.ttvm"]);
    assert_eq!(code, Some(exit_code::DONE), "{found}{complaint}{console}");
    for trouble in ["WARNING:", "BUG:", "stall", "lockup", "unstable"] {
        assert!(!console.contains(trouble), "{trouble}: {console}");
    }
    console.replace('\r', "")
}

/// Prints a line for each processor: socket, core, siblings in the core and in the socket, from sysfs and from
/// /proc/cpuinfo.
const TOPOLOGY: &str = "
    cd /sys/devices/system/cpu; for c in 0 1 2 3 4 5 6 7 8 9 10 11; do [ ! -d cpu$c ] || echo sys $c
    $(cat cpu$c/topology/physical_package_id cpu$c/topology/core_id cpu$c/topology/thread_siblings_list
    cpu$c/topology/core_siblings_list cpu$c/cache/index2/shared_cpu_list cpu$c/cache/index3/shared_cpu_list); done;
    awk -F: '/^processor/{p=$2} /^physical id/{s=$2} /^siblings/{n=$2} /^core id/{c=$2} /^cpu cores/{k=$2}
    /^apicid/{print p,s,c,n,k,$2}' /proc/cpuinfo | sed s/^/info/";

/// The console's lines that begin with `word`, without the word.
fn shown(console: &str, word: &str) -> Vec<String> {
    let rests = console.lines().filter_map(|line| line.strip_prefix(&format!("{word} ")));
    rests.map(|rest| rest.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Records a kernel on processors with this topology. Compares the topology and the APIC ids that the kernel prints.
fn sees(kernel: [&Artefact; 2], (sockets, cores, threads): (u8, u8, u8), ids: &[u8]) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let count = sockets * cores * threads;
    let cpus = format!("--cpus={count},sockets={sockets},threads={threads}");
    let console = record(directory.path(), kernel, &[&cpus], TOPOLOGY);
    let list = |first: u8, length: u8| match length {
        1 => first.to_string(),
        _ => format!("{first}-{}", first + length - 1),
    };
    let in_socket = cores * threads;
    let places = (0..count).map(|number| {
        let (socket, core) = (number / in_socket, number % in_socket / threads);
        (number, socket, core, list(number - number % threads, threads), list(socket * in_socket, in_socket))
    });
    let sys = places.clone().map(|(number, socket, core, siblings, all)| {
        format!("{number} {socket} {core} {siblings} {all} {siblings} {all}")
    });
    assert_eq!(shown(&console, "sys"), sys.collect::<Vec<_>>(), "{console}");
    let info = places
        .zip(ids)
        .map(|((number, socket, core, ..), id)| format!("{number} {socket} {core} {in_socket} {cores} {id}"));
    assert_eq!(shown(&console, "info"), info.collect::<Vec<_>>(), "{console}");
    let described = json(directory.path(), &["info", "r.ttvm", "--json"]);
    let topology =
        serde_json::json!({"sockets": sockets, "cores_per_socket": cores, "threads_per_core": threads});
    assert_eq!(
        (&described["machine"]["processors"], &described["machine"]["topology"]),
        (&count.into(), &topology)
    );
}

#[test]
fn a_kernel_sees_sockets_cores_and_threads() {
    // With three cores in a socket, the APIC ids leave space for a fourth core.
    sees([&CLOUD, &BUSYBOX], (2, 3, 2), &[0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
}

#[test]
fn a_newer_kernel_sees_sockets_cores_and_threads() {
    let [kernel, initrd] = &SID;
    if !kernel.exists() {
        return skip::test("the kernel of Debian sid is not there; guest-images/newer-kernels makes it");
    }
    sees([kernel, initrd], (2, 1, 3), &[0, 1, 2, 8, 9, 10]);
}

#[test]
fn processors_are_switched_off_and_on() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let command = "
        cd /sys/devices/system/cpu;
        for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo 0 >cpu2/online; echo 1 >cpu2/online; done;
        for i in 1 2 3; do for c in 3 1 2; do echo 0 >cpu$c/online; done; echo online $(cat online);
        (ls /bin | md5sum) >/dev/null; for c in 2 3 1; do echo 1 >cpu$c/online; done; echo online $(cat online); done;
        for c in 0 1 2 3; do taskset -p $((1 << c)) $$ >/dev/null && grep -o ^processor.*$c /proc/cpuinfo; done;
        dmesg | grep -c offline$";
    let console = record(directory.path(), [&CLOUD, &BUSYBOX], &["--cpus", "4"], command);
    assert_eq!(shown(&console, "online"), ["0", "0-3", "0", "0-3", "0", "0-3"], "{console}");
    assert!(console.contains("\nprocessor\t: 3\n21\nttvm.run: exit status 0\n"), "{console}");
}

#[test]
fn messages_reach_all_processors() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    // Three processors are busy while the fourth processor sends all processors a request for a backtrace. Then the
    // kernel crashes on the fourth processor, and stops the other processors.
    let command = "
        for i in 1 2 3; do (while :; do :; done) & done; sleep 0.1;
        echo l >/proc/sysrq-trigger; sleep 0.1; echo c >/proc/sysrq-trigger";
    let (kernel, initrd) = (CLOUD.path(), BUSYBOX.path());
    let cmdline =
        format!("console=ttyS0 ttvm.run=\"{}\"", command.split_whitespace().collect::<Vec<_>>().join(" "));
    let files = ["--kernel", kernel.to_str().expect("UTF-8"), "--initrd", initrd.to_str().expect("UTF-8")];
    let options =
        ["record", "-o", "r.ttvm", "--cpus=4", "--max-time=60s", "--unpaced", "--cmdline", &cmdline];
    let (_, console, said) = run(directory.path(), &[&options[..], &files].concat());
    for cpu in 0..4 {
        assert!(console.contains(&format!("NMI backtrace for cpu {cpu}")), "{cpu}: {console}{said}");
    }
    assert!(console.contains("Kernel panic - not syncing: sysrq triggered crash"), "{console}{said}");
    assert!(
        !console.contains("stop other CPUs timed out") && !console.contains("Shutting down cpus"),
        "{console}"
    );
    let (code, found, complaint) = run(directory.path(), &["verify", "r.ttvm"]);
    assert_eq!(code, Some(exit_code::DONE), "{found}{complaint}");
}

#[test]
fn a_seed_decides_the_turns_of_a_kernel() {
    let work = "
        for j in 1 2 3; do (for i in 1 2 3; do ls -l /bin /sys/kernel | md5sum; done) & done; wait;
        echo 0 >/sys/devices/system/cpu/cpu1/online; echo 1 >/sys/devices/system/cpu/cpu1/online";
    let hashes = |seed: &str| {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let options = ["--cpus", "4", "--turns", seed];
        record(directory.path(), [&CLOUD, &BUSYBOX], &options, work);
        let (code, log, said) = run(directory.path(), &["log", "r.ttvm", "--json"]);
        assert_eq!(code, Some(exit_code::DONE), "{said}");
        let end: serde_json::Value =
            log.lines().last().map(serde_json::from_str).expect("it has an end").unwrap();
        end["hashes"].clone()
    };
    let first = hashes("random:1");
    assert!(first.is_array(), "{first}");
    assert_eq!(first, hashes("random:1"));
    assert_ne!(first, hashes("random:2"));
}
