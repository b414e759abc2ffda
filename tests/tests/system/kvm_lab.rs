//! KVM: a stock kernel boots, is typed at and reads its disk under KVM in the lab, and is recorded. The packed recording replays
//! outside of it on the software engine, without any KVM; then one travels in it. And a vCPU lands exactly where it is told.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::guests::{BUSYBOX, CLOUD_ELF, repository};
use vmm::inputs::Event;
use vmm::pack::unpack;
use vmm::position::Counting;
use vmm::recording::Recording;
use vmm::replay::{ReplayEnd, replay};
use vmm::timeline::{Timeline, TravelStop};
use vmm::translate::in_instructions;

/// What the lab is asked to do. The disk is small, its contents are known.
const COMMAND: &str = r#"
set -e
./ttvm doctor >out/doctor
printf 'echo sum $((6 * 7))\nmd5sum /dev/vda\npoweroff -f\n' >keys
./ttvm record -o lab.ttvm --engine kvm --slow-clock 8 --kernel vmlinux --initrd initrd.gz --disk disk --memory 128M \
    --cmdline "console=ttyS0 quiet" <keys >out/console
./ttvm pack lab.ttvm -o out/lab.packed
"#;

/// The program, built if it is not yet.
fn ttvm() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--locked", "--package", "vmm", "--bin", "ttvm"]);
    let status = build.current_dir(repository()).status().expect("cargo can be run");
    assert!(status.success(), "ttvm does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(repository().join("target"), PathBuf::from);
    target.join("release/ttvm")
}

/// Runs [`COMMAND`] in the lab; what it leaves lands in `directory`.
fn in_the_lab(directory: &Path, disk: &Path) {
    let named = |name: &str, path: &Path| format!("{name}={}", path.display());
    let output = Command::new(repository().join("scripts/kvm-lab"))
        .arg("--out")
        .arg(directory)
        .arg(COMMAND)
        .arg(named("ttvm", &ttvm()))
        .arg(named("vmlinux", &CLOUD_ELF.path()))
        .arg(named("initrd.gz", &BUSYBOX.path()))
        .arg(named("disk", disk))
        .output()
        .expect("the lab's script can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// The recording that the lab packed.
fn brought_home(directory: &Path) -> Recording {
    let path = directory.join("lab.ttvm");
    unpack(&directory.join("lab.packed"), &path, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    Recording::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether to skip.
fn not_asked_for() -> bool {
    let skip = std::env::var_os("TTVM_KVM_LAB").is_none();
    if skip {
        println!("skipped: the KVM lab takes minutes of an otherwise idle machine; TTVM_KVM_LAB=1 runs it");
    }
    skip
}

/// The test of landings, built if it is not yet. Cargo says where in its own words.
fn landings() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["test", "--release", "--locked", "--package", "kvm", "--test", "landings", "--no-run"]);
    let output = build.current_dir(repository()).output().expect("cargo can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    let path = said.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(path, _)| path);
    assert!(output.status.success() && path.is_some(), "the test does not build: {said}");
    repository().join(path.expect("just asserted"))
}

#[test]
fn a_vcpu_lands_by_counted_branches() {
    if not_asked_for() {
        return;
    }
    let output = Command::new(repository().join("scripts/kvm-lab"))
        .arg("TTVM_LANDINGS=200 ./landings --nocapture")
        .arg(format!("landings={}", landings().display()))
        .output()
        .expect("the lab's script can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("200 landings in"), "{said}");
}

#[test]
fn a_run_under_kvm_replays_on_the_software_engine() {
    if not_asked_for() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let disk = directory.path().join("disk");
    let contents: Vec<u8> = (0..1_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&disk, contents).expect("the disk can be written");
    in_the_lab(directory.path(), &disk);

    let doctor = std::fs::read_to_string(directory.path().join("doctor")).expect("it was written");
    assert!(doctor.contains("ok   kernel-mode instructions"), "{doctor}");
    assert!(doctor.contains("--   branch counter"), "{doctor}");
    let console = std::fs::read_to_string(directory.path().join("console")).expect("it was written");
    assert!(console.contains("\nsum 42"), "{console}");
    // md5sum of the numbers from 0 to 2^18 - 1, four bytes each.
    let expected = Command::new("md5sum").arg(&disk).output().expect("the host has md5sum").stdout;
    let sum = String::from_utf8_lossy(&expected[..32]).into_owned();
    assert!(console.contains(&sum), "{sum}\n{console}");

    let recording = brought_home(directory.path());
    assert_eq!(recording.counting, Counting::Exits);
    let stopped = recording.log.events.iter().filter(|record| matches!(record.event, Event::Stopped(_)));
    assert!(stopped.count() > 20, "timers come due where the guest makes no exits");
    let (_, end) = replay(&recording, None, |_| Ok(()), |_| {}).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(end, ReplayEnd::Verified);

    let translated = in_instructions(recording, |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut timeline = Timeline::open(&translated).unwrap_or_else(|error| panic!("{error}"));
    let end = timeline.end();
    for at in [end / 2, end / 2 - 1000, end] {
        assert_eq!(timeline.seek(at, &mut || false).unwrap(), TravelStop::Reached);
        assert_eq!(timeline.position(), at);
    }
}
