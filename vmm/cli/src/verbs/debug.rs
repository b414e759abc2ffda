//! `ttvm debug`: gdb on a recording.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gdb::{Listener, Reach};
use gdb_server::{MAX_SESSIONS, Options, Report, serve, trouble};
use guest_symbols::vmlinux::quoted;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use recording::Opened;
use sandbox::ThreadKind;

/// The gdb commands of ttvm, in gdb's Python. The first parts are modules that later parts import.
const COMMANDS: [&str; 3] = [
    include_str!("../../../../gdb/commands/ttvm_ask.py"),
    include_str!("../../../../gdb/commands/ttvm_symbols.py"),
    include_str!("../../../../gdb/commands/tt.py"),
];
/// The environment variable in which gdb gets these commands. Unlike a file, a variable need not be removed later.
const COMMANDS_VARIABLE: &str = "TTVM_GDB_COMMANDS";
/// The default address at which to wait for gdb.
const DEFAULT_ADDRESS: &str = "127.0.0.1:1234";

use crate::companion::{Companion, Leftovers};
use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::output::say;
use crate::sandbox_arg::{self, SandboxArgs};
use crate::travel::PartArgs;

/// Debug a recording with gdb, forwards and backwards
///
/// With --gdb, ttvm starts gdb. Without it, ttvm waits for a gdb that you start.
///
/// Examples:
///   ttvm debug R.ttvm --gdb
///   ttvm debug R.ttvm --gdb --at panic
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    #[arg(required_unless_present = "print_commands")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    part: PartArgs,
    /// Address to wait at for gdb: 127.0.0.1:PORT or unix:PATH [default: 127.0.0.1:1234].
    ///
    /// With --gdb the default is a new socket. ttvm refuses other users of this host.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Allow a --listen address that other hosts can reach. Every program that connects has full control
    #[arg(long)]
    allow_remote: bool,
    /// Position where gdb starts, like panic, 12.5s or insn:1e9
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    at: PositionSpec,
    #[command(flatten)]
    engine: EngineArgs,
    /// End when the first gdb disconnects
    #[arg(long)]
    once: bool,
    /// Start gdb, with the tt commands and the guest kernel's symbols
    #[arg(long)]
    gdb: bool,
    /// With --gdb: load the symbols of this vmlinux, module (.ko) or program (repeatable).
    ///
    /// gdb loads them at the file's address in the guest. The kernel's own symbols stay.
    #[arg(long, value_name = "FILE", requires = "gdb")]
    symbols: Vec<PathBuf>,
    /// Print the tt commands, for a gdb that you start: load them there with `source`
    #[arg(long)]
    print_commands: bool,
    /// With --gdb: more arguments for gdb
    #[arg(last = true, requires = "gdb", value_name = "GDB ARGUMENTS")]
    gdb_arguments: Vec<String>,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let Some(path) = args.recording.as_ref().filter(|_| !args.print_commands) else {
        crate::output::print(commands().trim_end())?;
        return Ok(exit_code::DONE);
    };
    let opened = Opened::open(path)?;
    let engine = args.engine.for_replay(opened.manifest())?;
    let folder = private_folder()?;
    // The gdb that --gdb starts has the commands already, but a gdb that the user starts may connect too.
    let commands = write_commands(folder.path())?;
    let listener = listener(args, folder.path())?;
    let gdb = args.gdb.then(|| gdb_command(args, listener.gdb_address()));
    let companion = Companion::start(
        &Leftovers { folder: Some(folder.path()), socket: socket(args), ..Leftovers::default() },
        gdb,
    )?;
    // From now on the companion removes the folder at the end. So this value must not remove the folder when it is
    // dropped.
    let folder = folder.keep();
    let mut needs = sandbox_arg::of_debug(&opened, path, engine);
    needs.written.push(folder.clone());
    args.sandbox.lock_in(&needs)?;
    let recording = args.part.of(opened)?;
    let options = Options {
        folder,
        commands: Some(commands),
        at: args.at,
        // The gdb that ttvm starts is the only gdb, unless the user gave an address for other gdbs.
        once: args.once || (args.gdb && args.listen.is_none()),
        engine,
    };
    if args.gdb {
        // ^C is for gdb, which is in the foreground together with this process. So this process ignores ^C.
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)))
            .map_err(|source| Error::Host { what: "cannot watch for signals".to_string(), source })?;
    }
    say("ttvm: replaying to where gdb begins");
    let mut companion = Some(companion);
    serve(&recording, &listener, &options, &mut |report| tell(args, &mut companion, report))?;
    if args.gdb {
        // The session is over, but gdb may still run. This process ends when gdb ends.
        loop {
            std::thread::park();
        }
    }
    Ok(exit_code::DONE)
}

/// Prints a report of the server. Starts gdb when the server is ready. From then on gdb uses the terminal.
fn tell(args: &Args, companion: &mut Option<Companion>, report: Report) {
    match report {
        Report::Ready(_) if args.gdb => {
            let companion = companion.take().expect("it is ready once");
            // When gdb ends, this process ends too, and does not wait for other sessions.
            std::thread::spawn(move || {
                sandbox::enter(ThreadKind::Waiter);
                exit(companion.run_gdb());
            });
        }
        Report::Ready(address) => say(&format!("ttvm: ready; in gdb: target remote {address}")),
        Report::Began(_) | Report::Moving(..) | Report::Ended(..) | Report::TurnedAway if args.gdb => {}
        Report::Moving(number, text) if std::io::stderr().is_terminal() => {
            say(&format!("ttvm: session {number}: {text}"));
        }
        // Standard error is not a terminal here. Progress messages would only fill a file, so none is printed.
        Report::Moving(..) => {}
        Report::Began(number) => say(&format!("ttvm: session {number}: gdb is connected")),
        Report::Ended(number, end) => say(&format!("ttvm: session {number}: {end}")),
        Report::TurnedAway => say(&format!(
            "ttvm: refused another gdb: {MAX_SESSIONS} are connected, which is the maximum; end one of them first"
        )),
    }
}

/// A folder that other users cannot read, for the socket and for symbols that gdb reads.
fn private_folder() -> Result<tempfile::TempDir, Error> {
    let folder = tempfile::Builder::new().prefix("ttvm-").tempdir();
    folder.map_err(|source| Error::Host { what: "cannot make a folder for gdb".to_string(), source })
}

/// The gdb commands as one file, without modules to import.
fn commands() -> String {
    let finds_modules = |line: &&str| line.starts_with("sys.path.") || line.starts_with("from ttvm_");
    let lines = COMMANDS.iter().flat_map(|part| part.lines()).filter(|line| !finds_modules(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Writes the tt commands for a gdb that the user starts.
fn write_commands(folder: &Path) -> Result<PathBuf, Error> {
    let path = folder.join("tt.py");
    std::fs::write(&path, commands()).map_err(Error::file("write", &path))?;
    Ok(path)
}

fn listener(args: &Args, folder: &Path) -> Result<Listener, Error> {
    let address = match (&args.listen, args.gdb) {
        (Some(address), _) => address.clone(),
        (None, true) => format!("unix:{}", folder.join("gdb").display()),
        (None, false) => DEFAULT_ADDRESS.to_string(),
    };
    let reach = if args.allow_remote { Reach::Anyone } else { Reach::ThisUser };
    Listener::reserve(&address, reach).map_err(trouble)
}

/// The socket that the user named.
fn socket(args: &Args) -> Option<&Path> {
    args.listen.as_deref()?.strip_prefix("unix:").map(Path::new)
}

fn gdb_command(args: &Args, address: &str) -> Command {
    let mut command = Command::new("gdb");
    command.env(COMMANDS_VARIABLE, commands()).arg("--quiet");
    let load = format!("python import os; exec(compile(os.environ['{COMMANDS_VARIABLE}'], 'tt.py', 'exec'))");
    let mut tell = |line: String| {
        command.args(["-ex", &line]);
    };
    tell("set architecture i386:x86-64".to_string());
    tell(load);
    tell(format!("target remote {address}"));
    if args.symbols.is_empty() {
        tell("tt symbols".to_string());
    }
    args.symbols.iter().for_each(|file| tell(format!("tt symbols {}", quoted(file))));
    command.args(&args.gdb_arguments);
    command
}
