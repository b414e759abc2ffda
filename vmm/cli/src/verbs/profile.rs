//! `ttvm profile`: counts the calls and the instructions of the kernel's functions.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::new_file::NewFile;
use machine::notation::PositionSpec;
use views::profile::{Order, Question};

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// Count the calls and the instructions of each function of the kernel
///
/// The counts are exact, not samples. The column "own" counts the instructions that a function executed itself. The column
/// "total" also counts the functions that it called. With --folded, ttvm writes all paths of calls to a file. Programs for
/// flame graphs read this file.
///
/// Examples:
///   ttvm profile R.ttvm
///   ttvm profile R.ttvm --from last-syscall --to +20k --by total
///   ttvm profile R.ttvm --folded R.folded
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// Position where the profile begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "start")]
    from: PositionSpec,
    /// Position where the profile ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    /// The order of the functions
    #[arg(long, value_enum, default_value = "own")]
    by: By,
    /// Maximum number of functions to list
    #[arg(long, value_name = "N", default_value = "40")]
    limit: NonZeroUsize,
    /// Also write the paths of calls with their instructions to this new file
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// By instructions of the function itself
    Own,
    /// By instructions of the function and of the functions that it called
    Total,
    /// By the number of calls
    Calls,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let begin = |path: &PathBuf| NewFile::begin(path).map(|file| (path.clone(), file));
    let folded = args.folded.as_ref().map(begin).transpose()?;
    let recording = args.part.open(&args.recording)?;
    let mut timeline = Timeline::open(&recording)?;
    let mut wait = Wait::on(&timeline)?;
    let (from, to) = stretch(&mut timeline, args.from, args.to, &mut wait)?;
    let order = match args.by {
        By::Own => Order::Own,
        By::Total => Order::Total,
        By::Calls => Order::Calls,
    };
    let question = Question { order, limit: args.limit.get() };
    let profile = question.answer(&mut timeline, from..to, &mut || wait.poll())?;
    drop(wait);
    if let Some((path, mut file)) = folded {
        file.file().write_all(profile.folded().as_bytes()).map_err(Error::file("write", &path))?;
        file.finish()?;
    }
    crate::output::print_answer(&profile, args.json)?;
    if !args.json && profile.has_more {
        say(&format!("ttvm: these are the first {} functions; --limit shows more", args.limit));
    }
    Ok(exit_code::DONE)
}
