//! Tests a host that fails while a guest runs. The run ends with an error, and the recorded part is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cpu::{AddressKind, Bus, Counts, Cpu, CpuState, Traps, Watchpoint};
use history::replay::{Replay, ReplayEnd};
use machine::Machine;
use machine::config::{MachineConfig, MachineOptions};
use machine::engine::{End, Engine, Leave};
use machine::error::Error;
use machine::inputs::PowerOn;
use machine::position::{Count, Instructions};
use recording::Recording;
use recording::player::Scrutiny;
use recording::recorder::Recorder;
use tiny_guest::{DENSE, Script, open, write_kernel};

/// An engine that stops reporting the guest's writes, as KVM does when a call fails.
struct Failing {
    inner: Box<dyn Engine>,
    /// How many more times the engine reports the guest's writes.
    left: Arc<AtomicU32>,
}

impl Engine for Failing {
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        until: Instructions,
        origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error> {
        self.inner.run(bus, until, origin, leave)
    }
    fn state(&self) -> CpuState {
        self.inner.state()
    }
    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        self.inner.set_state(state, counts);
    }
    fn cpu(&self) -> &Cpu {
        self.inner.cpu()
    }
    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.inner.set_breakpoints(points);
    }
    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.inner.set_watchpoints(points);
    }
    fn set_traps(&mut self, traps: Traps) {
        self.inner.set_traps(traps);
    }
    fn note_written(&mut self) -> Result<(), Error> {
        if self.left.load(Relaxed) == 0 {
            let gone = std::io::Error::from_raw_os_error(nix::libc::EIO);
            return Err(Error::Engine(format!("KVM cannot say what the guest wrote: {gone}")));
        }
        self.left.fetch_sub(1, Relaxed);
        self.inner.note_written()
    }
    fn counts_branches(&self) -> bool {
        self.inner.counts_branches()
    }
    fn track_writes_anew(&mut self) {
        self.inner.track_writes_anew();
    }
}

#[test]
fn an_engine_that_fails_ends_the_run_with_a_sentence_and_the_recording_replays() {
    let directory = tempfile::tempdir().unwrap();
    let options = MachineOptions {
        kernel: write_kernel(directory.path(), 60_000),
        memory_bytes: 4 << 20,
        ..MachineOptions::default()
    };
    let (config, images) = MachineConfig::from_options(&options).unwrap();
    let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
    let left = Arc::new(AtomicU32::new(4));
    let machine = Machine::new(&config, &images, &power_on).unwrap();
    let mut machine = machine.wrap_engine(|inner| Box::new(Failing { inner, left: left.clone() }));
    let path = directory.path().join("r.ttvm");
    let log = Recording::<Instructions>::create(&path, &config).unwrap();
    let mut recorder = Recorder::new(Script(Vec::new()), log, power_on);
    recorder.check_every(DENSE);
    let error = machine.run(Instructions::MAX, &mut recorder).unwrap_err();
    assert!(error.to_string().contains("KVM cannot say what the guest wrote: "), "{error}");
    assert_eq!(left.load(Relaxed), 0);
    // The check that failed is not in the log, and the checks before it are right.
    let recording = open(&path);
    let mut replay = Replay::new(&recording, Scrutiny::Everything, |_| Ok(())).unwrap();
    assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Stopped);
    assert!(machine.maps().is_err() && machine.known_hashes().is_err());
}
