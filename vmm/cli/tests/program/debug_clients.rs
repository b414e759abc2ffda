//! Tests `ttvm debug` with clients that behave badly. Clients send garbage, break the connection during a run, or
//! connect two at a time. The server reports such a client, and continues to serve.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use crate::server::Server;
use gdb_server::MAX_SESSIONS;
use machine::position::Count;
use tiny_guest::{Numbers, record_with_checkpoints, typed};

/// A guest that runs for some tens of milliseconds.
const ROUNDS: u32 = 300_000;

/// A server on a port.
struct Port {
    server: Server,
    address: String,
}

impl Port {
    fn start(directory: &Path) -> Port {
        let mut server = Server::start(directory, &["--listen", "127.0.0.1:0"]);
        let ready = server.says("target remote ");
        Port { server, address: ready.rsplit(' ').next().unwrap().trim().to_string() }
    }

    fn says(&mut self, text: &str) -> String {
        self.server.says(text)
    }

    fn connect(&mut self) -> Client {
        let client = Client(TcpStream::connect(&self.address).unwrap());
        self.says("gdb is connected");
        client
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, body: &str) {
        let sum = body.bytes().fold(0_u8, |sum, byte| sum.wrapping_add(byte));
        write!(self.0, "${body}#{sum:02x}").unwrap();
    }

    fn reply(&mut self) -> String {
        let mut bytes = Vec::new();
        while bytes.iter().rev().nth(2) != Some(&b'#') {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        let text = String::from_utf8(bytes).unwrap();
        let start = text.find('$').unwrap() + 1;
        without_run_lengths(&text[start..text.len() - 3])
    }

    fn request(&mut self, body: &str) -> String {
        self.send(body);
        self.reply()
    }

    /// Sends a command that moves the guest, and returns the reply. On a busy host, the server sends progress
    /// reports before the reply.
    fn moves(&mut self, body: &str) -> String {
        self.send(body);
        std::iter::repeat_with(|| self.reply()).find(|reply| !reply.starts_with('O')).unwrap()
    }

    /// This client's step count.
    fn position(&mut self) -> u64 {
        let command: String = "position".bytes().map(|byte| format!("{byte:02x}")).collect();
        let answer = self.request(&format!("qRcmd,{command}"));
        assert_eq!(self.reply(), "OK");
        let digits = answer.strip_prefix('O').unwrap();
        let bytes = (0..digits.len() / 2).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).unwrap());
        let text = String::from_utf8(bytes.collect()).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

/// Expands run lengths in a reply: a character, `*`, and a character that encodes how often to repeat it.
fn without_run_lengths(reply: &str) -> String {
    let mut text = String::new();
    let mut characters = reply.chars();
    while let Some(character) = characters.next() {
        match (character, text.chars().last()) {
            ('*', Some(last)) => {
                let count = characters.next().unwrap() as usize - 29;
                text.extend(std::iter::repeat_n(last, count));
            }
            _ => text.push(character),
        }
    }
    text
}

fn server() -> (tempfile::TempDir, Port, u64) {
    let directory = tempfile::tempdir().unwrap();
    let (_, end) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a")]), &[]);
    let server = Port::start(directory.path());
    (directory, server, end.at.count.number())
}

#[test]
fn garbage_ends_no_more_than_its_session() {
    let (_directory, mut server, end) = server();
    let mut numbers = Numbers(7);
    for _ in 0..4 {
        let mut client = server.connect();
        let noise: Vec<u8> = (0..3000).map(|_| numbers.below(256) as u8).collect();
        // Ignores a failure. The server may close the connection before it has read all bytes, because some of them may
        // be a command that ends the session.
        let _ = client.0.write_all(&noise);
        let _ = client.0.shutdown(Shutdown::Write);
        let mut replies = Vec::new();
        let _ = client.0.read_to_end(&mut replies);
        server.says("gdb");
    }
    let mut client = server.connect();
    assert_eq!(client.position(), end);
    assert!(client.request("?").starts_with("T05"));
    assert_eq!(client.request("D"), "OK");
    server.says("gdb has detached");
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_run_is_noticed() {
    let (_directory, mut server, end) = server();
    for run in ["bc", "vCont;c", "bs"] {
        let mut client = server.connect();
        // The next client does not see the last client's changes.
        assert_eq!(client.position(), end);
        assert_eq!(client.request("Z0,dead0000,1"), "OK");
        client.send(run);
        drop(client);
        let said = server.says("gdb");
        assert!(said.contains("has closed the connection") || said.contains("is lost"), "{said}");
    }
    let mut client = server.connect();
    client.send("k");
    server.says("gdb has ended the session");
}

#[test]
fn two_clients_have_a_place_each() {
    let (_directory, mut server, end) = server();
    let (mut one, mut other) = (server.connect(), server.connect());
    assert!(one.moves("bc").contains("replaylog:begin"));
    assert!(other.moves("bs").starts_with("T05"));
    assert_eq!((one.position(), other.position()), (0, end - 1));
    // One client's changes do not affect the other.
    let registers = other.request("g");
    assert_eq!(other.request("P0=0102030405060708"), "OK");
    assert_ne!(other.request("g"), registers);
    assert!(one.moves("vCont;c").contains("replaylog:end"));
    drop(other);
    server.says("session 2: gdb has closed the connection");
    assert!(one.moves("bs").starts_with("T05"));
    assert_eq!(one.request("g"), registers);
    assert_eq!(one.request("D"), "OK");
    server.says("session 1: gdb has detached");
}

#[test]
fn a_client_too_many_hears_why_and_comes_in_when_another_has_left() {
    let (_directory, mut server, end) = server();
    let mut clients: Vec<Client> = (0..MAX_SESSIONS).map(|_| server.connect()).collect();
    let mut one_more = Client(TcpStream::connect(&server.address).unwrap());
    assert!(one_more.request("qSupported").starts_with("E.8 gdbs are connected"));
    assert_eq!(one_more.0.read(&mut [0]).unwrap(), 0, "it is hung up on");
    server.says("refused another gdb");
    // A silent client that stays connected must not keep the next client from its answer.
    let silent = TcpStream::connect(&server.address).unwrap();
    let mut other = Client(TcpStream::connect(&server.address).unwrap());
    assert!(other.request("qSupported").starts_with("E.8 gdbs are connected"));

    assert_eq!(clients[3].request("D"), "OK");
    server.says("gdb has detached");
    drop(silent);
    assert_eq!(server.connect().position(), end);
    assert_eq!(clients[4].position(), end);
}
