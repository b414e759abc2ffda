//! `ttvm reports`: lists the reports of the guest's kernel.

use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use views::reports::ReportList;

use crate::engine_arg::EngineArgs;
use crate::travel::PartArgs;
use crate::wait::Wait;

/// List the kernel's reports: panics, oopses, BUG, WARNING, KASAN, lockdep
///
/// `--at report:1` of other verbs goes to the first report.
///
/// Examples:
///   ttvm reports R.ttvm
///   ttvm reports R.ttvm --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let mut timeline = Timeline::open(&recording)?;
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    let list = ReportList::of(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&list, args.json)?;
    Ok(exit_code::DONE)
}
