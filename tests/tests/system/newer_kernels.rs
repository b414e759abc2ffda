//! Tests ttvm's lists of symbols, modules and processes with kernels of other releases. These kernels have other
//! tables and structures than the kernel that most tests boot. The test compares ttvm's lists, which come from the
//! guest's memory, with lists that the guest prints.

use guest_symbols::orc::{End, Registers, Unwinder};
use guest_symbols::switched_out::{SavedRegisters, SwitchFrame};
use guest_symbols::tasks::{AddressSpace, Processes, Tasks};
use guest_symbols::{GuestView, Symbols};
use machine::script::Script;
use tests::guests::{Artefact, BOOKWORM_RT, Guest, SID, SID_RT, TRIXIE};
use tests::listings::{ListedProcess, ListedSymbol, PS, assert_same_processes};
use tests::run::run_to_power_off;

/// Commands with which the guest prints the number of symbols, the symbols of modules, and some symbols of the
/// kernel. The symbols of modules are the last in the list. For the kernel's symbols, the commands print the
/// complete lines in some parts of the list.
const LIST_SYMBOLS: [&str; 4] = [
    "cat /proc/kallsyms >/tmp/all; wc -l /tmp/all",
    "tail -n 1000 /tmp/all",
    "piece() { dd if=/tmp/all bs=4k skip=$1 count=1 2>/dev/null | sed '1d;$d'; }",
    "for at in 1 100 400 700 1000 1300 1500; do piece $at; done",
];

/// Boots with isolated page tables, lists symbols and processes, and compares the lists with the machine's memory at
/// power-off.
fn compare(kernel: &[Artefact; 2]) {
    let [image, busybox] = kernel;
    if !image.exists() || !busybox.exists() {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    let mut commands = vec!["sleep 1000 &"];
    commands.extend(LIST_SYMBOLS);
    commands.extend([PS, "poweroff -f"]);
    let mut machine = Guest::linux(image, busybox, "pti=on", 256).machine();
    let mut script = Script::shell(&commands);
    let console = run_to_power_off(&mut machine, &mut script);

    let symbols = Symbols::of_guest(&machine).expect("the kernel runs");
    assert_same_symbols(&symbols, &console);
    let tasks = Tasks::of_kernel(&machine, &symbols).unwrap_or_else(|error| panic!("{error}"));
    let processes = tasks.list(&machine);
    let listed = ListedProcess::all(&console);
    assert!(listed.len() > 30, "{console}");
    assert_same_processes(&processes, &listed);
    let current = processes.current.as_ref().and_then(|current| processes.with(current.process));
    assert_eq!(current.map(|process| process.name.as_str()), Some("poweroff"));
    assert!(tasks.is_isolated(&machine));
    stacks_lead_where_threads_began(&machine, &symbols, &processes);
}

/// Tests that an unwind from the saved registers of each sleeping thread ends at the thread's program, or at the start
/// of a kernel thread.
fn stacks_lead_where_threads_began(guest: &dyn GuestView, symbols: &Symbols, processes: &Processes) {
    let switched = SwitchFrame::of_kernel(guest, symbols).unwrap_or_else(|error| panic!("{error}"));
    let unwinder = Unwinder::of_kernel(guest, symbols).unwrap_or_else(|error| panic!("{error}"));
    let sleeping =
        processes.all.iter().filter(|process| !processes.is_current(process) && process.state != 'Z');
    for process in sleeping {
        let saved = switched.registers(guest, process.task).expect("its stack can be read");
        let SavedRegisters { rip, rsp, rbp, r13, .. } = saved;
        let walk = unwinder.walk(guest, Registers { rip, rsp, rbp, r13, ..Registers::default() });
        let innermost = walk.frames[0].name(symbols).unwrap_or_default();
        assert!(innermost.starts_with("__schedule+"), "{process:?}: {walk:x?}");
        match process.space {
            AddressSpace::Own(_) => assert!(matches!(walk.end, End::Program(_)), "{process:?}: {walk:x?}"),
            _ => assert_eq!(walk.end, End::Stack, "{process:?}: {walk:x?}"),
        }
    }
}

fn assert_same_symbols(symbols: &Symbols, console: &str) {
    assert_eq!(symbols.without_modules(), None);
    let number = |line: &str| line.strip_suffix(" /tmp/all")?.trim().parse::<usize>().ok();
    let count = console.lines().find_map(number).unwrap_or_else(|| panic!("no number: {console}"));
    let listed = ListedSymbol::all(console);
    let of_modules = listed.iter().filter(|line| line.module.is_some()).count();
    assert!(of_modules > 20 && listed.len() - of_modules > 300, "{listed:?}");
    assert_eq!(symbols.all().iter().filter(|symbol| symbol.module.is_none()).count(), count - of_modules);
    for line in listed.iter().filter(|line| !line.is_label()) {
        assert!(line.is_in(symbols), "{line:x?}");
    }
    assert!(symbols.modules().iter().any(|name| name == "virtio_blk"), "{:?}", symbols.modules());
    // Each of these functions must be in a section with code.
    for name in ["start_kernel", "do_syscall_64", "schedule", "virtblk_probe"] {
        let function = symbols.named(name).unwrap_or_else(|| panic!("no {name}"));
        assert!(function.is_code() && function.section.is_some() && function.size > 0, "{function:?}");
        assert_eq!(symbols.name_of(function.address + 1), Some((name, 1)));
    }
}

#[test]
fn kernel_of_debian_13() {
    compare(&TRIXIE);
}

#[test]
fn newest_kernel() {
    compare(&SID);
}

#[test]
fn newest_real_time_kernel() {
    compare(&SID_RT);
}

#[test]
fn real_time_kernel_of_debian_12() {
    compare(&BOOKWORM_RT);
}
