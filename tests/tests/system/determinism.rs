//! Two runs of one guest are equal. A run that is saved at random instructions, restored into another machine and
//! continued is equal, too.
//!
//! `TTVM_RESTORES=1000 cargo test --release -p tests determinism` runs the full version: the run is saved at 1,000
//! points, and continued in a new process each time. Without the variable there are fewer points, and most runs
//! continue on a new machine in the same process.

use std::path::Path;
use std::process::Command;

use checkpoint::Maps;
use cpu::TurnPolicy;
use machine::config::Processors;
use machine::position::Instructions;
use machine::script::Script;
use machine::{Format, Machine, MachineState, Outcome, hash_of};
use recording::Manifest;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options};
use tests::random::Random;
use tests::run::{Fingerprint, assert_shows, fingerprint, run_to_end, run_until};
use tests::saved::{Saved, through_bytes};

const SEED: u64 = 2026;
const SHORT_RESTORES: usize = 60;
/// In the short version, the run continues in a new process at every tenth point.
const SHORT_PROCESS_EVERY: usize = 10;
/// After every fourth point, a restored machine that keeps its caches runs the stretch to the next point a second
/// time.
const WARM_EVERY: usize = 4;
/// The test hashes RAM and disk at every eighth point. The test hashes the rest of the state at each point.
const HASH_EVERY: usize = 8;

/// The guest's commands, which use floating point, processes, page faults, signals, idle time, and a file system on
/// a disk.
const WORK: &str = "
    while read m; do insmod /lib/modules/$m; done </lib/modules/root;
    awk 'BEGIN { for (i = 1; i < 3000; i++) s += i * 1.5 / (i % 7 + 0.25) - s / 3; print s }';
    for i in 1 2 3 4 5 6 7 8; do ls -l /bin | md5sum; done;
    trap 'echo caught' USR1; kill -USR1 $$; sh -c 'kill -SEGV $$'; echo status $?;
    sleep 0.2; dd if=/dev/vda bs=64k count=16 2>/dev/null | sha256sum;
    mke2fs /dev/vda >/dev/null; mount -t ext2 /dev/vda /mnt; cp /bin/busybox /mnt; sync;
    umount /mnt; mount -t ext2 /dev/vda /mnt; md5sum </mnt/busybox; ls -1 /mnt; dmesg | tail -3";

/// The commands of a guest with several processors. The commands start programs that run at the same time, with
/// pipes between them, and a thread that moves between processors.
const WORK_OF_SEVERAL: &str = "
    while read m; do insmod /lib/modules/$m; done </lib/modules/root;
    for j in 1 2 3 4; do (for i in 1 2 3 4 5 6; do ls -l /bin /sys/kernel | md5sum; done) & done; wait;
    for cpu in 3 1 2 0; do taskset -p $((1 << cpu)) $$ >/dev/null; cat /proc/uptime >/dev/null; done;
    (sleep 0.1; echo caught) & dd if=/dev/vda bs=64k count=16 2>/dev/null | sha256sum; wait;
    sh -c 'kill -SEGV $$'; echo status $?;
    mke2fs /dev/vda >/dev/null; mount -t ext2 /dev/vda /mnt; cp /bin/busybox /mnt; sync; ls -1 /mnt;
    grep -c processor /proc/cpuinfo; dmesg | grep -iE 'stall|lockup|unstable'";

fn guest(directory: &Path, work: &str, processors: Processors) -> Guest {
    let disk = directory.join("disk.img");
    let mut random = Random::new(SEED);
    let contents: Vec<u8> = (0..1 << 20).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    std::fs::write(&disk, contents).expect("the folder is ours");
    let work = work.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut options = linux_options(&CLOUD, &BUSYBOX, &format!("ttvm.run=\"{work}\""), 128);
    options.disk = Some(disk);
    options.processors = processors;
    Guest::new(&options)
}

/// The results at the end of a run.
#[derive(PartialEq, Eq)]
struct End {
    outcome: Outcome,
    fingerprint: Fingerprint,
    console: String,
}

impl End {
    fn assert_equal(&self, other: &End, what: &str) {
        assert_eq!(self.console, other.console, "{what}: the consoles differ");
        assert_eq!(self.fingerprint, other.fingerprint, "{what}: the machines differ at the end");
        assert_eq!(self.outcome, other.outcome, "{what}");
    }
}

fn run_straight(guest: &Guest) -> End {
    let mut machine = guest.machine();
    let mut script = Script::silent();
    let outcome = run_to_end(&mut machine, &mut script);
    for text in ["caught\n", "status 139\n", "busybox\n", "ttvm.run: exit status 0\n"] {
        assert_shows(&script, text);
    }
    End { outcome, fingerprint: fingerprint(&mut machine), console: script.text() }
}

/// The machine at each point where it will be saved.
struct Stops {
    points: Vec<Instructions>,
    states: Vec<[u8; 32]>,
    hashes: Vec<Option<Fingerprint>>,
}

fn run_with_stops(guest: &Guest, points: Vec<Instructions>) -> (Stops, End) {
    let mut machine = guest.machine();
    let mut script = Script::silent();
    let mut stops = Stops { points, states: Vec::new(), hashes: Vec::new() };
    for (number, &point) in stops.points.iter().enumerate() {
        assert_eq!(run_until(&mut machine, point, &mut script), None, "at point {number}, {point}");
        stops.states.push(hash_of(&machine.state().to_bytes(Format::V6)));
        stops.hashes.push(number.is_multiple_of(HASH_EVERY).then(|| fingerprint(&mut machine)));
    }
    let outcome = run_to_end(&mut machine, &mut script);
    let end = End { outcome, fingerprint: fingerprint(&mut machine), console: script.text() };
    (stops, end)
}

impl Stops {
    fn check(&self, number: usize, machine: &mut Machine<Instructions>) {
        let point = self.points[number];
        assert_eq!(machine.moment().count, point);
        assert!(
            hash_of(&machine.state().to_bytes(Format::V6)) == self.states[number],
            "seed {SEED}: differs at point {number}, {point}"
        );
        if let Some(expected) = self.hashes[number] {
            assert_eq!(
                fingerprint(machine),
                expected,
                "seed {SEED}: RAM or disk differ at point {number}, {point}"
            );
        }
    }
}

/// Saves the parts of a machine at a point: serializes them and reads them back.
fn save(machine: &mut Machine<Instructions>) -> (MachineState, Maps) {
    (through_bytes(&machine.state()), machine.maps().unwrap())
}

/// Continues in a new process. Returns the console's text.
fn continue_in_process(
    guest: &Guest,
    machine: &mut Machine<Instructions>,
    until: Instructions,
    directory: &Path,
) -> Vec<u8> {
    let path = |name: &str| directory.join(name);
    std::fs::write(path("config"), Manifest::new(guest.config.clone()).text()).expect("ours");
    Saved::of(machine).write(&path("input"));
    let program = env!("CARGO_BIN_EXE_continue_run");
    let mut command = Command::new(program);
    command.arg(path("config")).arg(path("input")).arg(until.to_string()).arg(directory);
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Saved::read(&path("saved")).restore(machine);
    std::fs::read(path("console")).expect("the process wrote it")
}

/// Runs from point to point. Each stretch runs in a new machine with empty caches, or in another process. Some
/// stretches run a second time, on a machine that is restored in the same way as `Timeline` does. Such a machine
/// keeps its caches.
fn run_with_restores(guest: &Guest, stops: &Stops, process_every: usize, directory: &Path) -> End {
    let (mut machine, mut warm) = (guest.machine(), guest.machine());
    let mut script = Script::silent();
    let mut at_process = None;
    let mut console = Vec::new();
    for (number, &point) in stops.points.iter().enumerate() {
        if at_process == Some(number) {
            console.extend(continue_in_process(guest, &mut machine, point, directory));
        } else {
            let before = script.output().len();
            assert_eq!(run_until(&mut machine, point, &mut script), None, "at point {number}, {point}");
            console.extend_from_slice(&script.output()[before..]);
        }
        stops.check(number, &mut machine);
        at_process = (number + 1).is_multiple_of(process_every).then_some(number + 1);
        let (state, maps) = save(&mut machine);
        let restore = |to: &mut Machine<Instructions>| {
            to.restore(&state, &maps).unwrap_or_else(|error| panic!("{error}"));
        };
        if let Some(&next) = stops.points.get(number + 1)
            && number.is_multiple_of(WARM_EVERY)
        {
            restore(&mut warm);
            assert_eq!(
                run_until(&mut warm, next, &mut Script::silent()),
                None,
                "warm, at point {number}, {point}"
            );
            stops.check(number + 1, &mut warm);
        }
        machine = guest.machine();
        restore(&mut machine);
    }
    let before = script.output().len();
    let outcome = run_to_end(&mut machine, &mut script);
    console.extend_from_slice(&script.output()[before..]);
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    End { outcome, fingerprint: fingerprint(&mut machine), console }
}

#[test]
fn a_run_saved_and_restored_at_random_instructions_is_the_same_run() {
    check_restores(WORK, Processors::default());
}

#[test]
fn a_run_of_four_processors_saved_and_restored_at_random_instructions_is_the_same_run() {
    check_restores(WORK_OF_SEVERAL, four());
}

#[test]
fn a_run_with_random_turns_saved_and_restored_at_random_instructions_is_the_same_run() {
    let turns = TurnPolicy::Random { seed: SEED };
    check_restores(WORK_OF_SEVERAL, four().with_turns(turns).expect("four take turns"));
}

fn four() -> Processors {
    Processors::new(4).expect("the number is possible")
}

fn check_restores(work: &str, processors: Processors) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let guest = guest(directory.path(), work, processors);
    let wanted = std::env::var("TTVM_RESTORES").ok();
    let full = wanted.map(|text| text.parse().expect("TTVM_RESTORES is a number of points"));
    let (count, process_every) = full.map_or((SHORT_RESTORES, SHORT_PROCESS_EVERY), |count| (count, 1));

    let straight = run_straight(&guest);
    let end = straight.fingerprint.at.count;
    let points = Random::new(SEED).points(count, end);
    let (stops, stopped) = run_with_stops(&guest, points);
    stopped.assert_equal(&straight, "a second run, with stops");
    let restored = run_with_restores(&guest, &stops, process_every, directory.path());
    restored.assert_equal(&straight, "the run with restores");
    println!("{end} instructions, {count} restores");
}
