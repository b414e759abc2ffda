//! Tests that a breakpoint has as many hits as its instruction is executed. The test counts the hits forward,
//! backward and by a search, and compares with counters in the guest.

use std::collections::BTreeMap;
use std::process::Command;

use history::timeline::{Cause, Hit, Timeline, TravelStop};
use machine::config::MachineOptions;
use machine::position::Instructions;
use machine::script::Script;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository, with_files};
use tests::record::{open, record};

/// Makes the linker put the test's program at addresses that nothing else in the guest has.
const ADDRESSES: &str = "-Wl,-Ttext-segment=0x50000000";
const PLACES: usize = 50;

/// Runs from hit to hit until there are no more hits. Returns the positions and addresses of the hits.
fn hits_of_runs(timeline: &mut Timeline, is_forward: bool) -> Vec<(Instructions, u64)> {
    let mut found = Vec::new();
    loop {
        let poll = &mut || false;
        let stop = if is_forward { timeline.run_forward(poll) } else { timeline.run_backward(poll) };
        match stop.unwrap_or_else(|error| panic!("{error}")) {
            TravelStop::Hit(Cause::Breakpoint(address)) => found.push((timeline.position(), address)),
            TravelStop::Start | TravelStop::End => return found,
            stop => panic!("{stop:?}"),
        }
    }
}

/// The guest of this test has code in pages that are not yet present, several processes, signals and timer
/// interrupts.
#[test]
fn hits_are_as_many_as_calls_whichever_way_one_counts() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (root, initrd) = (directory.path().join("root"), directory.path().join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    let compiled = Command::new("gcc")
        .args(["-O1", "-static", "-no-pie", "-fno-pie", ADDRESSES, "-o"])
        .arg(root.join("counted"))
        .arg(repository().join("tests/tests/system/programs/counted.c"))
        .status();
    assert!(compiled.expect("gcc must be installed: run scripts/setup").success());
    with_files(&BUSYBOX, &root, &initrd);
    let options = linux_options(&CLOUD, &BUSYBOX, "ttvm.run=/counted", 128);
    let guest = Guest::new(&MachineOptions { initrd: Some(initrd), ..options });
    let path = directory.path().join("counted.ttvm");
    let mut script = Script::silent();
    record(&guest, &path, &mut script);
    let console = script.text();
    assert!(console.contains("that was all"), "{console}");
    let calls = console.lines().filter_map(|line| {
        let (address, count) = line.strip_prefix("called 0x")?.split_once(' ')?;
        Some((u64::from_str_radix(address, 16).ok()?, count.trim().parse().ok()?))
    });
    let calls: BTreeMap<u64, usize> = calls.collect();
    assert_eq!(calls.len(), PLACES, "{console}");
    assert!(calls.values().all(|&count| count > 3), "{calls:?}");

    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_breakpoints(calls.keys().copied().collect());
    let found = timeline.hits(Instructions(0), timeline.end(), usize::MAX, &mut || false);
    let place = |hit: &Hit| match hit.cause {
        Cause::Breakpoint(address) => (hit.before, address),
        cause => panic!("{cause:?}"),
    };
    let searched: Vec<_> = found.unwrap_or_else(|error| panic!("{error}")).found.iter().map(place).collect();
    let mut counted = BTreeMap::new();
    searched.iter().for_each(|&(_, address)| *counted.entry(address).or_insert(0) += 1);
    assert_eq!(counted, calls, "the search and the guest's own counters");
    let forward = hits_of_runs(&mut timeline, true);
    assert!(forward == searched, "{} hits forward, {} by the search", forward.len(), searched.len());
    let mut backward = hits_of_runs(&mut timeline, false);
    backward.reverse();
    assert!(backward == searched, "{} hits backward, {} by the search", backward.len(), searched.len());
}
