//! Tests with runs so long that a timeline takes snapshots, polls, and searches on several cores.

use std::thread::sleep;
use std::time::Duration;

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::timeline::{Breakpoint, Cause, Filter, Hit, Hits, Stops, Timeline, TravelStop, Watch};
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use recording::Recording;
use tiny_guest::{
    LONG_ROUND_STEPS, STIRRED, add_checkpoints, open, record_calls, record_long, record_with_checkpoints,
};

/// The longest run between two polls, and between two snapshots of a walk.
const POLL_STEPS: u64 = 4_000_000;
const SPACING: u64 = 8_000_000;

fn recording(rounds: u32, checkpoints: &[u64]) -> (tempfile::TempDir, Recording<Instructions>) {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_long(directory.path(), "r.ttvm", rounds);
    add_checkpoints(&recording, checkpoints);
    let recording = open(&recording.path);
    (directory, recording)
}

fn never() -> bool {
    false
}

/// A poll function that returns true from call number `polls` on.
fn after(polls: u32) -> impl FnMut() -> bool {
    let mut left = polls;
    move || {
        left = left.saturating_sub(1);
        left == 0
    }
}

/// A stop at the guest's write, which happens once in each round.
fn write() -> Stops {
    let point =
        Watchpoint { space: AddressKind::Linear, address: STIRRED, length: 1, kind: WatchKind::Write };
    Stops { watches: vec![Watch::from(point)], ..Stops::default() }
}

/// A stop at the guest's write, with a filter that is true only before a place.
fn write_before(place: Instructions) -> Stops {
    let early = Filter::new(move |machine| machine.moment().count < place);
    Stops { watch_filters: [(STIRRED, early)].into(), ..write() }
}

fn nowhere() -> Stops {
    Stops { breakpoints: vec![Breakpoint::at(1)], ..Stops::default() }
}

/// The result of a movement, and the steps that it replays.
fn steps_of<T>(timeline: &mut Timeline, movement: impl FnOnce(&mut Timeline) -> T) -> (T, u64) {
    let before = timeline.replayed_steps();
    let moved = movement(timeline);
    (moved, timeline.replayed_steps() - before)
}

fn seek(timeline: &mut Timeline, place: u64) -> u64 {
    let (stop, steps) =
        steps_of(timeline, |timeline| timeline.seek(Instructions(place), &mut never).unwrap());
    assert_eq!((stop, timeline.position()), (TravelStop::Reached, Instructions(place)));
    steps
}

/// Searches for times, branches and system calls use the session's snapshots too, not only the last checkpoint.
#[test]
fn a_measured_place_is_near_where_a_walk_has_left_snapshots() {
    let (_directory, recording) = recording(30, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut timeline, 29_000_000);
    let machine = timeline.machine();
    let specs = [
        PositionSpec::Nanoseconds(machine.moment().time_ns - 1_000),
        PositionSpec::Branch(machine.cpu().branches() - 10),
    ];
    let resolve = |timeline: &mut Timeline, spec| {
        steps_of(timeline, |timeline| timeline.resolve(spec, &mut never).unwrap())
    };
    for spec in specs {
        let (place, near) = resolve(&mut timeline, spec);
        assert!(near < 2 * SPACING, "{spec:?}: {near} steps");
        let (from_the_start, far) = resolve(&mut Timeline::open_with(&recording, 1).unwrap(), spec);
        assert_eq!(place, from_the_start, "{spec:?}");
        assert!(far > 28_000_000, "{spec:?}: {far} steps");
    }
}

#[test]
fn a_walk_leaves_snapshots_that_make_every_place_on_it_near() {
    let (_directory, recording) = recording(30, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    assert_eq!(seek(&mut timeline, 30_000_000), 30_000_000);
    for place in [29_999_999, 23_000_000, 8_000_001, 12_345_678, 5, 30_000_000] {
        let steps = seek(&mut timeline, place);
        assert!(steps <= SPACING, "{steps} steps to {place}");
    }
    // The walk continues from its present place, not from a snapshot before it.
    seek(&mut timeline, 20_000_000);
    assert_eq!(seek(&mut timeline, 20_500_000), 500_000);
    assert_eq!(seek(&mut timeline, 20_500_000), 0);
}

#[test]
fn steps_back_from_where_a_person_looks_are_cheap() {
    let (_directory, recording) = recording(20, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut timeline, 20_000_000);
    for most in [128, 1024, 8192, 65536] {
        let (_, steps) = steps_of(&mut timeline, |timeline| timeline.step_backward(&mut never).unwrap());
        // A step back replays at most this number of steps from a snapshot.
        assert!(steps <= most, "{steps} > {most}");
        let here = timeline.position();
        seek(&mut timeline, here.number() - most * 7);
    }
    // A series of steps back replays only a few more steps than the distance that it goes back.
    seek(&mut timeline, 20_000_000);
    let (_, steps) = steps_of(&mut timeline, |timeline| {
        for _ in 0..100 {
            timeline.step_backward(&mut never).unwrap();
        }
    });
    assert_eq!(timeline.position(), Instructions(20_000_000 - 100));
    assert!(steps <= 100 * 128, "{steps}");
}

#[test]
fn a_checkpoint_on_the_way_is_where_a_long_way_begins_and_a_short_one_does_not() {
    let (_directory, recording) = recording(30, &[2_000_000, 20_000_000]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    // The timeline has few snapshots before the first place. The seek to this place takes more snapshots.
    assert_eq!(seek(&mut timeline, 3_000_000), 3_000_000);
    assert_eq!(seek(&mut timeline, 20_000_100), 100);
    assert_eq!(seek(&mut timeline, 20_000_000), 0);
    assert_eq!(seek(&mut timeline, 1_000_000), 1_000_000);
    assert!(seek(&mut timeline, 2_500_000) <= 1_500_000);
}

#[test]
fn behind_a_checkpoint_settling_makes_steps_back_near() {
    let (_directory, recording) = recording(30, &[30_000_000]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    assert_eq!(seek(&mut timeline, 30_000_000), 0);
    let hashes = timeline.machine_mut().hashes();
    let (stop, steps) = steps_of(&mut timeline, |timeline| timeline.settle(&mut never).unwrap());
    assert_eq!((stop, steps), (TravelStop::Reached, 30_000_000));
    assert_eq!((timeline.position(), timeline.machine_mut().hashes()), (Instructions(30_000_000), hashes));
    let (stop, steps) = steps_of(&mut timeline, |timeline| timeline.step_backward(&mut never).unwrap());
    assert!(stop == TravelStop::Reached && steps <= 128, "{stop:?}, {steps} steps");
    // A second call of `settle` replays nothing, because the snapshots exist.
    let (stop, steps) = steps_of(&mut timeline, |timeline| timeline.settle(&mut never).unwrap());
    assert_eq!((stop, steps), (TravelStop::Reached, 0));
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut timeline, 30_000_000);
    assert_eq!(timeline.settle(&mut || true).unwrap(), TravelStop::Interrupted);
}

/// Waits until a count of a timeline's settler reaches `least`.
fn wait_for(name: &str, count: impl Fn() -> u64, least: u64) {
    for _ in 0..12_000 {
        if count() >= least {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{name}: {} of {least}", count());
}

#[test]
fn while_nothing_moves_what_lies_before_is_made_near() {
    let end = 300_000_000;
    let (_directory, recording) = recording(300, &[end]);
    let far = [299_000_000, 100_000_000, 290_000_000];
    for place in far {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        assert_eq!((seek(&mut timeline, end), timeline.meter().settled()), (0, 0));
        assert_eq!(seek(&mut timeline, place), place, "from the beginning, without settling");
    }
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut timeline, end);
    let (_, steps) = steps_of(&mut timeline, Timeline::settle_meanwhile);
    let meter = timeline.meter();
    wait_for("places", || meter.settlings(), 1);
    assert_eq!(meter.settled(), end);
    assert_eq!((steps, timeline.position()), (0, Instructions(end)));
    for place in far {
        let steps = seek(&mut timeline, place);
        assert!(steps <= 3 * SPACING, "{place}: {steps} steps");
    }
    // The settler has already replayed the stretch, and a gap of a hundred million steps is too short for it.
    seek(&mut timeline, end);
    timeline.settle_meanwhile();
    wait_for("places", || meter.settlings(), 2);
    assert_eq!(meter.settled(), end);
}

/// When a movement begins, the settler soon stops its work. The settler does not begin again before the
/// movement is over.
#[test]
fn nothing_is_settled_while_the_timeline_moves() {
    let end = 300_000_000;
    let (_directory, recording) = recording(300, &[end]);
    // When the movement begins, the settler waits for quiet, or replays.
    for steps_before in [0, 1] {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        seek(&mut timeline, end);
        timeline.settle_meanwhile();
        let meter = timeline.meter();
        wait_for("steps", || meter.settled(), steps_before);
        let (mut polls, mut settled) = (0, 0);
        let mut poll = || {
            polls += 1;
            if polls == 1 {
                let before = meter.settled();
                wait_for("places", || meter.settlings(), 1);
                settled = meter.settled();
                assert!(settled <= before + POLL_STEPS);
            }
            assert_eq!((meter.settled(), meter.settlings()), (settled, 1));
            polls == 3
        };
        let stop = timeline.seek(Instructions(200_000_000), &mut poll).unwrap();
        // On a slow host, the settler may replay the whole recording before the seek begins. The seek then needs fewer
        // than three polls.
        assert!(stop == TravelStop::Interrupted || meter.settled() == end, "{stop:?}");
    }
}

/// A movement of the timeline ends the settler's replay early. The settler replays the remainder when the movement is
/// over.
#[test]
fn what_a_movement_interrupts_is_settled_later() {
    let end = 300_000_000;
    let (_directory, recording) = recording(300, &[end]);
    // On a busy host, this test may notice the settler's replay too late. The rest of the run is then too short, so the
    // test tries several times.
    for _ in 0..20 {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        seek(&mut timeline, end);
        timeline.settle_meanwhile();
        let meter = timeline.meter();
        wait_for("steps", || meter.settled(), 1);
        assert_eq!(seek(&mut timeline, end), 0);
        wait_for("places", || meter.settlings(), 1);
        if meter.settled() > 70_000_000 {
            continue;
        }
        timeline.settle_meanwhile();
        wait_for("places", || meter.settlings(), 2);
        for place in [299_000_000, 210_000_000] {
            let steps = seek(&mut timeline, place);
            assert!(steps <= 3 * SPACING, "{place}: {steps} steps");
        }
        return;
    }
    panic!("the settler was never interrupted early");
}

/// Movements give the same results whether the settler replays, waits or starts at that moment.
#[test]
fn what_is_settled_meanwhile_changes_nothing_that_is_found() {
    let end = 300_000_000;
    let (_directory, recording) = recording(300, &[end]);
    let mut plain = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut plain, end);
    plain.set_stops(write());
    for pause_ms in [0, 520, 570] {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        seek(&mut timeline, end);
        timeline.set_stops(write());
        for place in [end, 123_456_789, 250_000_000] {
            timeline.settle_meanwhile();
            sleep(Duration::from_millis(pause_ms));
            for timeline in [&mut timeline, &mut plain] {
                seek(timeline, place);
                for _ in 0..3 {
                    assert!(matches!(timeline.run_backward(&mut never), Ok(TravelStop::Hit(_))));
                }
            }
            assert_eq!(timeline.position(), plain.position());
            assert_eq!(timeline.machine_mut().hashes(), plain.machine_mut().hashes());
        }
    }
}

#[test]
fn settling_ends_where_it_began_when_there_is_something_to_do() {
    let (_directory, recording) = recording(20, &[20_000_000]);
    for (polls, least, most) in
        [(1, 0, POLL_STEPS), (3, POLL_STEPS, 3 * POLL_STEPS), (100, 19_999_999, 20_000_000)]
    {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        let place = seek(&mut timeline, 20_000_000);
        assert_eq!(place, 0, "there is a checkpoint");
        let (_, steps) =
            steps_of(&mut timeline, |timeline| timeline.settle_until(&mut after(polls)).unwrap());
        assert!((least..=most).contains(&steps), "{polls} polls: {steps} steps");
        assert_eq!(timeline.position(), Instructions(20_000_000));
        assert_eq!(timeline.step_backward(&mut never).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), Instructions(19_999_999));
    }
}

#[test]
fn a_step_back_that_is_long_can_be_interrupted_and_a_short_one_is_made() {
    let (_directory, recording) = recording(30, &[30_000_000]);
    for stops in [Stops::default(), write()] {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        seek(&mut timeline, 30_000_000);
        timeline.set_stops(stops);
        assert_eq!(timeline.step_backward(&mut || true).unwrap(), TravelStop::Interrupted);
        assert_eq!(timeline.position(), Instructions(30_000_000));
        assert_eq!(timeline.step_backward(&mut never).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.step_backward(&mut || true).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), Instructions(29_999_998));
    }
}

#[test]
fn movements_ask_whether_to_stop_and_stand_somewhere_on_their_way() {
    let (_directory, recording) = recording(30, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let target = Instructions(30_000_000);
    let mut asked = 0;
    let stop = timeline.seek(target, &mut || {
        asked += 1;
        false
    });
    assert_eq!(stop.unwrap(), TravelStop::Reached);
    assert!(asked >= target.number() / POLL_STEPS / 2, "asked {asked} times");
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    assert_eq!(timeline.seek(target, &mut after(2)).unwrap(), TravelStop::Interrupted);
    let stood = timeline.position();
    assert!(Instructions(0) < stood && stood <= Instructions(2 * POLL_STEPS), "{stood}");
    assert_eq!(timeline.seek(target, &mut never).unwrap(), TravelStop::Reached);
    // A search forward also polls, and stops on its way if it is interrupted.
    timeline.seek(stood, &mut never).unwrap();
    timeline.set_stops(nowhere());
    assert_eq!(timeline.run_forward(&mut || true).unwrap(), TravelStop::Interrupted);
    let here = timeline.position();
    assert!(stood < here && here <= stood + POLL_STEPS, "{stood} {here}");
    assert_eq!(timeline.run_forward(&mut never).unwrap(), TravelStop::End);
}

#[test]
fn what_a_meter_shows_grows_up_to_what_was_said() {
    let (_directory, recording) = recording(30, &[10_000_000]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let meter = timeline.meter();
    // The second movement begins at the checkpoint.
    for (target, at_most) in [(9_000_000, 9_000_000), (25_000_000, 15_000_000)] {
        let mut shown = Vec::new();
        let stop = timeline.seek(Instructions(target), &mut || {
            shown.push(meter.progress());
            false
        });
        assert_eq!(stop.unwrap(), TravelStop::Reached);
        assert!(shown.iter().all(|&(done, most)| done <= most && most <= at_most), "{shown:?}");
        assert!(shown.is_sorted() && shown.len() > 1 && shown[0].0 > 0, "{shown:?}");
        let (done, most) = meter.progress();
        assert!(done <= most && done > at_most / 10, "{done} of {most}");
    }
}

fn all(timeline: &mut Timeline, from: u64, to: Instructions) -> Hits {
    timeline.hits(Instructions(from), to, usize::MAX, &mut never).unwrap()
}

#[test]
fn a_list_that_is_interrupted_within_a_long_stretch_has_what_was_found() {
    let (_directory, recording) = recording(20, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    timeline.set_stops(write());
    let whole = all(&mut timeline, 0, end);
    assert_eq!((whole.found.len(), whole.interrupted_at), (20, None));
    let apart = whole.found.windows(2).all(|pair| pair[1].before - pair[0].before == LONG_ROUND_STEPS);
    assert!(apart, "{:?}", whole.found);
    // An interrupted search returns some hits. A search from the place of the interruption finds the other hits.
    let part = timeline.hits(Instructions(0), end, usize::MAX, &mut after(2)).unwrap();
    let edge = part.interrupted_at.unwrap();
    assert!(Instructions(0) < edge && edge < end && !part.found.is_empty(), "{part:?}");
    let rest = all(&mut timeline, edge.number(), end);
    assert_eq!([part.found, rest.found].concat(), whole.found);
    // The list of hits begins at step 15,000,000. After an interruption on the way to that step, the list is empty.
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.set_stops(write());
    let part = timeline.hits(Instructions(15_000_000), end, usize::MAX, &mut after(2)).unwrap();
    assert_eq!(part, Hits { found: Vec::new(), interrupted_at: Some(Instructions(15_000_000)) });
    // A limit ends the list of hits without an interruption.
    let three = timeline.hits(Instructions(0), end, 3, &mut never).unwrap();
    assert_eq!(three, Hits { found: whole.found[..3].to_vec(), interrupted_at: None });
}

#[test]
fn a_list_of_nothing_is_empty_and_one_that_ends_before_it_begins_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), "r.ttvm", 3_000, Vec::new(), &[1000]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    timeline.set_stops(nowhere());
    for place in [Instructions(0), Instructions(1000), end] {
        assert_eq!(all(&mut timeline, place.number(), place).found, []);
    }
    let refused = timeline.hits(Instructions(8), Instructions(7), 1, &mut never).unwrap_err().to_string();
    assert!(refused.contains("swap the two positions"), "{refused}");
    // A run forward at the end returns `End`, and a run backward at the start returns `Start`.
    seek(&mut timeline, end.number());
    assert_eq!(timeline.run_forward(&mut never).unwrap(), TravelStop::End);
    assert_eq!(timeline.step_forward().unwrap(), TravelStop::End);
    seek(&mut timeline, 0);
    assert_eq!(timeline.run_backward(&mut never).unwrap(), TravelStop::Start);
    assert_eq!(timeline.step_backward(&mut never).unwrap(), TravelStop::Start);
}

/// The positions of several checkpoints shortly before the end.
fn dense(end: u64) -> Vec<u64> {
    (1..=8).rev().map(|number| end - number * 100_000).collect()
}

#[test]
fn a_search_backward_finds_what_lies_far_back_however_many_join_in() {
    let end = 60 * LONG_ROUND_STEPS;
    let (_directory, recording) = recording(60, &dense(end));
    let early = Instructions(8 * LONG_ROUND_STEPS);
    let mut hits: Vec<Hit> = Vec::new();
    for threads in [1, 2] {
        let mut timeline = Timeline::open_with(&recording, threads).unwrap();
        // This seek takes snapshots, which divide a long search into intervals.
        if threads == 2 {
            timeline.seek(Instructions(end - 1_000_000), &mut never).unwrap();
        }
        seek(&mut timeline, end);
        timeline.set_stops(write_before(early));
        let stop = timeline.run_backward(&mut never).unwrap();
        let write = Cause::Watch { kind: WatchKind::Write, address: STIRRED };
        assert_eq!(stop, TravelStop::Hit(write), "{threads} threads");
        let (before, after) = (timeline.position(), timeline.position() + 1);
        hits.push(Hit { before, after, cause: write, processor: 0 });
    }
    assert_eq!(hits[0], hits[1]);
    // The search finds the seventh write. The eighth write is later than `early`, because the guest executes some
    // steps before its first round.
    let expected = 7 * LONG_ROUND_STEPS;
    assert!((expected..expected + 100).contains(&hits[0].before.number()), "{hits:?}");
}

/// The position before the guest's write number `round`, and the address of the writing instruction. The recording has
/// no checkpoints.
fn write_of(recording: &Recording<Instructions>, round: usize) -> (Instructions, u64) {
    let mut timeline = Timeline::open_with(recording, 1).unwrap();
    timeline.set_stops(write());
    let hits = timeline.hits(Instructions(0), timeline.end(), round, &mut never).unwrap();
    let before = hits.found[round - 1].before;
    seek(&mut timeline, before.number());
    (before, timeline.machine().cpu().rip())
}

/// The places around a write where the test divides a search into intervals. The instruction of the write is the last
/// before the place, or the first after it.
fn cuts(write: Instructions) -> impl Iterator<Item = u64> {
    write.number() - 1..write.number() + 3
}

/// Expects each search to find the write, for any cut.
fn expect_write(timeline: &mut Timeline, from: u64, at: Instructions, stops: &[(Stops, Cause)]) {
    for (stops, cause) in stops {
        seek(timeline, from);
        timeline.set_stops(stops.clone());
        let stop = timeline.run_backward(&mut never).unwrap();
        assert_eq!((stop, timeline.position()), (TravelStop::Hit(*cause), at));
    }
}

/// Two stops that find the guest's write: a watchpoint, and a breakpoint at the instruction.
fn ways_to_the_write(watch: Stops, rip: u64) -> [(Stops, Cause); 2] {
    let breakpoints = Stops { breakpoints: vec![Breakpoint::at(rip)], ..Stops::default() };
    let cause = Cause::Watch { kind: WatchKind::Write, address: STIRRED };
    [(watch, cause), (breakpoints, Cause::Breakpoint(rip))]
}

#[test]
fn a_search_finds_what_lies_next_to_a_checkpoint_on_either_side() {
    let end = 3 * LONG_ROUND_STEPS;
    let directory = tempfile::tempdir().unwrap();
    let plain = record_long(directory.path(), "plain.ttvm", 3);
    let (at, rip) = write_of(&plain, 2);
    assert!(at.number() < end - 900_000, "{at} is within the checkpoints at the end");
    let ways = ways_to_the_write(write(), rip);
    // If there are many checkpoints after the write, workers on other cores join the search before it reaches the
    // write.
    for (name, row) in [("one", Vec::new()), ("row", dense(end))] {
        for cut in cuts(at) {
            let recording = record_long(directory.path(), &format!("{name}-{cut}.ttvm"), 3);
            add_checkpoints(&recording, &[&[cut], row.as_slice()].concat());
            let recording = open(&recording.path);
            for threads in [1, 2] {
                let mut timeline = Timeline::open_with(&recording, threads).unwrap();
                expect_write(&mut timeline, end, at, &ways);
                let mut timeline = Timeline::open_with(&recording, threads).unwrap();
                for (stops, _) in &ways {
                    timeline.set_stops(stops.clone());
                    let whole = all(&mut timeline, 0, Instructions(end));
                    let places: Vec<_> = whole.found.iter().map(|hit| hit.before).collect();
                    let first = Instructions(at.number() - LONG_ROUND_STEPS);
                    assert_eq!(places, [first, at], "{name}, cut at {cut}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn a_search_finds_what_lies_next_to_a_snapshot_that_cuts_a_long_interval() {
    let end = 60 * LONG_ROUND_STEPS;
    let (_directory, recording) = recording(60, &dense(end));
    let (at, rip) = write_of(&recording, 8);
    let early = Filter::new(move |machine| machine.moment().count <= at + 1);
    let mut ways = ways_to_the_write(write_before(at + 2), rip);
    ways[1].0.filters = [(rip, early)].into();
    for threads in [1, 2] {
        for cut in cuts(at) {
            let mut timeline = Timeline::open_with(&recording, threads).unwrap();
            // A walk takes its last snapshot 128 steps before its end. Here this snapshot is at `cut`, and divides the
            // interval before the checkpoints.
            seek(&mut timeline, cut + 128);
            seek(&mut timeline, end - 1_000_000);
            expect_write(&mut timeline, end, at, &ways);
        }
    }
}

#[test]
fn a_search_that_is_interrupted_stands_nearer_to_its_edge_than_where_it_began() {
    let (_directory, recording) = recording(30, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    seek(&mut timeline, 30_000_000);
    timeline.set_stops(nowhere());
    // The first intervals are short, with a poll between two intervals.
    assert_eq!(timeline.run_backward(&mut after(2)).unwrap(), TravelStop::Interrupted);
    let stood = timeline.position();
    assert!(Instructions(0) < stood && stood < Instructions(30_000_000), "{stood}");
    assert_eq!(timeline.run_backward(&mut never).unwrap(), TravelStop::Start);
    // If the search is complete before the first poll, the search returns its result, although the poll function
    // returns true.
    seek(&mut timeline, 1_000);
    assert_eq!(timeline.run_backward(&mut || true).unwrap(), TravelStop::Start);
    assert_eq!(timeline.position(), Instructions(0));
}

/// A user may interrupt the search at any place. The search has missed no hit between its beginning and that place.
/// There is only one hit, near the beginning.
#[test]
fn a_search_backward_that_was_interrupted_finds_the_rest_when_it_goes_on() {
    let end = 30 * LONG_ROUND_STEPS;
    let at = Instructions(5);
    let checkpoints: Vec<u64> = [9_000_001, 14_000_001].into_iter().chain(dense(end)).collect();
    for checkpoints in [Vec::new(), checkpoints] {
        let (_directory, recording) = recording(30, &checkpoints);
        for threads in [1, 2] {
            let mut timeline = Timeline::open_with(&recording, threads).unwrap();
            timeline.seek(at, &mut never).unwrap();
            let breakpoint = Breakpoint::at(timeline.machine().cpu().rip());
            timeline.set_stops(Stops { breakpoints: vec![breakpoint], ..Stops::default() });
            let mut interrupted = 0;
            for polls in 1..14 {
                timeline.seek(Instructions(end), &mut never).unwrap();
                let mut stop = timeline.run_backward(&mut after(polls)).unwrap();
                if stop == TravelStop::Interrupted {
                    interrupted += 1;
                    stop = timeline.run_backward(&mut never).unwrap();
                }
                let what = format!("{} checkpoints, {threads} threads, {polls} polls", checkpoints.len());
                let expected = (TravelStop::Hit(Cause::Breakpoint(breakpoint.address)), at);
                assert_eq!((stop, timeline.position()), expected, "{what}");
            }
            assert!(threads == 2 || interrupted > 6, "{interrupted}");
        }
    }
}

#[test]
fn a_search_that_is_interrupted_at_a_checkpoint_stands_there() {
    let end = 12 * LONG_ROUND_STEPS;
    let (_directory, recording) = recording(12, &dense(end));
    for (polls, searched) in [(1, 100_000), (2, 200_000)] {
        let mut timeline = Timeline::open_with(&recording, 1).unwrap();
        seek(&mut timeline, end);
        timeline.set_stops(nowhere());
        assert_eq!(timeline.run_backward(&mut after(polls)).unwrap(), TravelStop::Interrupted);
        assert_eq!(timeline.position(), Instructions(end - searched));
    }
}

#[test]
fn a_search_forward_that_is_interrupted_among_checkpoints_stands_behind_what_it_searched() {
    let places: Vec<u64> = (1..12).map(|number| number * 100_000).collect();
    let (_directory, recording) = recording(2, &places);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.set_stops(nowhere());
    let mut stood = Vec::new();
    for polls in 1..14 {
        timeline.seek(Instructions(0), &mut never).unwrap();
        let stop = timeline.run_forward(&mut after(polls)).unwrap();
        if stop != TravelStop::Interrupted {
            assert_eq!((stop, timeline.position()), (TravelStop::End, timeline.end()));
            break;
        }
        stood.push(timeline.position().number());
    }
    // Each interrupted search ends at a later place than the search before, and never beyond the searched part.
    assert!(stood.is_sorted() && stood[0] > 0 && stood.len() > 6, "{stood:?}");
    assert!(*stood.last().unwrap() > places[6], "{stood:?}");
}

#[test]
fn a_run_that_is_interrupted_just_at_a_breakpoint_has_hit_it() {
    let directory = tempfile::tempdir().unwrap();
    let (bare, _) = record_calls(directory.path(), "bare.ttvm", 10, None);
    let mut timeline = Timeline::open_with(&bare, 1).unwrap();
    timeline.seek(Instructions(100), &mut never).unwrap();
    let breakpoint = Breakpoint::at(timeline.machine().cpu().rip());
    let stops = Stops { breakpoints: vec![breakpoint], ..Stops::default() };
    let end = timeline.end();
    timeline.set_stops(stops.clone());
    let visits: Vec<u64> = all(&mut timeline, 0, end).found.iter().map(|hit| hit.before.number()).collect();
    assert!(visits.len() > 2, "{visits:?}");
    // A run polls at each checkpoint.
    add_checkpoints(&bare, &visits[1..2]);
    let mut timeline = Timeline::open_with(&open(&bare.path), 1).unwrap();
    seek(&mut timeline, visits[0]);
    timeline.set_stops(stops);
    let stop = timeline.run_forward(&mut || true).unwrap();
    assert_eq!(stop, TravelStop::Hit(Cause::Breakpoint(breakpoint.address)));
    assert_eq!(timeline.position(), Instructions(visits[1]));
}

#[test]
fn what_is_played_shows_all_that_the_guest_prints_and_nothing_else_does() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record_calls(directory.path(), "r.ttvm", 10, None);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let shown = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = |shown: &std::sync::Arc<std::sync::Mutex<Vec<u8>>>| {
        let shown = shown.clone();
        move |bytes: &[u8]| {
            shown.lock().unwrap().extend_from_slice(bytes);
            Ok(())
        }
    };
    let half = Instructions(end.at.count.number() / 2);
    assert_eq!(timeline.play(half, sink(&shown), &mut never).unwrap(), TravelStop::Reached);
    assert_eq!(timeline.position(), half);
    let first = shown.lock().unwrap().len();
    assert!((1..10).contains(&first));
    // Only `play` shows output. Seeking back and forth between two calls of `play` shows none.
    seek(&mut timeline, 0);
    seek(&mut timeline, half.number());
    assert_eq!(timeline.play(Instructions::MAX, sink(&shown), &mut never).unwrap(), TravelStop::Reached);
    assert_eq!((timeline.position(), shown.lock().unwrap().as_slice()), (end.at.count, &b"2103210321"[..]));
    let (_directory, recording) = self::recording(10, &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    assert_eq!(
        timeline.play(Instructions::MAX, sink(&shown), &mut || true).unwrap(),
        TravelStop::Interrupted
    );
}
