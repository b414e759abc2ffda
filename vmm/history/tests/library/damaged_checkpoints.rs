//! Damaged checkpoints. Verifying and travelling end with an error message, or at exactly the state of an undamaged
//! recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::{PAGE_BYTES, Page, Space, Store};
use history::replay::verify::{Cores, verify, verify_on};
use history::timeline::Timeline;
use machine::Hashes;
use machine::error::{Error, exit_code};
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Count, Instructions, Moment};
use recording::pace::CheckpointOptions;
use recording::{CHECKPOINTS, Recording};
use tiny_guest::{
    Numbers, STIRRED, add_checkpoints, change, open, record_long, record_with, record_with_checkpoints, typed,
};

const ROUNDS: u32 = 10_000;
const CHANGES: u64 = 400;
const KEYS: [(u64, &str); 3] = [(20_000, "a"), (40_000, "bc"), (60_000, "d")];
/// With these limits, even this short recording is replayed on several cores.
const ON_THREE: Cores = Cores { threads: 3, least_steps: 5_000 };
/// The positions of checkpoints that are added to the recorder's checkpoints. Some are between two other checkpoints.
const MORE: [u64; 5] = [95_000, 30_001, 50_000, 45_678, 70_000];

struct Original {
    _directory: tempfile::TempDir,
    recording: Recording<Instructions>,
    /// The checkpoints' files and the store's header.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The machine's hashes at some places.
    hashes: BTreeMap<Instructions, Hashes>,
}

fn original() -> Original {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS), &MORE);
    let files = files_of(&recording);
    assert_eq!(files.len(), MORE.len() + 5);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = end.at.count.number();
    let places = (1..40).map(|n| n * end / 40).chain(MORE).chain([end]).map(Instructions);
    let hashes = places.map(|at| (at, hashes_at(&mut timeline, at).unwrap())).collect();
    Original { _directory: directory, recording, files, hashes }
}

fn files_of(recording: &Recording<Instructions>) -> Vec<(PathBuf, Vec<u8>)> {
    let listed = std::fs::read_dir(recording.path.join(CHECKPOINTS)).unwrap();
    let paths = listed.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("lock"));
    let mut files: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}

fn hashes_at(timeline: &mut Timeline, at: Instructions) -> Result<Hashes, Error> {
    timeline.seek(at, &mut || false)?;
    assert_eq!(timeline.position(), at);
    Ok(timeline.machine_mut().hashes())
}

/// Verifies the recording, and travels to `places`. Returns whether the damage was noticed. If it was, checks the
/// message. If it was not, checks that the results are the same as with the undamaged recording.
fn noticed(original: &Original, places: &[Instructions], what: &str) -> bool {
    let opened = open(&original.recording.path);
    let verified = match verify_on(ON_THREE, &opened, None, |_, _| {}) {
        Ok(found) => found.equal(),
        Err(error) => told(&error, what),
    };
    // Goes to the places from the last to the first. Each replay begins at a checkpoint, or at a snapshot that an
    // earlier replay took.
    let (mut travelled, mut left) = (true, None);
    for &at in places.iter().rev() {
        let timeline = left.take().map_or_else(|| Timeline::open_with(&opened, 1), Ok);
        let hashes = timeline.and_then(|mut timeline| {
            let hashes = hashes_at(&mut timeline, at)?;
            left = Some(timeline);
            Ok(hashes)
        });
        match hashes {
            Ok(hashes) => assert_eq!(hashes, original.hashes[&at], "{what}: another run at {at}"),
            Err(error) => travelled = told(&error, what),
        }
    }
    assert!(travelled || !verified, "{what}: travelling notices what verifying does not");
    !verified
}

fn told(error: &Error, what: &str) -> bool {
    assert_eq!(error.exit_code(), exit_code::UNREADABLE_RECORDING, "{what}: {error}");
    assert!(error.to_string().contains(CHECKPOINTS), "{what}: no file is named in: {error}");
    false
}

#[test]
fn no_random_change_of_a_checkpoint_leads_to_another_state() {
    let original = original();
    let everywhere: Vec<Instructions> = original.hashes.keys().copied().collect();
    assert!(!noticed(&original, &everywhere, "nothing"));
    let mut numbers = Numbers(3);
    let mut count = 0;
    for round in 0..CHANGES {
        let (path, bytes) = &original.files[numbers.below(original.files.len() as u64) as usize];
        let changed = change(bytes, &mut numbers);
        std::fs::write(path, &changed).unwrap();
        let at = everywhere[numbers.below(everywhere.len() as u64) as usize];
        let name = path.file_name().unwrap().display();
        let found = noticed(&original, &[at], &format!("round {round}, {name}, to {at}"));
        assert!(found || changed == *bytes, "round {round}: a change of {name} goes unnoticed");
        count += u64::from(found);
        std::fs::write(path, bytes).unwrap();
    }
    assert!(count > CHANGES * 9 / 10, "{count} noticed");
}

/// Restores the undamaged files.
fn put_back(original: &Original) {
    let directory = original.recording.path.join(CHECKPOINTS);
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    original.files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
}

#[test]
fn checkpoints_that_are_mixed_up_lead_to_no_other_state() {
    let original = original();
    let everywhere: Vec<Instructions> = original.hashes.keys().copied().collect();
    let other_keys = typed(&[(20_000, "a"), (40_000, "xy"), (60_000, "d")]);
    let directory = tempfile::tempdir().unwrap();
    let (other, _) = record_with_checkpoints(directory.path(), "o.ttvm", ROUNDS, other_keys, &MORE);
    let others = files_of(&other);
    let checkpoints = &original.files[..original.files.len() - 1];
    let mut unnoticed = Vec::new();
    let mut look = |what: String| {
        if !noticed(&original, &everywhere, &what) {
            unnoticed.push(what);
        }
        put_back(&original);
    };
    for (at, (path, bytes)) in checkpoints.iter().enumerate() {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        std::fs::remove_file(path).unwrap();
        look(format!("{name} removed"));
        std::fs::rename(path, path.with_extension("ckpt.part")).unwrap();
        look(format!("{name} renamed to unfinished"));
        std::fs::rename(path, path.with_file_name("00000099.ckpt")).unwrap();
        look(format!("{name} renamed"));
        std::fs::copy(path, path.with_file_name("00000099.ckpt")).unwrap();
        look(format!("{name} copied"));
        std::fs::write(path, &others[at].1).unwrap();
        look(format!("{name} from another recording"));
        for (other_path, other_bytes) in &checkpoints[at + 1..] {
            std::fs::write(path, other_bytes).unwrap();
            std::fs::write(other_path, bytes).unwrap();
            look(format!("{name} and {} swapped", other_path.file_name().unwrap().display()));
        }
    }
    others.iter().zip(&original.files).for_each(|(from, to)| std::fs::write(&to.0, &from.1).unwrap());
    look("all from another recording".to_string());
    // Some missing or foreign checkpoints are not noticed, and are harmless. One is the last checkpoint. Others are
    // checkpoints of the other recording from before the place where the two recordings differ. Also not noticed are
    // missing checkpoints that were added later, because no other checkpoint needs their pages.
    for what in &unnoticed {
        let harmless = what.contains("removed") || what.contains("unfinished") || what.contains("another");
        assert!(harmless && !what.starts_with("all"), "{what} goes unnoticed");
    }
    assert!(unnoticed.len() <= 10, "{unnoticed:?}");
}

/// Writes a checkpoint that is valid in form but has wrong contents.
fn forge(path: &Path, of: u64, at: u64, page: Option<(u64, Page)>, state: impl Fn(&mut Vec<u8>)) {
    let store = Store::open(path.join(CHECKPOINTS)).unwrap();
    let entry = store.entries().into_iter().find(|entry| entry.position == of).unwrap();
    let mut bytes = store.state_at(of).unwrap();
    state(&mut bytes);
    let maps = store.maps_at(of).unwrap();
    store.remove(of).unwrap();
    let mut draft = store.add(at, entry.time_ns).unwrap();
    let before = Store::open(path.join(CHECKPOINTS)).unwrap();
    assert!(maps.ram.len() == before.ram_pages());
    if let Some((number, contents)) = page {
        draft.page(Space::Ram, number, &contents).unwrap();
    }
    draft.finish(&entry.head, &bytes).unwrap();
}

#[test]
fn a_checkpoint_that_lies_is_found_by_verify() {
    let page = |value: u8| Some((STIRRED / PAGE_BYTES as u64, [value; PAGE_BYTES]));
    for (what, page, damage, expected) in [
        ("a page", page(7), None, "the page of RAM at 0x200000 differs, first in byte 0x0"),
        ("the first register", None, Some(0), "the CPU's state differs"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        // `forge` stores only the page `page`. By step 5 the guest has written no RAM, so the forged checkpoint
        // lacks no page.
        let (recording, end) =
            record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, typed(&KEYS), &[5, 95_000]);
        forge(&recording.path, 5, 5, page, |state| {
            if let Some(at) = damage {
                let byte: &mut u8 = &mut state[at];
                *byte ^= 1;
            }
        });
        let recording = open(&recording.path);
        for cores in [Cores::all(), ON_THREE, Cores { least_steps: 1, ..ON_THREE }] {
            let found = verify_on(cores, &recording, None, |_, _| {}).unwrap();
            assert!(found.difference.is_none() && found.at == end.at && !found.equal(), "{what}");
            let told = found.checkpoint_difference.unwrap().to_string();
            let is_told = told.contains("the checkpoint at instruction 5 ") && told.contains(expected);
            assert!(is_told && found.did_not_recur.is_none(), "{what}: {told}");
        }
    }
}

#[test]
fn verify_compares_every_checkpoint() {
    let original = original();
    let last = original.recording.log.last_moment();
    for threads in 1..=9 {
        let cores = Cores { threads, least_steps: 1_000 };
        let (mut places, mut told) = (Vec::new(), 0);
        let found = verify_on(cores, &original.recording, None, |what, at| match what {
            "replaying" => places.push(at),
            _ => told += 1,
        });
        let found = found.unwrap();
        assert!(found.equal() && found.difference.is_none() && found.complete, "{threads}");
        assert_eq!((found.checkpoints, found.at), (MORE.len() + 4, last), "{threads}");
        assert!(told > 0 && places.iter().all(|&at| at <= last.count + 1), "{threads}: {places:?}");
    }
}

#[test]
fn travelling_goes_on_without_a_checkpoint_with_a_damaged_page() {
    let original = original();
    let checkpoints = &original.files[..original.files.len() - 1];
    for (path, bytes) in checkpoints {
        let mut changed = bytes.clone();
        // Damage the blob of the first page, or the head if there is no page; then the state.
        changed[8] ^= 1;
        std::fs::write(path, changed).unwrap();
        let opened = open(&original.recording.path);
        for (&at, hashes) in original.hashes.iter().step_by(5) {
            let mut timeline = Timeline::open_with(&opened, 1).unwrap();
            assert_eq!(hashes_at(&mut timeline, at).unwrap(), *hashes, "{} to {at}", path.display());
        }
        std::fs::write(path, bytes).unwrap();
    }
}

#[test]
fn a_checkpoint_that_is_damaged_while_a_timeline_is_open_is_left_out_too() {
    let directory = tempfile::tempdir().unwrap();
    // These checkpoints are far apart. So a seek to a place after a checkpoint begins at this checkpoint, and not
    // at the timeline's present place.
    let places = [10_000_000, 20_000_000];
    let recording = record_long(directory.path(), "r.ttvm", 25);
    let there = Instructions(places[1] + 50);
    let expected = hashes_at(&mut Timeline::open_with(&recording, 1).unwrap(), there).unwrap();
    add_checkpoints(&recording, &places);
    let recording = open(&recording.path);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let store = recording.path.join(CHECKPOINTS);
    let last = Store::open(&store).unwrap().entries()[1].number;
    let path = store.join(checkpoint::file_name(Some(last)).unwrap());
    let mut changed = std::fs::read(&path).unwrap();
    changed.iter_mut().skip(8).for_each(|byte| *byte ^= 1);
    std::fs::write(path, changed).unwrap();
    assert_eq!(hashes_at(&mut timeline, there).unwrap(), expected);
    // The replay began at the previous checkpoint.
    assert!((50..=10_000_050).contains(&timeline.replayed_steps()), "{}", timeline.replayed_steps());
    assert_eq!(hashes_at(&mut timeline, Instructions(places[1])).unwrap().ram, expected.ram);
}

/// Inputs without events. Until the machine reaches the count `until`, a folder with the name of the first checkpoint's
/// file prevents its writing.
struct InTheWay {
    obstacle: PathBuf,
    until: Instructions,
    is_over: bool,
}

impl Inputs<Instructions> for InTheWay {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        if !self.is_over && view.moment.count >= self.until {
            // During this time, the thread that writes checkpoints tries to write the file and fails.
            std::thread::sleep(std::time::Duration::from_secs(2));
            std::fs::remove_dir(&self.obstacle).unwrap();
            self.is_over = true;
        } else if !self.is_over && !self.obstacle.exists() {
            std::fs::create_dir(&self.obstacle).unwrap();
        }
        Ok(None)
    }

    fn next_poll(&self, _now: Moment<Instructions>) -> Instructions {
        if self.is_over { Instructions::MAX } else { self.until }
    }

    fn idle(&mut self, _now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(deadline_ns.map_or(Idle::Forever, Idle::Until))
    }
}

/// In this test, the guest writes most pages only once at the beginning, and not again before the next checkpoint.
#[test]
fn checkpoints_behind_some_that_could_not_be_written_lack_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let until = Instructions(8_000);
    let obstacle = directory.path().join("r.ttvm").join(CHECKPOINTS).join("00000001.ckpt.part");
    let options = CheckpointOptions {
        interval_ns: 1_000,
        min_steps: 1_000,
        page_rest_steps: 0,
        trail_rest_steps: 0,
        slice_steps: 1_000,
        ..CheckpointOptions::default()
    };
    let inputs = InTheWay { obstacle, until, is_over: false };
    let (recording, _) = record_with(directory.path(), "r.ttvm", 2_000, inputs, Some(options));
    let store = recording.checkpoints().unwrap().unwrap();
    let places: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
    assert!(places.len() > 5 && Instructions(places[0]) >= until, "{places:?}");
    let found = verify(&recording, None, |_, _| {}).unwrap();
    assert!(found.equal() && found.difference.is_none());
    assert_eq!(found.checkpoints, places.len());
}
