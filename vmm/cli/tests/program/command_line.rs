//! Tests the command line: the message and the exit code for each bad input, and the signals and failures that a
//! recording survives. The guest is a few bytes of Multiboot code that echo typed keys, so these tests need no images.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// 32-bit code: enables the serial port's receive interrupts (which the interrupt controller masks), prints "r", then
/// echoes every byte.
const ECHO: [u8; 29] = [
    0x66, 0xba, 0xf9, 0x03, // mov dx, 0x3f9
    0xb0, 0x01, // mov al, 1
    0xee, // out dx, al
    0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xb0, b'r', // mov al, 'r'
    0xee, // out dx, al
    0x66, 0xba, 0xfd, 0x03, // again: mov dx, 0x3fd
    0xec, // in al, dx
    0xa8, 0x01, // test al, 1
    0x74, 0xf7, // jz again
    0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xec, // in al, dx
    0xee, // out dx, al
];

/// A Multiboot 1 image with load addresses in its header.
fn echo_kernel() -> Vec<u8> {
    const AT: u32 = 0x10_0000;
    const FLAGS: u32 = 1 << 16;
    let mut code = ECHO.to_vec();
    let back = ECHO.len() as i32 + 2 - 14;
    code.extend([0xeb, (-back) as u8]);
    let header = [0x1bad_b002, FLAGS, 0_u32.wrapping_sub(0x1bad_b002 + FLAGS), AT, AT, 0, 0, AT + 32];
    let mut image: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    image.extend(code);
    image
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        let scratch = Scratch(tempfile::tempdir().expect("a temporary folder"));
        scratch.file("kernel", &echo_kernel());
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, contents: &[u8]) {
        std::fs::write(self.path(name), contents).expect("the folder is ours");
    }

    /// A command that runs `ttvm` in this folder, with empty standard input.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn ttvm(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("ttvm can be run")
    }

    /// Begins a recording, and waits until the guest has echoed "ab".
    fn begin_recording(&self, name: &str) -> Child {
        let mut command = self.command(&["record", "-o", name, "--kernel", "kernel", "--memory", "4M"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ttvm");
        let mut input = child.stdin.take().expect("it was asked for");
        let output = child.stdout.as_mut().expect("it was asked for");
        expect_byte(output, b'r');
        for byte in *b"ab" {
            input.write_all(&[byte]).expect("ttvm reads");
            expect_byte(output, byte);
        }
        child.stdin = Some(input);
        child
    }
}

fn expect_byte(output: &mut impl Read, expected: u8) {
    let mut byte = [0];
    output.read_exact(&mut byte).expect("the guest prints");
    assert_eq!(byte[0] as char, expected as char);
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).expect("the child runs");
}

fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that the output is one sentence that contains `names`, and that the exit code is `code`.
fn assert_refused(output: &Output, code: i32, names: &[&str], what: &str) {
    let text = messages(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {text}");
    for name in names {
        assert!(text.contains(name), "{what}: no '{name}' in: {text}");
    }
    assert!(!text.contains("panicked") && !text.contains("RUST_BACKTRACE"), "{what}: {text}");
    if code != 2 {
        assert_eq!(text.trim().lines().count(), 1, "{what}: {text}");
    }
}

#[test]
fn every_bad_input_is_one_sentence_with_the_right_exit_code() {
    let scratch = Scratch::new();
    scratch.file("text", b"this is not a kernel\n");
    scratch.file("empty", b"");
    scratch.file("small-disk", &[0; 100]);
    scratch.file("disk.qcow2", &[b"QFI\xfb\0\0\0\x03".as_slice(), &[0; 65528]].concat());
    scratch.file("disk.vmdk", &[b"KDMV\x01\0\0\0".as_slice(), &[0; 65528]].concat());
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(50, 0);
    scratch.file("short-elf", &elf);
    std::fs::create_dir(scratch.path("old.ttvm")).unwrap();
    std::fs::create_dir(scratch.path("folder")).unwrap();
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["run", "--kernel", "text"], 1, &["text", "not a bootable kernel", "give"]),
        (&["run", "--kernel", "empty"], 1, &["empty"]),
        (&["run", "--kernel", "short-elf"], 1, &["short-elf"]),
        (&["run", "--kernel", "missing"], 1, &["missing", "No such file"]),
        (&["run", "--kernel", "folder"], 1, &["folder", "directory"]),
        (&["run", "--kernel", "kernel", "--initrd", "missing"], 1, &["missing"]),
        (&["run", "--kernel", "kernel", "--module", "missing text"], 1, &["missing"]),
        (&["run", "--kernel", "kernel", "--disk", "missing"], 1, &["missing"]),
        (&["run", "--kernel", "kernel", "--disk", "small-disk"], 1, &["small-disk", "sector"]),
        (
            &["run", "--kernel", "kernel", "--disk", "disk.qcow2"],
            1,
            &["qcow2 image", "`qemu-img convert -O raw disk.qcow2 disk.qcow2.raw`", "--disk raw:disk.qcow2"],
        ),
        (
            &["record", "-o", "r.ttvm", "--kernel", "kernel", "--disk", "disk.vmdk"],
            1,
            &["VMDK image", "qemu-img"],
        ),
        (&["run", "--kernel", "kernel", "--disk", "raw:missing"], 1, &["missing"]),
        (&["run", "--kernel", "kernel", "--disk", "raw:"], 2, &["--disk", "give a file"]),
        (&["run", "--kernel", "kernel", "--console-log", "none/log"], 1, &["none/log"]),
        (&["run", "--kernel", "kernel", "--memory", "1M"], 2, &["--memory"]),
        (&["run", "--kernel", "kernel", "--memory", "lots"], 2, &["--memory"]),
        (&["run", "--kernel", "kernel", "--engine", "kvm"], 5, &["KVM"]),
        (&["run"], 2, &["--kernel"]),
        (&["frobnicate"], 2, &["frobnicate"]),
        (&["record", "--kernel", "kernel"], 2, &["--output"]),
        (
            &["record", "-o", "old.ttvm", "--kernel", "kernel"],
            1,
            &["old.ttvm", "exists", "choose another name"],
        ),
        (&["record", "-o", "none/r.ttvm", "--kernel", "kernel"], 1, &["none/r.ttvm"]),
        (&["replay", "missing.ttvm"], 4, &["missing.ttvm", "no recording"]),
        (&["replay", "old.ttvm"], 4, &["old.ttvm"]),
        (&["replay", "text"], 4, &["text"]),
        (&["info", "missing.ttvm"], 4, &["missing.ttvm"]),
        (&["debug", "missing.ttvm"], 4, &["missing.ttvm"]),
        (&["replay", "old.ttvm", "--to", "yesterday"], 2, &["yesterday"]),
    ];
    for (arguments, code, names) in cases {
        assert_refused(&scratch.ttvm(arguments), *code, names, &arguments.join(" "));
    }
}

#[test]
fn help_goes_to_standard_output() {
    let scratch = Scratch::new();
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["record", "--help"],
        &["replay", "--help"],
        &["debug", "--help"],
    ] {
        let output = scratch.ttvm(arguments);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage: ttvm"));
    }
}

#[test]
fn sigterm_ends_a_recording_cleanly() {
    let scratch = Scratch::new();
    let child = scratch.begin_recording("r.ttvm");
    signal(&child, nix::sys::signal::Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let replayed = scratch.ttvm(&["replay", "r.ttvm"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", messages(&replayed));
    assert!(messages(&replayed).contains("equal"), "{}", messages(&replayed));
    assert_eq!(replayed.stdout, b"rab");
    let info: serde_json::Value =
        serde_json::from_slice(&scratch.ttvm(&["info", "--json", "r.ttvm"]).stdout).unwrap();
    assert_eq!(info["complete"], true);
}

#[test]
fn what_a_run_and_a_recording_and_a_replay_did_is_written_for_scripts() {
    let scratch = Scratch::new();
    let stats = |arguments: &[&str]| -> serde_json::Value {
        let output = scratch.ttvm(&[arguments, &["--stats-json", "stats"]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", messages(&output));
        serde_json::from_slice(&std::fs::read(scratch.path("stats")).unwrap()).unwrap()
    };
    let machine = ["--kernel", "kernel", "--memory", "4M", "--max-instructions", "10000"];
    for verb in [
        &["run"][..],
        &["record", "-o", "r.ttvm"],
        &["replay", "r.ttvm"],
        &["replay", "r.ttvm", "--from", "insn:5000"],
    ] {
        let options = if verb[0] == "replay" { &[][..] } else { &machine };
        let stats = stats(&[verb, options].concat());
        assert_eq!(stats["insns"], 10_000, "{verb:?}");
        assert!(stats["cpu_ns"].as_u64() > Some(0), "{verb:?}");
        // The software CPU has no statistics of its own, so `engine` is missing. This guest prints no lines `MARK`.
        assert!(
            stats.get("engine").is_none() && stats["marks"] == serde_json::json!([]),
            "{verb:?}: {stats}"
        );
    }
}

#[test]
fn what_ended_a_run_is_named() {
    use nix::sys::signal::Signal;
    let scratch = Scratch::new();
    let machine = ["--kernel", "kernel", "--memory", "4M", "--max-instructions", "10000"];
    let limit = "ended at the limit that was set";
    let ran = scratch.ttvm(&[&["run"][..], &machine].concat());
    assert!(messages(&ran).contains(limit), "{}", messages(&ran));
    let ended = |name: &str| -> serde_json::Value {
        let info: serde_json::Value =
            serde_json::from_slice(&scratch.ttvm(&["info", "--json", name]).stdout).unwrap();
        info["ended"].clone()
    };
    let recorded = scratch.ttvm(&[&["record", "-o", "limit.ttvm"][..], &machine].concat());
    assert!(messages(&recorded).contains(limit), "{}", messages(&recorded));
    assert_eq!(ended("limit.ttvm"), limit);
    for (name, sent) in [("int.ttvm", Signal::SIGINT), ("term.ttvm", Signal::SIGTERM)] {
        let child = scratch.begin_recording(name);
        signal(&child, sent);
        let output = child.wait_with_output().unwrap();
        assert!(messages(&output).contains("interrupted by a signal"), "{}", messages(&output));
        assert_eq!(ended(name), "interrupted by a signal");
        let replayed = scratch.ttvm(&["replay", "--verify", name]);
        assert_eq!(replayed.status.code(), Some(0), "{}", messages(&replayed));
    }
}

/// A signal can arrive before a recording begins, for example while its images are copied.
#[test]
fn a_recording_that_a_signal_keeps_from_beginning_leaves_nothing() {
    use nix::sys::signal::Signal;
    use std::os::unix::process::ExitStatusExt;
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        std::fs::File::create(scratch.path(name)).unwrap().set_len(200 << 20).unwrap();
    }
    for sent in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
        command.args(["record", "-o", "r.ttvm", "--kernel", "kernel", "--module", "a", "--module", "b"]);
        let child = command.current_dir(scratch.0.path()).stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap();
        while !scratch.0.path().join("r.ttvm").exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        signal(&child, sent);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(sent as i32), "{}", messages(&output));
        assert!(!scratch.0.path().join("r.ttvm").exists(), "{sent}");
    }
}

#[test]
fn a_killed_recording_replays_to_its_last_event() {
    let scratch = Scratch::new();
    let child = scratch.begin_recording("r.ttvm");
    signal(&child, nix::sys::signal::Signal::SIGKILL);
    child.wait_with_output().unwrap();
    let replayed = scratch.ttvm(&["replay", "r.ttvm"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", messages(&replayed));
    assert!(replayed.stdout.starts_with(b"ra"), "{:?}", replayed.stdout);
}

/// Runs `ttvm` under a limit on the size of files, which has a similar effect as a full disk.
fn with_file_limit(scratch: &Path, kib: u32, arguments: &str) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec {} {arguments}", env!("CARGO_BIN_EXE_ttvm"));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(scratch).stdin(Stdio::null());
    command.output().expect("bash can be run")
}

#[test]
fn a_full_disk_is_said() {
    let scratch = Scratch::new();
    let arguments = "record -o r.ttvm --kernel kernel --memory 4M --max-instructions 10000";
    let expected = ["r.ttvm", "too large", "--no-copy-images"];
    assert_refused(&with_file_limit(scratch.0.path(), 0, arguments), 1, &expected, "no space");
    assert!(!scratch.0.path().join("r.ttvm").exists());
}

#[test]
fn too_small_a_size_for_checkpoints_is_said_at_the_start() {
    let scratch = Scratch::new();
    let machine = ["--kernel", "kernel", "--memory", "4M", "--max-instructions", "10000"];
    for (name, size, expected) in [
        ("a", "100", "too small: a checkpoint takes more than "),
        ("b", "1M", "less than the guest's memory of 4194304"),
        ("c", "4M", ""),
    ] {
        let arguments = [&["record", "-o", name, "--max-size", size], &machine[..]].concat();
        let output = scratch.ttvm(&arguments);
        let told = messages(&output);
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert_eq!(told.contains("--max-size"), !expected.is_empty(), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}
