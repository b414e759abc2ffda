//! `ttvm search`: finds the places in a recording where a condition is true.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::{Direction, Timeline};
use machine::error::Error;
use machine::notation::PositionSpec;
use views::filters::Filters;
use views::hits::{Search, Wanted};

use crate::engine_arg::EngineArgs;
use crate::help::{CONDITIONS, POSITIONS};
use crate::output::say;
use crate::questions::code_of;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// Find where a condition holds in a recording
///
/// Finds the last place before the end. --forward finds the first place, and --all lists all places.
///
/// Examples:
///   ttvm search R.ttvm write:jiffies_64
///   ttvm search R.ttvm 'syscall:open*' --all
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = format!("{CONDITIONS}\n\n{POSITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The condition, like write:SYMBOL or console:TEXT; --help lists all kinds
    condition: String,
    /// Limits the search to pid:N, comm:NAME, cpu:N or, for system calls, longer:TIME
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Find the first place after --from
    #[arg(long, conflicts_with = "all")]
    forward: bool,
    /// Find the last place before --from (the default)
    #[arg(long, conflicts_with_all = ["forward", "all"])]
    backward: bool,
    /// List all places between --from and --to
    #[arg(long)]
    all: bool,
    /// Position where the search begins [default: end; with --forward or --all: start]
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    from: Option<PositionSpec>,
    /// With --all: position where the search ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end", requires = "all")]
    to: PositionSpec,
    /// Show the kernel's call stack at each place
    #[arg(long)]
    backtrace: bool,
    /// Maximum number of places to list
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// Number of cores to use for a long search [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let filters = Filters::parse(&args.filters).map_err(Error::Usage)?;
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let mut timeline = match args.threads {
        Some(threads) => Timeline::open_with(&recording, threads.get())?,
        None => Timeline::open(&recording)?,
    };
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    let from =
        args.from.unwrap_or(if args.forward || args.all { PositionSpec::Start } else { PositionSpec::End });
    let (from, to) = stretch(&mut timeline, from, args.to, &mut wait)?;
    let direction = if args.forward { Direction::Forward } else { Direction::Backward };
    let wanted = if args.all {
        Wanted::All { from, to, limit: args.limit.get() }
    } else {
        Wanted::One { from, direction }
    };
    let search = Search { condition: &args.condition, filters: &filters, wanted, backtrace: args.backtrace };
    let found = search.run(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&found, args.json)?;
    if !args.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} found, {billions:.3}e9 instructions replayed", found.hits.len()));
    }
    Ok(code_of(found.interrupted, found.hits.is_empty()))
}
