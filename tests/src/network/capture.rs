//! Reads the TCP payload from a capture file with tshark, and reassembles both directions of each connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use twox_hash::XxHash3_128;

const FIELDS: [&str; 7] =
    ["ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", "tcp.stream", "tcp.seq", "tcp.payload"];

/// The payload of one direction of a connection: the number of bytes, and their hash.
type Payload = (u64, u128);

/// Maps each pair of source and destination to a list with the payload of each of their connections, in order.
pub type Payloads = BTreeMap<String, Vec<Payload>>;

/// Reads a capture file. Fails if bytes are missing in the middle of a direction.
pub fn payloads(capture: &Path) -> Payloads {
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(capture).args(["-o", "tcp.desegment_tcp_streams:FALSE"]);
    // Do not let tshark decode the protocols inside TCP.
    tshark.args(["--disable-protocol", "http", "--disable-protocol", "ssh"]);
    tshark.args(["-Y", "ip && tcp.len > 0", "-T", "fields"]);
    FIELDS.iter().for_each(|field| _ = tshark.args(["-e", field]));
    let mut process = tshark.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tshark starts");
    let lines = BufReader::new(process.stdout.take().expect("it was asked for")).lines();
    let found = assembled(lines.map(|line| line.expect("tshark writes text")));
    assert!(process.wait().expect("tshark ends").success(), "tshark does not read {}", capture.display());
    found
}

/// Reassembles segments. Each line has the tab-separated [`FIELDS`] of one segment.
fn assembled(lines: impl Iterator<Item = String>) -> Payloads {
    let mut directions: BTreeMap<(String, u64), Direction> = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[from, from_port, to, to_port, stream, sequence, payload] = fields.as_slice() else {
            panic!("tshark writes {} fields: {line}", fields.len())
        };
        let place = format!("{from}:{from_port} to {to}:{to_port}");
        let direction = directions.entry((place, number(stream))).or_default();
        // The first byte of a connection has sequence number 1.
        direction.add(number(sequence).saturating_sub(1), bytes(payload));
    }
    let mut payloads = Payloads::new();
    for ((place, _), direction) in directions {
        let bytes = direction.bytes;
        assert!(direction.early.is_empty(), "{place}: bytes are missing behind the first {bytes}");
        payloads.entry(place).or_default().push((bytes, direction.hash.finish_128()));
    }
    payloads
}

/// Segments of one direction, in order of arrival.
struct Direction {
    bytes: u64,
    hash: XxHash3_128,
    /// Segments that arrived before an earlier part of the stream.
    early: BTreeMap<u64, Vec<u8>>,
}

impl Default for Direction {
    fn default() -> Direction {
        Direction { bytes: 0, hash: XxHash3_128::new(), early: BTreeMap::new() }
    }
}

impl Direction {
    fn add(&mut self, at: u64, segment: Vec<u8>) {
        // If two segments begin at the same byte, the longer segment contains all bytes of the shorter segment.
        let known = self.early.entry(at).or_default();
        if segment.len() > known.len() {
            *known = segment;
        }
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() <= self.bytes) {
            let (at, segment) = entry.remove_entry();
            let seen = (self.bytes - at) as usize;
            if let Some(new) = segment.get(seen..) {
                self.hash.write(new);
                self.bytes += new.len() as u64;
            }
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("tshark writes {text:?} for a number"))
}

fn bytes(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|&letter| letter != ':').collect();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok();
        text.and_then(|text| u8::from_str_radix(text, 16).ok()).expect("tshark writes bytes in hex")
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of one direction, with their connection, number and bytes.
    fn of(segments: &[(u64, u64, &str)]) -> Payloads {
        let line = |(stream, sequence, payload): &(u64, u64, &str)| {
            let hex: String = payload.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("10.0.0.1\t1000\t10.0.0.2\t80\t{stream}\t{sequence}\t{hex}")
        };
        assembled(segments.iter().map(line))
    }

    #[test]
    fn segments_are_put_together_however_they_were_cut_and_repeated() {
        let whole = of(&[(0, 1, "one two three"), (3, 1, "again")]);
        assert_eq!(whole["10.0.0.1:1000 to 10.0.0.2:80"].len(), 2);
        let pieces = [
            (0, 5, "two "),
            (0, 1, "one"),
            (0, 1, "one "),
            (0, 3, "e two th"),
            (0, 9, "three"),
            (1, 1, "again"),
        ];
        assert_eq!(of(&pieces), whole, "the numbers of connections do not matter");
        assert_ne!(of(&[(0, 1, "one two threE"), (3, 1, "again")]), whole);
        assert_ne!(of(&[(0, 1, "one two thre"), (3, 1, "again")]), whole);
        assert_ne!(of(&[(0, 1, "again"), (3, 1, "one two three")]), whole);
    }

    #[test]
    #[should_panic(expected = "bytes are missing behind the first 3")]
    fn a_hole_is_no_payload() {
        of(&[(0, 1, "one"), (0, 5, "two")]);
    }
}
