//! Tests `ttvm disk` with a disk that has a partition with files.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::ttvm;
use machine::error::exit_code;
use serde_json::Value;
use tiny_guest::disk::{DISK_BYTES, ESCAPE, PARTITION_BYTES, START, make, record};

/// Skips a test on a host without e2fsprogs.
macro_rules! recorded_or_skip {
    ($directory:expr) => {
        match make($directory) {
            Some(disk) => {
                record($directory, "r.ttvm", &disk);
                disk
            }
            None => return skip::test("there is no mke2fs: install e2fsprogs"),
        }
    };
}

#[test]
fn partitions_and_files_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let disk = |arguments: &[&str]| ttvm(directory.path(), &[&["disk", "r.ttvm"], arguments].concat());
    recorded_or_skip!(directory.path());
    let (code, out, told) = disk(&["info"]);
    assert!(code == 0 && told.is_empty(), "{told}");
    assert!(out.starts_with(&format!("disk      {DISK_BYTES:>12} bytes (")), "{out}");
    let partition =
        "\npartition 1   from byte 1048576, 4.0 MiB (4194304 bytes), type 0x83: ext4, label data, UUID ";
    assert!(out.contains(partition), "{out}");
    let (_, out, _) = disk(&["info", "--json"]);
    let info: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&info["table"], &info["partitions"][0]["start_bytes"]), (&"mbr".into(), &START.into()));
    let end = info["instruction"].clone();

    let (code, out, told) = disk(&["ls", "--partition", "1"]);
    assert_eq!(code, 0, "{told}");
    let names: Vec<&str> = out.lines().map(|line| line.split_whitespace().nth(6).unwrap()).collect();
    assert_eq!(names, ["escape", "folder", "link", "long", "lost+found"]);
    assert!(out.starts_with("-rw-r----- ") && out.contains(" link -> folder/text\n"), "{out}");
    let (_, out, _) = disk(&["ls", "/folder", "--partition", "1", "--json"]);
    let folder: Value = serde_json::from_str(&out).unwrap();
    let text = &folder["entries"][0];
    assert_eq!((&text["name"], &text["size_bytes"]), (&"text".into(), &7.into()));
    assert_eq!((&folder["path"], &folder["instruction"]), (&"/folder".into(), &end));

    assert_eq!(disk(&["cat", "/link", "--partition", "1"]), (0, "a text\n".into(), String::new()));
    for (arguments, why) in [
        (&["ls"][..], "the disk has partitions; choose one with --partition N, or partition:N in gdb: 1"),
        (&["ls", "--partition", "2"], "the disk has no partition 2 at this position; it has 1"),
        (&["cat", "/none", "--partition", "1"], "/none: there is no such file at this position"),
        (&["cat", "/folder", "--partition", "1"], "/folder: it is a folder; give a file with contents"),
    ] {
        let (code, out, told) = disk(arguments);
        assert_eq!((code, out.as_str(), told), (2, "", format!("ttvm: {why}\n")), "{arguments:?}");
    }
}

/// A pipe or a file gets a file's bytes as they are.
#[test]
fn a_files_bytes_are_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    recorded_or_skip!(directory.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
    command.args(["disk", "r.ttvm", "cat", "escape", "--partition", "1"]).current_dir(directory.path());
    let output = command.output().unwrap();
    assert_eq!(output.stdout, ESCAPE);
    assert!(output.stderr.is_empty());
}

#[test]
fn the_disk_and_its_partition_are_exported_with_holes() {
    let directory = tempfile::tempdir().unwrap();
    let disk = recorded_or_skip!(directory.path());
    for (name, more, expected) in [
        ("whole", &[][..], &disk[..]),
        ("part", &["--partition", "1"], &disk[START..START + PARTITION_BYTES]),
    ] {
        let arguments = [&["disk", "r.ttvm", "export", "-o", name, "--json"], more].concat();
        let (code, out, told) = ttvm(directory.path(), &arguments);
        assert_eq!(code, 0, "{told}");
        let path = directory.path().join(name);
        assert!(std::fs::read(&path).unwrap() == expected, "{name} differs");
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&answer["file"], &answer["size_bytes"]), (&name.into(), &expected.len().into()));
        let disk_bytes = answer["disk_bytes"].as_u64().unwrap();
        let used = expected.chunks(4096).filter(|chunk| chunk.iter().any(|byte| *byte != 0)).count() as u64;
        assert!(disk_bytes <= (used + 8) * 4096, "{name}: {disk_bytes} bytes for {used} blocks");
    }
    let (code, _, told) = ttvm(directory.path(), &["disk", "r.ttvm", "export", "-o", "whole"]);
    assert!(code == 1 && told.contains("it exists"), "{code}: {told}");
}

#[test]
fn a_machine_without_a_disk_has_none_to_show() {
    let directory = tempfile::tempdir().unwrap();
    tiny_guest::record(directory.path(), "r.ttvm", 100, Vec::new());
    let (code, _, told) = ttvm(directory.path(), &["disk", "r.ttvm", "info"]);
    assert_eq!((code, &*told), (2, "ttvm: the machine of this recording has no disk; record with --disk\n"));
}

/// Reads from the served disk as an NBD client does: the option EXPORT_NAME, and a READ.
fn read_served(socket: &Path, offset: u64, length: u32) -> (u64, Vec<u8>) {
    let mut client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat()).unwrap();
    let mut export = [0; 10];
    client.read_exact(&mut export).unwrap();
    let size = u64::from_be_bytes(export[..8].try_into().unwrap());
    let request = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0][..], b"a cookie", &offset.to_be_bytes()].concat();
    client.write_all(&[&request[..], &length.to_be_bytes()].concat()).unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    let mut bytes = vec![0; length as usize];
    client.read_exact(&mut bytes).unwrap();
    (size, bytes)
}

#[test]
fn the_disk_is_served_until_the_server_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let disk = recorded_or_skip!(directory.path());
    for (more, device, first, size) in [
        (&[][..], "/dev/nbd0p1", 0, DISK_BYTES),
        (&["--partition", "1"], "/dev/nbd0", START, PARTITION_BYTES),
    ] {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_ttvm"), "disk", "r.ttvm"]);
        command.args(["mount", "--listen", "unix:socket", "--json"]).args(more).current_dir(directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        // The answer ends with the line of the closing brace.
        let (mut text, mut byte) = (String::new(), [0]);
        let out = server.stdout.as_mut().unwrap();
        while !text.ends_with("}\n") {
            out.read_exact(&mut byte).expect("the server prints its answer");
            text.push(char::from(byte[0]));
        }
        let answer: Value = serde_json::from_str(&text).unwrap();
        let socket = directory.path().canonicalize().unwrap().join("socket");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        assert_eq!((&answer["device"], &answer["size_bytes"]), (&device.into(), &size.into()));
        assert_eq!(answer["uri"], uri);
        assert_eq!(answer["connect"], format!("nbd-client -unix {} /dev/nbd0", socket.display()));
        for (offset, length) in [(0, 4096), (size - 5, 5), (1024, 1 << 16)] {
            let (told, bytes) = read_served(&socket, offset as u64, length as u32);
            assert_eq!(told, size as u64);
            assert!(bytes == disk[first + offset..][..length], "{length} bytes at {offset}");
        }
        let pid = nix::unistd::Pid::from_raw(server.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let output = server.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!socket.exists(), "the socket is removed");
    }
    for (address, expected, why) in [
        ("0.0.0.0:0", exit_code::USAGE, "other hosts can reach it; use 127.0.0.1, and a tunnel of ssh"),
        ("nonsense", exit_code::USAGE, "expected ADDRESS:PORT"),
    ] {
        let arguments = ["disk", "r.ttvm", "mount", "--listen", address];
        let (code, _, told) = ttvm(directory.path(), &arguments);
        assert!(code == expected && told.contains(why), "{address}: {code}: {told}");
    }
}
