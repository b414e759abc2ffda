//! `ttvm pack`: one file for another machine.

use std::path::PathBuf;

use vmm::error::{Error, exit_code};
use vmm::recording::Recording;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// The file to write, which must not exist yet
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Leave the checkpoints out: a smaller file, whose recording takes longer to travel in
    #[arg(long)]
    no_checkpoints: bool,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let bytes = vmm::recording::pack::pack(&recording, &args.output, !args.no_checkpoints)?;
    eprintln!("ttvm: packed into {}, {bytes} bytes", args.output.display());
    Ok(exit_code::DONE)
}
