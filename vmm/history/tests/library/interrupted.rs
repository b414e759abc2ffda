//! Tests that a search finds the same hit, even if it is interrupted and continued many times. At each interruption,
//! the search has missed no hit in the part that it has searched.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::timeline::{Breakpoint, Direction, Filter, Hit, Stops, Timeline, TravelStop};
use machine::position::{Count, Instructions};
use recording::Recording;
use tiny_guest::{Numbers, STIRRED, STIRRED_BYTES, record, record_with_checkpoints};

const ROUNDS: u32 = 36_000;
const SEED: u64 = 11;

/// A recording with so many checkpoints that a search uses all cores.
fn recording(directory: &Path) -> Recording<Instructions> {
    let more: Vec<u64> = (1..24).map(|number| number * 14_000).collect();
    record_with_checkpoints(directory, "r.ttvm", ROUNDS, Vec::new(), &more).0
}

fn writes_of(address: u64) -> Stops {
    let point = Watchpoint { space: AddressKind::Physical, address, length: 4, kind: WatchKind::Write };
    Stops { watches: vec![point.into()], ..Stops::default() }
}

/// A poll function that returns true from call number `polls` on.
fn after(mut polls: u64) -> impl FnMut() -> bool {
    move || {
        polls = polls.saturating_sub(1);
        polls == 0
    }
}

/// Several stops that have few hits, each with all its hits.
fn seldom(timeline: &mut Timeline) -> Vec<(Stops, Vec<Hit>)> {
    let end = timeline.end();
    let mut found = Vec::new();
    for word in 0..200 {
        let stops = writes_of(STIRRED + word * 4);
        timeline.set_stops(stops.clone());
        let hits = timeline.hits(Instructions(0), end, 10, &mut || false).unwrap().found;
        if (1..=2).contains(&hits.len()) {
            found.push((stops, hits));
        }
        if found.len() == 6 {
            break;
        }
    }
    // Breakpoints at the run's first instruction, and at an instruction that each of the last rounds executes.
    let mut break_at = |at: Instructions| {
        timeline.seek(at, &mut || false).unwrap();
        let breakpoint = Breakpoint::at(timeline.machine().cpu().rip());
        let stops = Stops { breakpoints: vec![breakpoint], ..Stops::default() };
        timeline.set_stops(stops.clone());
        let hits = timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap().found;
        (stops, hits)
    };
    found.push(break_at(Instructions(0)));
    found.push(break_at(end - 1));
    found
}

#[test]
fn an_interrupted_search_loses_no_hit() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path());
    let seldom = seldom(&mut Timeline::open_with(&recording, 2).unwrap());
    assert!(seldom.len() == 8, "{}", seldom.len());
    let mut numbers = Numbers(SEED);
    let mut interrupts = [0; 2];
    let mut timelines: Vec<_> =
        (0..4).map(|more| Timeline::open_with(&recording, 1 + more).unwrap()).collect();
    let end = timelines[0].end();
    for round in 0.. {
        let timeline = &mut timelines[numbers.below(4) as usize];
        let (stops, hits) = &seldom[numbers.below(seldom.len() as u64) as usize];
        let direction = if round % 2 == 0 { Direction::Backward } else { Direction::Forward };
        let from = match (numbers.below(2), direction) {
            (0, Direction::Backward) => end,
            (0, Direction::Forward) => Instructions(0),
            _ => Instructions(numbers.below(end.number())),
        };
        timeline.set_stops(Stops::default());
        timeline.seek(from, &mut || false).unwrap();
        timeline.set_stops(stops.clone());
        let (mut stop, mut stood) = (TravelStop::Interrupted, from);
        for attempt in 1.. {
            let mut poll = after(1 + numbers.below(24 + attempt));
            stop = match direction {
                Direction::Backward => timeline.run_backward(&mut poll).unwrap(),
                Direction::Forward => timeline.run_forward(&mut poll).unwrap(),
            };
            let here = timeline.position();
            let onward = if direction == Direction::Backward { here <= stood } else { here >= stood };
            assert!(onward, "round {round}: {stop:?}, from {stood} to {here}");
            stood = here;
            if stop != TravelStop::Interrupted {
                break;
            }
            interrupts[round % 2] += 1;
        }
        let expected = match direction {
            Direction::Backward => hits.iter().rev().map(|hit| hit.before).find(|&at| at < from),
            Direction::Forward => hits.iter().map(|hit| hit.after).find(|&at| at > from),
        };
        let otherwise = match direction {
            Direction::Backward => (TravelStop::Start, Instructions(0)),
            Direction::Forward => (TravelStop::End, end),
        };
        let place = expected.unwrap_or(otherwise.1);
        assert_eq!(stood, place, "round {round}, {direction:?} from {from}: {stop:?}");
        assert_eq!(matches!(stop, TravelStop::Hit(_)), expected.is_some(), "round {round}: {stop:?}");
        if interrupts.iter().all(|&count| count >= 100) {
            break;
        }
    }
}

#[test]
fn an_interrupted_list_says_how_far_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path());
    let point =
        Watchpoint { space: AddressKind::Physical, address: STIRRED, length: 0x4000, kind: WatchKind::Write };
    let timeline = |threads| {
        let mut timeline = Timeline::open_with(&recording, threads).unwrap();
        timeline.set_stops(Stops { watches: vec![point.into()], ..Stops::default() });
        timeline
    };
    let lists = [1, 2, 3, 4].map(|threads| {
        let mut timeline = timeline(threads);
        let end = timeline.end();
        timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap()
    });
    let all = &lists[0];
    assert!(all.interrupted_at.is_none() && all.found.len() > 100);
    assert!(lists.iter().all(|list| list == all));
    let mut numbers = Numbers(SEED);
    for round in 0..40 {
        let mut timeline = timeline(1 + round % 4);
        let (begun, end) = (timeline.position(), timeline.end());
        let (mut found, mut from) = (Vec::new(), begun);
        for attempt in 1.. {
            let part =
                timeline.hits(from, end, usize::MAX, &mut after(1 + numbers.below(20 + attempt))).unwrap();
            assert_eq!(timeline.position(), begun);
            found.extend(part.found);
            let Some(edge) = part.interrupted_at else { break };
            assert!(edge >= from);
            from = edge;
        }
        assert_eq!(found, all.found, "round {round}");
    }
}

/// Two stops with hits in each round of the guest: a breakpoint and a watchpoint.
fn in_each_round(timeline: &mut Timeline, filter: &Filter) -> [Stops; 2] {
    timeline.seek(Instructions(1000), &mut || false).unwrap();
    let top = timeline.machine().cpu().rip();
    timeline.seek(Instructions(0), &mut || false).unwrap();
    let breakpoints = Stops {
        breakpoints: vec![Breakpoint::at(top)],
        filters: [(top, filter.clone())].into(),
        ..Stops::default()
    };
    let mut writes = writes_of(STIRRED);
    writes.watches[0].point.length = STIRRED_BYTES;
    [breakpoints, Stops { only: Some(filter.clone()), ..writes }]
}

/// In this test, the whole run is shorter than the distance between two polls of a run without stops.
#[test]
fn a_condition_that_is_never_true_does_not_delay_an_interrupt() {
    const POLLS: u64 = 3;
    const MOST_STOPS_PER_POLL: u64 = 1_100;
    let directory = tempfile::tempdir().unwrap();
    let recording = record(directory.path(), "r.ttvm", ROUNDS, Vec::new()).0;
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    let asked = Arc::new(AtomicU64::new(0));
    let counter = asked.clone();
    let never = Filter::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    });
    for stops in in_each_round(&mut timeline, &never) {
        timeline.set_stops(stops);
        timeline.seek(Instructions(0), &mut || false).unwrap();
        asked.store(0, Ordering::Relaxed);
        assert_eq!(timeline.run_forward(&mut after(POLLS)).unwrap(), TravelStop::Interrupted);
        assert!((1..=POLLS * MOST_STOPS_PER_POLL).contains(&asked.load(Ordering::Relaxed)), "{asked:?}");
        assert_eq!(timeline.run_forward(&mut || false).unwrap(), TravelStop::End);
        assert_eq!(timeline.run_backward(&mut after(POLLS)).unwrap(), TravelStop::Interrupted);
        let part = timeline.hits(Instructions(0), end, usize::MAX, &mut after(POLLS)).unwrap();
        assert!(part.found.is_empty() && part.interrupted_at.is_some_and(|edge| edge < end), "{part:?}");
    }
}

#[test]
fn a_list_of_many_hits_is_interrupted_between_them() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record(directory.path(), "r.ttvm", ROUNDS, Vec::new()).0;
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    for stops in in_each_round(&mut timeline, &Filter::new(|_| true)) {
        timeline.set_stops(stops);
        let whole = timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap().found;
        assert!(whole.len() as u64 >= u64::from(ROUNDS) - 100, "{}", whole.len());
        let first = timeline.hits(Instructions(0), end, usize::MAX, &mut after(3)).unwrap();
        let edge = first.interrupted_at.expect("the poll function says so");
        let rest = timeline.hits(edge, end, usize::MAX, &mut || false).unwrap();
        assert_eq!([first.found, rest.found].concat(), whole);
    }
}
