//! Going along long stretches on an engine that counts exits: whatever is found is the same. The other engine
//! is the software one, which can count exits as KVM does; KVM itself goes ahead in the KVM lab.

use tiny_guest::Numbers;
use tiny_guest::stopped::record_with_checkpoints;
use vmm::engine::EngineKind;
use vmm::exits::{from_exit, in_instructions, start_of_last};
use vmm::machine::Hashes;
use vmm::position::{Count, Instructions};
use vmm::recording::Recording;
use vmm::timeline::{FastForward, Timeline, TravelStop};

/// For a guest that is short.
const SMALL: FastForward =
    FastForward { least_steps: 1000, most_steps: 9000, near_steps: 300, engine: EngineKind::Soft };

/// Everything of a machine that a debugger or the future can see.
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
