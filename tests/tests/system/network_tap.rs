//! Tests the recording of a guest on a TAP interface. The interface is in its own network namespace, so the host's
//! network does not change.

use std::path::Path;
use std::process::Command;

use tests::network::{
    INTERFACE, RecordedGuest, TAP_HOST, Wire, export, in_own_network, ip, payloads, verify, why_no_tap,
};

use tests::guests::CLOUD;
use tests::program::{missing, ttvm};

use crate::network::{echo, fetch, page, serve_once, sum};

/// The guest's port for echoes.
const ECHO: u16 = 7;

/// Runs a test with a TAP interface. If that is not possible, skips the test with the reason.
fn on_tap(programs: &[&str], test: impl FnOnce(&Path, Wire) + Send) {
    if let Some(why) = missing(programs).or_else(|| missing(&["ip", "dumpcap"])).or_else(why_no_tap) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let ran = in_own_network(|| test(directory.path(), Wire::tap(directory.path())));
    assert!(ran.is_some(), "a network of its own was made a moment ago");
}

#[test]
fn a_tap_interface_sees_the_frames_that_the_recording_has() {
    on_tap(&["tshark"], |directory, mut wire| {
        let job = format!("{} && nc -l -p {ECHO} -e /bin/cat", fetch(serve_once(wire.host)));
        let guest = RecordedGuest::busybox(directory, &wire, &job);
        let text = page()[..300_000].to_vec();
        assert!(echo(wire.guest(ECHO), &text) == text, "it echoes something else");
        let (console, _) = guest.finish();
        assert!(console.contains(&sum()), "{console}");
        verify(directory);
        let guest = payloads(&export(directory).0);
        let bytes: u64 = guest.values().flatten().map(|(bytes, _)| bytes).sum();
        assert!(bytes > (page().len() + 2 * text.len()) as u64, "{bytes} bytes");
        assert_eq!(guest, payloads(wire.end_capture()), "the host's own capture says something else");
    });
}

#[test]
fn a_tap_interface_may_go_down_and_come_back_and_be_deleted() {
    on_tap(&[], |directory, wire| {
        // Each of these loops waits for a condition, and then prints a word. If the wait is too long, the job ends
        // with an error.
        let pinged = format!("ping -c 1 -W 1 {TAP_HOST} >/dev/null");
        let wait = |condition: &str, word: &str| {
            format!(
                "n=0; {condition} {pinged}; do n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.1; done; echo {word}; "
            )
        };
        let job =
            [wait("until", "CONNECTED"), wait("while", "LOST"), wait("until", "BACK"), wait("while", "GONE")];
        let mut guest = RecordedGuest::busybox(directory, &wire, &job.concat());
        guest.wait_for("CONNECTED");
        ip(&format!("link set {INTERFACE} down"));
        guest.wait_for("LOST");
        ip(&format!("link set {INTERFACE} up"));
        guest.wait_for("BACK");
        ip(&format!("link delete {INTERFACE}"));
        guest.wait_for("GONE");
        let (_, said) = guest.finish();
        assert_eq!(said.matches("goes on without a network").count(), 1, "{said}");
        verify(directory);
    });
}

#[test]
fn a_tap_interface_that_another_guest_has_is_refused_in_a_sentence() {
    on_tap(&[], |directory, wire| {
        let mut guest = RecordedGuest::busybox(directory, &wire, "echo READY; sleep 1");
        guest.wait_for("READY");
        let second = Command::new(ttvm())
            .args(["run", "--net", &wire.option, "--kernel"])
            .arg(CLOUD.path())
            .output()
            .expect("ttvm can be run");
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(second.status.code() == Some(5) && said.contains("another program has it"), "{said}");
        guest.finish();
        verify(directory);
    });
}

#[test]
fn rubbish_on_a_tap_interface_is_survived() {
    /// The commands that send frames of all protocols that a guest parses. The frames have all lengths up to the
    /// largest, and random bytes after their headers.
    const SEND: &str = "
import os, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
guest, other = bytes.fromhex('525400123456'), bytes.fromhex('020000000001')
for length in (14, 15, 60, 1514, 9000, 65535):
    for protocol in ('0800', '86dd', '0806', '8100', '88b5'):
        for to in (guest, b'\\xff' * 6):
            wire.send((to + other + bytes.fromhex(protocol) + os.urandom(length))[:length])
";
    on_tap(&["python3"], |directory, wire| {
        // Set the largest MTU that Linux allows, for frames of 64 KiB.
        ip(&format!("link set {INTERFACE} mtu 65521"));
        let job =
            format!("echo READY; nc -l -p {ECHO} -e /bin/cat; cat /sys/class/net/eth0/statistics/rx_bytes");
        let mut guest = RecordedGuest::busybox(directory, &wire, &job);
        guest.wait_for("READY");
        let sent =
            Command::new("python3").args(["-c", SEND, INTERFACE]).output().expect("python3 can be run");
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        assert_eq!(echo(wire.guest(ECHO), b"alive"), b"alive");
        let (console, _) = guest.finish();
        let received = console.lines().filter_map(|line| line.trim().parse::<u64>().ok()).max();
        assert!(received > Some(10 * 65_535), "the rubbish did not reach the guest: {console}");
        verify(directory);
    });
}
