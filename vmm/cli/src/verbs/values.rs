//! `ttvm values`: lists all values of a variable, and who wrote them.

use std::path::PathBuf;

use machine::error::Error;
use views::filters::Filters;
use views::values::Question;
use views::variable::VARIABLES;

use crate::help::POSITIONS;
use crate::output::say;
use crate::questions::{ListArgs, SymbolFiles, code_of};

/// List all values of a variable, when each was written, and by whom
///
/// Types and fields come from the kernel's type information (BTF), or from the debug information of a file. Pointers are
/// followed at the end of the part.
///
/// Examples:
///   ttvm values R.ttvm jiffies_64 --limit 10
///   ttvm values R.ttvm '(task_struct)init_task.comm'
///   ttvm values R.ttvm total comm:server --symbols ./server
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = format!("{VARIABLES}\n\n{POSITIONS}"))]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// A symbol, an address, or (TYPE)SYMBOL.FIELD; --help lists all forms
    variable: String,
    /// Limits the list to writes of pid:N, comm:NAME or cpu:N
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// List writes that do not change the value, too
    #[arg(long)]
    all_writes: bool,
    #[command(flatten)]
    symbol_files: SymbolFiles,
    #[command(flatten)]
    list: ListArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let filters = Filters::parse(&args.filters).map_err(Error::Usage)?;
    let files = &args.symbol_files.open()?;
    let (mut timeline, part, mut wait) = args.list.open(&args.recording)?;
    let (variable, all_writes) = (args.variable.as_str(), args.all_writes);
    let question = Question {
        variable,
        files,
        filters: &filters,
        all_writes,
        as_bytes: false,
        limit: args.list.limit.get(),
    };
    let found = question.answer(&mut timeline, part, &mut || wait.poll())?;
    drop(wait);
    crate::output::print_answer(&found, args.list.json)?;
    if !args.list.json {
        let billions = found.replayed as f64 / 1e9;
        say(&format!("ttvm: {} writes found, {billions:.3}e9 instructions replayed", found.writes.len()));
    }
    Ok(code_of(found.interrupted, found.writes.is_empty()))
}
