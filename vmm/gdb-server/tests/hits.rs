//! Tests that runs of a timeline find all hits, wherever the recording has snapshots and checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cpu::{AddressKind, WatchKind, Watchpoint};
use gdb::{DebugTarget, FIRST_CPU};
use gdb_server::GdbTarget;
use history::timeline::{
    Breakpoint, Cause, Comparison, Filter, Hit, Relation, Stops, Timeline, TravelStop, Watch,
};
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use recording::Recording;
use tiny_guest::{STIRRED, STIRRED_BYTES, record_asleep, record_with_checkpoints};

const ROUNDS: u32 = 12_000;

fn recording(directory: &Path, name: &str, checkpoints: &[u64]) -> Recording<Instructions> {
    record_with_checkpoints(directory, name, ROUNDS, Vec::new(), checkpoints).0
}

fn writes(address: u64, length: u64) -> Watch {
    Watchpoint { space: AddressKind::Linear, address, length, kind: WatchKind::Write }.into()
}

fn watching(watches: &[Watch]) -> Stops {
    Stops { watches: watches.to_vec(), ..Stops::default() }
}

fn all(timeline: &mut Timeline, stops: Stops) -> Vec<Hit> {
    let end = timeline.end();
    timeline.set_stops(stops);
    timeline.hits(Instructions(0), end, usize::MAX, &mut || false).unwrap().found
}

fn places(hits: &[Hit]) -> Vec<Instructions> {
    hits.iter().map(|hit| hit.before).collect()
}

#[test]
fn a_watch_that_is_rejected_hides_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let inner = writes(STIRRED + 0x1000, 0x800);
    let expected = all(&mut timeline, watching(&[inner]));
    assert!(expected.len() > 10, "{}", expected.len());
    // The outer watchpoint comes before the inner watchpoint, by address and in the list.
    let outer = writes(STIRRED, 0x4000);
    let never = Filter::new(|_| false);
    let stops = Stops { watch_filters: [(outer.point.address, never)].into(), ..watching(&[outer, inner]) };
    assert_eq!(all(&mut timeline, stops), expected);
    // A watchpoint for other kinds of accesses, or for changes, does not hide hits either.
    let reads = Watch { changes_only: true, ..writes(STIRRED, 0x4000) };
    let found = all(&mut timeline, watching(&[reads, inner]));
    assert!(places(&expected).iter().all(|at| places(&found).contains(at)));
}

#[test]
fn changes_are_found_in_the_whole_of_a_range() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let written = all(&mut timeline, watching(&[writes(STIRRED, STIRRED_BYTES)]));
    assert!(written.len() > 10_000);
    // The guest changes only the memory at `STIRRED`, more than a megabyte after the start of these ranges.
    for range in [writes(0, STIRRED + STIRRED_BYTES), writes(0, 0x7fff_ffff_ffff_ffff)] {
        let changes = Watch { changes_only: true, ..range };
        assert_eq!(places(&all(&mut timeline, watching(&[changes]))), places(&written));
    }
    // These addresses include the registers of devices, and the guest changes nothing there.
    let elsewhere = Watch { changes_only: true, ..writes(STIRRED + STIRRED_BYTES, u64::MAX / 2) };
    assert_eq!(all(&mut timeline, watching(&[elsewhere])), []);
}

#[test]
fn of_all_writes_those_are_found_behind_which_memory_has_the_value() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let all_writes = all(&mut timeline, watching(&[writes(STIRRED, STIRRED_BYTES)]));
    // Finds the address that the guest writes most often.
    let mut times = BTreeMap::new();
    for hit in &all_writes {
        let Cause::Watch { address, .. } = hit.cause else { panic!("{hit:?}") };
        *times.entry(address).or_insert(0) += 1;
    }
    let (&address, _) = times.iter().max_by_key(|(_, times)| **times).unwrap();
    let word = writes(address, 4).point;
    let written = all(&mut timeline, watching(&[word.into()]));
    assert!((2..all_writes.len()).contains(&written.len()), "{}", written.len());
    let values: Vec<u64> = written.iter().map(|hit| value_behind(&mut timeline, hit, word)).collect();
    for relation in [Relation::Equal, Relation::Different, Relation::Less, Relation::AtLeast] {
        let comparison = Comparison { relation, value: values[values.len() / 2] };
        let expected: Vec<_> = written
            .iter()
            .zip(&values)
            .filter(|(_, value)| comparison.holds(**value))
            .map(|(hit, _)| *hit)
            .collect();
        let watch = Watch { comparison: Some(comparison), ..word.into() };
        assert_eq!(all(&mut timeline, watching(&[watch])), expected, "{relation:?}");
    }
}

/// The value in a watched range after a write to it.
fn value_behind(timeline: &mut Timeline, hit: &Hit, range: Watchpoint) -> u64 {
    timeline.set_stops(Stops::default());
    timeline.seek(hit.after, &mut || false).unwrap();
    let mut bytes = [0; 8];
    timeline.machine().cpu().core().peek(range.address, &mut bytes[..range.length as usize]);
    u64::from_le_bytes(bytes)
}

/// A rarely written part of memory, and its hits.
fn seldom(timeline: &mut Timeline) -> (Stops, Vec<Hit>) {
    for word in 0.. {
        let stops = watching(&[writes(STIRRED + word * 64, 64)]);
        let hits = all(timeline, stops.clone());
        let apart = hits.windows(2).all(|pair| pair[1].before - pair[0].before > 2_000);
        if hits.len() >= 3 && apart && hits[0].before > Instructions(2_000) {
            return (stops, hits);
        }
    }
    unreachable!("some part of the memory is written seldom")
}

/// Runs backward from after a hit, and forward from before it. The recording may have a snapshot or checkpoint
/// exactly at these places, or not.
fn check_both_ways(timeline: &mut Timeline, stops: &Stops, hits: &[Hit], behind: &[u64]) {
    for (number, hit) in hits.iter().enumerate() {
        for &distance in behind {
            let from = (hit.after + distance).min(timeline.end());
            timeline.set_stops(Stops::default());
            timeline.seek(from, &mut || false).unwrap();
            timeline.set_stops(stops.clone());
            let last = hits.iter().rev().find(|hit| hit.before < from && hit.after <= from).unwrap();
            let stop = timeline.run_backward(&mut || false).unwrap();
            assert_eq!(
                (stop, timeline.position()),
                (TravelStop::Hit(last.cause), last.before),
                "from {from}"
            );
        }
        let from = if number == 0 { Instructions(0) } else { hits[number - 1].after };
        timeline.set_stops(Stops::default());
        timeline.seek(from, &mut || false).unwrap();
        timeline.set_stops(stops.clone());
        let stop = timeline.run_forward(&mut || false).unwrap();
        assert_eq!((stop, timeline.position()), (TravelStop::Hit(hit.cause), hit.after), "from {from}");
    }
}

#[test]
fn a_hit_exactly_where_something_can_be_restored_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let bare = recording(directory.path(), "bare.ttvm", &[]);
    let mut timeline = Timeline::open_with(&bare, 1).unwrap();
    let (stops, hits) = seldom(&mut timeline);
    let far = timeline.end().number();
    // A walk takes its last snapshot 128 steps before its goal, so some of these distances are near 128.
    let snapshots_at = [0, 1, 127, 128, 129, 1024, far];
    check_both_ways(&mut timeline, &stops, &hits, &snapshots_at);
    // Checkpoints before the step, after it, and on both sides.
    for (name, sides) in [("before", &[0][..]), ("behind", &[1]), ("both", &[0, 1])] {
        let more: Vec<u64> =
            hits.iter().flat_map(|hit| sides.iter().map(|side| hit.before.number() + side)).collect();
        let recording = recording(directory.path(), name, &more);
        for threads in [1, 3] {
            let mut timeline = Timeline::open_with(&recording, threads).unwrap();
            let heads = timeline.checkpoints().unwrap().heads();
            assert!(more.iter().all(|&at| heads.contains_key(&Instructions(at))));
            check_both_ways(&mut timeline, &stops, &hits, &snapshots_at);
            assert_eq!(all(&mut timeline, stops.clone()), hits);
        }
    }
}

#[test]
fn a_step_back_over_a_hit_tells_it_and_stands_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let (stops, hits) = seldom(&mut timeline);
    for hit in hits.iter().take(5) {
        timeline.set_stops(Stops::default());
        timeline.seek(hit.after, &mut || false).unwrap();
        timeline.set_stops(stops.clone());
        let stop = timeline.step_backward(&mut || false).unwrap();
        assert_eq!((stop, timeline.position()), (TravelStop::Hit(hit.cause), hit.before));
        let stop = timeline.step_backward(&mut || false).unwrap();
        assert_eq!((stop, timeline.position()), (TravelStop::Reached, hit.before - 1));
    }
}

#[test]
fn a_scratch_fork_has_no_past() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let here = Instructions(5_000);
    timeline.seek(here, &mut || false).unwrap();
    assert!(timeline.change_memory(STIRRED, &[1]).unwrap());
    assert_eq!(timeline.forked_at(), Some(here));
    let refused = timeline.step_backward(&mut || false).unwrap_err().to_string();
    assert!(refused.contains("scratch fork") && refused.contains("5000"), "{refused}");
    assert!(timeline.run_backward(&mut || false).is_err());
    timeline.leave_fork().unwrap();
    assert_eq!(timeline.step_backward(&mut || false).unwrap(), TravelStop::Reached);
    assert_eq!(timeline.position(), here - 1);
}

/// gdb asks for the message about a fork at the guest's next stop. The message must be gone if the fork no longer
/// exists.
#[test]
fn a_fork_that_was_left_is_no_news() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.seek(Instructions(5_000), &mut || false).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    let poll = &mut || false;
    let has_news =
        |target: &mut GdbTarget<'_>| target.take_message().is_some_and(|text| text.contains("scratch fork"));
    for leave in ["goto insn:4000", "back"] {
        target.write_memory(FIRST_CPU, STIRRED, &[1]).unwrap();
        assert!(has_news(&mut target));
        target.monitor(leave, poll).unwrap();
        target.write_memory(FIRST_CPU, STIRRED, &[2]).unwrap();
        target.monitor(leave, poll).unwrap();
        target.step_forward(FIRST_CPU, poll).unwrap();
        assert!(!has_news(&mut target), "{leave}");
    }
    assert!(target.write_memory(FIRST_CPU, 1 << 30, &[1]).is_err(), "there is no memory");
    target.step_forward(FIRST_CPU, poll).unwrap();
    assert!(!has_news(&mut target));
}

#[test]
fn a_breakpoint_exactly_where_something_can_be_restored_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let bare = recording(directory.path(), "bare.ttvm", &[]);
    let mut timeline = Timeline::open_with(&bare, 1).unwrap();
    // Twelve steps from the end the guest is in its last round.
    let last = timeline.end() - 12;
    timeline.seek(last, &mut || false).unwrap();
    let breakpoint = Breakpoint::at(timeline.machine().cpu().rip());
    let stops = Stops { breakpoints: vec![breakpoint], ..Stops::default() };
    let hits = all(&mut timeline, stops.clone());
    let some: Vec<Hit> = hits.iter().copied().step_by(hits.len() / 12).collect();
    let more: Vec<u64> = some.iter().map(|hit| hit.before.number()).filter(|&at| at > 0).collect();
    let recording = recording(directory.path(), "checkpoints.ttvm", &more);
    for threads in [1, 3] {
        let mut timeline = Timeline::open_with(&recording, threads).unwrap();
        assert_eq!(all(&mut timeline, stops.clone()), hits, "{threads} threads");
        timeline.set_stops(stops.clone());
        for hit in some.iter().rev() {
            timeline.seek(hit.before + 1, &mut || false).unwrap();
            let stop = timeline.run_backward(&mut || false).unwrap();
            assert_eq!((stop, timeline.position()), (TravelStop::Hit(hit.cause), hit.before));
        }
        // Runs backward from each hit to the previous hit, wherever there are snapshots.
        timeline.seek(timeline.end(), &mut || false).unwrap();
        for hit in hits.iter().rev().take(200) {
            timeline.run_backward(&mut || false).unwrap();
            assert_eq!(timeline.position(), hit.before);
        }
    }
}

#[test]
fn a_range_step_ends_behind_an_instruction_of_one_byte() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    // The guest's rounds end in `dec esi` (one byte) and a jump back.
    timeline.seek(Instructions(end.number() / 2), &mut || false).unwrap();
    let code = |timeline: &Timeline| {
        let core = timeline.machine().cpu().core();
        let mut bytes = [0];
        core.peek(core.rip, &mut bytes);
        (core.rip, bytes[0])
    };
    while code(&timeline).1 != 0x4e {
        timeline.step_forward().unwrap();
    }
    let (dec, _) = code(&timeline);
    let (at_dec, none) = (timeline.position(), BTreeSet::new());
    let mut target = GdbTarget::new(&mut timeline);
    assert_eq!(target.step_range(FIRST_CPU, dec..dec + 1, &none, &mut || false).unwrap(), gdb::Stop::Step);
    assert_eq!(target.read_registers(FIRST_CPU).unwrap().rip, dec + 1);
    drop(target);
    assert_eq!(timeline.position(), at_dec + 1);
    // A second step begins at the round's first instruction. The range ends right after DEC's one byte.
    timeline.step_forward().unwrap();
    let top = timeline.machine().cpu().rip();
    assert!(top < dec);
    let mut target = GdbTarget::new(&mut timeline);
    assert_eq!(target.step_range(FIRST_CPU, top..dec + 1, &none, &mut || false).unwrap(), gdb::Stop::Step);
    assert_eq!(target.read_registers(FIRST_CPU).unwrap().rip, dec + 1);
    // A breakpoint at DEC ends the step before DEC.
    target.step_forward(FIRST_CPU, &mut || false).unwrap();
    let at_dec = BTreeSet::from([dec]);
    assert_eq!(
        target.step_range(FIRST_CPU, top..dec + 1, &at_dec, &mut || false).unwrap(),
        gdb::Stop::Breakpoint(dec)
    );
}

#[test]
fn gdb_may_watch_any_range() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recording(directory.path(), "r.ttvm", &[]);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let first = all(&mut timeline, watching(&[writes(0, STIRRED + STIRRED_BYTES)]))[0];
    let mut target = GdbTarget::new(&mut timeline);
    for (address, length) in [(0, 0x7fff_ffff_ffff_ffff), (1, u64::MAX), (u64::MAX, 1)] {
        target.set_watchpoint(gdb::Watchpoint { address, length, kind: gdb::WatchKind::Write }).unwrap();
    }
    let stop = target.run_forward(&mut || false).unwrap();
    let gdb::Stop::Watchpoint { kind: gdb::WatchKind::Write, address } = stop else { panic!("{stop:?}") };
    assert!((STIRRED..STIRRED + STIRRED_BYTES).contains(&address), "{address:#x}");
    drop(target);
    assert_eq!(timeline.position(), first.after);
}

#[test]
fn gdb_is_told_where_the_guest_idles() {
    let directory = tempfile::tempdir().unwrap();
    let script = vec![(2_000_000, Event::PowerButton), (1_234_567_891, Event::Limit)];
    let (recording, _) = record_asleep(directory.path(), "r.ttvm", script);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let mut target = GdbTarget::new(&mut timeline);
    let mut goto = |place: &str| target.monitor(&format!("goto {place}"), &mut || false).unwrap();
    assert!(!goto("event:0").contains("idles"));
    for (place, seconds) in [("event:1", "0.002000000"), ("event:2", "1.234567891"), ("end", "1.234567891")] {
        let told = goto(place);
        assert!(told.contains(&format!("The guest idles here: {place} is at {seconds} s.")), "{told}");
    }
}
