//! `ttvm man`: writes the manual pages.

use std::path::PathBuf;

use clap::Command;
use machine::error::{Error, exit_code};

/// Write the manual pages: ttvm.1, and a page for each verb
///
/// Examples:
///   ttvm man pages
///   man -l pages/ttvm-record.1
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The folder for the pages. ttvm makes the folder if it does not exist
    directory: PathBuf,
}

/// `program` describes the whole command line of ttvm.
pub fn run(args: &Args, program: Command) -> Result<i32, Error> {
    std::fs::create_dir_all(&args.directory).map_err(Error::file("create", &args.directory))?;
    clap_mangen::generate_to(program, &args.directory).map_err(Error::file("write", &args.directory))?;
    Ok(exit_code::DONE)
}
