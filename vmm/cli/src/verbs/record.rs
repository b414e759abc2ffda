//! `ttvm record`: runs a guest and records it.

use std::path::PathBuf;

use host::{LiveClock, LiveInputs};
use machine::error::Error;
use machine::inputs::Inputs;
use machine::position::{Exits, Instructions};
use machine::unit::Unit;
use sandbox::Needs;

use crate::companion::{Companion, Leftovers};
use crate::go_live::Source;
use crate::help::POSITIONS;
use crate::keep_on::KeepOn;
use crate::machine_args::{MachineArgs, RecordedIn};
use crate::new_folder::NewFolder;
use crate::output::say;
use crate::panic_watch::PanicWatch;
use crate::recorded::{CheckpointArgs, record_to_end, report};
use crate::run_listener::WithListener;
use crate::sandbox_arg::SandboxArgs;
use crate::stats::StatsArgs;

/// Run a guest and record it
///
/// The recording is a new folder. The folder holds the guest's input, from which ttvm replays the run exactly.
/// The run ends when the guest powers off or panics, or when you press Ctrl-A x.
///
/// Examples:
///   ttvm record -o R.ttvm --kernel vmlinuz --initrd initrd.gz --cmdline console=ttyS0
///   ttvm record -o D.ttvm --kernel vmlinuz --cmdline "console=ttyS0 root=/dev/vda1" --disk disk.img
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording to make: a new folder
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: PathBuf,
    /// Do not copy the kernel, the initial RAM disk and the modules into the recording.
    ///
    /// By default the recording has copies, so it replays even if you rebuild these files. Copies take no space on file systems
    /// with reflinks (btrfs, XFS). On others, ttvm copies files up to 256 MiB. ttvm never copies disk images.
    #[arg(long)]
    no_copy_images: bool,
    /// When to keep the recording after the run.
    ///
    /// A guest keeps its recording by writing 0x80 to port 0x505.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = KeepOn::Always)]
    keep_on: KeepOn,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    checkpoints: CheckpointArgs,
    #[command(flatten)]
    stats: StatsArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let source = args.machine.source()?;
    let engine = source.as_ref().map_or(args.machine.engine(), |source| source.engine);
    if engine.counts_instructions {
        record_from::<Instructions, _>(args, source, |live| live)
    } else {
        record_from::<Exits, _>(args, source, |live| LiveClock::new(live, args.machine.clock()))
    }
}

/// Builds the machine and its inputs, and records the run.
fn record_from<U: Unit, I: Inputs<U>>(
    args: &Args,
    source: Option<Source>,
    inputs: impl FnOnce(LiveInputs<U>) -> I,
) -> Result<i32, Error> {
    let marks = args.stats.marks()?;
    args.machine.look_at_disk()?;
    let mut folder = NewFolder::make(&args.output)?;
    let recorded = RecordedIn { folder: &args.output, copies_images: !args.no_copy_images };
    let planned = args.machine.plan::<U>(source, Some(&recorded), args.sandbox)?;
    say_what_is_outside(&planned.images_outside(&args.output));
    let left = Leftovers { empty_folder: Some(&args.output), ..Leftovers::default() };
    let may_vanish = planned.may_fail() || args.keep_on == KeepOn::Fail;
    let companion = may_vanish.then(|| Companion::start(&left, None)).transpose()?;
    let mut needs = Needs { helper: companion.is_some(), ..planned.needs() };
    needs.written.push(args.output.clone());
    let (mut guest, live);
    let recording = if planned.may_fail() {
        // From now on the console handles signals, and a signal ends the run with an end record.
        folder.leave_signals();
        args.sandbox.lock_in(&needs)?;
        folder.keep();
        (guest, live) = planned.begin()?;
        args.machine.prepare(&mut guest.machine);
        guest.record_in_empty(&args.output)?
    } else {
        // In the sandbox, the process cannot remove the folder if it fails to make the recording's files. So the
        // process makes these files before it enters the sandbox.
        (guest, live) = planned.begin()?;
        args.machine.prepare(&mut guest.machine);
        let recording = guest.record_in_empty(&args.output)?;
        folder.leave_signals();
        args.sandbox.lock_in(&needs)?;
        folder.keep();
        recording
    };
    say(&format!("ttvm: {}", live.pacing()));
    let watch = PanicWatch::default();
    let watched = WithListener { inner: inputs(live), listener: watch.clone() };
    let inputs = WithListener { inner: watched, listener: marks.clone() };
    record_to_end(&args.checkpoints, recording, inputs)?;
    let code = report(&guest.machine, &args.output, &watch, args.keep_on)?;
    args.stats.write(&marks, &guest.machine)?;
    Ok(code)
}

/// Prints the images of which the recording has no copy.
fn say_what_is_outside(images: &[PathBuf]) {
    let names: Vec<String> = images.iter().map(|path| path.display().to_string()).collect();
    if !names.is_empty() {
        let (these, one) = match names.len() {
            1 => ("this file", "a changed file"),
            _ => ("these files", "changed files"),
        };
        say(&format!(
            "ttvm: not copied into the recording: {}. Keep {these} unchanged: ttvm does not replay with {one}",
            names.join(", ")
        ));
    }
}
