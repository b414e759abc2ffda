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
    if args.json {
        println!("{}", serde_json::to_string_pretty(&info).expect("plain data always serializes"));
    } else {
        print_info(&info);
    }
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

fn print_info(info: &Info<'_>) {
    let machine = info.machine;
    println!("made by       {}, format version {}", info.made_by, info.format_version);
    println!("engine        {}, counting in {}", info.engine, info.counter);
    println!("machine       {} MiB RAM, CPU model {}", machine.memory_bytes >> 20, machine.cpu_model);
    println!("kernel        {}", machine.kernel.path.display());
    if let Some(initrd) = &machine.initrd {
        println!("initrd        {}", initrd.path.display());
    }
    for module in &machine.modules {
        println!("module        {} {}", module.file.path.display(), module.cmdline);
    }
    if let Some(disk) = &machine.disk {
        println!("disk          {}", disk.path.display());
    }
    println!("command line  {}", machine.cmdline);
    println!("ended         {}", info.ended.as_deref().unwrap_or("cut off: the recorder was stopped"));
    println!("length        {} instructions, {:.6} s guest time", info.instructions, info.guest_seconds);
    println!("branches      {} conditional", info.branches);
    for (kind, count) in &info.events {
        println!("events        {count} {kind}");
    }
    println!("checks        {}", info.checks);
    let rate = info.log_bytes_per_guest_second;
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.0} per guest second"));
    println!("log           {} bytes{rate}", info.log_bytes);
}
