//! What verbs say: results, and how a run ended.

use std::io::Write;

use vmm::error::{Error, exit_code};
use vmm::machine::Outcome;

/// Says how a run ended, and gives the exit code for it: a power-off is a success, a debug exit has the
/// guest's own code.
pub fn report_outcome(machine: &vmm::machine::Machine, outcome: &Outcome) -> i32 {
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
            let lines = vmm::replay::registers::lines(&machine.cpu().state());
            lines.iter().for_each(|line| eprint!("{line}\r\n"));
            exit_code::FAILED
        }
    }
}

/// Prints a result. Whoever stops reading has read enough.
pub fn print(text: &str) -> Result<(), Error> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Host { what: "cannot write to standard output".to_string(), source: error })
        }
        _ => Ok(()),
    }
}
