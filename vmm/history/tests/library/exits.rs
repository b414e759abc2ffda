//! Tests machines that count exits. The runs are recorded with stops between exits, replayed on an engine that
//! counts only exits, and recounted for time travel. All tests here use the software engine, which can stop a guest
//! in the same way as KVM. The KVM lab tests the KVM engine itself.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cpu::{AddressKind, Bus, Counts, Cpu, CpuState, Traps, Watchpoint};
use history::recount::folders::folder;
use history::recount::in_instructions;
use history::replay::verify::verify;
use history::replay::{self, Replay, ReplayEnd, replay};
use history::timeline::{Timeline, TravelStop};
use machine::config::{MachineConfig, MachineOptions};
use machine::engine::{End, Engine, EngineKind, LandingPlace, Leave};
use machine::error::Error;
use machine::inputs::{Event, PowerOn};
use machine::notation::PositionSpec;
use machine::position::{Count, Exits, Instructions};
use machine::{Machine, RunStop};
use recording::log::EventRecord;
use recording::player::Scrutiny;
use recording::{EVENTS, Opened, Recording};
use tiny_guest::stopped::{open, record, record_spinning, rewrite};
use tiny_guest::write_kernel;

fn stops(recording: &Recording<Exits>) -> usize {
    events_of(recording).into_iter().filter(|record| matches!(record.event, Event::Stopped(_))).count()
}

#[test]
fn a_guest_that_was_stopped_anywhere_replays_by_exits() {
    let directory = tempfile::tempdir().unwrap();
    for seed in [3, 4, 5] {
        let (recording, end) = record(directory.path(), seed);
        assert!(matches!(Opened::open(&recording.path).unwrap(), Opened::ByExits(_)));
        assert!(stops(&recording) > 50, "{} stops", stops(&recording));
        assert!(end.console_bytes > 0, "what was typed is echoed");
        let (_, how) = replay(&recording, None, |_| Ok(()), |_| {}).unwrap();
        assert_eq!(how, ReplayEnd::Verified, "seed {seed}");
    }
}

#[test]
fn a_recounted_recording_is_the_same_run() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), 7);
    let events: Vec<Event> = events_of(&recording).into_iter().map(|record| record.event.clone()).collect();
    let path = recording.path.clone();
    let recounted = in_instructions(recording, |_| {}).unwrap();
    assert!(events.into_iter().eq(events_of(&recounted).into_iter().map(|record| record.event)));
    let last = recounted.log.end.clone().unwrap();
    assert_eq!((last.hashes, last.outcome.clone()), (end.hashes, end.outcome));
    assert_eq!((last.console_bytes, last.console_hash), (end.console_bytes, end.console_hash));
    assert!(last.at.count > Instructions(20_000 * 5), "{:?}", last.at);
    let verified = verify(&recounted, None, |_, _| {}).unwrap();
    assert!(verified.equal() && verified.complete);
    assert!(verified.checkpoints > 0, "it has checkpoints now");
    // At the second opening, the recounted log is only read.
    let made = || std::fs::metadata(folder(&path, Exits(0)).join(EVENTS)).unwrap().modified().unwrap();
    let before = made();
    let again = in_instructions(open(&path), |_| {}).unwrap();
    assert_eq!(again.log, recounted.log);
    assert_eq!(made(), before);
}

#[test]
fn a_timeline_travels_in_a_recounted_recording() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), 9);
    let mut timeline = Timeline::open_with(&in_instructions(recording, |_| {}).unwrap(), 1).unwrap();
    let mut seen = Vec::new();
    for at in [50_000, 90_000, 70_000, 50_000, 90_000, 70_000] {
        assert_eq!(timeline.seek(Instructions(at), &mut || false).unwrap(), TravelStop::Reached);
        seen.push((at, timeline.machine_mut().hashes()));
    }
    seen.sort_by_key(|(at, _)| *at);
    assert!(seen.chunks(2).all(|pair| pair[0].1 == pair[1].1), "the same place is the same state");
    assert_ne!(seen[0].1, seen[2].1);
}

#[test]
fn stops_carry_the_count_of_branches() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), 7);
    let counted: Vec<u64> = events_of(&recording).into_iter().map(|record| record.branches).collect();
    let recounted = in_instructions(recording, |_| {}).unwrap();
    for (branches, record) in counted.into_iter().zip(events_of(&recounted)) {
        let expected = if matches!(record.event, Event::Stopped(_)) { record.branches } else { 0 };
        assert_eq!(branches, expected, "{record:?}");
    }
}

/// An engine that runs beyond a landing place that has a count of branches. The engine does so once for each landing
/// place, or each time.
struct Overshooting {
    inner: Box<dyn Engine>,
    always: bool,
    last: Option<LandingPlace>,
    overshot: std::sync::Arc<AtomicU32>,
}

impl Engine for Overshooting {
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        until: Instructions,
        origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error> {
        let goal = match leave {
            Leave::At(goal) if goal.branches.is_some() => goal,
            _ => return self.inner.run(bus, until, origin, leave),
        };
        if !self.always && self.last.replace(goal) == Some(goal) {
            return self.inner.run(bus, until, origin, leave);
        }
        self.overshot.fetch_add(1, Relaxed);
        // Changes registers and RAM, as if the guest had gone on.
        let ram = self.inner.cpu().ram();
        for page in (0..ram.flags().pages()).step_by(16) {
            ram.replace_bytes(page * guest_ram::PAGE_SIZE, &[0xcc; 64]);
        }
        let mut state = self.inner.state();
        (state.gpr, state.rip) = ([0xbad; 16], 0xbad);
        self.inner.set_state(&state, self.inner.counts());
        Ok(End::Overshot)
    }
    fn overshoots(&self) -> bool {
        true
    }
    fn counts_branches(&self) -> bool {
        true
    }
    fn state(&self) -> CpuState {
        self.inner.state()
    }
    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        self.inner.set_state(state, counts);
    }
    fn cpu(&self) -> &Cpu {
        self.inner.cpu()
    }
    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.inner.set_breakpoints(points);
    }
    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.inner.set_watchpoints(points);
    }
    fn set_traps(&mut self, traps: Traps) {
        self.inner.set_traps(traps);
    }
    fn note_written(&mut self) -> Result<(), Error> {
        self.inner.note_written()
    }
    fn track_writes_anew(&mut self) {
        self.inner.track_writes_anew();
    }
}

#[test]
fn what_was_overshot_is_restored_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), 13);
    let stops = stops(&recording) as u32;
    for always in [false, true] {
        let overshot = std::sync::Arc::new(AtomicU32::new(0));
        let (machine, mut player) = replay::open(&recording).unwrap();
        let mut machine = machine.wrap_engine(|inner| {
            Box::new(Overshooting { inner, always, last: None, overshot: overshot.clone() })
        });
        assert!(matches!(machine.run(Exits::MAX, &mut player).unwrap(), RunStop::Ended(_)));
        assert_eq!(machine.hashes(), end.hashes, "always: {always}");
        // There may be more overshoots than stops. At some places only the registers match, and the machine then runs
        // to the landing place again.
        assert!(overshot.load(Relaxed) >= stops, "{} overshots of {stops}", overshot.load(Relaxed));
    }
}

#[test]
fn a_log_that_names_another_place_diverges() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), 11);
    let mut events = events_of(&recording);
    let stop = events.iter().rposition(|r| matches!(r.event, Event::Stopped(_))).unwrap();
    if let Event::Stopped(stopped) = &mut events[stop].event {
        stopped.ram_digest[0] ^= 1;
    }
    rewrite(&recording, &events);
    let error = replay(&open(&recording.path), None, |_| Ok(()), |_| {}).err().unwrap();
    assert!(matches!(error, Error::Divergence(_)), "{error}");
}

fn events_of<C: Count>(recording: &Recording<C>) -> Vec<EventRecord<C>> {
    recording.log.events().map(Result::unwrap).collect()
}

/// A recorder stops a guest that makes no exit. A log without such a stop could be replayed for ever.
#[test]
fn a_guest_that_makes_no_exit_is_replayed_so_far_and_no_farther() {
    let directory = tempfile::tempdir().unwrap();
    let recording = record_spinning(directory.path(), 200);
    assert_eq!(replay(&recording, None, |_| Ok(()), |_| {}).unwrap().1, ReplayEnd::Verified);
    let all = events_of(&recording);
    let (end, before) = all.split_last().unwrap();
    assert!(stops(&recording) > 100 && matches!(end.event, Event::Ended));
    let mut kept = before[..before.len() / 2].to_vec();
    kept.push(end.clone());
    rewrite(&recording, &kept);
    let cut = open(&recording.path);
    let mut replay = Replay::new(&cut, Scrutiny::Registers, |_| Ok(())).unwrap();
    replay.player.set_most_without_exit(10_000_000);
    let error = replay.run(None, |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), machine::error::exit_code::DIVERGED);
    let told = error.to_string();
    let expected = "the next exit: recorded one within 10000000 instructions, replayed none";
    assert!(told.contains(expected), "{told}");
    let steps = replay.machine.cpu().steps();
    assert!((10_000_000..11_000_000).contains(&steps), "{steps}");
}

/// A guest may make no exit after the log's last record.
#[test]
fn a_recording_that_was_cut_off_is_not_run_on() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), 15);
    let all = events_of(&recording);
    let (mut ends_with_stop, mut ends_with_time) = (0, 0);
    for count in all.len() / 2..all.len() / 2 + 30 {
        rewrite(&recording, &all[..count]);
        let cut = open(&recording.path);
        let last = all[count - 1].at.count;
        let is_stop = matches!(all[count - 1].event, Event::Stopped(_));
        let (machine, end) = replay(&cut, None, |_| Ok(()), |_| {}).unwrap();
        assert_eq!(end, ReplayEnd::Stopped);
        assert_eq!(machine.moment().count, last + u64::from(is_stop));
        let there = Instructions(machine.cpu().steps());
        let recounted = in_instructions(cut, |_| {}).unwrap();
        assert_eq!(recounted.log.event_count(), count);
        assert_eq!(recounted.log.last_moment().count, there);
        ends_with_stop += u64::from(is_stop);
        ends_with_time += u64::from(!is_stop);
    }
    assert!(ends_with_stop > 5 && ends_with_time > 5);
}

#[test]
fn an_engine_that_counts_exits_takes_no_other_machine() {
    let directory = tempfile::tempdir().unwrap();
    let options = MachineOptions {
        kernel: write_kernel(directory.path(), 10),
        memory_bytes: 4 << 20,
        ..MachineOptions::default()
    };
    let (config, images) = MachineConfig::from_options(&options).unwrap();
    let power_on = PowerOn { unix_seconds: 1, seed: [1; 32], columns: 80, rows: 25 };
    let built = Machine::<Exits>::build(
        &config,
        &images,
        &power_on,
        EngineKind { counts_instructions: false, ..EngineKind::SOFT },
    );
    assert!(matches!(built, Err(Error::Unsupported(_))));
}

#[test]
fn a_look_at_an_event_is_at_its_moment() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), 3);
    let recounted = in_instructions(recording.clone(), |_| {}).unwrap();
    let mut timeline = Timeline::open_with(&recounted, 1).unwrap();
    let events: Vec<_> = recording.log.events().map(Result::unwrap).collect();
    assert!(events.len() > 50);
    for (number, event) in events.iter().enumerate() {
        let spec = PositionSpec::Event(number as u64);
        let at = timeline.resolve(spec, &mut || false).unwrap();
        timeline.seek(Instructions(0), &mut || false).unwrap();
        timeline.seek(at, &mut || false).unwrap();
        timeline.idle_at(spec).unwrap();
        assert_eq!(timeline.machine().moment().time_ns, event.at.time_ns, "event {number}: {event:?}");
    }
}
