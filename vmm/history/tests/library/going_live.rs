//! Tests machines that continue live from a place in a recording. Without new input, such a machine does the same as
//! the recorded machine. Recordings of such machines replay like other recordings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use history::replay::{Replay, ReplayEnd};
use history::timeline::Timeline;
use machine::engine::EngineKind;
use machine::error::{Error, exit_code};
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Count, Instructions, Moment};
use machine::starting_state::Effort;
use machine::{Format, Machine, MachineState, RunStop, StartingState};
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::pack::{DEFAULT_MAX_BYTES, pack, unpack};
use recording::player::Scrutiny;
use recording::{Recordable, Recording, create_folder};
use tiny_guest::{Numbers, Script, change, open, record, record_calls, replayed_from, typed};

const CALLS: u32 = 3_000;

/// A script that stores the console's output, and pauses the run after a number of polls.
struct Heard {
    script: Script,
    console: Rc<RefCell<Vec<u8>>>,
    pauses_after: Option<u32>,
}

impl Inputs<Instructions> for Heard {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        self.script.poll(view)
    }

    fn next_poll(&self, now: Moment<Instructions>) -> Instructions {
        let next: Instructions = self.script.next_poll(now);
        if self.pauses_after.is_some() { next.min(now.count + 1_000) } else { next }
    }

    fn pauses(&mut self) -> bool {
        let left = self.pauses_after.map(|left| left - 1);
        self.pauses_after = left.filter(|&left| left > 0);
        left == Some(0)
    }

    fn idle(&mut self, now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Inputs::<Instructions>::idle(&mut self.script, now, deadline_ns)
    }

    fn console_output(&mut self, _now: Moment<Instructions>, bytes: &[u8]) -> Result<(), Error> {
        self.console.borrow_mut().extend(bytes);
        Ok(())
    }
}

/// The output of a machine that continued, and its last state.
struct Future {
    console: Vec<u8>,
    state: MachineState,
    ram: [u8; 16],
}

/// The starting state at a place in a recording.
fn start_at(recording: &Recording<Instructions>, at: Instructions) -> Result<StartingState, Error> {
    let mut timeline = Timeline::open_with(recording, 1).unwrap();
    timeline.seek(at, &mut || false).unwrap();
    StartingState::of(timeline.machine_mut())
}

/// Continues from a place in a recording, and records the continued run.
fn go_on(from: &Recording<Instructions>, at: Instructions, to: &Path, script: Script) -> Future {
    let start = start_at(from, at).unwrap();
    let mut guest = Recordable::<Instructions>::going_on(EngineKind::SOFT, from, start).unwrap();
    let console = Rc::new(RefCell::new(Vec::new()));
    let heard = Heard { script, console: console.clone(), pauses_after: None };
    let options = CheckpointOptions {
        interval_ns: 10_000,
        min_steps: 10_000,
        slice_steps: 10_000,
        ..CheckpointOptions::default()
    };
    let recording = guest.record_in(to).unwrap().checks(tiny_guest::DENSE).checkpoints(Some(options));
    recording.run(heard).unwrap();
    future(console.take(), &mut guest.machine)
}

fn future(console: Vec<u8>, machine: &mut Machine<Instructions>) -> Future {
    Future { console, state: machine.state(), ram: machine.hashes().ram }
}

/// The output of the recorded machine from a place on, and its last state.
fn recorded_future(recording: &Recording<Instructions>, at: Instructions) -> Future {
    let (console, mut machine, end) = replayed_from(recording, at);
    assert_eq!(end, ReplayEnd::Verified);
    future(console, &mut machine)
}

fn must_be_equal(found: &Future, expected: &Future, at: Instructions) {
    assert_eq!(
        String::from_utf8_lossy(&found.console),
        String::from_utf8_lossy(&expected.console),
        "from {at} on"
    );
    assert!(found.state.cpu == expected.state.cpu, "the CPU, from {at} on");
    assert!(found.state.platform == expected.state.platform, "the devices, from {at} on");
    assert_eq!((found.ram, &found.state.console), (expected.ram, &expected.state.console), "from {at} on");
    let time = |state: &MachineState| state.counts.steps + state.idle_ns;
    assert_eq!(time(&found.state), time(&expected.state), "from {at} on");
}

fn must_replay(recording: &Recording<Instructions>) {
    let mut replay = Replay::new(recording, Scrutiny::Everything, |_| Ok(())).unwrap();
    assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Verified);
}

/// The contents of all files in a folder and its subfolders.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

fn calls(directory: &Path) -> (Recording<Instructions>, EndRecord<Instructions>) {
    record_calls(directory, "r.ttvm", CALLS, None)
}

#[test]
fn without_input_a_machine_that_goes_on_does_what_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = calls(directory.path());
    let before = files(&recording.path);
    let last = end.at.count.number();
    for number in [0, 1, 12_345, last / 2, last - 1_000] {
        let at = Instructions(number);
        let to = directory.path().join(format!("from-{number}.ttvm"));
        let found = go_on(&recording, at, &to, Script(Vec::new()));
        assert!(!found.console.is_empty());
        must_be_equal(&found, &recorded_future(&recording, at), at);
        let new = open(&to);
        must_replay(&new);
        assert_eq!(new.log.end.as_ref().unwrap().at.count.number(), last - number);
        assert_eq!(new.log.power_on().unwrap().at.time_ns, number, "guest time goes on");
    }
    assert!(files(&recording.path) == before, "the recording was changed");
}

#[test]
fn every_place_of_what_is_recorded_anew_is_the_one_that_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = calls(directory.path());
    let from = 40_000;
    let to = directory.path().join("new.ttvm");
    go_on(&recording, Instructions(from), &to, Script(Vec::new()));
    let new = open(&to);
    assert!(new.checkpoints().unwrap().is_some_and(|store| !store.entries().is_empty()));
    let (mut old, mut new) =
        (Timeline::open_with(&recording, 1).unwrap(), Timeline::open_with(&new, 1).unwrap());
    for place in [0, 50_000, 1, 7_000, 20_001, 3] {
        old.seek(Instructions(from + place), &mut || false).unwrap();
        new.seek(Instructions(place), &mut || false).unwrap();
        let states = [old.machine().state(), new.machine().state()];
        assert!(states[0].cpu == states[1].cpu, "at {place}");
        assert!(states[0].platform == states[1].platform, "at {place}");
        assert_eq!(old.machine_mut().hashes().ram, new.machine_mut().hashes().ram, "at {place}");
        assert_eq!(old.machine().moment().time_ns, new.machine().moment().time_ns, "at {place}");
    }
}

#[test]
fn what_is_typed_after_going_live_is_recorded_anew_and_can_be_gone_on_from_again() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", 30_000, typed(&[(5_000, "a"), (200_000, "b")]));
    let middle = Instructions(end.at.count.number() / 3);
    let first = directory.path().join("first.ttvm");
    let found = go_on(&recording, middle, &first, Script(typed(&[(3_000, "x"), (90_000, "y")])));
    assert_eq!(found.console, b"xy");
    must_replay(&open(&first));
    let second = directory.path().join("second.ttvm");
    let found = go_on(&open(&first), Instructions(50_000), &second, Script(typed(&[(10, "z")])));
    assert_eq!(found.console, b"z");
    must_replay(&open(&second));
    // The new recordings need no file of the old recording.
    std::fs::remove_dir_all(&recording.path).unwrap();
    std::fs::remove_dir_all(&first).unwrap();
    std::fs::remove_file(&recording.manifest.machine.start.booted().kernel.path).unwrap();
    must_replay(&open(&second));
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("unpacked.ttvm"));
    pack(&open(&second), &packed, true).unwrap();
    unpack(&packed, &unpacked, DEFAULT_MAX_BYTES).unwrap();
    std::fs::remove_dir_all(&second).unwrap();
    must_replay(&open(&unpacked));
}

#[test]
fn a_machine_that_runs_is_recorded_from_a_pause_on() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = calls(directory.path());
    let options = tiny_guest::options(directory.path().join(format!("calls-{CALLS}")));
    for pauses in [1, 2, 50] {
        let mut guest = Recordable::new(&options, tiny_guest::POWER_ON).unwrap();
        let console = Rc::new(RefCell::new(Vec::new()));
        let mut heard =
            Heard { script: Script(Vec::new()), console: console.clone(), pauses_after: Some(pauses) };
        assert_eq!(guest.machine.run(Instructions::MAX, &mut heard).unwrap(), RunStop::Paused);
        let (at, before) = (guest.machine.moment(), console.take());
        let to = directory.path().join(format!("late-{pauses}.ttvm"));
        create_folder(&to).unwrap();
        let late = guest.record_from_here(&to).unwrap();
        assert_eq!(late.machine().moment(), Moment { count: Instructions(0), time_ns: at.time_ns });
        late.run(heard).unwrap();
        let expected = recorded_future(&recording, at.count);
        must_be_equal(&future(console.take(), &mut guest.machine), &expected, at.count);
        assert!(pauses == 1 || !before.is_empty());
        must_replay(&open(&to));
    }
}

#[test]
fn a_timelines_own_machine_goes_on_as_a_new_machine_does() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = calls(directory.path());
    let last = end.at.count.number();
    for number in [0, 1, 12_345, last / 2, last - 1_000] {
        let at = Instructions(number);
        let mut new = {
            let start = start_at(&recording, at).unwrap();
            Recordable::<Instructions>::going_on(EngineKind::SOFT, &recording, start).unwrap().machine
        };
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        // After these movements the machine has translated code, and the timeline has snapshots and stops.
        timeline.seek(Instructions(last - 10), &mut || false).unwrap();
        timeline.seek(at, &mut || false).unwrap();
        let mut same = timeline.go_live().unwrap();
        assert_eq!((same.moment(), same.hashes()), (new.moment(), new.hashes()), "at {at}");
        assert!(same.store().is_none());
        let [found, expected] = [&mut same, &mut new].map(|machine| {
            let console = Rc::new(RefCell::new(Vec::new()));
            let script = Script(vec![(last - number - 500, Event::Ended)]);
            let mut heard = Heard { script, console: console.clone(), pauses_after: None };
            machine.run(Instructions::MAX, &mut heard).unwrap();
            (console.take(), machine.hashes(), machine.moment())
        });
        assert!(found == expected, "from {at} on");
    }
}

#[test]
fn nothing_goes_on_from_where_a_machine_has_ended_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = calls(directory.path());
    let (mut machine, mut player) = history::replay::open(&recording).unwrap();
    assert!(matches!(machine.run(Instructions::MAX, &mut player).unwrap(), RunStop::Ended(_)));
    let error = StartingState::of(&mut machine).unwrap_err();
    assert_eq!(error.exit_code(), exit_code::USAGE);
    assert!(error.to_string().contains("choose an earlier position"), "{error}");
}

#[test]
fn a_damaged_starting_state_is_refused_and_never_panics() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = calls(directory.path());
    for (effort, damages) in [(Effort::Fast, 2_000), (Effort::Small, 500)] {
        damage_starting_state(&recording, effort, damages);
    }
    let to = directory.path().join("new.ttvm");
    go_on(&recording, Instructions(5_000), &to, Script(Vec::new()));
    let inside = to.join("images/start");
    let mut bytes = std::fs::read(&inside).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&inside, bytes).unwrap();
    let error = history::replay::open(&open(&to)).err().unwrap();
    assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING);
    assert!(error.to_string().contains("starting state has changed"), "{error}");
}

fn damage_starting_state(recording: &Recording<Instructions>, effort: Effort, damages: u32) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("start");
    let start = start_at(recording, Instructions(5_000)).unwrap();
    start.write(&file, Format::default(), effort, &mut |_, _| false).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[8..12], if effort == Effort::Fast { [1, 0, 0, 0] } else { [2, 0, 0, 0] }, "the version");
    let pages = 4 << 20 >> 12;
    assert!(StartingState::parse(&bytes, Format::default(), pages, 0).is_ok());
    for (ram, disk) in [(pages - 1, 0), (pages + 1, 0), (pages, 1)] {
        assert!(StartingState::parse(&bytes, Format::default(), ram, disk).unwrap_err().contains("pages"));
    }
    for length in [0, 7, 11, 12, bytes.len() / 2, bytes.len() - 1] {
        assert!(StartingState::parse(&bytes[..length], Format::default(), pages, 0).is_err(), "{length}");
    }
    let mut numbers = Numbers(1);
    for _ in 0..damages {
        // Some changed bits do not change the unpacked contents, so some states can still be parsed.
        if let Ok(start) = StartingState::parse(&change(&bytes, &mut numbers), Format::default(), pages, 0) {
            let again = tempfile::tempdir().unwrap();
            let again = again.path().join("start");
            start.write(&again, Format::default(), effort, &mut |_, _| false).unwrap();
            assert!(std::fs::read(again).unwrap() == bytes);
        }
    }
}
