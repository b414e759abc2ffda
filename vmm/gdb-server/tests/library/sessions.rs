//! Several gdbs on one recording.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use gdb::{ListenError, Listener, Reach, SessionEnd};
use gdb_server::{MAX_SESSIONS, Options, Report, serve, trouble};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation::PositionSpec;
use tempfile::TempDir;
use tiny_guest::linux;

use crate::remote::{Client, text_of_hex};

/// A server in a thread of its own.
struct Server {
    reports: Receiver<Report>,
    thread: JoinHandle<Result<(), Error>>,
    socket: PathBuf,
    folder: TempDir,
}

impl Server {
    fn start(once: bool, at: PositionSpec) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let (recording, ..) = linux::record(folder.path(), "r.ttvm", 5, None);
        let socket = folder.path().join("socket");
        let address = format!("unix:{}", socket.display());
        let listener = Listener::reserve(&address, Reach::ThisUser).unwrap();
        let commands = Some(folder.path().join("tt.py"));
        let options =
            Options { folder: folder.path().to_path_buf(), commands, at, once, engine: EngineKind::SOFT };
        let (sender, reports) = channel();
        let serve =
            move || serve(&recording, &listener, &options, &mut |report| sender.send(report).unwrap());
        Server { reports, thread: std::thread::spawn(serve), socket, folder }
    }

    /// Starts a server, and waits until clients can connect.
    fn ready(once: bool, at: PositionSpec) -> Server {
        let server = Server::start(once, at);
        let Report::Ready(address) = server.report() else { panic!("no client has connected") };
        assert_eq!(address, server.socket.display().to_string());
        server
    }

    fn report(&self) -> Report {
        self.reports.recv().expect("the server goes on")
    }

    /// Connects a client, whose session has this number.
    fn connect(&self, number: usize) -> Client {
        let client = Client::connect(&self.socket);
        let report = self.report();
        assert!(matches!(report, Report::Began(began) if began == number), "{report:?}");
        client
    }

    fn expect_end(&self, number: usize, expected: SessionEnd) {
        let report = self.report();
        let is_expected =
            matches!(&report, Report::Ended(ended, end) if (*ended, end) == (number, &expected));
        assert!(is_expected, "{number} {expected:?}: {report:?}");
    }
}

#[test]
fn one_session_can_be_all() {
    let server = Server::ready(true, PositionSpec::Instruction(100));
    let mut client = server.connect(1);
    assert!(client.monitor("when").starts_with("instruction 100 of 519, "));
    let symbols = client.monitor("symbols");
    assert!(symbols.contains(&server.folder.path().display().to_string()), "{symbols}");
    assert_eq!(client.ask("D"), "OK");
    server.expect_end(1, SessionEnd::Detached);
    server.thread.join().unwrap().unwrap();
    assert!(server.reports.recv().is_err(), "there are no more reports");
}

#[test]
fn a_gdb_without_the_commands_gets_their_name() {
    let server = Server::ready(true, PositionSpec::Start);
    let mut client = server.connect(1);
    client.send("qTStatus");
    let shown = client.answer();
    let text = text_of_hex(shown.strip_prefix('O').expect("a text comes first"));
    assert!(text.contains("enter: source ") && text.contains("tt.py"), "{text}");
}

#[test]
fn each_gdb_has_its_own_position() {
    let server = Server::ready(false, PositionSpec::End);
    let mut first = server.connect(1);
    let mut second = server.connect(2);
    first.monitor("goto 7");
    assert!(second.monitor("when").starts_with("instruction 519 of 519, "));
    second.monitor("goto 8");
    assert!(first.monitor("when").starts_with("instruction 7 of 519, "));
    drop(first);
    server.expect_end(1, SessionEnd::Closed);
    second.send("k");
    server.expect_end(2, SessionEnd::Killed);
    let mut third = server.connect(3);
    assert!(third.monitor("when").starts_with("instruction 519 of 519, "));
}

#[test]
fn too_many_gdbs_are_turned_away_until_one_leaves() {
    let server = Server::ready(false, PositionSpec::Start);
    let mut clients: Vec<Client> = (1..=MAX_SESSIONS).map(|number| server.connect(number)).collect();
    for round in 1..=2 {
        let mut refused = Client::connect(&server.socket);
        let expected = "E.8 gdbs are connected, which is the maximum: end one of them first";
        assert_eq!(refused.ask("qSupported"), expected);
        assert!(matches!(server.report(), Report::TurnedAway));
        assert!(refused.is_closed());
        // There is room again after one has left.
        drop(clients.remove(0));
        server.expect_end(round, SessionEnd::Closed);
        clients.push(server.connect(MAX_SESSIONS + round));
    }
    assert!(clients.iter_mut().all(|client| client.monitor("when").starts_with("instruction 0 of 519, ")));
}

#[test]
fn a_position_that_does_not_exist_ends_the_server() {
    let server = Server::start(false, PositionSpec::Instruction(520));
    let error = server.thread.join().unwrap().unwrap_err().to_string();
    assert_eq!(error, "the recording ends before instruction 520: it has 519");
    assert!(server.reports.recv().is_err(), "it was never ready");
}

#[test]
fn trouble_of_the_listener_is_told() {
    let error = trouble(ListenError::InUse("127.0.0.1:1".to_string())).to_string();
    assert!(error.contains("cannot listen on 127.0.0.1:1: the address is in use; choose another"), "{error}");
}
