//! Tests gdb on a recording of a guest with four processors. gdb shows each processor as a thread. A step goes to
//! the next instruction of the selected processor, or back to its previous instruction. The test compares gdb's
//! answers with single steps of the machine.

use cpu::Traps;
use history::timeline::{Stops, Timeline};
use machine::config::{MachineOptions, Processors};
use machine::position::{Count, Instructions};
use machine::script::Script;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository};
use tests::record::{open, record};

const COUNT: usize = 4;
/// The largest number of instructions before and after a position in which the test looks for a turn of each
/// processor.
const STEPS: u64 = 3_000_000;

/// RIP and RSP of a processor at a position.
type Place = (u64, u64);

fn places(timeline: &Timeline) -> Vec<Place> {
    let of =
        |processor: machine::Processor<'_, Instructions>| (processor.state().rip, processor.state().gpr[4]);
    timeline.machine().all_processors().map(of).collect()
}

fn seek(timeline: &mut Timeline, to: Instructions) {
    timeline.set_stops(Stops::default());
    timeline.seek(to, &mut || false).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the step count of the machine at which a processor executes its next step.
fn next_step(timeline: &mut Timeline, processor: usize) -> Instructions {
    let end = timeline.position() + STEPS;
    while timeline.machine().cpu().seat() != processor {
        assert!(timeline.position() < end, "processor {processor} does not run near here");
        let traps = Traps { turns: true, ..Traps::default() };
        timeline.set_stops(Stops { traps, ..Stops::default() });
        timeline.run_forward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
    }
    timeline.position()
}

/// Returns the step count of the machine at which a processor executed its last step before a position.
fn last_step(timeline: &mut Timeline, processor: usize, place: Instructions) -> Instructions {
    let traps = Traps { turns: true, ..Traps::default() };
    timeline.set_stops(Stops { traps, ..Stops::default() });
    let hits = timeline.hits(place.saturating_back(STEPS), place, 100_000, &mut || false);
    let turns = hits.unwrap_or_else(|error| panic!("{error}")).found;
    let is_its = |turn: &&history::timeline::Hit| turn.processor == processor && turn.after <= place;
    let last = turns.iter().rev().find(is_its);
    last.unwrap_or_else(|| panic!("processor {processor} does not run near {place}")).before
}

/// Returns the numbers in a line, also numbers in parentheses.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn each_processor_is_a_thread() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("processors.ttvm");
    let commands = [
        "for i in 1 2 3 4 5 6; do (n=0; while [ $((n += 1)) -lt 60000 ]; do :; done) & done; wait",
        "poweroff -f",
    ];
    let processors = Processors::new(COUNT as u8).expect("it is a number of processors");
    let options = MachineOptions { processors, ..linux_options(&CLOUD, &BUSYBOX, "", 128) };
    record(&Guest::new(&options), &path, &mut Script::shell(&commands));
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let said = batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        let script =
            format!("source {}", repository().join("tests/tests/system/steps/processors.py").display());
        batch::attach(&mut gdb, socket, &[script]);
        gdb
    });

    let mut compared = 0;
    for line in said.lines() {
        let numbers = numbers(line);
        match line.split(' ').next() {
            Some("at") => {
                seek(&mut timeline, Instructions(numbers[0]));
                assert_eq!(numbers[1] as usize, timeline.machine().cpu().seat() + 1, "{line}");
                let shown: Vec<u64> = places(&timeline).iter().flat_map(|&(rip, rsp)| [rip, rsp]).collect();
                assert_eq!(numbers[2..], shown, "{line}");
            }
            Some("step") => {
                let [here, wanted, thread, after, rip, rsp] = numbers[..] else { panic!("{line}") };
                seek(&mut timeline, Instructions(here));
                let processor = wanted as usize - 1;
                let step = next_step(&mut timeline, processor);
                seek(&mut timeline, step + 1);
                assert_eq!((thread, after), (wanted, step.0 + 1), "{line}");
                assert_eq!(places(&timeline)[processor], (rip, rsp), "{line}");
                assert!(line.ends_with("True"), "{line}");
                compared += 1;
            }
            Some("back") => {
                let [here, wanted, thread, at, rip, rsp] = numbers[..] else { panic!("{line}") };
                let processor = wanted as usize - 1;
                let here = Instructions(here);
                seek(&mut timeline, here - 1);
                let is_its = timeline.machine().cpu().seat() == processor;
                let expected = if is_its { here - 1 } else { last_step(&mut timeline, processor, here) };
                seek(&mut timeline, expected);
                assert_eq!((thread, at), (wanted, expected.0), "{line}");
                assert_eq!(places(&timeline)[processor], (rip, rsp), "{line}");
                compared += 1;
            }
            _ => {}
        }
    }
    assert_eq!(compared, 4 * 2 * COUNT, "{said}");
    for expected in [
        "only the processor that executes the next instruction can be changed: select thread",
        "(vCPU 0, ",
        "(vCPU 3, sh, pid ",
        "threads True [1, 2, 3, 4]",
        "init True",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    assert!(!said.contains("changed\n"), "{said}");
}
