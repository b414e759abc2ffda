//! Sends a paced TCP stream to the guest, which sends every byte back.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::random::Random;

/// Number of parts in which a second's share of the stream is sent.
const PARTS: u64 = 10;

/// A stream before the guest has connected.
pub struct Stream {
    listener: TcpListener,
    parts: u64,
    part_bytes: usize,
}

/// The result of a stream whose bytes all came back unchanged.
pub struct Echoed {
    /// Number of bytes in each direction.
    pub bytes: u64,
    /// The time until the last of these bytes came back.
    pub elapsed: Duration,
}

impl Stream {
    /// Listens for the guest's connection at this address of the host.
    pub fn listen(host: Ipv4Addr, seconds: u64, rate: u64) -> Stream {
        let listener = TcpListener::bind((host, 0)).expect("a port is free");
        Stream { listener, parts: seconds * PARTS, part_bytes: (rate / PARTS) as usize }
    }

    /// The port for the guest's connection.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("it is bound").port()
    }

    /// Sends the stream to the guest, and compares the echo.
    pub fn run(self) -> Echoed {
        let (connection, _) = self.listener.accept().expect("the guest connects");
        let began = Instant::now();
        let sender = connection.try_clone().expect("a connection can be shared");
        std::thread::scope(|scope| {
            scope.spawn(|| self.send(sender));
            self.receive(connection);
        });
        Echoed { bytes: self.parts * self.part_bytes as u64, elapsed: began.elapsed() }
    }

    fn send(&self, mut connection: TcpStream) {
        let began = Instant::now();
        for number in 0..self.parts {
            let due = Duration::from_millis(1000 / PARTS * number);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            connection.write_all(&self.part(number)).expect("the guest takes the stream");
        }
        connection.shutdown(Shutdown::Write).expect("the guest takes the stream's end");
    }

    fn receive(&self, mut connection: TcpStream) {
        for number in 0..self.parts {
            let mut back = vec![0; self.part_bytes];
            connection.read_exact(&mut back).expect("the guest sends all of the stream back");
            assert!(back == self.part(number), "part {number} of the stream comes back as something else");
        }
        assert_eq!(connection.read(&mut [0]).expect("the guest ends the stream"), 0, "more comes back");
    }

    fn part(&self, number: u64) -> Vec<u8> {
        let mut random = Random::new(number);
        let mut bytes: Vec<u8> =
            (0..self.part_bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bytes.truncate(self.part_bytes);
        bytes
    }
}
