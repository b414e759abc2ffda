//! Opens a recording at a position, for verbs that show a recording at a position.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use history::recount;
use history::timeline::Timeline;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation::{self, PositionSpec};
use machine::position::{Count, Exits, Instructions};
use recording::{Opened, Recording};

use crate::engine_arg::EngineArgs;
use crate::output::say;
use crate::progress;
use crate::wait::Wait;

/// What part of a recording to open.
#[derive(clap::Args)]
pub struct PartArgs {
    /// For recordings made with KVM: open only the last part, like 2s of guest time.
    ///
    /// The part begins at the last checkpoint that is at least this far before the end. Positions count from that checkpoint.
    #[arg(long, value_name = "TIME", value_parser = notation::time)]
    last: Option<u64>,
}

impl PartArgs {
    /// Does the same as [`PartArgs::open`], and also returns the engine for the replay. Fails at once if this
    /// engine is not available.
    pub fn open_for(
        &self,
        path: &Path,
        engine: EngineArgs,
    ) -> Result<(Recording<Instructions>, EngineKind), Error> {
        let opened = Opened::open(path)?;
        let engine = engine.for_replay(opened.manifest())?;
        Ok((self.of(opened)?, engine))
    }

    /// Opens a recording or a part of one, with positions in instructions.
    pub fn open(&self, path: &Path) -> Result<Recording<Instructions>, Error> {
        self.of(Opened::open(path)?)
    }

    /// Does the same as [`PartArgs::open`], for a recording whose files are already open.
    pub fn of(&self, opened: Opened) -> Result<Recording<Instructions>, Error> {
        let Some(last_ns) = self.last else { return in_instructions(opened, true) };
        let recording = match opened {
            Opened::ByInstructions(recording) => {
                say(
                    "ttvm: --last has no effect: this recording counts instructions, so every position is quick to \
                     reach",
                );
                return Ok(recording);
            }
            Opened::ByExits(recording) => recording,
        };
        let Some(from) = recount::start_of_last(&recording, last_ns)? else {
            let seconds = last_ns as f64 / 1e9;
            say(&format!(
                "ttvm: no checkpoint is {seconds} s or more before the end: opening the whole recording"
            ));
            return recounted(recording, Exits(0), false);
        };
        let part = recounted(recording, from, false)?;
        let begins_ns = part.log.power_on()?.at.time_ns;
        say(&format!(
            "ttvm: opened from exit {from} on, at {:.6} s guest time; instructions count from there",
            begins_ns as f64 / 1e9
        ));
        Ok(part)
    }
}

/// A recording, and a place in it to look at.
#[derive(clap::Args)]
pub struct PlaceArgs {
    /// The recording
    recording: PathBuf,
    #[command(flatten)]
    part: PartArgs,
    /// Position, like panic, 12.5s or insn:1e9
    #[arg(long, value_name = "POS", allow_hyphen_values = true, default_value = "end", global = true)]
    at: PositionSpec,
    #[command(flatten)]
    engine: EngineArgs,
}

impl PlaceArgs {
    /// Opens the recording and goes to the position. If the position is an event or the end, lets the guest idle until
    /// the time of this event or end.
    pub fn open(&self) -> Result<Timeline, Error> {
        self.open_after(|_, _, _| Ok(()))
    }

    /// Does the same as [`PlaceArgs::open`], but calls `prepare` before the replay. `prepare` gets the recording, its
    /// folder and the engine.
    pub fn open_after(
        &self,
        prepare: impl FnOnce(&Opened, &Path, EngineKind) -> Result<(), Error>,
    ) -> Result<Timeline, Error> {
        let opened = Opened::open(&self.recording)?;
        let engine = self.engine.for_replay(opened.manifest())?;
        prepare(&opened, &self.recording, engine)?;
        let recording = self.part.of(opened)?;
        let mut timeline = open_at(&recording, self.at, engine)?;
        timeline.idle_at(self.at)?;
        Ok(timeline)
    }
}

/// Opens a recording so that its positions are instruction counts. A recording that counts exits is replayed once
/// to count instructions. If `offers_part` is true, a hint tells the user that the option --last replays only a
/// part.
pub fn in_instructions(opened: Opened, offers_part: bool) -> Result<Recording<Instructions>, Error> {
    match opened {
        Opened::ByInstructions(recording) => Ok(recording),
        Opened::ByExits(recording) => recounted(recording, Exits(0), offers_part),
    }
}

fn recounted(
    recording: Recording<Exits>,
    from: Exits,
    offers_part: bool,
) -> Result<Recording<Instructions>, Error> {
    let has_parts = offers_part && matches!(recount::start_of_last(&recording, 0), Ok(Some(_)));
    let mut hint = has_parts.then_some(
        "ttvm: counting instructions needs a replay of the whole recording; --last 2s opens the end only",
    );
    let exits = recording.log.last_moment().count;
    let bar = progress::bar(exits.saturating_since(from), std::io::stderr().is_terminal());
    bar.set_message("counting instructions");
    let recounted = recount::from_exit(recording, from, |exits| {
        if let Some(hint) = hint.take() {
            bar.suspend(|| say(hint));
        }
        bar.set_position(exits.saturating_since(from));
    });
    bar.finish_and_clear();
    recounted
}

/// Opens a recording at a position. On the way to the position, `engine` replays long stretches. The software CPU
/// replays the rest.
pub fn open_at(
    recording: &Recording<Instructions>,
    position: PositionSpec,
    engine: EngineKind,
) -> Result<Timeline, Error> {
    Ok(open_and_wait(recording, position, engine)?.0)
}

/// Does the same as [`open_at`]. Also returns the wait, which still catches ^C.
pub fn open_and_wait(
    recording: &Recording<Instructions>,
    position: PositionSpec,
    engine: EngineKind,
) -> Result<(Timeline, Wait), Error> {
    let mut timeline = Timeline::open(recording)?;
    timeline.use_engine(engine)?;
    let mut wait = Wait::on(&timeline)?;
    timeline.go_to(position, &mut || wait.poll())?.unless_interrupted()?;
    Ok((timeline, wait))
}

/// The beginning and the end of a part of a recording. If `to` is a distance, it counts from the beginning of the part.
pub fn stretch(
    timeline: &mut Timeline,
    from: PositionSpec,
    to: PositionSpec,
    wait: &mut Wait,
) -> Result<(Instructions, Instructions), Error> {
    let begin = timeline.resolve_outside(from, &mut || wait.poll())?;
    let end = if matches!(to, PositionSpec::After(_)) {
        timeline.seek(begin, &mut || wait.poll())?.unless_interrupted()?;
        timeline.resolve(to, &mut || wait.poll())?
    } else {
        timeline.resolve_outside(to, &mut || wait.poll())?
    };
    Ok((begin, end))
}
