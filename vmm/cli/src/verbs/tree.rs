//! `ttvm tree`: shows the calls of a thread as a tree.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use views::tree::Question;

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// Show the calls of a thread as a tree, with arguments, results and lengths
///
/// The tree has the functions of the kernel, and interrupts. Lengths are in instructions, and count other threads too. ttvm
/// executes one instruction at a time for this, so choose a part of milliseconds.
///
/// Examples:
///   ttvm tree R.ttvm --from last-syscall --to +20k
///   ttvm tree R.ttvm --from insn:1474937251 --to +8000 --depth 4
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// Position where the tree begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    from: PositionSpec,
    /// Position where the tree ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "+100k")]
    to: PositionSpec,
    /// The thread's number [default: the thread that runs at --from]
    #[arg(long, value_name = "PID")]
    thread: Option<u32>,
    /// Maximum depth; deeper calls are counted only
    #[arg(long, value_name = "N", default_value = "8")]
    depth: NonZeroUsize,
    /// Show calls inside programs, too, by their addresses
    #[arg(long)]
    programs: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = args.part.open(&args.recording)?;
    let mut timeline = Timeline::open(&recording)?;
    let mut wait = Wait::on(&timeline)?;
    let (from, to) = stretch(&mut timeline, args.from, args.to, &mut wait)?;
    let (depth, with_programs) = (args.depth.get(), args.programs);
    let question = Question { thread: args.thread, depth, with_programs };
    let tree = question.answer(&mut timeline, from..to, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&tree, args.json)?;
    if !args.json {
        say(&format!("ttvm: {} instructions observed", (to.0).saturating_sub(from.0)));
    }
    Ok(exit_code::DONE)
}
