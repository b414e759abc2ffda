//! Tests that ttvm has the same results on a processor of another vendor. This processor is an Intel processor that
//! QEMU emulates, on any host. Where the manuals leave results undefined, the emulated processor differs from
//! Intel's and AMD's own processors.

use std::process::{Command, Stdio};

use tests::guests::{BUSYBOX, CLOUD_ELF, repository};
use tests::lab::{Left, built};
use tests::program::ttvm;

const PROCESSOR: [&str; 2] = ["--cpu", "Skylake-Client"];
const EQUAL: &str = "replayed to the end: console, counts and hashes are equal";

/// The cut fuzzer's programs must have the same digests on the other processor and on the host's processor. On the
/// other processor, the golden vectors of instructions with undefined results must match, too. With
/// `TTVM_WHOLE_VECTORS`, the test runs all programs and compares all golden vectors, which takes minutes.
#[test]
fn executes_the_same() {
    let programs = built(&["cuts", "silicon"]);
    let file = |name: &str| programs.iter().find(|(of, _)| of == name).expect("it was built").1.as_path();
    let (distance, part) =
        if std::env::var_os("TTVM_WHOLE_VECTORS").is_some() { (1, "") } else { (8, "--part 0 --batch 0") };
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

/// A recording made on the host must replay on the other processor, and a recording made on the other processor
/// must replay on the host. The recorded run is the beginning of a boot. With `TTVM_WHOLE_VECTORS`, the recorded
/// run is a whole boot, for which the lab takes minutes.
#[test]
fn replays_what_was_recorded_here_and_the_other_way() {
    let (ttvm, directory) = (ttvm(), tempfile::tempdir().expect("a temporary folder"));
    // Use the ELF kernel, which does not have to unpack itself.
    let (kernel, initrd) = (CLOUD_ELF.path(), BUSYBOX.path());
    let until = if std::env::var_os("TTVM_WHOLE_VECTORS").is_some() { "100e9" } else { "150e6" };
    let guest = format!(
        "--memory 128M --unpaced --max-instructions {until} --kernel vmlinux --initrd initrd.gz \
         --cmdline 'console=ttyS0 ttvm.run=\"cat /proc/version\"'"
    );
    for (name, file) in [("ttvm", &ttvm), ("vmlinux", &kernel), ("initrd.gz", &initrd)] {
        std::os::unix::fs::symlink(file, directory.path().join(name)).expect("the folder is ours");
    }
    let here = |commands: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-ec", commands]).current_dir(directory.path()).stdin(Stdio::null());
        let output = shell.output().expect("there is a shell");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{commands}: {told}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), told)
    };
    here(&format!("./ttvm record -o here.ttvm {guest}; ./ttvm pack here.ttvm -o here.packed"));
    let command = format!(
        "
        ./ttvm unpack here.packed -o here.ttvm 2>&1 && ./ttvm replay --verify here.ttvm >/dev/null 2>out/told || exit 1
        ./ttvm record -o there.ttvm {guest} </dev/null >out/console || exit 1
        ./ttvm pack there.ttvm -o out/there.packed"
    );
    let packed = directory.path().join("here.packed");
    let files = [("ttvm", &*ttvm), ("vmlinux", &*kernel), ("initrd.gz", &*initrd), ("here.packed", &*packed)];
    let left = Left::by(&PROCESSOR, &command, 900, &files);
    assert!(left.file("told").contains(EQUAL), "{}", left.file("told"));
    let there = left.folder().join("there.packed");
    let (console, told) =
        here(&format!("./ttvm unpack {} -o there.ttvm; ./ttvm replay --verify there.ttvm", there.display()));
    assert!(told.contains(EQUAL), "{told}");
    assert_eq!(console, left.file("console"));
    assert!(console.contains("Linux version"), "{console}");
}
