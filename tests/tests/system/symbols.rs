//! Tests the symbols that ttvm reads from the memory of a stock kernel, with KASLR. The symbols must be equal to
//! the list that the guest prints, and gdb must work with these symbols.

use std::path::Path;
use std::process::Command;

use guest_symbols::{NoKernel, Symbols, elf};
use history::timeline::Timeline;
use machine::script::Script;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest};
use tests::listings::ListedSymbol;
use tests::program::ttvm;
use tests::record::{open, record};

/// The kernel's address without KASLR.
const LINKED_AT: u64 = 0xffff_ffff_8100_0000;

/// The command with which the guest prints symbols: code, data, dropped init code, per-CPU variables, modules.
const LISTED: &str = "grep -w -e _text -e _end -e start_kernel -e do_syscall_64 -e jiffies -e init_task -e modules \
                      -e cpu_hw_events -e __start_BTF -e virtio_init -e virtqueue_add_sgs -e virtblk_probe \
                      -e vp_modern_probe -e __this_module /proc/kallsyms";

/// Boots with isolated page tables, so the kernel is hidden while programs run. Returns the symbols that the guest
/// has printed.
fn record_boot(path: &Path) -> Vec<ListedSymbol> {
    let guest = Guest::linux(&CLOUD, &BUSYBOX, "pti=on", 128);
    let mut script = Script::shell(&[LISTED, "poweroff -f"]);
    record(&guest, path, &mut script);
    ListedSymbol::all(&script.text())
}

fn symbols_at(timeline: &mut Timeline, position: &str) -> Result<Symbols, NoKernel> {
    let position = position.parse().expect("a position");
    let target = timeline.resolve(position, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(target, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    Symbols::of_guest(timeline.machine())
}

/// Runs gdb with the symbols of `file` at the recording's end, and returns gdb's output.
fn gdb_says(timeline: &mut Timeline, file: &Path, commands: &[&str]) -> String {
    batch::serve(timeline, file.parent().expect("it lies in a folder"), |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, commands);
        gdb.arg(file);
        gdb
    })
}

/// Tests that ttvm writes a symbol file completely or not at all. The test limits the size of files to a hundred
/// KiB, and also names a file that already exists.
fn files_are_whole_or_not_there(directory: &Path) {
    std::fs::create_dir(directory.join("for files")).expect("the folder is ours");
    let run = |limit_kib: u32, to: &str| {
        let make = format!("exec {} symbols boot.ttvm -o 'for files/{to}'", ttvm().display());
        let mut command = Command::new("bash");
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f {limit_kib}; {make}")]).current_dir(directory);
        let made = command.output().expect("bash can be run");
        (made.status.code(), String::from_utf8_lossy(&made.stderr).into_owned())
    };
    let left = || std::fs::read_dir(directory.join("for files")).expect("it is there").count();
    let (code, told) = run(100, "cut off");
    assert!(code == Some(1) && told.contains("cannot write for files/cut off"), "{code:?}: {told}");
    assert_eq!(left(), 0);
    assert_eq!((run(1 << 20, "whole").0, left()), (Some(0), 1));
    let (code, told) = run(1 << 20, "whole");
    assert!(code == Some(1) && told.contains("choose another name"), "{code:?}: {told}");
}

#[test]
fn symbols_are_those_that_the_guest_lists() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let recording = directory.path().join("boot.ttvm");
    let listed = record_boot(&recording);
    assert!(listed.len() > 20, "{listed:?}");
    assert!(listed.iter().filter(|line| line.module.is_some()).count() > 8, "{listed:?}");
    let mut timeline = Timeline::open(&open(&recording)).unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(symbols_at(&mut timeline, "start"), Err(NoKernel));
    // The first instructions of a system call still run on the program's page tables, and no module is loaded
    // yet.
    let early = symbols_at(&mut timeline, "syscall:1").expect("the kernel runs");
    assert_eq!((early.modules().len(), early.without_modules()), (0, None));
    let symbols = symbols_at(&mut timeline, "end").expect("the kernel runs");
    assert!(symbols.modules().iter().any(|name| name == "virtio_blk"), "{:?}", symbols.modules());
    for line in &listed {
        assert!(line.is_in(&symbols), "{line:x?}");
        assert_eq!(line.is_in(&early), line.module.is_none(), "{line:x?}");
    }
    let start_kernel = symbols.address_of("start_kernel").expect("it is listed");
    assert_eq!(symbols.name_of(start_kernel + 5), Some(("start_kernel", 5)));
    assert_ne!(symbols.address_of("_text"), Some(LINKED_AT), "there is no KASLR");

    files_are_whole_or_not_there(directory.path());
    let file = directory.path().join("vmlinux.sym");
    std::fs::write(&file, elf::file(&symbols)).expect("the folder is ours");
    let commands = &[
        "info address start_kernel",
        "info symbol do_syscall_64",
        "info symbol virtblk_probe",
        "break __x64_sys_reboot",
        "reverse-continue",
        "info symbol $rip",
    ];
    let said = gdb_says(&mut timeline, &file, commands);
    let expected = [
        format!("Symbol \"start_kernel\" is at {start_kernel:#x} in a file"),
        "do_syscall_64 in section .text".to_string(),
        "virtblk_probe in section .text.virtio_blk".to_string(),
        "__x64_sys_reboot in section .text".to_string(),
    ];
    let mut rest = said.as_str();
    for text in &expected {
        let at = rest
            .find(text)
            .unwrap_or_else(|| panic!("no '{text}' in what is left of gdb's answers:\n{said}"));
        rest = &rest[at + text.len()..];
    }
}
