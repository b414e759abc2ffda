//! `ttvm reports`: lists the reports of the guest's kernel.

use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use views::reports::ReportList;

use crate::engine_arg::EngineArgs;
use crate::travel::PartArgs;
use crate::wait::Wait;

#[derive(clap::Args)]
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
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&list).expect("plain data always serializes")
    } else {
        list.to_string()
    })?;
    Ok(exit_code::DONE)
}
