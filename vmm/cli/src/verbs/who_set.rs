//! `ttvm who-set`: shows where a value came from.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use origins::{EndKind, Location, WhoSet};

use crate::help::{LOCATIONS, POSITIONS};
use crate::output::say;
use crate::questions::SymbolFiles;
use crate::travel::PartArgs;
use crate::wait::Wait;

/// Show where a value came from: the chain of writes back through copies
///
/// The chain ends where an instruction computed the value, at a constant, or at input from outside.
///
/// Examples:
///   ttvm who-set R.ttvm rax --at panic
///   ttvm who-set R.ttvm jiffies_64 --at 12.5s
///   ttvm who-set R.ttvm 0xffff888003a41000:4 --at insn:1e9
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = format!("{LOCATIONS}\n\n{POSITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The value's location: a register, an address or a symbol, with a length; --help lists all forms
    location: Location,
    /// Position, like panic, 12.5s or insn:1e9
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    at: PositionSpec,
    /// Take the registers of this processor, by its number, instead of the running one
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Maximum number of writes to show
    #[arg(long, value_name = "N", default_value = "100")]
    limit: NonZeroUsize,
    #[command(flatten)]
    symbol_files: SymbolFiles,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let location = args.location.clone().with_files(Arc::new(args.symbol_files.open()?));
    let recording = args.part.open(&args.recording)?;
    let mut timeline = Timeline::open(&recording)?;
    let mut wait = Wait::on(&timeline)?;
    let at = timeline.resolve_outside(args.at, &mut || wait.poll())?;
    let question = WhoSet { location: &location, processor: args.cpu, at, limit: args.limit.get() };
    let answer = question.run(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&answer, args.json)?;
    if !args.json {
        let billions = answer.replayed as f64 / 1e9;
        say(&format!("ttvm: {} writes found, {billions:.3}e9 instructions replayed", answer.links.len()));
    }
    Ok(match answer.end.kind {
        EndKind::Interrupted => exit_code::INTERRUPTED,
        EndKind::Unexplained => exit_code::FAILED,
        _ => exit_code::DONE,
    })
}
