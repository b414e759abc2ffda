//! Checkpoints from strangers, with states that can be decoded but make no sense. ttvm must refuse such a state, or run
//! the machine from this state, and must not panic.

use history::replay;
use machine::error::{Error, exit_code};
use machine::position::{Count, Exits, Instructions};
use machine::unit::Unit;
use machine::{Machine, MachineState};
use recording::Recording;
use recording::checkpoints::{Checkpoints, Snapshot};
use recording::player::{Player, Scrutiny};
use tiny_guest::{Numbers, Script, record_with_checkpoints, stopped, typed};

const ROUNDS: u32 = 4_000;
const MUTATIONS: u64 = 3_000;
const STEPS: u64 = 10_000;

fn mutate(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(4) {
        // The CPU's state comes first, but is only a small part of the bytes. So half of the changes are in the first
        // quarter.
        let part = if numbers.below(2) == 0 { bytes.len() / 4 } else { bytes.len() };
        let at = numbers.below(part as u64) as usize;
        match numbers.below(6) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes[at] = numbers.below(256) as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0xff][numbers.below(4) as usize],
            3 => bytes.insert(at, numbers.below(256) as u8),
            // Inserts the largest variable-length number.
            4 => {
                bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
            }
            _ => {
                bytes.remove(at);
            }
        }
    }
}

/// Restores a machine's state and runs the machine, as a timeline does.
fn restored_and_run(
    recording: &Recording<Instructions>,
    snapshot: &Snapshot<Instructions>,
    store: &Checkpoints<Instructions>,
) -> Result<(), Error> {
    let (mut machine, mut player) = replay::open(recording)?;
    machine.attach_store(store.store().clone());
    player.set_scrutiny(Scrutiny::Registers);
    machine.restore(&snapshot.state, &snapshot.maps)?;
    player.set_cursor(snapshot.cursor)?;
    let until = machine.moment().count.saturating_add(STEPS);
    machine.run(until, &mut player)?;
    drop(machine.state());
    Ok(())
}

/// Continues from the state at an exit and counts from zero, as recounting a part does. Timelines then
/// restore the stored result.
fn restored_at_exit_and_run(
    recording: &Recording<Exits>,
    exits: Exits,
    snapshot: &Snapshot<Exits>,
    store: &Checkpoints<Exits>,
) -> Result<(), Error> {
    let (mut machine, player) = replay::open(recording)?;
    machine.attach_store(store.store().clone());
    machine.restore_at_exit(exits, &snapshot.state, &snapshot.maps)?;
    machine.count_anew();
    let (state, maps) = (machine.state(), machine.maps().unwrap());
    let images = recording.read_images()?;
    let mut machine = Machine::<Instructions>::new(&recording.manifest.machine, &images, player.power_on())?;
    machine.attach_store(store.store().clone());
    machine.restore(&state, &maps)?;
    machine.run(Instructions(STEPS), &mut Script(Vec::new()))?;
    drop(machine.state());
    Ok(())
}

/// Changes the states of checkpoints at random, and calls `run` with each changed state and its position.
fn survive<C: Unit>(
    recording: &Recording<C>,
    mutations: u64,
    run: impl Fn(C, &Snapshot<C>, &Checkpoints<C>) -> Result<(), Error>,
) {
    let (mut first, _) = replay::open(recording).unwrap();
    let store = recording.checkpoints().unwrap().unwrap();
    let checkpoints = Checkpoints::new(store, first.maps().unwrap().ram, &recording.log).unwrap();
    let load = |&at: &C| (at, checkpoints.load(at).unwrap());
    let originals: Vec<(C, Snapshot<C>)> = checkpoints.heads().keys().map(load).collect();
    let mut numbers = Numbers(5);
    let (mut decoded, mut refused, mut ran) = (0, 0, 0);
    for round in 0..mutations {
        let (at, original) = &originals[numbers.below(originals.len() as u64) as usize];
        let mut bytes = original.state.to_bytes(recording.log.format);
        mutate(&mut bytes, &mut numbers);
        let Some(state) = MachineState::from_bytes(recording.log.format, &bytes) else { continue };
        decoded += 1;
        match run(*at, &Snapshot { state, ..original.clone() }, &checkpoints) {
            Ok(()) => ran += 1,
            Err(error) => {
                let code = error.exit_code();
                let told = [exit_code::DIVERGED, exit_code::UNREADABLE_RECORDING].contains(&code);
                assert!(told, "round {round}: exit code {code}: {error}");
                refused += 1;
            }
        }
    }
    assert!(
        decoded > mutations / 4 && refused > 0 && ran > 0,
        "{decoded} decoded, {refused} refused, {ran} ran"
    );
    assert_eq!(Player::new(recording.log.clone()).unwrap().cursor().events(), 0);
}

#[test]
fn no_state_makes_a_machine_panic() {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(5_000, "a"), (9_000, "b")]);
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, keys, &[7_000, 20_000]);
    survive(&recording, MUTATIONS, |_, snapshot, store| restored_and_run(&recording, snapshot, store));
}

#[test]
fn no_state_at_an_exit_makes_a_machine_panic() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = stopped::record_with_checkpoints(directory.path(), 21);
    survive(&recording, MUTATIONS / 3, |exits, snapshot, store| {
        restored_at_exit_and_run(&recording, exits, snapshot, store)
    });
}
