//! `ttvm checkpoints`: what checkpoints a recording has, one more, one less.

use std::path::PathBuf;

use checkpoint::Entry;
use serde::Serialize;
use vmm::engine::EngineKind;
use vmm::error::{Error, exit_code};
use vmm::position::{Counting, PositionSpec};
use vmm::recording::Recording;
use vmm::recording::checkpoints::CheckpointHead;
use vmm::timeline::Timeline;

use crate::travel;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the checkpoints
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a checkpoint at a position, by replaying to it. In a recording of KVM it lies with what has been translated to
    /// instruction counts, and is not listed
    Add {
        /// start, end, panic, event:N, insn:N, branch:N, syscall:N, 12.5s, 37%
        position: PositionSpec,
    },
    /// Remove a checkpoint
    Remove {
        /// Its instruction, or exit, as listed, or its position in any notation
        position: String,
    },
}

#[derive(Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    instruction: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u64>,
    guest_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    branches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_calls: Option<u64>,
    rip: String,
    events: usize,
    ram_pages: u64,
    disk_blocks: u64,
    /// Of the pages that were written since the checkpoint before.
    written_bytes: u64,
    /// Of the checkpoint's file.
    bytes: u64,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    match &args.action {
        Action::List { json } => list(&recording, *json),
        Action::Add { position } => add(&travel::translated(recording, false)?, *position),
        Action::Remove { position } => remove(&recording, position),
    }
}

fn list(recording: &Recording, json: bool) -> Result<i32, Error> {
    let entries = recording.checkpoints()?.map(|store| store.entries()).unwrap_or_default();
    let rows: Vec<Row> = entries.iter().filter_map(|entry| row(entry, recording.counting)).collect();
    crate::output::print(&if json {
        serde_json::to_string_pretty(&rows).expect("plain data always serializes")
    } else {
        table(&rows, recording.counting)
    })?;
    Ok(exit_code::DONE)
}

fn row(entry: &Entry, counting: Counting) -> Option<Row> {
    let head = CheckpointHead::parse(&entry.head)?;
    let at = |wanted| (counting == wanted).then_some(entry.position);
    let instruction = at(Counting::Instructions);
    Some(Row {
        instruction,
        exit: at(Counting::Exits),
        guest_seconds: head.at.time_ns as f64 / 1e9,
        branches: instruction.map(|_| head.branches),
        system_calls: instruction.map(|_| head.system_calls),
        rip: format!("{:#x}", head.rip),
        events: head.cursor.events(),
        ram_pages: entry.counts.ram,
        disk_blocks: entry.counts.disk,
        written_bytes: entry.counts.dirtied_bytes,
        bytes: entry.bytes,
    })
}

fn table(rows: &[Row], counting: Counting) -> String {
    let mut lines = vec![format!(
        "{:>16} {:>14} {:>12} {:>18} {:>7} {:>9} {:>9} {:>10}",
        counting.one(),
        "guest s",
        "syscalls",
        "rip",
        "events",
        "RAM pages",
        "blocks",
        "bytes"
    )];
    lines.extend(rows.iter().map(|row| {
        format!(
            "{:>16} {:>14.6} {:>12} {:>18} {:>7} {:>9} {:>9} {:>10}",
            row.instruction.or(row.exit).unwrap_or_default(),
            row.guest_seconds,
            row.system_calls.map_or("-".to_string(), |count| count.to_string()),
            row.rip,
            row.events,
            row.ram_pages,
            row.disk_blocks,
            row.bytes
        )
    }));
    lines.push(format!(
        "{} checkpoints, {} bytes",
        rows.len(),
        rows.iter().map(|row| row.bytes).sum::<u64>()
    ));
    lines.join("\n")
}

fn add(recording: &Recording, position: PositionSpec) -> Result<i32, Error> {
    let Some(mut timeline) = travel::open_at(recording, position, EngineKind::Soft)? else {
        return Ok(exit_code::FAILED);
    };
    let entry = timeline.add_checkpoint()?;
    eprintln!("ttvm: checkpoint at instruction {}, {} bytes", entry.position, entry.bytes);
    Ok(exit_code::DONE)
}

fn remove(recording: &Recording, position: &str) -> Result<i32, Error> {
    let counted = recording.counting.one();
    let target = match (position.parse::<u64>(), recording.counting) {
        (Ok(steps), _) => steps,
        (Err(_), Counting::Exits) => {
            let why = "checkpoints of this recording lie at exits: write the number that `ttvm checkpoints list` gives";
            return Err(Error::Position(why.to_string()));
        }
        (Err(_), Counting::Instructions) => {
            let spec: PositionSpec = position.parse().map_err(Error::Position)?;
            Timeline::open(recording)?.resolve(spec, &mut || false)?
        }
    };
    let none = || {
        Error::Position(format!("there is no checkpoint at {counted} {target}: see `ttvm checkpoints list`"))
    };
    let store = recording.checkpoints()?.ok_or_else(none)?;
    if !store.entries().iter().any(|entry| entry.position == target) {
        return Err(none());
    }
    store.remove(target)?;
    eprintln!("ttvm: removed the checkpoint at {counted} {target}");
    Ok(exit_code::DONE)
}
