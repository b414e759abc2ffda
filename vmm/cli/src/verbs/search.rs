//! `ttvm search`: finds where in a recording something happens.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::{CONDITIONS, Direction, Timeline};
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use views::filters::{FILTERS, Filters};
use views::hits::{Search, Wanted};

use crate::engine_arg::EngineArgs;
use crate::output::say;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

#[derive(clap::Args)]
#[command(after_help = format!("Conditions: {CONDITIONS}\n\nFilters: {FILTERS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// What to look for; ADDR is a number or the name of a kernel symbol
    condition: String,
    /// Which of these count: pid:N, comm:NAME, and of system calls longer:TIME
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Look for the first place after --from instead of the last one before it
    #[arg(long, conflicts_with = "all")]
    forward: bool,
    /// Look for the last place before --from (this is what is done anyway)
    #[arg(long, conflicts_with_all = ["forward", "all"])]
    backward: bool,
    /// List all places between --from and --to
    #[arg(long)]
    all: bool,
    /// Where to begin [default: end, with --forward or --all start]
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    from: Option<PositionSpec>,
    /// Where to end, with --all; +N is so far after --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end", requires = "all")]
    to: PositionSpec,
    /// Show at each place which functions of the guest's kernel have called one another, by the kernel's own tables (ORC)
    #[arg(long)]
    backtrace: bool,
    /// List no more places than this
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// Cores that a long search may use [default: all]
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
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&found).expect("plain data always serializes")
    } else {
        found.to_string()
    })?;
    if !args.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} found, {billions:.3}e9 instructions replayed", found.hits.len()));
    }
    Ok(match (found.interrupted, found.hits.is_empty()) {
        (true, _) => exit_code::INTERRUPTED,
        (false, true) => exit_code::FAILED,
        (false, false) => exit_code::DONE,
    })
}
