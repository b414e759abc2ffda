//! `ttvm log`: lists the events of a recording, or finds where two recordings differ.

use std::io::Write;
use std::path::PathBuf;

use cpu::Turn;
use machine::checks::CheckRecord;
use machine::error::{Error, exit_code};
use machine::hex;
use machine::inputs::Event;
use machine::position::{Count, Moment, Position};
use recording::Opened;
use recording::log::diff::diff;
use recording::log::{EndRecord, EventRecord, Log, LogEntry};
use recording::with_recording;
use serde::Serialize;
use views::visible::visible;

/// List a recording's events: keys, frames, dates and other input
///
/// Examples:
///   ttvm log R.ttvm
///   ttvm log R.ttvm --diff OTHER.ttvm
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Print the recording's checks too
    #[arg(long)]
    checks: bool,
    /// Show the first difference between this recording's events and another's
    #[arg(long, value_name = "RECORDING", conflicts_with_all = ["json", "checks"])]
    diff: Option<PathBuf>,
}

/// One line of the log.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<usize>,
    kind: &'static str,
    #[serde(flatten)]
    position: Position,
    time_ns: u64,
    branches: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<(&'static str, String)>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let opened = Opened::open(&args.recording)?;
    if let Some(other) = &args.diff {
        return match (opened, Opened::open(other)?) {
            (Opened::ByInstructions(left), Opened::ByInstructions(right)) => {
                print_diff(&left.log, &right.log)
            }
            (Opened::ByExits(left), Opened::ByExits(right)) => print_diff(&left.log, &right.log),
            _ => {
                crate::output::print("the recordings part: they were made on different machines")?;
                Ok(exit_code::DIVERGED)
            }
        };
    }
    with_recording!(opened, recording => list(args, &recording.log))
}

fn list<C: Count>(args: &Args, log: &Log<C>) -> Result<i32, Error> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut print = |line: Line<'_>| {
        if args.json {
            let text = serde_json::to_string(&line).expect("plain data in memory always serializes");
            writeln!(out, "{}", visible(&text))
        } else {
            writeln!(out, "{}", visible(&text(&line)))
        }
    };
    let mut written = Ok(());
    for place in log.entries() {
        written = match &place? {
            LogEntry::Event { number, record, .. } => print(event_line(*number, record)),
            LogEntry::Check { record, .. } if args.checks => print(check_line(record)),
            LogEntry::Check { .. } => Ok(()),
        };
        if written.is_err() {
            break;
        }
    }
    if let (Ok(()), Some(end)) = (&written, &log.end) {
        written = print(end_line(end));
    }
    match written.and_then(|()| out.flush()) {
        // The list's reader has stopped reading.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit_code::DONE),
        Err(source) => Err(Error::Host { what: "cannot write the list".to_string(), source }),
        Ok(()) => Ok(exit_code::DONE),
    }
}

fn print_diff<C: Count>(left: &Log<C>, right: &Log<C>) -> Result<i32, Error> {
    let Some(parting) = diff(left, right)? else {
        crate::output::print("the recordings do not differ as far as both go")?;
        return Ok(exit_code::DONE);
    };
    let place = parting.at.map_or(String::new(), |at| format!(" at {}", at.count.position()));
    crate::output::print(&format!("the recordings part{place}: {}", parting.what))?;
    Ok(exit_code::DIVERGED)
}

fn line<'a, C: Count>(kind: &'static str, at: Moment<C>, branches: u64) -> Line<'a> {
    let (position, time_ns) = (at.count.position(), at.time_ns);
    let (number, rip, event, outcome, hashes) = (None, None, None, None, Vec::new());
    Line { number, kind, position, time_ns, branches, rip, event, outcome, hashes }
}

fn event_line<C: Count>(number: usize, record: &EventRecord<C>) -> Line<'_> {
    Line {
        number: Some(number),
        rip: Some(format!("{:#x}", record.rip)),
        event: Some(&record.event),
        hashes: vec![("cpu", hex(&record.cpu_hash))],
        ..line(record.event.kind(), record.at, record.branches)
    }
}

fn check_line<C: Count>(check: &CheckRecord<C>) -> Line<'_> {
    let mut hashes = vec![("cpu", hex(&check.cpu_hash))];
    hashes.extend(check.devices_hash.map(|hash| ("devices", hex(&hash))));
    hashes.extend(check.ram_digest.map(|digest| ("ram", hex(&digest))));
    Line { rip: Some(format!("{:#x}", check.rip)), hashes, ..line("check", check.at, check.branches) }
}

fn end_line<C: Count>(end: &EndRecord<C>) -> Line<'_> {
    let hashes = &end.hashes;
    let hashes = vec![
        ("cpu", hex(&hashes.cpu)),
        ("devices", hex(&hashes.devices)),
        ("ram", hex(&hashes.ram)),
        ("disk", hex(&hashes.disk)),
        ("console", hex(&end.console_hash)),
    ];
    Line { outcome: Some(end.outcome.to_string()), hashes, ..line("end", end.at, end.branches) }
}

fn text(line: &Line<'_>) -> String {
    let number = line.number.map_or(String::new(), |number| format!("#{number}"));
    let mut text = format!(
        "{number:>6} {:<19} {:>15.9} s  {}",
        line.position.short(),
        line.time_ns as f64 / 1e9,
        line.kind
    );
    match line.event {
        Some(Event::ConsoleInput(bytes)) => text += &format!(" \"{}\"", bytes.escape_ascii()),
        Some(Event::ConsoleResize { columns, rows }) => text += &format!(" {columns}x{rows}"),
        Some(Event::PowerOn(given)) => {
            text += &format!(" date {} console {}x{}", given.unix_seconds, given.columns, given.rows);
        }
        Some(Event::PowerButton | Event::Ended | Event::Interrupted | Event::Limit | Event::TextShown) => {}
        Some(Event::Stopped(stopped)) => {
            text += &format!(" without an exit, RAM {}", hex(&stopped.ram_digest));
        }
        Some(Event::NetworkInput(frames)) => {
            let bytes: usize = frames.iter().map(Vec::len).sum();
            text += &format!(" {} frames, {bytes} bytes", frames.len());
        }
        Some(Event::Devices(input)) => {
            if let Some(asked) = input.asked {
                text += &format!(" {asked:x?}");
            }
            if let Some(value) = input.value {
                text += &format!(" gives {value:#x}");
            }
            text += &format!(" {} bytes to memory, {} interrupts", input.dma_bytes(), input.interrupts.len());
        }
        Some(Event::Turns(turns)) => text += &turns_in_words(turns),
        Some(Event::TimePassed { ns }) => text += &format!(" {:.6} s", *ns as f64 / 1e9),
        None => line.hashes.iter().for_each(|(what, hash)| text += &format!(" {what} {}", &hash[..16])),
    }
    text + &line.outcome.as_ref().map_or(String::new(), |outcome| format!(": {outcome}"))
}

/// The turns of an event as text: their number, and the first of them as processor and number of instructions.
fn turns_in_words(turns: &[Turn]) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> =
        turns.iter().take(SHOWN).map(|turn| format!("{}:{}", turn.processor, turn.steps)).collect();
    let more = if turns.len() > SHOWN { " ..." } else { "" };
    format!(" {} turns, processor:instructions {}{more}", turns.len(), first.join(" "))
}
