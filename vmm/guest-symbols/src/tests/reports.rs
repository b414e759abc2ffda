//! Tests with lines in the kernel's format.

use crate::reports::{Kind, Sifter, without_time};

fn sifted(text: &str) -> Vec<(usize, Kind)> {
    let mut sifter = Sifter::default();
    let lines = text.lines().enumerate();
    lines.filter_map(|(number, line)| Some((number, sifter.begins(without_time(line))?))).collect()
}

#[test]
fn an_oops_is_one_report_and_the_panic_behind_it_another() {
    let text = "[    2.1] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
        [    2.1] #PF: supervisor instruction fetch in kernel mode\n\
        [    2.1] Oops: 0010 [#1] PREEMPT SMP PTI\n\
        [    2.1] ---[ end trace 0000000000000000 ]---\n\
        [    2.1] Kernel panic - not syncing: Fatal exception\n\
        [    2.1] ---[ end Kernel panic - not syncing: Fatal exception ]---\n";
    assert_eq!(sifted(text), [(0, Kind::Oops), (4, Kind::Panic)]);
    let newer = "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP\n\
        KASAN: maybe wild-memory-access in range [0x0-0x7]\nOops: 0000 [#2] SMP\n";
    assert_eq!(sifted(newer), [(0, Kind::Oops), (2, Kind::Oops)]);
    // KASAN's own reports are reports inside an oops, too.
    let kasan = "Oops: 0000 [#1] SMP\nBUG: KASAN: slab-use-after-free in f+0x1/0x2\n";
    assert_eq!(sifted(kasan), [(0, Kind::Oops), (1, Kind::Kasan)]);
    let bug =
        "------------[ cut here ]------------\nkernel BUG at mm/slub.c:435!\ninvalid opcode: 0000 [#1] SMP\n";
    assert_eq!(sifted(bug), [(1, Kind::Oops)]);
}

#[test]
fn each_kind_is_told_from_the_others() {
    for (line, kind) in [
        ("BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580", Kind::Bug),
        ("watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [sh:1]", Kind::Bug),
        ("WARNING: CPU: 0 PID: 1 at kernel/x.c:12 f+0x1/0x2", Kind::Warning),
        ("BUG: KASAN: slab-use-after-free in f+0x1/0x2", Kind::Kasan),
        ("WARNING: possible circular locking dependency detected", Kind::Lockdep),
        ("WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected", Kind::Lockdep),
        ("general protection fault, probably for non-canonical address 0x6b: 0000 [#1]", Kind::Oops),
        ("traps: PANIC: double fault, error_code: 0x0", Kind::Oops),
    ] {
        assert_eq!(sifted(line), [(0, kind)], "{line}");
    }
    // The faults of a program are no reports of the kernel.
    let program = "traps: sh[1] general protection fault ip:1 sp:2 error:0\nsh[1]: segfault at 0 ip 1\n# BUG: a comment\n";
    assert_eq!(sifted(program), []);
}

#[test]
fn only_what_the_kernel_puts_before_a_message_is_taken_off() {
    for (line, rest) in [
        ("[    1.234567] BUG: x\r", "BUG: x"),
        ("[    1.234567][    T1] BUG: x", "BUG: x"),
        ("[    1.234567][   C0]x", "[    1.234567][   C0]x"),
        ("[    1.234567]   x", "  x"),
        ("[ab] BUG: x", "[ab] BUG: x"),
        ("[", "["),
    ] {
        assert_eq!(without_time(line), rest, "{line}");
    }
}
