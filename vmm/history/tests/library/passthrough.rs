//! Tests passed-through devices. The devices' answers, writes and interrupts are recorded and replayed. A replay
//! compares the guest's accesses to the devices.

use devices::passthrough::{AskV1, DmaV1};
use history::recount::in_instructions;
use history::replay::verify::verify;
use history::replay::{Replay, ReplayEnd};
use history::timeline::Timeline;
use machine::error::Error;
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use machine::unit::Unit;
use recording::Recording;
use recording::log::LogRecord;
use recording::pace::CheckpointOptions;
use recording::player::Scrutiny;
use tiny_guest::passed::{BUFFER, record, record_exits};
use tiny_guest::{Numbers, change_log, event_of};

const ROUNDS: u32 = 150;

fn replayed<C: Unit>(recording: &Recording<C>) -> Result<ReplayEnd, Error> {
    Replay::new(recording, Scrutiny::Everything, |_| Ok(())).unwrap().run(None, |_| {})
}

fn often() -> CheckpointOptions {
    CheckpointOptions {
        interval_ns: 3_000,
        min_steps: 3_000,
        page_rest_steps: 0,
        trail_rest_steps: 0,
        slice_steps: 1_000,
        ..CheckpointOptions::default()
    }
}

#[test]
fn recordings_replay_without_the_devices() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        let path = directory.path().join(format!("{seed}.ttvm"));
        let (recording, _) = record(&path, ROUNDS, seed, (seed % 2 == 0).then(often));
        let answers = recording.log.events().filter(|record| record.as_ref().unwrap().event.is_answer());
        assert!(answers.count() > 4 * ROUNDS as usize, "{seed}");
        assert_eq!(replayed(&recording).unwrap(), ReplayEnd::Verified, "{seed}");
        assert!(verify(&recording, None, |_, _| {}).unwrap().equal(), "{seed}");
    }
}

#[test]
fn recordings_by_exits_replay_and_are_recounted() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..10 {
        let path = directory.path().join(format!("{seed}.ttvm"));
        let (recording, _) = record_exits(&path, ROUNDS, seed);
        assert_eq!(replayed(&recording).unwrap(), ReplayEnd::Verified, "{seed}");
        assert!(verify(&recording, None, |_, _| {}).unwrap().equal(), "{seed}");
        let recounted = in_instructions(recording, |_| {}).unwrap();
        assert!(recounted.log.has_system_calls());
        assert_eq!(replayed(&recounted).unwrap(), ReplayEnd::Verified, "{seed}");
    }
}

#[test]
fn every_instruction_can_be_gone_to_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(&directory.path().join("r.ttvm"), ROUNDS, 3, Some(often()));
    let mut numbers = Numbers(5);
    let mut timeline = Timeline::open(&recording).unwrap();
    let mut fresh = Timeline::open(&recording).unwrap();
    for _ in 0..60 {
        let at = Instructions(numbers.below(end.at.count.number()));
        timeline.seek(at, &mut || false).unwrap();
        let here = (timeline.machine_mut().hashes(), timeline.machine_mut().moment());
        timeline.seek(at + 1, &mut || false).unwrap();
        timeline.step_backward(&mut || false).unwrap();
        assert_eq!((timeline.machine_mut().hashes(), timeline.machine_mut().moment()), here);
        fresh.seek(Instructions(0), &mut || false).unwrap();
        fresh.seek(at, &mut || false).unwrap();
        assert_eq!((fresh.machine_mut().hashes(), fresh.machine_mut().moment()), here);
    }
}

#[test]
fn every_changed_answer_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    let (original, _) = record(&path, 20, 1, None);
    type Change = fn(&mut recording::log::EventRecord<Instructions>) -> bool;
    let changes: [(&str, Change); 5] = [
        ("value", |record| match &mut record.event {
            Event::Devices(input) => input
                .value
                .as_mut()
                .map(|value| *value ^= 1)
                .is_some_and(|()| matches!(input.asked, Some(AskV1::Read { .. }))),
            _ => false,
        }),
        ("another ask", |record| match &mut record.event {
            Event::Devices(input) if input.asked.is_some() => {
                input.asked = Some(AskV1::Translate { root: None, first: 7, pages: 7 });
                true
            }
            _ => false,
        }),
        ("memory", |record| match &mut record.event {
            Event::Devices(input) if !input.dma.is_empty() => {
                input.dma.push(DmaV1 { gpa: BUFFER - 8, bytes: vec![0x5a] });
                true
            }
            _ => false,
        }),
        ("a value too few", |record| match &mut record.event {
            Event::Devices(input) => input.value.take().is_some(),
            _ => false,
        }),
        ("no answer", |record| match &mut record.event {
            Event::Devices(input) => input.asked.take().is_some(),
            _ => false,
        }),
    ];
    let mut numbers = Numbers(2);
    for (what, change) in changes {
        let mut tried = 0;
        while tried < 12 {
            let number = 1 + numbers.below(original.log.event_count() as u64 - 1) as usize;
            let mut recording = original.clone();
            let mut changed = false;
            change_log(&mut recording, |log| changed = change(event_of(log, number)));
            if changed {
                tried += 1;
                assert!(
                    matches!(replayed(&recording), Err(Error::Divergence(_))),
                    "{what} of event {number}"
                );
            }
        }
    }
}

#[test]
fn memory_outside_of_ram_and_devices_that_are_not_there_harm_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut recording, _) = record(&directory.path().join("r.ttvm"), 20, 1, None);
    change_log(&mut recording, |log| {
        for record in log.iter_mut() {
            if let LogRecord::Event(record) = record
                && let Event::Devices(input) = &mut record.event
            {
                for gpa in [(4 << 20) - 1, 4 << 20, u64::MAX, 0xC000_0000] {
                    input.dma.push(DmaV1 { gpa, bytes: vec![1; 64] });
                }
                for device in [1, 3, 255] {
                    input.interrupts.push(devices::passthrough::InterruptV1 { device, vector: u16::MAX });
                }
            }
        }
    });
    // The first byte of the write at `(4 << 20) - 1` lies in RAM, so the replay differs from the recording.
    assert!(matches!(replayed(&recording), Err(Error::Divergence(_))));
}

#[test]
fn a_recording_that_was_cut_off_replays_as_far_as_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.ttvm");
    record(&path, 20, 1, None);
    let log = path.join("events.log");
    let whole = std::fs::read(&log).unwrap();
    let mut numbers = Numbers(9);
    for _ in 0..100 {
        let length = whole.len() / 10 + numbers.below(whole.len() as u64 * 9 / 10) as usize;
        std::fs::write(&log, &whole[..length]).unwrap();
        let recording = tiny_guest::open(&path);
        assert_eq!(replayed(&recording).unwrap(), ReplayEnd::Stopped, "{length}");
        let mut timeline = Timeline::open(&recording).unwrap();
        let end = timeline.end();
        timeline.seek(end, &mut || false).unwrap();
    }
}
