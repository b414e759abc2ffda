//! `ttvm pack`: one file for another machine.

use std::path::PathBuf;

use machine::error::{Error, exit_code};
use recording::Opened;
use recording::pack::pack;
use recording::with_recording;

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
    let opened = Opened::open(&args.recording)?;
    let checkpoints = !args.no_checkpoints;
    let bytes = with_recording!(opened, recording => pack(&recording, &args.output, checkpoints))?;
    eprintln!("ttvm: packed into {}, {bytes} bytes", args.output.display());
    Ok(exit_code::DONE)
}
