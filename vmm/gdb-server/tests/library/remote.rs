//! A small client of gdb's remote protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long to wait for a server that has stopped answering, before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    pub fn connect(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream }
    }

    /// Sends a packet, and returns the answer's text.
    pub fn ask(&mut self, packet: &str) -> String {
        self.send(packet);
        self.answer()
    }

    /// Sends a packet.
    pub fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0_u8, |sum, byte| sum.wrapping_add(byte));
        self.stream.write_all(format!("${packet}#{sum:02x}").as_bytes()).unwrap();
    }

    /// The text of the answer to a `monitor` command.
    pub fn monitor(&mut self, command: &str) -> String {
        let hex: String = command.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.send(&format!("qRcmd,{hex}"));
        let mut text = String::new();
        loop {
            let answer = self.answer();
            if answer == "OK" {
                return text;
            }
            let part = answer.strip_prefix('O').unwrap_or(&answer);
            text += &text_of_hex(part);
        }
    }

    /// Reads until the server closes the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 64]), Ok(0))
    }

    /// The next packet from the server.
    pub fn answer(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut answer = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                byte => answer.push(byte),
            }
        }
        // The two digits of the checksum.
        for _ in 0..2 {
            self.byte();
        }
        // The server may have closed the connection after its last answer.
        let _ = self.stream.write_all(b"+");
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).expect("the server answers");
        byte[0]
    }
}

/// The text of hexadecimal digits.
pub fn text_of_hex(hex: &str) -> String {
    let digits: Vec<char> = hex.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect(hex);
    String::from_utf8(digits.chunks(2).map(byte).collect()).unwrap()
}
