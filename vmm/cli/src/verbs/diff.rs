//! `ttvm diff`: compares the guest's state at two positions, of one recording or of two.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use views::difference::Side;

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::travel::PartArgs;
use crate::wait::Wait;

/// Compare the guest at two positions: registers, processes, memory, disk, console
///
/// Memory is shown by its use: objects of a cache, files, page tables, programs' own memory. `ttvm verify --against`
/// finds where two recordings of the same guest part.
///
/// Examples:
///   ttvm diff R.ttvm 50% end
///   ttvm diff R.ttvm fault panic --limit 100
///   ttvm diff GOOD.ttvm end end --with BAD.ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The first position
    #[arg(value_name = "POS", allow_hyphen_values = true)]
    from: PositionSpec,
    /// The second position; +N counts from the first
    #[arg(value_name = "POS", allow_hyphen_values = true)]
    to: PositionSpec,
    /// Take the second position in this recording
    #[arg(long, value_name = "RECORDING")]
    with: Option<PathBuf>,
    /// Maximum number of variables and disk blocks to list
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,
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
    go_to(&mut timeline, args.from, &mut wait)?;
    let before = Side::of(timeline.machine_mut())?;
    let difference = match &args.with {
        None => {
            go_to(&mut timeline, args.to, &mut wait)?;
            before.to(timeline.machine_mut(), args.limit.get())?
        }
        Some(other) => {
            drop(timeline);
            let (recording, engine) = args.part.open_for(other, args.engine)?;
            let mut timeline = Timeline::open(&recording)?;
            timeline.use_engine(engine)?;
            wait = wait.of(&timeline);
            go_to(&mut timeline, args.to, &mut wait)?;
            before.to(timeline.machine_mut(), args.limit.get())?
        }
    };
    drop(wait);
    crate::output::print_answer(&difference, args.json)?;
    Ok(exit_code::DONE)
}

fn go_to(timeline: &mut Timeline, at: PositionSpec, wait: &mut Wait) -> Result<(), Error> {
    let place = if matches!(at, PositionSpec::After(_)) {
        timeline.resolve(at, &mut || wait.poll())?
    } else {
        timeline.resolve_outside(at, &mut || wait.poll())?
    };
    timeline.seek(place, &mut || wait.poll())?.unless_interrupted()?;
    timeline.idle_at(at)
}
