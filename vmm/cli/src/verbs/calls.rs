//! `ttvm calls`: lists the calls of a function, with arguments and results.

use std::path::PathBuf;

use machine::error::Error;
use views::calls::Question;
use views::filters::Filters;

use crate::help::POSITIONS;
use crate::output::say;
use crate::questions::{ListArgs, code_of};

/// List the calls of a function: arguments, result, caller, duration
///
/// A kernel with type information (BTF) gives names and types of arguments. Otherwise the registers of arguments are
/// shown. Durations count all that happens until the function returns, in other threads too.
///
/// Examples:
///   ttvm calls R.ttvm vfs_read
///   ttvm calls R.ttvm 'ext4_*' comm:cat --from 2s --limit 50
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// A function of the guest's kernel, a pattern such as vfs_*, or an address
    function: String,
    /// Limits the list to calls of pid:N, comm:NAME or cpu:N
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let filters = Filters::parse(&args.filters).map_err(Error::Usage)?;
    let (mut timeline, part, mut wait) = args.list.open(&args.recording)?;
    let question = Question { function: &args.function, filters: &filters, limit: args.list.limit.get() };
    let found = question.answer(&mut timeline, part, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&found, args.list.json)?;
    if !args.list.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} calls found, {billions:.3}e9 instructions replayed", found.calls.len()));
    }
    Ok(code_of(found.interrupted, found.calls.is_empty()))
}
