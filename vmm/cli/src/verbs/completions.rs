//! `ttvm completions`: the script that a shell needs to complete ttvm's command lines.

use clap::Command;
use clap_complete::Shell;
use machine::error::{Error, exit_code};

/// Print a shell's completions for ttvm
///
/// Examples:
///   source <(ttvm completions bash)
///   ttvm completions zsh > ~/.zfunc/_ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// `program` describes the whole command line of ttvm.
pub fn run(args: &Args, mut program: Command) -> Result<i32, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "ttvm", &mut script);
    crate::output::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit_code::DONE)
}
