//! Tests the commands in README and the guide. The test types README's session into a terminal, and runs every
//! command of the pages.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::guests::{BENCH, BUSYBOX, CLOUD, repository};
use tests::program::{missing, serve, ttvm};
use tests::terminal::Terminal;
use tests::tools;

/// The commands of README and the guide: exit codes and arguments. In this order, each command finds the files that
/// it needs. At the beginning the directory has `vmlinuz`, `initrd.gz`, `bench.gz`, `disk.img` and the recording
/// `R.ttvm`.
const COMMANDS: &[(i32, &str)] = &[
    (0, "run --kernel vmlinuz --initrd bench.gz --cmdline CMDLINE --disk disk.img --memory 128M --net user"),
    (5, "run --kernel vmlinuz --passthrough pci:ffff:ff:1f.7"),
    (
        0,
        "record -o N.ttvm --kernel vmlinuz --initrd bench.gz --cmdline CMDLINE --disk disk.img --memory 128M --net user \
         --checkpoint-overhead 4% --max-size 8G --last 10s --max-time 60s --stop-when never-said",
    ),
    (
        0,
        "record -o K.ttvm --kernel vmlinuz --initrd initrd.gz --cmdline CMDLINE --max-instructions 1000000 --no-copy-images \
         --keep-on fail",
    ),
    (
        0,
        "run --cpus 8,sockets=2,threads=2 --kernel vmlinuz --initrd initrd.gz --cmdline CMDLINE --max-instructions 1000000",
    ),
    (
        0,
        "record -o P.ttvm --cpus 4 --turns random:1 --kernel vmlinuz --initrd initrd.gz --cmdline CMDLINE \
         --max-instructions 300000000",
    ),
    (0, "verify P.ttvm"),
    (0, "here --kernel vmlinuz --keep always --timeout 60s --out results --user -- uname -r"),
    (0, "here --config"),
    (0, "info here.ttvm"),
    (
        0,
        "record -o F.ttvm --kernel vmlinuz --initrd initrd.gz --cmdline CMDLINE --disk files --hide files/private \
         --max-instructions 1000000",
    ),
    (0, "state P.ttvm --at 37%"),
    (0, "state P.ttvm --cpu 2"),
    (0, "export-pcap N.ttvm -o N.pcapng"),
    (0, "info N.ttvm --json"),
    (0, "log R.ttvm --json"),
    (3, "log --diff R.ttvm N.ttvm"),
    (0, "search R.ttvm console:sum --forward"),
    (0, "search R.ttvm console:sum --all --from 10% --to end"),
    (0, "search --help"),
    (0, "search R.ttvm console:sum --backtrace"),
    (0, "search R.ttvm write:jiffies_64"),
    (1, "search R.ttvm write:jiffies_64+8==0"),
    (1, "search R.ttvm change-phys:0x1000+8"),
    (0, "search R.ttvm break:schedule --backtrace"),
    (0, "search R.ttvm break:tick_* --all --limit 20"),
    (0, "search R.ttvm syscall:open* --all"),
    // The page shows 10ms. How long the shell waits for a key depends on the host. So the command here has a time that
    // any fork takes.
    (0, "search R.ttvm syscall longer:10us comm:sh --all"),
    (0, "search R.ttvm vector:14 --all --limit 20"),
    (0, "calls R.ttvm do_sys_openat2 --limit 5"),
    (0, "calls R.ttvm vfs_* comm:sh --from 50% --json"),
    (0, "tree R.ttvm --from last-syscall --to +20k --depth 4"),
    (0, "diff R.ttvm 50% end"),
    (0, "object R.ttvm *super_blocks"),
    (0, "object R.ttvm *super_blocks --at 95% --earlier 3 --count --json"),
    (0, "disk N.ttvm info"),
    (0, "disk N.ttvm --at 50% --json export -o later.img"),
    (2, "disk N.ttvm ls /"),
    (2, "disk N.ttvm cat /etc/fstab"),
    (2, "disk N.ttvm --at 50% ls / --partition 1"),
    (2, "disk N.ttvm --at 50% mount --listen 0.0.0.0:1"),
    (0, "values R.ttvm jiffies_64 --limit 5"),
    (0, "values R.ttvm (task_struct)init_task.comm"),
    (0, "state R.ttvm --at last-syscall --memory 0:16 --processes --backtrace --dmesg"),
    (0, "board R.ttvm --at 50%"),
    (0, "board R.ttvm --json"),
    (0, "who-set R.ttvm jiffies_64"),
    (0, "who-set R.ttvm rax --at 95% --json"),
    (0, "who-set R.ttvm linux_banner:8 --at 95% --limit 20"),
    (0, "who-set R.ttvm (list_head)modules.next"),
    (0, "where-to R.ttvm rax --from last-syscall --to +20k"),
    (0, "profile R.ttvm --limit 5"),
    (0, "profile R.ttvm --from last-syscall --to +20k --by total --json"),
    (0, "profile R.ttvm --folded R.folded"),
    (0, "where-to R.ttvm linux_banner:8 --from 95% --computed --json"),
    (0, "origin R.ttvm --at 95%"),
    (0, "reports R.ttvm --json"),
    (0, "dump R.ttvm --at 95% -o vmcore"),
    (0, "trace R.ttvm -o R.pftrace --from 50% --to 60%"),
    (0, "checkpoints R.ttvm add insn:1e8"),
    (0, "checkpoints R.ttvm list"),
    (0, "checkpoints R.ttvm remove insn:1e8"),
    (0, "checkpoints R.ttvm drop-damaged"),
    (0, "replay R.ttvm --from insn:1e8 --to insn:2e8 --quiet"),
    (0, "replay R.ttvm --verify"),
    (0, "symbols R.ttvm -o kernel.symbols --at end"),
    (0, "symbols R.ttvm --like kernel.symbols"),
    (0, "verify R.ttvm --tiers 50000000"),
    (0, "doctor --json"),
    (0, "ls . --json"),
    (0, "schema calls"),
    (0, "schema who-set"),
    (0, "completions bash"),
    (0, "man pages"),
    (4, "relink R.ttvm --kernel vmlinuz --initrd initrd.gz --disk disk.img"),
    (0, "relink R.ttvm --kernel vmlinuz --initrd initrd.gz"),
    (0, "pack R.ttvm -o R.packed"),
    (0, "pack R.ttvm --last 100ms -o end.packed"),
    (0, "unpack R.packed -o U.ttvm"),
    (0, "verify R.ttvm --against U.ttvm"),
    (0, "diff R.ttvm --with U.ttvm"),
    (0, "diff R.ttvm end end --with U.ttvm"),
    (0, "rm U.ttvm"),
    (0, "run --snapshot-from R.ttvm --at 50% --max-instructions 100000000"),
    (0, "run --snapshot-from R.ttvm --at 50% --branches 4 --jobs 2 -o branches --json --max-time 10ms"),
    (0, "record --snapshot-from R.ttvm --at 99% -o L.ttvm --max-instructions 1000000"),
    (
        0,
        "run --kernel vmlinuz --initrd bench.gz --cmdline CMDLINE --memory 128M --control control.socket --record-when Linux \
         -o C.ttvm",
    ),
    (0, "replay C.ttvm --verify"),
    (1, "control control.socket status"),
];
/// The command that needs drgn.
const DRGN: &str = "drgn R.ttvm --at 95% -- --no-default-symbols -e print(prog.flags)";
/// The command that starts a server, to which a gdb then has to connect.
const SERVE: &str = "debug R.ttvm --no-sandbox --listen unix:gdb.socket --at 50% --once";
/// The command that is typed into the terminal.
const DEBUG: &str = "debug R.ttvm --gdb --symbols kernel.symbols";
/// The command that prints the `tt` commands for a gdb that the user starts.
const PRINTED: &str = "debug --print-commands";
const CMDLINE: &str = "console=ttyS0 panic=-1 w=boot";

fn readme() -> String {
    std::fs::read_to_string(repository().join("README.md")).expect("README is there")
}

/// Returns the first code block of this language after `heading`.
fn block<'text>(text: &'text str, heading: &str, language: &str) -> &'text str {
    let behind = text.split_once(heading).expect("README has this heading").1;
    let begun = behind.split_once(&format!("```{language}\n")).expect("a block is behind it").1;
    begun.split_once("```").expect("the block ends").0
}

/// Returns the texts of the guide's pages and of README.
fn pages() -> Vec<String> {
    let guide = std::fs::read_dir(repository().join("docs/src")).expect("the guide is there");
    let pages = guide.map(|page| std::fs::read_to_string(page.expect("it can be listed").path()));
    pages.map(|page| page.expect("it is text")).chain([readme()]).collect()
}

/// Returns the commands of a page: its shell blocks, and the ttvm commands in its text.
fn commands_of(page: &str) -> String {
    let mut commands = String::new();
    for (number, block) in page.split("```").enumerate() {
        if let Some(shell) = block.strip_prefix("sh\n").filter(|_| number % 2 == 1) {
            commands += &shell.replace("\\\n", " ");
        } else if number % 2 == 0 {
            let spans = block.split('`').skip(1).step_by(2).filter(|span| span.starts_with("ttvm "));
            spans.for_each(|span| commands += &format!("{span}\n"));
        }
    }
    commands
}

/// Pairs of a verb and an option that a text uses with the verb. The option is `None` for the verb itself.
fn used(text: &str) -> BTreeSet<(String, Option<String>)> {
    let mut used = BTreeSet::new();
    let text = text.replace(".ttvm", "");
    for command in text.lines().flat_map(|line| line.split("ttvm ").skip(1)) {
        let mut words = command.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
        let verb = words.next().unwrap_or_default().to_string();
        let options = words.filter(|word| word.len() > 2 && word.starts_with("--"));
        used.extend(options.map(|option| (verb.clone(), Some(option.to_string()))));
        used.insert((verb, None));
    }
    used
}

#[test]
fn each_command_of_readme_and_guide_is_run_below() {
    let shown = used(&pages().iter().map(|page| commands_of(page)).collect::<String>());
    let examples = COMMANDS.iter().map(|(_, command)| *command).chain([DRGN, SERVE, DEBUG, PRINTED]);
    let run: String = examples.map(|command| format!("ttvm {command}\n")).collect();
    let run = used(&run);
    // VERB stands for any verb, so leave it out.
    let not_run: Vec<_> =
        shown.difference(&run).filter(|(verb, _)| !matches!(&**verb, "VERB" | "--help")).collect();
    assert!(shown.len() > 40 && not_run.is_empty(), "{not_run:?}");
}

/// Returns a line without its remark, and without the parts that differ from run to run: addresses, times, long
/// numbers.
fn comparable(line: &str) -> String {
    let line = line.split("    # ").next().unwrap_or_default().trim_end();
    let words = line.split(' ').map(|word| {
        let is_address = word.starts_with("0x");
        let is_number = word.len() > 4 && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
        if is_address || is_number { "…" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Types the transcript's commands, each at its prompt, and compares the terminal's output with the transcript.
fn type_transcript(terminal: &Terminal, transcript: &str) {
    const PROMPTS: [&str; 3] = ["$", "/ #", "(gdb)"];
    for line in transcript.lines() {
        let typed =
            PROMPTS.iter().find_map(|prompt| Some((prompt, line.strip_prefix(prompt)?.strip_prefix(' ')?)));
        if let Some((prompt, text)) = typed {
            terminal.wait_for_prompt(prompt);
            terminal.enter(text.split("    # ").next().unwrap_or_default());
        }
    }
    terminal.wait_for_prompt("(gdb)");
    let shown: Vec<String> = terminal.lines().iter().map(|line| comparable(line)).collect();
    let mut left = shown.iter();
    for line in transcript.lines().map(comparable) {
        assert!(
            left.any(|shown| *shown == line),
            "{line:?} is not shown, or too early:\n{}",
            shown.join("\n")
        );
    }
}

/// Runs a ttvm command, which must end with the exit code `code`. ttvm looks for programs in these directories
/// first.
fn run(directory: &Path, code: i32, command: &str, programs: &[&Path]) {
    let words = command.split(' ').map(|word| if word == "CMDLINE" { CMDLINE } else { word });
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let places = programs.iter().map(PathBuf::from).chain(std::env::split_paths(&usual));
    let mut run = Command::new(ttvm());
    run.current_dir(directory)
        .args(words)
        .stdin(Stdio::null())
        .env("PATH", std::env::join_paths(places).unwrap());
    let output = run.output().expect("ttvm can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "ttvm {command}: {said}");
}

fn leave_gdb(terminal: &Terminal) {
    for command in ["detach", "quit"] {
        terminal.wait_for_prompt("(gdb)");
        terminal.enter(command);
    }
    terminal.wait_for_prompt("$");
}

fn attach(directory: &Path) {
    let arguments: Vec<&str> = SERVE.split(' ').skip(1).collect();
    let mut server = serve(directory, &arguments);
    let mut gdb = Command::new("gdb");
    gdb.current_dir(directory).args([
        "-nx",
        "-batch",
        "-ex",
        "target remote gdb.socket",
        "-ex",
        "reverse-stepi",
    ]);
    let output = gdb.output().expect("gdb can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("0x"), "{said}");
    assert!(server.wait().expect("it is ours").success());
}

#[test]
fn the_first_page_is_what_a_terminal_shows_and_each_command_works() {
    if let Some(why) = missing(&["tmux", "gdb", "passt"]) {
        return skip::test(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (guest, name) in [(&CLOUD, "vmlinuz"), (&BUSYBOX, "initrd.gz"), (&BENCH, "bench.gz")] {
        symlink(guest.path(), directory.join(name)).unwrap();
    }
    std::fs::write(directory.join("disk.img"), [0; 1 << 20]).unwrap();
    std::fs::create_dir_all(directory.join("files/private")).unwrap();
    let program = ttvm();
    let terminal = Terminal::open(directory, program.parent().expect("it lies in a directory"));
    type_transcript(&terminal, block(&readme(), "# ttvm", "text"));
    leave_gdb(&terminal);
    for (code, command) in COMMANDS {
        run(directory, *code, command, &[]);
    }
    match tools::python() {
        Some(python) => run(directory, 0, DRGN, &[python.parent().expect("it lies in a directory")]),
        None => skip::test("there is no drgn: run scripts/setup"),
    }
    run(directory, 0, PRINTED, &[]);
    attach(directory);
    terminal.enter(&format!("ttvm {DEBUG}"));
    terminal.wait_for_prompt("(gdb)");
    terminal.enter("info symbol $rip");
    leave_gdb(&terminal);
    let shown = terminal.lines();
    assert!(shown.iter().any(|line| line.contains(" in section .text of ")), "{}", shown.join("\n"));
}
