//! Tests the recording of a guest with a network. The replay needs no network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tests::guests::CLOUD;
use tests::network::{
    Amounts, RecordedGuest, SSH, WEB, Wire, export, passt_process, payloads, record_work, recording, verify,
    verify_on,
};
use tests::program::{missing, ttvm};

/// Returns the page that the host's web server serves. The page is large enough for frames of all sizes, for full
/// windows and for retransmissions.
pub(crate) fn page() -> Vec<u8> {
    (0..2_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Serves the page once over HTTP, on a free port.
pub(crate) fn serve_once(host: Ipv4Addr) -> u16 {
    let listener = TcpListener::bind((host, 0)).expect("a port is free");
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

/// Returns the guest's command to fetch the page. The guest reaches the host at the gateway's address.
pub(crate) fn fetch(port: u16) -> String {
    format!(
        "G=$(ip route | awk /default/{{print\\$3}}); wget -q -O /tmp/page http://$G:{port}/ && md5sum /tmp/page"
    )
}

/// The page's MD5 sum.
pub(crate) fn sum() -> String {
    let mut md5sum = Command::new("md5sum");
    let mut process = md5sum.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("md5sum can be run");
    process.stdin.take().expect("it was asked for").write_all(&page()).expect("md5sum reads");
    let output = process.wait_with_output().expect("md5sum ends");
    String::from_utf8_lossy(&output.stdout)[..32].to_string()
}

/// Runs tshark on a capture. Returns a line with the given fields for each frame that passes the filter.
fn tshark(capture: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    command.args(["-Y", filter, "-T", "fields"]);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

#[test]
fn a_guest_fetches_from_the_host_and_the_recording_needs_no_network() {
    if let Some(why) = missing(&["passt"]) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut wire = Wire::user(directory.path(), &[]);
    let guest = RecordedGuest::busybox(directory.path(), &wire, &fetch(serve_once(wire.host)));
    let (console, _) = guest.finish();
    assert!(console.contains(&sum()), "{console}");
    verify_on(directory.path(), "soft,interpreter");
    let (capture, said) = export(directory.path());
    assert!(said.contains("frames received"), "{said}");
    let log = recording(directory.path()).join("events.log");
    let again =
        Command::new(ttvm()).arg("export-pcap").arg(recording(directory.path())).arg("-o").arg(&log).output();
    assert!(!again.unwrap().status.success(), "a recording's log was overwritten");
    verify(directory.path());
    if let Some(why) = missing(&["tshark"]) {
        return skip::test(format!("{why}: the capture file was not read"));
    }
    let wrong = tshark(&capture, "tcp.checksum.status == 0 || ip.checksum.status == 0", &["frame.number"]);
    assert_eq!(wrong, [""; 0], "frames with a wrong checksum");
    let frames =
        tshark(&capture, "frame", &["frame.comment", "frame.time_epoch", "frame.packet_flags_direction"]);
    assert!(frames.len() > 20 && frames.iter().all(|frame| frame.starts_with("insn:")), "{frames:?}");
    let found = payloads(&capture);
    let bytes: u64 = found.values().flatten().map(|(bytes, _)| bytes).sum();
    assert!(bytes > page().len() as u64, "{bytes} bytes of {}", page().len());
    assert_eq!(found, payloads(wire.end_capture()), "passt's own capture says something else");
}

#[test]
fn a_port_of_the_host_leads_into_the_guest() {
    if let Some(why) = missing(&["passt"]) {
        return skip::test(why);
    }
    const ECHO: u16 = 7;
    let directory = tempfile::tempdir().unwrap();
    let wire = Wire::user(directory.path(), &[ECHO]);
    // The guest's nc takes only one connection. While the guest has no network, passt keeps a connection, and nc would
    // get it when this side has already given up. So begin when the network is there.
    let mut guest = RecordedGuest::busybox(directory.path(), &wire, "echo READY; nc -l -p 7 -e /bin/cat");
    guest.wait_for("READY");
    let text: Vec<u8> = page()[..300_000].to_vec();
    assert!(echo(wire.guest(ECHO), &text) == text, "it echoes something else");
    guest.finish();
    verify(directory.path());
}

/// Sends a text to the guest, and returns the answer.
pub(crate) fn echo(place: SocketAddrV4, text: &[u8]) -> Vec<u8> {
    let begin = Instant::now();
    let mut failures = Vec::new();
    // Until the guest listens, passt accepts connections and closes them, so try again.
    loop {
        match echo_once(place, text) {
            Ok(back) => return back,
            Err(why) => failures.push(why.to_string()),
        }
        failures.dedup();
        assert!(begin.elapsed() < Duration::from_secs(300), "the guest does not answer: {failures:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn echo_once(place: SocketAddrV4, text: &[u8]) -> std::io::Result<Vec<u8>> {
    let stream = TcpStream::connect(place)?;
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
fn debian_installs_a_package_answers_ssh_and_serves_pages() {
    if let Some(why) = missing(&["passt", "ssh", "ab", "dpkg-deb"]) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let wire = Wire::user(directory.path(), &[SSH, WEB]);
    let amounts = Amounts { requests: 2_000, keep_alive: false, stream_seconds: 2, stream_rate: 1_000_000 };
    record_work(directory.path(), &wire, &amounts);
    verify(directory.path());
}

#[test]
fn a_guest_that_loses_its_network_goes_on_and_replays() {
    if let Some(why) = missing(&["passt"]) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let wire = Wire::user(directory.path(), &[]);
    let mut guest = RecordedGuest::busybox(directory.path(), &wire, "echo connected; sleep 5; ip route");
    guest.wait_for("connected");
    let process = std::fs::read_to_string(passt_process(directory.path())).expect("passt notes its process");
    assert!(Command::new("kill").arg(process.trim()).status().unwrap().success());
    let (_, said) = guest.finish();
    assert!(said.contains("goes on without a network"), "{said}");
    verify(directory.path());
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
    Wire::to(directory.path(), "exec sleep 600");
    let (code, text) = said("user", &format!("{}:/bin", directory.path().display()));
    assert!(code == Some(1) && text.contains("passt: it was not ready after"), "{code:?}: {text}");
    let (code, text) = said("tap,ifname=a-name-that-is-too-long-for-one", "/bin");
    assert!(code == Some(5) && text.contains("cannot use the TAP interface"), "{code:?}: {text}");
    let (code, text) = said("vde", "/bin");
    assert!(code == Some(2) && text.contains("tap,ifname=NAME"), "{code:?}: {text}");
}
