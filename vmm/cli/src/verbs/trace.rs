//! `ttvm trace`: writes the guest's activity to a file for Perfetto.

use std::io::IsTerminal;
use std::path::PathBuf;

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use serde::Serialize;
use views::trace::{self, Counts};

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::progress;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// Write threads, system calls, interrupts and console lines to a file for Perfetto
///
/// Perfetto opens the file at ui.perfetto.dev.
///
/// Examples:
///   ttvm trace R.ttvm -o R.pftrace
///   ttvm trace R.ttvm -o part.pftrace --from 50% --to 60%
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// The new file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Position where the trace begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "start")]
    from: PositionSpec,
    /// Position where the trace ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print the trace's counts as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a PathBuf,
    from: u64,
    to: u64,
    #[serde(flatten)]
    counts: Counts,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let (recording, engine) = args.part.open_for(&args.recording, args.engine)?;
    let mut timeline = Timeline::open(&recording)?;
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    let (from, to) = stretch(&mut timeline, args.from, args.to, &mut wait)?;
    let interrupt = wait.over();
    let bar = progress::bar(to.saturating_since(from), std::io::stderr().is_terminal());
    bar.set_message("tracing");
    let at = |place: Instructions| bar.set_position(place.saturating_since(from));
    let counts = trace::write(&mut timeline, (from, to), &args.output, &mut || interrupt.poll(), at);
    bar.finish_and_clear();
    let counts = counts?;
    crate::output::print(&if args.json {
        let report = Report { file: &args.output, from: from.number(), to: to.number(), counts };
        serde_json::to_string_pretty(&report).expect("plain data always serializes")
    } else {
        let turns = counts.turns.map(|turns| format!(", {turns} turns of processors")).unwrap_or_default();
        format!(
            "{}: {} threads, {} system calls, {} interrupts, {} exceptions ({} page faults), {} switches, {} \
             console lines{turns}",
            args.output.display(),
            counts.threads,
            counts.system_calls,
            counts.interrupts,
            counts.exceptions,
            counts.page_faults,
            counts.switches,
            counts.console_lines
        )
    })?;
    Ok(exit_code::DONE)
}
