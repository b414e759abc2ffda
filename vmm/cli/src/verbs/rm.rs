//! `ttvm rm`: removes recordings.

use std::path::{Path, PathBuf};

use machine::error::{Error, exit_code};
use recording::log::is_being_written;
use recording::{EVENTS, MANIFEST};

/// Remove recordings
///
/// Removes only folders that hold a recording. The images beside them stay.
///
/// Examples:
///   ttvm rm R.ttvm
///   ttvm rm A.ttvm B.ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recordings to remove
    #[arg(required = true)]
    recordings: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    // All recordings are checked first. If one may not be removed, none is removed.
    args.recordings.iter().try_for_each(|path| may_be_removed(path))?;
    for path in &args.recordings {
        std::fs::remove_dir_all(path).map_err(Error::file("remove", path))?;
    }
    Ok(exit_code::DONE)
}

/// Returns an error for a folder that is no recording, or that a recorder is writing.
fn may_be_removed(path: &Path) -> Result<(), Error> {
    let is_directory = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    if !is_directory || !path.join(MANIFEST).is_file() {
        return Err(Error::recording(
            path,
            "is not a recording, so ttvm does not remove it; a recording is a folder with a manifest",
        ));
    }
    if is_being_written(&path.join(EVENTS)) {
        return Err(Error::recording(path, "is being recorded: end the recorder first"));
    }
    Ok(())
}
