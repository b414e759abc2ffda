//! The arguments that all verbs share that list something in a part of a recording.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use history::timeline::Timeline;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use machine::position::Instructions;
use views::debug_files::DebugFiles;

use crate::engine_arg::EngineArgs;
use crate::travel::{PartArgs, stretch};
use crate::wait::Wait;

/// The part of the recording, and the form of the answer.
#[derive(clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    part: PartArgs,
    /// Position where the list begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "start")]
    from: PositionSpec,
    /// Position where the list ends; +N counts from --from
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end")]
    to: PositionSpec,
    /// Maximum number of lines to list
    #[arg(long, value_name = "N", default_value = "1000")]
    pub limit: NonZeroUsize,
    /// Number of cores to use [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl ListArgs {
    /// Opens the recording, and finds the part.
    pub fn open(&self, recording: &Path) -> Result<(Timeline, Range<Instructions>, Wait), Error> {
        let (recording, engine) = self.part.open_for(recording, self.engine)?;
        let mut timeline = match self.threads {
            Some(threads) => Timeline::open_with(&recording, threads.get())?,
            None => Timeline::open(&recording)?,
        };
        timeline.use_engine(engine)?;
        let mut wait = Wait::on(&timeline)?;
        let (from, to) = stretch(&mut timeline, self.from, self.to, &mut wait)?;
        Ok((timeline, from..to, wait))
    }
}

/// Files whose variables and types the user may name.
#[derive(clap::Args)]
pub struct SymbolFiles {
    /// Also know the variables and types of this program, library or vmlinux, which has debug information (DWARF)
    #[arg(long, value_name = "FILE")]
    symbols: Vec<PathBuf>,
}

impl SymbolFiles {
    /// Opens the files. Call this before a recording is opened, because after that the process may open no further files.
    pub fn open(&self) -> Result<DebugFiles, Error> {
        DebugFiles::open(&self.symbols)
    }
}

/// The exit code of a verb that prints a list.
pub fn code_of(interrupted: bool, is_empty: bool) -> i32 {
    match (interrupted, is_empty) {
        (true, _) => exit_code::INTERRUPTED,
        (false, true) => exit_code::FAILED,
        (false, false) => exit_code::DONE,
    }
}
