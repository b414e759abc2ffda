//! Tests limits of the host on memory, file sizes and descriptors, and protection from escape sequences in strangers'
//! recordings.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::ttvm;
use crate::server::Server;
use machine::error::exit_code;
use nix::unistd::geteuid;
use tiny_guest::{record_with_checkpoints, typed_bytes, write_kernel};

const TTVM: &str = env!("CARGO_BIN_EXE_ttvm");

/// The exit code of a run that the guest ends by a write to its debug-exit port.
const ENDED: i32 = 1;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a shell command line in which `$0` is `ttvm`.
fn shell(directory: &Path, line: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", line, TTVM]).current_dir(directory).stdin(Stdio::null());
    command.output().unwrap()
}

/// Records a guest that echoes control sequences of terminals.
fn recorded(directory: &Path, name: &str) {
    record_with_checkpoints(directory, name, 30_000, typed_bytes(5_000, "a\x1b[2J\u{9b}b\x07\n"), &[60_000]);
}

/// Whether a text has characters that a terminal may take for commands.
fn steers(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
}

#[test]
fn nothing_of_a_recording_steers_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let name = "\x1b]0;title\x07\u{9b}1m.ttvm";
    recorded(path, name);
    let kernel = "\x1b[31mkernel";
    fs::rename(write_kernel(path, 3_000), path.join(kernel)).unwrap();
    let cmdline = "quiet\x1b[2J\rfake=1\nended         well";
    let made = "other.ttvm";
    let memory = ["--memory", "4M", "--debug-exit", "--unpaced", "--no-copy-images"];
    let record = [&["record", "-o", made, "--kernel", kernel, "--cmdline", cmdline], &memory[..]].concat();
    let (code, _, told) = ttvm(path, &record);
    assert!(code == ENDED && told.contains("\\u001b[31mkernel") && !told.contains('\x1b'), "{code}: {told}");
    fs::create_dir(path.join("\x1b[5mempty.ttvm")).unwrap();
    let mut shown = String::new();
    for line in [
        &["info", name][..],
        &["info", made],
        &["ls"],
        &["state", name, "--console", "10"],
        &["search", name, "console:b"],
        &["verify", name],
        &["log", name, "--checks"],
        &["log", name, "--diff", made],
        &["trace", name, "-o", "\x1b[1mtrace"],
        &["dump", name, "-o", "\x1b[1mcore"],
        &["reports", name],
        &["checkpoints", name, "list"],
        &["replay", "--quiet", name],
        &["info", "\x1b[5mempty.ttvm"],
        &["state", name, "--at", "\x1b[5m"],
        &["pack", name, "-o", "\x1b[1mpacked"],
        &["unpack", "\x1b[1mpacked", "-o", "\x1b[1mu.ttvm"],
        &["unpack", "\x1b[1mcore", "-o", "x.ttvm"],
        &["rm", "\x1b[5mempty.ttvm"],
    ] {
        for json in [&[][..], &["--json"]] {
            let (_, out, told) = ttvm(path, &[line, json].concat());
            assert!(!steers(&out) && !steers(&told), "{line:?} {json:?}: {out:?} {told:?}");
            let has_answer = !json.is_empty() && out.starts_with(['{', '[']) && line[0] != "log";
            if has_answer {
                serde_json::from_str::<serde_json::Value>(&out).unwrap();
            }
            shown += &(out + &told);
        }
    }
    assert!(shown.matches("\\u001b").count() > 10, "{shown}");
    // A line feed in the kernel's command line does not begin another line of the output of `info`.
    assert!(!ttvm(path, &["info", made]).1.contains("\nended         well"));
    // Files and pipes get the console's bytes unchanged.
    let output = Command::new(TTVM).args(["replay", name]).current_dir(path).output().unwrap();
    assert!(output.stdout.windows(5).any(|bytes| bytes == b"a\x1b[2J"), "{:?}", text(&output.stdout));
}

#[test]
fn inherited_descriptors_are_closed_and_named_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    recorded(path, "r.ttvm");
    fs::create_dir(path.join("tmp")).unwrap();
    let mut command = Command::new("bash");
    let line = "exec 9>kept 200</dev/null; exec \"$0\" debug r.ttvm --listen 127.0.0.1:0";
    command.args(["-c", line, TTVM]).current_dir(path).stdin(Stdio::null()).stderr(Stdio::piped());
    command.env("TMPDIR", path.join("tmp"));
    let mut process = command.spawn().unwrap();
    let messages = std::io::BufReader::new(process.stderr.take().unwrap());
    let mut server = Server { process, messages };
    server.says("ready");
    let open = fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    assert!(open.iter().all(|file| !file.ends_with("kept")), "{open:?}");
    assert!(!Path::new(&format!("/proc/{}/fd/200", server.process.id())).exists());
    drop(server);
    fs::rename(write_kernel(path, 1_000), path.join("kernel")).unwrap();
    for name in ["/dev/fd/9", "/proc/self/fd/9"] {
        let line = format!("exec \"$0\" run --memory 4M --debug-exit --unpaced --kernel {name} 9<kernel");
        let output = shell(path, &line);
        assert_eq!(output.status.code(), Some(ENDED), "{}", text(&output.stderr));
    }
}

#[test]
fn a_file_that_may_not_grow_is_an_error_that_names_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    recorded(path, "r.ttvm");
    fs::rename(write_kernel(path, 3_000_000), path.join("kernel")).unwrap();
    assert_eq!(ttvm(path, &["pack", "r.ttvm", "-o", "packed"]).0, 0);
    for (line, made) in [
        ("dump r.ttvm -o core", "core"),
        ("unpack packed -o u.ttvm", "u.ttvm"),
        ("pack r.ttvm -o again", "again"),
        ("record -o n.ttvm --kernel kernel --memory 4M --unpaced --debug-exit", "n.ttvm"),
        ("log r.ttvm --checks --json >listed", ""),
        ("state r.ttvm --physical 0x200000:0x8000 >shown", ""),
    ] {
        for limit in [0, 1] {
            let output = shell(path, &format!("ulimit -f {limit}; exec \"$0\" {line}"));
            let told = text(&output.stderr);
            assert_eq!(output.status.signal(), None, "{line}: {told}");
            let code = output.status.code().unwrap();
            let is_small =
                (code == 0 || told.contains("recorded in")) && (limit == 1 || line.starts_with("log"));
            assert!(is_small || (code == 1 && told.contains("ulimit -f")), "{line}: {code}: {told}");
            if code != 0 && !made.is_empty() && (limit == 0 || !made.starts_with("n.")) {
                assert!(!path.join(made).exists(), "{line} has left {made}: {told}");
            }
            if !made.is_empty() {
                let _ = fs::remove_file(path.join(made)).or_else(|_| fs::remove_dir_all(path.join(made)));
            }
        }
    }
}

#[test]
fn refused_memory_is_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::rename(write_kernel(path, 30_000), path.join("kernel")).unwrap();
    let record = "exec \"$0\" record -o r.ttvm --kernel kernel --memory 256M --unpaced --debug-exit";
    assert_eq!(shell(path, record).status.code(), Some(ENDED));
    let (mut refused, mut slow, mut done) = (0, 0, 0);
    for mib in [64, 120, 200, 250, 265, 270, 275, 280, 285, 290, 300, 320, 400, 600, 1000, 2000] {
        for line in [
            "state r.ttvm",
            "info r.ttvm",
            "verify r.ttvm",
            "search r.ttvm --all write:0x200000+0x100000 --limit 3",
        ] {
            let output = shell(path, &format!("exec prlimit --as={} \"$0\" {line}", mib << 20));
            let (told, out) = (text(&output.stderr), text(&output.stdout));
            assert_eq!(output.status.signal(), None, "{mib} MiB, {line}: {told}{out}");
            match output.status.code().unwrap() {
                0 => done += 1,
                1 => {
                    assert!(
                        told.contains("ttvm: ") && told.contains("ulimit -v") && !told.contains("panicked"),
                        "{mib} MiB, {line}: {told}"
                    );
                    refused += 1;
                }
                code => panic!("{mib} MiB, {line}: {code}: {told}"),
            }
            slow += u32::from(told.contains("the interpreter executes the guest"));
        }
    }
    println!("{done} done, {slow} of them by the interpreter; {refused} refused");
    assert!(refused > 0 && done > 20 && slow > 0, "{done} {slow} {refused}");
}

#[test]
fn a_recording_that_cannot_begin_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::rename(write_kernel(path, 1_000), path.join("kernel")).unwrap();
    fs::write(path.join("no-kernel"), [0; 5000]).unwrap();
    for line in [
        "exec \"$0\" record -o r.ttvm --memory 4M --kernel no-kernel",
        "exec \"$0\" record -o r.ttvm --memory 4M --kernel kernel --disk nowhere",
        "exec prlimit --as=629145600 \"$0\" record -o r.ttvm --memory 64G --kernel kernel",
        "ulimit -f 0; exec \"$0\" record -o r.ttvm --memory 4M --kernel kernel",
        "ulimit -f 0; exec \"$0\" record -o r.ttvm --memory 4M --kernel kernel --no-copy-images",
        "ulimit -f 0; exec \"$0\" record -o r.ttvm --memory 4M --kernel kernel --keep-on fail",
    ] {
        let output = shell(path, line);
        let told = text(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0), "{line}: {told}");
        assert!(told.contains("ttvm: "), "{line}: {told}");
        assert!(!path.join("r.ttvm").exists(), "{line}: {told}");
    }
}

#[test]
fn a_full_disk_at_the_beginning_leaves_nothing() {
    if !geteuid().is_root() {
        return skip::test("only root can make a small file system");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::rename(write_kernel(path, 1_000), path.join("kernel")).unwrap();
    fs::create_dir(path.join("small")).unwrap();
    let line = "mount -t tmpfs -o size=4k none small || exit 77\n\
                head -c 4096 /dev/zero >small/all\n\
                \"$0\" record -o small/r.ttvm --memory 4M --kernel kernel --unpaced --debug-exit; code=$?\n\
                ls small; exit $code";
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-c", line, TTVM]).current_dir(path).stdin(Stdio::null());
    let output = command.output().unwrap();
    if output.status.code() == Some(77) {
        return skip::test("no file system can be mounted here");
    }
    let (told, left) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("No space left"), "{told}");
    assert_eq!(left.trim(), "all", "{told}");
}

#[test]
fn an_empty_log_is_called_empty() {
    let directory = tempfile::tempdir().unwrap();
    recorded(directory.path(), "r.ttvm");
    let log = directory.path().join("r.ttvm/events.log");
    let bytes = fs::read(&log).unwrap();
    // The log is empty, has only zeroes, or ends before its first event.
    let first = 20 + u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    for contents in [&[][..], &[0; 4096], &bytes[..first]] {
        fs::write(&log, contents).unwrap();
        for verb in ["info", "state", "verify", "replay", "log"] {
            let (code, _, told) = ttvm(directory.path(), &[verb, "r.ttvm"]);
            assert_eq!(code, exit_code::UNREADABLE_RECORDING, "{verb}: {told}");
            assert!(told.contains("events.log: the recording's log is empty: "), "{verb}: {told}");
        }
    }
}
