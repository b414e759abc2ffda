//! Tests the views of a guest that looks like Linux: its state, its tasks, searches, and core files.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use history::never;
use history::timeline::{Direction, Timeline, TravelStop};
use machine::position::{Count, Instructions};
use object::elf::{PT_LOAD, PT_NOTE};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ObjectSegment};
use tiny_guest::linux::{self, CALLS, DIRECT_MAP, IMAGE, Kernel, RELEASE, ROOT, TEXT, UNMAPPED};
use tiny_guest::{record, record_long, typed};
use views::core_file;
use views::filters::Filters;
use views::guest_kernel::{Backtrace, GuestKernel, GuestKernels};
use views::hits::{Found, Search, Wanted};
use views::memory::{Bytes, Range, disassemble};
use views::reports::{ReportList, ReportRow};
use views::state::{Running, RunningKernel, State, StateOptions};
use views::tasks::Task;
use views::trace;

/// The number of system calls that the guest makes.
const CALLS_MADE: u32 = 5;
const RAM_BYTES: u64 = 4 << 20;

fn timeline() -> (tempfile::TempDir, Timeline, Kernel) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _, kernel) = linux::record(directory.path(), "r.ttvm", CALLS_MADE, None);
    let timeline = Timeline::open(&recording).unwrap();
    (directory, timeline, kernel)
}

/// Runs until the instruction at an address is next.
fn go_to(timeline: &mut Timeline, address: u64) {
    timeline.set_breakpoints(vec![address]);
    assert!(matches!(timeline.run_forward(&mut never).unwrap(), TravelStop::Hit(_)));
    assert_eq!(timeline.machine().cpu().rip(), address);
}

fn state(timeline: &Timeline) -> State {
    let options = StateOptions {
        processes: true,
        backtrace: true,
        console_lines: 2,
        instructions: 2,
        memory: vec![Range { address: TEXT, length: 5 }],
        physical: vec![Range { address: RAM_BYTES - 40, length: 41 }],
        ..StateOptions::default()
    };
    State::of(timeline.machine(), &options).unwrap()
}

#[test]
fn the_state_in_a_system_call_names_the_kernel_the_thread_and_the_callers() {
    let (_directory, mut timeline, kernel) = timeline();
    go_to(&mut timeline, kernel.address_of("__switch_to"));
    let first = state(&timeline);
    let expected = RunningKernel { release: RELEASE.to_string(), by_kexec: false };
    assert_eq!(first.kernel, Some(expected));
    assert_eq!(first.place.as_deref(), Some("__switch_to+0x0"));
    assert_eq!(first.thread, Some(Running { pid: 5, process: 5, name: "alpha".to_string() }));
    assert_eq!((first.system_calls, first.instruction), (1, timeline.position().number()));
    let functions: Vec<_> = first.backtrace.as_ref().unwrap().frames.iter().map(|call| call.name()).collect();
    let names = ["__switch_to", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];
    assert_eq!(functions.len(), names.len(), "{functions:?}");
    assert!(functions.iter().zip(names).all(|(function, name)| function.starts_with(name)), "{functions:?}");
    assert_eq!(first.memory[0].bytes, "68656c6c6f");
    assert_eq!((first.physical[0].bytes.len(), first.code.len()), (80, 2));
    let text = first.to_string();
    for line in [
        "in the kernel's __switch_to+0x0",
        "in 5 (alpha)",
        "memory at 0x150000\n  68656c6c6f",
        "physical memory at 0x3fffd8\n",
        "there is no RAM at 0x400000",
        "\n\nbacktrace\n  0x",
        "\n\nprocesses\n",
        "\n\ncode\n  0x",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(!text.contains("started by kexec") && !text.contains("\n\nconsole"), "{text}");
    // 40 bytes are a heading, three rows, and a row with the reason why the bytes end.
    let rows = text.split("physical memory at").nth(1).unwrap().split("\n\n").next().unwrap();
    assert_eq!(rows.lines().count(), 5, "{rows}");
    let lines: Vec<_> = first.backtrace.unwrap().lines().collect();
    assert!(lines.len() == 4 && lines[3].starts_with("from "), "{lines:?}");

    // The kernel has switched to the other thread and is about to switch back.
    go_to(&mut timeline, kernel.address_of("__switch_to"));
    let second = state(&timeline);
    assert_eq!(second.thread, Some(Running { pid: 6, process: 5, name: "beta".to_string() }));
    assert!(second.to_string().contains("in 6 (beta) of process 5"));
    let end = timeline.end();
    timeline.seek(end, &mut never).unwrap();
    let last = state(&timeline);
    assert_eq!(last.console, ["call", "call"]);
    assert!(last.outcome.is_some() && last.system_calls == u64::from(CALLS_MADE));
    let messages = StateOptions { dmesg: true, ..StateOptions::default() };
    let error = State::of(timeline.machine(), &messages).unwrap_err().to_string();
    assert!(error.contains("there are no messages to show"), "{error}");
}

#[test]
fn tasks_are_listed_with_the_functions_in_which_they_wait() {
    let (_directory, mut timeline, kernel) = timeline();
    go_to(&mut timeline, kernel.address_of("__switch_to"));
    let list = state(&timeline).processes.unwrap();
    assert_eq!(list.damage, None);
    let root = Some(format!("{ROOT:#x}"));
    let by_pid = |pid: u32| list.tasks.iter().find(|task| task.pid == pid).unwrap().clone();
    assert_eq!(list.tasks.iter().map(|task| task.pid).collect::<Vec<_>>(), [0, 2, 5, 6]);
    let worker = Task {
        pid: 2,
        thread_of: None,
        parent: Some(0),
        state: Some('S'),
        cr3: None,
        kernel_thread: true,
        current: false,
        processor: None,
        name: "worker".to_string(),
        waits_in: Some("pipe_read".to_string()),
    };
    assert_eq!(by_pid(2), worker);
    let alpha = Task {
        pid: 5,
        state: Some('R'),
        cr3: root.clone(),
        kernel_thread: false,
        current: true,
        name: "alpha".to_string(),
        waits_in: None,
        ..worker.clone()
    };
    assert_eq!(by_pid(5), alpha);
    let beta = Task {
        pid: 6,
        thread_of: Some(5),
        parent: None,
        state: None,
        current: false,
        name: "beta".to_string(),
        waits_in: Some("pipe_read".to_string()),
        ..alpha.clone()
    };
    assert_eq!(by_pid(6), beta);
    assert_eq!(by_pid(0).space(), "none");
    assert_eq!((worker.space(), alpha.space()), ("kernel thread", "0x110000"));
    let words = |task: &Task| task.line().split_whitespace().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(words(&worker), ["2", "0", "S", "kernel", "thread", "pipe_read", "worker"]);
    assert_eq!(words(&alpha), ["*", "5", "0", "R", "0x110000", "-", "alpha"]);
    assert_eq!(words(&beta), ["6", "in", "5", "0x110000", "pipe_read", "beta"]);
}

#[test]
fn a_guests_kernel_is_found_with_its_thread_and_its_callers() {
    let (_directory, mut timeline, kernel) = timeline();
    let (_other, no_kernel) = {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _) = record(directory.path(), "r.ttvm", 10, Vec::new());
        let timeline = Timeline::open(&recording).unwrap();
        (directory, timeline)
    };
    assert!(GuestKernel::of_guest(no_kernel.machine()).is_err());
    go_to(&mut timeline, kernel.address_of("__switch_to"));
    let here = timeline.position();
    let guest = GuestKernel::of_guest(timeline.machine()).unwrap();
    assert_eq!(guest.symbols.address_of("calls"), Some(CALLS));
    assert_eq!(guest.thread(timeline.machine()).unwrap().name, "alpha");
    let backtrace = guest.backtrace(timeline.machine()).unwrap();
    assert_eq!(Backtrace::of(timeline.machine(), &guest.symbols).as_ref(), Ok(&backtrace));
    assert_eq!(backtrace.frames[0].address, kernel.address_of("__switch_to"));
    let end = timeline.end();
    let kernels = GuestKernels::of(&mut timeline, end, &mut never).unwrap();
    assert_eq!((timeline.position(), kernels.all().len()), (here, 1));
    assert_eq!(kernels.at(timeline.machine()), Some(&kernels.all()[0]));
    assert_eq!(kernels.thread(timeline.machine()).unwrap().id, 5);
    // If there is only one kernel, its name is not given.
    assert_eq!((kernels.number_at(timeline.machine()), kernels.name_at(timeline.machine())), (Some(0), None));
    let none = GuestKernels::default();
    assert_eq!((none.number_at(timeline.machine()), none.thread(timeline.machine())), (None, None));
}

/// A search with filters, one in each word.
fn found(timeline: &mut Timeline, condition: &str, filters: &[&str], wanted: Wanted) -> Found {
    let filters = Filters::parse(&filters.iter().map(|word| word.to_string()).collect::<Vec<_>>()).unwrap();
    Search { condition, filters: &filters, wanted, backtrace: false }.run(timeline, &mut never).unwrap()
}

fn all(timeline: &Timeline, limit: usize) -> Wanted {
    Wanted::All { from: Instructions(0), to: timeline.end(), limit }
}

/// The calls of a search's results, with their results.
fn calls(found: &Found) -> Vec<String> {
    let call = |hit: &views::hits::Place| {
        let call = hit.call.as_ref().unwrap();
        let result = call.result.as_deref().unwrap_or("?");
        format!("{}({}) = {result}", call.name, call.arguments.join(", "))
    };
    found.hits.iter().map(call).collect()
}

const WRITE: &str = "write(1, \"hello\", 5) = 5";

#[test]
fn system_calls_are_found_with_their_threads_arguments_and_results() {
    let (_directory, mut timeline, _) = timeline();
    let wanted = all(&timeline, 100);
    let every = found(&mut timeline, "syscall", &[], wanted);
    let made = calls(&every);
    assert_eq!(made.len(), CALLS_MADE as usize);
    let is_read = |call: &String| call.starts_with("read(1, 0x150000, 5) = -ENOENT");
    assert!(made.iter().enumerate().all(|(number, call)| if number % 2 == 0 {
        call == WRITE
    } else {
        is_read(call)
    }));
    assert!(!every.interrupted && every.goes_on_at.is_none() && every.replayed > 0);
    for hit in &every.hits {
        assert_eq!((hit.pid, hit.name.as_deref(), hit.kernel.as_ref()), (Some(5), Some("alpha"), None));
        let seconds = hit.call.as_ref().unwrap().seconds.unwrap();
        assert!(seconds > 1e-9 && seconds < 1e-6, "some 50 instructions take as many nanoseconds: {seconds}");
    }
    let text = every.to_string();
    assert!(
        text.lines().next().unwrap().contains("5 (alpha)  write(1, \"hello\", 5) = 5 in 0.0000000"),
        "{text}"
    );
    // Each call has its result, even if only some calls are wanted.
    for limit in [1, 2] {
        let wanted = all(&timeline, limit);
        assert_eq!(calls(&found(&mut timeline, "syscall", &[], wanted)), made[..limit]);
    }
    let wanted = all(&timeline, 100);
    assert_eq!(calls(&found(&mut timeline, "syscall:write", &[], wanted)), [WRITE; 3]);
    let last = every.hits.last().unwrap();
    let (from, direction) = (timeline.end(), Direction::Backward);
    let backward = found(&mut timeline, "syscall", &[], Wanted::One { from, direction });
    assert_eq!((backward.hits.len(), backward.hits[0].instruction), (1, last.instruction));
    assert_eq!((calls(&backward), &backward.hits[0].call), (vec![WRITE.to_string()], &last.call));
    assert!(backward.hits[0].rip.is_some() && last.rip.is_none());
    let wanted = Wanted::One { from: Instructions(0), direction: Direction::Forward };
    let forward = found(&mut timeline, "syscall", &[], wanted);
    assert_eq!((calls(&forward), &forward.hits[0].call), (made[..1].to_vec(), &every.hits[0].call));
    // There is no call before the first call.
    let wanted =
        Wanted::One { from: Instructions(every.hits[0].instruction), direction: Direction::Backward };
    assert!(found(&mut timeline, "syscall", &[], wanted).hits.is_empty());
}

/// The number of replayed steps does not include the steps of earlier searches and of the way to the search's beginning.
#[test]
fn a_search_counts_its_own_steps() {
    let (_directory, mut timeline, _) = timeline();
    let (end, whole) = (timeline.end(), all(&timeline, 100));
    found(&mut timeline, "syscall", &[], whole);
    for (condition, wanted) in [
        ("syscall", whole),
        ("break:__switch_to", whole),
        ("break:__switch_to", Wanted::One { from: Instructions(0), direction: Direction::Forward }),
        ("break:__switch_to", Wanted::One { from: end, direction: Direction::Backward }),
    ] {
        let before = timeline.replayed_steps();
        let found = found(&mut timeline, condition, &[], wanted);
        let all_steps = timeline.replayed_steps() - before;
        let last = found.hits.last().unwrap().instruction;
        let least = match wanted {
            Wanted::All { from, to, .. } => to - from,
            Wanted::One { direction: Direction::Forward, .. } => last,
            Wanted::One { from, .. } => from - Instructions(last),
        };
        assert!((least..=all_steps).contains(&found.replayed), "{least} {} {all_steps}", found.replayed);
    }
}

#[test]
fn filters_choose_calls_by_thread_and_duration() {
    let (_directory, mut timeline, _) = timeline();
    let mut count = |filters: &[&str]| {
        let wanted = all(&timeline, 100);
        found(&mut timeline, "syscall", filters, wanted).hits.len()
    };
    for (filters, expected) in [
        (&["pid:5"][..], 5),
        (&["pid:6"], 0),
        (&["comm:alpha"], 5),
        (&["comm:beta"], 0),
        (&["longer:1ns"], 5),
        (&["longer:1ms"], 0),
        (&["longer:1ns", "pid:5"], 5),
    ] {
        assert_eq!(count(filters), expected, "{filters:?}");
    }
    for (from, direction) in [(Instructions(0), Direction::Forward), (timeline.end(), Direction::Backward)] {
        let one = found(&mut timeline, "syscall", &["longer:1ns"], Wanted::One { from, direction });
        assert_eq!(calls(&one), [WRITE], "{direction:?}");
        assert!(
            found(&mut timeline, "syscall", &["longer:1ms"], Wanted::One { from, direction }).hits.is_empty()
        );
    }
    // The other thread runs between the two switches.
    let wanted = all(&timeline, 100);
    let switches = found(&mut timeline, "break:__switch_to", &["pid:6"], wanted);
    assert_eq!(switches.hits.len(), 5);
    assert!(switches.hits.iter().all(|hit| hit.name.as_deref() == Some("beta")));
}

#[test]
fn breakpoints_and_writes_are_found_by_symbols() {
    let (_directory, mut timeline, kernel) = timeline();
    let wanted = all(&timeline, 100);
    let filters = Filters::default();
    let search = Search { condition: "break:__switch_to", filters: &filters, wanted, backtrace: true };
    let hits = search.run(&mut timeline, &mut never).unwrap().hits;
    assert_eq!(hits.len(), 10);
    let what = format!("at {:#x} <__switch_to>", kernel.address_of("__switch_to"));
    for (number, hit) in hits.iter().enumerate() {
        let name = if number % 2 == 0 { "alpha" } else { "beta" };
        assert_eq!((hit.what.as_str(), hit.name.as_deref()), (what.as_str(), Some(name)));
        assert_eq!(hit.backtrace.as_ref().unwrap().frames.len(), 3);
        assert!(hit.call.is_none() && hit.old.is_none());
    }
    let writes = found(&mut timeline, "write:calls", &[], wanted);
    let values: Vec<_> = writes.hits.iter().map(|hit| (hit.old.clone(), hit.new.clone())).collect();
    let hex = |value: u64| Some(format!("{value:#x}"));
    assert_eq!(values, (0..5).map(|count| (hex(count), hex(count + 1))).collect::<Vec<_>>());
    assert!(writes.to_string().contains("  0x0 -> 0x1\n"), "{writes}");
    let physical = format!("write-phys:{:#x}+8", CALLS - IMAGE);
    let seen = found(&mut timeline, &physical, &[], wanted);
    let values_of =
        |found: &Found| found.hits.iter().map(|hit| (hit.old.clone(), hit.new.clone())).collect::<Vec<_>>();
    assert_eq!(values_of(&seen), values);
    let (from, direction) = (timeline.end(), Direction::Backward);
    let last = found(&mut timeline, "write:calls", &[], Wanted::One { from, direction });
    assert_eq!((last.hits[0].old.clone(), last.hits[0].new.clone()), (hex(4), hex(5)));
    let reads = found(&mut timeline, "read:calls", &[], wanted);
    assert!(reads.hits.iter().all(|hit| hit.old.is_none() && hit.new.is_none()));
    let faults = found(&mut timeline, "vector:14", &[], wanted);
    assert_eq!(faults.hits.len(), 5);
}

#[test]
fn searches_that_cannot_be_answered_say_why() {
    let (_directory, mut timeline, _) = timeline();
    let wanted = all(&timeline, 100);
    let refused = |timeline: &mut Timeline, condition: &str, filters: Filters, backtrace: bool| {
        let search = Search { condition, filters: &filters, wanted, backtrace };
        search.run(timeline, &mut never).unwrap_err().to_string()
    };
    let longer = Filters { longer_ns: Some(1), ..Filters::default() };
    let error = refused(&mut timeline, "break:__switch_to", longer.clone(), false);
    assert!(error.contains("longer: is a filter for system calls only"), "{error}");
    let error = refused(&mut timeline, "break:no_such_function", Filters::default(), false);
    assert!(error.contains("is neither a number nor a symbol"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 1_000, Vec::new());
    let mut without = Timeline::open(&recording).unwrap();
    let pid = Filters { pid: Some(5), ..Filters::default() };
    let error = refused(&mut without, "vector:14", pid, false);
    assert!(error.contains("there are no processes to choose from"), "{error}");
    let error = refused(&mut without, "vector:14", Filters::default(), true);
    assert!(error.contains("there are no backtraces to show"), "{error}");
    let error = refused(&mut without, "syscall", longer, false);
    assert!(error.contains("cannot find where this kernel's system calls return"), "{error}");
    for (options, expected) in [
        (StateOptions { processes: true, ..StateOptions::default() }, "there are no processes to show"),
        (StateOptions { backtrace: true, ..StateOptions::default() }, "there is no backtrace to show"),
        (StateOptions { dmesg: true, ..StateOptions::default() }, "there are no messages to show"),
    ] {
        let error = State::of(without.machine(), &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_interrupted_search_says_where_it_can_go_on() {
    let before = Found::interrupted_before(Instructions(7));
    assert_eq!((before.goes_on_at, before.replayed, before.interrupted), (Some(7), 0, true));
    assert_eq!(before.to_string(), "interrupted: go on with --from insn:7");
    let nothing = Found { goes_on_at: None, interrupted: false, ..before };
    assert_eq!(nothing.to_string(), "nowhere in that part of the recording");
}

#[test]
fn a_trace_counts_what_happened() {
    let (directory, mut timeline, _) = timeline();
    let to = directory.path().join("trace");
    let (mut last, whole) = (Instructions(0), (Instructions(0), timeline.end()));
    let counts = trace::write(&mut timeline, whole, &to, &mut never, |at| {
        assert!(at >= last);
        last = at;
    })
    .unwrap();
    let expected = trace::Counts {
        system_calls: 5,
        system_calls_returned: 5,
        exceptions: 10,
        page_faults: 5,
        interrupts: 0,
        switches: 10,
        console_lines: 5,
        threads: 2,
        turns: None,
    };
    assert_eq!(counts, expected);
    assert!(last > Instructions(0) && std::fs::metadata(&to).unwrap().len() > 1000);
    let other = directory.path().join("other");
    let (recording, _) = record(directory.path(), "tiny.ttvm", 100, Vec::new());
    let mut without = Timeline::open(&recording).unwrap();
    let whole = (Instructions(0), without.end());
    let error = trace::write(&mut without, whole, &other, &mut never, |_| {}).unwrap_err().to_string();
    assert!(error.contains("there is nothing to trace") && !other.exists(), "{error}");
}

/// A core file's segments as (type, file offset, virtual address, physical address, size), its notes, and all bytes
/// of the file.
type Core = (Vec<(u32, u64, u64, u64, u64)>, Vec<u8>, Vec<u8>);

fn read_core(path: &Path) -> Core {
    let bytes = std::fs::read(path).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let header = file.elf_header();
    let endian = header.endian().unwrap();
    let headers = header.program_headers(endian, &*bytes).unwrap();
    let row = |header: &object::elf::ProgramHeader64<Endianness>| {
        assert_eq!(header.p_filesz(endian), header.p_memsz(endian));
        (
            header.p_type(endian).0,
            header.p_offset(endian),
            header.p_vaddr(endian),
            header.p_paddr(endian),
            header.p_filesz(endian),
        )
    };
    let rows: Vec<_> = headers.iter().map(row).collect();
    let notes = &bytes[rows[0].1 as usize..][..rows[0].4 as usize];
    assert_eq!(file.segments().count(), rows.len() - 1);
    assert!(file.segments().all(|segment| segment.size() > 0));
    (rows, notes.to_vec(), bytes)
}

#[test]
fn a_core_file_has_all_of_memory_at_the_kernels_addresses() {
    let (directory, mut timeline, kernel) = timeline();
    go_to(&mut timeline, kernel.address_of("__switch_to"));
    let path = directory.path().join("core");
    let written = core_file::write(timeline.machine(), &path).unwrap();
    assert_eq!((written.pid, written.kernel.as_deref()), (Some(5), Some(RELEASE)));
    assert_eq!(written.memory_bytes, RAM_BYTES);
    let (rows, notes, bytes) = read_core(&path);
    assert_eq!(written.file_bytes, bytes.len() as u64);
    assert_eq!((rows[0].0, rows[1..].iter().all(|row| row.0 == PT_LOAD.0)), (PT_NOTE.0, true));
    // The segments are RAM, which is one piece, and the kernel's image in RAM.
    let text = kernel.address_of("_text");
    let image_bytes = (kernel.address_of("_end") - text).next_multiple_of(4096);
    let data_at = rows[1].1;
    let image_at = text - IMAGE;
    let expected = [
        (PT_LOAD.0, data_at, DIRECT_MAP, 0, RAM_BYTES),
        (PT_LOAD.0, data_at + image_at, text, image_at, image_bytes),
    ];
    assert_eq!(rows[1..], expected);
    assert!(data_at % 4096 == 0 && rows[0].1 + rows[0].4 <= data_at, "the notes come before RAM");
    assert_eq!(bytes.len() as u64, data_at + RAM_BYTES);
    let virtual_addresses: Vec<_> = written.segments.iter().map(|segment| segment.virtual_address).collect();
    assert_eq!(virtual_addresses, [Some(DIRECT_MAP), Some(text)]);
    // All bytes are equal to the machine's RAM, including pages of zeroes.
    let mut memory = vec![0; RAM_BYTES as usize];
    assert_eq!(timeline.machine().read_physical(0, &mut memory), memory.len());
    assert!(bytes[data_at as usize..] == memory);
    let zeroes = memory.chunks(4096).filter(|page| page.iter().all(|&byte| byte == 0)).count();
    assert!(written.zero_pages == zeroes as u64 && zeroes > 500, "{written:?}");
    assert!(written.disk_bytes < written.file_bytes, "{written:?}");
    // The unit of the number of blocks is 512 bytes (stat(2)).
    assert_eq!(written.disk_bytes, std::fs::metadata(&path).unwrap().blocks() * 512);
    assert!(notes.windows(10).any(|part| part == b"VMCOREINFO") && notes.starts_with(&[5, 0, 0, 0]));
    assert!(notes.windows(RELEASE.len()).any(|part| part == RELEASE.as_bytes()));
    // drgn expects the processor's number plus one in the field of the process's number.
    assert_eq!(notes[20 + 32..20 + 36], [1, 0, 0, 0]);
    let error = core_file::write(timeline.machine(), &path).unwrap_err().to_string();
    assert!(error.contains("core"), "no file is overwritten: {error}");
}

#[test]
fn without_a_kernel_a_core_file_has_physical_addresses_only() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 1_000, typed(&[(500, "x")]));
    let mut timeline = Timeline::open(&recording).unwrap();
    let end = timeline.end();
    timeline.seek(end, &mut never).unwrap();
    let path = directory.path().join("core");
    let written = core_file::write(timeline.machine(), &path).unwrap();
    assert_eq!((written.pid, written.kernel), (None, None));
    let (rows, notes, bytes) = read_core(&path);
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[1].2, rows[1].3, rows[1].4), (0, 0, RAM_BYTES));
    assert_eq!(notes.len(), 20 + 336 + 20 + 440, "only the processor's notes");
    let mut memory = vec![0; RAM_BYTES as usize];
    timeline.machine().read_physical(0, &mut memory);
    assert!(bytes[rows[1].1 as usize..] == memory);
}

#[test]
fn memory_ends_where_nothing_is_mapped_or_there_is_no_ram() {
    let (_directory, mut timeline, kernel) = timeline();
    go_to(&mut timeline, kernel.address_of("do_syscall_64"));
    let machine = timeline.machine();
    let processor = &machine.running_processor();
    let whole = Bytes::at(processor, Range { address: TEXT, length: 5 });
    assert_eq!((whole.address.as_str(), whole.bytes.as_str(), whole.ends), ("0x150000", "68656c6c6f", None));
    let mapped = Bytes::at(processor, Range { address: RAM_BYTES - 2, length: 4 });
    assert_eq!((mapped.bytes.len(), mapped.ends.as_deref()), (4, Some("nothing is mapped at 0x400000")));
    let unmapped = Bytes::at(processor, Range { address: UNMAPPED, length: 4 });
    assert_eq!(
        (unmapped.bytes.as_str(), unmapped.ends.unwrap()),
        ("", format!("nothing is mapped at {UNMAPPED:#x}"))
    );
    let physical = Bytes::at_physical(machine, Range { address: RAM_BYTES, length: 1 });
    assert_eq!(physical.ends.as_deref(), Some("there is no RAM at 0x400000"));
    let code = disassemble(processor, 3);
    let texts: Vec<_> = code.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(texts, ["push rbx", "mov rbx,rdi", "int3"]);
    assert_eq!(
        (code[0].address.as_str(), code[0].bytes.as_str()),
        (format!("{:#x}", machine.cpu().rip()).as_str(), "53")
    );
    assert_eq!(code[1].address, format!("{:#x}", machine.cpu().rip() + 1));
    assert!(disassemble(processor, 0).is_empty());
}

#[test]
fn code_is_shown_in_the_processors_mode() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = record(directory.path(), "r.ttvm", 100, Vec::new());
    let timeline = Timeline::open(&recording).unwrap();
    // The first instruction of the guest is `mov edx, 0x3f9`, in 32-bit mode.
    let first = &disassemble(&timeline.machine().running_processor(), 1)[0];
    assert_eq!((first.text.as_str(), first.bytes.as_str()), ("mov edx,3F9h", "baf9030000"));
    let long = record_long(directory.path(), "long.ttvm", 1);
    let mut timeline = Timeline::open(&long).unwrap();
    let end = timeline.end();
    timeline.seek(end, &mut never).unwrap();
    assert!(disassemble(&timeline.machine().running_processor(), 4).len() == 4);
}

#[test]
fn reports_are_listed_in_lines() {
    let (_directory, mut timeline, _) = timeline();
    let none = ReportList::of(&mut timeline, &mut never).unwrap();
    assert_eq!((none.reports.len(), none.to_string().as_str()), (0, "the guest's kernel reports nothing"));
    let row = |number, pid: Option<u32>| ReportRow {
        number,
        kind: "oops".to_string(),
        instruction: 1234,
        guest_seconds: 0.5,
        pid,
        name: pid.map(|_| "sh".to_string()),
        line: "BUG: unable to handle page fault".to_string(),
    };
    let list = ReportList { reports: vec![row(1, Some(7)), row(2, None)] };
    let line = |number: usize, thread: &str| {
        format!(
            "report:{number}   oops     insn:1234        0.500000000 s{thread}  BUG: unable to handle page fault"
        )
    };
    assert_eq!(list.to_string(), format!("{}\n{}", line(1, "  7 (sh)"), line(2, "")));
}
