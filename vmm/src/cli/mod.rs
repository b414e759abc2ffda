//! The command line: one file per verb. Results go to standard output, everything else to standard error.

mod checkpoints;
mod debug;
mod doctor;
mod info;
mod interrupt;
mod log;
mod machine_args;
mod pack;
mod progress;
mod record;
mod replay;
mod run;
mod search;
mod state;
mod stats;
mod symbols;
mod travel;
mod unpack;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use vmm::error::{Error, exit_code};
use vmm::machine::Outcome;

/// Runs an operating system in a virtual machine, records the run, and goes back to any instruction of it.
#[derive(Parser)]
#[command(name = "ttvm", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a guest without recording
    Run(run::Args),
    /// Run a guest and record everything that comes in from outside
    Record(record::Args),
    /// Run a recording again and check that nothing differs
    Replay(replay::Args),
    /// Let gdb attach to a recording, and step backwards
    Debug(debug::Args),
    /// Say what a recording holds
    Info(info::Args),
    /// Show the machine at a position: registers, memory, code, console
    State(state::Args),
    /// Make a symbol file for gdb from the guest kernel itself, as of a position
    Symbols(symbols::Args),
    /// Find where in a recording something happens
    Search(search::Args),
    /// List, add or remove the checkpoints that make going to a position fast
    Checkpoints(checkpoints::Args),
    /// Check that a recording is whole and replays exactly; if not, find out where the difference began
    Verify(verify::Args),
    /// List the events of a recording, or say where two recordings part
    Log(log::Args),
    /// Say what this host offers to each engine, and what to do about what is missing
    Doctor(doctor::Args),
    /// Make one file of a recording and its images, for another machine
    Pack(pack::Args),
    /// Make a recording of such a file again
    Unpack(unpack::Args),
}

/// Parses the command line and obeys it.
pub fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn,gdbstub=warn"))
        .format_target(false)
        .init();
    let cli = Cli::parse();
    let result = match &cli.verb {
        Verb::Run(args) => run::run(args),
        Verb::Record(args) => record::run(args),
        Verb::Replay(args) => replay::run(args),
        Verb::Debug(args) => debug::run(args),
        Verb::Info(args) => info::run(args),
        Verb::State(args) => state::run(args),
        Verb::Symbols(args) => symbols::run(args),
        Verb::Search(args) => search::run(args),
        Verb::Checkpoints(args) => checkpoints::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Log(args) => log::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Pack(args) => pack::run(args),
        Verb::Unpack(args) => unpack::run(args),
    };
    match result {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("ttvm: {error}");
            ExitCode::from(error.exit_code() as u8)
        }
    }
}

/// Says how a run ended, and gives the exit code for it: a power-off is a success, a debug exit has the
/// guest's own code.
fn report_outcome(machine: &vmm::machine::Machine, outcome: &Outcome) -> i32 {
    let now = machine.moment();
    eprintln!(
        "\r\nttvm: {outcome} after {} {}s, {:.6} s guest time\r",
        now.steps,
        machine.counting().one(),
        now.time_ns as f64 / 1e9
    );
    match outcome {
        Outcome::PowerOff | Outcome::Reset | Outcome::Ended => exit_code::DONE,
        Outcome::DebugExit { code } => (*code & 0xff) as i32,
        Outcome::Panic => exit_code::FAILED,
        Outcome::TripleFault { .. } | Outcome::IdleForever => {
            // As people who write kernels want to see them after a triple fault.
            let lines = vmm::registers::lines(&machine.cpu().state());
            lines.iter().for_each(|line| eprint!("{line}\r\n"));
            exit_code::FAILED
        }
    }
}

/// Prints a result. Whoever stops reading has read enough.
fn print(text: &str) -> Result<(), Error> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Host { what: "cannot write to standard output".to_string(), source: error })
        }
        _ => Ok(()),
    }
}
