//! Tests hostile network peers in place of passt, which send invalid frames or too much data. The guest and the
//! recorder must continue to work.

use std::path::Path;

use tests::network::{RecordedGuest, Wire, verify};
use tests::random::Random;

/// The guest's address, and an address that no card has.
const TO_GUEST: [u8; 12] = [0x52, 0x54, 0, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 1];

/// Returns a connection to a peer that replaces passt. In the peer's script, `$peer` is the socket to ttvm, from
/// which the peer reads all data. `wait_for_guest` waits for the guest's first frame, which shows that the guest
/// listens.
fn peer(directory: &Path, script: &str) -> Wire {
    let whole = format!(
        "while [ \"$1\" != --fd ]; do shift; done
        peer=$2
        cd '{}'
        wait_for_guest() {{ until [ -s received ]; do sleep 0.1; done; }}
        (
            cat <&$peer >received &
            {script}
        ) </dev/null >/dev/null 2>&1 &",
        directory.display()
    );
    Wire::to(directory, &whole)
}

/// A frame of a given length, in the format of passt's socket. The frame's protocol is `kind`, and the rest of the
/// frame is random bytes.
fn frame(random: &mut Random, kind: [u8; 2], length: usize) -> Vec<u8> {
    let mut frame = (length as u32).to_be_bytes().to_vec();
    let rubbish = std::iter::repeat_with(|| random.next_u64() as u8);
    frame.extend(TO_GUEST.into_iter().chain(kind).chain(rubbish).take(length));
    frame
}

/// The command with which the guest prints the number of received frames.
const RECEIVED: &str = "echo RECEIVED $(cat /sys/class/net/eth0/statistics/rx_packets)";

fn received(line: &str) -> u64 {
    let number = line.split_whitespace().last().and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("the guest says {line:?}"))
}

#[test]
fn rubbish_from_a_peer_is_survived_and_what_is_no_frame_ends_the_network() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new(21);
    let mut rubbish = Vec::new();
    for length in [0, 1, 13, 14, 15, 60, 1_514, 9_000, 65_534, 65_535] {
        for kind in [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0], [0x88, 0xb5]] {
            rubbish.extend(frame(&mut random, kind, length));
        }
    }
    std::fs::write(directory.path().join("rubbish"), rubbish).unwrap();
    // A frame of 64 KiB, which is too long.
    std::fs::write(directory.path().join("too-long"), [&[0, 1, 0, 0][..], &[0x5a; 0x1_0000]].concat())
        .unwrap();
    let wire = peer(
        directory.path(),
        "wait_for_guest; cat rubbish >&$peer; until [ -e seen ]; do sleep 0.1; done; cat too-long >&$peer",
    );
    let job = format!("{RECEIVED}; sleep 5; echo ALIVE");
    let mut guest = RecordedGuest::busybox(directory.path(), &wire, &job);
    // Three of the ten lengths are too short for an Ethernet frame, so the guest does not receive all frames.
    let count = received(&guest.wait_for("RECEIVED"));
    assert!(count >= 30, "the rubbish did not reach the guest: {count} frames did");
    std::fs::write(directory.path().join("seen"), "").unwrap();
    guest.wait_for("ALIVE");
    let (_, said) = guest.finish();
    assert_eq!(said.matches("goes on without a network").count(), 1, "{said}");
    assert!(said.contains("passt sent an invalid frame"), "{said}");
    verify(directory.path());
}

#[test]
fn a_peer_that_floods_costs_no_memory_and_does_not_hold_up_the_guest() {
    /// Number of frames in one piece of the flood.
    const FRAMES: usize = 2_000;
    /// Number of pieces that the peer sends after the guest listens.
    const PIECES: usize = 80;
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new(22);
    let flood: Vec<u8> = (0..FRAMES).flat_map(|_| frame(&mut random, [0x88, 0xb5], 1_514)).collect();
    let flood_bytes = (PIECES * flood.len()) as u64;
    std::fs::write(directory.path().join("flood"), flood).unwrap();
    // The peer sends frames without end until the guest's driver listens. After that, the peer sends so many frames
    // that the recorder's memory use would show it if the recorder kept them.
    let pieces = format!("for i in {{1..{PIECES}}}; do cat flood; done");
    let script = format!("(until [ -s received ]; do cat flood; done; {pieces}) >&$peer");
    let wire = peer(directory.path(), &script);
    let most = FRAMES * PIECES * 3 / 4;
    let job = format!(
        "n=0; until [ $(cat /sys/class/net/eth0/statistics/rx_packets) -gt {most} ]; do n=$((n+1)); \
         [ $n -lt 3000 ] || exit 1; sleep 0.1; done; echo FLOODED"
    );
    let mut guest = RecordedGuest::busybox(directory.path(), &wire, &format!("{job}; sleep 1"));
    guest.wait_for("FLOODED");
    let peak = guest.peak_bytes();
    guest.finish();
    println!("at most {} MB of memory, for {} MB", peak >> 20, flood_bytes >> 20);
    assert!(peak < flood_bytes, "{peak} bytes of memory, for {flood_bytes}");
    verify(directory.path());
}
