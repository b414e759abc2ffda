//! Tests of `ttvm here`: a command on a kernel and on this host's files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use machine::error::exit_code;
use tests::guests::CLOUD;
use tests::program::{run, ttvm};

/// The result of a run of `ttvm here`.
struct Done {
    code: i32,
    out: String,
    said: String,
}

/// Runs `ttvm here` with these options and this command, and types `input`.
fn here(directory: &Path, options: &[&str], command: &[&str], input: Option<&str>) -> Done {
    let mut program = Command::new(ttvm());
    program
        .current_dir(directory)
        .arg("here")
        .arg("--kernel")
        .arg(CLOUD.path())
        .args(options)
        .arg("--")
        .args(command);
    program.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ttvm can be run");
    if let Some(input) = input {
        child.stdin.take().expect("it is a pipe").write_all(input.as_bytes()).expect("ttvm reads it");
    }
    let output = child.wait_with_output().expect("ttvm can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Done {
        code: output.status.code().expect("no signal ended it"),
        out: text(&output.stdout),
        said: text(&output.stderr),
    }
}

fn recordings(directory: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".ttvm")).collect();
    names.sort();
    names
}

#[test]
fn a_command_runs_on_the_hosts_files_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    std::fs::write(directory.join("file"), "on the host\n").unwrap();
    let script = "cat file; pwd; echo changed > file; cat file; mkdir -p /out/a; cp file /out/a/file; ln -s / /out/all";
    let done = here(directory, &["--out", "brought"], &["sh", "-c", script], None);
    let folder = directory.canonicalize().unwrap();
    assert_eq!(done.out, format!("on the host\n{}\nchanged\n", folder.display()), "{}", done.said);
    assert_eq!((done.code, recordings(directory)), (exit_code::DONE, Vec::new()), "{}", done.said);
    assert_eq!(std::fs::read_to_string(directory.join("file")).unwrap(), "on the host\n");
    assert_eq!(std::fs::read_to_string(directory.join("brought/a/file")).unwrap(), "changed\n");
    assert!(!directory.join("brought/all").exists() && done.said.contains("1 entries"), "{}", done.said);

    let done = here(directory, &["--keep", "never"], &["md5sum"], Some("typed text"));
    assert_eq!((done.code, recordings(directory)), (exit_code::DONE, Vec::new()), "{}", done.said);
    let host = Command::new("sh").args(["-c", "printf 'typed text' | md5sum"]).output().unwrap();
    assert_eq!(done.out.as_bytes(), host.stdout, "{}", done.said);
}

#[test]
fn what_fails_is_kept_and_says_what_comes_next() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    std::fs::create_dir(directory.join("keys")).unwrap();
    std::fs::write(directory.join("keys/secret"), "nobody reads this").unwrap();
    let script = "ls; cat keys/secret; kill -9 $$";
    let done = here(directory, &["--hide", "keys", "-o", "failed.ttvm"], &["sh", "-c", script], None);
    assert_eq!(done.code, 128 + 9, "{}", done.said);
    assert!(
        done.said.contains("failed with the status 137")
            && done.said.contains("ttvm debug failed.ttvm --gdb")
    );
    assert!(!done.out.contains("failed.ttvm") && !done.out.contains("nobody"), "{}", done.out);
    let done = here(directory, &[], &["no-such-program"], None);
    assert_eq!(done.code, 127, "{}", done.said);
    let done = here(directory, &["--timeout", "2s"], &["sleep", "1000"], None);
    assert_eq!(done.code, 124, "{}", done.said);
    assert_eq!(recordings(directory), ["failed.ttvm", "here-2.ttvm", "here.ttvm"]);
    for recording in recordings(directory) {
        let (code, out, said) = run(directory, &["verify", &recording]);
        assert_eq!(code, Some(exit_code::DONE), "{recording}: {out}{said}");
    }
}

#[test]
fn a_panic_is_found_and_the_recording_opens_at_it() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    // A serial port prints slowly, and a panic does not wait for it.
    let crash = "echo before; sleep 0.1; echo c > /proc/sysrq-trigger; echo never";
    let done = here(directory, &[], &["sh", "-c", crash], None);
    assert_eq!(done.code, exit_code::FAILED, "{}", done.said);
    assert!(done.out.starts_with("before\n") && !done.out.contains("never"), "{}", done.out);
    let panicked = "ttvm: the guest's kernel panicked: Kernel panic - not syncing: sysrq triggered crash";
    assert!(done.said.contains(panicked) && done.said.contains("--at panic"), "{}", done.said);
    let (code, out, said) = run(directory, &["state", "here.ttvm", "--at", "panic"]);
    assert_eq!(code, Some(exit_code::DONE), "{said}");
    assert!(out.contains("(sh)"), "the shell panicked: {out}");
}

/// A `ttvm here` that cannot begin leaves nothing behind.
#[test]
fn a_run_that_cannot_begin_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let kernel = CLOUD.path();
    let kernel = kernel.to_str().expect("a text");
    std::fs::write(directory.join("text"), "no kernel").unwrap();
    for (arguments, code, why) in [
        (&["here", "--", "true"][..], exit_code::USAGE, "there is no kernel here"),
        (&["here", "--kernel", "9.9.9-none"], exit_code::USAGE, "/boot/vmlinuz-9.9.9-none"),
        (&["here", "--kernel", "text"], exit_code::FAILED, "it is no bzImage"),
        (&["here", "--kernel", kernel, "--root", "missing"], exit_code::FAILED, "missing"),
        (&["here", "--kernel", kernel, "--modules", "missing"], exit_code::FAILED, "missing"),
        (&["here", "--kernel", kernel, "--out", "text"], exit_code::FAILED, "text"),
        (&["here", "--kernel", kernel, "--cpus", "1", "--turns", "ring"], exit_code::USAGE, "--turns"),
    ] {
        let (ended, out, said) = run(directory, arguments);
        assert_eq!(ended, Some(code), "{arguments:?}: {out}{said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
    assert_eq!(recordings(directory), [""; 0]);
}
