//! `ttvm where-to`: shows where a value went.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use origins::{Location, OnwardEnd, WhereTo};

use crate::help::{LOCATIONS, POSITIONS};
use crate::output::say;
use crate::questions::SymbolFiles;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// Show where a value went: its copies, its uses, and the devices that got it
///
/// ttvm follows copies through registers, memory, system calls and pipes. The answer has the copies in memory, and the
/// first time that each instruction used the value. While a register has the value, ttvm looks at each instruction, which
/// is slow. So give --to if the value stays in use for long.
///
/// Examples:
///   ttvm where-to R.ttvm rax --from last-syscall --to +20k
///   ttvm where-to R.ttvm 0xffff888003a41000:4 --from insn:1e9 --computed
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = format!("{LOCATIONS}\n\n{POSITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The value's location: a register, an address or a symbol, with a length; --help lists all forms
    location: Location,
    /// Position at which the location has the value
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    from: PositionSpec,
    /// Position where the search ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    /// Take the registers of this processor, by its number, instead of the running one
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Follow the results of computations with the value, too
    #[arg(long)]
    computed: bool,
    /// Show copies to registers and to the stack, too
    #[arg(long)]
    registers: bool,
    /// Maximum number of copies and uses to show
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
    let (at, until) = stretch(&mut timeline, args.from, args.to, &mut wait)?;
    let question = WhereTo {
        location: &location,
        processor: args.cpu,
        at,
        until,
        through_computations: args.computed,
        with_registers: args.registers,
        limit: args.limit.get(),
    };
    let answer = question.run(&mut timeline, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&answer, args.json)?;
    if !args.json {
        let billions = answer.replayed as f64 / 1e9;
        let count = answer.passages.len();
        say(&format!("ttvm: {count} copies and uses found, {billions:.3}e9 instructions replayed"));
    }
    let is_interrupted = answer.end == OnwardEnd::Interrupted;
    Ok(if is_interrupted { exit_code::INTERRUPTED } else { exit_code::DONE })
}
