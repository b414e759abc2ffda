//! `ttvm diff`: compares the guest's state at two positions, of one recording or of two.

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use machine::position::Instructions;
use recording::Recording;
use schemars::JsonSchema;
use serde::Serialize;
use views::difference::{Difference, Side};
use views::guest_kernel::GuestKernels;
use views::moment::Moment;

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::travel::PartArgs;
use crate::verbs::verify::find_parting;
use crate::wait::Wait;

/// Compare the guest at two positions: registers, processes, memory, disk, console
///
/// Memory is shown by its use: objects of a cache, files, page tables, programs' own memory. Without positions, `--with`
/// finds the first instruction after which two recordings differ, and shows the difference there.
///
/// Examples:
///   ttvm diff R.ttvm 50% end
///   ttvm diff R.ttvm fault panic --limit 100
///   ttvm diff GOOD.ttvm --with BAD.ttvm
///   ttvm diff GOOD.ttvm end end --with BAD.ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The first position
    #[arg(value_name = "POS", allow_hyphen_values = true, required_unless_present = "with", requires = "to")]
    from: Option<PositionSpec>,
    /// The second position; +N counts from the first
    #[arg(value_name = "POS", allow_hyphen_values = true, required_unless_present = "with")]
    to: Option<PositionSpec>,
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

/// The JSON that `ttvm diff` prints.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only the schema is used")]
pub enum Printed {
    /// With two positions.
    Positions(Difference),
    /// Without positions.
    Runs(Runs),
}

/// Two recordings of the same guest, and the first instruction after which they differ.
#[derive(JsonSchema, Serialize)]
pub struct Runs {
    /// `None` if the runs are equal.
    #[serde(flatten)]
    parted: Option<Parted>,
    /// Whether the runs are equal.
    equal: bool,
}

/// The first instruction after which two runs differ.
#[derive(JsonSchema, Serialize)]
struct Parted {
    #[serde(flatten)]
    at: Moment,
    /// The instruction's address.
    rip: String,
    /// The instruction's function and the offset in it, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    /// Whether the runs differ from the start, before any instruction.
    from_the_start: bool,
    /// The difference right after the instruction, or at the start.
    difference: Difference,
}

impl Display for Runs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(Parted { at, rip, function, from_the_start, difference }) = &self.parted else {
            return write!(f, "the two runs are equal");
        };
        if *from_the_start {
            writeln!(
                f,
                "the two runs differ from the start: record both with the same guest, --seed and --date to find where \
                 they part"
            )?;
        } else {
            writeln!(f, "the two runs differ after this instruction:")?;
            writeln!(f, "{at}  {}", function.as_ref().unwrap_or(rip))?;
        }
        write!(f, "\n{difference}")
    }
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let (Some(from), Some(to)) = (args.from, args.to) else {
        let other = args.with.as_ref().expect("clap wants two positions or --with");
        let (other, _) = args.part.open_for(other, args.engine)?;
        crate::output::print_answer(&part(&recording, &other, args.limit.get())?, args.json)?;
        return Ok(exit_code::DONE);
    };
    let mut timeline = Timeline::open(&recording)?;
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    go_to(&mut timeline, from, &mut wait)?;
    let before = Side::of(timeline.machine_mut())?;
    let difference = match &args.with {
        None => {
            go_to(&mut timeline, to, &mut wait)?;
            before.to(timeline.machine_mut(), args.limit.get())?
        }
        Some(other) => {
            drop(timeline);
            let (recording, engine) = args.part.open_for(other, args.engine)?;
            let mut timeline = Timeline::open(&recording)?;
            timeline.use_engine(engine)?;
            wait = wait.of(&timeline);
            go_to(&mut timeline, to, &mut wait)?;
            before.to(timeline.machine_mut(), args.limit.get())?
        }
    };
    drop(wait);
    crate::output::print_answer(&difference, args.json)?;
    Ok(exit_code::DONE)
}

/// Finds the first instruction after which two runs differ, and the difference right after it.
fn part(
    left: &Recording<Instructions>,
    right: &Recording<Instructions>,
    limit: usize,
) -> Result<Runs, Error> {
    let Some(parting) = find_parting(left, right)? else { return Ok(Runs { parted: None, equal: true }) };
    let at = Instructions(parting.at.number());
    let mut timeline = Timeline::open(left)?;
    let mut wait = Wait::on(&timeline)?;
    timeline.seek(at.min(timeline.end()), &mut || wait.poll())?.unless_interrupted()?;
    let place = timeline.position();
    let kernels = GuestKernels::of(&mut timeline, place, &mut || wait.poll())?;
    timeline.seek(place, &mut || wait.poll())?.unless_interrupted()?;
    let processor = timeline.machine().running_processor();
    let (kernel, rip) = (kernels.at(timeline.machine()), processor.linear_rip());
    let function = kernel.and_then(|kernel| kernel.symbols.place_of(rip));
    let moment = Moment::of(&processor, place, kernel);
    let mut other = Timeline::open(right)?;
    let mut wait = wait.of(&other);
    let from_the_start = at == Instructions(0) && differ_at_the_start(&mut timeline, &mut other, &mut wait)?;
    let after = if from_the_start { at } else { at + 1 };
    for side in [&mut timeline, &mut other] {
        side.seek(after.min(side.end()), &mut || wait.poll())?.unless_interrupted()?;
    }
    let difference = Side::of(timeline.machine_mut())?.to(other.machine_mut(), limit)?;
    let parted = Parted { at: moment, rip: format!("{rip:#x}"), function, from_the_start, difference };
    Ok(Runs { parted: Some(parted), equal: false })
}

/// Whether the machines of two runs differ before their first instruction.
fn differ_at_the_start(left: &mut Timeline, right: &mut Timeline, wait: &mut Wait) -> Result<bool, Error> {
    for side in [&mut *left, &mut *right] {
        side.seek(Instructions(0), &mut || wait.poll())?.unless_interrupted()?;
    }
    Ok(left.machine_mut().hashes() != right.machine_mut().hashes())
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
