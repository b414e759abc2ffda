//! Tests reports of a guest's kernel on its console, and runs that end at a text or a time limit. Each guest has a few
//! instructions that print a text, and some more code.

use std::path::Path;

use serde_json::Value;

use crate::common::ttvm;

/// A jump to itself, which loops for ever.
const SPIN: [u8; 2] = [0xeb, 0xfe];
/// Pulses the reset line through the keyboard controller.
const RESET: [u8; 4] = [0xb0, 0xfe, 0xe6, 0x64];

/// The output of a kernel that has an oops, warns and panics.
const CRASH: &str = "boot\r\n[    0.1] BUG: kernel NULL pointer dereference, address: 0\r\n\
    [    0.1] Oops: 0000 [#1] SMP\r\n[    0.1] ---[ end trace 0 ]---\r\n\
    [    0.2][    T1] WARNING: CPU: 0 PID: 1 at x.c:1\r\n[    0.3] Kernel panic - not syncing: Fatal exception\r\n";

/// Writes a Multiboot 1 kernel that prints `text` and then executes the code `then`.
pub fn write_kernel(directory: &Path, text: &str, then: &[u8]) {
    const AT: u32 = 0x10_0000;
    const FLAGS: u32 = 1 << 16;
    // mov esi, text; mov dx, 0x3f8; lodsb; test al, al; jz +3; out dx, al; jmp -8
    let mut code =
        vec![0xbe, 0, 0, 0, 0, 0x66, 0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8];
    code.extend(then);
    code.extend(SPIN);
    let text_at = AT + 32 + code.len() as u32;
    code[1..5].copy_from_slice(&text_at.to_le_bytes());
    code.extend(text.as_bytes());
    code.push(0);
    let header = [0x1bad_b002, FLAGS, 0_u32.wrapping_sub(0x1bad_b002 + FLAGS), AT, AT, 0, 0, AT + 32];
    let mut image: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    image.extend(code);
    std::fs::write(directory.join("kernel"), image).unwrap();
}

fn record(directory: &Path, more: &[&str]) -> (i32, String) {
    let arguments = ["record", "-o", "r.ttvm", "--kernel", "kernel", "--memory", "4M"];
    let (code, _, told) = ttvm(directory, &[&arguments[..], more].concat());
    (code, told)
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let (code, out, told) = ttvm(directory, arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{told}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn reports_on_the_console_are_listed_and_are_places() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_kernel(directory, CRASH, &RESET);
    let (code, told) = record(directory, &[]);
    let ended = "the guest's kernel panicked, and the guest reset itself";
    assert!(code == 1 && told.contains(ended), "{code}: {told}");
    let info = json(directory, &["info", "r.ttvm", "--json"]);
    assert_eq!(info["ended"], ended);
    assert_eq!(info["panic"], "Kernel panic - not syncing: Fatal exception");
    assert_eq!(json(directory, &["ls", "--json"])[0]["ended"], ended);
    // Without the recorder's note about the panic, ttvm finds the panic by a replay and prints the same.
    std::fs::remove_file(directory.join("r.ttvm/panicked")).unwrap();
    assert_eq!(json(directory, &["info", "r.ttvm", "--json"])["ended"], ended);
    assert_eq!(json(directory, &["ls", "--json"])[0]["ended"], ended);
    let reports = json(directory, &["reports", "r.ttvm", "--json"]);
    let reports = reports.as_array().unwrap();
    let told: Vec<_> = reports.iter().map(|report| report["kind"].as_str().unwrap()).collect();
    assert_eq!(told, ["oops", "warning", "panic"]);
    assert_eq!(reports[1]["line"], "WARNING: CPU: 0 PID: 1 at x.c:1");
    let state = |at: &str| json(directory, &["state", "r.ttvm", "--at", at, "--json"]);
    for (number, report) in (1..).zip(reports) {
        let here = state(&format!("report:{number}"));
        assert_eq!(here["instruction"], report["instruction"]);
        let last = here["console"].as_array().unwrap().last().unwrap().as_str().unwrap();
        assert!(last.ends_with(report["line"].as_str().unwrap()), "{last}");
    }
    assert_eq!(state("oops")["instruction"], reports[0]["instruction"]);
    assert!(state("panic")["instruction"].as_u64() < reports[2]["instruction"].as_u64());
    for (at, why) in [
        ("report:4", "no report 4 of the guest's kernel: it has 3"),
        ("fault", "no exception in the kernel led to the panic"),
        ("report:0", "is not a position"),
    ] {
        let (code, _, told) = ttvm(directory, &["state", "r.ttvm", "--at", at]);
        assert!(code == 2 && told.contains(why), "{at}: {code}: {told}");
    }
}

#[test]
fn a_guest_without_reports_has_none() {
    let directory = tempfile::tempdir().unwrap();
    write_kernel(directory.path(), "it says BUG: and Kernel panic - not syncing\r\n", &RESET);
    let (code, told) = record(directory.path(), &[]);
    assert!(code == 0 && !told.contains("panicked"), "{code}: {told}");
    let (code, out, _) = ttvm(directory.path(), &["reports", "r.ttvm"]);
    assert_eq!((code, out.trim()), (0, "the guest's kernel reports nothing"));
    for (at, why) in [("oops", "has no oops"), ("panic", "did not panic"), ("fault", "no oops or panic")] {
        let (code, _, told) = ttvm(directory.path(), &["state", "r.ttvm", "--at", at]);
        assert!(code == 2 && told.contains(why), "{at}: {code}: {told}");
    }
}

#[test]
fn a_text_on_the_console_ends_a_run_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_kernel(directory, "booting\r\nlogin: and more that is never shown\r\n", &SPIN);
    let (code, told) = record(directory, &["--stop-when", "login:"]);
    let ended = "ended when the console showed the text that was set";
    assert!(code == 0 && told.contains(ended), "{code}: {told}");
    assert_eq!(json(directory, &["info", "r.ttvm", "--json"])["ended"], ended);
    let (code, out, _) = ttvm(directory, &["state", "r.ttvm"]);
    assert!(code == 0 && out.ends_with("\n  login:\n"), "{out}");
    let (code, out, told) = ttvm(directory, &["verify", "r.ttvm"]);
    assert_eq!(code, 0, "{out}{told}");
    let (code, out, _) = ttvm(directory, &["log", "r.ttvm"]);
    assert!(code == 0 && out.contains("text-shown"), "{out}");
    let run = ["run", "--kernel", "kernel", "--memory", "4M", "--stop-when", "login:"];
    let (code, out, told) = ttvm(directory, &run);
    assert!(code == 0 && out == "booting\r\nlogin:" && told.contains(ended), "{code}: {out:?} {told}");
    let (code, _, told) = ttvm(directory, &["run", "--kernel", "kernel", "--stop-when", ""]);
    assert!(code == 2 && told.contains("--stop-when"), "{told}");
}

/// Code that halts for ever. A timer ticks, but both interrupt controllers are masked.
const SLEEP: [u8; 22] = [
    0xb0, 0x34, 0xe6, 0x43, 0xb0, 0x00, 0xe6, 0x40, 0xb0, 0x00, 0xe6, 0x40, // the timer
    0xb0, 0xff, 0xe6, 0x21, 0xe6, 0xa1, // the controllers
    0xfb, 0xf4, 0xeb, 0xfd, // sti; hlt; jmp -3
];

#[test]
fn a_guest_that_hangs_ends_when_its_time_is_up() {
    for (then, time, ns) in [(&SPIN[..], "5ms", 5_000_000_u64), (&SLEEP[..], "60s", 60_000_000_000)] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        write_kernel(directory, "", then);
        let (code, told) = record(directory, &["--max-time", time]);
        assert!(code == 0 && told.contains("ended at the limit that was set"), "{code}: {told}");
        let info = json(directory, &["info", "r.ttvm", "--json"]);
        assert_eq!(info["guest_seconds"].as_f64().map(|seconds| (seconds * 1e9).round() as u64), Some(ns));
        let (code, out, told) = ttvm(directory, &["verify", "r.ttvm"]);
        assert_eq!(code, 0, "{out}{told}");
    }
    let directory = tempfile::tempdir().unwrap();
    for wrong in ["0", "60", "-1s"] {
        let (code, _, told) =
            ttvm(directory.path(), &["run", "--kernel", "kernel", &format!("--max-time={wrong}")]);
        assert!(code == 2 && told.contains("--max-time"), "{wrong}: {told}");
    }
}
