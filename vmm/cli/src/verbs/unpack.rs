//! `ttvm unpack`: makes a recording from a packed file.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use recording::pack::DEFAULT_MAX_BYTES;

use crate::output::say;

/// Make a recording from a packed file
///
/// Examples:
///   ttvm unpack R.packed -o R.ttvm
///   ttvm unpack R.packed -o R.ttvm --max-size 200G
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The packed file
    file: PathBuf,
    /// The recording to make: a new folder
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: PathBuf,
    /// Refuse files that unpack to more than this size, holes included: a number with K, M or G
    #[arg(long, value_name = "SIZE", default_value_t = DEFAULT_MAX_BYTES, value_parser = machine::notation::bytes)]
    max_size: u64,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    recording::pack::unpack(&args.file, &args.output, args.max_size)?;
    say(&format!("ttvm: unpacked into {}", args.output.display()));
    Ok(exit_code::DONE)
}
