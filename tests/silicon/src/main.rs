//! `silicon`: the comparison's command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use silicon::golden::{self, Golden};
use silicon::{Options, Summary, Vendor, Which};

/// Compares the software CPU with the processor it runs on, instruction by instruction.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// How many instructions to execute on each side.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// The seed that determines the cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only instructions with this mnemonic; may be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Processes to use.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Run only this batch.
    #[arg(long)]
    batch: Option<u64>,
    /// Run the cases of the batch only up to this case.
    #[arg(long, requires = "batch")]
    case: Option<u64>,
    /// Differences to show in full for each mnemonic and process.
    #[arg(long, default_value_t = 2)]
    show: u64,
    /// Compares only the results that the manuals define. All other results of this processor are inverted first,
    /// as if the processor were of another vendor.
    #[arg(long)]
    as_other_vendor: bool,
}

#[derive(Subcommand)]
enum Other {
    /// Executes every encoding of the opcode maps 0F, 0F 38 and 0F 3A once, and compares which are undefined.
    Sweep,
    /// Records golden vectors on this processor, which must be Intel's.
    Record {
        /// The file to write; by default the file in the tree.
        file: Option<PathBuf>,
    },
    /// Compares the software CPU with golden vectors, on any processor.
    Replay {
        /// The file with the golden vectors; by default the file in the tree.
        file: Option<PathBuf>,
        /// Run only this part.
        #[arg(long)]
        part: Option<usize>,
        /// Run only this batch.
        #[arg(long)]
        batch: Option<usize>,
        /// Run the cases of each batch only up to this case.
        #[arg(long)]
        case: Option<u64>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let summary = match arguments.other {
        Some(Other::Sweep) => return sweep(),
        Some(Other::Record { file }) => record(&file.unwrap_or_else(golden::path))?,
        Some(Other::Replay { file, part, batch, case }) => {
            replay(&file.unwrap_or_else(golden::path), Which { part, batch, case })?
        }
        None => {
            if let Some(reason) = silicon::unsupported() {
                println!("skipped: {reason}");
                return Ok(ExitCode::SUCCESS);
            }
            silicon::run(&options(arguments))?
        }
    };
    print!("{}", summary.report);
    summary.died.iter().for_each(|how| println!("a process died: {how}"));
    println!("{}", if summary.passed() { "no unexplained difference" } else { "FAILED" });
    Ok(if summary.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn sweep() -> anyhow::Result<ExitCode> {
    let swept = silicon::sweep::run()?;
    print!("{swept}");
    Ok(if swept.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn options(arguments: Arguments) -> Options {
    Options {
        count: arguments.count,
        seed: arguments.seed,
        only: arguments.only,
        jobs: arguments.jobs,
        batch: arguments.batch,
        case: arguments.case,
        show: arguments.show,
        progress: true,
        vendor: if arguments.as_other_vendor { Vendor::Other } else { Vendor::OfThisHost },
    }
}

fn record(file: &Path) -> anyhow::Result<Summary> {
    let (golden, summary) = silicon::record()?;
    let bytes = golden.encode()?;
    std::fs::write(file, &bytes)?;
    println!("{}: {} cases of {} in {} bytes", file.display(), golden.len(), golden.processor, bytes.len());
    Ok(summary)
}

fn replay(file: &Path, which: Which) -> anyhow::Result<Summary> {
    let golden = Golden::load(file)?;
    println!("{}: {} cases of {}", file.display(), golden.len(), golden.processor);
    Ok(Summary { report: silicon::replay(&golden, which, 2)?, died: Vec::new() })
}
