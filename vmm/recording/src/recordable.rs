//! A machine together with its description, ready to be recorded.
//!
//! ```text
//!   Recordable ── record_in ──────────► NewRecording ── run(inputs) ──► the end of the run
//!              └─ record_from_here ──►
//! ```
//!
//! A program makes a [`Recordable`] first, and the recording's files later. Between these two steps, the program can
//! give up its privileges, as `ttvm record` does.

use std::path::Path;

use cpu::TurnPolicy;
use machine::config::{MachineConfig, MachineOptions};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::inputs::{Event, PowerOn};
use machine::position::Instructions;
use machine::start::Images;
use machine::starting_state::WriteProgress;
use machine::unit::Unit;
use machine::{Machine, Start, StartingState};

use crate::carried_images::CarriedImages;
use crate::files::{DISK, inside};
use crate::manifest::Cut;
use crate::new_recording::NewRecording;
use crate::opened::{Recording, create_folder};

/// A machine that can be recorded, and its description.
pub struct Recordable<U> {
    /// The machine. The machine may run without being recorded. [`Recordable::record_from_here`] then records the rest
    /// of the run.
    pub machine: Machine<U>,
    config: MachineConfig,
    power_on: PowerOn,
    beginning: Beginning,
    /// The copied images, if the recording contains its images. The recording must then be in the folder of these
    /// images.
    carried: Option<CarriedImages>,
}

/// Where the recording of this machine can begin.
enum Beginning {
    /// The machine was built at power-on.
    PowerOn,
    /// The machine starts from this state, which was taken from a replay of another recording.
    State(Box<StartingState>),
    /// No recording can begin any more. Either a recording has begun, or the caller called
    /// [`Recordable::forget_beginning`].
    Gone,
}

impl Recordable<Instructions> {
    /// Reads the images and builds the machine at power-on, for the software CPU.
    pub fn new(options: &MachineOptions, power_on: PowerOn) -> Result<Self, Error> {
        Recordable::on(EngineKind::SOFT, options, power_on)
    }
}

impl<U: Unit> Recordable<U> {
    /// Does the same as [`Recordable::new`], but for another engine. The engine must be able to count in `U`.
    pub fn on(engine: EngineKind, options: &MachineOptions, power_on: PowerOn) -> Result<Self, Error> {
        let (config, images) = MachineConfig::from_options(options)?;
        let machine = Machine::build(&config, &images, &power_on, engine)?;
        Ok(Recordable { machine, config, power_on, beginning: Beginning::PowerOn, carried: None })
    }

    /// Does the same as [`Recordable::on`], but for a recording that contains copies of its images. Copies the
    /// images into an existing empty folder now. A disk image is not copied. An image above 256 MiB is copied only
    /// if the file system can share its blocks.
    ///
    /// The caller must pass the same folder to [`Recordable::record_in_empty`].
    pub fn carrying_images(
        engine: EngineKind,
        options: &MachineOptions,
        power_on: PowerOn,
        folder: &Path,
    ) -> Result<Self, Error> {
        let mut carried = CarriedImages::in_folder(folder);
        let mut open = |which, path: &Path| carried.open(which, path);
        let (config, images) = MachineConfig::from_opened(options, &mut open)?;
        let machine = Machine::build(&config, &images, &power_on, engine)?;
        Ok(Recordable { machine, config, power_on, beginning: Beginning::PowerOn, carried: Some(carried) })
    }

    /// Builds a machine that starts from `start`, which was taken from a replay of `recording`. The files of
    /// `recording` do not change.
    pub fn going_on(
        engine: EngineKind,
        recording: &Recording<Instructions>,
        start: StartingState,
    ) -> Result<Self, Error> {
        Recordable::going_on_in(engine, recording, start, without_start(&recording.manifest.machine))
    }

    /// Does the same as [`Recordable::going_on`], but with another policy that gives turns to the processors. Fails
    /// if there is only one processor.
    pub fn going_on_with_turns(
        engine: EngineKind,
        recording: &Recording<Instructions>,
        mut start: StartingState,
        turns: TurnPolicy,
    ) -> Result<Self, Error> {
        let mut config = without_start(&recording.manifest.machine);
        let alone =
            || Error::Unsupported("the recording has one processor, which takes no turns".to_string());
        config.processors = config.processors.with_turns(turns).ok_or_else(alone)?;
        start.begin_turns(config.processors);
        Recordable::going_on_in(engine, recording, start, config)
    }

    fn going_on_in(
        engine: EngineKind,
        recording: &Recording<Instructions>,
        start: StartingState,
        config: MachineConfig,
    ) -> Result<Self, Error> {
        let Event::PowerOn(power_on) = recording.log.power_on()?.event else {
            unreachable!("reading a log checks that it begins with power-on");
        };
        let mut machine = Machine::build(&config, &Images::of_state(start.clone()), &power_on, engine)?;
        machine.begin_written()?;
        let beginning = Beginning::State(Box::new(start));
        Ok(Recordable { machine, config, power_on, beginning, carried: None })
    }

    /// The machine's description.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// The machine's description as a recording in this folder stores it. Copied images have their paths inside the
    /// folder, and so has a disk that is gathered.
    pub fn config_in(&self, folder: &Path) -> MachineConfig {
        let mut machine = match &self.carried {
            Some(carried) => carried.described(folder, &self.config),
            None => self.config.clone(),
        };
        let disk = machine.disk.as_mut().filter(|disk| disk.is_gathered());
        if let Some(disk) = disk.filter(|disk| disk.path == folder.join(inside(DISK))) {
            disk.path = inside(DISK);
        }
        machine
    }

    /// Frees the starting state, which only [`Recordable::record_in`] needs. The starting state may be as
    /// large as the guest's memory.
    pub fn forget_beginning(&mut self) {
        self.beginning = Beginning::Gone;
    }

    /// Makes the recording's folder and files. The recording begins at the machine's first instruction, so the machine
    /// must not have run. Never overwrites an existing folder.
    pub fn record_in(&mut self, folder: impl AsRef<Path>) -> Result<NewRecording<'_, U>, Error> {
        self.must_stand_at_its_beginning()?;
        create_folder(folder.as_ref())?;
        self.record_in_empty(folder)
    }

    /// Does the same as [`Recordable::record_in`], but in an existing empty folder.
    pub fn record_in_empty(&mut self, folder: impl AsRef<Path>) -> Result<NewRecording<'_, U>, Error> {
        self.record_part_in_empty(folder.as_ref(), None, &mut |_, _| false)
    }

    /// Does the same as [`Recordable::record_in_empty`], but for a machine that starts from a starting state. `cut`
    /// describes the part of a longer recording that the new recording lacks. `progress` gets the amount of the
    /// state that is written.
    pub fn record_cut_in_empty(
        &mut self,
        folder: &Path,
        cut: Cut,
        progress: &mut WriteProgress<'_>,
    ) -> Result<NewRecording<'_, U>, Error> {
        self.record_part_in_empty(folder, Some(cut), progress)
    }

    fn record_part_in_empty(
        &mut self,
        folder: &Path,
        cut: Option<Cut>,
        progress: &mut WriteProgress<'_>,
    ) -> Result<NewRecording<'_, U>, Error> {
        self.must_stand_at_its_beginning()?;
        let log = match &self.beginning {
            Beginning::State(start) => {
                Recording::<U>::begin_from(folder, &self.config, start, cut, progress)?
            }
            Beginning::PowerOn | Beginning::Gone => Recording::<U>::begin(folder, &self.config_in(folder))?,
        };
        self.forget_beginning();
        Ok(NewRecording::new(&mut self.machine, folder, log, self.power_on.clone()))
    }

    fn must_stand_at_its_beginning(&self) -> Result<(), Error> {
        let is_gone = matches!(self.beginning, Beginning::Gone);
        if is_gone || self.machine.moment().count != U::default() {
            let why = "the machine has run already, so its beginning cannot be recorded: record from here";
            return Err(Error::Usage(why.to_string()));
        }
        Ok(())
    }

    /// Makes the recording's files in an existing empty folder. The recording begins at the machine's present position,
    /// and the machine counts from zero from there on. If the function fails, the machine can continue as before.
    pub fn record_from_here(&mut self, folder: impl AsRef<Path>) -> Result<NewRecording<'_, U>, Error> {
        let start = StartingState::of(&mut self.machine)?;
        let log = Recording::<U>::begin_from(folder.as_ref(), &self.config, &start, None, &mut |_, _| false)?;
        self.machine.begin_at(&start)?;
        // The new file has the starting state's RAM and disk, so the copies in memory can be freed.
        self.machine.begin_written()?;
        self.forget_beginning();
        Ok(NewRecording::new(&mut self.machine, folder.as_ref(), log, self.power_on.clone()))
    }
}

/// The machine's description without its starting state. The description's paths are absolute.
fn without_start(machine: &MachineConfig) -> MachineConfig {
    let mut machine =
        MachineConfig { start: Start::Kernel(machine.start.booted().clone()), ..machine.clone() };
    for (_, image) in machine.images_mut() {
        image.path = std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone());
    }
    machine
}
