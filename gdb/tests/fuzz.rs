//! Random and mutated packets: the server must answer and survive all of them.
//!
//! A session reads its packets from a script and puts its replies into a buffer, so nothing depends on time. A failure
//! prints its seed.

mod common;

use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Toy, packet};
use gdb::{SessionEnd, serve_stream};

const SESSIONS: u64 = 1500;
const PACKETS_PER_SESSION: u64 = 40;

const VALID: &[&str] = &[
    "qSupported:multiprocess+;swbreak+;hwbreak+;qRelocInsn+",
    "QStartNoAckMode",
    "Hg0",
    "Hc0",
    "Hcp1.1",
    "?",
    "qC",
    "qfThreadInfo",
    "qsThreadInfo",
    "qThreadExtraInfo,p1.1",
    "qAttached:1",
    "qTStatus",
    "qOffsets",
    "vCont?",
    "qXfer:features:read:target.xml:0,ffb",
    "vMustReplyEmpty",
    "g",
    "p10",
    "P0=0102030405060708",
    "m1000,40",
    "mfff0,100",
    "M3000,4:01020304",
    "X3000,3:abc",
    "Z0,1009,1",
    "z0,1009,1",
    "Z1,1010,1",
    "z1,1010,1",
    "Z2,2000,4",
    "z2,2000,4",
    "Z3,2000,1",
    "Z4,2000,8",
    "vCont;c",
    "vCont;c:p1.-1",
    "vCont;s:p1.1;c:p1.-1",
    "vCont;r1007,1010:p1.1;c:p1.-1",
    "c",
    "s",
    "C05",
    "bs",
    "bc",
    "qRcmd,7768657265",
    "Tp1.1",
    "qSymbol::",
    "R00",
    "!",
];

/// xorshift64*, as published by Vigna.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

/// A client whose whole input is fixed in advance.
struct Script {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
    /// A descriptor that is always readable, as the script is.
    descriptor: File,
}

impl Read for &mut Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for &mut Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for &mut Script {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn mutate(body: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let place = random.below(body.len() as u64 + 1) as usize;
        match random.below(5) {
            0 => body.insert(place, random.byte()),
            1 => body.truncate(place),
            2 => body.insert(place, b"0123456789abcdef,;:.-=zZ"[random.below(24) as usize]),
            3 => body.splice(place..place, b"ffffffffffffffff".iter().copied()).for_each(drop),
            _ => {
                if let Some(byte) = body.get_mut(place) {
                    *byte = random.byte();
                }
            }
        }
    }
}

fn piece(random: &mut Random) -> Vec<u8> {
    let mut body = VALID[random.below(VALID.len() as u64) as usize].as_bytes().to_vec();
    match random.below(8) {
        0..3 => packet(&body),
        3..6 => {
            mutate(&mut body, random);
            packet(&body)
        }
        6 => {
            // Makes wrong checksums, missing ends, and bytes between packets.
            let mut bytes = packet(&body);
            mutate(&mut bytes, random);
            bytes
        }
        _ => (0..random.below(64)).map(|_| random.byte()).collect(),
    }
}

fn session(seed: u64) -> (SessionEnd, Vec<u8>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut input: Vec<u8> = (0..PACKETS_PER_SESSION).flat_map(|_| piece(&mut random)).collect();
    // The first of these packets ends an unfinished packet, because the dollar sign always starts a new packet.
    input.extend(packet(b"?").repeat(2));
    let mut script = Script {
        input: Cursor::new(input),
        output: Vec::new(),
        descriptor: File::open("/dev/null").expect("every Unix has one"),
    };
    let mut toy = Toy { writable: seed.is_multiple_of(2), ..Toy::new() };
    let end = serve_stream(&mut script, &mut toy);
    assert!(toy.breakpoints.is_empty() && toy.watchpoints.is_empty(), "stops are left behind");
    (end, script.output)
}

#[test]
fn the_server_survives_anything() {
    let mut closed = 0;
    for seed in 0..SESSIONS {
        let outcome = catch_unwind(AssertUnwindSafe(|| session(seed)));
        let (end, output) = outcome.unwrap_or_else(|_| panic!("the session with seed {seed} panicked"));
        match end {
            SessionEnd::Closed => {
                let answer = b"$T05thread:";
                let tail = &output[output.len().saturating_sub(32)..];
                assert!(tail.windows(answer.len()).any(|window| window == answer), "seed {seed}: {tail:?}");
                closed += 1;
            }
            SessionEnd::Killed | SessionEnd::Detached => {}
            SessionEnd::Lost(why) => panic!("seed {seed}: {why}"),
        }
    }
    // Random kill and detach requests are rare, so most sessions must reach the end of their script.
    assert!(closed > SESSIONS * 3 / 4, "only {closed} sessions came to their end");
}
