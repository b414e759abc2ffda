//! What a process that is locked in can still do, even if whatever runs in it is an attacker's: this program starts itself
//! twice, free and locked in, and tries the same things in both. What the free one cannot do would prove nothing.
//!
//! A program of its own without a harness, for a process is locked in before it has a second thread.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use sandbox::{Files, Needs};

/// What is tried, what comes of it where one is free, and where one is locked in.
const TRIED: [(&str, &str, &str); 28] = [
    ("read a file that was named", "done", "done"),
    ("write a file in the folder", "done", "done"),
    ("rename and remove it", "done", "done"),
    ("make and remove a folder there", "done", "done"),
    ("start a thread", "done", "done"),
    ("make code", "done", "done"),
    ("read another file", "done", "EACCES"),
    ("read it in a thread", "done", "EACCES"),
    ("write another file", "done", "EACCES"),
    ("make a file elsewhere", "done", "EACCES"),
    ("remove a file elsewhere", "done", "EACCES"),
    ("list another folder", "done", "EACCES"),
    ("write its own memory by a file", "done", "EACCES"),
    ("open a device", "done", "EACCES"),
    ("make a symbolic link", "done", "ENOSYS"),
    ("make a hard link", "done", "ENOSYS"),
    ("let others read a file", "done", "ENOSYS"),
    ("connect to a port", "done", "ENOSYS"),
    ("listen on a port", "done", "ENOSYS"),
    ("make a socket for datagrams", "done", "ENOSYS"),
    ("connect to a socket's file", "done", "ENOSYS"),
    ("make a pair of sockets", "done", "ENOSYS"),
    ("execute a program", "done", "ENOSYS"),
    ("trace", "done", "ENOSYS"),
    ("signal another process", "done", "ENOSYS"),
    ("type into the terminal", "ENOTTY", "ENOSYS"),
    ("become another user", "done", "ENOSYS"),
    ("write code while it can be executed", "done", "ENOSYS"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("free") => attack(Path::new(&arguments[2])),
        Some("locked-in") => {
            lock_in(Path::new(&arguments[2]));
            attack(Path::new(&arguments[2]));
        }
        Some("status") => status(),
        Some("with-thread") => with_thread(),
        Some("with-leaving-thread") => with_leaving_thread(),
        _ => {
            what_is_tried_fails_where_one_is_locked_in();
            capabilities_are_given_up();
            a_process_with_threads_is_not_locked_in();
            a_thread_that_is_leaving_is_waited_for();
        }
    }
}

fn what_is_tried_fails_where_one_is_locked_in() {
    let offered = sandbox::probe();
    let is_whole = matches!((&offered.files, &offered.calls), (Ok(Files::All | Files::Most(_)), Ok(true)));
    if !is_whole {
        return skip::test(format!("this host cannot lock processes in: {offered:?}"));
    }
    let free: Vec<_> = TRIED.iter().map(|(what, free, _)| format!("{what}: {free}")).collect();
    let locked: Vec<_> = TRIED.iter().map(|(what, _, locked)| format!("{what}: {locked}")).collect();
    assert_eq!(result("free"), free);
    assert_eq!(result("locked-in"), locked);
}

/// What a process of this program tells, line by line.
fn result(kind: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("recording")).unwrap();
    for name in ["named", "outside", "removed"] {
        fs::write(root.join(name), name).unwrap();
    }
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(root.join("recording/port"), port.local_addr().unwrap().to_string()).unwrap();
    lines_of(&[kind, root.to_str().unwrap()])
}

fn lines_of(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(arguments).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
}

fn lock_in(root: &Path) {
    let needs =
        Needs { read: vec![root.join("named")], written: vec![root.join("recording")], ..Needs::default() };
    let locked = sandbox::lock_in(&needs).unwrap();
    assert!(locked.calls && !matches!(locked.files, Files::None(_)), "{locked:?}");
}

/// Tries everything, in the order of the table.
fn attack(root: &Path) {
    let mut said = std::io::stdout();
    let mut tried = TRIED.iter();
    let mut tell = |what: &str, result: Result<(), std::io::Error>| {
        assert_eq!(tried.next().map(|tried| tried.0), Some(what));
        writeln!(said, "{what}: {}", result.map_or_else(name_of, |()| "done".to_string())).unwrap();
    };
    let (inside, outside) = (root.join("recording"), root.join("outside"));
    let port = fs::read_to_string(inside.join("port")).unwrap();

    tell("read a file that was named", fs::read(root.join("named")).map(drop));
    tell("write a file in the folder", fs::write(inside.join("a"), "a"));
    tell(
        "rename and remove it",
        fs::rename(inside.join("a"), inside.join("b")).and_then(|()| fs::remove_file(inside.join("b"))),
    );
    let folder = inside.join("folder");
    tell("make and remove a folder there", fs::create_dir(&folder).and_then(|()| fs::remove_dir(&folder)));
    tell("start a thread", std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join().unwrap()));
    tell("make code", code_memory());
    tell("read another file", fs::read(&outside).map(drop));
    let in_thread = outside.clone();
    tell("read it in a thread", std::thread::spawn(move || fs::read(in_thread)).join().unwrap().map(drop));
    tell("write another file", File::options().write(true).open(&outside).map(drop));
    tell("make a file elsewhere", fs::write(root.join("new"), "").map(drop));
    tell("remove a file elsewhere", fs::remove_file(root.join("removed")));
    tell("list another folder", fs::read_dir(root).map(drop));
    tell("write its own memory by a file", File::options().write(true).open("/proc/self/mem").map(drop));
    tell("open a device", File::open("/dev/urandom").map(drop));
    tell("make a symbolic link", symlink(&outside, inside.join("link")));
    tell("make a hard link", fs::hard_link(inside.join("port"), inside.join("hard")));
    tell(
        "let others read a file",
        fs::set_permissions(inside.join("port"), PermissionsExt::from_mode(0o644)),
    );
    tell("connect to a port", TcpStream::connect(&port).map(drop));
    tell("listen on a port", TcpListener::bind("127.0.0.1:0").map(drop));
    tell("make a socket for datagrams", UdpSocket::bind("127.0.0.1:0").map(drop));
    tell("connect to a socket's file", UnixStream::connect(root.join("socket")).map(drop));
    tell("make a pair of sockets", UnixStream::pair().map(drop));
    tell("execute a program", Command::new("/bin/true").status().map(drop));
    tell("trace", of_nix(nix::sys::ptrace::traceme()));
    tell("signal another process", of_nix(nix::sys::signal::kill(nix::unistd::getppid(), None)));
    tell("type into the terminal", type_into_the_terminal());
    tell("become another user", of_nix(nix::unistd::setuid(nix::unistd::getuid())));
    tell("write code while it can be executed", writable_code());
    assert!(tried.next().is_none());
}

fn of_nix<T>(result: nix::Result<T>) -> std::io::Result<()> {
    result.map(drop).map_err(Into::into)
}

fn name_of(error: std::io::Error) -> String {
    let number = error.raw_os_error();
    number.map_or_else(|| error.to_string(), |number| debug(Errno::from_raw(number)))
}

fn debug(value: impl Debug) -> String {
    format!("{value:?}")
}

/// As the translator does it: a page that is written, and is executed after that.
fn code_memory() -> std::io::Result<()> {
    protected(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC)
}

fn writable_code() -> std::io::Result<()> {
    protected(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC)
}

fn protected(protection: ProtFlags) -> std::io::Result<()> {
    let page = 4096.try_into().unwrap();
    // SAFETY: a new mapping, which nothing refers to; it is unmapped below.
    unsafe {
        let memory =
            mmap_anonymous(None, page, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?;
        let result = mprotect(memory, 4096, protection);
        munmap(memory, 4096)?;
        of_nix(result)
    }
}

fn type_into_the_terminal() -> std::io::Result<()> {
    // SAFETY: the kernel reads one byte.
    let result = unsafe { libc::ioctl(0, libc::TIOCSTI, b"x".as_ptr()) };
    of_nix(Errno::result(result))
}

fn capabilities_are_given_up() {
    let before = fs::read_to_string("/proc/self/status").unwrap();
    if before.contains("CapEff:\t0000000000000000\n") {
        return skip::test("this user has no capabilities that could be given up");
    }
    let after = lines_of(&["status"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(after.contains(&format!("{set}:\t0000000000000000")), "{after:?}");
    }
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(after.contains(&line.to_string()), "{after:?}");
    }
}

/// What the kernel says of this process when it is locked in.
fn status() {
    let file = File::open("/proc/self/status").unwrap();
    sandbox::lock_in(&Needs::default()).unwrap();
    print!("{}", std::io::read_to_string(file).unwrap());
}

fn a_process_with_threads_is_not_locked_in() {
    assert_eq!(
        lines_of(&["with-thread"]),
        ["2 threads run already, and only one of them would be locked in"]
    );
}

fn with_thread() {
    let (end, waits) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || waits.recv());
    println!("{}", sandbox::lock_in(&Needs::default()).unwrap_err());
    drop(end);
    let _ = thread.join().unwrap();
}

fn a_thread_that_is_leaving_is_waited_for() {
    assert_eq!(lines_of(&["with-leaving-thread"]), ["locked in"]);
}

fn with_leaving_thread() {
    let thread = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(20)));
    let locked = sandbox::lock_in(&Needs::default());
    println!("{}", locked.map_or_else(|error| error.to_string(), |_| "locked in".to_string()));
    thread.join().unwrap();
}
