//! Compares time travel with a simple method. A *walk* goes through the recorded run of `travel.elf` once,
//! instruction by instruction. All answers of the timeline must agree with the walk.

use cpu::{AddressKind, WatchKind, Watchpoint};
use history::replay;
use history::timeline::{Cause, Condition, Timeline, TravelStop};
use machine::position::{Count, Instructions};
use machine::{Format, Machine, RunStop, hash_of};
use tests::random::Random;
use tests::record::open;
use tests::traveller::{SLICE_STEPS, Traveller};

const SEED: u64 = 7;

/// The results of a walk from the first instruction to the last.
struct Walk {
    /// RIP at every step count.
    rips: Vec<u64>,
    /// Step counts at which the next instruction writes the counter.
    writes: Vec<Instructions>,
    /// Hashes of state and RAM at some step counts.
    hashes: Vec<(Instructions, [u8; 32], [u8; 32])>,
}

impl Walk {
    /// RIP at a step count.
    fn rip(&self, at: Instructions) -> u64 {
        self.rips[at.number() as usize]
    }

    /// Returns the step counts before `end` at which the instruction at `rip` is the next instruction.
    fn reaches(&self, rip: u64, end: Instructions) -> Vec<Instructions> {
        (0..end.number()).map(Instructions).filter(|&at| self.rip(at) == rip).collect()
    }
}

fn ram_hash(machine: &Machine<Instructions>) -> [u8; 32] {
    let mut bytes = vec![0; machine.ram().size_bytes() as usize];
    machine.ram().read_bytes(0, &mut bytes);
    hash_of(&bytes)
}

fn walk(traveller: &Traveller, hash_points: &[Instructions]) -> Walk {
    let (mut machine, mut player) = replay::open(&open(&traveller.path)).unwrap_or_else(|e| panic!("{e}"));
    let mut walk = Walk { rips: Vec::new(), writes: Vec::new(), hashes: Vec::new() };
    let mut counter = machine.ram().load_u32(traveller.counter);
    let mut points = hash_points.iter().peekable();
    loop {
        let here = machine.moment().count;
        walk.rips.push(machine.cpu().rip());
        assert_eq!(walk.rips.len() as u64, here.number() + 1);
        if points.next_if(|&&point| point == here).is_some() {
            walk.hashes.push((
                here,
                hash_of(&machine.state().to_bytes(Format::default())),
                ram_hash(&machine),
            ));
        }
        match machine.run(here + 1, &mut player).unwrap_or_else(|e| panic!("{e}")) {
            RunStop::Reached => {}
            RunStop::Ended(_) => break,
            other => panic!("{other:?}"),
        }
        let now = machine.ram().load_u32(traveller.counter);
        if now != counter {
            walk.writes.push(here);
        }
        counter = now;
    }
    walk
}

/// Makes a poll function that never interrupts.
fn on() -> impl FnMut() -> bool {
    || false
}

fn open_timeline(traveller: &Traveller) -> Timeline {
    Timeline::open(&open(&traveller.path)).unwrap_or_else(|e| panic!("{e}"))
}

fn watch(address: u64) -> Watchpoint {
    Watchpoint { space: AddressKind::Linear, address, length: 4, kind: WatchKind::Write }
}

/// The distance between checkpoints in recordings with checkpoints, in steps.
const CHECKPOINT_STEPS: u64 = 100_000;

/// Makes a recording, and walks through it once: RIP at each step, the steps that write the counter, and hashes at some
/// points. Each test makes its own recording, which takes less than a second.
fn prepare(hash_points: usize) -> (tempfile::TempDir, Traveller, Walk) {
    prepare_by(hash_points, Traveller::record)
}

/// Does the same as [`prepare`], but the recording has checkpoints.
fn prepare_with_checkpoints(hash_points: usize) -> (tempfile::TempDir, Traveller, Walk) {
    prepare_by(hash_points, |directory| Traveller::record_with_checkpoints(directory, CHECKPOINT_STEPS))
}

fn prepare_by(
    hash_points: usize,
    record: impl FnOnce(&std::path::Path) -> Traveller,
) -> (tempfile::TempDir, Traveller, Walk) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = record(directory.path());
    let points = Random::new(SEED).points(hash_points, traveller.end.at.count);
    let walk = walk(&traveller, &points);
    assert_eq!(walk.hashes.len(), hash_points);
    (directory, traveller, walk)
}

#[test]
fn seeking_anywhere_gives_the_state_of_a_straight_run() {
    let (_directory, traveller, walk) = prepare(60);
    check_seeks(open_timeline(&traveller), &walk);
}

#[test]
fn seeking_with_checkpoints_gives_the_state_of_a_straight_run() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(60);
    let timeline = open_timeline(&traveller);
    let count = timeline.checkpoints().expect("they were asked for").heads().len();
    assert!(count >= 10, "{count} checkpoints");
    check_seeks(timeline, &walk);
}

fn check_seeks(mut timeline: Timeline, walk: &Walk) {
    let mut random = Random::new(SEED);
    for _ in 0..150 {
        let (point, state, ram) = walk.hashes[random.below(walk.hashes.len() as u64) as usize];
        assert_eq!(timeline.seek(point, &mut on()).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), point);
        assert!(
            hash_of(&timeline.machine().state().to_bytes(Format::default())) == state,
            "seed {SEED}: the state differs at {point}"
        );
        assert!(ram_hash(timeline.machine()) == ram, "seed {SEED}: RAM differs at {point}");
    }
}

#[test]
fn steps_back_from_the_end_are_near_when_nothing_was_replayed_yet() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(1);
    let mut timeline = open_timeline(&traveller);
    let heads: Vec<Instructions> = timeline.checkpoints().unwrap().heads().keys().copied().collect();
    let end = timeline.end();
    let distances: Vec<u64> = heads.iter().rev().map(|&at| end - at).collect();
    // The recorder stops every `SLICE_STEPS` steps, and at the end stores the state of its last stop. So the last
    // checkpoint may be at another distance from the checkpoint before it.
    assert!(distances[0] == 0 && distances[1] < SLICE_STEPS, "{heads:?}");
    assert!((SLICE_STEPS..2 * SLICE_STEPS).contains(&distances[2]), "{heads:?}");
    assert!(distances[3] > 2 * SLICE_STEPS, "{heads:?}");
    timeline.seek(end, &mut on()).unwrap();
    let before = timeline.replayed_steps();
    assert_eq!(timeline.step_backward(&mut on()).unwrap(), TravelStop::Reached);
    assert!(
        timeline.replayed_steps() - before <= SLICE_STEPS,
        "{} replayed",
        timeline.replayed_steps() - before
    );
    for position in distances[1..3].iter().map(|&distance| end - distance) {
        timeline.seek(position, &mut on()).unwrap();
        assert_eq!(timeline.machine().cpu().rip(), walk.rip(position));
    }
}

#[test]
fn running_backward_finds_the_last_hit_and_running_forward_the_next() {
    let (_directory, traveller, walk) = prepare(1);
    check_runs(&traveller, &walk);
}

#[test]
fn running_with_checkpoints_finds_the_same() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(1);
    check_runs(&traveller, &walk);
}

fn check_runs(traveller: &Traveller, walk: &Walk) {
    let end = traveller.end.at.count;
    let calls = walk.reaches(traveller.hook, end);
    assert!(
        calls.len() > 100 && walk.writes.len() > 1000,
        "{} calls, {} writes",
        calls.len(),
        walk.writes.len()
    );
    let mut timeline = open_timeline(traveller);
    let mut random = Random::new(SEED);
    for round in 0..60 {
        let from = random.place(end + 1);
        let (hits, is_break) = if round % 2 == 0 { (&calls, true) } else { (&walk.writes, false) };
        timeline.set_breakpoints(if is_break { vec![traveller.hook] } else { Vec::new() });
        timeline.set_watchpoints(if is_break { Vec::new() } else { vec![watch(traveller.counter)] });

        timeline.seek(from, &mut on()).unwrap();
        let stop = timeline.run_backward(&mut on()).unwrap();
        let expected = hits[..hits.partition_point(|&hit| hit < from)].last().copied();
        assert_eq!(timeline.position(), expected.unwrap_or_default(), "backward from {from}: {stop:?}");
        check_stop(stop, expected.is_some(), is_break, TravelStop::Start, traveller);

        timeline.seek(from, &mut on()).unwrap();
        let stop = timeline.run_forward(&mut on()).unwrap();
        // A breakpoint at the current position has already been reported, so it is not the next hit. A run to a
        // write stops after the write.
        let first = hits.partition_point(|&hit| if is_break { hit <= from } else { hit < from });
        let expected = hits.get(first).map(|&hit| if is_break { hit } else { hit + 1 });
        assert_eq!(timeline.position(), expected.unwrap_or(end), "forward from {from}: {stop:?}");
        check_stop(stop, expected.is_some(), is_break, TravelStop::End, traveller);
    }
}

fn check_stop(stop: TravelStop, hit: bool, is_break: bool, otherwise: TravelStop, traveller: &Traveller) {
    let expected = match (hit, is_break) {
        (false, _) => otherwise,
        (true, true) => TravelStop::Hit(Cause::Breakpoint(traveller.hook)),
        (true, false) => TravelStop::Hit(Cause::Watch { kind: WatchKind::Write, address: traveller.counter }),
    };
    assert_eq!(stop, expected);
}

/// In this test, string instructions take many steps inside a block of code. A run could easily go beyond its last
/// step inside such a block.
#[test]
fn a_run_stops_exactly_at_every_step_count() {
    let (_directory, traveller, walk) = prepare(1);
    let (mut machine, mut player) = replay::open(&open(&traveller.path)).unwrap_or_else(|e| panic!("{e}"));
    let places = (0..traveller.end.at.count.number() - 700).map(Instructions);
    let in_string: Vec<_> = places.filter(|&at| walk.rip(at) == walk.rip(at + 1)).collect();
    let mut random = Random::new(SEED);
    let mut starts: Vec<_> =
        (0..5).map(|_| in_string[random.below(in_string.len() as u64) as usize]).collect();
    starts.sort_unstable();
    for start in starts {
        machine.run(start.saturating_back(30), &mut player).unwrap();
        let (state, maps) = (machine.state(), machine.maps().unwrap());
        let cursor = player.cursor();
        for until in (machine.moment().count.number()..start.number() + 700).map(Instructions) {
            machine.restore(&state, &maps).unwrap();
            player.set_cursor(cursor).unwrap();
            assert_eq!(machine.run(until, &mut player).unwrap(), RunStop::Reached);
            let reached = (machine.moment().count, machine.cpu().rip());
            assert_eq!(reached, (until, walk.rip(until)), "from {start}");
        }
        machine.restore(&state, &maps).unwrap();
        player.set_cursor(cursor).unwrap();
    }
}

#[test]
fn stepping_backward_retraces_every_instruction() {
    let (_directory, traveller, walk) = prepare(1);
    let mut timeline = open_timeline(&traveller);
    let mut random = Random::new(SEED);
    for _ in 0..12 {
        let from = random.place(traveller.end.at.count - 300) + 300;
        timeline.seek(from, &mut on()).unwrap();
        for back in 1..=200 {
            assert_eq!(timeline.step_backward(&mut on()).unwrap(), TravelStop::Reached);
            let here = timeline.position();
            assert_eq!(here, from - back);
            assert_eq!(timeline.machine().cpu().rip(), walk.rip(here), "at {here}");
        }
        for _ in 0..100 {
            assert_eq!(timeline.step_forward().unwrap(), TravelStop::Reached);
            let here = timeline.position();
            assert_eq!(timeline.machine().cpu().rip(), walk.rip(here), "at {here}");
        }
    }
}

#[test]
fn both_ends_of_history_are_ends() {
    let (_directory, traveller, walk) = prepare(1);
    let end = traveller.end.at.count;
    let mut timeline = open_timeline(&traveller);
    assert_eq!(timeline.position(), Instructions(0));
    assert_eq!(timeline.step_backward(&mut on()).unwrap(), TravelStop::Start);
    assert_eq!(timeline.run_backward(&mut on()).unwrap(), TravelStop::Start);
    assert_eq!(timeline.run_forward(&mut on()).unwrap(), TravelStop::End);
    assert_eq!(timeline.position(), end);
    assert_eq!(timeline.step_forward().unwrap(), TravelStop::End);
    assert_eq!(timeline.run_forward(&mut on()).unwrap(), TravelStop::End);
    assert_eq!(timeline.position(), end);
    assert_eq!(timeline.run_backward(&mut on()).unwrap(), TravelStop::Start);
    assert_eq!((timeline.position(), timeline.machine().cpu().rip()), (Instructions(0), walk.rips[0]));
}

/// Tests searches whose hits are far away from the position, with few or many checkpoints on the way, on one core
/// or on several cores.
#[test]
fn all_hits_are_found_whatever_the_number_of_cores() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(1);
    let end = traveller.end.at.count;
    let calls = walk.reaches(traveller.hook, end);
    for threads in [1, 2, 5] {
        let mut timeline = Timeline::open_with(&open(&traveller.path), threads).unwrap();
        timeline.set_breakpoints(vec![traveller.hook]);
        let found = timeline.hits(Instructions(0), end, usize::MAX, &mut on()).unwrap().found;
        assert_eq!(found.iter().map(|hit| hit.before).collect::<Vec<_>>(), calls, "{threads} threads");
        timeline.set_breakpoints(Vec::new());
        timeline.set_watchpoints(vec![watch(traveller.counter)]);
        let half = Instructions(1000)..Instructions(end.number() / 2);
        let found = timeline.hits(half.start, half.end, usize::MAX, &mut on()).unwrap().found;
        let between: Vec<_> = walk.writes.iter().copied().filter(|at| half.contains(at)).collect();
        assert_eq!(found.iter().map(|hit| hit.before).collect::<Vec<_>>(), between, "{threads} threads");
        // Search from the end for a call that happens only once, near the start.
        let first_call = calls[0];
        timeline.seek(end, &mut on()).unwrap();
        timeline.set_watchpoints(Vec::new());
        timeline.set_breakpoints(vec![walk.rips[0]]);
        assert_eq!(
            timeline.run_backward(&mut on()).unwrap(),
            TravelStop::Hit(Cause::Breakpoint(walk.rips[0]))
        );
        assert_eq!(timeline.position(), Instructions(0));
        timeline.seek(first_call - 1, &mut on()).unwrap();
        timeline.set_breakpoints(vec![traveller.hook]);
        assert_eq!(
            timeline.run_forward(&mut on()).unwrap(),
            TravelStop::Hit(Cause::Breakpoint(traveller.hook))
        );
        assert_eq!(timeline.position(), first_call);
    }
}

#[test]
fn whoever_interrupts_stands_at_some_place_of_the_run() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(1);
    let end = traveller.end.at.count;
    let mut random = Random::new(SEED);
    // In a search on several cores, the number of polls depends on the cores' speed. So the test counts only the
    // interruptions of searches on one core.
    let mut interrupted = [0_u32; 4];
    for round in 0..60 {
        let threads = 1 + round % 3;
        let mut timeline = Timeline::open_with(&open(&traveller.path), threads).unwrap();
        timeline.seek(random.place(end + 1), &mut on()).unwrap();
        timeline.set_watchpoints(vec![watch(0x10)]);
        let mut polls = random.below(4);
        let mut poll = || {
            polls = polls.saturating_sub(1);
            polls == 0
        };
        let stop = match round % 4 {
            0 => timeline.seek(random.place(end + 1), &mut poll).unwrap(),
            1 => timeline.run_backward(&mut poll).unwrap(),
            2 => timeline.run_forward(&mut poll).unwrap(),
            _ => {
                let hits = timeline.hits(Instructions(0), end, 10, &mut poll).unwrap();
                assert!(hits.found.is_empty());
                hits.interrupted_at.map_or(TravelStop::Reached, |_| TravelStop::Interrupted)
            }
        };
        interrupted[round % 4] += u32::from(threads == 1 && stop == TravelStop::Interrupted);
        let here = timeline.position();
        // The walk has no RIP for the end.
        let expected = walk.rips.get(here.number() as usize).copied();
        let rip = timeline.machine().cpu().rip();
        assert!(
            expected.is_none_or(|expected| expected == rip),
            "round {round}: {stop:?} at {here}, RIP {rip:#x}"
        );
        let next = random.place(end);
        assert_eq!(timeline.seek(next, &mut on()).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.machine().cpu().rip(), walk.rip(next), "round {round}");
    }
    // In the rounds with one worker, each kind of movement must have been interrupted at least twice. At least 15
    // of these 20 rounds must have been interrupted.
    assert!(interrupted.iter().all(|&count| count >= 2), "{interrupted:?} of 5 each");
    assert!(interrupted.iter().sum::<u32>() >= 15, "{interrupted:?} of 5 each");
}

#[test]
fn console_text_and_changed_contents_are_found_where_they_come_about() {
    let (_directory, traveller, walk) = prepare_with_checkpoints(1);
    let end = traveller.end.at.count;
    let mut timeline = open_timeline(&traveller);
    let condition = |text: &str| text.parse::<Condition>().unwrap_or_else(|error| panic!("{error}")).0;
    timeline.set_stops(condition("console:halted"));
    let texts = timeline.hits(Instructions(0), end, 100, &mut on()).unwrap().found;
    assert_eq!(texts.len(), 2, "{texts:?}");
    for hit in texts {
        assert_eq!((hit.cause, hit.after), (Cause::Console(1), hit.before + 1));
        for (at, shown) in [(hit.before, false), (hit.after, true)] {
            timeline.seek(at, &mut on()).unwrap();
            assert_eq!(timeline.machine().console().text().ends_with(b"halted"), shown, "at {at}");
        }
    }
    // Every write to the counter changes its value. The code at `hook` never changes.
    for (address, expected) in [(traveller.counter, walk.writes.len()), (traveller.hook, 0)] {
        timeline.set_stops(condition(&format!("change:{address:#x}+4")));
        let changes = timeline.hits(Instructions(0), end, usize::MAX, &mut on()).unwrap().found;
        assert_eq!(changes.len(), expected, "{address:#x}");
    }
    timeline.set_stops(condition(&format!("write-phys:{:#x}+4", traveller.counter)));
    let writes = timeline.hits(Instructions(0), end, usize::MAX, &mut on()).unwrap().found;
    assert_eq!(writes.iter().map(|hit| hit.before).collect::<Vec<_>>(), walk.writes);
}
