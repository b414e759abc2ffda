//! Tests that unmodified stock kernels boot to a shell, execute typed commands, and power off. The only kernel
//! parameter is the console.

use boot::packed_kernel;
use machine::script::Script;
use tests::guests::{Artefact, BUSYBOX, BUSYBOX_GENERIC, CLOUD, CLOUD_ELF, GENERIC, GENERIC_ELF, Guest};
use tests::run::{assert_shows, run_to_power_off};

fn boots_to_a_shell(kernel: &Artefact, initrd: &Artefact, memory_mib: u64) {
    let guest = Guest::linux(kernel, initrd, "", memory_mib);
    let mut machine = guest.machine();
    let mut script = Script::shell(&[
        "uname -srm",
        "echo the sum is $((6 * 7))",
        "grep MemTotal /proc/meminfo | tr -s ' ' | cut -d' ' -f2",
        "sleep 1; cat /proc/interrupts | wc -l; date -u +%Y-%m-%dT%H",
        "sh -c 'kill -9 $$'; echo status $?",
        "poweroff -f",
    ]);
    run_to_power_off(&mut machine, &mut script);
    assert_shows(&script, "x86_64\n");
    assert_shows(&script, "the sum is 42\n");
    assert_shows(&script, "status 137\n");
    assert_shows(&script, "\n2023-11-14T22\n");
    let text = script.text();
    assert!(!text.contains("Call Trace") && !text.contains("BUG:"), "{text}");
    let total_kib = text.lines().filter_map(|line| line.parse::<u64>().ok()).next();
    let total_kib = total_kib.unwrap_or_else(|| panic!("no MemTotal: {text}"));
    assert!((memory_mib * 1024 * 6 / 10..memory_mib * 1024).contains(&total_kib), "{total_kib} KiB");
}

#[test]
fn cloud_bzimage_in_128_mib() {
    boots_to_a_shell(&CLOUD, &BUSYBOX, 128);
}

#[test]
fn generic_bzimage_in_256_mib() {
    boots_to_a_shell(&GENERIC, &BUSYBOX_GENERIC, 256);
}

#[test]
fn cloud_elf_in_3_gib() {
    boots_to_a_shell(&CLOUD_ELF, &BUSYBOX, 3072);
}

/// Machines for KVM need an unpacked kernel. The test compares the kernel that ttvm has unpacked with the kernel
/// that another program has unpacked.
#[test]
fn a_bzimage_holds_the_elf_kernel() {
    for (packed, kernel) in [(CLOUD, CLOUD_ELF), (GENERIC, GENERIC_ELF)] {
        let [packed, kernel] = [packed, kernel].map(|file| std::fs::read(file.path()).unwrap());
        assert!(packed_kernel::unpack(&packed).unwrap() == kernel, "another ELF file");
    }
}
