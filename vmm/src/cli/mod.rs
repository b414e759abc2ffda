//! The command line: one file per verb. Results go to standard output, everything else to standard error.

mod debug;
mod info;
mod machine_args;
mod record;
mod replay;
mod run;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use vmm::error::exit_code;
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
        "\r\nttvm: {outcome} after {} instructions, {:.6} s guest time\r",
        now.steps,
        now.time_ns as f64 / 1e9
    );
    match outcome {
        Outcome::PowerOff | Outcome::Reset | Outcome::Ended => exit_code::DONE,
        Outcome::DebugExit { code } => (*code & 0xff) as i32,
        Outcome::Panic => exit_code::FAILED,
        Outcome::TripleFault { .. } | Outcome::IdleForever => {
            eprint!("{}", registers_text(&machine.cpu().state()));
            exit_code::FAILED
        }
    }
}

/// The general registers, as people who write kernels want to see them after a triple fault.
fn registers_text(state: &cpu::CpuState) -> String {
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    let mut text = String::new();
    for (number, (name, value)) in NAMES.iter().zip(state.gpr).enumerate() {
        text += &format!("{name:>4} {value:016x}{}", if number % 4 == 3 { "\r\n" } else { "" });
    }
    text += &format!(
        " rip {:016x} rfl {:016x} cs {:04x} ss {:04x}\r\n",
        state.rip, state.rflags, state.segments[1].selector, state.segments[2].selector
    );
    text += &format!(
        " cr0 {:016x} cr2 {:016x} cr3 {:016x} cr4 {:016x} efer {:x}\r\n",
        state.cr0, state.cr2, state.cr3, state.cr4, state.msrs.efer
    );
    text
}
