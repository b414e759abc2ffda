//! `ttvm info`: describes a recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::Store;
use cpu::TurnPolicy;
use machine::config::{MachineConfig, PassedDevice, Processors};
use machine::error::{Error, exit_code};
use machine::position::{Count, Length, Moment};
use machine::start::Start;
use machine::unit::Unit;
use recording::log::{LogEntry, is_being_written};
use recording::with_recording;
use recording::{Cut, EVENTS, Opened, Recording};
use serde::Serialize;
use views::visible::in_a_line;

use crate::output::end_in_words;
use crate::panic_watch::panic_of;

/// Describe a recording: machine, images, length, end, events
///
/// Examples:
///   ttvm info R.ttvm
///   ttvm info R.ttvm --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
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
    machine: &'a MachineConfig,
    /// Whether the recording reaches the end of the run. If false, the recording was cut off.
    complete: bool,
    /// Whether a recorder is still writing the recording.
    being_recorded: bool,
    ended: Option<String>,
    /// The first line of the kernel's panic, if the run went on after the panic.
    #[serde(skip_serializing_if = "Option::is_none")]
    panic: Option<String>,
    /// The recording's length, in instructions or in exits.
    #[serde(flatten)]
    length: Length,
    branches: u64,
    guest_seconds: f64,
    /// The guest time at the beginning, unless the recording begins with power-on.
    #[serde(skip_serializing_if = "Option::is_none")]
    begins_at_guest_seconds: Option<f64>,
    /// If the recording was cut out of a longer recording, the facts about the missing part.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<Cut>,
    events: BTreeMap<&'static str, usize>,
    checks: usize,
    log_bytes: u64,
    log_bytes_per_guest_second: Option<f64>,
    console_bytes: Option<u64>,
    checkpoints: Option<CheckpointInfo>,
}

/// A summary of a recording's checkpoints.
#[derive(Serialize)]
struct CheckpointInfo {
    count: usize,
    bytes: u64,
    bytes_per_guest_second: Option<f64>,
    first: Option<Place>,
    last: Option<Place>,
    /// The longest part without a checkpoint, including the start and the end. No replay from a checkpoint to a place
    /// is longer.
    largest_gap: Place,
}

/// A point of the run, or a distance between two points.
#[derive(Clone, Copy, Serialize)]
struct Place {
    #[serde(flatten)]
    length: Length,
    guest_seconds: f64,
}

impl Place {
    fn between<C: Count>(from: Moment<C>, to: Moment<C>) -> Place {
        let ns = to.time_ns.saturating_sub(from.time_ns);
        let length = C::length(to.count.saturating_since(from.count));
        Place { length, guest_seconds: ns as f64 / 1e9 }
    }
}

pub fn run(args: &Args) -> Result<i32, Error> {
    with_recording!(Opened::open(&args.recording)?, recording => show(args, &recording))
}

fn show<U: Unit>(args: &Args, recording: &Recording<U>) -> Result<i32, Error> {
    let store = recording.checkpoints()?;
    let mut info = info(recording)?;
    let begins_ns = recording.log.power_on()?.at.time_ns;
    info.checkpoints = store.map(|store| checkpoint_info(&store, recording, begins_ns));
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&info).expect("plain data always serializes")
    } else {
        text(&info)
    })?;
    Ok(exit_code::DONE)
}

fn info<U: Unit>(recording: &Recording<U>) -> Result<Info<'_>, Error> {
    let (manifest, log) = (&recording.manifest, &recording.log);
    let end = log.end.as_ref();
    let panic = end.and_then(|end| panic_of(&recording.path, &end.outcome));
    let mut events = BTreeMap::new();
    let (mut at_event, mut at_check) = (0, 0);
    for place in log.entries() {
        match place? {
            LogEntry::Event { record, .. } => {
                *events.entry(record.event.kind()).or_insert(0) += 1;
                at_event = record.branches;
            }
            LogEntry::Check { record, .. } => at_check = record.branches,
        }
    }
    let last = log.last_moment();
    let begins_ns = log.power_on()?.at.time_ns;
    let passed_ns = last.time_ns.saturating_sub(begins_ns);
    let guest_seconds = passed_ns as f64 / 1e9;
    Ok(Info {
        format_version: manifest.format.version(),
        made_by: &manifest.made_by,
        engine: &manifest.engine,
        counter: &manifest.counter,
        cpu_model: &manifest.machine.cpu_model,
        machine: &manifest.machine,
        complete: end.is_some(),
        being_recorded: is_being_written(&recording.path.join(EVENTS)),
        ended: end.map(|e| end_in_words(&e.outcome, panic.is_some())),
        panic,
        length: U::length(last.count.number()),
        branches: end.map_or(at_event.max(at_check), |e| e.branches),
        guest_seconds,
        begins_at_guest_seconds: begins_at_guest_seconds(&manifest.machine, begins_ns),
        cut: manifest.cut,
        events,
        checks: log.check_count(),
        log_bytes: log.bytes,
        log_bytes_per_guest_second: (passed_ns > 0).then(|| log.bytes as f64 / guest_seconds),
        console_bytes: end.map(|e| e.console_bytes),
        checkpoints: None,
    })
}

fn begins_at_guest_seconds(machine: &MachineConfig, begins_ns: u64) -> Option<f64> {
    match machine.start {
        Start::Kernel(_) => None,
        Start::State { .. } => Some(begins_ns as f64 / 1e9),
    }
}

fn checkpoint_info<U: Unit>(store: &Store, recording: &Recording<U>, begins_ns: u64) -> CheckpointInfo {
    let end = recording.log.last_moment();
    let points: Vec<Moment<U>> = store
        .entries()
        .iter()
        .map(|entry| Moment { count: U::new(entry.position), time_ns: entry.time_ns })
        // A recorder that was killed may have stored a checkpoint beyond the end of its log.
        .filter(|at| *at <= end)
        .collect();
    let ends = points.iter().copied().chain([end]);
    let begin = Moment { count: U::default(), time_ns: begins_ns };
    let passed_ns = end.time_ns.saturating_sub(begins_ns);
    let starts = [begin].into_iter().chain(points.iter().copied());
    let longest = starts.zip(ends).max_by_key(|(from, to)| {
        // Between two exits the guest may execute any number of instructions. So gaps are compared by guest time if
        // exits are counted.
        U::cost(to.count.saturating_since(from.count), to.time_ns.saturating_sub(from.time_ns))
    });
    let longest = longest.map(|(from, to)| Place::between(from, to));
    let place = |at: &Moment<U>| Place::between(Moment::default(), *at);
    let bytes = store.total_bytes();
    CheckpointInfo {
        count: points.len(),
        bytes,
        bytes_per_guest_second: (passed_ns > 0).then(|| bytes as f64 / (passed_ns as f64 / 1e9)),
        first: points.first().map(place),
        last: points.last().map(place),
        largest_gap: longest.unwrap_or_else(|| place(&end)),
    }
}

fn text(info: &Info<'_>) -> String {
    let mut lines = Vec::new();
    let machine = info.machine;
    let path = |path: &Path| in_a_line(&path.display().to_string()).into_owned();
    lines.push(format!("made by       {}, format version {}", in_a_line(info.made_by), info.format_version));
    lines.push(format!("engine        {}, counting in {}", in_a_line(info.engine), in_a_line(info.counter)));
    let processors = processors_in_words(machine.processors);
    lines.push(format!(
        "machine       {processors}{} MiB RAM, CPU model {}",
        machine.memory_bytes >> 20,
        in_a_line(&machine.cpu_model)
    ));
    if let Some(seconds) = info.begins_at_guest_seconds {
        lines.push(format!("begins        with the state of another run, at {seconds:.6} s guest time"));
    }
    if let Some(Cut { instructions, free_pages }) = info.cut {
        let left_out = match free_pages {
            0 => String::new(),
            pages => format!("; {pages} unused pages of memory are left out"),
        };
        lines.push(format!(
            "cut out       of a longer recording, from instruction {instructions} on{left_out}"
        ));
    }
    let booted = machine.start.booted();
    // A machine that starts from a stored state needs no kernel, initial RAM disk or modules. So these files may be
    // missing.
    let unneeded = if matches!(machine.start, Start::State { .. }) { " (not needed)" } else { "" };
    lines.push(format!("kernel        {}{unneeded}", path(&booted.kernel.path)));
    if let Some(initrd) = &booted.initrd {
        lines.push(format!("initrd        {}{unneeded}", path(&initrd.path)));
    }
    for module in &booted.modules {
        let (file, cmdline) = (path(&module.file.path), in_a_line(&module.cmdline));
        lines.push(format!("module        {file}{unneeded} {cmdline}"));
    }
    if let Some(disk) = &machine.disk {
        let kept = match disk.is_gathered().then(|| disk.open_gathered()) {
            None => String::new(),
            Some(Ok(image)) => {
                format!(" (a folder of the host: {} blocks that the guest read)", image.gathered_blocks())
            }
            Some(Err(_)) => " (missing or damaged)".to_string(),
        };
        lines.push(format!("disk          {}{kept}", path(&disk.path)));
    }
    for passed in &machine.passthrough {
        lines.push(match passed {
            PassedDevice::Function { address, description } => {
                let (vendor, device) = (description.vendor, description.device);
                format!(
                    "host device   PCI function {} ({vendor:04x}:{device:04x})",
                    in_a_line(&address.to_string())
                )
            }
            PassedDevice::Ports { first, last, irq } => {
                let irq = irq.map(|irq| format!(", IRQ {irq}")).unwrap_or_default();
                format!("host device   ports {first:#x}-{last:#x}{irq}")
            }
        });
    }
    lines.push(format!("command line  {}", in_a_line(&booted.cmdline)));
    lines.push(format!(
        "ended         {}",
        match &info.ended {
            Some(ended) => ended,
            None if info.being_recorded => "not yet: it is still being recorded",
            None => "cut off: the recorder was stopped",
        }
    ));
    lines.extend(info.panic.iter().map(|line| format!("panic         {}", in_a_line(line))));
    lines.push(format!("length        {}, {:.6} s guest time", info.length, info.guest_seconds));
    lines.push(format!("branches      {} conditional", info.branches));
    for (kind, count) in &info.events {
        lines.push(format!("events        {count} {kind}"));
    }
    lines.push(format!("checks        {}", info.checks));
    let rate = info.log_bytes_per_guest_second;
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.0} per guest second"));
    lines.push(format!("log           {} bytes{rate}", info.log_bytes));
    if let Some(checkpoints) = &info.checkpoints {
        lines.extend(checkpoint_lines(checkpoints));
    }
    lines.join("\n")
}

/// The number of processors, their topology and their policy of turns as text. Empty for one processor.
fn processors_in_words(processors: Processors) -> String {
    let mut special = Vec::new();
    if let Some(topology) = processors.topology().filter(|topology| topology.cores() < processors.count()) {
        let (sockets, threads) = (topology.sockets(), topology.threads());
        special.push(format!("sockets={sockets},threads={threads}"));
    }
    if let TurnPolicy::Random { seed } = processors.turns() {
        special.push(format!("turns random:{seed}"));
    }
    let special = if special.is_empty() { String::new() } else { format!(" ({})", special.join(", ")) };
    match processors.count() {
        1 => String::new(),
        count => format!("{count} processors{special}, "),
    }
}

fn checkpoint_lines(info: &CheckpointInfo) -> Vec<String> {
    let rate = info.bytes_per_guest_second;
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.0} per guest second"));
    let place = |at: &Place| format!("{}, {:.6} s", at.length, at.guest_seconds);
    let mut lines = vec![format!("checkpoints   {}, {} bytes{rate}", info.count, info.bytes)];
    if let (Some(first), Some(last)) = (&info.first, &info.last) {
        lines.push(format!("  first       {}", place(first)));
        lines.push(format!("  last        {}", place(last)));
    }
    lines.push(format!("  largest gap {}", place(&info.largest_gap)));
    lines
}
