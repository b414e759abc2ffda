//! `--snapshot-from`: starts a live machine from a place in a recording.
//!
//! ttvm replays the recording up to the place, and does not write to the recording.

use std::path::{Path, PathBuf};

use cpu::TurnPolicy;
use history::timeline::Timeline;
use machine::config::{ImageFile, Processors};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::notation::PositionSpec;
use machine::position::{Instructions, Moment};
use machine::unit::Unit;
use machine::{Counter, Machine, StartingState};
use recording::{Opened, Recordable, Recording};
use sandbox::Needs;

use crate::engine_arg::EngineArgs;
use crate::network_arg::NetworkArg;
use crate::sandbox_arg;
use crate::travel::{in_instructions, open_and_wait};

/// The recording, and the position in the recording from which the live machine starts.
#[derive(clap::Args)]
pub struct SourceArgs {
    /// Start a live machine from this recording, at the position --at.
    ///
    /// The guest has its memory, devices and disk as of that position, and its clock goes on from there. Network connections are
    /// lost. The recording stays as it is. Options that describe a machine cannot be used.
    #[arg(long, help_heading = "Guest", value_name = "NAME.ttvm", conflicts_with_all = [
        "kernel", "initrd", "cmdline", "module", "disk", "hide", "passthrough", "cpus", "memory", "debug_console",
        "debug_exit", "date", "seed",
    ])]
    snapshot_from: Option<PathBuf>,
    /// With --snapshot-from: position, like panic, 12.5s or insn:1e9 [default: end]
    #[arg(long, help_heading = "Guest", value_name = "POS", allow_hyphen_values = true)]
    at: Option<PositionSpec>,
}

/// An opened recording, from which a live machine will start.
pub struct Source {
    opened: Opened,
    path: PathBuf,
    at: PositionSpec,
    /// The policy by which the new machine's processors take turns. `None` keeps the recording's policy.
    turns: Option<TurnPolicy>,
    /// The engine of the new machine.
    pub engine: EngineKind,
}

impl SourceArgs {
    /// Opens the recording, if the user named one. Returns an error if no live machine can start from the recording.
    pub fn open(
        &self,
        engine: EngineArgs,
        network: Option<&NetworkArg>,
        turns: Option<TurnPolicy>,
    ) -> Result<Option<Source>, Error> {
        let Some(path) = &self.snapshot_from else {
            let unused = "--at needs --snapshot-from: give both or neither";
            return if self.at.is_some() { Err(Error::Usage(unused.to_string())) } else { Ok(None) };
        };
        let opened = Opened::open(path)?;
        let machine = &opened.manifest().machine;
        let engine = engine.for_replay(opened.manifest())?;
        if machine.profile().counter == Counter::Exits && engine != host::KVM {
            let why = "this recording counts exits: use --engine kvm, on a processor like the recording's";
            return Err(Error::Unsupported(why.to_string()));
        }
        if !machine.passthrough.is_empty() {
            let why = "the guest of this recording has devices of the host, whose state cannot be restored: it \
                cannot go on";
            return Err(Error::Unsupported(why.to_string()));
        }
        if machine.disk.as_ref().is_some_and(ImageFile::is_gathered) {
            let why = "the disk of this recording has only the blocks that its guest read, so the guest cannot go on: \
                record again, with the folder as --disk";
            return Err(Error::Unsupported(why.to_string()));
        }
        if opened.manifest().cut.is_some() {
            let why = "this recording is only the end of a longer one, without unused memory: it cannot go on; use \
                the whole recording";
            return Err(Error::Unsupported(why.to_string()));
        }
        if let Some(network) = network {
            network.must_fit(machine.network.as_ref()).map_err(Error::Usage)?;
        }
        if turns.is_some() && machine.processors.count() == 1 {
            let why = "--turns needs several processors, and the guest of this recording has one: leave out --turns";
            return Err(Error::Usage(why.to_string()));
        }
        let at = self.at.unwrap_or(PositionSpec::End);
        Ok(Some(Source { opened, path: path.clone(), at, turns, engine }))
    }
}

impl Source {
    /// The access that the process needs in its sandbox until the live machine has started.
    pub fn needs(&self) -> Needs {
        let running = sandbox_arg::of_machine(&self.opened.manifest().machine, self.engine);
        Needs { kvm: running.kvm, ..sandbox_arg::of_replay(&self.opened, &self.path, self.engine) }
    }

    /// The path of the guest's disk image.
    pub fn disk(&self) -> Option<PathBuf> {
        self.opened.manifest().machine.disk.as_ref().map(|disk| disk.path.clone())
    }

    /// The guest's processors.
    pub fn processors(&self) -> Processors {
        self.opened.manifest().machine.processors
    }

    /// Whether the guest has a network card.
    pub fn has_network(&self) -> bool {
        self.opened.manifest().machine.network.is_some()
    }

    /// Does the same as [`Source::go_live`], but the machine that replayed the recording becomes the live machine.
    /// So the live machine keeps its translated code, and it cannot be recorded.
    pub fn go_live_unrecorded(self) -> Result<Machine<Instructions>, Error> {
        let recording = in_instructions(self.opened, false)?;
        let timeline = open_for_a_guest(&recording, self.at)?;
        let at = timeline.machine().moment();
        let mut machine = timeline.go_live()?;
        if let Some(turns) = self.turns {
            machine.change_turn_policy(turns);
        }
        say_where(at, &self.path);
        Ok(machine)
    }

    /// Replays to the position `--at`, and returns a live machine that goes on from this position.
    pub fn go_live<U: Unit>(self) -> Result<Recordable<U>, Error> {
        let recording = in_instructions(self.opened, false)?;
        let (start, at) = start_at(&recording, self.at)?;
        let guest = match self.turns {
            None => Recordable::going_on(self.engine, &recording, start)?,
            Some(turns) => Recordable::going_on_with_turns(self.engine, &recording, start, turns)?,
        };
        say_where(at, &self.path);
        Ok(guest)
    }
}

/// Replays to a place on the software CPU. Afterwards a live guest may use ^C and other signals in its own way.
fn open_for_a_guest(recording: &Recording<Instructions>, at: PositionSpec) -> Result<Timeline, Error> {
    let (mut timeline, wait) = open_and_wait(recording, at, EngineKind::SOFT)?;
    timeline.idle_at(at)?;
    wait.over().release();
    Ok(timeline)
}

fn say_where(at: Moment<Instructions>, path: &Path) {
    crate::output::say(&format!("ttvm: going on from {at} of {}", path.display()));
}

/// Replays to a place on the software CPU. Returns the machine's state, with the instruction count and the guest
/// time of this place.
fn start_at(
    recording: &Recording<Instructions>,
    at: PositionSpec,
) -> Result<(StartingState, Moment<Instructions>), Error> {
    let mut timeline = open_for_a_guest(recording, at)?;
    let start = StartingState::of(timeline.machine_mut())?;
    Ok((start, timeline.machine().moment()))
}
