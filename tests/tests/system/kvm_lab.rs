//! KVM: a stock kernel boots, is typed at and reads its disk under KVM in the lab, and is recorded. The packed recording replays
//! outside of it on the software engine, without any KVM; then one travels in it. And a vCPU lands exactly where it is told.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::guests::{BUSYBOX, CLOUD_ELF, repository};
use vmm::inputs::Event;
use vmm::pack::unpack;
use vmm::position::Counting;
use vmm::recording::Recording;
use vmm::replay::{ReplayEnd, replay};
use vmm::timeline::{Timeline, TravelStop};
use vmm::translate::in_instructions;

/// What the lab is asked to do. The disk is small, its contents are known. In the middle of the recording its process is kept off
/// the processor for seconds.
const COMMAND: &str = r#"
./ttvm doctor >out/doctor
mkdir -p /etc
echo 'nobody:x:65534:65534::/:/bin/sh' >/etc/passwd
su nobody -c './ttvm run --engine kvm --kernel vmlinux' >out/refused 2>&1
echo "exit $?" >>out/refused
set -e
./cases --nocapture >out/cases 2>&1
./failures --nocapture >out/failures 2>&1
TTVM_LANDINGS=100 ./landings --nocapture >out/landings 2>&1
printf 'echo sum $((6 * 7))\nmd5sum /dev/vda\npoweroff -f\n' >keys
./ttvm record -o lab.ttvm --engine kvm --slow-clock 8 --kernel vmlinux --initrd initrd.gz --disk disk --memory 128M \
    --cmdline "console=ttyS0 quiet" <keys >out/console 2>out/told &
recorder=$!
sleep 5
kill -STOP $recorder
sleep 3
kill -CONT $recorder
wait $recorder
./ttvm pack lab.ttvm -o out/lab.packed
"#;

/// Builds what goes to the lab, in one go with these tests, so that nothing is built twice: `ttvm`, and the tests of `kvm`.
fn build() -> Vec<PathBuf> {
    let packages = ["tests", "silicon", "kvm"].map(|name| ["--package", name]).concat();
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--quiet", "--release", "--locked", "--message-format=json"])
        .args(packages)
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let executables = messages.filter_map(|message| {
        let name = message["target"]["name"].as_str()?;
        let path = message["executable"].as_str()?;
        ["cases", "failures", "landings"].contains(&name).then(|| format!("{name}={path}").into())
    });
    executables.chain([ttvm()]).collect()
}

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
        .args(build())
        .arg(named("vmlinux", &CLOUD_ELF.path()))
        .arg(named("initrd.gz", &BUSYBOX.path()))
        .arg(named("disk", disk))
        .output()
        .expect("the lab's script can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let left = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr),
        ["cases", "failures", "landings", "told"].map(left).join("\n")
    );
}

/// The recording that the lab packed.
fn brought_home(directory: &Path) -> Recording {
    let path = directory.join("lab.ttvm");
    unpack(&directory.join("lab.packed"), &path, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    Recording::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_runs_under_kvm_replays_on_the_software_engine() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let disk = directory.path().join("disk");
    let contents: Vec<u8> = (0..1_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&disk, contents).expect("the disk can be written");
    in_the_lab(directory.path(), &disk);

    let left = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("it was written");
    let doctor = left("doctor");
    assert!(doctor.contains("ok   kernel-mode instructions"), "{doctor}");
    assert!(doctor.contains("--   branch counter"), "{doctor}");
    let refused = left("refused");
    assert!(refused.contains("add yourself to the group kvm") && refused.ends_with("exit 5\n"), "{refused}");
    let (cases, failures, landings) = (left("cases"), left("failures"), left("landings"));
    for ran in [&cases, &failures, &landings] {
        assert!(!ran.contains("skipped"), "{ran}");
    }
    assert!(cases.contains("KVM as ttvm-v2-kvm-tcg: "), "{cases}");
    assert!(landings.contains("100 landings in"), "{landings}");
    let console = left("console");
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
