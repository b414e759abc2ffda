//! `ttvm calls`: lists the calls of a function, with arguments and results.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use views::calls::Question;
use views::filters::Filters;

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// List the calls of a function: arguments, result, caller, duration
///
/// A kernel with type information (BTF) gives names and types of arguments. Otherwise the registers of arguments are
/// shown. Durations count all that happens until the function returns, in other threads too.
///
/// Examples:
///   ttvm calls R.ttvm vfs_read
///   ttvm calls R.ttvm 'ext4_*' comm:cat --from 2s --limit 50
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// A function of the guest's kernel, a pattern such as vfs_*, or an address
    function: String,
    /// Limits the list to calls of pid:N, comm:NAME or cpu:N
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Position where the list begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "start")]
    from: PositionSpec,
    /// Position where the list ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    /// Maximum number of calls to list
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// Number of cores to use [default: all]
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
    let (from, to) = stretch(&mut timeline, args.from, args.to, &mut wait)?;
    let question = Question { function: &args.function, filters: &filters, limit: args.limit.get() };
    let found = question.answer(&mut timeline, from..to, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&found, args.json)?;
    if !args.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} calls found, {billions:.3}e9 instructions replayed", found.calls.len()));
    }
    Ok(match (found.interrupted, found.calls.is_empty()) {
        (true, _) => exit_code::INTERRUPTED,
        (false, true) => exit_code::FAILED,
        (false, false) => exit_code::DONE,
    })
}
