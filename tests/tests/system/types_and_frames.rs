//! Tests gdb without debug packages. The test compares the kernel's types with pahole's output for the same type
//! information. At many positions of a boot, the test compares gdb's backtraces with ttvm's own walks along the
//! stack.

use std::path::Path;
use std::process::Command;

use guest_symbols::orc::{End, Unwinder};
use guest_symbols::{Symbols, dwarf::DebugInfo, elf};
use history::timeline::Timeline;
use machine::position::Instructions;
use tests::gdb::batch;
use tests::guests::repository;
use tests::record::open;
use tests::shared::record_boot;
use tests::tools::output;

/// The number of positions at which backtraces are compared. The positions are at equal distances from the
/// beginning of user space to the end.
const PLACES: u64 = 60;
/// Number of structures that are compared.
const STRUCTURES: usize = 1000;
/// A script for gdb that prints the sizes of structures and the offsets of their members.
const IN_GDB: &str = "python
for name in open('names').read().split():
    kind = gdb.lookup_type('struct ' + name)
    members = ['%s %d' % (field.name, field.bitpos) for field in kind.fields() if field.name]
    print('\\n'.join(['struct %s %d' % (name, kind.sizeof)] + members))
end
";

fn boot(path: &Path) -> Timeline {
    record_boot(path);
    Timeline::open(&open(path)).unwrap_or_else(|error| panic!("{error}"))
}

fn goto(timeline: &mut Timeline, position: &str) -> Instructions {
    let position = position.parse().expect("a position");
    let target = timeline.resolve(position, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(target, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    target
}

/// Runs gdb with the tt commands, and returns gdb's output.
fn gdb_says(timeline: &mut Timeline, directory: &Path, commands: &[String]) -> String {
    batch::serve(timeline, directory, |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        gdb.args(["-ex", "set width 0", "-ex", "set height 0"]);
        batch::attach(&mut gdb, socket, commands);
        gdb
    })
}

/// Returns the addresses in a backtrace of gdb. A frame without an address is the frame to which an interrupt
/// returns.
fn addresses(backtrace: &str) -> Vec<u64> {
    let frames = backtrace.lines().filter(|line| line.starts_with('#'));
    let address = |line: &str| {
        let (digits, _) = line.split_once("0x")?.1.split_once(' ')?;
        u64::from_str_radix(digits, 16).ok()
    };
    frames.filter_map(address).collect()
}

#[test]
fn backtraces_of_gdb_are_those_of_the_kernels_tables() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut timeline = boot(&directory.path().join("boot.ttvm"));
    let first = goto(&mut timeline, "syscall:1").0;
    let end = goto(&mut timeline, "end").0;
    let symbols = Symbols::of_guest(timeline.machine()).expect("the kernel runs");
    let unwinder = Unwinder::of_kernel(timeline.machine(), &symbols).expect("it has tables");
    let iret = symbols.address_of("native_irq_return_iret").expect("it is there");
    let places: Vec<u64> = (1..=PLACES).map(|number| first + (end - first) * number / PLACES).collect();

    let mut commands = vec!["tt goto end".to_string(), "tt symbols".to_string()];
    for place in &places {
        commands.extend([format!("tt goto {place}"), format!("echo at {place}\\n"), "bt".to_string()]);
    }
    commands.extend(
        [
            "tt goto end",
            "break __sysvec_apic_timer_interrupt",
            "reverse-continue",
            "echo interrupt\\n",
            "bt",
            "delete",
            "finish",
            "finish",
            "finish",
            "echo returning\\n",
            "bt",
            "finish",
            "echo interrupted\\n",
            "bt",
        ]
        .map(str::to_string),
    );
    let said = gdb_says(&mut timeline, directory.path(), &commands);
    let after = |mark: &str| {
        let (_, rest) =
            said.split_once(&format!("\n{mark}\n")).unwrap_or_else(|| panic!("no '{mark}': {said}"));
        rest.split_once("\ninstruction ").map_or(rest, |(here, _)| here)
    };
    let (mut kernel, mut programs, mut longest, mut lost) = (0, 0, 0, 0);
    for place in places {
        goto(&mut timeline, &place.to_string());
        let machine = timeline.machine();
        let walk = unwinder.walk(machine, machine.unwind_registers());
        let mut expected: Vec<u64> = walk.frames.iter().map(|frame| frame.address).collect();
        expected.retain(|&address| address != iret);
        if let End::Program(at) = walk.end {
            expected.push(at);
            programs += 1;
        }
        // If ttvm's walk ends because the unwind tables have no entry, gdb guesses further frames.
        if walk.end == End::Lost {
            lost += 1;
            continue;
        }
        assert_eq!(addresses(after(&format!("at {place}"))), expected, "at {place}: {said}");
        longest = longest.max(expected.len());
        kernel += usize::from(expected.len() > 1);
    }
    assert!(lost <= 2, "{lost} places are lost");
    assert!(kernel > 10 && programs > 10 && longest > 8, "{kernel} {programs} {longest}");

    let interrupt = after("interrupt");
    let interrupt = interrupt.split_once("\nreturning\n").map_or(interrupt, |(here, _)| here);
    for text in [" in asm_sysvec_apic_timer_interrupt ()", "<signal handler called>"] {
        assert!(interrupt.contains(text), "no '{text}' in {interrupt}");
    }
    let last = |text: &str| addresses(text).last().copied();
    assert!(after("returning").contains("#0  <signal handler called>"), "{said}");
    assert!(after("interrupted").starts_with("#0 "), "{said}");
    assert_eq!(last(after("interrupted")), last(interrupt), "{said}");
    for text in ["corrupt", "Backtrace stopped", "in address map"] {
        assert!(!said.contains(text), "'{text}' in {said}");
    }
}

#[test]
fn types_of_gdb_are_those_that_pahole_reads() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut timeline = boot(&directory.path().join("boot.ttvm"));
    goto(&mut timeline, "end");
    let said = gdb_says(
        &mut timeline,
        directory.path(),
        &[
            "tt symbols",
            "p init_task.comm",
            "p init_task.pid",
            "p jiffies == *(unsigned long *) &jiffies_64",
            "whatis runqueues",
            "p init_nsproxy.uts_ns == &init_uts_ns",
            "p (enum pid_type) 1",
            "ptype struct list_head",
            "whatis ((struct file_operations *) 0)->llseek",
            "p sizeof(((struct task_struct *) 0)->comm)",
            "p system_state",
        ]
        .map(str::to_string),
    );
    for text in [
        "\"swapper/0\\000",
        "type = struct rq\n",
        " = PIDTYPE_TGID\n",
        "    struct list_head *next;\n",
        "type = loff_t (*)(struct file *, loff_t, int)\n",
        " = 16\n",
        " = SYSTEM_POWER_OFF\n",
    ] {
        assert!(said.contains(text), "no '{text}' in {said}");
    }
    assert_eq!(said.matches(" = 1\n").count(), 2, "{said}");

    let vmlinux = repository().join("guest-images/out/kernel-cloud/vmlinux");
    if Command::new("pahole").arg("--version").output().is_err() {
        return skip::test("there is no pahole: types were not compared with its; scripts/setup installs it");
    }
    let symbols = Symbols::of_guest(timeline.machine()).expect("the kernel runs");
    let info = DebugInfo::of_kernel(timeline.machine(), &symbols);
    let file = elf::with_debug_info(&symbols, &info);
    let pahole = output(Command::new("pahole").args(["-F", "btf"]).arg(&vmlinux));
    let of_kernel = structures(&pahole);
    assert!(of_kernel.len() > STRUCTURES, "{}", of_kernel.len());
    assert!(compare(directory.path(), &file, &of_kernel) > 5 * STRUCTURES);

    let folder = repository().join("guest-images/out/kernel-cloud/lib/modules");
    let own: Vec<Structure> = symbols
        .modules()
        .iter()
        .flat_map(|name| {
            let found = output(
                Command::new("find")
                    .arg(&folder)
                    .args(["-name", &format!("{}.ko", name.replace('_', "[_-]"))]),
            );
            let path = found.lines().next().unwrap_or_else(|| panic!("no {name}.ko"));
            let mut pahole = Command::new("pahole");
            structures(&output(pahole.args(["-F", "btf", "--btf_base"]).arg(&vmlinux).arg(path)))
        })
        .collect();
    let is_new = |structure: &Structure| !of_kernel.iter().any(|known| known.name == structure.name);
    let own: Vec<Structure> = own.into_iter().filter(is_new).collect();
    assert!(own.len() > 5, "{} of {:?}", own.len(), symbols.modules());
    assert!(compare(directory.path(), &file, &own) > 20);
}

/// Compares the structures in `expected`, and the offsets of their members, with the structures that gdb reads from
/// `file`. Returns the number of compared members.
fn compare(directory: &Path, file: &[u8], expected: &[Structure]) -> usize {
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(directory.join(name), bytes).expect("the folder is ours");
    };
    write("kernel", file);
    write("commands", IN_GDB.as_bytes());
    let names: Vec<&str> = expected.iter().map(|structure| structure.name.as_str()).collect();
    write("names", names.join("\n").as_bytes());
    let mut gdb = Command::new("gdb");
    gdb.args(["--quiet", "--nx", "--batch", "-x", "commands", "kernel"]).current_dir(directory);
    let said = output(&mut gdb);
    let mut lines = said.lines().peekable();
    let mut compared = 0;
    for structure in expected {
        assert_eq!(lines.next(), Some(format!("struct {} {}", structure.name, structure.size).as_str()));
        let mut members = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("struct ")) {
            members.push(line);
        }
        for (member, bits) in &structure.members {
            let line = format!("{member} {bits}");
            assert!(
                members.contains(&line.as_str()),
                "struct {} has no '{line}': {members:?}",
                structure.name
            );
            compared += 1;
        }
    }
    compared
}

/// A structure as pahole prints it.
struct Structure {
    name: String,
    size: u64,
    /// Names and bit offsets of the members that pahole prints on a line of their own.
    members: Vec<(String, u64)>,
}

/// Returns the structures in pahole's output that have a unique name.
fn structures(text: &str) -> Vec<Structure> {
    let mut all: Vec<Structure> = Vec::new();
    let mut open: Option<Structure> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            open = Some(Structure { name: name.to_string(), size: 0, members: Vec::new() });
        } else if line.starts_with('}') {
            all.extend(open.take());
        } else if let (Some(structure), Some(rest)) = (&mut open, line.strip_prefix("\t/* size: ")) {
            let digits = rest.split(',').next().unwrap_or_default();
            structure.size = digits.parse().expect("a size");
        } else if let (Some(structure), Some(member)) = (&mut open, member(line)) {
            structure.members.push(member);
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let twice: Vec<String> =
        all.windows(2).filter(|pair| pair[0].name == pair[1].name).map(|pair| pair[0].name.clone()).collect();
    all.retain(|structure| !twice.contains(&structure.name) && structure.size != 0);
    all
}

/// Returns the name and the bit offset of a member, from a line such as `\tint flags:3;  /*  24: 5  4 */`. `None`
/// for functions and for parts without a name.
fn member(line: &str) -> Option<(String, u64)> {
    let line = line.strip_prefix('\t').filter(|line| !line.starts_with(['\t', '/', '}']))?;
    let (declaration, comment) = line.split_once(';')?;
    let declaration = declaration.split("__attribute__").next()?;
    let declaration = declaration.split(['[', ':']).next()?.trim_end();
    let name = declaration.rsplit([' ', '*']).next()?;
    if declaration.contains("(*") || name.is_empty() {
        return None;
    }
    let place = comment.trim().strip_prefix("/*")?.strip_suffix("*/")?;
    let place = place.replace(':', " : ");
    let mut words = place.split_whitespace();
    let bytes: u64 = words.next()?.parse().ok()?;
    let bits: u64 = if words.next()? == ":" { words.next()?.parse().ok()? } else { 0 };
    Some((name.to_string(), 8 * bytes + bits))
}
