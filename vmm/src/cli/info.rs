//! `ttvm info`: what a recording holds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use vmm::error::{Error, exit_code};
use vmm::recording::Recording;
use vmm::replay::last_step;

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
    made_by: &'a str,
    machine: &'a vmm::config::MachineConfig,
    complete: bool,
    ended: Option<String>,
    instructions: u64,
    branches: Option<u64>,
    guest_seconds: f64,
    events: BTreeMap<&'static str, usize>,
    console_bytes: Option<u64>,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let recording = Recording::open(&args.recording)?;
    let end = recording.log.end.as_ref();
    let mut events = BTreeMap::new();
    for record in &recording.log.events {
        *events.entry(record.event.kind()).or_insert(0) += 1;
    }
    let last_ns = end.map(|e| e.at.time_ns).or(recording.log.events.last().map(|e| e.at.time_ns));
    let info = Info {
        made_by: &recording.manifest.made_by,
        machine: &recording.manifest.machine,
        complete: end.is_some(),
        ended: end.map(|e| e.outcome.to_string()),
        instructions: last_step(&recording),
        branches: end.map(|e| e.branches),
        guest_seconds: last_ns.unwrap_or(0) as f64 / 1e9,
        events,
        console_bytes: end.map(|e| e.console_bytes),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&info).expect("plain data always serializes"));
    } else {
        print_info(&info);
    }
    Ok(exit_code::DONE)
}

fn print_info(info: &Info<'_>) {
    let machine = info.machine;
    println!("made by       {}", info.made_by);
    println!("machine       {} MiB RAM, CPU model {}", machine.memory_bytes >> 20, machine.cpu_model);
    println!("kernel        {}", machine.kernel.path.display());
    if let Some(initrd) = &machine.initrd {
        println!("initrd        {}", initrd.path.display());
    }
    if let Some(disk) = &machine.disk {
        println!("disk          {}", disk.path.display());
    }
    println!("command line  {}", machine.cmdline);
    println!("ended         {}", info.ended.as_deref().unwrap_or("cut off: the recorder was stopped"));
    println!("length        {} instructions, {:.6} s guest time", info.instructions, info.guest_seconds);
    if let Some(branches) = info.branches {
        println!("branches      {branches} conditional");
    }
    for (kind, count) in &info.events {
        println!("events        {count} {kind}");
    }
}
