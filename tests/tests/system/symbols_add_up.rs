//! Tests that gdb loads symbols of programs, libraries, modules and a kernel's file, and still keeps the symbols of
//! the guest's kernel. The guest prints the address of each file. The guest isolates page tables, so programs and
//! the kernel have different page tables.

use std::path::{Path, PathBuf};
use std::process::Command;

use guest_symbols::mappings::{Mapping, Mappings};
use guest_symbols::tasks::Tasks;
use guest_symbols::{Symbols, elf, kallsyms, module_sections};
use history::timeline::Timeline;
use machine::Machine;
use machine::config::MachineOptions;
use machine::position::Instructions;
use machine::script::Script;
use tests::elf::move_down;
use tests::gdb::batch;
use tests::guests::{Artefact, BUSYBOX, CLOUD, Guest, SID, TRIXIE, linux_options, repository, with_files};
use tests::record::{open, record};
use tests::run::run_to_power_off;

/// The host's libraries that a dynamically linked program needs.
const LIBRARIES: [(&str, &str); 2] =
    [("/lib64/ld-linux-x86-64.so.2", "lib64"), ("/lib/x86_64-linux-gnu/libc.so.6", "lib")];

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run scripts/setup"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes an initial RAM disk that has the programs of this test in addition to busybox. Returns the path of the RAM
/// disk, and the programs' folder.
fn with_programs(directory: &Path, busybox: &Artefact) -> (PathBuf, PathBuf) {
    let (root, sources) = (directory.join("root"), repository().join("tests/tests/system/programs"));
    for (library, folder) in LIBRARIES {
        std::fs::create_dir_all(root.join(folder)).expect("the folder is ours");
        let to = root.join(folder).join(Path::new(library).file_name().expect("it is a file"));
        std::fs::copy(library, to).expect("the host has it");
    }
    let gcc = |arguments: &[&str]| {
        run(Command::new("gcc").args(["-g", "-O0"]).args(arguments).current_dir(&root));
    };
    let source = |name: &str| sources.join(name).display().to_string();
    let (placed, twice) = (source("placed.c"), source("twice.c"));
    gcc(&["-shared", "-fPIC", "-Wl,-soname,libtwice.so", "-o", "lib/libtwice.so", &twice]);
    gcc(&["-pie", "-fPIE", "-o", "placed", &placed, "-Llib", "-ltwice", "-Wl,-rpath,/lib"]);
    gcc(&["-static", "-no-pie", "-fno-pie", "-o", "fixed", &placed, &twice]);
    std::fs::copy(sources.join("go"), root.join("go")).expect("the folder is ours");
    let initrd = directory.join("initrd.gz");
    with_files(busybox, &root, &initrd);
    (initrd, root)
}

struct Boot {
    timeline: Timeline,
    symbols: Symbols,
    /// The guest's output.
    console: String,
    /// The folder of the programs.
    root: PathBuf,
    directory: tempfile::TempDir,
}

/// Makes a guest that runs the programs and then powers off. Returns the guest, and the programs' folder.
fn guest(directory: &Path, kernel: &Artefact, busybox: &Artefact) -> (Guest, PathBuf) {
    let (initrd, root) = with_programs(directory, busybox);
    let options = linux_options(kernel, busybox, "pti=on ttvm.run=\"sh /go\"", 256);
    (Guest::new(&MachineOptions { initrd: Some(initrd), ..options }), root)
}

impl Boot {
    fn new(kernel: &Artefact, busybox: &Artefact) -> Boot {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let (guest, root) = guest(directory.path(), kernel, busybox);
        let path = directory.path().join("boot.ttvm");
        let mut script = Script::silent();
        record(&guest, &path, &mut script);
        let console = script.text().replace('\r', "");
        assert!(console.contains("that was all"), "{console}");
        let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
        timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
        let symbols = Symbols::of_guest(timeline.machine()).expect("the kernel runs");
        Boot { timeline, symbols, console, root, directory }
    }

    fn file(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    /// Runs gdb with the tt commands, and returns gdb's output. gdb first loads `file`, if given.
    fn gdb(&mut self, file: Option<&Path>, commands: &[&str]) -> String {
        let directory = self.directory.path().to_path_buf();
        batch::serve(&mut self.timeline, &directory, |socket| {
            let mut gdb = batch::gdb();
            gdb.args(file.map(|file| format!("-ex=file '{}'", file.display())));
            gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
            batch::attach(&mut gdb, socket, commands);
            gdb
        })
    }

    fn address(&self, name: &str) -> u64 {
        self.symbols.address_of(name).unwrap_or_else(|| panic!("no {name}"))
    }
}

/// Returns the rest of each line of the console that begins with `word`.
fn printed<'a>(console: &'a str, word: &str) -> Vec<&'a str> {
    console.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
}

/// Returns the number of the process, and the lines of its `/proc/PID/maps` that have a file. Words in the lines
/// have one blank between them.
fn listed_mappings(console: &str) -> (u32, Vec<String>) {
    let pid = printed(console, "process")[0].trim().parse().expect("a number");
    let is_range = |line: &&str| line.split_once('-').is_some_and(|(start, _)| start.len() == 12);
    let words = |line: &'_ str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let lines = console.lines().filter(is_range).map(words);
    let files = lines.filter(|words| words.len() > 5 && words[5].starts_with('/'));
    let line =
        |words: Vec<String>| format!("{} {} {} {}", words[0], words[1], words[2], words[5..].join(" "));
    (pid, files.map(line).collect())
}

fn mappings_are_those_that_the_guest_lists(
    machine: &Machine<Instructions>,
    symbols: &Symbols,
    console: &str,
) {
    let (pid, listed) = listed_mappings(console);
    assert!(listed.len() > 12, "{console}");
    let processes = Tasks::of_kernel(machine, symbols).expect("it is known").list(machine);
    let task = processes.with(pid).expect("it waits").task;
    let mappings = Mappings::of_kernel(machine, symbols).unwrap_or_else(|error| panic!("{error}"));
    let found: Vec<String> = mappings.of_task(machine, task).iter().map(Mapping::to_string).collect();
    assert_eq!(found, listed);
    assert!(found[0].ends_with(" /mnt/here/a b/placed"), "{found:?}");
}

fn sections_are_those_that_the_guest_lists(
    machine: &Machine<Instructions>,
    symbols: &Symbols,
    console: &str,
) {
    let found = module_sections::of_module(machine, symbols, "virtio_blk");
    let listed = printed(console, "section");
    assert!(found.len() > 15, "{found:?}");
    for (name, address) in &found {
        let line = format!("{name} {address:#018x}");
        assert!(listed.contains(&line.as_str()), "no {line} in {listed:?}");
    }
    // The kernel frees these sections before the module runs.
    let is_kept = |line: &&&str| ![".init", ".symtab", ".strtab"].iter().any(|gone| line.starts_with(gone));
    assert_eq!(listed.iter().filter(is_kept).count(), found.len(), "{listed:?} {found:?}");
}

/// Returns the part of a text between two words.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no '{from}' in {text}"));
    rest.split_once(to).unwrap_or_else(|| panic!("no '{to}' in {rest}")).0
}

fn expect(text: &str, wanted: &[&str]) {
    let mut rest = text;
    for part in wanted {
        let at = rest.find(part).unwrap_or_else(|| panic!("no '{part}' in what is left of {text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn symbols_of_programs_and_modules_add_to_the_kernels() {
    let mut boot = Boot::new(&CLOUD, &BUSYBOX);
    mappings_are_those_that_the_guest_lists(boot.timeline.machine(), &boot.symbols, &boot.console);
    sections_are_those_that_the_guest_lists(boot.timeline.machine(), &boot.symbols, &boot.console);
    backtraces_lead_into_programs(&mut boot);
    programs_are_placed(&mut boot);
    modules_are_placed(&mut boot);
    an_unmoved_kernel_goes(&mut boot);
}

/// Tests backtraces into a program at fixed addresses, whose symbols are loaded before the kernel's symbols and after
/// them.
fn backtraces_lead_into_programs(boot: &mut Boot) {
    let fixed = boot.file("fixed");
    let (load, add) = (format!("tt symbols {fixed}"), format!("add-symbol-file {fixed}"));
    let said = boot.gdb(
        None,
        &[
            "tt goto end",
            "tt symbols",
            "tt break-in fixed",
            "break ksys_write",
            "tt break-in fixed 1",
            "reverse-continue",
            "echo without\\n",
            "bt",
            "echo with\\n",
            &load,
            "bt",
            "p init_task.comm",
            "p sum",
            "tt symbols",
            "echo again\\n",
            "bt",
            "tt symbols none",
            "echo none\\n",
            "bt",
            &add,
            "echo added\\n",
            "bt",
            "echo that is all\\n",
        ],
    );
    let way = [
        "in ksys_write (",
        "in do_syscall_64 (",
        "in entry_SYSCALL_64",
        "in write (",
        "in inner (",
        "in main (",
    ];
    for (from, to) in [("\nwith\n", "\nagain\n"), ("\nagain\n", "\nnone\n"), ("\nadded\n", "\nthat is all\n")]
    {
        let backtrace = between(&said, from, to);
        expect(backtrace, &way);
        assert!(!backtrace.contains("Backtrace stopped"), "{said}");
    }
    expect(between(&said, "\nwith\n", "\nagain\n"), &["\"swapper/0\\000", " = 47\n"]);
    // Without the program's symbols, gdb must show only one frame of the program, and must not guess others.
    for (from, to) in [("\nwithout\n", "\nwith\n"), ("\nnone\n", "\nadded\n")] {
        let backtrace = between(&said, from, to);
        let (_, program) = backtrace.split_once("in entry_SYSCALL_64").unwrap_or_else(|| panic!("{said}"));
        let frames: Vec<&str> = program.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(frames.len(), 2, "{said}");
        assert!(frames[0].contains("<signal handler called>") && frames[1].ends_with(" in ?? ()"), "{said}");
    }
}

/// Tests a position-independent program and a library, given by name and by folder.
fn programs_are_placed(boot: &mut Boot) {
    let (pid, listed) = listed_mappings(&boot.console);
    let start = |file: &str| {
        let line = listed.iter().find(|line| line.ends_with(file)).expect("it is listed");
        u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).expect("an address")
    };
    let (program, library) = (start("/placed"), start("/libtwice.so"));
    let load = format!("tt program {pid} {} {}", boot.file("placed"), boot.file("lib/libtwice.so"));
    let (list, all) =
        (format!("tt program {pid}"), format!("tt program {pid} --root {}", boot.root.display()));
    let other = format!("tt program {pid} {}", boot.file("fixed"));
    let said = boot.gdb(
        None,
        &[
            "tt goto end",
            "tt symbols",
            &list,
            &load,
            "tt break-in placed",
            "break twice",
            "tt break-in placed 1",
            "reverse-continue",
            "bt",
            "p sum",
            "p counted",
            "p &init_task",
            "echo by root\\n",
            "tt symbols none",
            &all,
            "bt",
            "echo others\\n",
            &other,
            "tt program 2",
            "tt program 99999",
            "tt program --root",
        ],
    );
    let frames = [" twice (number=", " in inner (number=2) at ", " in main () at "];
    expect(
        &said,
        &[&format!("process {pid} (placed)\n"), &listed.join("\n"), &format!("placed is at {program:#x}\n")],
    );
    expect(&said, &[&format!("libtwice.so is at {library:#x}\n"), "Breakpoint 1, "]);
    let first = between(&said, "Breakpoint 1, ", "\nby root\n");
    expect(first, &frames);
    // The function will run again.
    expect(first, &["$1 = 43\n", "$2 = 2\n", "<init_task>"]);
    let second = between(&said, "\nby root\n", "\nothers\n");
    expect(second, &["ld-linux-x86-64.so.2 is at 0x"]);
    expect(second, &[" twice (number="]);
    for text in [
        &format!("process {pid} (placed) has no 'fixed' in its memory"),
        "process 2 (kthreadd) has no file in its memory here",
        "there is no process 99999 at this position",
        "write: tt program --root DIR",
    ] {
        assert!(said.contains(text), "no '{text}' in {said}");
    }
}

fn modules_are_placed(boot: &mut Boot) {
    let find = |name: &str| {
        let folder = repository().join("guest-images/out/kernel-cloud/lib/modules");
        let found = Command::new("find").arg(folder).args(["-name", name]).output().expect("the host has it");
        let found = String::from_utf8_lossy(&found.stdout);
        let path = found.lines().next().unwrap_or_else(|| panic!("no {name}"));
        std::fs::canonicalize(path).expect("it is there").display().to_string()
    };
    let (module, other) = (find("virtio_blk.ko"), find("virtio_balloon.ko"));
    let places = ["virtblk_probe", "virtblk_wq", "virtio_blk"].map(|name| boot.address(name));
    let ask = places.map(|address| format!("info symbol {address:#x}"));
    let (load, load_other) = (format!("tt symbols {module}"), format!("tt symbols {other}"));
    let ask = ask.each_ref().map(String::as_str);
    let traced = ["set trace-commands on", &load_other, "set trace-commands off"];
    let commands = [
        &["tt goto end", &load, "info symbol 0"][..],
        &ask,
        &["p init_task.pid", "break virtblk_probe", "info breakpoints"],
        &traced,
    ];
    let end = ["tt goto syscall:1", "tt symbols", "tt symbols none", "echo none\\n", ask[0]];
    let said = boot.gdb(None, &[&commands.concat()[..], &end].concat());
    for (name, section) in [("virtblk_probe", ".text"), ("virtblk_wq", ".bss"), ("virtio_blk", ".data")] {
        expect(&said, &[&format!("{name} in section {section} of {module}\n")]);
    }
    // The kernel has freed the section .init.text, so gdb must not load the symbols of this section, for example at
    // address 0.
    expect(&said, &["No symbol matches 0.\n"]);
    expect(
        &said,
        &[
            &format!("{:#018x}", places[0]),
            "the guest has no module 'virtio_blk' here",
            "the guest has no module 'virtio_balloon' here",
        ],
    );
    // The breakpoint must have one location, not two.
    assert!(!said.contains("<MULTIPLE>"), "{said}");
    assert!(!between(&(said.clone() + "end"), "\nnone\n", "end").contains(&module), "{said}");
}

/// Tests that gdb drops the symbols of a kernel's file that it has loaded before it connects, at the addresses
/// without KASLR.
fn an_unmoved_kernel_goes(boot: &mut Boot) {
    let text = boot.address("_text");
    let mut file = elf::file(&boot.symbols);
    move_down(&mut file, kallsyms::IMAGE, text - 0xffff_ffff_8100_0000);
    let path = boot.directory.path().join("vmlinux of it");
    std::fs::write(&path, file).expect("the folder is ours");
    let (panic, init_task) = (boot.address("panic"), boot.address("init_task"));
    let load = format!("tt symbols '{}'", path.display());
    let fixed = format!("add-symbol-file {}", boot.file("fixed"));
    for load in ["tt symbols", &load] {
        let said = boot.gdb(
            Some(&path),
            &[
                "tt goto end",
                &fixed,
                "break panic",
                "echo loaded\\n",
                load,
                "info breakpoints",
                "p &init_task",
                "info address do_exit",
                "info symbol virtblk_probe",
                "info line inner",
                "python print('copies %d' % sum('vmlinux of it' in (o.filename or '') for o in gdb.objfiles()))",
            ],
        );
        let said = said.split_once("\nloaded\n").unwrap_or_else(|| panic!("{said}")).1;
        assert!(!said.contains("<MULTIPLE>"), "{said}");
        let line = said.lines().find(|line| line.starts_with("1 ")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(" keep y ") && line.contains(&format!("{panic:#x}")[..14]), "{said}");
        expect(
            said,
            &[
                &format!("{init_task:#x} <init_task>"),
                &format!("Symbol \"do_exit\" is at {:#x} in a file", boot.address("do_exit")),
                "virtblk_probe in section .text.virtio_blk",
                "placed.c\"",
                "copies 1\n",
            ],
        );
    }
}

#[test]
fn newer_kernels_say_what_is_where() {
    for [kernel, busybox] in [&TRIXIE, &SID] {
        if !kernel.exists() || !busybox.exists() {
            skip::test("a newer kernel is not there; guest-images/newer-kernels says why");
            continue;
        }
        let directory = tempfile::tempdir().expect("a temporary folder");
        let (guest, _) = guest(directory.path(), kernel, busybox);
        let mut machine = guest.machine();
        let console = run_to_power_off(&mut machine, &mut Script::silent()).replace('\r', "");
        assert!(console.contains("that was all"), "{console}");
        let symbols = Symbols::of_guest(&machine).expect("the kernel runs");
        mappings_are_those_that_the_guest_lists(&machine, &symbols, &console);
        sections_are_those_that_the_guest_lists(&machine, &symbols, &console);
    }
}
