//! `ttvm ls`: lists the recordings in a directory.

use std::path::{Path, PathBuf};

use indicatif::{HumanBytes, HumanDuration};
use machine::error::{Error, exit_code};
use machine::unit::Unit;
use recording::log::is_being_written;
use recording::with_recording;
use recording::{EVENTS, MANIFEST, Opened, Recording};
use serde::Serialize;
use views::visible::in_a_line;

use crate::output::end_in_words;
use crate::panic_watch::panic_of;

/// List the recordings in a folder
///
/// Each line has the length, the size, the age, and how the run ended.
///
/// Examples:
///   ttvm ls
///   ttvm ls /var/tmp/nightly --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The folder
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    path: PathBuf,
    /// Size in bytes of all files of the recording.
    bytes: u64,
    /// Time in seconds since the log was last written.
    seconds_old: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_seconds: Option<f64>,
    /// How the run ended, or what is wrong with the recording.
    ended: String,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let rows: Vec<Row> = recordings_in(&args.directory)?.into_iter().map(row).collect();
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&rows).expect("plain data always serializes")
    } else if rows.is_empty() {
        format!("no recordings in {}", args.directory.display())
    } else {
        table(&rows)
    })?;
    Ok(exit_code::DONE)
}

/// The directories in `directory` that have a manifest, ordered by name. If `directory` is a recording itself, returns
/// only `directory`.
fn recordings_in(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    if directory.join(MANIFEST).is_file() {
        return Ok(vec![directory.to_path_buf()]);
    }
    let entries = std::fs::read_dir(directory).map_err(Error::file("read", directory))?;
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join(MANIFEST).is_file()).collect();
    found.sort();
    Ok(found)
}

fn row(path: PathBuf) -> Row {
    let (guest_seconds, ended) = match Opened::open(&path) {
        Ok(opened) => with_recording!(opened, recording => length_and_end(&recording)),
        Err(error) => (None, error.to_string()),
    };
    let written = path.join(EVENTS).metadata().and_then(|file| file.modified()).ok();
    let seconds_old = written.and_then(|time| time.elapsed().ok()).map(|age| age.as_secs());
    Row { bytes: bytes_below(&path), seconds_old, guest_seconds, ended, path }
}

fn length_and_end<U: Unit>(recording: &Recording<U>) -> (Option<f64>, String) {
    let ended = match &recording.log.end {
        Some(end) => end_in_words(&end.outcome, panic_of(&recording.path, &end.outcome).is_some()),
        None if is_being_written(&recording.path.join(EVENTS)) => "is being recorded".to_string(),
        None => "cut off".to_string(),
    };
    let begins_ns = recording.log.power_on().map_or(0, |power_on| power_on.at.time_ns);
    (Some(recording.log.last_moment().time_ns.saturating_sub(begins_ns) as f64 / 1e9), ended)
}

/// Size in bytes of all files in a directory and its subdirectories. Does not follow links.
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    bytes.sum()
}

fn table(rows: &[Row]) -> String {
    let name = |row: &Row| in_a_line(&row.path.display().to_string()).into_owned();
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0);
    let line = |row: &Row| {
        let length = row.guest_seconds.map_or("?".to_string(), |seconds| format!("{seconds:.3} s"));
        let age = |seconds| HumanDuration(std::time::Duration::from_secs(seconds)).to_string();
        format!(
            "{:width$}  {:>12}  {:>12}  {:>10} old  {}",
            name(row),
            length,
            HumanBytes(row.bytes).to_string(),
            row.seconds_old.map_or("?".to_string(), age),
            in_a_line(&row.ended)
        )
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
