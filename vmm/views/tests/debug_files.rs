//! Tests variables of files with debug information (`--symbols`). The linker places the variables at addresses of a guest
//! that looks like Linux. The guest's memory has known values there.

use std::path::{Path, PathBuf};
use std::process::Command;

use guest_symbols::typed::TypeBytes;
use history::never;
use history::timeline::Timeline;
use machine::position::Instructions;
use tiny_guest::linux::{self, CALLS, IMAGE, Kernel, TEXT, task};
use views::debug_files::DebugFiles;
use views::filters::Filters;
use views::guest_kernel::GuestKernel;
use views::values;
use views::variable::{self, Names, TypeOrigin};

/// The number of system calls that the guest makes.
const CALLS_MADE: u32 = 5;

/// The variables: a text, the number of calls, and the pointer to the running task. `byte` is read in files without debug
/// information only.
const PROGRAM: &str = r#"
struct task { int state; char skipped[0x34]; int pid, tgid; char more[0x18]; char comm[16]; };
struct tally { unsigned short low; unsigned char rest[6]; };
__attribute__((section(".greeting"))) char greeting[16] = "x";
__attribute__((section(".tallies"))) struct tally tallies[2] = { { 1 } };
__attribute__((section(".current"))) struct task *current = (void *)1;
__attribute__((section(".byte"))) unsigned char byte = 1;
void _start(void) { for (;;) tallies[0].low += byte; }
"#;

struct Guest {
    directory: tempfile::TempDir,
    timeline: Timeline,
    kernel: Kernel,
}

impl Guest {
    /// The guest at the end of its run. The kernel maps the lowest four megabytes at the same virtual addresses.
    fn new() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _, kernel) = linux::record(directory.path(), "r.ttvm", CALLS_MADE, None);
        let mut timeline = Timeline::open(&recording).unwrap();
        let end = timeline.end();
        timeline.seek(end, &mut never).unwrap();
        Guest { directory, timeline, kernel }
    }

    /// Compiles a source with these options.
    fn compiled(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let from = self.directory.path().join(format!("{name}.c"));
        std::fs::write(&from, source).unwrap();
        let path = self.directory.path().join(name);
        let compiled = Command::new("gcc")
            .args(["-nostdlib", "-ffreestanding"])
            .args(options)
            .arg("-o")
            .args([&path, &from])
            .status();
        assert!(compiled.expect("the host has gcc").success());
        path
    }

    /// The program at fixed addresses, with or without debug information.
    fn program(&self, name: &str, debug: &str) -> PathBuf {
        let current = self.kernel.address_of("current_task") - IMAGE;
        let places =
            [(".greeting", TEXT), (".tallies", CALLS - IMAGE), (".current", current), (".byte", TEXT + 0x20)];
        let places = places.map(|(section, address)| format!("-Wl,--section-start={section}={address:#x}"));
        let places = places.each_ref().map(String::as_str);
        self.compiled(
            name,
            PROGRAM,
            &[&[debug, "-static", "-no-pie", "-fno-pie", "-Wl,-Ttext=0x10000"], &places[..]].concat(),
        )
    }

    /// The address and the size of a variable, and the origin of its type.
    fn find(&self, text: &str, files: &DebugFiles) -> Result<(u64, u64, &'static str), String> {
        let machine = self.timeline.machine();
        let kernel = GuestKernel::of_guest(machine).unwrap();
        let bytes = TypeBytes::of_guest(machine, &kernel.symbols).unwrap();
        let types = bytes.kernel().unwrap();
        let names = Names { symbols: Some(&kernel.symbols), types: Some(&types), files };
        let found = variable::find(text, &machine.running_processor(), names)?;
        let origin = match found.origin {
            TypeOrigin::None => "none",
            TypeOrigin::Kernel => "kernel",
            TypeOrigin::File(_) => "file",
        };
        Ok((found.variable.address, found.variable.size, origin))
    }
}

fn opened(paths: &[&Path]) -> DebugFiles {
    DebugFiles::open(&paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn fields_and_pointers_follow_the_files_types() {
    let guest = Guest::new();
    let path = guest.program("tallies", "-g");
    let files = opened(&[&path]);
    let tallies = CALLS - IMAGE;
    let running = task(5);
    for (text, address, bytes) in [
        ("greeting", TEXT, 16),
        ("greeting[3]", TEXT + 3, 1),
        ("tallies", tallies, 16),
        ("tallies[1].low", tallies + 8, 2),
        ("tallies->rest[2]", tallies + 4, 1),
        ("current->pid", running + 0x38, 4),
        ("current->comm", running + 0x58, 16),
        ("(struct tally)tallies.rest", tallies + 2, 6),
        ("(tally) greeting .low", TEXT, 2),
        ("(struct tally)0x1000.rest[5]", 0x1007, 1),
        // The kernel's symbol has no type.
        ("(struct tally)calls.rest", CALLS + 2, 6),
    ] {
        assert_eq!(guest.find(text, &files), Ok((address, bytes, "file")), "{text}");
    }
    // The kernel's own types and symbols are used for all other names.
    assert_eq!(guest.find("(task_struct)current.comm", &files).unwrap().2, "kernel");
    assert_eq!(guest.find("calls", &files), Ok((CALLS, 8, "none")));
    assert_eq!(guest.find("calls:2", &files), Ok((CALLS, 2, "none")));
    assert_eq!(guest.find("0x150000", &files), Ok((TEXT, 8, "none")));
    let file = path.display();
    for (text, why) in [
        ("nosuch", format!("'nosuch' is neither an address nor a symbol of the guest's kernel or {file}")),
        (
            "nosuch[1]",
            "the type of 'nosuch' is not known: write (TYPE)nosuch[1], or give a file with --symbols".into(),
        ),
        (
            "calls->low",
            "the type of 'calls' is not known: write (TYPE)calls->low, or give a file with --symbols".into(),
        ),
        ("(nosuch)tallies", format!("the guest's kernel or {file} has no type 'nosuch'")),
        (
            "(tally)nosuch",
            format!("'nosuch' is neither an address nor a symbol of the guest's kernel or {file}"),
        ),
        ("(tally", "a '(' has no ')'".into()),
        // A length or a distance is no field of the variable.
        (
            "tallies:4",
            format!("'tallies:4' is neither an address nor a symbol of the guest's kernel or {file}"),
        ),
        (
            "tallies+8",
            format!("'tallies+8' is neither an address nor a symbol of the guest's kernel or {file}"),
        ),
    ] {
        assert_eq!(guest.find(text, &files), Err(format!("'{text}': {why}")));
    }
    assert!(guest.find("tallies[0].nosuch", &files).unwrap_err().contains("nosuch"));
}

#[test]
fn the_first_file_with_a_variable_counts() {
    let guest = Guest::new();
    let other = guest.compiled(
        "other",
        "int word = 1; char greeting[3] = \"a\"; void _start(void) {}",
        &["-g", "-static", "-no-pie"],
    );
    let path = guest.program("tallies", "-g");
    let (both, turned) = (opened(&[&path, &other]), opened(&[&other, &path]));
    assert_eq!(guest.find("greeting", &both).unwrap().1, 16);
    assert_eq!(guest.find("greeting", &turned).unwrap().1, 3);
    assert_eq!(guest.find("word", &both).unwrap().1, 4);
    let why = guest.find("nosuch", &both).unwrap_err();
    assert!(
        why.ends_with(&format!("the guest's kernel or {} or {}", path.display(), other.display())),
        "{why}"
    );
    assert!(both == opened(&[&path, &other]) && both != turned && both != opened(&[&path]));
    assert!(DebugFiles::default() == opened(&[]));
    let error = DebugFiles::open(&[path, guest.directory.path().join("nosuch")]).unwrap_err().to_string();
    assert!(error.contains("nosuch"), "{error}");
}

#[test]
fn without_debug_information_variables_are_numbers() {
    let guest = Guest::new();
    let files = opened(&[&guest.program("stripped", "-g0")]);
    assert_eq!(guest.find("tallies", &files), Ok((CALLS - IMAGE, 8, "none")));
    assert_eq!(guest.find("byte", &files), Ok((TEXT + 0x20, 1, "none")));
    let why = guest.find("tallies.low", &files).unwrap_err();
    assert!(why.ends_with("the type of 'tallies' is not known: its file has no debug information"), "{why}");
    // The symbol has no size.
    let source = "__asm__(\".data; .globl bare; .type bare, @object; bare: .quad 1\"); void _start(void) {}";
    let bare =
        opened(&[&guest.compiled("bare", source, &["-g0", "-static", "-no-pie", "-Wl,-Tdata=0x150000"])]);
    assert_eq!(guest.find("bare", &bare), Ok((TEXT, 8, "none")));
}

#[test]
fn the_values_of_a_field_have_its_type() {
    let mut guest = Guest::new();
    let source = "struct tally { unsigned short low; unsigned char rest[6]; };
        __attribute__((section(\".tallies\"))) struct tally tallies[2] = { { 1 } };
        void _start(void) {}";
    let place = format!("-Wl,--section-start=.tallies={CALLS:#x}");
    let options = ["-g", "-static", "-no-pie", "-fno-pie", "-mcmodel=kernel", &place];
    let files = opened(&[&guest.compiled("tallies", source, &options)]);
    let filters = Filters::default();
    let mut ask = |variable: &str| {
        let question = values::Question {
            variable,
            files: &files,
            filters: &filters,
            all_writes: true,
            as_bytes: false,
            limit: 9,
        };
        let end = guest.timeline.end();
        question.answer(&mut guest.timeline, Instructions(0)..end, &mut never).unwrap()
    };
    let low = ask("tallies[0].low");
    assert_eq!(low.kind.as_deref(), Some("short unsigned int"), "{low}");
    let written = low.writes.iter().map(|write| write.value.as_str()).collect::<Vec<_>>();
    assert_eq!(written, ["1", "2", "3", "4", "5"], "{low}");
    assert!(ask("tallies[1].low").writes.is_empty());
}

/// The kernel runs [`DISTANCE`] bytes above the addresses in its file. Per-CPU variables do not move.
#[test]
fn variables_of_the_kernels_file_move_with_the_kernel() {
    const DISTANCE: u64 = 0x0060_0000;
    let guest = Guest::new();
    let start = guest.kernel.address_of("_stext");
    let file = |name: &str, count: u64, stride: u64| {
        let first = guest.kernel.address_of("filler_0") - start;
        let functions: String = (0..count)
            .map(|number| {
                let place = first + number * stride;
                format!(".org {place:#x}; .globl filler_{number}; .type filler_{number},@function; filler_{number}: ret;")
            })
            .collect();
        let source = format!(
            "__asm__(\".text; .globl _stext; _stext: {functions} .previous\");
            struct tally {{ unsigned short low; unsigned char rest[6]; }};
            __attribute__((section(\".tallies\"))) struct tally tallies = {{ 1 }};
            __attribute__((section(\".own\"))) char own[16] = \"x\";"
        );
        let place = |option: &str, address: u64| format!("-Wl,{option}={address:#x}");
        let (text, own) = (place("-Ttext", start - DISTANCE), place("--section-start=.own", TEXT));
        let tallies = place("--section-start=.tallies", CALLS - DISTANCE);
        let entry = "-Wl,--entry=_stext";
        let options =
            ["-g", "-static", "-no-pie", "-fno-pie", "-mcmodel=kernel", &text, &own, &tallies, entry];
        opened(&[&guest.compiled(name, &source, &options)])
    };
    let kernel = file("vmlinux", 100, 16);
    assert_eq!(guest.find("tallies.low", &kernel), Ok((CALLS, 2, "file")));
    assert_eq!(guest.find("own[1]", &kernel), Ok((TEXT + 1, 1, "file")));
    let why = guest.find("tallies.low", &file("other", 100, 8)).unwrap_err();
    assert!(why.contains("is not of the guest's kernel: 2 of 101 common functions"), "{why}");
    // A file with few of the kernel's functions is a program, and does not move.
    assert_eq!(guest.find("tallies.low", &file("few", 3, 16)), Ok((CALLS - DISTANCE, 2, "file")));
}

#[test]
fn the_address_of_a_moved_program_needs_the_kernels_structures() {
    let guest = Guest::new();
    let path = guest.compiled("moved", "int word = 1; void _start(void) {}", &["-g", "-static-pie", "-fPIE"]);
    let files = opened(&[&path]);
    let why = guest.find("word", &files).unwrap_err();
    let begin = format!("'word': the address of {} in the guest is unknown: ", path.display());
    assert!(why.starts_with(&begin), "{why}");
    let machine = guest.timeline.machine();
    let names = Names { symbols: None, types: None, files: &files };
    let why = variable::find("word", &machine.running_processor(), names).err().unwrap();
    assert_eq!(why, format!("{begin}the guest's kernel has no symbols"));
    let why = variable::find("(nosuch)0x1000", &machine.running_processor(), names).err().unwrap();
    assert!(why.contains("the guest's kernel has no type information"), "{why}");
}

#[test]
fn the_notations_of_variables_are_told_apart() {
    for (text, names_type, is_typed) in [
        ("(tally)calls", true, true),
        (" (tally)calls", true, true),
        ("calls", false, false),
        ("calls.low", false, false),
        ("calls[1]", false, true),
        ("calls->low", false, true),
        ("calls:4", false, false),
        ("calls-1", false, false),
    ] {
        assert_eq!((variable::names_type(text), variable::is_typed(text)), (names_type, is_typed), "{text}");
    }
    let guest = Guest::new();
    let files = opened(&[&guest.program("tallies", "-g")]);
    for (text, expected) in [
        ("tallies", true),
        ("tallies.low", true),
        ("tallies[1]", true),
        ("tallies->low", true),
        ("tallies:4", false),
        ("tallies+4", false),
        ("calls", false),
        ("calls.low", false),
    ] {
        assert_eq!(variable::is_of_files(text, &files), expected, "{text}");
    }
}
