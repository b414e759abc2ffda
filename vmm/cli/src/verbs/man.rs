//! `ttvm man`: the manual pages.

use std::path::PathBuf;

use clap::CommandFactory;
use vmm::error::{Error, exit_code};

use crate::Cli;

#[derive(clap::Args)]
pub struct Args {
    /// Where to write them: ttvm.1, and a page for each verb
    directory: PathBuf,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    std::fs::create_dir_all(&args.directory).map_err(Error::file("create", &args.directory))?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .map_err(Error::file("write", &args.directory))?;
    Ok(exit_code::DONE)
}
