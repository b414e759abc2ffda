//! Builds the machine and the player of a replay.

use machine::Machine;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::unit::Unit;
use recording::Recording;
use recording::checkpoints::Checkpoints;
use recording::player::Player;

/// Builds a recording's machine and its player. The machine is at the place where the recording begins, usually at
/// power-on.
pub fn open<C: Unit>(recording: &Recording<C>) -> Result<(Machine<C>, Player<C>), Error> {
    open_on(recording, EngineKind::SOFT)
}

/// Does the same as [`open`], but on an engine of this kind.
pub fn open_on<C: Unit>(
    recording: &Recording<C>,
    engine: EngineKind,
) -> Result<(Machine<C>, Player<C>), Error> {
    let images = recording.read_images()?;
    let mut player = Player::new(recording.log.clone())?;
    let mut machine = Machine::build(&recording.manifest.machine, &images, player.power_on(), engine)?;
    if recording.is_part() {
        let store = recording.checkpoints()?.ok_or_else(|| no_beginning(recording))?;
        let checkpoints = Checkpoints::new(store, machine.maps()?.ram, &recording.log)?;
        begin_part(recording, &checkpoints, &mut machine, &mut player)?;
    }
    Ok((machine, player))
}

/// If the recording is only a part of a run, moves a machine from power-on to the part's first checkpoint.
pub fn begin_part<C: Unit>(
    recording: &Recording<C>,
    checkpoints: &Checkpoints<C>,
    machine: &mut Machine<C>,
    player: &mut Player<C>,
) -> Result<(), Error> {
    let snapshot =
        checkpoints.attach_and_load(C::default(), machine)?.ok_or_else(|| no_beginning(recording))?;
    machine.restore(&snapshot.state, &snapshot.maps)?;
    player.set_cursor(snapshot.cursor)
}

/// The error for a recording of a part of a run, if the part's first checkpoint is missing.
pub fn no_beginning<C>(recording: &Recording<C>) -> Error {
    let why = "the checkpoint at the start of this part is missing; open the recording again to make it anew";
    Error::recording(&recording.path, why)
}
