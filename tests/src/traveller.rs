//! The recorded run of the kernel `travel.elf`, which the tests of recordings and of time travel share. The
//! run has two million steps with timer interrupts, keys and halts.

use std::path::{Path, PathBuf};

use machine::Machine;
use machine::config::MachineOptions;
use machine::position::Instructions;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;

use crate::guests::{Guest, test_kernel};
use crate::record::{record, record_with_checkpoints};
use machine::script::Script;

/// The guest's RAM size.
pub const MEMORY_BYTES: u64 = 8 << 20;

/// Number of steps between two stops of a recorder with checkpoints. At each stop the recorder may take a checkpoint,
/// and keeps the state for a checkpoint at the end.
pub const SLICE_STEPS: u64 = 1000;

/// The recording, and addresses in the guest.
pub struct Traveller {
    /// The recording's directory.
    pub path: PathBuf,
    /// The recording's end.
    pub end: EndRecord<Instructions>,
    /// The address of a variable that the kernel writes in every iteration of its main loop.
    pub counter: u64,
    /// The address of a function that the kernel calls in every 16th iteration.
    pub hook: u64,
    /// The address of a variable that the handler of the timer's interrupt writes.
    pub ticks: u64,
}

/// Describes the guest: its kernel, memory and exit port.
pub fn guest() -> Guest {
    Guest::new(&MachineOptions {
        kernel: test_kernel("travel"),
        memory_bytes: MEMORY_BYTES,
        debug_exit: Some(0x501),
        ..MachineOptions::default()
    })
}

/// The keys that are typed: twelve of them, two of which halt the guest.
pub fn script() -> Script {
    let after_key = |key| ("key\n", key);
    let mut lines =
        vec![("ready\n", "a"), after_key("h"), ("halted\n", "b"), after_key("h"), ("halted\n", "c")];
    lines.extend(["d", "e", "f", "g", "i", "j", "q"].map(after_key));
    Script::new(&lines).with_limit(Instructions(100_000_000))
}

impl Traveller {
    /// Records the run below `directory`.
    pub fn record(directory: &Path) -> Traveller {
        Traveller::record_by(directory, record)
    }

    /// Does the same as [`Traveller::record`], and takes a checkpoint every `every_steps` steps.
    pub fn record_with_checkpoints(directory: &Path, every_steps: u64) -> Traveller {
        let options = CheckpointOptions {
            interval_ns: 0,
            min_steps: every_steps,
            page_rest_steps: 0,
            trail_rest_steps: 0,
            slice_steps: SLICE_STEPS,
            ..CheckpointOptions::default()
        };
        Traveller::record_by(directory, |guest, path, script| {
            record_with_checkpoints(guest, path, script, options)
        })
    }

    fn record_by(
        directory: &Path,
        record: impl FnOnce(&Guest, &Path, &mut Script) -> (Machine<Instructions>, EndRecord<Instructions>),
    ) -> Traveller {
        let path = directory.join("travel.ttvm");
        let mut script = script();
        let (_, end) = record(&guest(), &path, &mut script);
        let text = script.text();
        assert!(text.ends_with("OK travel\n"), "{text}");
        let address = |name: &str| {
            let at = text.find(&format!("{name}=0x")).unwrap_or_else(|| panic!("no {name}: {text}"));
            let digits = text[at + name.len() + 3..].lines().next().unwrap_or_default();
            u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{digits} is no address"))
        };
        let (counter, hook, ticks) = (address("counter"), address("hook"), address("ticks"));
        Traveller { path, end, counter, hook, ticks }
    }
}
