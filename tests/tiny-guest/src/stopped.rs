//! Recordings of the tiny guest that count exits. The software engine stops the guest between two exits, as KVM does.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use machine::checks::Intervals;
use machine::config::MachineOptions;
use machine::engine::{EngineKind, Leave};
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Exits, Moment};
use recording::log::{EndRecord, EventRecord, LogRecord, LogWriter};
use recording::pace::CheckpointOptions;
use recording::{EVENTS, Opened, Recordable, Recording};

use super::{Numbers, POWER_ON, Script, typed, write_kernel};

const ROUNDS: u32 = 20_000;
const KEYS: [(u64, &str); 2] = [(5, "a"), (20, "bc")];

/// A clock and a keyboard that pseudo-random numbers control.
struct Host {
    numbers: Cell<u64>,
    /// The upper limit of the time in nanoseconds that passes at once.
    most_ns: u64,
    told: bool,
    /// Input of other kinds, each with its exit count.
    script: Script,
}

impl Host {
    fn below(&self, limit: u64) -> u64 {
        let mut numbers = Numbers(self.numbers.get());
        let number = numbers.below(limit);
        self.numbers.set(numbers.0);
        number
    }
}

impl Inputs<Exits> for Host {
    fn poll(&mut self, view: &View<'_, Exits>) -> Result<Option<Event>, Error> {
        if let Some(stopped) = view.stopped {
            return Ok(Some(Event::Stopped(stopped)));
        }
        if !std::mem::replace(&mut self.told, true) {
            return Ok(Some(Event::TimePassed { ns: self.below(self.most_ns) }));
        }
        let event = self.script.poll(view)?;
        self.told = event.is_some();
        Ok(event)
    }

    fn next_poll(&self, now: Moment<Exits>) -> Exits {
        now.count + 1 + self.below(3)
    }

    fn idle(&mut self, _now: Moment<Exits>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(deadline_ns.map_or(Idle::Forever, Idle::Until))
    }

    fn leave(&self, _now: Moment<Exits>, _deadline_ns: Option<u64>) -> Leave {
        let force = Duration::from_nanos(1 + self.below(4000));
        Leave::After { due: force, force, note: true }
    }
}

/// Records the tiny guest, and stops it at positions that depend on `seed`. Returns the recording, and its last
/// record.
pub fn record(directory: &Path, seed: u64) -> (Recording<Exits>, EndRecord<Exits>) {
    record_with(directory, seed, ROUNDS, 200_000, typed(&KEYS), None)
}

/// Does the same as [`record`], but with other input than keys. Each input has an exit count.
pub fn record_script(
    directory: &Path,
    seed: u64,
    script: Vec<(u64, Event)>,
) -> (Recording<Exits>, EndRecord<Exits>) {
    record_with(directory, seed, ROUNDS, 200_000, script, None)
}

/// Does the same as [`record`], but the guest runs for `rounds` rounds. In a thousand rounds, the guest makes some
/// exits.
pub fn record_rounds(directory: &Path, seed: u64, rounds: u32) -> (Recording<Exits>, EndRecord<Exits>) {
    record_with(directory, seed, rounds, 200_000, Vec::new(), None)
}

/// Does the same as [`record`], but with more time between exits, and with checkpoints.
pub fn record_with_checkpoints(directory: &Path, seed: u64) -> (Recording<Exits>, EndRecord<Exits>) {
    let options = CheckpointOptions { interval_ns: 40_000_000, ..CheckpointOptions::default() };
    record_with(directory, seed, ROUNDS, 20_000_000, typed(&KEYS), Some(options))
}

fn record_with(
    directory: &Path,
    seed: u64,
    rounds: u32,
    most_ns: u64,
    script: Vec<(u64, Event)>,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Exits>, EndRecord<Exits>) {
    let options = MachineOptions {
        kernel: write_kernel(directory, rounds),
        memory_bytes: 4 << 20,
        debug_exit: Some(0x501),
        model: cpu::CpuModel::V2Kvm,
        ..MachineOptions::default()
    };
    let path = directory.join(format!("exits-{seed}.ttvm"));
    let host = Host { numbers: Cell::new(seed), most_ns, told: false, script: Script(script) };
    let checks = Intervals { registers: 10, registers_ns: 1 << 40, devices: 20, ram: 40 };
    let mut guest = Recordable::<Exits>::on(EngineKind::SOFT, &options, POWER_ON).unwrap();
    let recording = guest.record_in(&path).unwrap().checks(checks).checkpoints(checkpoints);
    let end = recording.run(host).unwrap();
    (open(&path), end)
}

/// Records a guest that makes three exits and then loops without exits. After that, only the stops increase the
/// exit count. The run ends at exit `end`.
pub fn record_spinning(directory: &Path, end: u64) -> Recording<Exits> {
    // The code executes OUT 0x80, AL three times, then INC EAX sixty times, and then jumps back to the first INC.
    let code = [&[0xe6, 0x80, 0xe6, 0x80, 0xe6, 0x80][..], &[0x40; 60], &[0xeb, 0xc2]].concat();
    let kernel = directory.join("spinning");
    std::fs::write(&kernel, super::image(&code)).unwrap();
    let options = MachineOptions {
        kernel,
        memory_bytes: 4 << 20,
        model: cpu::CpuModel::V2Kvm,
        ..MachineOptions::default()
    };
    let path = directory.join("spinning.ttvm");
    let script = Script(vec![(end, Event::Ended)]);
    let host = Host { numbers: Cell::new(1), most_ns: 1000, told: false, script };
    let mut guest = Recordable::<Exits>::on(EngineKind::SOFT, &options, POWER_ON).unwrap();
    guest.record_in(&path).unwrap().run(host).unwrap();
    open(&path)
}

/// Replaces the events in a recording's file. Removes the checks and the end.
pub fn rewrite(recording: &Recording<Exits>, events: &[EventRecord<Exits>]) {
    let path = recording.path.join(EVENTS);
    std::fs::remove_file(&path).unwrap();
    let mut log = LogWriter::create(&path, recording.log.format).unwrap();
    log.append(&LogRecord::<Exits>::Machine(recording.log.machine_hash)).unwrap();
    for event in events {
        log.append(&LogRecord::Event(event.clone())).unwrap();
    }
}

/// Opens a recording that counts exits.
pub fn open(path: &Path) -> Recording<Exits> {
    match Opened::open(path).unwrap() {
        Opened::ByExits(recording) => recording,
        Opened::ByInstructions(_) => panic!("{} counts instructions", path.display()),
    }
}
