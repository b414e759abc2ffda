//! Options that describe a machine, shared by `run` and `record`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cpu::TurnPolicy;
use host::{ClockOptions, LiveConsole, LiveInputs, LiveOptions, OpenedDevices, Pacing, Peer};
use machine::Machine;
use machine::config::{
    MAX_MEMORY_BYTES, MAX_PROCESSORS, MIN_MEMORY_BYTES, MachineOptions, PassedDevice, Processors,
    hash_image_with,
};
use machine::contents_hash::Scheme;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation;
use machine::unit::Unit;
use recording::Recordable;

use crate::beginning::{Origin, Planned};
use crate::disk_arg::DiskArg;
use crate::engine_arg::EngineArgs;
use crate::folder_disk::FolderDisk;
use crate::go_live::{Source, SourceArgs};
use crate::network_arg::NetworkArg;
use crate::output::say;
use crate::passthrough_arg::PassthroughArg;
use crate::progress;
use crate::sandbox_arg::SandboxArgs;

/// The options of the machine, of its console and network, and of the end of its run.
#[derive(clap::Args)]
pub struct MachineArgs {
    /// Kernel: a bzImage, an ELF vmlinux, or a PVH or Multiboot kernel
    #[arg(long, help_heading = "Guest", value_name = "FILE", required_unless_present = "snapshot_from")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk
    #[arg(long, help_heading = "Guest", value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, help_heading = "Guest", value_name = "TEXT", default_value = "")]
    cmdline: String,
    /// Boot module of a Multiboot kernel, with its command line: FILE or "FILE TEXT" (repeatable)
    #[arg(long, help_heading = "Guest", value_name = "FILE [TEXT]")]
    module: Vec<String>,
    /// Raw disk image, or a folder. The guest's writes never reach it.
    ///
    /// `run` holds the guest's writes in memory, and `record` stores them in the checkpoints. ttvm refuses images of other formats,
    /// such as qcow2. Write raw:FILE for a raw disk that looks like another format.
    ///
    /// The files of a folder become a disk with an ext4 file system. ttvm reads a file when the guest reads it. A recording keeps
    /// all blocks that the guest read, so it needs the folder no more.
    #[arg(long, help_heading = "Guest", value_name = "FILE")]
    disk: Option<DiskArg>,
    /// With a folder as --disk: a path of the host that the guest does not see (repeatable).
    ///
    /// The guest never sees ~/.ssh and ~/.gnupg.
    #[arg(long, help_heading = "Guest", value_name = "PATH", requires = "disk")]
    hide: Vec<PathBuf>,
    /// Network card: user[,hostfwd=tcp::PORT-:PORT] or tap,ifname=NAME.
    ///
    /// `user` connects the guest to the host's network through the program passt. hostfwd forwards a port of the host to the guest.
    /// `tap` connects the guest to a TAP interface. Both take mac=ADDRESS.
    #[arg(long, help_heading = "Guest", value_name = "NETWORK")]
    net: Option<NetworkArg>,
    /// Device of the host that the guest gets, like pci:0000:00:1d.0 or port:0x2f8-0x2ff,irq=3 (repeatable, experimental).
    ///
    /// pci: is a PCI function that is bound to vfio-pci. port: is a range of I/O ports, with or without an interrupt. See
    /// vmm/host/PASSTHROUGH.md.
    #[arg(long, help_heading = "Guest", value_name = "DEVICE")]
    passthrough: Vec<PassthroughArg>,
    /// Number of processors, 1 to 64, like 4 or 8,sockets=2,threads=2.
    ///
    /// sockets= divides the processors into sockets, and threads= gives each core so many threads. The processors run in turn:
    /// see --turns. gdb shows each as a thread.
    #[arg(long, help_heading = "Guest", value_name = "N[,sockets=S][,threads=T]", default_value = "1", value_parser = parse_processors)]
    cpus: Processors,
    /// Who gives turns to several processors: ring or random:SEED.
    ///
    /// With ring, processors take turns in the order of their numbers, each for at most 100,000 instructions. With random, a
    /// generator draws the next processor and the length of its turn. The same SEED gives the same turns. Another SEED may
    /// find other races.
    #[arg(long, help_heading = "Guest", value_name = "POLICY", value_parser = parse_turns)]
    turns: Option<TurnPolicy>,
    /// RAM size: a number with K, M or G
    #[arg(long, help_heading = "Guest", value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    memory: u64,
    /// Print the bytes that the guest writes to port 0xE9, like QEMU's isa-debugcon
    #[arg(long, help_heading = "Guest")]
    debug_console: bool,
    /// Port that ends the run when the guest writes V: the exit code is (V << 1) | 1, like QEMU's isa-debug-exit
    #[arg(long, help_heading = "Guest", value_name = "PORT", num_args = 0..=1, default_missing_value = "0x501", value_parser = parse_port)]
    debug_exit: Option<u16>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Also write the guest's console output to this file
    #[arg(long, help_heading = "Run", value_name = "FILE")]
    console_log: Option<PathBuf>,
    /// Always skip the guest's idle time.
    ///
    /// By default idle time passes in real time while the console has an input: a terminal, or a file until its end. After that,
    /// ttvm skips idle time. With standard input from /dev/null it skips idle time from the start.
    #[arg(long, help_heading = "Run")]
    unpaced: bool,
    /// Always let the guest's idle time pass in real time
    #[arg(long, help_heading = "Run", conflicts_with = "unpaced")]
    paced: bool,
    /// Date at which the guest's clock starts, in seconds since 1970 [default: now]
    #[arg(long, help_heading = "Guest", value_name = "SECONDS")]
    date: Option<i64>,
    /// Seed of the guest's randomness [default: random]
    #[arg(long, help_heading = "Guest", value_name = "NUMBER")]
    seed: Option<u64>,
    /// With --engine kvm: run the guest's clock N times slower than the host's while the guest computes.
    ///
    /// Use this on hosts where exits are so slow that the guest only serves its timer.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slow_clock: u32,
    /// With --engine kvm: time that a due interrupt waits for an exit before ttvm stops the guest.
    ///
    /// With a smaller value, interrupts arrive at more different instructions, which finds races. The additional
    /// exits take time.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    wait_for_exit: u32,
    /// End the run after this number of instructions, like 1000, 5M or 60e9
    #[arg(long, help_heading = "Run", value_name = "N", value_parser = notation::instructions)]
    max_instructions: Option<u64>,
    /// End the run after this guest time, like 60s; skipped idle time counts
    #[arg(long, help_heading = "Run", value_name = "TIME", value_parser = some_time)]
    max_time: Option<u64>,
    /// End the run when the console shows this text
    #[arg(long, help_heading = "Run", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop_when: Option<String>,
}

/// The recording that a planned run will make.
pub struct RecordedIn<'a> {
    /// The recording's folder, which exists.
    pub folder: &'a Path,
    /// Whether the recording has copies of kernel, initial RAM disk and modules.
    pub copies_images: bool,
}

impl MachineArgs {
    /// The options of the machine.
    fn options(&self, passthrough: Vec<PassedDevice>) -> Result<MachineOptions, Error> {
        let counts_instructions = self.engine().counts_instructions;
        let model = if counts_instructions { cpu::CpuModel::default() } else { host::kvm_engine::model()? };
        let modules = self.module.iter().map(|text| {
            let (file, cmdline) = text.split_once(' ').unwrap_or((text, ""));
            (PathBuf::from(file), cmdline.to_string())
        });
        Ok(MachineOptions {
            // The user must give --kernel, unless the machine comes from a recording. In that case this path is not
            // used.
            kernel: self.kernel.clone().unwrap_or_default(),
            initrd: self.initrd.clone(),
            modules: modules.collect(),
            cmdline: self.cmdline.clone(),
            disk: self.disk.as_ref().filter(|disk| !disk.is_folder()).map(|disk| disk.path.clone()),
            gathered_disk: None,
            processors: with_turns(self.cpus, self.turns)?,
            memory_bytes: self.memory,
            debug_console: self.debug_console,
            debug_exit: self.debug_exit,
            model,
            network: self.net.as_ref().map(NetworkArg::config),
            passthrough,
        })
    }

    /// The engine that executes the guest.
    pub fn engine(&self) -> EngineKind {
        self.engine.for_new_run()
    }

    /// The recording to start from, if there is one.
    pub fn source(&self) -> Result<Option<Source>, Error> {
        self.source.open(self.engine, self.net.as_ref(), self.turns)
    }

    /// Hashes the disk image, which may take long. [`MachineArgs::plan`] then does not hash the image again.
    pub fn look_at_disk(&self) -> Result<(), Error> {
        let Some(disk) = &self.disk else { return Ok(()) };
        if disk.is_folder() {
            return Ok(());
        }
        if !self.hide.is_empty() {
            let why = "--hide needs a folder as --disk: it hides files of the folder";
            return Err(Error::Usage(why.to_string()));
        }
        disk.check()?;
        show_hashing(&disk.path)
    }

    /// The folder that the guest gets as its disk, if the user named a folder.
    pub fn folder_disk(&self) -> Option<&Path> {
        self.disk.as_ref().filter(|disk| disk.is_folder()).map(|disk| disk.path.as_path())
    }

    /// Plans a run on this engine, with all needed files open.
    pub fn plan<U: Unit>(
        &self,
        source: Option<Source>,
        recorded: Option<&RecordedIn<'_>>,
        sandbox: SandboxArgs,
    ) -> Result<Planned<U>, Error> {
        let Some(source) = source else {
            let wanted: Vec<_> = self.passthrough.iter().map(|passed| passed.0.clone()).collect();
            let (devices, described) = OpenedDevices::open(&wanted)?;
            let power_on = host::power_on(self.date, self.seed)?;
            let (engine, mut options) = (self.engine(), self.options(described)?);
            if let Some(folder) = self.folder_disk() {
                let disk = FolderDisk {
                    folder,
                    hidden: &self.hide,
                    grafts: &[],
                    more_blocks: 0,
                    created_seconds: power_on.unix_seconds,
                };
                options.gathered_disk = Some(disk.gather(recorded.map(|recorded| recorded.folder), sandbox)?);
            }
            let guest = match recorded {
                Some(recorded) if recorded.copies_images => {
                    Recordable::carrying_images(engine, &options, power_on, recorded.folder)?
                }
                _ => Recordable::on(engine, &options, power_on)?,
            };
            let (slots, ram) = (guest.config().passed_slots(), guest.machine.ram_view());
            let live = self.live()?.with_devices(devices, &slots, ram)?;
            return Ok(Planned::new(live, Origin::Built(Box::new(guest), engine)));
        };
        if source.has_network() && self.net.is_none() {
            say("ttvm: the guest's network card is connected to nothing; --net connects it");
        }
        Ok(Planned::new(self.live()?, Origin::Recorded(Box::new(source))))
    }

    /// The options of the guest's clock, for an engine that does not count instructions.
    pub fn clock(&self) -> ClockOptions {
        ClockOptions { slowdown: self.slow_clock, patience: Duration::from_micros(self.wait_for_exit.into()) }
    }

    /// Prepares a machine that is about to run. With `--stop-when`, the machine reports console output at once.
    pub fn prepare<U: Unit>(&self, machine: &mut Machine<U>) {
        if self.stop_when.is_some() {
            machine.hear_output_at_once();
        }
    }

    /// The inputs of a new run: the console and the network.
    fn live<U: Unit>(&self) -> Result<LiveInputs<U>, Error> {
        let peer = self.net.as_ref().map(|network| Peer::connect(&network.peer)).transpose()?;
        let live = LiveInputs::new(LiveConsole::new(self.console())?);
        Ok(match peer {
            Some(peer) => live.with_network(peer),
            None => live,
        })
    }

    /// The options of the console.
    pub fn console<U: Unit>(&self) -> LiveOptions<U> {
        LiveOptions {
            console_log: self.console_log.clone(),
            pacing: match (self.paced, self.unpaced) {
                (true, _) => Pacing::Always,
                (_, true) => Pacing::Never,
                _ => Pacing::WhileTyped,
            },
            end_at: self.max_instructions.map(U::new),
            end_after_ns: self.max_time,
            end_at_text: self.stop_when.clone(),
            program_mark: None,
            end_of_input: None,
        }
    }
}

/// The processors, with the policy of turns that the user named.
pub fn with_turns(processors: Processors, turns: Option<TurnPolicy>) -> Result<Processors, Error> {
    let Some(turns) = turns else { return Ok(processors) };
    let alone = "--turns needs several processors: give --cpus 2, or leave out --turns";
    processors.with_turns(turns).ok_or_else(|| Error::Usage(alone.to_string()))
}

/// Parses a time that is not zero.
pub fn some_time(text: &str) -> Result<u64, String> {
    match notation::time(text)? {
        0 => Err("give a time above 0".to_string()),
        ns => Ok(ns),
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "write a port number like 0x501".to_string())
}

/// Parses a number of processors, with their topology.
pub fn parse_processors(text: &str) -> Result<Processors, String> {
    let mut parts = text.split(',');
    let count: Option<u8> = parts.next().and_then(|count| count.parse().ok());
    let processors = count.and_then(Processors::new);
    let processors =
        processors.ok_or_else(|| format!("give a number of processors between 1 and {MAX_PROCESSORS}"))?;
    let (mut sockets, mut threads) = (1, 1);
    for part in parts {
        let named = part.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?)));
        match named {
            Some(("sockets", number)) => sockets = number,
            Some(("threads", number)) => threads = number,
            _ => return Err("write it like 8 or 8,sockets=2,threads=2".to_string()),
        }
    }
    processors.with_topology(sockets, threads).ok_or_else(|| {
        let count = processors.count();
        format!("{count} processors cannot be divided into {sockets} sockets with cores of {threads} threads")
    })
}

/// Parses a policy of turns.
pub fn parse_turns(text: &str) -> Result<TurnPolicy, String> {
    let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
    match (text, seed) {
        ("ring", _) => Ok(TurnPolicy::Ring),
        (_, Some(seed)) => Ok(TurnPolicy::Random { seed }),
        _ => Err("write ring, or random:SEED with a number".to_string()),
    }
}

/// Parses a size of RAM.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bytes = notation::bytes(text)?;
    if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&bytes) {
        return Err(format!(
            "give between {}M and {}G of memory",
            MIN_MEMORY_BYTES >> 20,
            MAX_MEMORY_BYTES >> 30
        ));
    }
    Ok(bytes)
}

/// Hashes a disk image. A later call for the same file does not read the image again. After a second, a bar shows the
/// progress.
fn show_hashing(disk: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    let mut bar = None;
    let hashed = hash_image_with(disk, Scheme::Sparse, &mut |done| {
        if begun.elapsed() >= Duration::from_secs(1) {
            let size_bytes = std::fs::metadata(disk).map_or(0, |metadata| metadata.len());
            bar.get_or_insert_with(|| progress::bytes_bar("reading the disk image", size_bytes))
                .set_position(done);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    hashed.map(drop)
}
