//! Tests ^C while a `tt` command searches. The command must end. Then gdb and the server must agree on the
//! position, and the machine must be at this position.
//!
//! A *sign of life* is a packet with which the server shows that it is busy. During a `monitor` command, gdb
//! reports a ^C to the server only after the next sign of life. So the test reads the packets between gdb and the
//! server, and sends the signal directly after a sign of life.

use std::io::{Read, Result, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};

use gdb_server::GdbTarget;
use history::timeline::Timeline;
use machine::position::Instructions;
use machine::script::Script;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, repository};
use tests::record::{open, record};

/// A condition that is never true: nothing is executed at this address. The search takes seconds.
const NEVER: &str = "break:0x1234";
/// The sign of life: the packet that the server sends from time to time while it is busy.
const SIGN_OF_LIFE: &[u8] = b"$O#4f";

/// A connection between gdb and the server. The connection reports the first sign of life during each `monitor`
/// command that searches for [`NEVER`].
struct Watched {
    stream: gdb::Stream,
    searching: bool,
    noticed: Sender<()>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.stream.read(buffer)?;
        let digits: String = NEVER.bytes().map(|byte| format!("{byte:02x}")).collect();
        if buffer[..count].windows(digits.len()).any(|window| window == digits.as_bytes()) {
            self.searching = true;
        }
        Ok(count)
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let count = self.stream.write(bytes)?;
        if bytes == SIGN_OF_LIFE && std::mem::take(&mut self.searching) {
            self.noticed.send(()).expect("the test listens");
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Runs gdb, and presses ^C on request. Returns gdb's output, and the number of signals.
fn run_gdb(address: &str, commands: &[String], noticed: &Receiver<()>) -> (String, usize) {
    let mut gdb = batch::gdb();
    gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
    batch::attach(&mut gdb, Path::new(address), commands);
    gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let gdb = gdb.spawn().expect("gdb can be run");
    let pid = Pid::from_raw(gdb.id() as i32);
    // This loop ends when the connection ends.
    let signals = noticed.iter().map(|()| kill(pid, Signal::SIGINT).expect("gdb runs")).count();
    let output = gdb.wait_with_output().expect("gdb ends");
    batch::leave(Path::new(address));
    (batch::said(&output), signals)
}

#[test]
fn an_interrupt_ends_a_search_and_gdb_stays_in_step() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("boot.ttvm");
    record(&Guest::linux(&CLOUD, &BUSYBOX, "", 128), &path, &mut Script::shell(&["poweroff -f"]));
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    // A search that is interrupted early stays at its beginning, `begin`. The commands then step from there, so `begin`
    // must be some steps before the end.
    let begin = end - 1000;
    timeline.seek(begin, &mut || false).unwrap_or_else(|error| panic!("{error}"));

    let show = |name: &str| {
        format!("printf \"{name} %lu %lx %lx %x\\n\", $_tt_position(), $rip, $rsp, *(unsigned char *) $rip")
    };
    let mut commands = vec![show("begin")];
    for round in 0..2 {
        commands.push(format!("tt traps {NEVER}"));
        commands.push(show(&format!("traps-{round}")));
        commands.push(format!("tt search {NEVER}"));
        commands.push(show(&format!("search-{round}")));
        commands.push(format!("tt back-to {NEVER}"));
        commands.push(show(&format!("back-{round}")));
        commands.extend(["stepi 5".to_string(), show(&format!("forth-{round}"))]);
        commands.extend(["reverse-stepi 5".to_string(), show(&format!("again-{round}"))]);
    }
    commands.extend(["tt when".to_string(), format!("tt goto insn:{begin}"), show("end")]);

    let socket = directory.path().join("gdb.socket");
    let listener = gdb::Listener::bind(&format!("unix:{}", socket.display())).expect("a socket");
    let (sender, noticed) = channel();
    let address = socket.display().to_string();
    let debugger = std::thread::spawn(move || run_gdb(&address, &commands, &noticed));
    let stream = listener.accept().expect("gdb comes");
    let watched = Watched { stream, searching: false, noticed: sender };
    gdb::serve_stream(watched, &mut GdbTarget::new(&mut timeline));
    let (said, signals) = debugger.join().expect("gdb's thread");

    assert_eq!(signals, 6, "{said}");
    assert_eq!(said.matches("Interrupted on the way.").count(), 2, "{said}");
    assert_eq!(said.lines().filter(|line| *line == "Interrupted.").count(), 4, "{said}");
    let shown = |name: &str| -> (Instructions, String) {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no '{name}' in {said}"));
        let (position, rest) = line.split_once(' ').expect("several numbers");
        (Instructions(position.parse().expect("a number")), rest.to_string())
    };
    let mut before = shown("begin");
    assert_eq!(before.0, begin);
    for round in 0..2 {
        let shown = |name: &str| shown(&format!("{name}-{round}"));
        // The commands `traps` and `search` do not move gdb.
        assert_eq!((shown("traps"), shown("search")), (before.clone(), before.clone()), "{said}");
        let back = shown("back");
        assert!(back.0 <= before.0, "{said}");
        assert_eq!((shown("forth").0, shown("again")), (back.0 + 5, back.clone()), "{said}");
        before = back;
    }
    assert_eq!(shown("end"), shown("begin"), "{said}");
    // gdb's answers must be equal to a replay without time travel at the same position.
    for name in ["back-0", "forth-0", "back-1", "forth-1"] {
        let (position, rest) = shown(name);
        timeline.seek(position, &mut || false).unwrap_or_else(|error| panic!("{error}"));
        let cpu = timeline.machine().cpu();
        let mut code = [0];
        assert_eq!(cpu.core().peek(cpu.rip(), &mut code), 1);
        let expected = format!("{:x} {:x} {:x}", cpu.rip(), cpu.core().reg64(4), code[0]);
        assert_eq!(rest, expected, "{name}: {said}");
    }
}
