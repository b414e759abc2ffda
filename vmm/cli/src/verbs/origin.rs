//! `ttvm origin`: shows which place of the run made the kernel call a function.

use std::num::NonZeroUsize;

use machine::error::{Error, exit_code};
use origins::{ArmingEndKind, WhoArmed};

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::PlaceArgs;
use crate::wait::Wait;

/// Show who armed the timer, work item or other callback that the kernel executes
///
/// Knows timers, work items, RCU callbacks, softirqs, tasklets, interrupt handlers and kernel threads. For any other
/// function that was called through a pointer, lists the writes of the pointer. Follows a chain of callbacks to the
/// program or the interrupt where it began.
///
/// Examples:
///   ttvm origin R.ttvm --at panic
///   ttvm origin R.ttvm wb_workfn --at insn:1e9
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The function, which must be in the kernel's stack [default: the innermost callback]
    function: Option<String>,
    /// Take the stack of this processor, by its number, instead of the running one
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Maximum number of callbacks in the chain
    #[arg(long, value_name = "N", default_value = "5")]
    limit: NonZeroUsize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let mut timeline = args.place.open()?;
    let mut wait = Wait::on(&timeline)?;
    let at = timeline.position();
    let question =
        WhoArmed { function: args.function.as_deref(), processor: args.cpu, at, limit: args.limit.get() };
    let answer = question.run(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&answer, args.json)?;
    if !args.json {
        let billions = answer.replayed as f64 / 1e9;
        say(&format!("ttvm: {} callbacks found, {billions:.3}e9 instructions replayed", answer.links.len()));
    }
    Ok(match answer.end.kind {
        ArmingEndKind::Interrupted => exit_code::INTERRUPTED,
        ArmingEndKind::Unknown => exit_code::FAILED,
        _ => exit_code::DONE,
    })
}
