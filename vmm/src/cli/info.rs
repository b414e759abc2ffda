//! `ttvm info`: what a recording holds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use vmm::error::{Error, exit_code};
use vmm::recording::Recording;

#[derive(clap::Args)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info<'a> {
    format_version: u32,
    made_by: &'a str,
    engine: &'a str,
    counter: &'a str,
    cpu_model: &'a str,
    machine: &'a vmm::config::MachineConfig,
    /// Whether the recording reaches the end of the run; if not, it was cut off.
    complete: bool,
    ended: Option<String>,
    instructions: u64,
    branches: u64,
    guest_seconds: f64,
    events: BTreeMap<&'static str, usize>,
    checks: usize,
    log_bytes: u64,
    log_bytes_per_guest_second: Option<f64>,
    console_bytes: Option<u64>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let info = info(&recording);
    super::print(&if args.json {
        serde_json::to_string_pretty(&info).expect("plain data always serializes")
    } else {
        text(&info)
    })?;
    Ok(exit_code::DONE)
}

fn info(recording: &Recording) -> Info<'_> {
    let (manifest, log) = (&recording.manifest, &recording.log);
    let end = log.end.as_ref();
    let mut events = BTreeMap::new();
    for record in &log.events {
        *events.entry(record.event.kind()).or_insert(0) += 1;
    }
    let last = log.last_moment();
    let branches = log.events.last().map_or(0, |event| event.branches);
    let branches = log.checks.last().map_or(branches, |(_, check)| branches.max(check.branches));
    let guest_seconds = last.time_ns as f64 / 1e9;
    Info {
        format_version: manifest.format_version,
        made_by: &manifest.made_by,
        engine: &manifest.engine,
        counter: &manifest.counter,
        cpu_model: &manifest.machine.cpu_model,
        machine: &manifest.machine,
        complete: end.is_some(),
        ended: end.map(|e| e.outcome.to_string()),
        instructions: last.steps,
        branches: end.map_or(branches, |e| e.branches),
        guest_seconds,
        events,
        checks: log.checks.len(),
        log_bytes: log.bytes,
        log_bytes_per_guest_second: (last.time_ns > 0).then(|| log.bytes as f64 / guest_seconds),
        console_bytes: end.map(|e| e.console_bytes),
    }
}

fn text(info: &Info<'_>) -> String {
    let mut lines = Vec::new();
    let machine = info.machine;
    lines.push(format!("made by       {}, format version {}", info.made_by, info.format_version));
    lines.push(format!("engine        {}, counting in {}", info.engine, info.counter));
    lines.push(format!(
        "machine       {} MiB RAM, CPU model {}",
        machine.memory_bytes >> 20,
        machine.cpu_model
    ));
    lines.push(format!("kernel        {}", machine.kernel.path.display()));
    if let Some(initrd) = &machine.initrd {
        lines.push(format!("initrd        {}", initrd.path.display()));
    }
    for module in &machine.modules {
        lines.push(format!("module        {} {}", module.file.path.display(), module.cmdline));
    }
    if let Some(disk) = &machine.disk {
        lines.push(format!("disk          {}", disk.path.display()));
    }
    lines.push(format!("command line  {}", machine.cmdline));
    lines.push(format!(
        "ended         {}",
        info.ended.as_deref().unwrap_or("cut off: the recorder was stopped")
    ));
    lines.push(format!(
        "length        {} instructions, {:.6} s guest time",
        info.instructions, info.guest_seconds
    ));
    lines.push(format!("branches      {} conditional", info.branches));
    for (kind, count) in &info.events {
        lines.push(format!("events        {count} {kind}"));
    }
    lines.push(format!("checks        {}", info.checks));
    let rate = info.log_bytes_per_guest_second;
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.0} per guest second"));
    lines.push(format!("log           {} bytes{rate}", info.log_bytes));
    lines.join("\n")
}
