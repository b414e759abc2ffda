//! `ttvm values`: lists all values of a variable, and who wrote them.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use views::filters::Filters;
use views::values::{Question, VARIABLES};

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// List all values of a variable, when each was written, and by whom
///
/// Types and fields come from the kernel's type information (BTF). Pointers are followed at the end of the part.
///
/// Examples:
///   ttvm values R.ttvm jiffies_64 --limit 10
///   ttvm values R.ttvm '(task_struct)init_task.comm'
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = format!("{VARIABLES}\n\n{POSITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// A symbol, an address, or (TYPE)SYMBOL.FIELD; --help lists all forms
    variable: String,
    /// Limits the list to writes of pid:N, comm:NAME or cpu:N
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Position where the list begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "start")]
    from: PositionSpec,
    /// Position where the list ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    /// Maximum number of writes to list
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// List writes that do not change the value, too
    #[arg(long)]
    all_writes: bool,
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
    let (variable, all_writes) = (args.variable.as_str(), args.all_writes);
    let question =
        Question { variable, filters: &filters, all_writes, as_bytes: false, limit: args.limit.get() };
    let found = question.answer(&mut timeline, from..to, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&found, args.json)?;
    if !args.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} writes found, {billions:.3}e9 instructions replayed", found.writes.len()));
    }
    Ok(match (found.interrupted, found.writes.is_empty()) {
        (true, _) => exit_code::INTERRUPTED,
        (false, true) => exit_code::FAILED,
        (false, false) => exit_code::DONE,
    })
}
