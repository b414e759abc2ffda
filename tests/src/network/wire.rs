//! The connection between guest and host, and the host's own capture of its frames.

use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::guests::BUSYBOX_PROGRAM;

/// The TAP interface. The interface is in its own network namespace, so no other interface has this name.
pub const INTERFACE: &str = "ttvm0";
/// The host's address on the TAP interface.
pub const TAP_HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const TAP_GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A connection between guest and host, and the program that captures its frames.
pub struct Wire {
    /// The value of ttvm's option `--net`.
    pub option: String,
    /// The folders in which ttvm looks for programs.
    pub path: String,
    /// The host's address, at which servers for the guest listen.
    pub host: Ipv4Addr,
    /// Pairs of a guest's port and its address on the host. A port without an entry has the same number on the host.
    forwards: Vec<(u16, SocketAddrV4)>,
    capture: PathBuf,
    address_server: Option<Child>,
    capturer: Option<Child>,
}

impl Wire {
    /// Returns a connection through passt, which forwards connections to these ports of the guest. passt itself
    /// writes the capture.
    pub fn user(directory: &Path, ports: &[u16]) -> Wire {
        let (capture, process) = (directory.join("passt.pcap"), passt_process(directory));
        let path = std::env::var("PATH").unwrap_or_default();
        let (capture_name, process_name) = (capture.display(), process.display());
        let run = format!("PATH='{path}'\nexec passt --pcap '{capture_name}' --pid '{process_name}' \"$@\"");
        // Everybody may write here, because a passt that root starts has given up root when it writes these files.
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("the folder is ours");
        let mut wire = Wire::to(directory, &run);
        wire.capture = capture;
        wire.forwards = ports.iter().map(|&port| (port, free_place())).collect();
        for (port, place) in &wire.forwards {
            wire.option += &format!(",hostfwd=tcp:{}:{}-:{port}", place.ip(), place.port());
        }
        wire
    }

    /// Returns a connection in which this script replaces passt.
    pub fn to(directory: &Path, script: &str) -> Wire {
        let program = directory.join("passt");
        std::fs::write(&program, format!("#!/bin/bash\n{script}\n")).expect("there is room for a script");
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("the script is ours");
        let path = std::env::var("PATH").unwrap_or_default();
        Wire {
            option: "user".to_string(),
            path: format!("{}:{path}", directory.display()),
            host: Ipv4Addr::LOCALHOST,
            forwards: Vec::new(),
            capture: PathBuf::new(),
            address_server: None,
            capturer: None,
        }
    }

    /// Returns a connection through a TAP interface. The caller must be in its own network namespace. The function
    /// activates the interface, and starts a DHCP server for the guest and dumpcap, which captures the frames.
    pub fn tap(directory: &Path) -> Wire {
        let capture = directory.join("tap.pcapng");
        ip(&format!("tuntap add {INTERFACE} mode tap"));
        ip(&format!("address add {TAP_HOST}/24 dev {INTERFACE}"));
        ip(&format!("link set {INTERFACE} up"));
        ip("link set lo up");
        Wire {
            option: format!("tap,ifname={INTERFACE}"),
            path: std::env::var("PATH").unwrap_or_default(),
            host: TAP_HOST,
            forwards: Vec::new(),
            address_server: Some(serve_addresses(directory)),
            capturer: Some(begin_capture(&capture)),
            capture,
        }
    }

    /// The host's address for connections to this port of the guest.
    pub fn guest(&self, port: u16) -> SocketAddrV4 {
        let forward = self.forwards.iter().find(|(forwarded, _)| *forwarded == port);
        forward.map_or(SocketAddrV4::new(TAP_GUEST, port), |(_, place)| *place)
    }

    /// Ends the host's capture, and returns its file. The guest must have ended.
    pub fn end_capture(&mut self) -> &Path {
        if let Some(mut capturer) = self.capturer.take() {
            signal(&capturer, Signal::SIGINT);
            capturer.wait().expect("dumpcap ends");
        }
        &self.capture
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for helper in self.address_server.iter_mut().chain(&mut self.capturer) {
            _ = helper.kill();
            _ = helper.wait();
        }
    }
}

/// The file to which the passt of [`Wire::user`] writes its process number.
pub fn passt_process(directory: &Path) -> PathBuf {
    directory.join("passt.pid")
}

/// Runs a function in a new network namespace, which exists only until the function returns. Returns `None` if this
/// process is not allowed to make namespaces.
pub fn in_own_network<R: Send>(run: impl FnOnce() -> R + Send) -> Option<R> {
    // Only this thread and its children change to the namespace.
    let in_thread = || unshare(CloneFlags::CLONE_NEWNET).is_ok().then(run);
    std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Returns the reason why the test cannot use a TAP interface on this host; `None` if it can use one.
pub fn why_no_tap() -> Option<String> {
    let tried = in_own_network(|| {
        let added = Command::new("ip").args(["tuntap", "add", INTERFACE, "mode", "tap"]).output();
        added.is_ok_and(|output| output.status.success())
    });
    match tried {
        Some(true) => None,
        Some(false) => Some("`ip tuntap add` makes no TAP interface".to_string()),
        None => Some("a network of one's own for a TAP interface needs root".to_string()),
    }
}

/// Runs iproute's `ip`.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip can be run");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn free_place() -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().expect("it is bound").port())
}

/// Starts busybox's DHCP server, which has only one address for guests.
fn serve_addresses(directory: &Path) -> Child {
    let (settings, leases) = (directory.join("udhcpd.conf"), directory.join("leases"));
    let text = format!(
        "interface {INTERFACE}\nstart {TAP_GUEST}\nend {TAP_GUEST}\nopt subnet 255.255.255.0\nopt router {TAP_HOST}\n\
         lease_file {}\npidfile {}\n",
        leases.display(),
        directory.join("udhcpd.pid").display()
    );
    std::fs::write(&leases, "")
        .and_then(|()| std::fs::write(&settings, text))
        .expect("there is room for settings");
    let mut server = Command::new(BUSYBOX_PROGRAM.path());
    // Before the server gives an address away, it asks on the network whether the address is used. `-a` is the
    // number of milliseconds that it waits for an answer.
    server.args(["udhcpd", "-f", "-a", "100"]).arg(settings);
    server
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("busybox can be run")
}

fn begin_capture(capture: &Path) -> Child {
    let mut dumpcap = Command::new("dumpcap");
    dumpcap.args(["-q", "-B", "64", "-i", INTERFACE, "-w"]).arg(capture);
    let silent = dumpcap.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = silent.spawn().expect("dumpcap can be run");
    // Wait until dumpcap captures: then it writes the header of the capture file.
    while std::fs::metadata(capture).map_or(true, |file| file.len() == 0) {
        let ended = process.try_wait().expect("dumpcap is ours");
        assert!(ended.is_none(), "dumpcap does not capture on {INTERFACE}: {ended:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

fn signal(process: &Child, signal: Signal) {
    kill(Pid::from_raw(process.id() as i32), signal).expect("the process is ours");
}
