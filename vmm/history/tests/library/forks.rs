//! Tests forks: a debugger's changes take effect in the fork, and the recorded run does not change.

use cpu::{AddressKind, CpuState, WatchKind, Watchpoint};
use history::timeline::{Breakpoint, Cause, Filter, Stops, Timeline, TravelStop};
use machine::Hashes;
use machine::error::Error;
use machine::inputs::Event;
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use tiny_guest::{STIRRED, record, record_asleep};

const ROUNDS: u32 = 1000;
const HERE: Instructions = Instructions(5_000);
/// The number of RSI, in which the guest counts down its rounds.
const ROUNDS_LEFT: usize = 6;
/// The longest run between two polls.
const STRETCH: u64 = 4_000_000;

/// A timeline at [`HERE`], and the machine's hashes there.
fn timeline() -> (tempfile::TempDir, Timeline, Hashes) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", ROUNDS, Vec::new());
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    timeline.seek(HERE, &mut || false).unwrap();
    let hashes = timeline.machine_mut().hashes();
    (directory, timeline, hashes)
}

fn registers(timeline: &mut Timeline) -> CpuState {
    timeline.machine().cpu().state()
}

/// Changes RSI so that the guest runs for this number of further rounds.
fn change_rounds(timeline: &mut Timeline, rounds: u32) {
    let mut state = registers(timeline);
    state.gpr[ROUNDS_LEFT] = rounds.into();
    timeline.change_registers(&state).unwrap();
}

fn must_be_back(timeline: &mut Timeline, hashes: &Hashes) {
    assert_eq!(timeline.leave_fork().unwrap(), Some(HERE));
    assert_eq!((timeline.position(), timeline.forked_at()), (HERE, None));
    assert_eq!(timeline.machine_mut().hashes(), *hashes);
    assert_eq!(timeline.leave_fork().unwrap(), None);
}

#[test]
fn changed_registers_are_what_the_guest_goes_on_with() {
    let (_directory, mut timeline, hashes) = timeline();
    let end = timeline.end();
    assert_eq!(timeline.forked_at(), None);
    change_rounds(&mut timeline, 2);
    assert_eq!((timeline.forked_at(), timeline.position()), (Some(HERE), HERE));
    assert_eq!(registers(&mut timeline).gpr[ROUNDS_LEFT], 2);
    assert_eq!(timeline.run_forward(&mut || false).unwrap(), TravelStop::End);
    let here = timeline.position();
    assert!((HERE + 10..HERE + 60).contains(&here) && here < end, "{here}");
    assert_eq!(registers(&mut timeline).gpr[ROUNDS_LEFT], 0);
    must_be_back(&mut timeline, &hashes);
    // The recorded run continues as before.
    assert_eq!(timeline.run_forward(&mut || false).unwrap(), TravelStop::End);
    assert_eq!(timeline.position(), end);
}

#[test]
fn changed_memory_is_there_until_the_fork_is_left() {
    let (_directory, mut timeline, hashes) = timeline();
    assert!(timeline.change_memory(STIRRED + 4, &[1, 2, 3]).unwrap());
    let mut bytes = [0; 3];
    timeline.machine().read_physical(STIRRED + 4, &mut bytes);
    assert_eq!(bytes, [1, 2, 3]);
    // A second change belongs to the same fork.
    timeline.step_forward().unwrap();
    assert!(timeline.change_memory(STIRRED, &[4]).unwrap());
    assert_eq!(timeline.forked_at(), Some(HERE));
    must_be_back(&mut timeline, &hashes);
    // An address outside of RAM cannot be changed, and begins no fork.
    assert!(!timeline.change_memory(0xf000_0000, &[1]).unwrap());
    assert_eq!(timeline.forked_at(), None);
}

#[test]
fn a_step_in_a_fork_is_one_instruction() {
    let (_directory, mut timeline, hashes) = timeline();
    let mut expected = Vec::new();
    for _ in 0..30 {
        timeline.step_forward().unwrap();
        expected.push(timeline.machine().cpu().rip());
    }
    timeline.seek(HERE, &mut || false).unwrap();
    // The registers do not change, so the fork executes the same instructions as the recorded run.
    let state = registers(&mut timeline);
    timeline.change_registers(&state).unwrap();
    for (number, rip) in expected.into_iter().enumerate() {
        assert_eq!(timeline.step_forward().unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), HERE + 1 + number as u64);
        assert_eq!(timeline.machine().cpu().rip(), rip);
    }
    must_be_back(&mut timeline, &hashes);
}

#[test]
fn a_fork_stops_at_each_visit_of_a_breakpoint_and_at_writes() {
    let (_directory, mut timeline, hashes) = timeline();
    change_rounds(&mut timeline, 3);
    let here = Breakpoint::at(timeline.machine().cpu().rip());
    timeline.set_stops(Stops { breakpoints: vec![here], ..Stops::default() });
    // A run ignores the breakpoint at its first instruction. Each of two further rounds reaches this breakpoint again.
    for _ in 0..2 {
        let stood = timeline.position();
        assert_eq!(
            timeline.run_forward(&mut || false).unwrap(),
            TravelStop::Hit(Cause::Breakpoint(here.address))
        );
        assert_eq!(timeline.machine().cpu().rip(), here.address);
        assert!(timeline.position() > stood);
    }
    assert_eq!(timeline.run_forward(&mut || false).unwrap(), TravelStop::End);
    must_be_back(&mut timeline, &hashes);
    // A breakpoint does not stop the run if its filter is false.
    let last = Filter::new(|machine| machine.cpu().state().gpr[ROUNDS_LEFT] == 1);
    let filters = [(here.address, last)].into();
    timeline.set_stops(Stops { breakpoints: vec![here], filters, ..Stops::default() });
    change_rounds(&mut timeline, 3);
    assert_eq!(
        timeline.run_forward(&mut || false).unwrap(),
        TravelStop::Hit(Cause::Breakpoint(here.address))
    );
    assert_eq!(registers(&mut timeline).gpr[ROUNDS_LEFT], 1);
    must_be_back(&mut timeline, &hashes);
    timeline.set_stops(Stops::default());
    let point =
        Watchpoint { space: AddressKind::Linear, address: STIRRED, length: 1 << 20, kind: WatchKind::Write };
    change_rounds(&mut timeline, 3);
    timeline.set_watchpoints(vec![point]);
    timeline.set_breakpoints(Vec::new());
    let stop = timeline.run_forward(&mut || false).unwrap();
    let TravelStop::Hit(Cause::Watch { kind: WatchKind::Write, address }) = stop else { panic!("{stop:?}") };
    assert!((STIRRED..STIRRED + (1 << 20)).contains(&address));
    must_be_back(&mut timeline, &hashes);
}

#[test]
fn a_fork_that_never_ends_can_be_interrupted() {
    let (_directory, mut timeline, hashes) = timeline();
    change_rounds(&mut timeline, u32::MAX);
    for round in 0..2 {
        let (stood, mut asked) = (timeline.position(), 0);
        let stop = timeline.run_forward(&mut || {
            asked += 1;
            asked == 2
        });
        assert_eq!(stop.unwrap(), TravelStop::Interrupted, "round {round}");
        assert_eq!(timeline.position() - stood, 2 * STRETCH);
    }
    must_be_back(&mut timeline, &hashes);
}

#[test]
fn a_fork_that_is_interrupted_just_at_a_breakpoint_has_hit_it() {
    let (_directory, mut timeline, hashes) = timeline();
    // This instruction is executed after the last round of the guest's loop.
    timeline.seek(Instructions(timeline.end().number() - 2), &mut || false).unwrap();
    let behind = Breakpoint::at(timeline.machine().cpu().rip());
    timeline.set_stops(Stops { breakpoints: vec![behind], ..Stops::default() });
    let hit = TravelStop::Hit(Cause::Breakpoint(behind.address));
    let to_the_end = |timeline: &mut Timeline, rounds| {
        timeline.seek(HERE, &mut || false).unwrap();
        change_rounds(timeline, rounds);
        assert_eq!(timeline.run_forward(&mut || false).unwrap(), hit);
        let there = timeline.position();
        must_be_back(timeline, &hashes);
        there - HERE
    };
    // The number of rounds makes the run a little longer than `STRETCH`.
    let many = 100_000;
    let rounds = (STRETCH + 2_000) * u64::from(many) / to_the_end(&mut timeline, many);
    let length = to_the_end(&mut timeline, rounds as u32);
    assert!((STRETCH..STRETCH + 10_000).contains(&length), "{length}");
    change_rounds(&mut timeline, rounds as u32);
    for _ in STRETCH..length {
        timeline.step_forward().unwrap();
    }
    assert_eq!(timeline.run_forward(&mut || true).unwrap(), hit);
    assert_eq!(timeline.position(), HERE + length);
    must_be_back(&mut timeline, &hashes);
}

#[test]
fn what_makes_sense_in_history_only_is_refused_in_a_fork() {
    let (_directory, mut timeline, hashes) = timeline();
    change_rounds(&mut timeline, 3);
    let snapshot = timeline.snapshot().unwrap();
    let never = &mut || false;
    let refusals: [Error; 7] = [
        timeline.seek(Instructions(1), never).unwrap_err(),
        timeline.run_backward(never).unwrap_err(),
        timeline.step_backward(never).unwrap_err(),
        timeline.settle(never).unwrap_err(),
        timeline.hits(Instructions(0), HERE, 1, never).unwrap_err(),
        timeline.return_to(&snapshot).unwrap_err(),
        timeline.resolve(PositionSpec::Branch(1), never).unwrap_err(),
    ];
    for error in refusals.into_iter().chain([timeline.add_checkpoint().unwrap_err()]) {
        let text = error.to_string();
        assert!(matches!(error, Error::Position(_)) && text.contains("begun at instruction 5000"), "{text}");
    }
    must_be_back(&mut timeline, &hashes);
}

#[test]
fn a_fork_goes_on_beyond_the_end_of_the_recording() {
    let directory = tempfile::tempdir().unwrap();
    let script = vec![(7_000_000, Event::Limit)];
    let (recording, _) = record_asleep(directory.path(), "r.ttvm", script);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let end = timeline.end();
    assert_eq!(timeline.seek(end, &mut || false).unwrap(), TravelStop::Reached);
    let state = registers(&mut timeline);
    timeline.change_registers(&state).unwrap();
    // In a fork no events come in, so the halted guest never wakes up.
    assert_eq!(timeline.run_forward(&mut || false).unwrap(), TravelStop::End);
    assert_eq!(timeline.leave_fork().unwrap(), Some(end));
}
