//! `ttvm unpack`: makes a recording from a packed file.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use recording::pack::DEFAULT_MAX_BYTES;

use crate::output::say;

#[derive(clap::Args)]
pub struct Args {
    /// The packed file
    file: PathBuf,
    /// The recording to make: a directory NAME.ttvm that does not exist yet
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: PathBuf,
    /// Refuse files that would unpack to more than this, holes included: a number with K, M or G
    #[arg(long, value_name = "SIZE", default_value_t = DEFAULT_MAX_BYTES, value_parser = machine::notation::bytes)]
    max_size: u64,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    recording::pack::unpack(&args.file, &args.output, args.max_size)?;
    say(&format!("ttvm: unpacked into {}", args.output.display()));
    Ok(exit_code::DONE)
}
