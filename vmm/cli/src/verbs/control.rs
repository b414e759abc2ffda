//! `ttvm control`: steers a run that was started with `--control`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use machine::error::{Error, exit_code};

use crate::watch::{FAILED, OK};

/// The longest wait for an answer. The process that runs the guest answers earlier.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Start recording in a run that `ttvm run --control` started
///
/// Examples:
///   ttvm control control.socket record
///   ttvm control control.socket status
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The socket that was given to --control
    socket: PathBuf,
    /// What to do
    #[arg(value_enum)]
    command: Command,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Command {
    /// Start the recording, in the folder that was given to -o
    Record,
    /// Show whether the run is being recorded
    Status,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let line = match args.command {
        Command::Record => "record\n",
        Command::Status => "status\n",
    };
    let mut answer = String::new();
    UnixStream::connect(&args.socket)
        .and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(line.as_bytes())?;
            stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)
        })
        .map_err(|source| {
            let socket = args.socket.display();
            Error::Host {
                what: format!("no run answers at {socket}: start one with --control {socket}"),
                source,
            }
        })?;
    if let Some(text) = answer.strip_prefix(OK) {
        crate::output::print(text.trim_end())?;
        return Ok(exit_code::DONE);
    }
    let why =
        answer.strip_prefix(FAILED).unwrap_or("the run closed the connection: it may belong to another user");
    crate::output::say(&format!("ttvm: {}", why.trim_end()));
    Ok(exit_code::FAILED)
}
