//! `ttvm replay`: replays a recording.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use history::replay::{Replay, ReplayEnd, last_place};
use history::timeline::{Timeline, TravelStop};
use machine::engine::EngineKind;
use machine::error::{Error, exit_code};
use machine::notation::PositionSpec;
use machine::position::Instructions;
use machine::unit::Unit;
use recording::player::Scrutiny;
use recording::{Opened, Recording};
use views::visible::VisibleConsole;

use crate::engine_arg::EngineArgs;
use crate::help::POSITIONS;
use crate::output::say;
use crate::progress;
use crate::sandbox_arg::{self, SandboxArgs};
use crate::stats::{Marks, StatsArgs};
use crate::travel::{in_instructions, stretch};
use crate::wait::Wait;

/// Replay a recording and check that nothing differs
///
/// A replay executes the recorded instructions again and shows the console. ttvm compares registers with the recording.
///
/// Examples:
///   ttvm replay R.ttvm
///   ttvm replay R.ttvm --verify
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_long_help = POSITIONS)]
pub struct Args {
    /// The recording
    recording: PathBuf,
    /// Position where the replay stops, like panic, 12.5s or insn:1e9; +N counts from where it begins
    #[arg(long, value_name = "POS", allow_hyphen_values = true)]
    to: Option<PositionSpec>,
    /// Position where the replay begins. ttvm compares nothing before this position
    #[arg(long, value_name = "POS", allow_hyphen_values = true, conflicts_with = "verify")]
    from: Option<PositionSpec>,
    /// Compare devices and RAM too, wherever the recording has a check
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// Do not print the console's output
    #[arg(long)]
    quiet: bool,
    /// Send escape sequences of the console, such as colours, to the terminal. Use this only for recordings that you trust.
    ///
    /// By default a terminal shows escape sequences as text. Files and pipes always get the bytes unchanged.
    #[arg(long, conflicts_with = "quiet")]
    raw_console: bool,
    #[command(flatten)]
    stats: StatsArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let opened = Opened::open(&args.recording)?;
    let engine = args.engine.for_replay(opened.manifest())?;
    let marks = &args.stats.marks()?;
    args.sandbox.lock_in(&sandbox_arg::of_replay(&opened, &args.recording, engine))?;
    let whole = matches!((args.from, args.to), (None, None | Some(PositionSpec::End)));
    match opened {
        // The positions of this recording are counted in exits. A replay of the whole recording needs no
        // instruction counts. For a replay of a part, ttvm first counts the instructions.
        Opened::ByExits(recording) if whole => replay(args, &recording, engine, None, marks),
        opened => replay_stretch(args, &in_instructions(opened, false)?, marks),
    }
}

fn replay_stretch(args: &Args, recording: &Recording<Instructions>, marks: &Marks) -> Result<i32, Error> {
    if let Some(from) = args.from {
        return play(args, recording, from, marks);
    }
    let until = match args.to {
        None | Some(PositionSpec::End) => None,
        Some(PositionSpec::Start) => Some(Instructions(0)),
        Some(PositionSpec::Instruction(number)) if Instructions(number) <= last_place(recording) => {
            Some(Instructions(number))
        }
        Some(spec) => Some(Timeline::open(recording)?.resolve_outside(spec, &mut || false)?),
    };
    replay(args, recording, EngineKind::SOFT, until, marks)
}

fn replay<U: Unit>(
    args: &Args,
    recording: &Recording<U>,
    engine: EngineKind,
    until: Option<U>,
    marks: &Marks,
) -> Result<i32, Error> {
    let scrutiny = if args.verify { Scrutiny::Everything } else { Scrutiny::Registers };
    let apart = args.quiet || !std::io::stdout().is_terminal();
    let length = until.unwrap_or(U::MAX).min(last_place(recording)).number();
    let bar = progress::bar(length, apart && std::io::stderr().is_terminal());
    bar.set_message("replaying");
    let mut replay = Replay::on(engine, recording, scrutiny, printer(Shown::of(args), marks.clone()))?;
    let result = replay.run(until, |at| progress::show(&bar, at.number()));
    bar.finish_and_clear();
    // Writes the statistics even if the replay failed, because a user also wants the statistics of a failed replay.
    let written = args.stats.write(marks, &replay.machine);
    let end = result?;
    written?;
    let now = replay.machine.moment();
    let what = match end {
        ReplayEnd::Verified => "replayed to the end: console, counts and hashes are equal",
        ReplayEnd::Stopped if until.is_none() => {
            "replayed without a difference to where the recording was cut off"
        }
        ReplayEnd::Stopped => "replayed without a difference, and stopped",
    };
    say(&format!(
        "{}ttvm: {what}, at {}, {} branches, {:.6} s guest time",
        if args.quiet { "" } else { "\n" },
        U::length(now.count.number()),
        replay.machine.cpu().branches(),
        now.time_ns as f64 / 1e9
    ));
    Ok(exit_code::DONE)
}

/// Replays a part of a recording.
fn play(
    args: &Args,
    recording: &Recording<Instructions>,
    from: PositionSpec,
    marks: &Marks,
) -> Result<i32, Error> {
    let mut timeline = Timeline::open(recording)?;
    let mut wait = Wait::on(&timeline)?;
    let to = args.to.unwrap_or(PositionSpec::End);
    let (begin, end) = stretch(&mut timeline, from, to, &mut wait)?;
    if end < begin {
        return Err(Error::Position("--to is before --from: give a later position".to_string()));
    }
    let mut stop = timeline.seek(begin, &mut || wait.poll())?;
    let interrupt = wait.over();
    if stop != TravelStop::Interrupted {
        stop = timeline.play(end, printer(Shown::of(args), marks.clone()), &mut || interrupt.poll())?;
    }
    args.stats.write(marks, timeline.machine())?;
    let interrupted = stop == TravelStop::Interrupted;
    let what = if interrupted { "interrupted" } else { "replayed without a difference" };
    let now = timeline.machine().moment();
    say(&format!(
        "\nttvm: {what} from {begin} to {} instructions, {:.6} s guest time",
        now.count,
        now.time_ns as f64 / 1e9
    ));
    Ok(if interrupted { exit_code::INTERRUPTED } else { exit_code::DONE })
}

/// How console output is shown.
enum Shown {
    Nothing,
    /// The bytes are printed as the guest wrote them.
    Bytes,
    /// The output is printed as text that cannot control a terminal.
    Text(VisibleConsole),
}

impl Shown {
    fn of(args: &Args) -> Shown {
        if args.quiet {
            Shown::Nothing
        } else if args.raw_console || !std::io::stdout().is_terminal() {
            Shown::Bytes
        } else {
            Shown::Text(VisibleConsole::default())
        }
    }
}

/// Prints console output.
fn printer(mut shown: Shown, marks: Marks) -> impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static {
    move |bytes| {
        marks.look_at(bytes, None);
        let text;
        let bytes = match &mut shown {
            Shown::Nothing => return Ok(()),
            Shown::Bytes => bytes,
            Shown::Text(console) => {
                text = console.show(bytes);
                text.as_bytes()
            }
        };
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|source| Error::Host { what: "cannot write the console's output".to_string(), source })
    }
}
