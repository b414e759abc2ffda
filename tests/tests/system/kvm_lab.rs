//! Tests KVM in the lab (`scripts/kvm-lab`). On small programs, KVM must have the same results as the software CPU,
//! and stop exactly at the wanted position. A recording made under KVM must replay in the lab, and, after packing,
//! also outside of the lab on the software engine. The short form records a guest of a few instructions, and runs
//! every fourth small program. The long form runs all small programs. The long form also records a stock kernel
//! that gets typed input and reads its disk, and then tests time travel in the recording.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use history::recount::{from_exit, in_instructions, start_of_last};
use history::replay::verify::{Origin, verify};
use history::timeline::{Timeline, TravelStop};
use machine::inputs::Event;
use machine::position::{Count, Exits, Instructions};
use recording::pack::{pack, unpack};
use recording::{Opened, Recording};
use serde_json::Value;
use tests::guests::{BUSYBOX, CLOUD_ELF, small_kernel};
use tests::lab::{Left, built};
use tests::program::ttvm;

/// A replay's last message.
const EQUAL: &str = "replayed to the end: console, counts and hashes are equal";
/// The number of seconds after which the test assumes that a machine of the lab hangs. Without other work on the
/// host, the machine takes five minutes. Other builds at the same time make the test several times as long.
const HANGS_S: u64 = 1_800;

/// How often the long form records a stock kernel.
const ROUNDS: &str = "TTVM_LAB_ROUNDS";

/// Runs ttvm's check of KVM, every `$EVERY`th case of the table of cases on KVM, and a recording of a small guest.
const PARTS: &str = r#"
./ttvm doctor >out/doctor
mkdir -p /etc
echo 'user:x:65534:65534::/:/bin/sh' >/etc/passwd
su user -c './ttvm run --engine kvm --kernel vmlinux' >out/refused 2>&1
echo "exit $?" >>out/refused
set -e
CASES_EVERY=$EVERY ./cases --nocapture >out/cases 2>&1
./failures --nocapture >out/failures 2>&1
TTVM_LANDINGS=100 ./landings --nocapture >out/landings 2>&1
printf 'typed keys' | ./ttvm record -o small.ttvm --engine kvm --slow-clock 64 --checkpoint-interval 1ms --checkpoint-overhead 4% \
    --memory 16M --kernel small --debug-exit >out/console 2>out/told || [ $? = 1 ]
./ttvm replay --engine kvm --verify --quiet small.ttvm >out/replayed 2>&1
./ttvm pack small.ttvm -o out/small.packed
"#;

/// Records a boot with typed input and a disk, replays the recording in the lab, and packs the recording. Does all
/// this `$ROUNDS` times. The disk is small, and its contents are known. During the run, SIGSTOP stops the recorder
/// for seconds, and the host suspends to RAM. The recorder stops after nearly every exit, to find out whether a
/// checkpoint is due. In the replay, both engines must reach the positions of all these stops.
const BOOT: &str = r#"
# A driver that takes long to start throws away what fills its FIFO: sixteen keys.
printf '\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\necho sum $((6 * 7))
md5sum /dev/vda
poweroff -f
' >keys
# Waits until the log has so many bytes.
recorded() {
    while [ "$(cat lab.ttvm/events.log 2>/dev/null | wc -c)" -lt "$1" ]; do
        kill -0 $recorder || exit 1
        sleep 0.1
    done
}
for round in $(seq $ROUNDS); do
    ./ttvm record -o lab.ttvm --engine kvm --slow-clock 64 --wait-for-exit 10000 --checkpoint-interval 20us \
        --checkpoint-overhead 4% --kernel vmlinux --initrd initrd.gz \
        --disk disk --memory 128M --cmdline "console=ttyS0 quiet" <keys >out/console-$round 2>out/told-$round &
    recorder=$!
    # What is printed here is shown if the lab hangs.
    echo "round $round: recording"
    recorded 8000
    kill -STOP $recorder
    sleep 3
    kill -CONT $recorder
    recorded 16000
    echo "round $round: suspending" # the lab wakes what sleeps
    echo mem >/sys/power/state
    echo "round $round: awake"
    wait $recorder || exit 1
    echo "round $round: replaying"
    dmesg | grep -c "Waking up from system sleep state S3" >out/suspended-$round
    ./ttvm replay --engine kvm --verify --quiet lab.ttvm >out/replayed-$round 2>&1 || exit 1
    ./ttvm pack lab.ttvm -o out/lab-$round.packed
    rm -r lab.ttvm
done
"#;

/// Records a boot without ACPI's description of the PCI bus, and replays the recording in the lab.
const WITHOUT_ACPI: &str = r#"
./ttvm record -o lab.ttvm --engine kvm --slow-clock 64 --kernel vmlinux --initrd initrd.gz --disk disk --memory 128M \
    --cmdline 'console=ttyS0 quiet pci=noacpi ttvm.run="md5sum /dev/vda"' </dev/null >out/console 2>out/told || exit 1
./ttvm replay --engine kvm --verify --quiet lab.ttvm >out/replayed 2>&1 || exit 1
./ttvm pack lab.ttvm -o out/lab.packed
"#;

/// The largest distance in instructions from a checkpoint to a position, unless the next checkpoint is nearer. The
/// distance is so long that KVM runs a part of the way.
const BEHIND_CHECKPOINT: u64 = 150_000_000;
/// If two events are farther apart than this number of instructions, the test expects that KVM runs between them in
/// a replay. The software CPU runs the last part of the replay.
const FROM_EVENT_TO_EVENT: u64 = 30_000_000;

/// Opens the recording of this name that was packed in the lab. The recording counts exits.
fn recording(left: &Left, name: &str) -> Recording<Exits> {
    let path = left.folder().join(format!("{name}.ttvm"));
    let packed = left.folder().join(format!("{name}.packed"));
    unpack(&packed, &path, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    match Opened::open(&path).unwrap_or_else(|error| panic!("{error}")) {
        Opened::ByExits(recording) => recording,
        Opened::ByInstructions(_) => panic!("{} counts instructions", path.display()),
    }
}

#[test]
fn kvm_does_as_the_software_cpu_does() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (ttvm, kernel, small) = (ttvm(), CLOUD_ELF.path(), small_kernel(directory.path()));
    let tests = built(&["cases", "failures", "landings"]);
    let tests = tests.iter().map(|(name, path)| (name.as_str(), path.as_path()));
    let files: Vec<_> =
        [("ttvm", &*ttvm), ("vmlinux", &*kernel), ("small", &*small)].into_iter().chain(tests).collect();
    let every = if std::env::var_os(ROUNDS).is_some() { 1 } else { 4 };
    let left = Left::by(&[], &format!("EVERY={every}\n{PARTS}"), HANGS_S, &files);
    let doctor = left.file("doctor");
    assert!(doctor.contains("ok   kernel-mode instructions"), "{doctor}");
    assert!(doctor.contains("--   branch counter"), "{doctor}");
    let refused = left.file("refused");
    assert!(refused.contains("add yourself to the group kvm") && refused.ends_with("exit 5\n"), "{refused}");
    let [cases, failures, landings] = ["cases", "failures", "landings"].map(|name| left.file(name));
    for ran in [&cases, &failures, &landings] {
        assert!(!ran.contains("skipped"), "{ran}");
    }
    assert!(cases.contains("KVM as ttvm-v2.1-kvm-tcg: "), "{cases}");
    assert!(landings.contains("100 landings in"), "{landings}");
    assert_eq!(left.file("console"), "typed keys", "{}", left.small_files());
    assert!(left.file("replayed").contains(EQUAL), "{}", left.file("replayed"));
    let recording = recording(&left, "small");
    assert!(recording.log.events().count() > 20, "the timer comes due often");
    equal_at_home(&recording);
}

/// `TTVM_LAB_ROUNDS` sets how often the kernel is recorded.
#[test]
fn a_stock_kernel_under_kvm_replays_there_and_on_the_software_engine() {
    let Some(rounds) = std::env::var_os(ROUNDS) else {
        return skip::test("the short form records a small guest; TTVM_LAB_ROUNDS=1 records a stock kernel");
    };
    let rounds = rounds.to_str().and_then(|text| text.parse().ok()).expect("TTVM_LAB_ROUNDS is a number");
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (disk, sum) = disk(directory.path());
    let (ttvm, kernel, initrd) = (ttvm(), CLOUD_ELF.path(), BUSYBOX.path());
    let files = [("ttvm", &*ttvm), ("vmlinux", &kernel), ("initrd.gz", &initrd), ("disk", &disk)];
    let left = Left::by(&[], &format!("ROUNDS={rounds}\n{BOOT}"), HANGS_S * rounds, &files);
    for round in 1..=rounds {
        let console = left.file(&format!("console-{round}"));
        assert!(console.contains("\nsum 42"), "{console}");
        assert!(console.contains(&sum), "{sum}\n{console}");
        assert_eq!(left.file(&format!("suspended-{round}")).trim(), round.to_string());
        let replayed = left.file(&format!("replayed-{round}"));
        assert!(replayed.contains(EQUAL), "{replayed}");
        let way = replays_at_home(recording(&left, &format!("lab-{round}")));
        if round == 1 {
            travels_under_kvm(&ttvm, left.folder(), way);
        }
    }
}

/// Makes a small disk. Returns its path and MD5 sum.
fn disk(directory: &Path) -> (PathBuf, String) {
    let disk = directory.join("disk");
    let contents: Vec<u8> = (0..1_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&disk, contents).expect("the disk can be written");
    let sum = Command::new("md5sum").arg(&disk).output().expect("the host has md5sum").stdout;
    (disk, String::from_utf8_lossy(&sum[..32]).into_owned())
}

/// With `pci=noacpi`, the kernel puts the disk's registers directly after RAM, and gets the disk's interrupts
/// through the 8259.
#[test]
fn a_stock_kernel_reads_its_disk_without_acpi_under_kvm() {
    if std::env::var_os(ROUNDS).is_none() {
        return skip::test("the short form records a small guest; TTVM_LAB_ROUNDS=1 records a stock kernel");
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (disk, sum) = disk(directory.path());
    let (ttvm, kernel, initrd) = (ttvm(), CLOUD_ELF.path(), BUSYBOX.path());
    let files = [("ttvm", &*ttvm), ("vmlinux", &kernel), ("initrd.gz", &initrd), ("disk", &disk)];
    let left = Left::by(&[], WITHOUT_ACPI, HANGS_S, &files);
    let console = left.file("console");
    assert!(console.contains(&sum), "{sum}\n{console}");
    assert!(left.file("replayed").contains(EQUAL), "{}", left.file("replayed"));
    equal_at_home(&recording(&left, "lab"));
}

/// Returns ttvm's output, without the parts that depend on the way on which ttvm came to the position.
fn printed(json: &[u8]) -> Value {
    let mut found: Value = serde_json::from_slice(json).expect("JSON is printed");
    found.as_object_mut().expect("an object").remove("replayed");
    found
}

/// In the first recording, the software CPU goes to a position after a checkpoint, and finds a hit of a breakpoint
/// near this position. In the lab, KVM must find the same position and the same hit.
fn travels_under_kvm(ttvm: &Path, folder: &Path, way: Range<Instructions>) {
    std::fs::rename(folder.join("lab-1.ttvm"), folder.join("lab.ttvm")).expect("both are in one folder");
    let tar = folder.join("lab.tar");
    let made =
        Command::new("tar").args(["-c", "-f"]).arg(&tar).arg("-C").arg(folder).arg("lab.ttvm").status();
    assert!(made.expect("the host has tar").success());
    let here = |arguments: &str| {
        let output = Command::new(ttvm).args(arguments.split(' ')).current_dir(folder).output();
        printed(&output.expect("ttvm can be run").stdout)
    };
    let state = format!("state lab.ttvm --json --at insn:{}", way.end);
    let state_here = here(&state);
    let rip = state_here["registers"]["rip"].as_str().expect("a number").to_string();
    let from = way.start;
    let search = format!("search lab.ttvm break:{rip} --json --threads 1 --forward --from insn:{from}");
    let there = [("state", &state), ("search", &search)].map(|(name, arguments)| {
        format!(
            "RUST_LOG=history=debug ./ttvm {arguments} --engine kvm >out/{name} 2>out/{name}-told || exit 1"
        )
    });
    let command = format!("tar xf lab.tar\n{}", there.join("\n"));
    let left = Left::by(&[], &command, HANGS_S, &[("ttvm", ttvm), ("lab.tar", &tar)]);
    let there = |name| printed(left.file(name).as_bytes());
    assert_eq!(there("state"), state_here, "{}", left.small_files());
    assert_eq!(there("search"), here(&search), "{}", left.small_files());
    assert!(
        left.file("state-told").contains("the other engine went ahead"),
        "{way:?}\n{}",
        left.small_files()
    );
    assert!(!left.small_files().contains("going on with the software engine only"));
}

/// Replays a recording of KVM on the software CPU. The results and the checkpoints must be equal.
fn equal_at_home(recording: &Recording<Exits>) {
    let found = verify(recording, None, |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    if let Some(difference) = &found.difference {
        // The failure may not happen again in another recording, so the test keeps this recording for debugging.
        let kept =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("differs-{}.packed", std::process::id()));
        pack(recording, &kept, true).unwrap_or_else(|error| panic!("{error}"));
        let again = !matches!(difference.origin, Origin::Between);
        panic!("{}\na second replay is equal: {again}; kept as {}", difference.divergence, kept.display());
    }
    assert!(found.complete);
    assert!(found.equal(), "{}", found.checkpoint_difference.unwrap());
    assert!(found.checkpoints > 1, "{} checkpoints", found.checkpoints);
}

/// Returns a long stretch of the recounted recording that begins at a checkpoint or at power-on and has no other
/// checkpoint.
fn replays_at_home(recording: Recording<Exits>) -> Range<Instructions> {
    let stopped =
        recording.log.events().filter(|record| matches!(record.as_ref().unwrap().event, Event::Stopped(_)));
    assert!(stopped.count() > 20, "timers come due where the guest makes no exits");
    equal_at_home(&recording);
    let last = start_of_last(&recording, 0).unwrap().expect("the end is not the only checkpoint");
    let part = from_exit(recording.clone(), last, |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let recounted = in_instructions(recording, |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let open = |recording| Timeline::open(recording).unwrap_or_else(|error| panic!("{error}"));
    let (mut timeline, mut end_only) = (open(&recounted), open(&part));
    let end = timeline.end();
    let middle = Instructions(end.number() / 2);
    for at in [middle, middle - 1000, end] {
        assert_eq!(timeline.seek(at, &mut || false).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), at);
    }
    // Compare at two positions inside the part, which are neither its beginning nor its end.
    let length = end_only.end().number();
    for back in [length / 2, length / 4] {
        assert_eq!(end_only.seek(end_only.end() - back, &mut || false).unwrap(), TravelStop::Reached);
        assert_eq!(end_only.step_backward(&mut || false).unwrap(), TravelStop::Reached);
        timeline.seek(end - (back + 1), &mut || false).unwrap();
        let (here, there) = (end_only.machine_mut(), timeline.machine_mut());
        assert_eq!((here.hashes(), here.moment().time_ns), (there.hashes(), there.moment().time_ns));
    }
    let heads = timeline.checkpoints().expect("recounting takes them").heads();
    let events: Vec<Instructions> =
        recounted.log.events().map(|record| record.expect("the log is whole").at.count).collect();
    // On the way from a checkpoint, KVM runs from event to event, if the events are far enough apart.
    let is_for_two = |from: Instructions| {
        let on_way =
            |at: &&Instructions| (from..from + (BEHIND_CHECKPOINT - FROM_EVENT_TO_EVENT)).contains(*at);
        let (first, last) = (events.iter().find(on_way), events.iter().rfind(on_way));
        first.zip(last).is_some_and(|(first, last)| *last - *first > FROM_EVENT_TO_EVENT)
    };
    let ways = std::iter::once(&Instructions(0)).chain(heads.keys()).zip(heads.keys());
    let (from, _) = ways
        .filter(|(from, next)| **next - **from > BEHIND_CHECKPOINT && is_for_two(**from))
        .last()
        .expect("a boot is longer than the way, and checkpoints are further apart");
    *from..*from + BEHIND_CHECKPOINT
}
