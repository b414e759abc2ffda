//! Tests Multiboot kernels that are not Linux: GNU Mach, and Xen with Debian's kernel as the first domain. The
//! tests record and verify each run.

use machine::error::exit_code;
use tests::guests::{Artefact, BUSYBOX_GENERIC, GENERIC_ELF, GNU_MACH, XEN};
use tests::program::run;

/// The time limit of a run. If a run takes longer, the test assumes that the guest hangs.
const LIMIT: [&str; 2] = ["--max-time", "40s"];
/// The text at the beginning of the disk.
const MARK: &str = "the disk is read";

/// Records a kernel and verifies the recording. Returns the console's text and ttvm's messages.
fn record_and_verify(kernel: &Artefact, options: &[&str], directory: &std::path::Path) -> [String; 2] {
    let kernel = kernel.path();
    let kernel = kernel.to_str().expect("the repository's path is UTF-8");
    let machine = ["record", "-o", "r.ttvm", "--date", "1700000000", "--seed", "1", "--kernel", kernel];
    let (code, console, said) = run(directory, &[&machine[..], &LIMIT, options].concat());
    assert_eq!(code, Some(exit_code::DONE), "{console}{said}");
    let (code, found, complaint) = run(directory, &["verify", "r.ttvm"]);
    assert_eq!(code, Some(exit_code::DONE), "{found}{complaint}");
    [console, said]
}

#[test]
fn gnu_mach_starts_and_misses_its_servers() {
    if !GNU_MACH.exists() {
        return skip::test("GNU Mach is not there; guest-images/other-kernels says why");
    }
    const END: &str = "No bootstrap code loaded with the kernel!";
    let directory = tempfile::tempdir().expect("a temporary folder");
    let options = ["--cmdline", "gnumach console=com0", "--stop-when", END];
    let [console, _] = record_and_verify(&GNU_MACH, &options, directory.path());
    assert!(
        console.contains("IOAPIC 0 configured") && console.contains("timer calibration... done"),
        "{console}"
    );
    assert!(console.contains(END), "{console}");
}

#[test]
fn xen_boots_debians_kernel_as_its_first_domain() {
    if !XEN.exists() {
        return skip::test("Xen is not there; guest-images/other-kernels says why");
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let disk = [MARK.as_bytes(), &[0; 65_520]].concat();
    std::fs::write(directory.path().join("disk"), disk).expect("the folder is ours");
    let commands =
        "dd if=/dev/vda bs=16 count=1 2>/dev/null; echo; cat /sys/hypervisor/type; echo the sum is $((6*7))";
    // Put a name first, because Xen takes the first word of a command line for the file's name. Use the ELF kernel,
    // because unpacking a bzImage would take half of the run's time.
    let domain = format!("{} vmlinux console=hvc0 ttvm.run=\"{commands}\"", GENERIC_ELF.path().display());
    let initrd = BUSYBOX_GENERIC.path().display().to_string();
    let cmdline = "xen no-real-mode console=com1 com1=115200,8n1";
    let options =
        ["--memory=384M", "--disk=disk", "--cmdline", cmdline, "--module", &domain, "--module", &initrd];
    let [console, said] = record_and_verify(&XEN, &options, directory.path());
    assert!(console.contains("(XEN) Xen version 4.17"), "no banner: {console}");
    let shown = format!("{MARK}\nxen\nthe sum is 42\nttvm.run: exit status 0\n");
    assert!(console.replace('\r', "").contains(&shown), "{console}");
    assert!(said.contains("the guest powered off"), "{console}{said}");
}
