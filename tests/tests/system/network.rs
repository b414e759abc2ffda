//! A guest on the network, recorded: what went over it is replayed without the network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tests::guests::{BUSYBOX, CLOUD};
use tests::program::ttvm;

/// What the host's server serves: enough for frames of all sizes, windows and retransmissions.
fn page() -> Vec<u8> {
    (0..2_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Serves the page once over HTTP, on a port of its own.
fn serve_once() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the guest connects");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).expect("the guest asks") > 2 {
            line.clear();
        }
        let mut stream = reader.into_inner();
        let page = page();
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", page.len()).unwrap();
        stream.write_all(&page).expect("the guest reads");
    });
    port
}

/// Begins to record the busybox guest, which runs `command`, with this network.
fn record(directory: &Path, network: &str, command: &str) -> Child {
    record_with(directory, network, command, &std::env::var("PATH").unwrap_or_default())
}

/// As [`record`], with programs from this path.
fn record_with(directory: &Path, network: &str, command: &str, path: &str) -> Child {
    Command::new(ttvm())
        .env("PATH", path)
        .args(["record", "--output"])
        .arg(recording(directory))
        .arg("--kernel")
        .arg(CLOUD.path())
        .arg("--initrd")
        .arg(BUSYBOX.path())
        .args(["--cmdline", &format!("console=ttyS0 quiet ttvm.run=\"{command}\""), "--net", network])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ttvm starts")
}

fn recording(directory: &Path) -> PathBuf {
    directory.join("R.ttvm")
}

/// Waits for the end, which must be a power-off, and gives what the console showed.
fn finish(child: Child) -> String {
    let output = child.wait_with_output().expect("ttvm ends");
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{console}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(console.contains("ttvm.run: exit status 0"), "{console}");
    console
}

/// Replays with every comparison, on one of the CPU's tiers.
fn verify(directory: &Path, engine: &str) {
    let arguments = ["--verify", "--quiet", "--engine", engine];
    let output =
        Command::new(ttvm()).arg("replay").arg(recording(directory)).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("replayed to the end"), "{said}");
}

/// Writes the capture file, and gives its path and what was said.
fn export(directory: &Path) -> (PathBuf, String) {
    let capture = directory.join("R.pcapng");
    let output = Command::new(ttvm())
        .arg("export-pcap")
        .arg(recording(directory))
        .arg("--output")
        .arg(&capture)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (capture, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What tshark prints of a capture's fields, a line for each frame that passes the filter.
fn tshark(capture: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    command.args(["-Y", filter, "-T", "fields"]);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[test]
fn a_guest_fetches_from_the_host_and_the_recording_needs_no_network() {
    if !is_installed("passt") {
        return skip::test("there is no passt");
    }
    let directory = tempfile::tempdir().unwrap();
    let port = serve_once();
    // The host is where the gateway is, for passt.
    let fetch = format!(
        "G=$(ip route | awk /default/{{print\\$3}}); wget -q -O /tmp/page http://$G:{port}/ && md5sum /tmp/page"
    );
    let console = finish(record(directory.path(), "user", &fetch));
    let sum =
        Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().and_then(|mut child| {
            child.stdin.take().expect("it was asked for").write_all(&page())?;
            child.wait_with_output()
        });
    let sum = String::from_utf8_lossy(&sum.unwrap().stdout)[..32].to_string();
    assert!(console.contains(&sum), "{console}");
    verify(directory.path(), "soft,interpreter");
    let (capture, said) = export(directory.path());
    assert!(said.contains("frames received"), "{said}");
    let log = recording(directory.path()).join("events.log");
    let again =
        Command::new(ttvm()).arg("export-pcap").arg(recording(directory.path())).arg("-o").arg(&log).output();
    assert!(!again.unwrap().status.success(), "a recording's log was overwritten");
    verify(directory.path(), "soft");
    if !is_installed("tshark") {
        return skip::test("there is no tshark: the capture file was not read");
    }
    let wrong = tshark(&capture, "tcp.checksum.status == 0 || ip.checksum.status == 0", &["frame.number"]);
    assert_eq!(wrong, [""; 0], "frames with a wrong checksum");
    let frames =
        tshark(&capture, "frame", &["frame.comment", "frame.time_epoch", "frame.packet_flags_direction"]);
    assert!(frames.len() > 20 && frames.iter().all(|frame| frame.starts_with("insn:")), "{frames:?}");
    let received = tshark(&capture, &format!("tcp.srcport == {port} && tcp.len > 0"), &["tcp.len"]);
    let bytes: usize = received.iter().map(|length| length.parse::<usize>().unwrap()).sum();
    assert!(bytes > page().len(), "{bytes} bytes of {}", page().len());
}

#[test]
fn a_port_of_the_host_leads_into_the_guest() {
    if !is_installed("passt") {
        return skip::test("there is no passt");
    }
    let directory = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let network = format!("user,hostfwd=tcp:127.0.0.1:{free}-:7");
    let child = record(directory.path(), &network, "nc -l -p 7 -e /bin/cat");
    let text: Vec<u8> = page()[..300_000].to_vec();
    let begin = Instant::now();
    // Until the guest listens, passt takes connections and drops them.
    let echoed = loop {
        let echoed = echo(free, &text);
        if echoed.is_ok() || begin.elapsed() > Duration::from_secs(120) {
            break echoed;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(echoed.expect("the guest answers") == text, "it echoes something else");
    finish(child);
    verify(directory.path(), "soft");
}

/// Sends a text to a port, and gives what comes back for it.
fn echo(port: u16, text: &[u8]) -> std::io::Result<Vec<u8>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut sender = stream.try_clone()?;
    let mut receiver = stream;
    let mut back = vec![0; text.len()];
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(text));
        receiver.read_exact(&mut back)
    })?;
    Ok(back)
}

#[test]
fn a_guest_that_loses_its_network_goes_on_and_replays() {
    if !is_installed("passt") {
        return skip::test("there is no passt");
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, noted) = noted_passt(directory.path());
    let mut child = record_with(directory.path(), "user", "echo connected; sleep 5; ip route", &path);
    let mut console = BufReader::new(child.stdout.take().expect("it was asked for"));
    let mut line = String::new();
    while !line.contains("connected") {
        line.clear();
        assert_ne!(console.read_line(&mut line).unwrap(), 0, "the guest has ended");
    }
    let process = std::fs::read_to_string(&noted).expect("passt notes its process");
    assert!(Command::new("kill").arg(process.trim()).status().unwrap().success());
    std::io::copy(&mut console, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("goes on without a network"), "{said}");
    verify(directory.path(), "soft");
}

/// Puts a `passt` before the host's on the path, which notes its process in a file; gives the path, and the file.
fn noted_passt(directory: &Path) -> (String, PathBuf) {
    let (script, noted) = (directory.join("passt"), directory.join("passt.pid"));
    let path = std::env::var("PATH").unwrap_or_default();
    let text = format!("#!/bin/sh\nPATH='{path}'\nexec passt --pid '{}' \"$@\"\n", noted.display());
    std::fs::write(&script, text).unwrap();
    // Where the test is root, passt is not any more when it writes the file.
    for (file, mode) in [(&*script, 0o755), (directory, 0o777)] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    (format!("{}:{path}", directory.display()), noted)
}

#[test]
fn what_cannot_be_connected_is_said_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let said = |network: &str, path: &str| {
        let output = Command::new(ttvm())
            .args(["run", "--kernel"])
            .arg(CLOUD.path())
            .args(["--net", network])
            .env("PATH", path)
            .current_dir(&directory)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = said("user", "/nowhere");
    assert!(code == Some(5) && text.contains("install Debian's package passt"), "{code:?}: {text}");
    let (code, text) = said("tap,ifname=a-name-that-is-too-long-for-one", "/bin");
    assert!(code == Some(5) && text.contains("cannot use the TAP interface"), "{code:?}: {text}");
    let (code, text) = said("vde", "/bin");
    assert!(code == Some(2) && text.contains("tap,ifname=NAME"), "{code:?}: {text}");
}
