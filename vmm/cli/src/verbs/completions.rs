//! `ttvm completions`: the script that a shell needs to complete ttvm's command lines.

use clap::Command;
use clap_complete::Shell;
use machine::error::{Error, exit_code};

#[derive(clap::Args)]
pub struct Args {
    /// For which shell; bash reads it by `source <(ttvm completions bash)`
    shell: Shell,
}

/// `program` is the whole command line.
pub fn run(args: &Args, mut program: Command) -> Result<i32, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "ttvm", &mut script);
    crate::output::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit_code::DONE)
}
