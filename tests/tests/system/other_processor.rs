//! A processor of another maker comes to the same: one of Intel's as QEMU makes it, whatever the host has. Where the manuals
//! leave something undefined, it does as neither Intel's nor AMD's own do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tests::guests::{BUSYBOX, CLOUD, repository};
use tests::lab::{Left, built};
use tests::program::ttvm;

const PROCESSOR: [&str; 2] = ["--cpu", "Skylake-Client"];
const EQUAL: &str = "replayed to the end: console, counts and hashes are equal";

/// What the cut fuzzer's programs come to there is what they come to here; and the golden vectors of instructions that leave
/// something undefined are matched there. `TTVM_WHOLE_VECTORS` runs all programs and matches all vectors, which takes minutes.
#[test]
fn executes_the_same() {
    let programs = built(&["cuts", "silicon"]);
    let file = |name: &str| programs.iter().find(|(of, _)| of == name).expect("it was built").1.as_path();
    let (distance, part) =
        if std::env::var_os("TTVM_WHOLE_VECTORS").is_some() { (1, "") } else { (8, "--part 0") };
    let here = Command::new(file("cuts")).args(["--digests", &distance.to_string()]).output();
    let here = here.expect("cuts can be run");
    let command = format!(
        "grep -m 1 vendor_id /proc/cpuinfo >out/maker
        ./cuts --digests {distance} >out/digests && ./silicon replay {part} golden >out/vectors"
    );
    let golden = repository().join("tests/silicon/golden/intel.zst");
    let files = [("cuts", file("cuts")), ("silicon", file("silicon")), ("golden", &*golden)];
    let left = Left::by(&PROCESSOR, &command, 900, &files);
    assert!(left.file("maker").contains("GenuineIntel"), "{}", left.file("maker"));
    let (here, there) = (String::from_utf8_lossy(&here.stdout).into_owned(), left.file("digests"));
    assert!(here.lines().count() >= 440 / distance, "{here}");
    let differing = here.lines().zip(there.lines()).find(|(here, there)| here != there);
    assert_eq!(differing, None, "the digest of a program is another there");
    assert_eq!(here, there);
    assert!(left.file("vectors").contains("no unexplained difference"), "{}", left.file("vectors"));
}

fn run(program: &Path, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("ttvm can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A boot that was recorded here replays there, and one that was recorded there replays here.
#[test]
fn replays_what_was_recorded_here_and_the_other_way() {
    let (ttvm, directory) = (ttvm(), tempfile::tempdir().expect("a temporary folder"));
    let (kernel, initrd) = (CLOUD.path(), BUSYBOX.path());
    let images = ["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.to_str().unwrap()];
    let machine =
        ["--memory", "128M", "--unpaced", "--cmdline", "console=ttyS0 ttvm.run=\"cat /proc/version\""];
    let here = |arguments: &[&str]| run(&ttvm, directory.path(), arguments);
    here(&[&["record", "-o", "here.ttvm"][..], &images, &machine].concat());
    here(&["pack", "here.ttvm", "-o", "here.packed"]);
    let command = "
        ./ttvm unpack here.packed -o here.ttvm 2>&1 && ./ttvm replay --verify here.ttvm >/dev/null 2>out/told || exit 1
        ./ttvm record -o there.ttvm --memory 128M --kernel vmlinuz --initrd initrd.gz --unpaced \
            --cmdline 'console=ttyS0 ttvm.run=\"cat /proc/version\"' </dev/null >out/console || exit 1
        ./ttvm pack there.ttvm -o out/there.packed";
    let packed = directory.path().join("here.packed");
    let files = [("ttvm", &*ttvm), ("vmlinuz", &*kernel), ("initrd.gz", &*initrd), ("here.packed", &*packed)];
    let left = Left::by(&PROCESSOR, command, 900, &files);
    assert!(left.file("told").contains(EQUAL), "{}", left.file("told"));
    here(&["unpack", left.folder().join("there.packed").to_str().unwrap(), "-o", "there.ttvm"]);
    let replayed = here(&["replay", "--verify", "there.ttvm"]);
    let told = String::from_utf8_lossy(&replayed.stderr);
    assert!(told.contains(EQUAL), "{told}");
    assert_eq!(String::from_utf8_lossy(&replayed.stdout), left.file("console"));
    assert!(left.file("console").contains("Linux version"), "{}", left.file("console"));
}
