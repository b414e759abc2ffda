//! Tests which actions are still possible in a locked-in process, even if an attacker controls the process. For
//! each attempt this program starts itself twice: in one process that is not locked in (free), and in one that is.
//! An attempt that also fails in the free process would prove nothing.
//!
//! The test is a program of its own without a harness, because a process must be locked in before it has a
//! second thread.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OpenHow, openat2, readlinkat};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sandbox::{Files, Needs, ThreadKind};

/// The result of an attempt that ended its process by SIGSYS.
const ENDED: &str = "ended";

/// The attempts, each with its expected results in a free process and in a locked-in process.
const TRIED: &[(&str, &str, &str)] = &[
    ("read a file that was named", "done", "done"),
    ("write a file in the folder", "done", "done"),
    ("rename and remove it", "done", "done"),
    ("make and remove a folder there", "done", "done"),
    ("look at an open file", "done", "done"),
    ("start a thread", "done", "done"),
    ("make code", "done", "done"),
    ("ask for a limit", "done", "done"),
    ("give up more", "done", "done"),
    ("send to the other end", "done", "done"),
    ("read another file", "done", "EACCES"),
    ("read it in a thread", "done", "EACCES"),
    ("write another file", "done", "EACCES"),
    ("write a file that was named to be read", "done", "EACCES"),
    ("make a file elsewhere", "done", "EACCES"),
    ("remove a file elsewhere", "done", "EACCES"),
    ("list another folder", "done", "EACCES"),
    ("write its own memory by a file", "done", "EACCES"),
    ("open a device", "done", "EACCES"),
    ("ask for the current folder", "done", "ENOSYS"),
    ("read a symbolic link", "done", "ENOSYS"),
    (LOOK_AT_A_FILE, "done", "ENOSYS"),
    ("open a file below a folder", "done", ENDED),
    ("read a link below a folder", "done", ENDED),
    ("make a symbolic link", "done", ENDED),
    ("make a hard link", "done", ENDED),
    ("let others read a file", "done", ENDED),
    ("connect to a port", "done", ENDED),
    ("listen on a port", "done", ENDED),
    ("make a socket for datagrams", "done", ENDED),
    ("send to an address", "done", ENDED),
    ("connect to a socket's file", "done", ENDED),
    ("make a pair of sockets", "done", ENDED),
    ("execute a program", "done", ENDED),
    ("make a process", "done", ENDED),
    ("trace", "done", ENDED),
    ("signal another process", "done", ENDED),
    ("type into the terminal", "ENOTTY", ENDED),
    ("become another user", "done", ENDED),
    ("set a limit", "done", ENDED),
    ("make a file in memory", "done", ENDED),
    ("write code while it can be executed", "done", ENDED),
    ("map code that can be written", "done", ENDED),
    ("make a thread in a namespace of its own", "EINVAL", ENDED),
    ("make a process that shares memory", "EINVAL", ENDED),
    ("wait for a process", "ECHILD", ENDED),
    ("signal a thread of another process", "done", ENDED),
    ("ask for a limit of another process", "done", ENDED),
    ("ask who gets a file's signals", "done", ENDED),
    ("let others trace it", "done", ENDED),
    ("ask what filters can do", "done", ENDED),
    ("ask a file as if it were KVM", "ENOTTY", ENDED),
    ("ask a file as if it were VFIO", "ENOTTY", ENDED),
    ("ask a file as if it were a counter", "ENOTTY", ENDED),
    ("make a descriptor for events", "done", ENDED),
    ("wait for one of many files", "EFAULT", ENDED),
];

/// Attempts of locked-in processes that have one more need than usual. Each element has the need, the attempt and
/// the expected result.
const NEEDED: &[(&str, &str, &str)] = &[
    ("kvm", "ask a file as if it were KVM", "ENOTTY"),
    ("kvm", "ask a file as if it were a counter", "ENOTTY"),
    ("kvm", "ask a file as if it were VFIO", ENDED),
    ("kvm", "make a descriptor for events", "done"),
    ("kvm", "ask who gets a file's signals", "done"),
    ("kvm", "wait for a process", ENDED),
    ("vfio", "ask a file as if it were VFIO", "ENOTTY"),
    ("vfio", "ask a file as if it were KVM", ENDED),
    ("vfio", "ask a file as if it were a counter", ENDED),
    ("vfio", "make a descriptor for events", "done"),
    ("vfio", "wait for one of many files", "EFAULT"),
    ("vfio", "ask who gets a file's signals", ENDED),
    ("helper", "wait for a process", "ECHILD"),
    ("helper", "make a descriptor for events", ENDED),
    ("branches", "make a process", "done"),
    ("branches", "wait for a process", "ECHILD"),
    ("branches", "make a process that shares memory", ENDED),
    ("branches", "execute a program", ENDED),
    ("branches", "read another file", "ENOSYS"),
    ("devices", "open a device", "done"),
    ("devices", "read a file that was named", "EACCES"),
    ("read", "read a file that was named", "done"),
    ("read", "write a file in the folder", "EACCES"),
    ("written", "write a file in the folder", "done"),
    ("written", "make a symbolic link", ENDED),
    ("folders", "open a file below a folder", "done"),
    ("folders", "read a link below a folder", "done"),
    ("folders", "read another file", "EACCES"),
    ("folders", "write a file in the folder", "EACCES"),
    ("clients", "listen on a port", ENDED),
    ("locked-in", "copy a descriptor", "done"),
];

/// Attempts in a process that has all needs. Each attempt has its result in the first thread, and its results in threads
/// of each kind, in the order of [`ThreadKind::ALL`].
const OF_KINDS: &[(&str, &str, [&str; 6])] = &[
    // The attempt, the first thread's result, and the results of: checkpoint writer, page reader, replayer, gdb
    // session, doorkeeper, waiter.
    ("get memory", "done", ["done", "done", "done", "done", "done", "done"]),
    ("print a message", "done", ["done", "done", "done", "done", "done", "done"]),
    ("panic", "done", ["done", "done", "done", "done", "done", "done"]),
    ("ask for a limit", "done", ["done", "done", "done", "done", "done", "done"]),
    ("ask for the terminal's mode", "ENOTTY", ["ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY", "ENOTTY"]),
    ("read from an open file", "done", ["done", "done", "done", "done", "done", ENDED]),
    ("write to an open file", "done", ["done", ENDED, ENDED, "done", ENDED, "done"]),
    ("send to an open socket", "done", [ENDED, ENDED, ENDED, "done", "done", ENDED]),
    ("flush a file", "done", ["done", ENDED, ENDED, "done", ENDED, ENDED]),
    ("read a file that was named", "done", ["done", "ENOSYS", "done", "done", "ENOSYS", "ENOSYS"]),
    ("open a device to read and write it", "done", ["done", ENDED, "done", "done", ENDED, ENDED]),
    ("open a device as if it were new", "done", ["done", ENDED, ENDED, "done", ENDED, ENDED]),
    ("read without waiting", "done", [ENDED, ENDED, "done", "done", "done", ENDED]),
    ("write a file in the folder", "done", ["done", ENDED, ENDED, "done", ENDED, ENDED]),
    ("rename a file there", "done", ["done", ENDED, ENDED, "done", ENDED, ENDED]),
    ("remove a file there", "done", ["done", ENDED, ENDED, "done", ENDED, ENDED]),
    ("make and remove a folder there", "done", [ENDED, ENDED, ENDED, "done", ENDED, ENDED]),
    ("start a thread", "done", [ENDED, ENDED, "done", "done", ENDED, ENDED]),
    ("make code", "done", [ENDED, ENDED, "done", "done", ENDED, ENDED]),
    ("enter the kind again", "done", [ENDED, ENDED, "done", "done", ENDED, ENDED]),
    ("sleep", "done", [ENDED, ENDED, "done", "done", ENDED, ENDED]),
    ("accept a client", "EAGAIN", [ENDED, ENDED, ENDED, "EAGAIN", "EAGAIN", ENDED]),
    ("let clients come", "done", [ENDED, ENDED, ENDED, "done", ENDED, ENDED]),
    ("wait for a process", "ECHILD", [ENDED, ENDED, ENDED, ENDED, ENDED, "ECHILD"]),
    ("ask a file as if it were KVM", "ENOTTY", [ENDED, ENDED, "ENOTTY", "ENOTTY", ENDED, ENDED]),
    ("ask a file as if it were VFIO", "ENOTTY", [ENDED; 6]),
    ("ask for the terminal's size", "ENOTTY", [ENDED; 6]),
    ("ask who the user is", "done", [ENDED; 6]),
    ("make a pipe", "done", [ENDED; 6]),
    ("stop the process's signals", "done", [ENDED, ENDED, "done", "done", ENDED, ENDED]),
];

/// Flags for new namespaces. No thread may enter a new namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
const WITH_FLAG: &str = "make a thread with the flag ";

/// The only attempt for which the process is locked in without any named files.
const LOOK_AT_A_FILE: &str = "look at a file where none was named";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        // `cargo test` passes its arguments to this program, which has one test.
        Some("--list") if !arguments.contains(&"--ignored".to_string()) => println!("locked_in: test"),
        Some("--list") => {}
        Some("attack") => attack(Path::new(&arguments[3]), &arguments[2], &arguments[4]),
        Some(kind @ ("clients" | "clients-elsewhere")) => accept(kind == "clients"),
        Some("status") => status(&arguments[2]),
        Some("with-thread") => with_thread(),
        Some("with-leaving-thread") => with_leaving_thread(),
        _ => {
            what_is_tried_fails_where_one_is_locked_in();
            clients_are_one_threads();
            capabilities_are_given_up();
            root_can_use_the_files_of_another_user();
            a_process_with_threads_is_not_locked_in();
            a_thread_that_is_leaving_is_waited_for();
        }
    }
}

fn what_is_tried_fails_where_one_is_locked_in() {
    let offered = sandbox::probe();
    let has_seccomp = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    assert_eq!(offered.calls, Ok(has_seccomp), "the probe and the kernel agree");
    let is_whole = matches!((&offered.files, &offered.calls), (Ok(Files::All | Files::Most(_)), Ok(true)));
    if !is_whole {
        return skip::test(format!("this host cannot lock processes in: {offered:?}"));
    }
    for &(what, free, locked_in) in TRIED {
        assert_eq!(result("free", what), free, "{what}, free");
        assert_eq!(result("locked-in", what), locked_in, "{what}, locked in");
    }
    for &(need, what, expected) in NEEDED {
        assert_eq!(result(need, what), expected, "{what}, locked in with the need '{need}'");
    }
    for (what, by_process, expected) in OF_KINDS {
        assert_eq!(result("all", what), *by_process, "{what}, by the process");
        for (kind, expected) in ThreadKind::ALL.iter().zip(expected) {
            assert_eq!(result(&format!("{kind:?}"), what), *expected, "{what}, by a {kind:?}");
        }
    }
    // In a process without the need `kvm`, a replayer may use neither KVM nor its device.
    for what in ["ask a file as if it were KVM", "open a device to read and write it"] {
        assert_eq!(result("locked-in Replayer", what), ENDED, "{what}, by a Replayer without KVM");
    }
    for flag in NAMESPACES {
        let what = format!("{WITH_FLAG}{flag}");
        assert_eq!(result("locked-in", &what), ENDED, "{what}");
    }
}

/// The kind of thread that makes an attempt. The last word of `kind` is its name. `None` if the first thread makes
/// it.
fn thread_kind(kind: &str) -> Option<ThreadKind> {
    let name = kind.split(' ').next_back();
    ThreadKind::ALL.into_iter().find(|kind| name == Some(&debug(kind)))
}

/// The needs of the process for an attempt. `kind` is the name of these needs.
fn needs(kind: &str, root: &Path) -> Needs {
    let (read, written) = (vec![root.join("named")], vec![root.join("recording")]);
    let nothing = Needs::default();
    match kind {
        _ if kind == "all" || ThreadKind::ALL.iter().any(|of_thread| kind == debug(of_thread)) => Needs {
            read,
            written,
            folders: Vec::new(),
            devices: vec!["/dev/urandom".into()],
            clients: true,
            branches: true,
            helper: true,
            kvm: true,
            vfio: true,
        },
        "locked-in" | "locked-in Replayer" => Needs { read, written, ..nothing },
        "read" => Needs { read, ..nothing },
        "written" => Needs { written, ..nothing },
        "folders" => Needs { folders: written, ..nothing },
        "devices" => Needs { devices: vec!["/dev/urandom".into()], ..nothing },
        "clients" => Needs { clients: true, ..nothing },
        "helper" => Needs { helper: true, ..nothing },
        "branches" => Needs { branches: true, ..nothing },
        "kvm" => Needs { kvm: true, ..nothing },
        "vfio" => Needs { vfio: true, ..nothing },
        _ => nothing,
    }
}

/// The result of an attempt in a process of this program.
fn result(kind: &str, what: &str) -> String {
    result_in(kind, what, |_| {})
}

/// Does the same as [`result`]. `change` changes the attempt's folder before the process starts.
fn result_in(kind: &str, what: &str, change: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("recording")).unwrap();
    for name in ["named", "outside", "removed"] {
        fs::write(root.join(name), name).unwrap();
    }
    symlink("outside", root.join("recording/link-of-old")).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(root.join("recording/port"), port.local_addr().unwrap().to_string()).unwrap();
    change(root);
    let output = command(&["attack", kind, root.to_str().unwrap(), what]).output().unwrap();
    if output.status.signal() == Some(libc::SIGSYS) {
        return ENDED.to_string();
    }
    assert!(output.status.success(), "{kind}, {what}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // RUST_BACKTRACE is set, because a panic with a backtrace makes more system calls than a panic with only a
    // message.
    command.args(arguments).stdin(std::process::Stdio::null()).env("RUST_BACKTRACE", "1");
    command
}

fn lines_of(arguments: &[&str]) -> Vec<String> {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
}

fn lock_in(needs: &Needs) {
    let locked = sandbox::lock_in(needs).unwrap();
    assert!(locked.calls && !matches!(locked.files, Files::None(_)), "{locked:?}");
}

/// Makes an attempt. The attempt's files and sockets are opened before the process is locked in.
fn attack(root: &Path, kind: &str, what: &str) {
    let (inside, outside) = (root.join("recording"), root.join("outside"));
    let port = fs::read_to_string(inside.join("port")).unwrap();
    let open = File::open(&outside).unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut here, _there) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (fd, parent) = (open.as_raw_fd() as u64, nix::unistd::getppid().as_raw() as u64);
    match kind {
        "free" => {}
        _ if what == LOOK_AT_A_FILE => lock_in(&Needs::default()),
        kind => lock_in(&needs(kind, root)),
    }
    let attempt = move || match what {
        "read a file that was named" => fs::read(root.join("named")).map(drop),
        "write a file in the folder" => fs::write(inside.join("a"), "a"),
        "rename and remove it" => fs::write(inside.join("a"), "a")
            .and_then(|()| fs::rename(inside.join("a"), inside.join("b")))
            .and_then(|()| fs::remove_file(inside.join("b"))),
        "make and remove a folder there" => {
            let folder = inside.join("folder");
            fs::create_dir(&folder).and_then(|()| fs::remove_dir(&folder))
        }
        "open a file below a folder" => {
            Ok(openat2(AT_FDCWD, &inside.join("port"), OpenHow::new()).map(drop)?)
        }
        "read a link below a folder" => Ok(readlinkat(AT_FDCWD, &inside.join("link-of-old")).map(drop)?),
        "look at an open file" => open.metadata().map(drop),
        "start a thread" => std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join().unwrap()),
        "make code" => protected(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC),
        "ask for a limit" => of_nix(getrlimit(Resource::RLIMIT_CORE)),
        "give up more" => sandbox::narrow(&Needs::default()).map_err(std::io::Error::other),
        "send to the other end" => here.write_all(b"x").and_then(|()| send(&here)),
        "read another file" => fs::read(&outside).map(drop),
        "read it in a thread" => std::thread::spawn(move || fs::read(outside)).join().unwrap().map(drop),
        "write another file" => File::options().write(true).open(&outside).map(drop),
        "write a file that was named to be read" => {
            File::options().write(true).open(root.join("named")).map(drop)
        }
        LOOK_AT_A_FILE => fs::metadata(&outside).map(drop),
        "make a file elsewhere" => fs::write(root.join("new"), "").map(drop),
        "remove a file elsewhere" => fs::remove_file(root.join("removed")),
        "list another folder" => fs::read_dir(root).map(drop),
        "write its own memory by a file" => File::options().write(true).open("/proc/self/mem").map(drop),
        "open a device to read and write it" => {
            File::options().read(true).write(true).open("/dev/urandom").map(drop)
        }
        "open a device as if it were new" => {
            File::options().read(true).write(true).create(true).truncate(true).open("/dev/urandom").map(drop)
        }
        "read without waiting" => listener.set_nonblocking(true),
        "open a device" => File::open("/dev/urandom").map(drop),
        "ask for the current folder" => std::env::current_dir().map(drop),
        "read a symbolic link" => fs::read_link(inside.join("link-of-old")).map(drop),
        "make a symbolic link" => symlink(&outside, inside.join("link")),
        "make a hard link" => fs::hard_link(inside.join("port"), inside.join("hard")),
        "let others read a file" => {
            fs::set_permissions(inside.join("port"), PermissionsExt::from_mode(0o644))
        }
        "connect to a port" => TcpStream::connect(&port).map(drop),
        "listen on a port" => TcpListener::bind("127.0.0.1:0").map(drop),
        "make a socket for datagrams" => UdpSocket::bind("127.0.0.1:0").map(drop),
        "send to an address" => datagrams.send_to(b"x", &port).map(drop),
        "connect to a socket's file" => UnixStream::connect(root.join("socket")).map(drop),
        "make a pair of sockets" => UnixStream::pair().map(drop),
        "execute a program" => Command::new("/bin/true").status().map(drop),
        "make a process" => make_a_process(),
        "trace" => of_nix(nix::sys::ptrace::traceme()),
        "signal another process" => of_nix(nix::sys::signal::kill(nix::unistd::getppid(), None)),
        "type into the terminal" => type_into_the_terminal(),
        "become another user" => of_nix(nix::unistd::setuid(nix::unistd::getuid())),
        "set a limit" => of_nix(setrlimit(Resource::RLIMIT_CORE, 0, 0)),
        "make a file in memory" => of_nix(memfd_create("file", MFdFlags::empty())),
        "write code while it can be executed" => {
            protected(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC)
        }
        "map code that can be written" => map_code_that_can_be_written(),
        "make a thread in a namespace of its own" => {
            let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_NEWPID;
            call(libc::SYS_clone, [flags as u64, 0, 0])
        }
        "make a process that shares memory" => {
            // The kernel refuses these flags together, because CLONE_PIDFD and CLONE_PARENT_SETTID both use the
            // third argument. So no process is made even if seccomp allows the call.
            let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID;
            call(libc::SYS_clone, [flags as u64, 0, 0])
        }
        "wait for a process" => of_nix(nix::sys::wait::waitpid(None, None)),
        "signal a thread of another process" => call(libc::SYS_tgkill, [parent, parent, 0]),
        "ask for a limit of another process" => call(libc::SYS_prlimit64, [parent, 0, 0]),
        "ask who gets a file's signals" => call(libc::SYS_fcntl, [fd, libc::F_GETOWN as u64, 0]),
        "let others trace it" => of_nix(nix::sys::prctl::set_dumpable(true)),
        "ask what filters can do" => ask_what_filters_can_do(),
        "ask a file as if it were KVM" => call(libc::SYS_ioctl, [fd, 0xae00, 0]),
        "ask a file as if it were VFIO" => call(libc::SYS_ioctl, [fd, 0x3b64, 0]),
        "ask a file as if it were a counter" => call(libc::SYS_ioctl, [fd, 0x2400, 0]),
        "make a descriptor for events" => call(libc::SYS_eventfd2, [0, 0, 0]),
        "wait for one of many files" => call(libc::SYS_epoll_ctl, [u64::MAX, 1, fd]),
        "copy a descriptor" => call(libc::SYS_fcntl, [fd, libc::F_DUPFD_CLOEXEC as u64, 0]),
        _ if what.starts_with(WITH_FLAG) => {
            let flag: libc::c_int = what[WITH_FLAG.len()..].parse().unwrap();
            // Without CLONE_SIGHAND the kernel refuses the call. So no thread is made even if seccomp allows the call.
            call(libc::SYS_clone, [(libc::CLONE_VM | libc::CLONE_THREAD | flag) as u64, 0, 0])
        }
        "enter the kind again" => {
            sandbox::enter(thread_kind(kind).unwrap_or(ThreadKind::GdbSession));
            Ok(())
        }
        "get memory" => {
            assert_eq!(vec![1_u8; 64 << 20].len(), 64 << 20);
            Ok(())
        }
        "print a message" => std::io::stderr().write_all(b"a message"),
        "panic" => std::panic::catch_unwind(|| panic!("as it should")).map_or(Ok(()), Ok),
        "ask for the terminal's mode" => terminal_request(libc::TCGETS),
        "ask for the terminal's size" => terminal_request(libc::TIOCGWINSZ),
        "read from an open file" => open.read_at(&mut [0], 0).map(drop),
        "write to an open file" => of_nix(nix::unistd::write(&here, b"x")),
        "send to an open socket" => send(&here),
        "flush a file" => open.sync_all(),
        "rename a file there" => fs::rename(inside.join("port"), inside.join("b")),
        "remove a file there" => fs::remove_file(inside.join("port")),
        "sleep" => {
            std::thread::sleep(Duration::from_nanos(1));
            Ok(())
        }
        "accept a client" => listener.accept().map(drop),
        "let clients come" => of_nix(nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::MAXCONN)),
        "ask who the user is" => call(libc::SYS_getuid, [0; 3]),
        "make a pipe" => std::io::pipe().map(drop),
        "stop the process's signals" => {
            // SAFETY: the process ignores the signal, and no handler runs.
            of_nix(unsafe {
                nix::sys::signal::signal(nix::sys::signal::SIGUSR1, nix::sys::signal::SigHandler::SigIgn)
            })
        }
        _ => panic!("nobody knows how to {what}"),
    };
    let result = match thread_kind(kind) {
        None => attempt(),
        Some(kind) => std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                sandbox::enter(kind);
                attempt()
            });
            thread.join().unwrap()
        }),
    };
    print!("{}", result.map_or_else(name_of, |()| "done".to_string()));
}

fn terminal_request(request: libc::c_ulong) -> std::io::Result<()> {
    let mut answer = [0_u8; 256];
    // SAFETY: the kernel's answer is smaller than `answer`.
    of_nix(Errno::result(unsafe { libc::ioctl(0, request, answer.as_mut_ptr()) }))
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

fn protected(protection: ProtFlags) -> std::io::Result<()> {
    let page = 4096.try_into().unwrap();
    // SAFETY: nothing refers to the new mapping, which is unmapped below.
    unsafe {
        let memory =
            mmap_anonymous(None, page, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?;
        let result = mprotect(memory, 4096, protection);
        munmap(memory, 4096)?;
        of_nix(result)
    }
}

fn map_code_that_can_be_written() -> std::io::Result<()> {
    let page = 4096.try_into().unwrap();
    let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
    // SAFETY: nothing refers to the new mapping.
    of_nix(unsafe { mmap_anonymous(None, page, all, MapFlags::MAP_PRIVATE) })
}

fn ask_what_filters_can_do() -> std::io::Result<()> {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    let operation = u64::from(libc::SECCOMP_GET_ACTION_AVAIL);
    call(libc::SYS_seccomp, [operation, 0, &raw const action as u64])
}

/// A system call by its number.
fn call(number: libc::c_long, [a, b, c]: [u64; 3]) -> std::io::Result<()> {
    // SAFETY: none of the calls in this file writes to memory of this process.
    of_nix(Errno::result(unsafe { libc::syscall(number, a, b, c, 0, 0, 0) }))
}

/// Sends one byte with `sendto`, without an address.
fn send(stream: &UnixStream) -> std::io::Result<()> {
    of_nix(nix::sys::socket::send(stream.as_fd().as_raw_fd(), b"x", nix::sys::socket::MsgFlags::empty()))
}

/// Makes a process like `fork`. The new process ends at once. Nobody waits for the new process, because waiting
/// would be another forbidden call.
fn make_a_process() -> std::io::Result<()> {
    // SAFETY: this process has one thread, and the new process only exits.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => std::process::exit(0),
        nix::unistd::ForkResult::Parent { .. } => Ok(()),
    }
}

fn type_into_the_terminal() -> std::io::Result<()> {
    // SAFETY: the kernel only reads one byte at the pointer.
    let result = unsafe { libc::ioctl(0, libc::TIOCSTI, b"x".as_ptr()) };
    of_nix(Errno::result(result))
}

fn clients_are_one_threads() {
    if sandbox::probe().calls != Ok(true) {
        return skip::test("this host has no seccomp");
    }
    assert_eq!(lines_of(&["clients"]), ["accepted"]);
    assert_eq!(command(&["clients-elsewhere"]).status().unwrap().signal(), Some(libc::SIGSYS));
}

/// Accepts a client. Unless `may` is true, the thread first gives up its right to accept clients.
fn accept(may: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sandbox::lock_in(&Needs { clients: true, ..Needs::default() }).unwrap();
    if !may {
        sandbox::narrow(&Needs::default()).unwrap();
    }
    listener.accept().unwrap();
    println!("accepted");
}

fn capabilities_are_given_up() {
    let before = fs::read_to_string("/proc/self/status").unwrap();
    if before.contains("CapEff:\t0000000000000000\n") {
        return skip::test("this user has no capabilities that could be given up");
    }
    let had = before.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
    let had = u64::from_str_radix(had, 16).unwrap();
    // CAP_PERFMON is 38, and CAP_IPC_LOCK is 14.
    for (need, kept) in [("nothing", 0), ("kvm", had & 1 << 38), ("vfio", had & 1 << 14)] {
        let after = lines_of(&["status", need]);
        for (set, expected) in
            [("CapInh", 0), ("CapPrm", kept), ("CapEff", kept), ("CapBnd", 0), ("CapAmb", 0)]
        {
            assert!(after.contains(&format!("{set}:\t{expected:016x}")), "{need}: {after:?}");
        }
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(after.contains(&line.to_string()), "{after:?}");
        }
    }
}

/// Root may debug a recording that belongs to another user, and that nobody else may change.
fn root_can_use_the_files_of_another_user() {
    if !nix::unistd::geteuid().is_root() || sandbox::probe().calls != Ok(true) {
        return skip::test("only root may give files to another user, and this host must have seccomp");
    }
    for (need, what, mode) in
        [("read", "read a file that was named", 0o600), ("written", "write a file in the folder", 0o755)]
    {
        let change = |root: &Path| {
            let path = root.join(if need == "read" { "named" } else { "recording" });
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        assert_eq!(result_in(need, what, change), "done", "{what}");
    }
}

/// Locks this process in with a need, and prints the kernel's status of the process.
fn status(need: &str) {
    let file = File::open("/proc/self/status").unwrap();
    sandbox::lock_in(&needs(need, Path::new("/"))).unwrap();
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
