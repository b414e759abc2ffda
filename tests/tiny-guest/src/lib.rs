//! A guest of a few instructions. Each test makes its own recordings of the guest. The guest is for tests that need
//! many recordings, or that know every instruction.
//!
//! The guest *stirs* a megabyte of memory: in each round, it changes a pseudo-randomly chosen word. Typed text
//! influences these changes, and the guest echoes the text. After a given number of rounds, the guest ends the run.
//! Every register and byte of memory depends on all earlier steps. A timer ticks, but the guest never takes the
//! timer's interrupt.

#![forbid(unsafe_code)]

pub mod disk;
pub mod faulting;
pub mod linux;
pub mod long_mode;
pub mod passed;
pub mod several;
pub mod stopped;
pub mod virtio;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use history::replay::{Replay, ReplayEnd};
use history::timeline::Timeline;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::Machine;
use machine::checks::Intervals;
use machine::config::MachineOptions;
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, PowerOn, View};
use machine::position::{Count, Instructions, Moment};
use recording::log::{EndRecord, EventRecord, Log, LogRecord};
use recording::pace::CheckpointOptions;
use recording::player::Scrutiny;
use recording::{Opened, Recordable, Recording};

const LOAD: u32 = 0x10_0000;
/// Physical address of the memory that the guest stirs.
pub const STIRRED: u64 = 0x20_0000;
/// The size of that memory.
pub const STIRRED_BYTES: u64 = 1 << 20;
/// The power-on event of every guest in this package.
pub const POWER_ON: PowerOn = PowerOn { unix_seconds: 1_700_000_000, seed: [1; 32], columns: 80, rows: 25 };
/// The approximate number of steps in a round.
pub const ROUND_STEPS: u64 = 10;
/// The PIT's counts between two ticks of the guest's timer: some 50,000 steps.
const TICK_PIT_COUNTS: i32 = 60;

/// The size of a Multiboot header with addresses, in bytes.
const HEADER_BYTES: u32 = 32;

/// Returns a Multiboot kernel with this code.
fn image(code: &[u8]) -> Vec<u8> {
    let (magic, flags) = (0x1bad_b002_u32, 1_u32 << 16);
    let end = LOAD + HEADER_BYTES + code.len() as u32;
    let header = [
        magic,
        flags,
        0_u32.wrapping_sub(magic).wrapping_sub(flags),
        LOAD,
        LOAD,
        end,
        end,
        LOAD + HEADER_BYTES,
    ];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(code);
    bytes
}

fn code(rounds: u32, address: u32) -> Vec<u8> {
    let assemble = || -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(32)?;
        let (mut top, mut quiet) = (a.create_label(), a.create_label());
        // Enable the serial port's interrupt for received bytes.
        a.mov(edx, 0x3f9)?;
        a.mov(eax, 1)?;
        a.out(dx, al)?;
        // Start the timer. The guest ignores its ticks.
        for (port, value) in [(0x43, 0x34), (0x40, TICK_PIT_COUNTS), (0x40, 0)] {
            a.mov(al, value)?;
            a.out(port, al)?;
        }
        a.xor(ebx, ebx)?;
        a.mov(edi, STIRRED as u32)?;
        a.mov(esi, rounds)?;
        a.set_label(&mut top)?;
        a.imul_3(ebx, ebx, 1_664_525)?;
        a.add(ebx, 1_013_904_223)?;
        a.mov(eax, ebx)?;
        a.shr(eax, 10)?;
        a.and(eax, (STIRRED_BYTES - 4) as i32)?;
        a.add(ebx, dword_ptr(edi + eax))?;
        a.mov(dword_ptr(edi + eax), ebx)?;
        a.test(esi, 0xff)?;
        a.jne(quiet)?;
        a.mov(edx, 0x3fd)?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.je(quiet)?;
        a.mov(edx, 0x3f8)?;
        a.in_(al, dx)?;
        a.out(dx, al)?;
        a.movzx(eax, al)?;
        a.add(ebx, eax)?;
        a.set_label(&mut quiet)?;
        a.dec(esi)?;
        a.jne(top)?;
        end_the_run(&mut a)?;
        a.assemble(address.into())
    };
    assemble().expect("the program is a constant that can be assembled")
}

/// Writes to the port that ends the run, and waits for the end.
pub(crate) fn end_the_run(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(edx, 0x501)?;
    a.xor(eax, eax)?;
    a.out(dx, eax)?;
    let mut stop = a.create_label();
    a.set_label(&mut stop)?;
    a.jmp(stop)
}

/// Writes the guest's kernel to a file.
pub fn write_kernel(directory: &Path, rounds: u32) -> PathBuf {
    let path = directory.join(format!("tiny-{rounds}"));
    std::fs::write(&path, image(&code(rounds, LOAD + HEADER_BYTES))).unwrap();
    path
}

/// Events for a machine. Each event has the position at which it happens, as a number of instructions or exits.
pub struct Script(pub Vec<(u64, Event)>);

impl<C: Count> Inputs<C> for Script {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        let due = self.0.first().is_some_and(|(number, _)| *number <= view.moment.count.number());
        Ok(due.then(|| self.0.remove(0).1))
    }

    fn next_poll(&self, _now: Moment<C>) -> C {
        self.0.first().map_or(C::MAX, |(number, _)| C::new(*number))
    }

    fn idle(&mut self, _now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(deadline_ns.map_or(Idle::Forever, Idle::Until))
    }
}

/// Returns events that type texts at step counts.
pub fn typed(keys: &[(u64, &str)]) -> Vec<(u64, Event)> {
    keys.iter().map(|(steps, text)| (*steps, Event::ConsoleInput(text.as_bytes().to_vec()))).collect()
}

/// Returns events that type a text from a step count on. Each event types one byte, because the guest's serial port
/// holds one byte.
pub fn typed_bytes(from: u64, text: &str) -> Vec<(u64, Event)> {
    let places = (0_u64..).map(|number| from + number * 6_000);
    places.zip(text.bytes()).map(|(steps, byte)| (steps, Event::ConsoleInput(vec![byte]))).collect()
}

/// A poll function that returns false this many times, and then true.
pub fn interrupt_after(polls: i32) -> impl FnMut() -> bool {
    let mut left = polls;
    move || {
        left -= 1;
        left < 0
    }
}

/// Short intervals between two checks of the registers, of the devices, and of RAM.
pub const DENSE: Intervals =
    Intervals { registers: 20_000, registers_ns: 1 << 40, devices: 50_000, ram: 100_000 };

/// Records the guest. Returns the recording, and its last record.
pub fn record(
    directory: &Path,
    name: &str,
    rounds: u32,
    script: Vec<(u64, Event)>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    record_with(directory, name, rounds, Script(script), None)
}

/// Records the guest with checkpoints. The recorder takes four checkpoints, the last three near the end. The
/// function adds a checkpoint at each of the step counts `more`.
pub fn record_with_checkpoints(
    directory: &Path,
    name: &str,
    rounds: u32,
    script: Vec<(u64, Event)>,
    more: &[u64],
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let (recording, end) = record_with(directory, name, rounds, Script(script), Some(dense_checkpoints()));
    add_checkpoints(&recording, more);
    (recording, end)
}

/// Returns options with which the recorder takes checkpoints even of a short run.
pub fn dense_checkpoints() -> CheckpointOptions {
    CheckpointOptions {
        interval_ns: 10_000,
        min_steps: 10_000,
        page_rest_steps: 300,
        credit_steps: 0,
        trail_rest_steps: 0,
        slice_steps: 10_000,
        ..CheckpointOptions::default()
    }
}

/// Adds checkpoints to a recording, one at each of these step counts.
pub fn add_checkpoints(recording: &Recording<Instructions>, places: &[u64]) {
    for &number in places {
        let mut timeline = Timeline::open_with(recording, 1).unwrap();
        timeline.seek(Instructions(number), &mut || false).unwrap();
        // Try again: another test may be starting a process at this moment, which holds the store's lock until the
        // process executes its program.
        while let Err(error) = timeline.add_checkpoint() {
            assert!(error.to_string().contains("another process"), "{error}");
            std::thread::yield_now();
        }
    }
}

/// Replays a recording to its end, and compares everything. Returns the console output after the position `from`,
/// the machine, and how the replay ended.
pub fn replayed_from(
    recording: &Recording<Instructions>,
    from: Instructions,
) -> (Vec<u8>, Machine<Instructions>, ReplayEnd) {
    let printed = Arc::new(Mutex::new(Vec::new()));
    let shared = printed.clone();
    let output = move |bytes: &[u8]| {
        shared.lock().unwrap().extend(bytes);
        Ok(())
    };
    let mut replay = Replay::new(recording, Scrutiny::Everything, output).unwrap();
    replay.run(Some(from), |_| {}).unwrap();
    let before = printed.lock().unwrap().len();
    let end = replay.run(None, |_| {}).unwrap();
    let console = printed.lock().unwrap()[before..].to_vec();
    (console, replay.machine, end)
}

/// Records the guest, with checkpoints or without.
pub fn record_with(
    directory: &Path,
    name: &str,
    rounds: u32,
    inputs: impl Inputs<Instructions>,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    record_kernel(directory, name, write_kernel(directory, rounds), DENSE, inputs, checkpoints)
}

/// Records a guest that executes HLT at once. All interrupts are masked at the interrupt controllers, but the CPU
/// accepts interrupts. The events of the script arrive at the given guest times in nanoseconds, and do not wake the
/// guest.
pub fn record_asleep(
    directory: &Path,
    name: &str,
    script: Vec<(u64, Event)>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    // The code masks all interrupts at both interrupt controllers, and executes STI and HLT. If the CPU wakes, the
    // code jumps back to HLT.
    let code = [0xb0, 0xff, 0xe6, 0x21, 0xe6, 0xa1, 0xfb, 0xf4, 0xeb, 0xfd];
    let kernel = directory.join("asleep");
    std::fs::write(&kernel, image(&code)).unwrap();
    record_kernel(directory, name, kernel, DENSE, ByTime(script), None)
}

/// Records a guest that makes a number of system calls. The number of each call is the number of remaining
/// calls, modulo four. In each call the guest prints the number's digit, and writes the digit to the first
/// byte of [`STIRRED`], twice. At the end the guest announces a panic.
pub fn record_calls(
    directory: &Path,
    name: &str,
    calls: u32,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let kernel = directory.join(format!("calls-{calls}"));
    std::fs::write(&kernel, image(&code_of_calls(calls))).unwrap();
    record_kernel(directory, name, kernel, DENSE, Script(Vec::new()), checkpoints)
}

fn code_of_calls(calls: u32) -> Vec<u8> {
    let assemble = || -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(32)?;
        let (mut begin, mut top) = (a.create_label(), a.create_label());
        a.mov(esp, (STIRRED + STIRRED_BYTES) as i32)?;
        a.call(begin)?;
        // The entry for system calls. The instruction before it has pushed the entry's address.
        a.add(al, i32::from(b'0'))?;
        a.mov(edx, 0x3f8)?;
        a.out(dx, al)?;
        a.mov(byte_ptr(STIRRED as i32), al)?;
        a.mov(byte_ptr(STIRRED as i32), al)?;
        a.dec(esi)?;
        a.jne(top)?;
        a.mov(edx, 0x505)?;
        a.mov(al, 1)?;
        a.out(dx, al)?;
        let mut stop = a.create_label();
        a.set_label(&mut stop)?;
        a.jmp(stop)?;
        a.set_label(&mut begin)?;
        a.pop(ebx)?;
        a.xor(edx, edx)?;
        // Write the MSRs of SYSENTER: code segment (any selector but 0), stack pointer and instruction pointer.
        for (register, value) in [(0x174, eax), (0x175, esp), (0x176, ebx)] {
            a.mov(ecx, register)?;
            a.mov(eax, 8)?;
            a.mov(eax, value)?;
            a.wrmsr()?;
        }
        a.mov(esi, calls)?;
        a.set_label(&mut top)?;
        a.mov(eax, esi)?;
        a.and(eax, 3)?;
        a.mov(ecx, 10)?;
        let mut busy = a.create_label();
        a.set_label(&mut busy)?;
        a.loop_(busy)?;
        a.sysenter()?;
        a.assemble((LOAD + HEADER_BYTES).into())
    };
    assemble().expect("the program is a constant that can be assembled")
}

/// Iterations of the empty loop in each round of [`record_long`]'s guest.
const LONG_ROUND_LOOPS: u32 = 500_000;
/// Number of steps in a round of this guest.
pub const LONG_ROUND_STEPS: u64 = 2 * LONG_ROUND_LOOPS as u64 + 4;

/// Records a guest that makes many steps in little time. At the end of each round, the guest writes the number of
/// remaining rounds to the first byte of [`STIRRED`].
pub fn record_long(directory: &Path, name: &str, rounds: u32) -> Recording<Instructions> {
    let program = |address: u32| -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let (mut top, mut busy) = (a.create_label(), a.create_label());
        a.mov(edi, STIRRED as u32)?;
        a.mov(ebx, rounds)?;
        a.set_label(&mut top)?;
        a.mov(ecx, LONG_ROUND_LOOPS)?;
        a.set_label(&mut busy)?;
        a.dec(ecx)?;
        a.jne(busy)?;
        a.mov(byte_ptr(rdi), bl)?;
        a.dec(ebx)?;
        a.jne(top)?;
        end_the_run(&mut a)?;
        a.assemble(address.into())
    };
    let kernel = directory.join(format!("long-{rounds}"));
    std::fs::write(&kernel, image_of_64_bits(program)).unwrap();
    let intervals = Intervals { registers: 8 << 20, registers_ns: 1 << 40, devices: 16 << 20, ram: 32 << 20 };
    record_kernel(directory, name, kernel, intervals, Script(Vec::new()), None).0
}

/// Returns a kernel that switches to long mode and executes a program. `program` assembles the program for the
/// address that it gets.
fn image_of_64_bits(program: impl Fn(u32) -> Result<Vec<u8>, IcedError>) -> Vec<u8> {
    let mut code = to_64_bits().expect("the program is a constant that can be assembled");
    let address = LOAD + HEADER_BYTES + code.len() as u32 + 7;
    // Write a JMP to the first code segment.
    code.push(0xea);
    code.extend(address.to_le_bytes());
    code.extend([8, 0]);
    code.extend(program(address).expect("the program is a constant that can be assembled"));
    image(&code)
}

/// Returns code that maps the first 4 MiB of memory to equal addresses and switches to long mode, in which the
/// software CPU is fastest. A jump to the code segment with selector 8 must follow this code.
fn to_64_bits() -> Result<Vec<u8>, IcedError> {
    let tables = (STIRRED + STIRRED_BYTES) as i32;
    let (directories, pages, segments, register) =
        (tables + 0x1000, tables + 0x2000, tables + 0x3000, tables + 0x4000);
    let mut a = CodeAssembler::new(32)?;
    for (at, value) in [
        (tables, directories | 3),
        (directories, pages | 3),
        (pages, 0x83),
        (pages + 8, 0x20_0083),
        (segments + 8, 0xffff),
        (segments + 12, 0x00af_9a00),
        (register, (segments << 16) | 15),
        (register + 4, segments >> 16),
    ] {
        a.mov(dword_ptr(at), value)?;
    }
    a.mov(eax, cr4)?;
    a.or(eax, 0x20)?;
    a.mov(cr4, eax)?;
    a.mov(eax, tables)?;
    a.mov(cr3, eax)?;
    a.mov(ecx, 0xc000_0080_u32)?;
    a.rdmsr()?;
    a.or(eax, 0x100)?;
    a.wrmsr()?;
    a.mov(eax, cr0)?;
    a.or(eax, i32::MIN)?;
    a.mov(cr0, eax)?;
    a.lgdt(dword_ptr(register))?;
    a.assemble((LOAD + HEADER_BYTES).into())
}

/// Events, each with the guest time in nanoseconds at which it happens.
struct ByTime(Vec<(u64, Event)>);

impl Inputs<Instructions> for ByTime {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        let due = self.0.first().is_some_and(|(ns, _)| *ns <= view.moment.time_ns);
        Ok(due.then(|| self.0.remove(0).1))
    }

    fn next_poll(&self, _now: Moment<Instructions>) -> Instructions {
        Instructions::MAX
    }

    fn idle(&mut self, _now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let next = self.0.first().map(|(ns, _)| *ns).into_iter().chain(deadline_ns).min();
        Ok(next.map_or(Idle::Forever, Idle::Until))
    }
}

/// Returns the options of a machine that runs one of these kernels.
pub fn options(kernel: PathBuf) -> MachineOptions {
    MachineOptions { kernel, memory_bytes: 4 << 20, debug_exit: Some(0x501), ..MachineOptions::default() }
}

fn record_kernel(
    directory: &Path,
    name: &str,
    kernel: PathBuf,
    intervals: Intervals,
    inputs: impl Inputs<Instructions>,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    record_machine(directory, name, &options(kernel), intervals, inputs, checkpoints)
}

fn record_machine(
    directory: &Path,
    name: &str,
    options: &MachineOptions,
    intervals: Intervals,
    inputs: impl Inputs<Instructions>,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let path = directory.join(name);
    let mut guest = Recordable::new(options, POWER_ON).unwrap();
    let recording = guest.record_in(&path).unwrap().checks(intervals).checkpoints(checkpoints);
    let end = recording.run(inputs).unwrap();
    (open(&path), end)
}

/// Opens a recording that counts instructions.
pub fn open(path: &Path) -> Recording<Instructions> {
    match Opened::open(path).unwrap() {
        Opened::ByInstructions(recording) => recording,
        Opened::ByExits(_) => panic!("{} counts exits", path.display()),
    }
}

/// Changes an opened recording's log in memory, not its file.
pub fn change_log<C: Count>(recording: &mut Recording<C>, change: impl FnOnce(&mut [LogRecord<C>])) {
    let mut records = recording.log.records().unwrap();
    change(&mut records);
    recording.log = Arc::new(Log::of_records(&records).unwrap());
}

/// Returns the event with number `number`.
pub fn event_of<C>(records: &mut [LogRecord<C>], number: usize) -> &mut EventRecord<C> {
    let events = records.iter_mut().filter_map(|record| match record {
        LogRecord::Event(event) => Some(event),
        _ => None,
    });
    events.into_iter().nth(number).unwrap()
}

/// A generator of pseudo-random numbers that are the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Returns a file's bytes with one random change.
pub fn change(bytes: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let length = bytes.len() as u64;
    let at = numbers.below(length) as usize;
    match numbers.below(6) {
        0 => changed[at] ^= 1 << numbers.below(8),
        1 => changed[at] = numbers.below(256) as u8,
        2 => changed.truncate(at),
        3 => changed.insert(at, numbers.below(256) as u8),
        4 => {
            let other = numbers.below(length) as usize;
            let count = (1 + numbers.below(64) as usize).min(bytes.len() - at.max(other));
            changed[at..at + count].copy_from_slice(&bytes[other..other + count]);
        }
        _ => {
            let end = at + numbers.below((bytes.len() - at) as u64 + 1) as usize;
            changed.drain(at..end);
        }
    }
    changed
}
