//! Tests gdb on a recording of a stock kernel: processes, stops in one process only, the symbols from the kernel's
//! memory, and the kernel's vmlinux. The guest isolates page tables, so programs and the kernel have different page
//! tables. The test compares gdb's answers with the guest's own `ps`, and with a search that checks the process of
//! each hit.

use std::collections::BTreeSet;
use std::path::Path;

use guest_symbols::tasks::{AddressSpace, Process, Tasks};
use guest_symbols::{GuestView, Symbols, USER_ROOT_BIT, elf, kallsyms};
use history::timeline::{Breakpoint, Condition, Stops, Timeline, TravelStop, address_space};
use machine::position::Instructions;
use machine::script::Script;
use tests::elf::move_down;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, repository, test_kernel};
use tests::listings::{ListedProcess, PS, assert_same_processes};
use tests::record::{open, record};
use tests::traveller::Traveller;

/// The number of hits that are compared, from the recording's end backward.
const HITS: usize = 12;
/// The text that the guest prints directly after its list of processes.
const LISTED: &str = "that was all";

/// Starts some processes that sleep, lists all processes, and starts some processes that write.
fn record_processes(path: &Path) -> String {
    let guest = Guest::linux(&CLOUD, &BUSYBOX, "pti=on", 128);
    let list = format!("{PS}; echo that was ''all");
    // The loop lasts for several timer ticks, so some ticks come while it runs.
    let work = "ls /; ls /proc/sys; uname -a; i=0; while [ $((i += 1)) -lt 3000 ]; do :; done";
    let commands = ["sleep 1000 &", "sleep 1001 &", &list, work, "poweroff -f"];
    let mut script = Script::shell(&commands);
    record(&guest, path, &mut script);
    script.text()
}

/// Runs gdb with the tt commands, and returns gdb's output.
fn gdb_says(timeline: &mut Timeline, directory: &Path, commands: &[String]) -> String {
    batch::serve(timeline, directory, |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        batch::attach(&mut gdb, socket, commands);
        gdb
    })
}

struct Boot<'a> {
    timeline: Timeline,
    symbols: Symbols,
    tasks: Tasks,
    directory: &'a Path,
}

impl Boot<'_> {
    fn goto(&mut self, position: Instructions) {
        self.timeline.seek(position, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the last positions after `from` at which a condition is true, with the running process, newest
    /// first. Returns at most eight times `HITS` positions.
    fn hits(&mut self, from: Instructions, stops: Stops) -> Vec<(Instructions, Process)> {
        self.timeline.set_stops(stops);
        let end = self.timeline.end();
        let hits = self.timeline.hits(from, end, 10_000, &mut || false);
        let hits = hits.unwrap_or_else(|error| panic!("{error}")).found;
        let mut found = Vec::new();
        for hit in hits.iter().rev().take(8 * HITS) {
            self.goto(hit.after);
            let processes = self.tasks.list(self.timeline.machine());
            assert_eq!(processes.damage, None);
            let current = processes.all.iter().find(|process| processes.is_current(process));
            found.push((hit.before, current.expect("something runs").clone()));
        }
        found
    }

    fn gdb(&mut self, commands: &[String]) -> String {
        gdb_says(&mut self.timeline, self.directory, commands)
    }

    /// Returns gdb's first `count` stops on the way back from the end. The command `point` sets a breakpoint or
    /// watchpoint, and `tt break-in` limits it to the process `bound`.
    fn stops_of_gdb(&mut self, point: &str, bound: &str, count: usize) -> Vec<Instructions> {
        let mut commands = vec!["tt goto end".to_string(), point.to_string(), format!("tt break-in {bound}")];
        for _ in 0..count {
            commands.push("reverse-continue".to_string());
            commands.push("printf \"at %lu\\n\", $_tt_position()".to_string());
        }
        let said = self.gdb(&commands);
        let stops: Vec<_> = said
            .lines()
            .filter_map(|line| line.strip_prefix("at "))
            .map(|digits| Instructions(digits.parse().expect("a number")))
            .collect();
        assert_eq!(stops.len(), count, "{said}");
        stops
    }
}

/// Returns the positions of the first `HITS` hits in a wanted process.
fn chosen(hits: &[(Instructions, Process)], wanted: impl Fn(&Process) -> bool) -> Vec<Instructions> {
    hits.iter().filter(|(_, process)| wanted(process)).map(|&(at, _)| at).take(HITS).collect()
}

#[test]
fn processes_and_symbols_of_a_stock_kernel() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("boot.ttvm");
    let console = record_processes(&path);
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_stops(Stops { console: Some(LISTED.into()), ..Stops::default() });
    timeline.run_forward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
    let marker = timeline.position();
    let symbols = Symbols::of_guest(timeline.machine()).expect("the kernel runs");
    let tasks = Tasks::of_kernel(timeline.machine(), &symbols).expect("it is known");
    let mut boot = Boot { timeline, symbols, tasks, directory: directory.path() };
    the_list_is_the_guests(&boot, &console);
    stops_are_in_one_process(&mut boot, marker);
    symbols_are_loaded_and_used(&mut boot);
    what_is_looked_for_has_names_and_values(&mut boot);
    threads_wake_up_as_gdb_shows_them(&mut boot);
}

fn the_list_is_the_guests(boot: &Boot<'_>, console: &str) {
    let listed = ListedProcess::all(console);
    assert!(listed.len() > 30, "{console}");
    let processes = boot.tasks.list(boot.timeline.machine());
    assert_same_processes(&processes, &listed);
    let current = processes.current.as_ref().and_then(|current| processes.with(current.process));
    assert_eq!(current.map(|process| process.name.as_str()), Some("sh"), "it has just printed");
}

fn stops_are_in_one_process(boot: &mut Boot<'_>, from: Instructions) {
    let write = boot.symbols.address_of("__x64_sys_write").expect("it is there");
    let hits = boot.hits(from, Stops { breakpoints: vec![Breakpoint::at(write)], ..Stops::default() });
    let names: BTreeSet<_> = hits.iter().map(|(_, process)| process.name.clone()).collect();
    assert!(["sh", "ls"].iter().all(|name| names.contains(*name)), "{names:?}");
    let shell = hits.iter().find(|(_, process)| process.name == "sh").expect("it writes").1.clone();
    let AddressSpace::Own(root) = shell.space else { panic!("{shell:?}") };
    let of_shell = chosen(&hits, |process| process.pid == shell.pid);
    let of_ls = chosen(&hits, |process| process.name == "ls");
    assert!(of_shell.len() > 3 && of_ls.len() > 1, "{of_shell:?} {of_ls:?}");
    let at_write = format!("break *{write:#x}");
    let stops = boot.stops_of_gdb(&at_write, &shell.pid.to_string(), of_shell.len());
    assert_eq!(stops, of_shell);
    assert_eq!(boot.stops_of_gdb(&at_write, "ls", of_ls.len()), of_ls);
    // CR3 while the program runs: its own page tables and its PCID.
    let cr3 = format!("{:#x}", root | USER_ROOT_BIT | 0x805);
    assert_eq!(boot.stops_of_gdb(&at_write, &cr3, of_shell.len()), of_shell);

    // All programs are one file, busybox, so their code has the same addresses.
    boot.goto(of_ls[0]);
    boot.timeline.set_stops(Stops::system_call(Some(1)));
    boot.timeline.run_backward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
    let machine = boot.timeline.machine();
    assert!(machine.cpu().core().cpl == 3 && address_space(machine) & USER_ROOT_BIT != 0);
    let user = machine.cpu().rip();
    let processes = boot.tasks.list(machine);
    let ls = processes.all.iter().find(|process| processes.is_current(process)).expect("it runs");
    assert_eq!((ls.name.as_str(), ls.space), ("ls", AddressSpace::Own(boot.tasks.address_space(machine))));
    let ls = ls.pid;
    let hits = boot.hits(from, Stops { breakpoints: vec![Breakpoint::at(user)], ..Stops::default() });
    let expected = chosen(&hits, |process| process.pid == ls);
    assert!(!expected.is_empty() && expected.len() < hits.len(), "{expected:?} of {}", hits.len());
    let at_user = format!("break *{user:#x}");
    assert_eq!(boot.stops_of_gdb(&at_user, &ls.to_string(), expected.len()), expected);

    let jiffies = boot.symbols.address_of("jiffies_64").expect("it is there");
    let changes =
        format!("change:{jiffies:#x}+8").parse::<history::timeline::Condition>().expect("a condition").0;
    let hits = boot.hits(from, changes);
    let (_, owner) = hits.iter().find(|(_, process)| process.pid != hits[0].1.pid).expect("others run too");
    let (owner, other) = (owner.pid, hits[0].1.pid);
    for pid in [owner, other] {
        let expected: Vec<_> = chosen(&hits, |process| process.pid == pid).into_iter().take(4).collect();
        let watch = format!("watch *(unsigned long *) {jiffies:#x}");
        assert_eq!(boot.stops_of_gdb(&watch, &pid.to_string(), expected.len()), expected, "{pid}");
    }
    let said = boot.gdb(&["tt goto end", "tt break-in 2", "tt break-in", "tt ps"].map(str::to_string));
    for text in [
        "2 (kthreadd) is a kernel thread without an address space",
        "only in process 2\n",
        " kernel thread  kthreadd                 kthreadd\n",
    ] {
        assert!(said.contains(text), "no '{text}' in {said}");
    }
    assert_eq!(said.lines().filter(|line| line.ends_with(" sleep")).count(), 2, "{said}");
}

/// `tt back-to last-syscall execve` and `last-write EXPR == VALUE` must go to the same positions as a search for
/// the condition.
fn what_is_looked_for_has_names_and_values(boot: &mut Boot<'_>) {
    let end = boot.timeline.end();
    let jiffies = boot.symbols.address_of("jiffies_64").expect("it is there");
    boot.goto(end);
    let mut value = [0; 8];
    let machine = boot.timeline.machine();
    assert_eq!(GuestView::read(machine, machine.cr3(), jiffies, &mut value), 8);
    let earlier = u64::from_le_bytes(value) - 3;
    let of_variable = format!("jiffies_64 == {earlier}");
    let at_address = format!("*(unsigned int *) {jiffies:#x} <= {earlier}");
    let below = format!("write:{jiffies:#x}+4 <= {}", earlier as u32);
    let asked = [
        ("last-syscall execve".to_string(), "syscall:execve".to_string()),
        ("last-syscall open*".to_string(), "syscall:open*".to_string()),
        (format!("last-write {of_variable}"), format!("write:{of_variable}")),
        (format!("last-write {at_address}"), below),
    ];
    let mut commands = Vec::new();
    for (what, _) in &asked {
        commands.extend(["tt goto end".to_string(), format!("tt back-to {what}")]);
        commands.push("printf \"at %lu\\n\", $_tt_position()".to_string());
    }
    commands.extend(["tt back-to last-syscall nonsense", "tt back-to last-write 1 +"].map(str::to_string));
    let said = boot.gdb(&commands);
    let stops: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("at ")?.split(' ').next()).collect();
    let mut expected = Vec::new();
    for (_, condition) in &asked {
        boot.goto(end);
        let condition = Condition::parse(condition, &boot.symbols).expect("a condition");
        boot.timeline.set_stops(condition.0);
        let stop = boot.timeline.run_backward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(stop, TravelStop::Hit(_)), "{stop:?}");
        expected.push(boot.timeline.position().to_string());
    }
    let stops: Vec<&str> = stops.into_iter().filter(|stop| !stop.starts_with("0x")).collect();
    assert_eq!(stops, expected, "{said}");
    assert!(said.contains("'nonsense' is no system call of Linux"), "{said}");
    assert!(!said.contains("Python Exception"), "{said}");
}

fn symbols_are_loaded_and_used(boot: &mut Boot<'_>) {
    let end = boot.timeline.end();
    boot.goto(end);
    let text = boot.symbols.address_of("_text").expect("it is there");
    let distance = text - 0xffff_ffff_8100_0000;
    assert_ne!(distance, 0, "there is no KASLR");
    // No module is loaded yet at the first system call.
    let early = "syscall:1".parse().expect("a position");
    let early = boot.timeline.resolve(early, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    boot.goto(early);
    let mut vmlinux = elf::file(&Symbols::of_guest(boot.timeline.machine()).expect("the kernel runs"));
    boot.goto(end);
    move_down(&mut vmlinux, kallsyms::IMAGE, distance);
    let file = boot.directory.join("vmlinux of it");
    std::fs::write(&file, vmlinux).expect("the folder is ours");
    let do_exit = boot.symbols.address_of("do_exit").expect("it is there");
    let said = boot.gdb(
        &[
            "tt symbols",
            "info address do_exit",
            "info symbol virtblk_probe",
            "break __x64_sys_reboot",
            "reverse-continue",
            &format!("tt symbols '{}'", file.display()),
            "info address do_exit",
            "reverse-stepi",
            "continue",
            "tt goto syscall:1",
            "tt symbols",
            "echo early\\n",
            "info symbol virtblk_probe",
            "info address do_exit",
            "tt goto end",
            "tt symbols none",
            "info symbol virtblk_probe",
            "tt back-to last-call do_exit",
            "tt search write:jiffies_64+8",
            "tt search break:__x64_sys_rebo*",
            "tt back-to last-write no_such_thing",
            "tt symbols /nowhere/vmlinux",
            "tt symbols /dev/zero",
        ]
        .map(str::to_string),
    );
    let located = format!("Symbol \"do_exit\" is at {do_exit:#x} in a file");
    expect_in_order(
        &said,
        &[
            "virtio_blk",
            &located,
            "virtblk_probe in section .text.virtio_blk",
            "Breakpoint 1, 0x",
            "in __x64_sys_reboot",
            &located,
            "Breakpoint 1, 0x",
            "modules: none",
            "early",
            &located,
            "virtblk_probe in section .text.virtio_blk",
            "<do_exit>",
            "in do_exit",
            "before: insn:",
            "after: insn:",
            "before: nowhere",
            "after: insn:",
            "<__x64_sys_reboot>",
        ],
    );
    for text in [
        "No symbol",
        &format!("early\n{located}"),
        "'no_such_thing' is neither a number nor a symbol of the guest's kernel",
        "cannot use the symbols of /nowhere/vmlinux: No such file",
        "cannot use the symbols of /dev/zero: it is not a regular file",
    ] {
        assert!(said.contains(text), "no '{text}' in {said}");
    }
}

/// gdb shows the sleeping shell as a thread while `ls` writes. The shell must later continue with exactly the shown
/// registers, stack and memory.
fn threads_wake_up_as_gdb_shows_them(boot: &mut Boot<'_>) {
    let write = boot.symbols.address_of("__x64_sys_write").expect("it is there");
    let end = boot.timeline.end();
    boot.goto(end);
    boot.timeline.set_stops(Stops { breakpoints: vec![Breakpoint::at(write)], ..Stops::default() });
    let processes = loop {
        boot.timeline.run_backward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
        let processes = boot.tasks.list(boot.timeline.machine());
        if processes.current.as_ref().is_some_and(|current| current.name == "ls") {
            break processes;
        }
    };
    let here = boot.timeline.position();
    let sleepers = processes.all.iter().map(|process| 1 + process.threads.len()).sum::<usize>() - 1;
    let shell = processes.all.iter().find(|process| process.name == "sh").expect("it waits");
    // gdb shows the CPU as thread 1, so the thread of process 1 has another number.
    let number = if shell.pid == 1 { (1 << 22) + 1 } else { shell.pid };
    let said = boot.gdb(
        &[
            &format!("tt goto insn:{here}"),
            "tt symbols",
            "tt threads on",
            "info threads",
            &format!(
                "python [gdb.execute('thread %d' % t.num) for t in gdb.selected_inferior().threads() if t.ptid[1] == {number}]"
            ),
            "printf \"sleeps %lx %lx %lx %lx %lx\\n\", $rip, $rsp, $rbp, $rbx, $r12",
            "bt",
            "python exec(\"f = gdb.newest_frame()\\nwhile f.older(): f = f.older()\")",
            "python at = int(f.read_register('rsp')) & (1 << 64) - 1",
            "python print('program %x %s' % (at, gdb.selected_inferior().read_memory(at, 64).tobytes().hex()))",
            "set $rbx = 1",
            "set *(char *) $rsp = 1",
            "stepi",
            "thread",
            "tt goto -1000",
            "tt threads off",
            "info threads",
        ]
        .map(str::to_string),
    );
    expect_in_order(
        &said,
        &["(vCPU 0, ls, pid ", "(sh, pid ", ", S)", "sleeps ", "schedule", "do_syscall_64"],
    );
    expect_in_order(&said, &["program ", "Current thread is 1 ", "gdb sees only the CPU", "(vCPU 0)"]);
    let listed = |state: &str| said.lines().filter(|line| line.contains(&format!(", {state}) "))).count();
    assert_eq!(["R", "S", "D", "I", "Z"].map(listed).iter().sum::<usize>(), sleepers, "{said}");
    assert!(said.contains("not a sleeping thread"), "{said}");
    assert!(said.contains("Cannot access memory at address 0xffff"), "its memory cannot be changed: {said}");
    assert!(!said.contains("scratch fork"), "{said}");

    let shown = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no '{name}' in {said}")).to_string()
    };
    let asleep = shown("sleeps");
    let at = u64::from_str_radix(asleep.split(' ').next().unwrap_or_default(), 16).expect("RIP");
    boot.goto(here);
    boot.timeline.set_stops(Stops { breakpoints: vec![Breakpoint::at(at)], ..Stops::default() });
    loop {
        let stop = boot.timeline.run_forward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(stop, TravelStop::Hit(_)), "the shell goes on some time");
        let current = boot.tasks.current(boot.timeline.machine());
        if current.is_some_and(|current| current.id == shell.pid) {
            break;
        }
    }
    let cpu = boot.timeline.machine().cpu();
    let [_, _, _, rbx, rsp, rbp, _, _, _, _, _, _, r12, ..] = cpu.state().gpr;
    assert_eq!(format!("{at:x} {rsp:x} {rbp:x} {rbx:x} {r12:x}"), asleep);
    let program = shown("program");
    let (stack, bytes) = program.split_once(' ').expect("two words");
    let mut memory = [0; 64];
    let stack = u64::from_str_radix(stack, 16).expect("RSP");
    assert_eq!(cpu.core().peek(stack, &mut memory), memory.len());
    assert_eq!(memory.map(|byte| format!("{byte:02x}")).concat(), bytes);
    assert!(memory.iter().any(|&byte| byte != 0));
}

fn expect_in_order(said: &str, expected: &[&str]) {
    let mut rest = said;
    for text in expected {
        let at = rest
            .find(text)
            .unwrap_or_else(|| panic!("no '{text}' in what is left of gdb's answers:\n{said}"));
        rest = &rest[at + text.len()..];
    }
}

#[test]
fn a_kernel_without_symbols_has_address_spaces() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = Traveller::record(directory.path());
    let mut timeline = Timeline::open(&open(&traveller.path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let root = address_space(timeline.machine());
    let kernel = test_kernel("travel");
    let show = |name: &str| format!("printf \"{name} %lu %lx\\n\", $_tt_position(), $rip");
    let commands = [
        "tt ps".to_string(),
        "tt symbols".to_string(),
        "tt break-in 12".to_string(),
        format!("break *{:#x}", traveller.hook),
        "tt break-in here".to_string(),
        "reverse-continue".to_string(),
        show("here"),
        format!("tt break-in {:#x} 1", root + 0x1000),
        "reverse-continue".to_string(),
        show("elsewhere"),
        "tt goto end".to_string(),
        "tt break-in anywhere 1".to_string(),
        "tt break-in anywhere".to_string(),
        "reverse-continue".to_string(),
        show("anywhere"),
        format!("tt symbols {}", kernel.display()),
        "info symbol $rip".to_string(),
    ];
    let said = gdb_says(&mut timeline, directory.path(), &commands);
    let shown = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no '{name}' in {said}")).to_string()
    };
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_breakpoints(vec![traveller.hook]);
    timeline.run_backward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
    let expected = format!("{} {:x}", timeline.position(), traveller.hook);
    assert_eq!((shown("here"), shown("anywhere")), (expected.clone(), expected), "{said}");
    assert!(shown("elsewhere").starts_with("0 "), "{said}");
    assert_eq!(
        said.matches("no kernel with a symbol table (CONFIG_KALLSYMS) is mapped").count(),
        4,
        "{said}"
    );
    assert!(said.contains("break- and watchpoints stop in all processes"), "{said}");
    assert!(said.contains("hook in section .text"), "{said}");
}
