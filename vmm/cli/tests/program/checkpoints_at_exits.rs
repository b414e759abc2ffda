//! Checkpoints of recordings that count exits, and parts of recordings opened from such checkpoints. All
//! tests here use the software engine, which can stop a guest as KVM does. Tests in the KVM lab (`scripts/kvm-lab`)
//! take checkpoints while KVM runs the guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::ttvm;
use checkpoint::{PAGE_BYTES, Page, PageRef, Space, Store};
use history::recount::folders::{INSTRUCTIONS, folder};
use history::recount::{from_exit, in_instructions, start_of_last};
use history::replay::verify::verify;
use history::timeline::{Timeline, TravelStop};
use machine::error::{Error, exit_code};
use machine::inputs::Event;
use machine::notation::PositionSpec;
use machine::position::{Count, Exits, Instructions};
use machine::{Format, MachineState};
use recording::checkpoints::CheckpointHead;
use recording::pack::{DEFAULT_MAX_BYTES, pack, unpack};
use recording::{CHECKPOINTS, Recording};
use tiny_guest::stopped::{open, record_with_checkpoints};
use tiny_guest::{Numbers, STIRRED, change};

fn heads(recording: &Recording<Exits>) -> Vec<CheckpointHead<Exits>> {
    let store = recording.checkpoints().unwrap().unwrap();
    store
        .entries()
        .iter()
        .map(|entry| CheckpointHead::parse(Format::default(), &entry.head).unwrap())
        .collect()
}

/// The checkpoints from which a part can begin: all except the checkpoint at the end.
fn starts(recording: &Recording<Exits>) -> Vec<Exits> {
    let last = recording.log.last_moment().count;
    heads(recording).iter().map(|head| head.at.count).filter(|&exits| exits < last).collect()
}

fn opened(recording: &Recording<Exits>) -> Recording<Exits> {
    open(&recording.path)
}

#[test]
fn checkpoints_are_taken_at_exits_and_are_what_a_replay_has_there() {
    for seed in [3, 4, 5, 6] {
        let directory = tempfile::tempdir().unwrap();
        let (recording, end) = record_with_checkpoints(directory.path(), seed);
        let heads = heads(&recording);
        assert!(heads.len() > 4, "{} checkpoints", heads.len());
        assert!(heads.iter().all(|head| head.branches == 0 && head.system_calls == 0));
        assert_eq!(heads.last().unwrap().at, end.at, "it ended by itself");
        let found = verify(&recording, None, |_, _| {}).unwrap();
        assert!(found.equal() && found.complete, "{:?}", found.checkpoint_difference);
        assert_eq!(found.checkpoints, heads.len());
    }
}

/// Writes a checkpoint that is valid in form but has wrong contents.
fn forge(
    recording: &Recording<Exits>,
    of: Exits,
    page: Option<(u64, Page)>,
    change: impl Fn(&mut MachineState),
) {
    let of = of.number();
    let store = Store::open(recording.path.join(CHECKPOINTS)).unwrap();
    let entry = store.entries().into_iter().find(|entry| entry.position == of).unwrap();
    let mut state = MachineState::from_bytes(Format::default(), &store.state_at(of).unwrap()).unwrap();
    change(&mut state);
    let ram = store.maps_at(of).unwrap().ram;
    let contents = |page: u64| match ram.get(page) {
        PageRef::Stored(blob) => {
            let mut contents = [0; PAGE_BYTES];
            store.read(*blob, &mut contents).unwrap();
            Some((page, contents))
        }
        _ => None,
    };
    let mut pages: BTreeMap<u64, Page> = (0..ram.len()).filter_map(contents).collect();
    pages.extend(page);
    store.remove(of).unwrap();
    let mut draft = store.add(of, entry.time_ns).unwrap();
    for (number, contents) in pages {
        draft.page(Space::Ram, number, &contents).unwrap();
    }
    draft.finish(&entry.head, &state.to_bytes(Format::default())).unwrap();
}

/// A change to a checkpoint: a page to replace, a function that changes the state, and the expected message. If the
/// message is `None`, the test expects that no difference is found.
type Lie<'a> = (Option<(u64, Page)>, &'a dyn Fn(&mut MachineState), Option<&'a str>);

fn type_x(state: &mut MachineState) {
    state.console.push(b"x");
}

#[test]
fn a_checkpoint_that_lies_is_found_and_what_engines_differ_in_is_no_lie() {
    let page = (STIRRED / PAGE_BYTES as u64, [6; PAGE_BYTES]);
    let cases: [Lie; 5] = [
        (Some(page), &|_| (), Some("the page of RAM at 0x200000 differs")),
        (None, &|state| state.cpu.gpr[3] ^= 2, Some("the CPU's state differs")),
        (None, &type_x, Some("what the console showed")),
        // The replay finds this change when it compares the run's end.
        (None, &|state| state.outcome = Some(machine::Outcome::Reset), Some("the CPU's state differs")),
        (None, &|state| (state.counts.steps, state.counts.branches) = (5, 5), None),
    ];
    for (page, change, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _) = record_with_checkpoints(directory.path(), 8);
        let last = *starts(&recording).last().unwrap();
        forge(&recording, last, page, change);
        let found = verify(&opened(&recording), None, |_, _| {}).unwrap();
        let told = found.checkpoint_difference.map(|difference| difference.to_string());
        match (told, expected) {
            (None, None) => {}
            (Some(told), Some(expected)) => {
                assert!(told.contains(&format!("at exit {last} ")) && told.contains(expected), "{told}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_part_has_the_same_history_as_the_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 9);
    let whole = in_instructions(opened(&recording), |_| {}).unwrap();
    let mut of_whole = Timeline::open_with(&whole, 1).unwrap();
    let starts = starts(&recording);
    for from in [starts[0], starts[starts.len() / 2], starts[starts.len() - 1]] {
        let part = from_exit(opened(&recording), from, |_| {}).unwrap();
        assert!(part.is_part() && !whole.is_part());
        let exits = part.recounted.clone().unwrap();
        assert_eq!(exits.log, recording.log);
        let behind = whole.log.last_moment().count - part.log.last_moment().count;
        for (index, event) in part.log.events().map(Result::unwrap).enumerate().skip(1) {
            let number = exits.number_of(index);
            let same = whole.log.event(number).unwrap().unwrap();
            assert_eq!(exits.index_of(number), Some(index));
            assert_eq!(event.at.count + behind, same.at.count, "event {number}");
            assert_eq!((event.at.time_ns, event.rip), (same.at.time_ns, same.rip), "event {number}");
            assert_eq!((event.cpu_hash, &event.event), (same.cpu_hash, &same.event), "event {number}");
        }
        let (end, end_of_whole) = (part.log.end.as_ref().unwrap(), whole.log.end.as_ref().unwrap());
        assert_eq!((end.hashes, &end.outcome), (end_of_whole.hashes, &end_of_whole.outcome));
        let verified = verify(&part, None, |_, _| {}).unwrap();
        assert!(verified.equal() && verified.complete, "{:?}", verified.checkpoint_difference);

        let mut timeline = Timeline::open_with(&part, 2).unwrap();
        let cpu = timeline.machine().cpu();
        assert_eq!((cpu.steps(), cpu.branches(), cpu.system_calls()), (0, 0, 0));
        let end = timeline.end();
        let end = end.number();
        for at in [end, end / 3, end / 2, 1, end / 2 + 1].map(Instructions) {
            assert_eq!(timeline.seek(at, &mut || false).unwrap(), TravelStop::Reached);
            of_whole.seek(at + behind, &mut || false).unwrap();
            assert_eq!(timeline.machine_mut().hashes(), of_whole.machine_mut().hashes(), "at {at}");
            let time = |timeline: &Timeline| timeline.machine().moment().time_ns;
            assert_eq!(time(&timeline), time(&of_whole), "at {at}");
        }
        assert_eq!(timeline.step_backward(&mut || false).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), Instructions(end / 2));
        assert_eq!(timeline.run_backward(&mut || false).unwrap(), TravelStop::Start);
        assert_eq!(timeline.position(), Instructions(0));
        assert_eq!(timeline.step_backward(&mut || false).unwrap(), TravelStop::Start);
    }
}

#[test]
fn positions_in_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 10);
    let end = recording.log.last_moment();
    let head = &heads(&recording)[2];
    let last_ns = end.time_ns - head.at.time_ns;
    assert_eq!(start_of_last(&recording, last_ns).unwrap(), Some(head.at.count));
    let earlier = heads(&recording)[1].at.count;
    assert_eq!(start_of_last(&recording, last_ns + 1).unwrap(), Some(earlier));
    assert_eq!(start_of_last(&recording, end.time_ns).unwrap(), None);
    assert_eq!(start_of_last(&recording, 0).unwrap(), starts(&recording).last().copied());

    let part = from_exit(opened(&recording), head.at.count, |_| {}).unwrap();
    let before = head.cursor.events() as u64;
    let mut timeline = Timeline::open_with(&part, 1).unwrap();
    let mut resolve = |text: &str| timeline.resolve(text.parse().unwrap(), &mut || false);
    assert_eq!(resolve("start").unwrap(), Instructions(0));
    assert_eq!(resolve(&format!("event:{before}")).unwrap(), part.log.event(1).unwrap().unwrap().at.count);
    let all = recording.log.event_count();
    let last = part.log.events().last().unwrap().unwrap().at.count;
    assert_eq!(resolve(&format!("event:{}", all - 1)).unwrap(), last);
    for number in [0, 1, before - 1] {
        let refused = resolve(&format!("event:{number}")).unwrap_err().to_string();
        assert!(refused.contains("is before the part that is open"), "{refused}");
        assert!(refused.contains(&format!("begins at {:.6} s", head.at.time_ns as f64 / 1e9)), "{refused}");
    }
    let refused = resolve(&format!("event:{all}")).unwrap_err().to_string();
    assert!(refused.contains(&format!("it has {all}")), "{refused}");
    let seconds = |ns: u64| format!("{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000);
    let refused = resolve(&seconds(head.at.time_ns - 100)).unwrap_err();
    assert!(matches!(&refused, Error::Position(why) if why.contains("is before")), "{refused}");
    let middle = resolve(&seconds(head.at.time_ns / 2 + end.time_ns / 2)).unwrap();
    assert!(middle > Instructions(0) && middle < resolve("end").unwrap());
    assert_eq!(resolve("branch:0").unwrap(), Instructions(0));
    assert!(resolve("branch:10").unwrap() < Instructions(1000));
    assert!(timeline.resolve(PositionSpec::SystemCall(1), &mut || false).is_err());
}

/// All files in a folder and its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let listed: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (folders, mut files): (Vec<_>, Vec<_>) = listed.into_iter().partition(|path| path.is_dir());
    files.retain(|path| !path.ends_with("lock"));
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files.sort();
    files
}

fn told(error: &Error, what: &str) {
    let code = error.exit_code();
    assert!(
        [exit_code::UNREADABLE_RECORDING, exit_code::DIVERGED].contains(&code),
        "{what}: {code}: {error}"
    );
}

#[test]
fn damaged_checkpoints_lead_to_no_other_state() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 11);
    let from = starts(&recording)[1];
    let recounted = from_exit(opened(&recording), from, |_| {}).unwrap();
    let files = files(&recording.path.join(CHECKPOINTS));
    let (mut numbers, mut refused) = (Numbers(1), 0);
    for round in 0..60 {
        let file = &files[numbers.below(files.len() as u64) as usize];
        let bytes = std::fs::read(file).unwrap();
        std::fs::write(file, change(&bytes, &mut numbers)).unwrap();
        std::fs::remove_dir_all(recording.path.join(INSTRUCTIONS)).unwrap();
        let what = format!("round {round}, {}", file.display());
        match from_exit(opened(&recording), from, |_| {}) {
            Ok(again) => assert_eq!(again.log, recounted.log, "{what}"),
            Err(error) => {
                told(&error, &what);
                refused += 1;
            }
        }
        std::fs::write(file, &bytes).unwrap();
        from_exit(opened(&recording), from, |_| {}).unwrap();
    }
    // The replay ignores damaged checkpoints after the position, so some rounds do not fail.
    assert!((4..40).contains(&refused), "{refused} refused");
}

#[test]
fn damaged_recounted_logs_are_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 12);
    let mut numbers = Numbers(2);
    for from in [Exits(0), starts(&recording)[1]] {
        let recounted = from_exit(opened(&recording), from, |_| {}).unwrap();
        let mut whole = Timeline::open_with(&recounted, 1).unwrap();
        let middle = Instructions(whole.end().number() / 2);
        whole.seek(middle, &mut || false).unwrap();
        let (hashes, folder) = (whole.machine_mut().hashes(), folder(&recording.path, from));
        drop(whole);
        let mut travelled = 0;
        for round in 0..40 {
            let files = files(&folder);
            let file = &files[numbers.below(files.len() as u64) as usize];
            let what = format!("round {round}, {}", file.display());
            let changed = change(&std::fs::read(file).unwrap(), &mut numbers);
            std::fs::write(file, changed).unwrap();
            let again = from_exit(opened(&recording), from, |_| {}).unwrap();
            assert_eq!(again.log, recounted.log, "{what}");
            let arrived = Timeline::open_with(&again, 1).and_then(|mut timeline| {
                timeline.seek(middle, &mut || false)?;
                Ok(timeline.machine_mut().hashes())
            });
            match arrived {
                Ok(arrived) => {
                    assert_eq!(arrived, hashes, "{what}");
                    travelled += 1;
                }
                // The change may damage a page. The replay notices the damage when it needs the page.
                Err(error) => {
                    told(&error, &what);
                    std::fs::remove_dir_all(&folder).unwrap();
                    from_exit(opened(&recording), from, |_| {}).unwrap();
                }
            }
        }
        assert!(travelled > 20, "{travelled}");
    }
    // ttvm ignores a log with instruction counts that was made from another recording.
    std::fs::remove_dir_all(folder(&recording.path, Exits(0))).unwrap();
    let (other, _) = record_with_checkpoints(directory.path(), 13);
    in_instructions(opened(&other), |_| {}).unwrap();
    std::fs::rename(folder(&other.path, Exits(0)), folder(&recording.path, Exits(0))).unwrap();
    let again = in_instructions(opened(&recording), |_| {}).unwrap();
    assert_eq!(again.log.event_count(), recording.log.event_count());
}

#[test]
fn two_sessions_recount_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 14);
    let from = starts(&recording)[1];
    let logs: Vec<_> = std::thread::scope(|scope| {
        let session = || scope.spawn(|| from_exit(opened(&recording), from, |_| {}).unwrap().log);
        let sessions: Vec<_> = (0..4).map(|_| session()).collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    assert!(logs.iter().all(|log| *log == logs[0]));
    let left = std::fs::read_dir(recording.path.join(INSTRUCTIONS)).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "lock").collect();
    assert_eq!(left, [from.to_string().as_str()]);
}

#[test]
fn a_packed_recording_takes_its_checkpoints_along() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 15);
    in_instructions(opened(&recording), |_| {}).unwrap();
    let (packed, unpacked) = (directory.path().join("packed"), directory.path().join("u.ttvm"));
    pack(&recording, &packed, true).unwrap();
    unpack(&packed, &unpacked, DEFAULT_MAX_BYTES).unwrap();
    assert!(!unpacked.join(INSTRUCTIONS).exists());
    let again = open(&unpacked);
    assert_eq!(heads(&again), heads(&recording));
    assert!(verify(&again, None, |_, _| {}).unwrap().equal());
    let from = starts(&again)[0];
    assert_eq!(from_exit(again, from, |_| {}).unwrap().recounted.unwrap().from, from);
}

#[test]
fn a_recorder_that_was_killed_leaves_its_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 16);
    let log = recording.path.join(recording::EVENTS);
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let cut = opened(&recording);
    assert!(cut.log.end.is_none());
    let found = verify(&cut, None, |_, _| {}).unwrap();
    assert!(found.equal() && found.checkpoints > 1 && found.checkpoints < heads(&recording).len());
    let from = start_of_last(&cut, 0).unwrap().unwrap();
    let part = from_exit(cut, from, |_| {}).unwrap();
    let mut timeline = Timeline::open_with(&part, 1).unwrap();
    let end = timeline.end();
    assert!(end > Instructions(0));
    timeline.seek(end, &mut || false).unwrap();
    assert_eq!(timeline.step_backward(&mut || false).unwrap(), TravelStop::Reached);
}

#[test]
fn the_verbs_speak_of_exits_and_open_parts() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 17);
    let name = recording.path.file_name().unwrap().to_str().unwrap();
    let run = |arguments: &[&str]| {
        let (code, out, err) = ttvm(directory.path(), arguments);
        assert_eq!(code, exit_code::DONE, "{arguments:?}\n{out}\n{err}");
        (out, err)
    };
    let count = heads(&recording).len();
    let (listed, _) = run(&["checkpoints", name, "list"]);
    assert!(listed.contains(" exit ") && listed.contains(&format!("{count} checkpoints")), "{listed}");
    let (listed, _) = run(&["checkpoints", name, "list", "--json"]);
    assert!(listed.contains("\"exit\": ") && !listed.contains("instruction"), "{listed}");
    let (info, _) = run(&["info", name]);
    assert!(info.contains(&format!("checkpoints   {count}, ")), "{info}");
    assert!(info.contains(" exits, ") && !info.contains("instructions"), "{info}");
    let (verified, _) = run(&["verify", name]);
    assert!(verified.contains(&format!("{count} compared, all equal")), "{verified}");

    let (state, told) = run(&["state", name, "--last", "100ms", "--at", "start"]);
    assert!(state.contains("instruction 0, branch 0, system call 0"), "{state}");
    assert!(told.contains("opened from exit "), "{told}");
    let (_, told) = run(&["state", name, "--last", "1h"]);
    assert!(told.contains("no checkpoint is 3600 s or more before the end"), "{told}");
    std::fs::remove_dir_all(recording.path.join(INSTRUCTIONS)).unwrap();
    let (_, told) = run(&["state", name]);
    assert!(told.contains("--last 2s opens the end only"), "{told}");
    let (_, told) = run(&["state", name]);
    assert!(!told.contains("--last"), "{told}");
    let (_, told) =
        run(&["search", name, "--last", "100ms", "--all", "write:0x200000+0x1000", "--limit", "2"]);
    assert!(told.contains("opened from exit "), "{told}");
    let first = starts(&recording)[0].to_string();
    let (_, told) = run(&["checkpoints", name, "remove", &first]);
    assert!(told.contains(&format!("removed the checkpoint at exit {first}")), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["checkpoints", name, "remove", "end"]);
    assert!(code == exit_code::USAGE && told.contains("lie at exits"), "{told}");
    assert!(verify(&opened(&recording), None, |_, _| {}).unwrap().equal());
    let event =
        recording.log.events().position(|e| matches!(e.unwrap().event, Event::ConsoleInput(_))).unwrap();
    let at = format!("event:{event}");
    let (code, _, told) = ttvm(directory.path(), &["state", name, "--last", "100ms", "--at", &at]);
    assert!(code == exit_code::USAGE && told.contains("is before the part"), "{told}");
}
