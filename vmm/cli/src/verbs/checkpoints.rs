//! `ttvm checkpoints`: lists a recording's checkpoints, adds or removes one, or drops damaged ones.

use std::path::{Path, PathBuf};

use checkpoint::{Entry, Store};
use history::timeline::Timeline;
use machine::Format;
use machine::engine::EngineKind;
use machine::error::{Error, exit_code};
use machine::notation::{self, Distance, PositionSpec};
use machine::position::{Exits, Instructions, Position};
use machine::unit::Unit;
use recording::checkpoints::CheckpointHead;
use recording::with_recording;
use recording::{CHECKPOINTS, Opened, Recording};
use serde::Serialize;

use crate::help::POSITIONS;
use crate::output::say;
use crate::travel;
use crate::wait::Wait;

/// List, add or remove checkpoints
///
/// ttvm goes to a position from the checkpoint before it. So a position shortly after a checkpoint is quick to reach.
///
/// Examples:
///   ttvm checkpoints R.ttvm list
///   ttvm checkpoints R.ttvm add insn:1e8
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the checkpoints
    ///
    /// Examples:
    ///   ttvm checkpoints R.ttvm list
    ///   ttvm checkpoints R.ttvm list --json
    #[command(verbatim_doc_comment)]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a checkpoint at a position, or many with --every
    ///
    /// ttvm replays to each position. `list` does not show checkpoints that were added to a recording made with KVM.
    ///
    /// Examples:
    ///   ttvm checkpoints R.ttvm add insn:1e8
    ///   ttvm checkpoints R.ttvm add --every 10ms --from 12.5s --to end
    #[command(verbatim_doc_comment, after_long_help = POSITIONS)]
    Add {
        /// Position, like panic, 12.5s or insn:1e9
        #[arg(allow_hyphen_values = true, required_unless_present = "every")]
        position: Option<PositionSpec>,
        /// Distance between two checkpoints, in guest time or instructions, like 10ms or 5e6
        #[arg(long, value_name = "DISTANCE", value_parser = notation::distance_of, conflicts_with = "position")]
        every: Option<Distance>,
        /// Position where --every begins
        #[arg(
            long,
            value_name = "POS",
            default_value = "start",
            allow_hyphen_values = true,
            requires = "every"
        )]
        from: PositionSpec,
        /// Position where --every ends; +10ms counts from --from
        #[arg(
            long,
            value_name = "POS",
            default_value = "end",
            allow_hyphen_values = true,
            requires = "every"
        )]
        to: PositionSpec,
    },
    /// Remove a checkpoint
    ///
    /// Examples:
    ///   ttvm checkpoints R.ttvm remove insn:1e8
    ///   ttvm checkpoints R.ttvm remove 123456789
    #[command(verbatim_doc_comment, after_long_help = POSITIONS)]
    Remove {
        /// The checkpoint's position, or its number in the first column of `list`
        position: String,
    },
    /// Remove damaged checkpoints, and the checkpoints that need them
    ///
    /// ttvm reads all checkpoints and writes the good ones again. For a while both take space on the disk.
    ///
    /// Examples:
    ///   ttvm checkpoints R.ttvm drop-damaged
    #[command(verbatim_doc_comment)]
    DropDamaged,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    position: Position,
    guest_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    branches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_calls: Option<u64>,
    rip: String,
    events: usize,
    ram_pages: u64,
    disk_blocks: u64,
    /// Size in bytes of the pages written since the previous checkpoint.
    written_bytes: u64,
    /// Size in bytes of the checkpoint's file.
    bytes: u64,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let opened = Opened::open(&args.recording)?;
    match &args.action {
        Action::List { json } => with_recording!(opened, recording => list(&recording, *json)),
        Action::Add { position, every, from, to } => {
            let recording = travel::in_instructions(opened, false)?;
            match (position, every) {
                (_, Some(every)) => add_many(&recording, *every, *from, *to),
                (position, None) => add(&recording, position.expect("clap wants it without --every")),
            }
        }
        Action::Remove { position } => match opened {
            Opened::ByInstructions(recording) => {
                let target = instruction(&recording, position)?;
                remove(&recording, target)
            }
            Opened::ByExits(recording) => remove(&recording, exit(position)?),
        },
        Action::DropDamaged => drop_damaged(&args.recording.join(CHECKPOINTS)),
    }
}

fn list<U: Unit>(recording: &Recording<U>, json: bool) -> Result<i32, Error> {
    let entries = recording.checkpoints()?.map(|store| store.entries()).unwrap_or_default();
    let rows: Vec<Row> = entries.iter().filter_map(|entry| row::<U>(entry, recording.log.format)).collect();
    crate::output::print(&if json {
        serde_json::to_string_pretty(&rows).expect("plain data always serializes")
    } else {
        table::<U>(&rows)
    })?;
    Ok(exit_code::DONE)
}

fn row<U: Unit>(entry: &Entry, format: Format) -> Option<Row> {
    let head = CheckpointHead::<U>::parse(format, &entry.head)?;
    let position = head.at.count.position();
    let instruction = matches!(position, Position::Instruction(_)).then_some(());
    Some(Row {
        position,
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

fn table<U: Unit>(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:>16} {:>14} {:>12} {:>18} {:>7} {:>9} {:>9} {:>10}",
        U::ONE,
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
            row.position.number(),
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

fn add(recording: &Recording<Instructions>, position: PositionSpec) -> Result<i32, Error> {
    let mut timeline = travel::open_at(recording, position, EngineKind::SOFT)?;
    let entry = timeline.add_checkpoint()?;
    say(&format!("ttvm: checkpoint at instruction {}, {} bytes", entry.position, entry.bytes));
    Ok(exit_code::DONE)
}

/// Adds checkpoints along a part of the recording, so that every place in this part is near a checkpoint.
fn add_many(
    recording: &Recording<Instructions>,
    every: Distance,
    from: PositionSpec,
    to: PositionSpec,
) -> Result<i32, Error> {
    let mut timeline = Timeline::open(recording)?;
    let mut wait = Wait::on(&timeline)?;
    let (begin, end) = travel::stretch(&mut timeline, from, to, &mut wait)?;
    timeline.seek(begin, &mut || wait.poll())?.unless_interrupted()?;
    let mut taken = Vec::new();
    let ended = take_along(&mut timeline, every, end, &mut wait, &mut taken);
    // Checkpoints taken before an error stay.
    let bytes: u64 = taken.iter().map(|entry: &Entry| entry.bytes).sum();
    say(&format!("ttvm: {} checkpoints, {bytes} bytes", taken.len()));
    ended.map(|()| exit_code::DONE)
}

/// Adds a checkpoint at the timeline's position, and then one at each multiple of the distance `every` up to `end`.
fn take_along(
    timeline: &mut Timeline,
    every: Distance,
    end: Instructions,
    wait: &mut Wait,
    taken: &mut Vec<Entry>,
) -> Result<(), Error> {
    loop {
        if !timeline.has_checkpoint_here()? {
            taken.push(timeline.add_checkpoint()?);
        }
        let next = match timeline.resolve(PositionSpec::After(every), &mut || wait.poll()) {
            Ok(next) if next <= end && next > timeline.position() => next,
            // The next position would be after `end`, or after the recording's end.
            Ok(_) | Err(Error::Position(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        timeline.seek(next, &mut || wait.poll())?.unless_interrupted()?;
    }
}

/// Parses the position of the checkpoint to remove.
fn instruction(recording: &Recording<Instructions>, position: &str) -> Result<Instructions, Error> {
    let spec: PositionSpec = position.parse().map_err(Error::Position)?;
    Timeline::open(recording)?.resolve_outside(spec, &mut || false)
}

/// Parses the position of the checkpoint to remove, in a recording that counts exits.
fn exit(position: &str) -> Result<Exits, Error> {
    position.parse().map(Exits).map_err(|_| {
        let why =
            "checkpoints of this recording lie at exits: write the number that `ttvm checkpoints list` gives";
        Error::Position(why.to_string())
    })
}

fn remove<U: Unit>(recording: &Recording<U>, target: U) -> Result<i32, Error> {
    let at = target.position();
    let none = || Error::Position(format!("there is no checkpoint at {at}: see `ttvm checkpoints list`"));
    let store = recording.checkpoints()?.ok_or_else(none)?;
    if !store.entries().iter().any(|entry| entry.position == target.number()) {
        return Err(none());
    }
    store.remove(target.number())?;
    say(&format!("ttvm: removed the checkpoint at {at}"));
    Ok(exit_code::DONE)
}

fn drop_damaged(directory: &Path) -> Result<i32, Error> {
    if !directory.is_dir() {
        return Err(Error::Position("this recording has no checkpoints".to_string()));
    }
    let dropped = Store::drop_damaged(directory).map_err(|error| {
        if !error.is_damage() {
            return Error::from(error);
        }
        let why = format!("no checkpoint can be used: {error}; delete this folder");
        Error::recording(directory, why)
    })?;
    for damage in &dropped.damage {
        say(&format!("ttvm: {damage}"));
    }
    say(&format!("ttvm: {} checkpoints dropped, {} are left", dropped.dropped, dropped.kept.len()));
    Ok(exit_code::DONE)
}
