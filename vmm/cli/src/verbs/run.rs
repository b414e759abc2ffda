//! `ttvm run`: runs a guest without recording, or with a recording that begins later.

use std::path::PathBuf;

use gdb::{Listener, Reach};
use gdb_server::trouble;
use host::{LiveClock, LiveInputs, RawTerminal};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::inputs::Inputs;
use machine::position::{Exits, Instructions};
use machine::unit::Unit;
use machine::{Machine, RunStop};
use recording::create_folder;
use sandbox::Needs;

use crate::branching::{self, BranchArgs};
use crate::companion::{Companion, Leftovers};
use crate::go_live::Source;
use crate::help::POSITIONS;
use crate::keep_on::KeepOn;
use crate::machine_args::MachineArgs;
use crate::output::say;
use crate::panic_watch::PanicWatch;
use crate::recorded::{CheckpointArgs, record_to_end, report};
use crate::run_listener::WithListener;
use crate::sandbox_arg::SandboxArgs;
use crate::stats::{Marks, StatsArgs};
use crate::watch::{Watch, Watcher, serve};

/// Run a guest without recording
///
/// The guest runs until it powers off or panics, or until you press Ctrl-A x.
///
/// Examples:
///   ttvm run --kernel vmlinuz --initrd initrd.gz --cmdline console=ttyS0
///   ttvm run --snapshot-from R.ttvm --at event:2
///   ttvm run --snapshot-from R.ttvm --branches 9 -o consoles
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    late: LateArgs,
    #[command(flatten)]
    branches: BranchArgs,
    #[command(flatten)]
    checkpoints: CheckpointArgs,
    #[command(flatten)]
    stats: StatsArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// A recording that begins while the guest runs.
#[derive(clap::Args)]
struct LateArgs {
    /// Make this socket, and accept commands of `ttvm control SOCKET` from this user
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Start recording when the console shows this text
    #[arg(long, value_name = "TEXT", requires = "output", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    record_when: Option<String>,
    /// A new folder: the recording that --control or --record-when starts, or the consoles of --branches
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl LateArgs {
    fn are_given(&self) -> bool {
        self.control.is_some() || self.record_when.is_some()
    }

    fn check(&self, engine: EngineKind) -> Result<(), Error> {
        if self.output.is_some() && !self.are_given() {
            let why = "-o needs --control or --record-when: give one of them, or use `ttvm record`";
            return Err(Error::Usage(why.to_string()));
        }
        if engine == host::KVM && self.are_given() {
            let why = "with --engine kvm a recording starts with the run: use `ttvm record`, without --control and \
                --record-when";
            return Err(Error::Unsupported(why.to_string()));
        }
        Ok(())
    }

    /// Makes the control socket. The socket refuses clients until [`serve`] opens it.
    fn listener(&self) -> Result<Option<Listener>, Error> {
        let Some(path) = &self.control else { return Ok(None) };
        Listener::reserve(&format!("unix:{}", path.display()), Reach::ThisUser).map(Some).map_err(trouble)
    }
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let source = args.machine.source()?;
    let engine = source.as_ref().map_or(args.machine.engine(), |source| source.engine);
    let source = match (args.branches.count(), source, &args.late.output) {
        (Some(count), Some(source), Some(folder)) => {
            return branching::run(&args.branches, count, &args.machine, args.sandbox, source, folder);
        }
        (Some(_), ..) => {
            let why = "--branches needs --snapshot-from: the branches start from a position in a recording";
            return Err(Error::Usage(why.to_string()));
        }
        (None, source, _) => source,
    };
    args.late.check(engine)?;
    let marks = args.stats.marks()?;
    args.machine.look_at_disk()?;
    if args.late.are_given() && args.machine.folder_disk().is_some() {
        let why = "with a folder as --disk a recording starts with the run: use `ttvm record`, without --control and \
            --record-when";
        return Err(Error::Usage(why.to_string()));
    }
    if args.late.are_given() {
        run_watched(args, source, &marks)
    } else if engine.counts_instructions {
        run_live::<Instructions, _>(args, source, |live| live, &marks)
    } else {
        run_live::<Exits, _>(args, source, |live| LiveClock::new(live, args.machine.clock()), &marks)
    }
}

/// Runs a machine to its end, and never records it.
fn run_live<U: Unit, I: Inputs<U>>(
    args: &Args,
    source: Option<Source>,
    inputs: impl FnOnce(LiveInputs<U>) -> I,
    marks: &Marks,
) -> Result<i32, Error> {
    let planned = args.machine.plan::<U>(source, None, args.sandbox)?;
    args.sandbox.lock_in(&planned.needs())?;
    let (mut guest, live) = planned.begin()?;
    guest.forget_beginning();
    args.machine.prepare(&mut guest.machine);
    say(&format!("ttvm: {}", live.pacing()));
    let panics = PanicWatch::default();
    let watched = WithListener { inner: inputs(live), listener: panics.clone() };
    let mut inputs = WithListener { inner: watched, listener: marks.clone() };
    let stop = run_to_stop(&mut guest.machine, &mut inputs)?;
    end(args, &guest.machine, stop, marks, &panics)
}

/// Runs a machine that may be recorded later.
fn run_watched(args: &Args, source: Option<Source>, marks: &Marks) -> Result<i32, Error> {
    let planned = args.machine.plan::<Instructions>(source, None, args.sandbox)?;
    let LateArgs { control, record_when, output } = &args.late;
    let listener = args.late.listener()?;
    output.as_deref().map_or(Ok(()), create_folder)?;
    let left =
        Leftovers { empty_folder: output.as_deref(), socket: control.as_deref(), ..Leftovers::default() };
    let _companion = Companion::start(&left, None)?;
    let mut needs = Needs { clients: listener.is_some(), helper: true, ..planned.needs() };
    needs.written.extend(output.clone());
    args.sandbox.lock_in(&needs)?;
    let (mut guest, live) = planned.begin()?;
    guest.forget_beginning();
    args.machine.prepare(&mut guest.machine);
    say(&format!("ttvm: {}", live.pacing()));
    let watch = Watch::new(output.clone());
    listener.map_or(Ok(()), |listener| serve(listener, watch.clone()))?;
    // The control socket's thread serves the clients, so this thread gives up its access to clients.
    sandbox::narrow(&Needs { clients: false, ..needs })
        .map_err(|error| Error::Unsupported(error.to_string()))?;
    let watcher = Watcher::new(watch.clone(), record_when.as_deref());
    let watched = WithListener { inner: live, listener: watcher };
    let panics = PanicWatch::default();
    let watched = WithListener { inner: watched, listener: panics.clone() };
    let mut inputs = WithListener { inner: watched, listener: marks.clone() };
    loop {
        let stop = run_to_stop(&mut guest.machine, &mut inputs)?;
        let Some(folder) = output.as_deref().filter(|_| stop == RunStop::Paused) else {
            return end(args, &guest.machine, stop, marks, &panics);
        };
        let before = guest.machine.moment();
        match guest.record_from_here(folder) {
            Ok(recording) => {
                watch.began(before.time_ns);
                say(&format!(
                    "\r\nttvm: recording from here, {:.6} s guest time\r",
                    before.time_ns as f64 / 1e9
                ));
                inputs.inner.inner.inner.count_anew(before.count);
                record_to_end(&args.checkpoints, recording, inputs)?;
                let code = report(&guest.machine, folder, &panics, KeepOn::Always)?;
                args.stats.write(marks, &guest.machine)?;
                return Ok(code);
            }
            Err(error) => {
                say(&format!("\r\nttvm: cannot record from here: {error}; the guest goes on\r"));
                watch.failed(error.to_string());
            }
        }
    }
}

/// Runs a machine on the user's terminal, to its end or to a pause.
fn run_to_stop<U: Unit>(machine: &mut Machine<U>, inputs: &mut dyn Inputs<U>) -> Result<RunStop, Error> {
    let _terminal = RawTerminal::enter()?;
    machine.run(U::MAX, inputs)
}

fn end<U: Unit>(
    args: &Args,
    machine: &Machine<U>,
    stop: RunStop,
    marks: &Marks,
    panics: &PanicWatch,
) -> Result<i32, Error> {
    let RunStop::Ended(outcome) = stop else {
        unreachable!("nothing else ends a run without limits: {stop:?}");
    };
    let panicked = panics.panic(machine, &outcome).is_some();
    let code = crate::output::report_outcome(machine, &outcome, panicked);
    args.stats.write(marks, machine)?;
    Ok(code)
}
