//! Tests notations of positions. Each result is compared with a replay of the whole run step by step.

use std::path::Path;

use history::recount::{from_exit, in_instructions, start_of_last};
use history::timeline::{Timeline, TravelStop};
use machine::error::Error;
use machine::inputs::Event;
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use recording::Recording;
use tiny_guest::{record, record_asleep, record_calls, record_with_checkpoints, stopped, typed};

const CALLS: u32 = 40;

fn resolve(timeline: &mut Timeline, spec: PositionSpec) -> Result<u64, String> {
    timeline.resolve(spec, &mut || false).map(Count::number).map_err(|error| error.to_string())
}

/// Branches, system calls and nanoseconds at each place of a run.
fn measures(timeline: &mut Timeline) -> Vec<[u64; 3]> {
    let mut measures = Vec::new();
    timeline.seek(Instructions(0), &mut || false).unwrap();
    loop {
        let machine = timeline.machine();
        let cpu = machine.cpu();
        measures.push([cpu.branches(), cpu.system_calls(), machine.moment().time_ns]);
        if timeline.step_forward().unwrap() == TravelStop::End {
            return measures;
        }
    }
}

/// Looks for counts of branches, counts of system calls, and times. The run reaches some of these numbers, and skips or
/// does not reach others.
fn must_find_all(recording: &Recording<Instructions>) {
    let mut timeline = Timeline::open_with(recording, 1).unwrap();
    let measures = measures(&mut timeline);
    let here = Instructions(measures.len() as u64 / 3);
    timeline.seek(here, &mut || false).unwrap();
    let hashes = timeline.machine_mut().hashes();
    let notations = [PositionSpec::Branch, PositionSpec::SystemCall, PositionSpec::Nanoseconds];
    for (which, notation) in notations.into_iter().enumerate() {
        let most = measures[measures.len() - 1][which];
        let all: Vec<u64> = (0..=most).collect();
        let some = all.iter().step_by(all.len() / 40 + 1).chain(&all[all.len() - 1..]);
        for &wanted in some {
            let first = measures.iter().position(|measure| measure[which] >= wanted).unwrap() as u64;
            assert_eq!(resolve(&mut timeline, notation(wanted)), Ok(first), "{:?}", notation(wanted));
            assert_eq!(timeline.position(), here, "the timeline stays where it is");
        }
        let refused = resolve(&mut timeline, notation(most + 1)).unwrap_err();
        assert!(refused.contains("the recording ends before"), "{refused}");
    }
    assert_eq!(timeline.machine_mut().hashes(), hashes);
}

#[test]
fn branches_system_calls_and_times_are_found_where_they_are_first_reached() {
    let directory = tempfile::tempdir().unwrap();
    must_find_all(&record_calls(directory.path(), "calls.ttvm", CALLS, None).0);
}

#[test]
fn so_they_are_between_checkpoints_and_exactly_at_them() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record_calls(directory.path(), "calls.ttvm", CALLS, None);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let call = resolve(&mut timeline, PositionSpec::SystemCall(10)).unwrap();
    let branch = resolve(&mut timeline, PositionSpec::Branch(200)).unwrap();
    for place in [call, call + 1, branch - 1, branch, end.at.count.number() - 1] {
        timeline.seek(Instructions(place), &mut || false).unwrap();
        timeline.add_checkpoint().unwrap();
    }
    let recording = tiny_guest::open(&recording.path);
    assert_eq!(Timeline::open_with(&recording, 1).unwrap().checkpoints().unwrap().heads().len(), 5);
    must_find_all(&recording);
}

#[test]
fn only_the_stretch_behind_the_last_checkpoint_before_a_branch_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let places = [60_000, 120_000, 180_000];
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", 20_000, Vec::new(), &places);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let branches = timeline.checkpoints().unwrap().heads()[&Instructions(180_000)].branches;
    timeline.seek(timeline.end(), &mut || false).unwrap();
    let before = timeline.replayed_steps();
    assert!(resolve(&mut timeline, PositionSpec::Branch(branches + 1)).unwrap() > 180_000);
    let replayed = timeline.replayed_steps() - before;
    // The stretch is replayed a few times in finer slices, and never from the run's beginning.
    assert!((1..180_000).contains(&replayed), "{replayed} steps");
}

#[test]
fn a_time_that_passes_idle_is_at_the_place_where_the_guest_idles() {
    let directory = tempfile::tempdir().unwrap();
    let script = vec![(2_000_000, Event::PowerButton), (9_000_000, Event::Limit)];
    let (recording, _) = record_asleep(directory.path(), "r.ttvm", script);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    assert_eq!(timeline.time_at(PositionSpec::Event(1)).unwrap(), Some(2_000_000));
    assert_eq!(timeline.time_at(PositionSpec::End).unwrap(), Some(9_000_000));
    assert_eq!(timeline.time_at(PositionSpec::Instruction(1)).unwrap(), None);
    assert_eq!(resolve(&mut timeline, PositionSpec::Event(1)), Ok(end.number()));
    // The guest reaches the event's count, and then idles until the event comes in. So all these times are at this
    // count.
    for ns in [1_000_000, 2_500_000, 9_000_000] {
        assert_eq!(resolve(&mut timeline, PositionSpec::Nanoseconds(ns)), Ok(end.number()), "{ns} ns");
    }
    let refused = resolve(&mut timeline, PositionSpec::Nanoseconds(9_000_001)).unwrap_err();
    assert!(refused.contains("the recording ends before 0.009000001 s: it ends at 0.009 s"), "{refused}");
    let before = timeline.resolve_outside("-4ms".parse().unwrap(), &mut || false).unwrap();
    assert_eq!(before, end, "the guest idles there");
}

#[test]
fn instructions_and_percents_are_found_without_going_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", 100, Vec::new());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = end.at.count.number();
    let mut resolve = |text: &str| resolve(&mut timeline, text.parse().unwrap());
    assert_eq!(resolve("start"), Ok(0));
    assert_eq!(resolve("end"), Ok(end));
    assert_eq!(resolve("insn:7"), Ok(7));
    assert_eq!(resolve(&format!("insn:{end}")), Ok(end));
    let beyond = resolve(&format!("insn:{}", end + 1)).unwrap_err();
    assert_eq!(beyond, format!("the recording ends before instruction {}: it has {end}", end + 1));
    for (percent, place) in [("0%", 0), ("25%", end / 4), ("50%", end / 2), ("100%", end)] {
        assert_eq!(resolve(percent), Ok(place), "{percent}");
    }
    assert_eq!(timeline.replayed_steps(), 0);
}

#[test]
fn a_panic_is_found_where_there_was_one() {
    let directory = tempfile::tempdir().unwrap();
    let (panicked, end) = record_calls(directory.path(), "panic.ttvm", 3, None);
    let mut timeline = Timeline::open_with(&panicked, 1).unwrap();
    assert_eq!(resolve(&mut timeline, PositionSpec::Panic), Ok(end.at.count.number()));
    let (calm, _) = record(directory.path(), "calm.ttvm", 3, Vec::new());
    let mut timeline = Timeline::open_with(&calm, 1).unwrap();
    let refused = resolve(&mut timeline, PositionSpec::Panic).unwrap_err();
    assert!(refused.contains("did not panic"), "{refused}");
}

#[test]
fn events_are_found_by_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(3_000, "a"), (5_000, "b")]);
    let (recording, _) = record(directory.path(), "r.ttvm", 1000, keys);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    for (number, place) in [(0, 0), (1, 3_000), (2, 5_000)] {
        assert_eq!(resolve(&mut timeline, PositionSpec::Event(number)), Ok(place));
    }
    for number in [3, u64::MAX] {
        let refused = resolve(&mut timeline, PositionSpec::Event(number)).unwrap_err();
        assert_eq!(refused, format!("the recording ends before event {number}: it has 3"));
    }
}

/// Two recounted recordings of a run that was recorded by exits: its end, and the whole run.
fn part_and_whole(directory: &Path) -> [Recording<Instructions>; 2] {
    let (recording, _) = stopped::record_with_checkpoints(directory, 31);
    let from = start_of_last(&recording, 60_000_000).unwrap().expect("a checkpoint to begin at");
    [from_exit(recording.clone(), from, |_| {}).unwrap(), in_instructions(recording, |_| {}).unwrap()]
}

#[test]
fn in_the_end_of_a_run_events_and_times_are_those_of_the_whole_run() {
    let directory = tempfile::tempdir().unwrap();
    let [part, whole] = part_and_whole(directory.path());
    let (mut of_part, mut of_whole) =
        (Timeline::open_with(&part, 1).unwrap(), Timeline::open_with(&whole, 1).unwrap());
    let (events, length) = (whole.log.event_count() as u64, of_whole.end() - Instructions(0));
    let missing = length - of_part.end().number();
    let skipped = events - part.log.event_count() as u64;
    assert!(skipped > 3 && missing > 1000, "{skipped} events, {missing} instructions");
    for number in [skipped + 1, skipped + 2, (skipped + events) / 2, events - 1] {
        let in_whole = resolve(&mut of_whole, PositionSpec::Event(number)).unwrap();
        assert_eq!(resolve(&mut of_part, PositionSpec::Event(number)), Ok(in_whole - missing));
    }
    let beyond = resolve(&mut of_part, PositionSpec::Event(events)).unwrap_err();
    assert_eq!(beyond, format!("the recording ends before event {events}: it has {events}"));
    let begins_ns = of_part.machine().moment().time_ns;
    let begins = format!("which begins at {:.6} s", begins_ns as f64 / 1e9);
    for before in
        [PositionSpec::Event(0), PositionSpec::Event(skipped), PositionSpec::Nanoseconds(begins_ns - 1)]
    {
        let refused = resolve(&mut of_part, before).unwrap_err();
        assert!(refused.contains("is before the part") && refused.contains(&begins), "{refused}");
    }
    assert_eq!(resolve(&mut of_part, PositionSpec::Nanoseconds(begins_ns)), Ok(0));
    let ends_ns = whole.log.last_moment().time_ns;
    for ns in [begins_ns + 1, begins_ns / 2 + ends_ns / 2, begins_ns / 4 + ends_ns / 4 * 3] {
        let in_whole = resolve(&mut of_whole, PositionSpec::Nanoseconds(ns)).unwrap();
        assert_eq!(resolve(&mut of_part, PositionSpec::Nanoseconds(ns)), Ok(in_whole - missing), "{ns}");
        // The position is the first place whose time is not earlier than `ns`.
        of_whole.seek(Instructions(in_whole), &mut || false).unwrap();
        assert!(of_whole.machine().moment().time_ns >= ns);
        of_whole.seek(Instructions(in_whole - 1), &mut || false).unwrap();
        assert!(of_whole.machine().moment().time_ns < ns);
    }
}

#[test]
fn who_asks_to_stop_stands_where_they_stood() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 1000, Vec::new());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let here = Instructions(1234);
    timeline.seek(here, &mut || false).unwrap();
    let error = timeline.resolve(PositionSpec::Branch(900), &mut || true).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(timeline.position(), here);
}

#[test]
fn distances_count_from_where_one_is_or_from_an_end_for_who_is_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_calls(directory.path(), "calls.ttvm", CALLS, None).0;
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end().number();
    let outside = |timeline: &mut Timeline, text: &str| {
        let found = timeline.resolve_outside(text.parse().unwrap(), &mut || false);
        found.map(Count::number).map_err(|error| error.to_string())
    };
    let here = |timeline: &mut Timeline, text: &str| resolve(timeline, text.parse().unwrap());
    timeline.seek(Instructions(100), &mut || false).unwrap();
    assert_eq!(here(&mut timeline, "+20"), Ok(120));
    assert_eq!(here(&mut timeline, "-100"), Ok(0));
    assert_eq!(outside(&mut timeline, "+20"), Ok(20));
    assert_eq!(outside(&mut timeline, "-20"), Ok(end - 20));
    let now_ns = timeline.machine().moment().time_ns;
    assert_eq!(here(&mut timeline, "+7ns"), here(&mut timeline, &format!("{}ns", now_ns + 7)));
    assert_eq!(here(&mut timeline, "-7ns"), here(&mut timeline, &format!("{}ns", now_ns - 7)));
    assert_eq!(timeline.position(), Instructions(100), "the timeline stays where it is");
    let last_ns = recording.log.last_moment().time_ns;
    let found = outside(&mut timeline, "-7ns");
    assert_eq!(found, Ok(timeline.position().number()), "who is nowhere goes there anyway");
    assert_eq!(found, here(&mut timeline, &format!("{}ns", last_ns - 7)));
    timeline.seek(Instructions(100), &mut || false).unwrap();
    let last_call = here(&mut timeline, &format!("syscall:{CALLS}"));
    assert!(last_call.is_ok());
    assert_eq!(here(&mut timeline, "last-syscall"), last_call);
    assert!(here(&mut timeline, &format!("syscall:{}", CALLS + 1)).is_err());
    for (text, sentence) in
        [("-101", "begins less than 101 instructions before"), ("+1e9", "the recording ends before")]
    {
        let refused = here(&mut timeline, text).unwrap_err();
        assert!(refused.contains(sentence), "{refused}");
    }
    assert_eq!(timeline.position(), Instructions(100), "the timeline stays where it is");
}
