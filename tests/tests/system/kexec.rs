//! Tests a guest that starts a second kernel. In ttvm, a symbol's name means its address in each of the two
//! kernels.
//!
//! In each kernel the guest prints the addresses of some symbols from `/proc/kallsyms`. The tests compare
//! ttvm's answers with the printed addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use history::timeline::Timeline;
use machine::error::exit_code;
use serde_json::{Value, json};
use tests::gdb::batch;
use tests::guests::{Artefact, BUSYBOX, BUSYBOX_GENERIC, CLOUD, GENERIC, repository, with_files};
use tests::program::{json, run};
use tests::record::open;

/// Prints the symbols of the running kernel.
const SYMBOLS: &str = "grep -E ' (kernel_init|kernel_kexec|panic|panic_cpu|jiffies_64)$' /proc/kallsyms";

/// Runs a search and returns the listed hits.
fn search(directory: &Path, more: &[&str]) -> Vec<Value> {
    let found = json(directory, &[&["search", "r.ttvm"][..], more, &["--json"]].concat());
    found["hits"].as_array().unwrap().clone()
}

/// Records the cloud kernel. The guest loads the second kernel, prints its symbols, and starts the second
/// kernel. Returns the symbols of both kernels.
fn record(
    directory: &Path,
    second: [&Artefact; 2],
    how: [&str; 2],
    parameters: &str,
) -> [BTreeMap<String, u64>; 2] {
    let root = directory.join("root");
    std::fs::create_dir_all(root.join("kexec")).expect("the folder is ours");
    let compiled = Command::new("gcc")
        .args(["-O1", "-static", "-o"])
        .arg(root.join("kexec/kexec"))
        .arg(repository().join("tests/tests/system/programs/kexec.c"))
        .status();
    assert!(compiled.expect("gcc must be installed: run scripts/setup").success());
    let [load, start] = how;
    let script = format!(
        "{SYMBOLS}\n/kexec/kexec {load} /kexec/kernel /kexec/initrd \"$(cat /kexec/cmdline)\" && {start}\n"
    );
    let cmdline = format!("console=ttyS0 maxcpus=1 {parameters} ttvm.run=\"{SYMBOLS}\"");
    std::fs::write(root.join("kexec/run"), script).expect("the folder is ours");
    std::fs::write(root.join("kexec/cmdline"), cmdline).expect("the folder is ours");
    for (image, name) in second.into_iter().zip(["kernel", "initrd"]) {
        std::fs::copy(image.path(), root.join("kexec").join(name)).expect("the folder is ours");
    }
    with_files(&BUSYBOX, &root, &directory.join("initrd.gz"));
    let kernel = CLOUD.path();
    let images = ["--kernel", kernel.to_str().unwrap(), "--initrd", "initrd.gz"];
    let cmdline = format!("console=ttyS0 {parameters} crashkernel=128M ttvm.run=\"sh /kexec/run\"");
    let machine = ["--memory", "384M", "--unpaced", "--cmdline", &cmdline];
    let (_, console, said) = run(directory, &[&["record", "-o", "r.ttvm"][..], &images, &machine].concat());
    let starts: Vec<_> = console.match_indices("] Linux version ").map(|(at, _)| at).collect();
    let [_, second] = starts[..] else { panic!("two kernels: {console}{said}") };
    [&console[..second], &console[second..]].map(symbols_in)
}

/// Returns the symbols from the lines of `/proc/kallsyms` that the console shows.
fn symbols_in(console: &str) -> BTreeMap<String, u64> {
    let symbol = |line: &str| {
        let [address, _, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        Some((name.to_string(), u64::from_str_radix(address, 16).ok().filter(|_| address.len() == 16)?))
    };
    console.lines().filter_map(symbol).collect()
}

/// Returns the text with which a search shows an address and its symbol: "at 0x... <kernel_init>".
fn at(symbol: &str, address: u64) -> String {
    format!("at {address:#x} <{symbol}>")
}

#[test]
fn names_mean_places_in_both_kernels_of_a_guest_that_kexecs() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let how = ["load", "/kexec/kexec start"];
    let [first, second] = record(directory, [&GENERIC, &BUSYBOX_GENERIC], how, "");
    assert_ne!(first["kernel_init"], second["kernel_init"], "KASLR and another build move it");

    let hits = search(directory, &["break:kernel_init", "--all"]);
    let [in_first, in_second] = &hits[..] else { panic!("{hits:?}") };
    assert_eq!(in_first["what"], at("kernel_init", first["kernel_init"]));
    assert_eq!(in_second["what"], at("kernel_init", second["kernel_init"]));
    assert_eq!((&in_first["name"], &in_second["name"]), (&json!("swapper/0"), &json!("swapper/0")));
    let release = |hit: &Value| hit["kernel"]["release"].as_str().unwrap().to_string();
    let (cloud, generic) = (release(in_first), release(in_second));
    assert!(cloud.ends_with("-cloud-amd64") && generic == cloud.replace("-cloud", ""), "{cloud} {generic}");
    assert_eq!((&in_first["kernel"]["number"], &in_second["kernel"]["number"]), (&json!(1), &json!(2)));

    // Near the end of the first kernel's run, the first kernel starts the second kernel.
    let kexec = &search(directory, &["break:kernel_kexec", "comm:kexec"])[0];
    assert_eq!((&kexec["kernel"]["number"], &kexec["name"]), (&json!(1), &json!("kexec")), "{kexec}");
    assert_eq!(kexec["what"], at("kernel_kexec", first["kernel_kexec"]));
    let place = |hit: &Value| hit["instruction"].as_u64().unwrap();
    let (begun, end) = (format!("insn:{}", place(in_first)), format!("insn:{}", place(kexec)));
    let call = &search(directory, &["syscall:kexec_file_load", "--all", "--from", &begun, "--to", &end])[0];
    assert_eq!((&call["name"], &call["call"]["result"]), (&json!("kexec"), &json!("0")), "{call}");

    // Each kernel writes its own tick counter, and not the tick counter of the other kernel.
    let around = [place(kexec) - 50_000_000, place(in_second) + 400_000_000].map(|at| format!("insn:{at}"));
    let [from, to] = &around;
    let ticks =
        search(directory, &["write:jiffies_64+8", "--all", "--limit", "1000000", "--from", from, "--to", to]);
    let numbers: Vec<_> = ticks.iter().map(|hit| hit["kernel"]["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.contains(&1) && numbers.contains(&2), "{numbers:?}");
    for hit in &ticks {
        let symbols = if hit["kernel"]["number"] == 1 { &first } else { &second };
        let what = hit["what"].as_str().unwrap();
        // `jiffies` and `jiffies_64` are two names of one variable.
        assert!(what.starts_with(&format!("write to {:#x} <jiffies", symbols["jiffies_64"])), "{hit}");
    }

    let state = |hit: &Value| {
        let place = hit["instruction"].to_string();
        json(directory, &["state", "r.ttvm", "--at", &place, "--json"])
    };
    for (hit, release, by_kexec) in [(in_first, &cloud, false), (in_second, &generic, true)] {
        let state = state(hit);
        assert_eq!(state["place"], "kernel_init+0x0", "{state}");
        assert_eq!(state["kernel"], json!({ "release": release, "by_kexec": by_kexec }));
    }

    in_gdb(directory, &kexec["instruction"], [in_first, in_second]);
}

/// Tests gdb at the recording's end, and then in the first kernel.
fn in_gdb(directory: &Path, kexec: &Value, [first, second]: [&Value; 2]) {
    let mut timeline =
        Timeline::open(&open(&directory.join("r.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let commands = [
        "tt search call kernel_kexec",
        "tt traps break:kernel_init",
        "tt threads on",
        "tt back-to call kernel_kexec",
        "info threads",
        "tt forward-to call kernel_init",
        "tt back-to last-syscall comm:kexec",
    ];
    let said = batch::serve(&mut timeline, directory, |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    let told = |hit: &Value, number: &str| {
        let (what, release) = (hit["what"].as_str().unwrap(), hit["kernel"]["release"].as_str().unwrap());
        format!("{what} in the {number} kernel, {release}")
    };
    assert!(said.contains(&format!("before: insn:{kexec} at ")), "{said}");
    for (hit, number) in [(first, "first"), (second, "second")] {
        let line = said.lines().find(|line| line.contains(&told(hit, number)));
        let line = line.unwrap_or_else(|| panic!("{}: {said}", told(hit, number)));
        assert!(line.contains(&hit["instruction"].to_string()) || number == "second", "{line}");
    }
    assert!(said.contains(&format!("instruction {kexec} of")), "back in the first kernel: {said}");
    assert!(said.contains(&format!("instruction {} of", second["instruction"])), "{said}");
    assert!(said.contains("kexec, pid "), "the first kernel's threads: {said}");
    assert!(said.contains("system call 169 (reboot) in the first kernel"), "{said}");
}

/// In this test, both kernels are the same file. Without KASLR, they also have the same addresses.
#[test]
fn a_panic_before_a_crash_kernel_is_found_by_name() {
    for parameters in ["", "nokaslr"] {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let directory = directory.path();
        let how = ["crash", "echo c >/proc/sysrq-trigger"];
        let [first, second] = record(directory, [&CLOUD, &BUSYBOX], how, parameters);
        assert_eq!(first["panic"] == second["panic"], parameters == "nokaslr");

        let inits = search(directory, &["break:kernel_init", "--all"]);
        let numbers: Vec<_> = inits.iter().map(|hit| hit["kernel"]["number"].as_u64()).collect();
        assert_eq!(numbers, [Some(1), Some(2)], "{inits:?}");
        let (code, text, _) = run(directory, &["search", "r.ttvm", "break:panic"]);
        assert!(code == Some(exit_code::DONE) && text.contains("(sh)  in the first kernel, 6"), "{text}");
        if parameters == "nokaslr" {
            continue;
        }
        let hits = search(directory, &["break:panic", "--all", "--backtrace"]);
        let [hit] = &hits[..] else { panic!("{hits:?}") };
        assert_eq!(hit["what"], at("panic", first["panic"]));
        assert_eq!((&hit["kernel"]["number"], &hit["name"]), (&json!(1), &json!("sh")), "{hit}");
        let calls = hit["backtrace"]["frames"].to_string();
        assert!(calls.contains("sysrq_handle_crash"), "{calls}");
        let write = &search(directory, &["write:panic_cpu"])[0];
        assert_eq!(write["kernel"]["number"], 1, "{write}");
        let reports = json(directory, &["reports", "r.ttvm", "--json"]);
        let report = reports[0]["instruction"].as_u64().unwrap();
        assert!(hit["instruction"].as_u64().unwrap() < report, "{hit} {reports}");
        let off = &search(directory, &["break:kernel_power_off"])[0];
        assert_eq!(off["kernel"]["number"], 2, "{off}");
    }
}
