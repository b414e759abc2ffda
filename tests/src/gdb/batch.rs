//! Runs gdb in batch mode, and serves a timeline to this gdb.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use gdb_server::GdbTarget;
use history::timeline::Timeline;

/// Returns a command that starts gdb without the user's settings. This gdb ends after its commands.
pub fn gdb() -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["--quiet", "--nx", "--batch", "-ex", "set architecture i386:x86-64"]);
    gdb.args(["-ex", "set pagination off", "-ex", "set width 0"]);
    gdb
}

/// Makes gdb attach at `socket`, and then execute its commands.
pub fn attach<S: AsRef<str>>(gdb: &mut Command, socket: &Path, commands: &[S]) {
    gdb.args(["-ex", &format!("target remote {}", socket.display())]);
    gdb.args(commands.iter().flat_map(|command| ["-ex", command.as_ref()]));
}

/// Serves a timeline to one client on a socket in `directory`. `client` makes the command that starts the client.
/// Returns the client's output, followed by its error messages.
pub fn serve(timeline: &mut Timeline, directory: &Path, client: impl FnOnce(&Path) -> Command) -> String {
    let socket = directory.join("gdb.socket");
    let listener = gdb::Listener::bind(&format!("unix:{}", socket.display())).expect("a socket");
    let mut command = client(&socket);
    let running = std::thread::spawn(move || {
        let output = command.output();
        leave(&socket);
        output.expect("gdb must be installed: run scripts/setup")
    });
    gdb::serve(&listener, &mut GdbTarget::new(timeline), |_| false).expect("gdb is served");
    drop(listener);
    said(&running.join().expect("the client's thread"))
}

/// Connects to `socket` once, so that a server stops waiting for a gdb that never attached.
pub fn leave(socket: &Path) {
    drop(UnixStream::connect(socket));
}

/// Returns a command's output, followed by its error messages.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns how often gdb printed that the recorded history ends in this direction. gdb 13 and gdb 18 use different
/// words.
pub fn ends_of_history(said: &str) -> usize {
    let words = ["No more reverse-execution history", "Reached end of recorded history; stopping"];
    words.iter().map(|words| said.matches(words).count()).sum()
}
