//! `ttvm completions`: what a shell needs to complete ttvm's command lines.

use clap::CommandFactory;
use clap_complete::Shell;
use vmm::error::{Error, exit_code};

use crate::Cli;

#[derive(clap::Args)]
pub struct Args {
    /// For which shell; bash reads it by `source <(ttvm completions bash)`
    shell: Shell,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ttvm", &mut script);
    crate::output::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit_code::DONE)
}
