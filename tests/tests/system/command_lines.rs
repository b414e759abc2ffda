//! Kernel command lines that people use. With each command line the machine must behave like a PC, whichever
//! chips the kernel then ignores. The guest reads its disk, which needs PCI, a BAR and an interrupt, and
//! powers off.
//!
//! By default, the test boots the lines that once failed, and every twentieth other line. With
//! `TTVM_WHOLE_COMMAND_LINES=1`, it boots all lines.

use machine::Outcome;
use machine::config::MachineOptions;
use machine::position::Instructions;
use machine::script::Script;
use tests::guests::{Guest, SID, TRIXIE, linux_options};
use tests::run::{last_lines, run_until};

/// The bytes at the beginning of the disk.
const MARK: &[u8; 16] = b"the disk is read";
/// Largest number of instructions of a run. A boot takes 3e9 instructions.
const LIMIT: Instructions = Instructions(9_000_000_000);
const EVERY: usize = 20;

/// The way in which a real machine ends its run with a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The kernel powers off.
    Off,
    /// The kernel powers off. Before a bug of ttvm's machine was fixed, the kernel failed with this line.
    Mended,
    /// The kernel powers off, but finds no disk, because the line turns off everything with which the kernel could
    /// find the disk.
    NoDisk,
    /// The kernel halts, because without ACPI it cannot power off. Before a bug of ttvm's machine was fixed, the
    /// kernel failed with this line.
    Halt,
    /// The kernel never wakes the shell, which sleeps for a second, because no timer wakes the CPU.
    NoTimer,
}

/// The kernel's parameters, and the way in which a machine with these parameters ends.
const LINES: [(&str, End); 62] = [
    ("", End::Off),
    // These parameters are about interrupts and ACPI. Without ACPI, Linux cannot power the machine off.
    ("acpi=off", End::Halt),
    ("acpi=noirq", End::Mended),
    ("acpi=strict", End::Off),
    ("acpi=rsdt", End::Off),
    ("noapic", End::Off),
    ("nolapic", End::Mended),
    ("noapic nolapic", End::Mended),
    // If there is no HPET, and the processor has a TSC deadline timer that never stops, Linux does not start the
    // PIT. So Linux waits for ever on any such machine, also on QEMU's machine with `hpet=off`. The next line has
    // parameters that avoid this.
    ("nolapic_timer", End::NoTimer),
    ("nolapic_timer lapic=notscdeadline", End::Off),
    ("lapic=notscdeadline", End::Off),
    ("apic=debug", End::Off),
    ("nox2apic", End::Off),
    ("nosmp", End::Off),
    ("maxcpus=0", End::Off),
    // PCI.
    ("pci=noacpi", End::Mended),
    ("pci=nocrs", End::Off),
    ("pci=nomsi", End::Off),
    ("pci=conf1", End::Off),
    ("pci=realloc", End::Off),
    ("pci=off", End::NoDisk),
    ("pcie_aspm=off", End::Off),
    // Clocks.
    ("clocksource=acpi_pm", End::Off),
    ("clocksource=jiffies", End::Off),
    ("tsc=unstable", End::Off),
    ("tsc=reliable", End::Off),
    ("notsc", End::Off),
    ("hpet=disable no_timer_check", End::Off),
    ("nohz=off highres=off", End::Off),
    ("idle=poll", End::Off),
    ("idle=halt", End::Off),
    ("cpuidle.off=1 processor.max_cstate=0", End::Off),
    ("lpj=1000000", End::Off),
    // The processor.
    ("nokaslr", End::Off),
    ("pti=on", End::Off),
    ("mitigations=off", End::Off),
    ("mitigations=auto,nosmt", End::Off),
    ("nosmap nosmep", End::Off),
    ("noxsave", End::Off),
    ("clearcpuid=rdtscp,smap", End::Off),
    ("noinvpcid nopcid no5lvl", End::Off),
    ("nopat disable_mtrr_cleanup", End::Off),
    ("mce=off nmi_watchdog=1", End::Off),
    ("vsyscall=none vdso=0 norandmaps", End::Off),
    // Memory.
    ("mem=128M", End::Off),
    ("memmap=64M$0x8000000", End::Off),
    ("iommu=soft swiotlb=force", End::Off),
    ("intel_iommu=on", End::Off),
    ("hugepages=16 transparent_hugepage=never", End::Off),
    ("init_on_alloc=1 init_on_free=1", End::Off),
    ("slub_debug=FZP page_poison=1", End::Off),
    ("debug_pagealloc=on", End::Off),
    ("kfence.sample_interval=10", End::Off),
    ("crashkernel=64M", End::Off),
    // Scheduling.
    ("threadirqs", End::Off),
    ("preempt=full", End::Off),
    ("rcutree.use_softirq=0 rcupdate.rcu_expedited=1", End::Off),
    // These parameters choose consoles, or are other parameters that a distribution's boot loader adds.
    ("earlyprintk=serial,ttyS0,115200 ignore_loglevel", End::Off),
    ("console=hvc0 console=ttyS0,115200n8 8250.nr_uarts=1", End::Off),
    ("quiet loglevel=3 audit=0 selinux=0 apparmor=0", End::Off),
    ("efi=off edd=off lockdown=confidentiality", End::Off),
    ("panic_on_oops=1 reboot=k nomodeset vga=normal", End::Off),
];

fn options(line: &str, disk: &std::path::Path) -> MachineOptions {
    let [kernel, busybox] = &TRIXIE;
    let commands = "dd if=/dev/vda bs=16 count=1 2>/dev/null; sleep 1; echo; echo the sum is $((6*7))";
    let parameters = format!("{line} ttvm.run=\"{commands}\"");
    let parameters = parameters.trim_start();
    MachineOptions { disk: Some(disk.to_path_buf()), ..linux_options(kernel, busybox, parameters, 256) }
}

/// Boots with this command line. If the boot does not end as `end` says, returns an error that describes what went
/// wrong.
fn boot(line: &str, end: End, disk: &std::path::Path) -> Result<(), String> {
    let mut script = Script::silent().with_limit(LIMIT);
    let outcome = run_until(&mut Guest::new(&options(line, disk)).machine(), LIMIT, &mut script);
    let text = script.text();
    let wrong = |what: &str| Err(format!("'{line}': {what}, {outcome:?}:\n{}", last_lines(&script)));
    let expected = match end {
        End::Off | End::Mended | End::NoDisk => Outcome::PowerOff,
        End::Halt | End::NoTimer => Outcome::IdleForever,
    };
    let mark = std::str::from_utf8(MARK).expect("it is text");
    let shows_disk = text.lines().any(|console_line| console_line.trim() == mark);
    if outcome.as_ref() != Some(&expected) {
        return wrong(&format!("{expected:?} expected"));
    }
    if shows_disk == (end == End::NoDisk) {
        return wrong(if shows_disk { "a disk was found" } else { "the disk was not read" });
    }
    if text.contains("the sum is 42") == (end == End::NoTimer) {
        return wrong("sleep returned, or did not");
    }
    if ["Call Trace", "BUG:", "WARNING: CPU"].iter().any(|sign| text.contains(sign)) {
        return wrong("the kernel complains");
    }
    Ok(())
}

#[test]
fn a_kernel_boots_with_any_command_line() {
    if !TRIXIE.iter().all(|artefact| artefact.exists()) {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    let whole = std::env::var_os("TTVM_WHOLE_COMMAND_LINES").is_some();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = folder.path().join("disk");
    std::fs::write(&disk, [MARK.as_slice(), &[0; 65_520]].concat()).expect("the folder is ours");
    let failures: Vec<String> = LINES
        .iter()
        .enumerate()
        .filter(|(number, (_, end))| {
            whole || number % EVERY == 0 || !matches!(end, End::Off | End::NoDisk | End::NoTimer)
        })
        .filter_map(|(_, (line, end))| boot(line, *end, &disk).err())
        .collect();
    assert!(failures.is_empty(), "{} lines:\n{}", failures.len(), failures.join("\n\n"));
}

/// A kernel must not complain about the machine, because a user could think that the complaint is about the bug
/// that the user looks for.
#[test]
fn newer_kernels_have_nothing_to_complain_of() {
    for [kernel, busybox] in [&TRIXIE, &SID] {
        if !kernel.exists() || !busybox.exists() {
            return skip::test("the kernel is not there; guest-images/newer-kernels says why");
        }
        let parameters = "ttvm.run=\"echo complaints:; dmesg -r | grep '^<[0-4]>'; echo that is all\"";
        let mut machine = Guest::linux(kernel, busybox, parameters, 256).machine();
        let mut script = Script::silent().with_limit(LIMIT);
        assert_eq!(run_until(&mut machine, LIMIT, &mut script), Some(Outcome::PowerOff));
        let text = script.text().replace('\r', "");
        assert!(text.contains("complaints:\nthat is all\n"), "{text}");
    }
}
