//! Boots the tiny test kernels, each by its own boot protocol.

use machine::Outcome;
use machine::config::MachineOptions;
use machine::position::Instructions;
use machine::script::Script;
use tests::guests::{Guest, test_kernel};
use tests::run::run_to_end;

/// The exit code of isa-debug-exit for 0x10, which the kernels write after success.
const SUCCESS: Outcome = Outcome::DebugExit { code: 33 };

/// The largest number of instructions of a run. If a kernel executes more instructions, the test assumes that the
/// kernel hangs.
const LIMIT: Instructions = Instructions(2_000_000_000);

/// The cases: kernel, number of modules, memory in MiB, additional command line.
const CASES: [(&str, usize, u64, &str); 14] = [
    ("mb1", 0, 64, ""),
    ("mb1", 2, 128, ""),
    ("mb1", 1, 5120, ""),
    ("mb2", 0, 64, ""),
    ("mb2", 3, 128, ""),
    ("pvh", 0, 64, ""),
    ("pvh", 1, 128, ""),
    ("elf64", 0, 64, " seed"),
    ("elf64", 1, 128, " seed"),
    ("elf64", 1, 5120, " seed"),
    ("pae", 0, 64, ""),
    ("pae", 1, 5120, ""),
    ("real16", 0, 64, ""),
    ("real16", 1, 128, ""),
];

fn guest(name: &str, modules: usize, memory_mib: u64, more: &str, directory: &std::path::Path) -> Guest {
    let module = directory.join("module");
    std::fs::write(&module, "ttvm-module for the test kernels").expect("the folder is ours");
    let cmdline = format!("ttvm-test modules={modules} mib={memory_mib}{more}");
    let mut options = MachineOptions {
        kernel: test_kernel(name),
        debug_console: true,
        debug_exit: Some(0x501),
        cmdline,
        memory_bytes: memory_mib << 20,
        ..MachineOptions::default()
    };
    if name == "elf64" {
        options.initrd = (modules > 0).then_some(module);
    } else {
        options.modules = (0..modules).map(|n| (module.clone(), format!("number {n}"))).collect();
    }
    Guest::new(&options)
}

#[test]
fn every_test_kernel_says_ok() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    for (name, modules, memory_mib, more) in CASES {
        let mut script = Script::silent().with_limit(LIMIT);
        let outcome =
            run_to_end(&mut guest(name, modules, memory_mib, more, directory.path()).machine(), &mut script);
        let text = script.text();
        let case = format!("{name} with {modules} modules and {memory_mib} MiB: {text}");
        assert_eq!(outcome, SUCCESS, "{case}");
        // The kernel prints OK once on the serial port and once on the debug console.
        assert_eq!(text.matches('O').count(), 2, "{case}");
        assert!(!text.contains("FAIL"), "{case}");
    }
}

#[test]
fn a_test_kernel_notices_what_is_wrong() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    for name in ["mb1", "mb2", "pvh", "elf64"] {
        let mut guest = guest(name, 0, 64, "", directory.path());
        guest.config.start.booted_mut().cmdline = "ttvm-test modules=4".to_string();
        let mut script = Script::silent().with_limit(LIMIT);
        let outcome = run_to_end(&mut guest.machine(), &mut script);
        assert_eq!(outcome, Outcome::DebugExit { code: 35 }, "{name}");
        assert!(script.text().contains("F"), "{name}: {}", script.text());
    }
}
