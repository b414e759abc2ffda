//! Tests that results are the same if long stretches run on an engine that counts exits. The other engine is the
//! software engine, which can count exits in the same way as KVM. The KVM lab tests KVM itself.

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::recount::{from_exit, in_instructions, start_of_last};
use history::timeline::{Breakpoint, Condition, FastForward, Stops, Timeline, TravelStop, Watch};
use machine::Hashes;
use machine::engine::EngineKind;
use machine::position::{Count, Exits, Instructions};
use recording::Recording;
use tiny_guest::stopped::{record_rounds, record_with_checkpoints};
use tiny_guest::{Numbers, STIRRED};

/// The largest number of breakpoints that the other engine can set. A processor has this number of debug registers.
const MOST_BREAKPOINTS: usize = 4;

/// Options for a short guest.
const SMALL: FastForward = FastForward {
    least_steps: 1000,
    most_steps: 9000,
    near_steps: 300,
    engine: EngineKind { most_breakpoints: MOST_BREAKPOINTS, ..EngineKind::SOFT },
};

/// All state of a machine that a debugger shows or that affects the rest of the run.
fn seen(timeline: &mut Timeline) -> (Instructions, u64, u64, Hashes) {
    let cpu = timeline.machine().cpu();
    let (branches, system_calls) = (cpu.branches(), cpu.system_calls());
    (timeline.position(), branches, system_calls, timeline.machine_mut().hashes())
}

fn visits(timeline: &mut Timeline, breakpoint: u64) -> Vec<(TravelStop, (Instructions, u64, u64, Hashes))> {
    timeline.set_breakpoints(vec![breakpoint]);
    let end = timeline.end().number();
    let mut visits = Vec::new();
    for (begin, forward) in [(0, true), (end / 3, true), (end, false), (end / 2, false)] {
        timeline.seek(Instructions(begin), &mut || false).unwrap();
        for _ in 0..3 {
            let stop = match forward {
                true => timeline.run_forward(&mut || false).unwrap(),
                false => timeline.run_backward(&mut || false).unwrap(),
            };
            visits.push((stop, seen(timeline)));
        }
    }
    visits
}

fn compare(recounted: &Recording<Instructions>, seed: u64) {
    let mut alone = Timeline::open_with(recounted, 1).unwrap();
    let mut ahead = Timeline::open_with(recounted, 1).unwrap();
    ahead.fast_forward(SMALL).unwrap();
    let end = alone.end().number();
    let mut numbers = Numbers(seed);
    let mut addresses = Vec::new();
    for _ in 0..20 {
        let at = Instructions(numbers.below(end));
        for timeline in [&mut alone, &mut ahead] {
            assert_eq!(timeline.seek(at, &mut || false).unwrap(), TravelStop::Reached);
        }
        assert_eq!(seen(&mut alone), seen(&mut ahead), "seed {seed} at {at}");
        addresses.push(alone.machine().cpu().rip());
    }
    assert!(ahead.fast_forwarded_steps() > end / 4, "{} steps of {end}", ahead.fast_forwarded_steps());
    // The guest executes the same few instructions in each round, so few addresses are different.
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        assert_eq!(visits(&mut alone, address), visits(&mut ahead, address), "seed {seed} at {address:#x}");
    }
    assert_eq!(alone.fast_forwarded_steps(), 0);
}

#[test]
fn another_engine_that_goes_ahead_changes_nothing() {
    for seed in [21, 22] {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _) = record_with_checkpoints(directory.path(), seed);
        let part = start_of_last(&recording, 60_000_000).unwrap().expect("a checkpoint to begin at");
        compare(&from_exit(recording.clone(), part, |_| {}).unwrap(), seed);
        compare(&in_instructions(recording, |_| {}).unwrap(), seed);
    }
}

#[test]
fn a_recording_of_instructions_has_no_other_engine() {
    let directory = tempfile::tempdir().unwrap();
    let recording = tiny_guest::record(directory.path(), "soft", 100, Vec::new()).0;
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let refused = timeline.fast_forward(SMALL).unwrap_err().to_string();
    assert!(refused.contains("counts instructions"), "{refused}");
}

/// A recording of which the other engine can run a large part.
fn recording() -> (tempfile::TempDir, Recording<Instructions>) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record_with_checkpoints(directory.path(), 23);
    (directory, in_instructions(recording, |_| {}).unwrap())
}

fn ahead(recording: &Recording<Instructions>, options: FastForward) -> Timeline {
    let mut ahead = Timeline::open_with(recording, 1).unwrap();
    ahead.fast_forward(options).unwrap();
    ahead
}

fn breakpoints(space: AddressKind, addresses: &[u64]) -> Stops {
    let breakpoints = addresses.iter().map(|&address| Breakpoint { space, address }).collect();
    Stops { breakpoints, ..Stops::default() }
}

#[test]
fn only_breakpoints_that_it_can_look_for_are_left_to_another_engine() {
    let (_directory, recording) = recording();
    let mut ahead = ahead(&recording, SMALL);
    let mut alone = Timeline::open_with(&recording, 1).unwrap();
    // This instruction is executed after the last round of the guest's loop.
    alone.seek(Instructions(alone.end().number() - 2), &mut || false).unwrap();
    let behind = alone.machine().cpu().rip();
    let most: Vec<u64> = [behind].into_iter().chain(1..MOST_BREAKPOINTS as u64).collect();
    let too_many: Vec<u64> = [behind].into_iter().chain(1..=MOST_BREAKPOINTS as u64).collect();
    let many_times = vec![behind; MOST_BREAKPOINTS + 1];
    let point =
        Watchpoint { space: AddressKind::Linear, address: STIRRED, length: 64, kind: WatchKind::Write };
    let condition = |text: &str| text.parse::<Condition>().unwrap().0;
    for (stops, is_left) in [
        (Stops::default(), true),
        (breakpoints(AddressKind::Linear, &[behind]), true),
        (breakpoints(AddressKind::Linear, &most), true),
        (breakpoints(AddressKind::Linear, &many_times), true),
        (breakpoints(AddressKind::Linear, &too_many), false),
        (breakpoints(AddressKind::Physical, &[behind]), false),
        (Stops { watches: vec![Watch::from(point)], ..Stops::default() }, false),
        (condition("vector:200"), false),
        (condition("syscall"), false),
        (condition("console:b"), false),
    ] {
        let mut found = Vec::new();
        for timeline in [&mut alone, &mut ahead] {
            timeline.seek(Instructions(0), &mut || false).unwrap();
            timeline.set_stops(stops.clone());
            let before = timeline.fast_forwarded_steps();
            let stop = timeline.run_forward(&mut || false).unwrap();
            let left = timeline.fast_forwarded_steps() - before;
            found.push((stop, seen(timeline), left));
        }
        assert_eq!((found[0].0, &found[0].1), (found[1].0, &found[1].1), "{stops:?}");
        assert_eq!((found[0].2, found[1].2 > 0), (0, is_left), "{stops:?}");
    }
}

#[test]
fn most_of_the_way_to_a_breakpoint_far_ahead_is_left_to_another_engine() {
    let (_directory, recording) = recording();
    let mut ahead = ahead(&recording, SMALL);
    let end = ahead.end().number();
    let mut alone = Timeline::open_with(&recording, 1).unwrap();
    alone.seek(Instructions(end - 2), &mut || false).unwrap();
    ahead.set_breakpoints(vec![alone.machine().cpu().rip()]);
    let stop = ahead.run_forward(&mut || false).unwrap();
    assert!(matches!(stop, TravelStop::Hit(_)) && ahead.position() == Instructions(end - 2), "{stop:?}");
    let left = ahead.fast_forwarded_steps();
    assert!(left > end / 4 * 3 && left < end, "{left} of {end}");
    assert!(ahead.replayed_steps() < end + 2 * SMALL.most_steps, "{}", ahead.replayed_steps());
}

#[test]
fn what_is_left_to_another_engine_is_long_enough_and_not_near_to_the_place() {
    let (_directory, recording) = recording();
    for (near_steps, least_steps, is_left) in
        [(300, 1000, true), (100_000, 1000, true), (300, 1 << 40, false), (1 << 40, 1000, false)]
    {
        let mut ahead = ahead(&recording, FastForward { near_steps, least_steps, ..SMALL });
        let target = Instructions(ahead.end().number() - 1000);
        assert_eq!(ahead.seek(target, &mut || false).unwrap(), TravelStop::Reached);
        let left = ahead.fast_forwarded_steps();
        assert_eq!(left > 0, is_left, "near {near_steps}, at least {least_steps}: {left}");
        assert!(left <= target.number().saturating_sub(near_steps), "{left}");
    }
}

#[test]
fn a_way_that_another_engine_goes_can_be_interrupted_and_has_not_begun_then() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record_rounds(directory.path(), 24, 120_000);
    // The recording must have several times 200 exits, because the other engine polls every 200 exits.
    assert!(end.at.count > Exits(600), "{}", end.at.count);
    let recording = in_instructions(recording, |_| {}).unwrap();
    let interrupted = |polls: u32| {
        let mut ahead = ahead(&recording, FastForward { most_steps: 1 << 40, ..SMALL });
        ahead.set_breakpoints(vec![1]);
        let mut asked = 0;
        let stop = ahead.run_forward(&mut || {
            asked += 1;
            asked == polls
        });
        (stop.unwrap(), ahead.position(), ahead.fast_forwarded_steps())
    };
    // A timeline that uses only the software CPU would be farther on at each poll. At a poll of the other engine, the
    // walker is still at the beginning of that engine's stretch.
    let stood: Vec<_> = (1..6).map(interrupted).collect();
    let not_begun = |pair: &[(TravelStop, Instructions, u64)]| pair[0] == pair[1] && pair[0].2 == 0;
    assert!(stood[0].0 == TravelStop::Interrupted && stood.windows(2).any(not_begun), "{stood:?}");
    let (stop, at, left) = interrupted(0);
    assert!(stop == TravelStop::End && left > at.number() / 2, "{stop:?} {left}");
}
