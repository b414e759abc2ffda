//! Tests that only the user who runs `ttvm debug` can connect to it, and that `ttvm debug` removes its temporary files.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use tiny_guest::{record_with_checkpoints, typed};

/// The number of the user `nobody`, who owns no files.
const NOBODY: u32 = 65534;

fn send(server: &Server, signal: Signal) {
    kill(Pid::from_raw(server.process.id() as i32), signal).unwrap();
}

fn recorded() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    record_with_checkpoints(directory.path(), "r.ttvm", 30_000, typed(&[(5_000, "a")]), &[]);
    directory
}

/// The files in the folder for temporary files, and the socket if it exists.
fn left_behind(directory: &Path) -> Vec<PathBuf> {
    let temporary = fs::read_dir(directory.join("tmp")).unwrap();
    let all = temporary.map(|entry| entry.unwrap().path()).chain([directory.join("socket")]);
    all.filter(|path| path.symlink_metadata().is_ok()).collect()
}

/// Waits until a separate process has removed all files.
fn all_is_removed(directory: &Path) {
    while !left_behind(directory).is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn sockets_and_folders_are_private_and_are_removed_whatever_ends_the_server() {
    let directory = recorded();
    let path = directory.path();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGKILL] {
        let mut server = Server::start(path, &["--listen", "unix:socket"]);
        server.says("ready");
        let found = left_behind(path);
        assert_eq!(found.len(), 2, "{found:?}");
        for file in found {
            let mode = file.symlink_metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if file.is_dir() { 0o700 } else { 0o600 }, "{}", file.display());
        }
        send(&server, signal);
        server.process.wait().unwrap();
        all_is_removed(path);
    }
}

#[test]
fn nothing_is_left_when_the_server_ends_by_itself() {
    let directory = recorded();
    let path = directory.path();
    let mut server = Server::start(path, &["--listen", "unix:socket", "--once"]);
    server.says("ready");
    drop(UnixStream::connect(path.join("socket")).unwrap());
    assert!(server.process.wait().unwrap().success());
    assert_eq!(left_behind(path), [] as [PathBuf; 0]);
    // The server fails after it has made its socket, because the recording has no event 999.
    let mut server = Server::start(path, &["--listen", "unix:socket", "--at", "event:999"]);
    assert_eq!(server.process.wait().unwrap().code(), Some(2));
    assert_eq!(left_behind(path), [] as [PathBuf; 0]);
}

#[test]
fn a_socket_of_another_program_stays() {
    let directory = recorded();
    let path = directory.path();
    let mut server = Server::start(path, &["--listen", "unix:socket"]);
    server.says("ready");
    let companion = companion_of(&server);
    fs::remove_file(path.join("socket")).unwrap();
    let _other = UnixListener::bind(path.join("socket")).unwrap();
    send(&server, Signal::SIGKILL);
    server.process.wait().unwrap();
    wait_for_end(companion);
    assert!(path.join("socket").exists());
}

#[test]
fn the_socket_of_the_next_server_stays_when_the_companion_of_the_last_is_late() {
    let directory = recorded();
    let path = directory.path();
    let mut server = Server::start(path, &["--listen", "unix:socket"]);
    server.says("ready");
    let companion = companion_of(&server);
    kill(companion, Signal::SIGSTOP).unwrap();
    send(&server, Signal::SIGKILL);
    server.process.wait().unwrap();
    // Most file systems reuse the removed file's inode number for the next file.
    fs::remove_file(path.join("socket")).unwrap();
    let _next = UnixListener::bind(path.join("socket")).unwrap();
    kill(companion, Signal::SIGCONT).unwrap();
    wait_for_end(companion);
    assert!(path.join("socket").exists());
}

fn companion_of(server: &Server) -> Pid {
    let pid = server.process.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.split_whitespace().next().expect("a companion").parse().unwrap())
}

/// Waits for the end of a process that is not our child.
fn wait_for_end(process: Pid) {
    let is_there = || {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
    };
    while is_there() {
        std::thread::yield_now();
    }
}

/// Writes a stand-in for gdb that prints its arguments.
fn write_gdb(directory: &Path) {
    fs::create_dir(directory.join("bin")).unwrap();
    let gdb = directory.join("bin/gdb");
    fs::write(&gdb, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nls -ld \"${7#target remote }\"\nexit 7\n").unwrap();
    fs::set_permissions(&gdb, PermissionsExt::from_mode(0o700)).unwrap();
    fs::create_dir(directory.join("tmp")).unwrap();
}

/// A command that runs `program`. PATH leads to the stand-in for gdb from `write_gdb`, and TMPDIR is the folder `tmp`
/// in `directory`.
fn with_gdb(program: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("TMPDIR", directory.join("tmp"))
        .env("PATH", format!("{}:/usr/bin:/bin", directory.join("bin").display()))
        .stdin(Stdio::null());
    command
}

#[test]
fn a_gdb_that_is_started_has_a_socket_of_its_own() {
    let directory = recorded();
    let path = directory.path();
    write_gdb(path);
    let output =
        with_gdb(env!("CARGO_BIN_EXE_ttvm"), path).args(["debug", "r.ttvm", "--gdb"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let address = said.lines().find_map(|line| line.strip_prefix("target remote ")).unwrap();
    assert!(Path::new(address).starts_with(path.join("tmp")), "{said}");
    assert!(said.contains("\nsrw-------"), "{said}");
    assert_eq!(left_behind(path), [] as [PathBuf; 0]);
}

/// A shell script. The script makes a /dev with only the two devices that every program needs, and executes its
/// arguments.
const BARE_DEV: &str = r#"
for name in null urandom; do touch "$0/$name" && mount --bind "/dev/$name" "$0/$name" || exit; done
mount -t tmpfs none /dev || exit
for name in null urandom; do touch "/dev/$name" && mount --bind "$0/$name" "/dev/$name" || exit; done
echo bare
exec "$@"
"#;

#[test]
fn a_gdb_is_started_where_dev_has_next_to_nothing() {
    let directory = recorded();
    let path = directory.path();
    write_gdb(path);
    let mut command = with_gdb("unshare", path);
    command.args(["--map-root-user", "--mount", "sh", "-c", BARE_DEV]).arg(path);
    let output = command.args([env!("CARGO_BIN_EXE_ttvm"), "debug", "r.ttvm", "--gdb"]).output();
    let Some(output) = output.ok().filter(|output| output.stdout.starts_with(b"bare")) else {
        return skip::test("this needs namespaces of users and mounts");
    };
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(left_behind(path), [] as [PathBuf; 0]);
}

#[test]
fn other_users_are_refused() {
    if !geteuid().is_root() {
        return skip::test("only root can try as another user");
    }
    let directory = recorded();
    let path = directory.path();
    let connect = "import socket, sys\n\
                   kind, address = sys.argv[1:]\n\
                   s = socket.socket(socket.AF_UNIX if kind == 'unix' else socket.AF_INET)\n\
                   s.connect(address if kind == 'unix' else ('127.0.0.1', int(address)))\n\
                   try:\n    s.sendall(b'$?#3f')\n    print(len(s.recv(1000)))\n\
                   except (ConnectionResetError, BrokenPipeError):\n    print(0)\n";
    let answer = |user: u32, kind: &str, address: &str| {
        let output = Command::new("python3").args(["-c", connect, kind, address]).uid(user).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim() != "0"
    };
    for kind in ["tcp", "unix"] {
        let listen = if kind == "tcp" { "127.0.0.1:0" } else { "unix:socket" };
        let mut server = Server::start(path, &["--listen", listen]);
        let ready = server.says("target remote ");
        let address = match kind {
            "tcp" => ready.trim().rsplit(':').next().unwrap().to_string(),
            _ => {
                // Allow access to the files: the server must keep other users away without
                // the help of file modes.
                fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
                fs::set_permissions(path.join("socket"), PermissionsExt::from_mode(0o666)).unwrap();
                path.join("socket").display().to_string()
            }
        };
        assert!(!answer(NOBODY, kind, &address), "{kind}");
        let told = server.says("is refused");
        assert!(told.contains("it comes from user 65534"), "{told}");
        assert!(answer(0, kind, &address), "{kind}");
    }
}

/// A Python script that opens a thousand connections as another user, and holds them until its standard input ends.
const CROWD: &str = r#"
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for _ in range(1000):
    s = socket.socket()
    s.connect(("127.0.0.1", int(sys.argv[1])))
    held.append(s)
print("all", flush=True)
sys.stdin.read()
"#;

/// Reading the kernel's table of connections takes time for each connection in it. A server that reads the table once
/// for each of a thousand connections took 43 seconds on two busy cores.
#[test]
fn a_thousand_connections_of_another_user_do_not_keep_the_owner_out() {
    if !geteuid().is_root() {
        return skip::test("only root can try as another user");
    }
    let directory = recorded();
    let mut server = Server::start(directory.path(), &["--listen", "127.0.0.1:0"]);
    let address = server.says("target remote ").trim().rsplit(' ').next().unwrap().to_string();
    // The server is stopped, so all these connections wait in front of the owner's connection.
    send(&server, Signal::SIGSTOP);
    let port = address.rsplit(':').next().unwrap();
    let mut crowd = Command::new("python3");
    crowd.args(["-c", CROWD, port]).uid(NOBODY).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = crowd.spawn().unwrap();
    crowd.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let mut owner = TcpStream::connect(&address).unwrap();
    owner.write_all(b"$?#3f").unwrap();
    let begun = std::time::Instant::now();
    send(&server, Signal::SIGCONT);
    owner.read_exact(&mut [0; 4]).unwrap();
    let waited = begun.elapsed();
    eprintln!("the owner waited for {waited:?}");
    assert!(waited < std::time::Duration::from_secs(5), "{waited:?}");
    assert!(server.says("are refused").contains("connections to"));
    drop(crowd.stdin.take());
    crowd.wait().unwrap();
}

/// Sends a monitor command, and returns its answer.
fn ask(stream: &mut TcpStream, command: &str) -> String {
    let digits = hex(command);
    let body = format!("qRcmd,{digits}");
    let sum = body.bytes().fold(0_u8, |sum, byte| sum.wrapping_add(byte));
    write!(stream, "${body}#{sum:02x}").unwrap();
    // Each packet of the answer has an O and hex digits. A last packet with OK or an error ends the answer.
    let (mut text, mut answer) = (String::new(), Vec::new());
    while !["OK", "E"].iter().any(|end| text.trim_start_matches('+').starts_with(&format!("${end}"))) {
        text.clear();
        while text.bytes().rev().nth(2) != Some(b'#') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            text.push(byte[0] as char);
        }
        stream.write_all(b"+").unwrap();
        if let Some((_, digits)) = text.split_once("$O").filter(|(_, digits)| !digits.starts_with('K')) {
            let digits = digits.split('#').next().unwrap().as_bytes().chunks(2);
            let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap_or(b'?');
            answer.extend(digits.map(byte));
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn commands_read_and_write_no_file_that_a_client_names() {
    let directory = recorded();
    let path = directory.path();
    // Opening a pipe for writing waits until it is opened for reading.
    let secret = path.join("secret");
    nix::unistd::mkfifo(&secret, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (opened, is_opened) = std::sync::mpsc::channel();
    let writes = secret.clone();
    let writer = std::thread::spawn(move || {
        let file = fs::File::options().write(true).open(writes).unwrap();
        opened.send(()).unwrap();
        drop(file);
    });
    let mut server = Server::start(path, &["--listen", "127.0.0.1:0", "--no-sandbox"]);
    let address = server.says("target remote ").trim().rsplit(' ').next().unwrap().to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let before = listed(path);
    let (there, new) = (secret.display().to_string(), path.join("new").display().to_string());
    for word in [
        "when",
        "end",
        "position",
        "goto",
        "back-to",
        "forward-to",
        "traps",
        "search",
        "mark",
        "console",
        "physical",
        "ps",
        "break-in",
        "symbols",
        "symbols modules",
        "back",
        "help",
    ] {
        for file in [&there, &new, "secret", "new", "../secret", "| touch new", "> new"] {
            let answer = ask(&mut stream, &format!("{word} {file}"));
            assert!(word != "symbols" || answer.contains("'tt symbols FILE' loads a file"), "{answer}");
        }
    }
    assert_eq!(listed(path), before);
    assert!(is_opened.try_recv().is_err(), "a command has opened the file");
    drop(fs::File::open(&secret).unwrap());
    writer.join().unwrap();
}

/// Names and sizes of the files in a folder and its recording.
fn listed(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for folder in [directory.to_path_buf(), directory.join("r.ttvm"), directory.join("r.ttvm/checkpoints")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        found.extend(entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len()))));
    }
    found.sort();
    found
}
