//! `silicon`: the comparison's command line.

use std::process::ExitCode;

use clap::Parser;
use silicon::Options;

/// Compares the software CPU with the processor it runs on, instruction by instruction.
#[derive(Parser)]
struct Arguments {
    /// How many instructions to execute on each side.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Chooses the cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this mnemonic; may be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Processes to use.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Only this batch.
    #[arg(long)]
    batch: Option<u64>,
    /// Of that batch, only the cases up to this one.
    #[arg(long, requires = "batch")]
    case: Option<u64>,
    /// Differences to show in full for each mnemonic and process.
    #[arg(long, default_value_t = 2)]
    show: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(reason) = silicon::unsupported() {
        println!("skipped: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let summary = silicon::run(&Options {
        count: arguments.count,
        seed: arguments.seed,
        only: arguments.only,
        jobs: arguments.jobs,
        batch: arguments.batch,
        case: arguments.case,
        show: arguments.show,
        progress: true,
    })?;
    print!("{}", summary.report);
    summary.died.iter().for_each(|how| println!("a process died: {how}"));
    println!("{}", if summary.passed() { "no unexplained difference" } else { "FAILED" });
    Ok(if summary.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
