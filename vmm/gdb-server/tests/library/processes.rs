//! Commands about the guest's kernel: processes, threads, backtraces and symbol files.

use std::path::{Path, PathBuf};

use gdb::{DebugTarget, FIRST_CPU, NOT_A_CPU, SleepingThread};
use gdb_server::GdbTarget;
use tiny_guest::linux::{CALLS, DIRECT_MAP, ROOT, TEXT, UNMAPPED, task};

use crate::guest::{Asked, Guest, linux, programs, several, tiny};

/// gdb's number of the idle thread.
const IDLE: gdb::Thread = 1 << 22;

fn at_a_switch() -> Guest {
    let mut guest = linux();
    guest.go_to("__switch_to");
    guest
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn processes_are_listed_with_the_running_one_marked() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    let list = target.ask("ps");
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(words(lines[0]), ["PID", "PARENT", "STATE", "CR3", "WAITS", "IN", "NAME"]);
    assert_eq!(words(lines[1]), ["0", "0", "R", "none", "-", "swapper"]);
    assert_eq!(words(lines[2]), ["2", "0", "S", "kernel", "thread", "pipe_read", "worker"]);
    assert_eq!(words(lines[3]), ["*", "5", "0", "R", "0x110000", "-", "alpha"]);
    assert_eq!(words(lines[4]), ["6", "thread", "of", "5", "pipe_read", "beta"]);
    assert_eq!(lines.len(), 5);
    // The other thread runs after the switch.
    target.ask("goto +6");
    let list = target.ask("ps");
    assert!(list.ends_with("\n(* of process 5 it is thread 6)\n") && list.contains("\n*       5 "), "{list}");
}

#[test]
fn a_damaged_list_of_processes_says_so() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    let next_of_worker = task(2) + 0x20;
    target.write_memory(FIRST_CPU, next_of_worker, &0x10_u64.to_le_bytes()).unwrap();
    let list = target.ask("ps");
    assert!(list.contains("(the list is incomplete: "), "{list}");
}

#[test]
fn without_a_kernel_there_is_nothing_to_list() {
    let (_directory, mut timeline) = tiny(10);
    let mut target = GdbTarget::new(&mut timeline);
    for command in
        ["ps", "backtrace", "dmesg", "threads on", "mappings", "break-in 5", "break-in sh", "symbols"]
    {
        let answer = target.ask(command);
        assert!(answer.starts_with("error: ") && answer.contains("kernel"), "{command}: {answer}");
    }
    assert_eq!(target.ask("reports"), "the guest's kernel reports nothing\n");
    assert_eq!(target.threads(), gdb::Threads { cpus: vec![String::new()], sleeping: Vec::new() });
}

#[test]
fn backtraces_and_messages_are_those_of_the_kernel() {
    let mut guest = at_a_switch();
    let address = guest.kernel.address_of("__switch_to");
    let mut target = guest.target();
    let told = target.ask("backtrace");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with(&format!("#0   {address:#x} __switch_to+0x0")), "{told}");
    assert!(lines[1].starts_with("#1   0xffffffff81120") && lines[1].contains(" do_syscall_64+0x"), "{told}");
    assert!(lines[3].starts_with("from ") && lines.len() == 4, "{told}");
    for command in ["dmesg", "dmesg 3"] {
        assert_eq!(target.ask(command), "error: the kernel's symbols do not include 'prb'\n");
    }
}

#[test]
fn mappings_are_those_of_a_process() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    for command in ["mappings", "mappings 5", "mappings 6"] {
        let answer = target.ask(command);
        assert_eq!(answer, "error: 'struct file' of this kernel has no 'f_path'\n", "{command}");
    }
    for pid in ["99", "4294967301"] {
        let none = format!("error: there is no process {pid} at this position: 'monitor ps' lists them\n");
        assert_eq!(target.ask(&format!("mappings {pid}")), none);
    }
}

#[test]
fn threads_that_do_not_run_are_shown_on_request() {
    let mut guest = at_a_switch();
    let running = |text: &str| vec![text.to_string()];
    let mut target = guest.target();
    assert_eq!(target.threads(), gdb::Threads { cpus: running(""), sleeping: Vec::new() });
    let refusal = target.read_registers(6).unwrap_err().to_string();
    assert_eq!(refusal, "gdb sees only the CPU: 'monitor threads on' shows the guest's threads");
    let mut bytes = [0; 8];
    assert_eq!(target.read_memory(6, TEXT, &mut bytes), 0);
    assert_eq!(target.ask("threads"), "gdb sees only the CPU\n");
    let on = "gdb sees the guest's threads; thread 1 is the CPU, and the only one that moves\n";
    assert_eq!(target.ask("threads on"), on);
    assert_eq!(target.ask("threads"), on);
    let threads = target.threads();
    let sleeping = |number, description: &str| SleepingThread { number, description: description.into() };
    let (swapper, worker) = (sleeping(IDLE, "swapper, pid 0, R"), sleeping(2, "worker, pid 2, S"));
    let beta = sleeping(6, "beta, pid 6 of 5, S");
    let expected = vec![swapper.clone(), worker.clone(), beta];
    assert_eq!(threads, gdb::Threads { cpus: running("alpha, pid 5"), sleeping: expected });
    // After the switch the other thread sleeps.
    target.ask("goto +6");
    let threads = target.threads();
    let alpha = sleeping(5, "alpha, pid 5, R");
    assert_eq!(
        threads,
        gdb::Threads { cpus: running("beta, pid 6"), sleeping: vec![swapper, worker, alpha] }
    );
    assert_eq!(target.ask("threads off"), "gdb sees only the CPU\n");
    assert_eq!(target.threads().sleeping, []);
}

#[test]
fn a_sleeping_thread_has_its_saved_registers_and_its_memory() {
    let mut guest = at_a_switch();
    let kernel_place = guest.kernel.address_of("schedule") + 5;
    let mut target = guest.target();
    target.ask("threads on");
    target.threads();
    let running = target.registers();
    let registers = target.read_registers(6).unwrap();
    let stack = DIRECT_MAP + (task(6) & 0xff_ffff) + 0xa00 + 56;
    assert_eq!((registers.rip, registers.rsp, registers.cr3), (kernel_place, stack, ROOT));
    assert_eq!((registers.cs, registers.ss, registers.cr0), (0x10, 0x18, running.cr0));
    assert_eq!((registers.cr4, registers.efer), (running.cr4, running.efer));
    let of_kernel_thread = target.read_registers(2).unwrap();
    assert_eq!((of_kernel_thread.rip, of_kernel_thread.cr3), (kernel_place, running.cr3 & !0xfff));
    let mut bytes = [0; 5];
    assert_eq!((target.read_memory(6, TEXT, &mut bytes), &bytes), (5, b"hello"));
    assert_eq!((target.read_memory(2, TEXT, &mut bytes), &bytes), (5, b"hello"));
    assert_eq!(target.read_memory(7, TEXT, &mut bytes), 0);
    assert_eq!(target.read_registers(7).unwrap_err().to_string(), "there is no thread 7 here");
    let refusal = target.write_registers(6, &registers).unwrap_err().to_string();
    assert_eq!(refusal, NOT_A_CPU);
    assert_eq!(target.write_memory(6, TEXT, b"x").unwrap_err().to_string(), NOT_A_CPU);
    target.write_memory(FIRST_CPU, task(0) + 0x88, &UNMAPPED.to_le_bytes()).unwrap();
    let refusal = target.read_registers(IDLE).unwrap_err().to_string();
    assert_eq!(refusal, "the stack of swapper, pid 0, R cannot be read");
}

#[test]
fn all_registers_that_a_call_preserves_are_shown() {
    let mut guest = programs();
    let (mut target, _) = guest.target_at("beta_main");
    target.ask("threads on");
    let threads = target.threads();
    assert!(threads.sleeping.iter().any(|thread| thread.description == "alpha, pid 5, R"), "{threads:?}");
    let registers = target.read_registers(5).unwrap();
    assert_eq!([registers.r12, registers.r13, registers.r14, registers.r15], [12, 13, 14, 15]);
    // RBX has the address of the saved registers, and RBP is the program's.
    let stack = task(5)..task(5) + 0x1000;
    assert!(stack.contains(&registers.rbx) && stack.contains(&registers.rsp), "{registers:x?}");
    assert_eq!(registers.rbp, target.word(registers.rbx + 32));
    assert_ne!(registers.rbp, 0);
}

#[test]
fn a_thread_whose_number_is_a_processors_gets_another() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.ask("threads on");
    // The numbers of the thread and of its process.
    target.write_memory(FIRST_CPU, task(2) + 0x38, &[1, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    let numbers: Vec<_> = target.threads().sleeping.iter().map(|thread| thread.number).collect();
    assert_eq!(numbers, [IDLE, IDLE + 1, 6]);
}

#[test]
fn memory_is_read_as_the_thread_that_gdbs_user_looks_at() {
    let mut guest = at_a_switch();
    let mut target = guest.target();
    target.ask("threads on");
    target.threads();
    let mut bytes = [0; 5];
    target.ask("threads look-at 7");
    assert_eq!(target.read_memory(FIRST_CPU, TEXT, &mut bytes), 0, "there is no thread 7");
    assert_eq!(target.selected_cpu(), FIRST_CPU);
    assert_eq!(target.write_memory(FIRST_CPU, TEXT, b"x").unwrap_err().to_string(), NOT_A_CPU);
    target.ask("threads look-at 6");
    assert_eq!(target.read_memory(FIRST_CPU, TEXT, &mut bytes), 5);
    target.ask("threads look-at 7");
    target.step();
    assert_eq!(target.read_memory(FIRST_CPU, TEXT, &mut bytes), 5, "a movement shows the CPU again");
    target.ask("threads look-at 7");
    target.ask("goto +1");
    assert_eq!(target.read_memory(FIRST_CPU, TEXT, &mut bytes), 5, "and so does a command that moves");
    target.ask("threads look-at 7");
    target.ask("when");
    assert_eq!(target.read_memory(FIRST_CPU, TEXT, &mut bytes), 0);
}

#[test]
fn with_several_processors_all_are_shown_with_their_threads() {
    let mut guest = several();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    assert_eq!(target.ask("threads"), "gdb sees only the processors, as threads 1 to 3\n");
    let cpus: Vec<String> = ["alpha, pid 5", "worker, pid 2", "not started"].map(String::from).into();
    assert_eq!(target.threads(), gdb::Threads { cpus: cpus.clone(), sleeping: Vec::new() });
    let on = "gdb sees the guest's threads; threads 1 to 3 are the processors, and only they move\n";
    assert_eq!(target.ask("threads on"), on);
    let sleeping = |id: u32, text: &str| SleepingThread { number: IDLE + id, description: text.to_string() };
    let expected = vec![sleeping(0, "swapper, pid 0, R"), sleeping(6, "beta, pid 6 of 5, S")];
    assert_eq!(target.threads(), gdb::Threads { cpus, sleeping: expected });
}

#[test]
fn symbol_files_stay_until_gdb_has_loaded_newer_ones() {
    let mut guest = at_a_switch();
    let folder = guest.directory.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let files = || {
        let folders = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> = folders
            .flat_map(|folder| std::fs::read_dir(folder).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let mut target = guest.target().with_folder(&folder);
    let answer = target.ask("symbols");
    let lines: Vec<&str> = answer.lines().collect();
    let paths: Vec<PathBuf> = lines[..2].iter().map(|line| loaded(line)).collect();
    assert!(paths[0].ends_with("kernel-1") && paths[1].ends_with("programs-2"), "{answer}");
    assert!(paths.iter().all(|path| path.starts_with(&folder)), "{answer}");
    let bytes = std::fs::read(&paths[0]).unwrap();
    assert!(bytes.starts_with(b"\x7fELF") && bytes.windows(13).any(|part| part == b"do_syscall_64"));
    assert_eq!(lines[2], "# modules: none");
    let missing = "# the symbols of modules are missing: the kernel's symbols do not include 'modules'";
    assert_eq!(lines[3..], [missing]);
    let answer = target.ask("symbols modules");
    let modules = loaded(answer.lines().next().unwrap());
    let bytes = std::fs::read(&modules).unwrap();
    assert!(modules.ends_with("modules-3"), "{answer}");
    assert!(!bytes.windows(13).any(|part| part == b"do_syscall_64"), "the file has symbols of modules only");
    assert_eq!(files(), ["kernel-1", "modules-3", "programs-2", "programs-4"]);
    // The first files stay while gdb uses them.
    target.ask("symbols loaded");
    target.ask("symbols loaded");
    target.ask("symbols");
    assert_eq!(files().len(), 6);
    target.ask("symbols loaded");
    assert_eq!(files(), ["kernel-5", "programs-6"]);
    let why = "the guest's modules are not known: the kernel's symbols do not include 'modules'";
    assert_eq!(target.ask("symbols module ext4"), format!("error: {why}\n"));
    drop(target);
    assert_eq!(files(), [""; 0]);
}

/// The file that a line for gdb loads.
fn loaded(line: &str) -> PathBuf {
    let name = line.strip_prefix("add-symbol-file \"").unwrap_or_else(|| panic!("{line}"));
    Path::new(name.strip_suffix('"').unwrap()).to_path_buf()
}

#[test]
fn a_symbol_file_that_cannot_be_written_is_refused() {
    let mut guest = at_a_switch();
    let folder = guest.directory.path().join("missing");
    let mut target = guest.target().with_folder(&folder);
    let answer = target.ask("symbols");
    assert!(answer.starts_with("error: cannot write a file with symbols: "), "{answer}");
}

#[test]
fn a_greeting_names_the_commands_once() {
    let mut guest = at_a_switch();
    assert_eq!(guest.target().take_greeting(), None);
    let mut target = guest.target().with_commands(Path::new("/a/tt\x1b.py"));
    let greeting = target.take_greeting().unwrap();
    assert!(greeting.starts_with("ttvm: this gdb lacks the tt commands; to load them, enter: source /a/tt"));
    assert!(greeting.ends_with(".py") && !greeting.contains('\x1b'), "{greeting:?}");
    assert_eq!(target.take_greeting(), None);
}

#[test]
fn the_next_step_searches_for_a_kernel_again_when_it_may_have_come() {
    let mut guest = linux();
    let mut target = guest.target();
    // At power-on there is no kernel yet.
    assert!(target.ask("ps").starts_with("error: "));
    target.ask(&format!("forward-to write {CALLS:#x}"));
    assert!(target.ask("ps").contains("alpha"));
    target.ask("goto start");
    assert!(target.ask("ps").starts_with("error: "), "at the start nothing is mapped");
}
