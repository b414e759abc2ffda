//! Replays of recordings by the player. An unchanged recording replays to the same end, from its beginning and from
//! each checkpoint. A replay notices each changed record.

use std::sync::{Arc, Mutex};

use machine::divergence::Divergence;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::inputs::Event;
use machine::position::{Count, Exits, Instructions};
use machine::unit::Unit;
use machine::{Machine, Outcome};
use recording::checkpoints::Checkpoints;
use recording::console_digest::ConsoleDigest;
use recording::cursor::Cursor;
use recording::log::{EndRecord, LogRecord};
use recording::pace::CheckpointOptions;
use recording::player::{Player, Scrutiny};
use recording::{CHECKPOINTS, Recording};
use tiny_guest::{
    DENSE, POWER_ON, STIRRED, Script, change_log, event_of, record, record_with, record_with_checkpoints,
    stopped, typed,
};

const ROUNDS: u32 = 30_000;
const KEYS: [(u64, &str); 3] = [(50_003, "a"), (111_111, "b"), (222_222, "d")];

/// The machine of a recording at power-on, and its player.
fn begin<C: Unit>(recording: &Recording<C>, scrutiny: Scrutiny) -> (Machine<C>, Player<C>) {
    let mut player = Player::new(recording.log.clone()).unwrap();
    player.set_scrutiny(scrutiny);
    let images = recording.read_images().unwrap();
    let described = &recording.manifest.machine;
    let machine = Machine::build(described, &images, player.power_on(), EngineKind::SOFT).unwrap();
    (machine, player)
}

/// Replays a whole recording.
fn replayed<C: Unit>(recording: &Recording<C>, scrutiny: Scrutiny) -> Result<Machine<C>, Error> {
    let (mut machine, mut player) = begin(recording, scrutiny);
    machine.run(C::MAX, &mut player)?;
    Ok(machine)
}

fn divergence<C: Unit>(recording: &Recording<C>, scrutiny: Scrutiny) -> Box<Divergence> {
    match replayed(recording, scrutiny) {
        Err(Error::Divergence(divergence)) => divergence,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no difference was noticed"),
    }
}

fn must_end_as_recorded<C: Unit>(machine: &mut Machine<C>, end: &EndRecord<C>) {
    assert_eq!((machine.moment(), machine.branches()), (end.at, end.branches));
    assert_eq!(machine.outcome(), Some(&end.outcome));
    assert_eq!(machine.known_hashes().unwrap(), end.hashes);
}

#[test]
fn a_replay_ends_as_the_recording_did_and_prints_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    assert_eq!(recording.log.end.as_ref(), Some(&end));
    for scrutiny in [Scrutiny::Nothing, Scrutiny::Registers, Scrutiny::Everything] {
        let (mut machine, mut player) = begin(&recording, scrutiny);
        assert_eq!(player.power_on(), &POWER_ON);
        let printed = Arc::new(Mutex::new(Vec::new()));
        let sink = printed.clone();
        player.on_output(move |bytes| {
            sink.lock().unwrap().extend_from_slice(bytes);
            Ok(())
        });
        machine.run(Instructions::MAX, &mut player).unwrap();
        must_end_as_recorded(&mut machine, &end);
        let cursor = player.cursor();
        let (events, checks) = (recording.log.event_count(), recording.log.check_count());
        assert_eq!((cursor.events(), cursor.checks()), (events, checks));
        assert!(player.finished() && cursor.is_of(&recording.log).unwrap());
        let printed = printed.lock().unwrap();
        assert_eq!(*printed, b"abd");
        assert_eq!((end.console_bytes, end.console_hash), (3, *blake3::hash(&printed).as_bytes()));
    }
}

#[test]
fn a_digest_is_of_all_output_however_it_came() {
    let mut digest = ConsoleDigest::default();
    assert_eq!(digest.finish(), (0, *blake3::hash(b"").as_bytes()));
    digest.update(b"log");
    digest.update(b"");
    digest.update(b"in: ");
    assert_eq!(digest.finish(), (7, *blake3::hash(b"login: ").as_bytes()));
}

#[test]
fn a_recorder_takes_checks_at_its_intervals() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    let checks: Vec<_> = recording.log.checks().map(Result::unwrap).collect();
    let places = |is_wanted: &dyn Fn(usize) -> bool| -> Vec<u64> {
        let chosen = checks.iter().enumerate().filter(|(number, _)| is_wanted(*number));
        let mut places: Vec<u64> =
            [0].into_iter().chain(chosen.map(|(_, check)| check.at.count.number())).collect();
        places.dedup();
        places
    };
    for (what, interval, places) in [
        ("registers", DENSE.registers, places(&|_| true)),
        ("devices", DENSE.devices, places(&|number| checks[number].devices_hash.is_some())),
        ("RAM", DENSE.ram, places(&|number| checks[number].ram_digest.is_some())),
    ] {
        let last = places[places.len() - 1];
        assert!(places.len() > 2 && last + interval + DENSE.registers > end.at.count.number(), "{what}");
        for pair in places.windows(2) {
            let distance = pair[1] - pair[0];
            assert!(distance >= interval && distance <= interval + DENSE.registers, "{what}: {pair:?}");
        }
    }
}

/// A change of a log: its name, the function that makes the change, and the name of the part that then differs.
type Change = (&'static str, fn(&mut [LogRecord<Instructions>]), &'static str);

/// The second check with RAM. This check also has the devices.
fn check_of(records: &mut [LogRecord<Instructions>]) -> &mut machine::checks::CheckRecord<Instructions> {
    let checks = records.iter_mut().filter_map(|record| match record {
        LogRecord::Check(check) => Some(check),
        _ => None,
    });
    checks.filter(|check| check.ram_digest.is_some() && check.devices_hash.is_some()).nth(1).unwrap()
}

#[test]
fn each_part_of_a_changed_record_is_noticed_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    let (rip, branches) = ("RIP", "the count of conditional branches");
    let (registers, point) = ("the hash of the registers", "the point of a record");
    let changes: [Change; 12] = [
        ("an event's RIP", |log| event_of(log, 2).rip += 1, rip),
        ("an event's branches", |log| event_of(log, 2).branches += 1, branches),
        ("an event's registers", |log| event_of(log, 2).cpu_hash[7] ^= 1, registers),
        ("an event's time", |log| event_of(log, 2).at.time_ns += 1, point),
        ("an event's earlier time", |log| event_of(log, 2).at.time_ns -= 1, point),
        ("a check's RIP", |log| check_of(log).rip += 1, rip),
        ("a check's branches", |log| check_of(log).branches += 1, branches),
        ("a check's registers", |log| check_of(log).cpu_hash[0] ^= 1, registers),
        ("a check's time", |log| check_of(log).at.time_ns += 1, point),
        ("typed text", |log| event_of(log, 1).event = Event::ConsoleInput(b"x".to_vec()), registers),
        ("a check's devices", |log| check_of(log).devices_hash = Some([0; 8]), "the hash of the devices"),
        ("a check's RAM", |log| check_of(log).ram_digest = None, ""),
    ];
    for (what, change, part) in changes {
        let mut changed = recording.clone();
        change_log(&mut changed, change);
        for scrutiny in [Scrutiny::Registers, Scrutiny::Everything] {
            let is_compared = scrutiny == Scrutiny::Everything || !part.contains("devices");
            if part.is_empty() || !is_compared {
                assert!(replayed(&changed, scrutiny).is_ok(), "{what}, {scrutiny:?}");
                continue;
            }
            let found = divergence(&changed, scrutiny);
            assert_eq!(found.what, part, "{what}, {scrutiny:?}");
            assert!(found.expected != found.actual, "{what}: {found}");
        }
        // A replay that compares nothing does not fail, whatever the record contains.
        assert!(replayed(&changed, Scrutiny::Nothing).is_ok(), "{what}");
    }
}

#[test]
fn a_difference_lies_behind_the_last_place_where_the_same_part_was_compared() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    let checks: Vec<_> = recording.log.checks().map(Result::unwrap).collect();
    let bad = check_of(&mut recording.log.records().unwrap()).at;
    let before = |is_wanted: fn(&machine::checks::CheckRecord<Instructions>) -> bool| {
        checks.iter().rfind(|check| check.at < bad && is_wanted(check)).unwrap().at
    };
    let (of_any, of_devices, of_ram) = (
        before(|_| true),
        before(|check| check.devices_hash.is_some()),
        before(|check| check.ram_digest.is_some()),
    );
    assert!(of_ram < of_devices && of_devices < of_any, "each has another place before it");
    let changes: [(Change, _); 3] = [
        (("registers", |log| check_of(log).cpu_hash[0] ^= 1, "the hash of the registers"), of_any),
        (("devices", |log| check_of(log).devices_hash = Some([0; 8]), "the hash of the devices"), of_devices),
        (("RAM", |log| check_of(log).ram_digest = Some([0; 16]), "the digest of RAM"), of_ram),
    ];
    for ((what, change, part), good) in changes {
        let mut changed = recording.clone();
        change_log(&mut changed, change);
        let found = divergence(&changed, Scrutiny::Everything);
        assert_eq!((found.what, found.at), (part, bad.count.position()), "{what}");
        let last_good = (found.last_good, found.last_good_ns);
        assert_eq!(last_good, (good.count.position(), good.time_ns), "{what}");
        // The error names up to two events before the divergence, and up to three at or after it.
        let next = recording.log.counts_while(|at| at < bad).unwrap().0;
        let (first, last) = (next.saturating_sub(2), (next + 3).min(recording.log.event_count()));
        let numbers: Vec<String> = (first..last).map(|number| format!("#{number} ")).collect();
        assert_eq!(found.neighbours.len(), numbers.len(), "{what}");
        let are_named = found.neighbours.iter().zip(&numbers).all(|(text, number)| text.starts_with(number));
        assert!(are_named, "{what}: {:?}", found.neighbours);
    }
}

#[test]
fn a_replay_can_end_before_any_event() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS));
    for number in 1..recording.log.event_count() {
        let (mut machine, mut player) = begin(&recording, Scrutiny::Everything);
        player.end_before(number);
        machine.run(Instructions::MAX, &mut player).unwrap();
        assert_eq!(machine.outcome(), Some(&Outcome::Ended));
        assert_eq!(machine.moment(), recording.log.event(number).unwrap().unwrap().at);
        assert_eq!(player.cursor().events(), number);
    }
}

#[test]
fn checks_can_be_passed_up_to_a_place_and_no_further() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, Vec::new());
    let checks: Vec<_> = recording.log.checks().map(Result::unwrap).collect();
    let mut player = Player::new(recording.log.clone()).unwrap();
    player.pass_checks(checks[3].at).unwrap();
    assert_eq!(player.cursor().checks(), 0, "power-on comes first");
    player.set_cursor(Cursor::after(1, 0, checks[0].at, 0)).unwrap();
    player.pass_checks(checks[3].at).unwrap();
    assert_eq!((player.cursor().events(), player.cursor().checks()), (1, 4));
    assert_eq!(player.next_check_parts(), Some(checks[4].parts()));
}

#[test]
fn a_replay_from_any_checkpoint_ends_as_the_recording_did() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) =
        record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS), &[60_000, 111_111]);
    let (mut machine, _) = begin(&recording, Scrutiny::Everything);
    let store = recording.checkpoints().unwrap().unwrap();
    let checkpoints = Checkpoints::new(store.clone(), machine.maps().unwrap().ram, &recording.log).unwrap();
    let places: Vec<Instructions> = checkpoints.heads().keys().copied().collect();
    assert!(places.len() >= 5 && places[places.len() - 1] == end.at.count, "{places:?}");
    for at in places {
        let (mut machine, mut player) = begin(&recording, Scrutiny::Everything);
        let snapshot = checkpoints.attach_and_load(at, &mut machine).unwrap().unwrap();
        machine.restore(&snapshot.state, &snapshot.maps).unwrap();
        player.set_cursor(snapshot.cursor).unwrap();
        let head = &checkpoints.heads()[&at];
        assert_eq!(
            (head.at, head.branches, head.rip),
            (machine.moment(), machine.branches(), machine.cpu().rip())
        );
        assert_eq!(snapshot.cursor, player.cursor(), "the checkpoint has the checksum of the log before it");
        machine.run(Instructions::MAX, &mut player).unwrap();
        must_end_as_recorded(&mut machine, &end);
    }
    assert!(checkpoints.attach_and_load(Instructions(1), &mut machine).unwrap().is_none());
    // A store of another machine is refused.
    let (other, _) = record(directory.path(), "other.ttvm", 100, Vec::new());
    let mut larger = other.manifest.machine.clone();
    larger.memory_bytes *= 2;
    let mut larger = Machine::new(&larger, &other.read_images().unwrap(), &POWER_ON).unwrap();
    let error = checkpoints.attach_and_load(end.at.count, &mut larger).err().unwrap().to_string();
    assert!(error.contains("another machine"), "{error}");
}

/// A store with one checkpoint, whose head and state may not fit together.
fn store_of<C: Unit>(
    recording: &Recording<C>,
    from: &Checkpoints<C>,
    at: C,
    change: impl Fn(&mut recording::checkpoints::CheckpointHead<C>, &mut machine::MachineState),
) -> (tempfile::TempDir, Checkpoints<C>) {
    let folder = tempfile::tempdir().unwrap();
    let old = from.store();
    let store =
        checkpoint::Store::create(folder.path().join("s"), old.ram_pages(), old.disk_blocks()).unwrap();
    let (mut head, mut state) = (from.heads()[&at].clone(), from.load(at).unwrap().state);
    change(&mut head, &mut state);
    let format = recording.log.format;
    let draft = store.add(at.number(), head.at.time_ns).unwrap();
    draft.finish(&head.to_bytes(format), &state.to_bytes(format)).unwrap();
    let checkpoints = Checkpoints::new(Arc::new(store), from.initial().clone(), &recording.log).unwrap();
    (folder, checkpoints)
}

fn checkpoints_of<C: Unit>(recording: &Recording<C>) -> Checkpoints<C> {
    let (mut machine, _) = begin(recording, Scrutiny::Nothing);
    let store = recording.whole_checkpoints().unwrap().unwrap();
    Checkpoints::new(store, machine.maps().unwrap().ram, &recording.log).unwrap()
}

#[test]
fn a_checkpoint_has_the_count_and_the_time_of_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, Vec::new(), &[]);
    let from = checkpoints_of(&recording);
    let at = *from.heads().keys().next().unwrap();
    let loads = |change: fn(&mut machine::MachineState)| {
        store_of(&recording, &from, at, |_, state| change(state)).1.load(at).is_ok()
    };
    assert!(loads(|_| {}));
    assert!(!loads(|state| state.idle_ns += 1));
    assert!(!loads(|state| state.counts.steps += 1));
    assert!(!loads(|state| (state.counts.steps, state.idle_ns) = (state.counts.steps + 1, u64::MAX)));
    // Steps and idle time add up to the right virtual time, but the count of steps is wrong.
    assert!(
        !loads(|state| (state.counts.steps, state.idle_ns) = (state.counts.steps - 1, state.idle_ns + 1))
    );

    // In a recording that counts exits, `idle_ns` is all of the time.
    let (recording, _) = stopped::record_with_checkpoints(directory.path(), 8);
    let from = checkpoints_of(&recording);
    let at = *from.heads().keys().nth(1).unwrap();
    let loads = |change: fn(&mut machine::MachineState)| {
        store_of(&recording, &from, at, |_, state| change(state)).1.load(at).is_ok()
    };
    assert!(loads(|_| {}));
    assert!(!loads(|state| state.idle_ns += 1));
    assert!(loads(|state| state.counts.steps += 1), "the count of exits is not in the state");
}

#[test]
fn checkpoints_that_do_not_fit_the_log_are_refused_or_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, Vec::new(), &[]);
    let from = checkpoints_of(&recording);
    let at = *from.heads().keys().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = |position: u64, head: &recording::checkpoints::CheckpointHead<Instructions>, name: &str| {
        let store = checkpoint::Store::create(folder.path().join(name), 1024, 0).unwrap();
        let draft = store.add(position, head.at.time_ns).unwrap();
        draft.finish(&head.to_bytes(recording.log.format), b"state").unwrap();
        Checkpoints::new(Arc::new(store), from.initial().clone(), &recording.log)
            .map(|them| them.heads().len())
    };
    let good = from.heads()[&at].clone();
    assert_eq!(store(at.number(), &good, "good").unwrap(), 1);
    assert!(store(at.number() + 1, &good, "elsewhere").is_err(), "its head names another place");
    let mut behind = good.clone();
    behind.cursor = Cursor::after(1, recording.log.check_count() + 1, good.at, 0);
    assert!(store(at.number(), &behind, "behind").is_err(), "the log has fewer checks");
    // A recorder that was killed may have stored a checkpoint beyond the last record of its log.
    let mut beyond = good.clone();
    beyond.at.count = recording.log.last_moment().count + 1;
    beyond.at.time_ns = recording.log.last_moment().time_ns + 1;
    assert_eq!(store(beyond.at.count.number(), &beyond, "beyond").unwrap(), 0);
}

#[test]
fn checkpoints_of_another_recording_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (one, _) = record_with_checkpoints(directory.path(), "1.ttvm", ROUNDS, typed(&KEYS), &[]);
    let (other, _) = record_with_checkpoints(directory.path(), "2.ttvm", ROUNDS, typed(&[(5, "x")]), &[]);
    std::fs::remove_dir_all(one.path.join(CHECKPOINTS)).unwrap();
    assert!(one.checkpoints().unwrap().is_none() && one.whole_checkpoints().unwrap().is_none());
    std::fs::rename(other.path.join(CHECKPOINTS), one.path.join(CHECKPOINTS)).unwrap();
    for opened in [one.checkpoints(), one.whole_checkpoints()] {
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("belongs to another recording"), "{error}");
    }
}

#[test]
fn damaged_checkpoints_are_left_out_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS), &[]);
    let all = recording.whole_checkpoints().unwrap().unwrap().entries().len();
    let folder = recording.path.join(CHECKPOINTS);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "ckpt"));
    files.sort();
    let last = files.last().unwrap();
    let bytes = std::fs::read(last).unwrap();
    std::fs::write(last, &bytes[..bytes.len() / 2]).unwrap();
    assert!(recording.whole_checkpoints().is_err());
    assert_eq!(recording.checkpoints().unwrap().unwrap().entries().len(), all - 1);
}

/// Options for a checkpoint at the end of every slice.
fn often() -> CheckpointOptions {
    CheckpointOptions {
        interval_ns: 10_000,
        min_steps: 10_000,
        page_rest_steps: 0,
        trail_rest_steps: u64::MAX / 8192,
        slice_steps: 10_000,
        ..CheckpointOptions::default()
    }
}

#[test]
fn checkpoints_come_at_each_slice_and_at_an_end_that_the_guest_chose() {
    let directory = tempfile::tempdir().unwrap();
    let positions = |name: &str, script: Vec<(u64, Event)>| {
        let (recording, end) = record_with(directory.path(), name, 8_000, Script(script), Some(often()));
        let store = recording.checkpoints().unwrap().unwrap();
        let positions: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
        (positions, end.at.count.number())
    };
    let (at_end, end) = positions("guest.ttvm", Vec::new());
    let slices = end / 10_000;
    let expected: Vec<u64> = (1..=slices).map(|slice| slice * 10_000).chain([end]).collect();
    assert_eq!(at_end, expected);
    let (outside, end) = positions("outside.ttvm", vec![(55_555, Event::Ended)]);
    assert_eq!(end, 55_555);
    assert_eq!(outside, [10_000, 20_000, 30_000, 40_000, 50_000], "time may have passed at the end");
}

#[test]
fn a_run_that_counts_exits_replays_with_every_scrutiny() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = stopped::record(directory.path(), 5);
    for scrutiny in [Scrutiny::Registers, Scrutiny::Everything] {
        let mut machine = replayed(&recording, scrutiny).unwrap();
        must_end_as_recorded(&mut machine, &end);
    }
    // If the recorded stop is at another place, the replay differs.
    let mut changed = recording.clone();
    let stop =
        recording.log.events().position(|event| matches!(event.unwrap().event, Event::Stopped(_))).unwrap();
    change_log(&mut changed, |log| event_of(log, stop).rip += 1);
    assert!(replayed(&changed, Scrutiny::Registers).is_err());
}

#[test]
fn a_guest_that_makes_no_exit_for_too_long_diverges() {
    let directory = tempfile::tempdir().unwrap();
    let recording = stopped::record_spinning(directory.path(), 20);
    let (mut machine, mut player) = begin(&recording, Scrutiny::Registers);
    player.set_most_without_exit(1);
    let error = machine.run(Exits::MAX, &mut player).unwrap_err();
    let Error::Divergence(found) = error else { panic!("{error}") };
    assert_eq!((found.what, found.expected.as_str()), ("the next exit", "one within 1 instructions"));
}

#[test]
fn memory_that_the_guest_wrote_is_in_its_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, Vec::new(), &[]);
    let from = checkpoints_of(&recording);
    let mut differing = 0;
    for &at in from.heads().keys() {
        let ram = from.maps(at).unwrap().ram;
        let pages: Vec<u64> = ram.changed_since(from.initial()).map(|(page, _)| page * 4096).collect();
        assert!(pages.iter().any(|page| *page >= STIRRED), "{at}");
        differing += usize::from(pages.len() > 10);
    }
    assert!(differing > 2);
}
