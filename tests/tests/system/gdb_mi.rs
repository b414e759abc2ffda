//! Tests gdb's machine interface, which front ends use (gdb/FRONT-ENDS.md): steps and runs in both directions, both
//! ends of the recording, and the tt commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;

use gdb::Listener;
use gdb_server::{Options, Report, serve};
use machine::notation::PositionSpec;
use tests::gdb::batch::ends_of_history;
use tests::guests::{repository, test_kernel};
use tests::record::open;
use tests::traveller::Traveller;

/// A running gdb in MI mode, with its pipes.
struct Mi {
    gdb: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// gdb's output so far, for error messages.
    transcript: String,
}

impl Mi {
    fn start() -> Mi {
        let mut gdb = Command::new("gdb");
        gdb.args(["--interpreter=mi", "--quiet", "--nx"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut gdb = gdb.spawn().expect("gdb must be installed: run scripts/setup");
        let (input, output) = (gdb.stdin.take().expect("piped"), gdb.stdout.take().expect("piped"));
        let mut mi = Mi { gdb, input, output: BufReader::new(output), transcript: String::new() };
        mi.read_to("(gdb)");
        mi
    }

    /// Reads until a line with this beginning, and returns the line.
    fn read_to(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.output.read_line(&mut line).expect("gdb prints text");
            self.transcript += &line;
            assert!(count > 0, "gdb ended before '{beginning}':\n{}", self.transcript);
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Sends a command and returns its result, which must not be an error.
    fn ask(&mut self, command: &str) -> String {
        self.transcript += &format!("<- {command}\n");
        writeln!(self.input, "{command}").expect("gdb listens");
        let result = self.read_to("^");
        assert!(!result.starts_with("^error"), "{}", self.transcript);
        if !result.starts_with("^running") && !result.starts_with("^exit") {
            self.read_to("(gdb)");
        }
        result
    }

    /// Sends a command that moves the guest, and checks gdb's reason for the stop. At both ends of the recording,
    /// gdb 13 reports no reason.
    fn moves(&mut self, command: &str, reason: &str) -> u64 {
        self.ask(command);
        let stopped = self.read_to("*stopped");
        let is_told = match reason {
            "" => stopped.contains("*stopped,frame=") || stopped.contains("reason=\"no-history\""),
            reason => stopped.contains(&format!("reason=\"{reason}\"")),
        };
        assert!(is_told, "{}", self.transcript);
        let (_, address) = stopped.split_once("addr=\"0x").expect("a frame with an address");
        let digits = address.split('"').next().expect("there is an end");
        u64::from_str_radix(digits, 16).expect("an address")
    }

    /// Runs a command and returns its console output.
    fn console(&mut self, command: &str) -> String {
        let before = self.transcript.len();
        self.ask(&format!("-interpreter-exec console \"{command}\""));
        self.transcript[before..].lines().filter(|line| line.starts_with("~\"")).collect()
    }
}

fn tour(mi: &mut Mi, traveller: &Traveller, address: &str) {
    mi.ask("-gdb-set architecture i386:x86-64");
    mi.ask(&format!("-file-symbol-file {}", test_kernel("travel").display()));
    mi.console(&format!("source {}", repository().join("gdb/commands/tt.py").display()));
    mi.ask(&format!("-target-select remote {address}"));
    assert!(mi.ask("-list-target-features").contains("\"reverse\""), "{}", mi.transcript);

    mi.console("tt goto insn:500000");
    let here = mi.moves("-exec-step-instruction", "end-stepping-range");
    let before = mi.moves("-exec-step-instruction --reverse", "end-stepping-range");
    assert_eq!(mi.moves("-exec-step-instruction", "end-stepping-range"), here);
    assert_ne!(here, before);
    assert!(mi.console("tt when").contains("instruction 500001 of"), "{}", mi.transcript);

    let hook = traveller.hook;
    mi.ask(&format!("-break-insert *{hook:#x}"));
    assert_eq!(mi.moves("-exec-continue --reverse", "breakpoint-hit"), hook);
    let earlier = mi.console("tt when");
    // A step back from the function's first instruction goes to the call of the function. (gdb does not know the
    // stack frames of this guest's 32-bit code.)
    assert_ne!(mi.moves("-exec-step-instruction --reverse", "end-stepping-range"), hook);
    assert_eq!(mi.moves("-exec-continue", "breakpoint-hit"), hook);
    assert_eq!(mi.console("tt when"), earlier);
    mi.ask("-break-delete");

    mi.ask(&format!("-break-watch \"*(unsigned int *) {:#x}\"", traveller.counter));
    mi.moves("-exec-continue --reverse", "watchpoint-trigger");
    mi.ask("-break-delete");
    mi.moves("-exec-continue --reverse", "");
    assert!(mi.console("tt when").contains("instruction 0 of"), "{}", mi.transcript);
    mi.moves("-exec-continue", "");
    assert_eq!(ends_of_history(&mi.transcript), 2, "{}", mi.transcript);
    mi.ask("-target-detach");
    mi.ask("-gdb-exit");
}

#[test]
fn front_ends_go_both_ways() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = Traveller::record(directory.path());
    let socket = directory.path().join("gdb.socket");
    let listener = Listener::bind(&format!("unix:{}", socket.display())).expect("a socket");
    let options = Options {
        folder: directory.path().to_path_buf(),
        commands: None,
        at: PositionSpec::Start,
        once: true,
        engine: machine::engine::EngineKind::SOFT,
    };
    let recording = open(&traveller.path);
    let (ready, is_ready) = channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            serve(&recording, &listener, &options, &mut |report| {
                if let Report::Ready(address) = report {
                    ready.send(address).expect("the test waits");
                }
            })
        });
        let address = is_ready.recv().expect("the server becomes ready");
        let (to, traveller) = (address.clone(), &traveller);
        let toured = scope.spawn(move || {
            let mut mi = Mi::start();
            tour(&mut mi, traveller, &to);
            mi.gdb.wait().expect("it is our child");
        });
        let toured = toured.join();
        // If gdb never attached, end the server's wait for gdb.
        drop(UnixStream::connect(&address));
        server.join().expect("the server survives").unwrap_or_else(|error| panic!("{error}"));
        toured.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
