//! A toy recorded machine and a toy client, shared by this crate's tests.
//!
//! The toy executes a few real x86-64 instructions over 64 KiB of memory. The toy stores every earlier state,
//! so going back is exact.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use gdb::{
    Condition, DebugTarget, FIRST_CPU, NOT_A_CPU, Poll, Refusal, Registers, SessionEnd, SleepingThread, Stop,
    Thread, Threads, WatchKind, Watchpoint, serve_stream,
};

pub const ENTRY: u64 = 0x1000;
pub const LOOP: u64 = 0x1007;
pub const STORE: u64 = 0x1009;
pub const LOAD: u64 = 0x100b;
pub const INC: u64 = 0x100d;
pub const NOP: u64 = 0x1010;
pub const JMP: u64 = 0x1011;
pub const VARIABLE: u64 = 0x2000;
/// Number of instructions in the recorded run.
pub const LENGTH: usize = 200;

const MEMORY_BYTES: usize = 0x1_0000;

#[rustfmt::skip]
const PROGRAM: &[u8] = &[
    0x48, 0xc7, 0xc3, 0x00, 0x20, 0x00, 0x00, // 1000: mov rbx, 0x2000
    0x04, 0x03,                               // 1007: add al, 3
    0x88, 0x03,                               // 1009: mov [rbx], al
    0x8a, 0x13,                               // 100b: mov dl, [rbx]
    0x48, 0xff, 0xc1,                         // 100d: inc rcx
    0x90,                                     // 1010: nop
    0xeb, 0xf4,                               // 1011: jmp 0x1007
];

/// One position: the toy's state, and the memory access of the instruction there.
pub struct Moment {
    registers: Registers,
    memory: Arc<Vec<u8>>,
    access: Option<(WatchKind, u64)>,
}

pub struct Toy {
    pub history: Vec<Moment>,
    pub position: usize,
    pub breakpoints: Vec<u64>,
    /// The conditions of breakpoints that have some.
    pub conditions: BTreeMap<u64, Vec<Condition>>,
    pub watchpoints: Vec<Watchpoint>,
    /// The calls that set and cleared breakpoints, conditions and watchpoints.
    pub calls: Vec<String>,
    /// Whether writes are allowed.
    pub writable: bool,
    /// Whether runs end only when the client interrupts them.
    pub endless: bool,
    /// A message that the user gets once, if there is one.
    pub message: Option<&'static str>,
    pub greeting: Option<&'static str>,
    /// The sentence with which runs fail; `None` if they do not fail.
    pub broken: Option<&'static str>,
    /// The progress text at the first poll of a movement or command.
    pub progress: Option<&'static str>,
    pub register_reads: usize,
    /// How often the server asked for the toy's threads.
    pub thread_lists: usize,
    /// The numbers of the toy's sleeping threads. Each thread has its number in RIP, and in every byte
    /// of its memory.
    pub sleeping: Vec<u32>,
    /// The number of CPUs. The first CPU executes all instructions. The others have their thread's number in RIP.
    pub cpus: u32,
    /// The CPU of the last stop: the CPU whose step gdb requested last.
    pub stopped: Thread,
}

impl Toy {
    pub fn new() -> Self {
        Self {
            history: record(),
            position: 0,
            breakpoints: Vec::new(),
            conditions: BTreeMap::new(),
            watchpoints: Vec::new(),
            calls: Vec::new(),
            writable: false,
            endless: false,
            message: None,
            greeting: None,
            broken: None,
            progress: None,
            register_reads: 0,
            thread_lists: 0,
            sleeping: Vec::new(),
            cpus: 1,
            stopped: FIRST_CPU,
        }
    }

    fn now(&mut self) -> &mut Moment {
        &mut self.history[self.position]
    }

    /// The stop at a watchpoint that the instruction at this position hits; `None` if it hits none.
    fn watch_hit(&self, position: usize) -> Option<Stop> {
        let (access, address) = self.history[position].access?;
        let hit = self.watchpoints.iter().find(|w| {
            (w.address..w.address + w.length).contains(&address)
                && (w.kind == WatchKind::Access || w.kind == access)
        })?;
        Some(Stop::Watchpoint { kind: hit.kind, address })
    }

    fn breakpoint_hit(&mut self) -> Option<Stop> {
        let Moment { registers, memory, .. } = &self.history[self.position];
        let rip = registers.rip;
        let read = |address: u64, buffer: &mut [u8]| {
            buffer.copy_from_slice(&memory[address as usize..][..buffer.len()]);
            buffer.len()
        };
        let holds = |condition: &Condition| condition.holds(&mut registers.clone(), &read);
        let is_wanted = self.conditions.get(&rip).is_none_or(|conditions| conditions.iter().any(holds));
        (is_wanted && self.breakpoints.contains(&rip)).then_some(Stop::Breakpoint(rip))
    }

    fn run(&mut self, poll: &mut Poll<'_>, step: fn(&mut Self) -> Stop) -> Result<Stop, Refusal> {
        if let Some(sentence) = self.broken {
            return Err(Refusal::new(sentence));
        }
        if self.endless {
            while !poll() {}
            return Ok(Stop::Interrupted);
        }
        loop {
            let stop = step(self);
            if stop != Stop::Step {
                return Ok(stop);
            }
            if let Some(stop) = self.breakpoint_hit() {
                return Ok(stop);
            }
            if poll() {
                return Ok(Stop::Interrupted);
            }
        }
    }

    fn forward(&mut self) -> Stop {
        if self.position + 1 == self.history.len() {
            return Stop::HistoryEnd;
        }
        self.position += 1;
        self.watch_hit(self.position - 1).unwrap_or(Stop::Step)
    }

    fn backward(&mut self) -> Stop {
        if self.position == 0 {
            return Stop::HistoryStart;
        }
        self.position -= 1;
        self.watch_hit(self.position).unwrap_or(Stop::Step)
    }

    fn refuse_unless_writable(&self) -> Result<(), Refusal> {
        if self.writable { Ok(()) } else { Err(Refusal::new("the recorded past cannot be changed")) }
    }
}

fn record() -> Vec<Moment> {
    let mut memory = Arc::new(vec![0; MEMORY_BYTES]);
    Arc::make_mut(&mut memory)[ENTRY as usize..][..PROGRAM.len()].copy_from_slice(PROGRAM);
    let mut registers = Registers {
        rip: ENTRY,
        rsp: 0x8000,
        eflags: 0x202,
        cs: 0x10,
        cr0: 0x8001_0033,
        cr3: 0x0123_4000,
        cr4: 0x620,
        efer: 0xd01,
        gs_base: 0xffff_8880_0000_0000,
        fctrl: 0x37f,
        ftag: 0xffff,
        mxcsr: 0x1f80,
        ..Registers::default()
    };
    // 1.5 as an 80-bit number and as four floats.
    registers.st[0] = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0x3f];
    registers.xmm[1] = 0x3fc0_0000_3fc0_0000_3fc0_0000_3fc0_0000;
    let mut history = Vec::new();
    for _ in 0..=LENGTH {
        let before = (registers.clone(), Arc::clone(&memory));
        let access = execute(&mut registers, &mut memory);
        history.push(Moment { registers: before.0, memory: before.1, access });
    }
    history
}

/// Executes one instruction. Returns the kind and the address of its memory access; `None` if it makes none.
fn execute(registers: &mut Registers, memory: &mut Arc<Vec<u8>>) -> Option<(WatchKind, u64)> {
    let cell = registers.rbx as usize;
    let code = &memory[registers.rip as usize..][..7];
    let (length, access) = match *code {
        [0x48, 0xc7, 0xc3, a, b, c, d] => {
            registers.rbx = i64::from(i32::from_le_bytes([a, b, c, d])) as u64;
            (7, None)
        }
        [0x04, immediate, ..] => {
            registers.rax = registers.rax & !0xff | u64::from((registers.rax as u8).wrapping_add(immediate));
            (2, None)
        }
        [0x88, 0x03, ..] => {
            Arc::make_mut(memory)[cell] = registers.rax as u8;
            (2, Some((WatchKind::Write, registers.rbx)))
        }
        [0x8a, 0x13, ..] => {
            registers.rdx = registers.rdx & !0xff | u64::from(memory[cell]);
            (2, Some((WatchKind::Read, registers.rbx)))
        }
        [0x48, 0xff, 0xc1, ..] => {
            registers.rcx = registers.rcx.wrapping_add(1);
            (3, None)
        }
        [0x90, ..] => (1, None),
        [0xeb, offset, ..] => (2 + i64::from(offset as i8), None),
        _ => panic!("the toy does not know {code:x?}"),
    };
    registers.rip = registers.rip.wrapping_add_signed(length);
    access
}

fn refuse_unless_cpu(thread: Thread) -> Result<(), Refusal> {
    if thread == FIRST_CPU { Ok(()) } else { Err(Refusal::new(NOT_A_CPU)) }
}

impl DebugTarget for Toy {
    fn read_registers(&mut self, thread: Thread) -> Result<Registers, Refusal> {
        if self.sleeping.contains(&thread) || (FIRST_CPU + 1..FIRST_CPU + self.cpus).contains(&thread) {
            return Ok(Registers { rip: u64::from(thread), ..Registers::default() });
        }
        if thread != FIRST_CPU {
            return Err(Refusal::new("no such thread"));
        }
        self.register_reads += 1;
        Ok(self.now().registers.clone())
    }

    fn write_registers(&mut self, thread: Thread, registers: &Registers) -> Result<(), Refusal> {
        self.refuse_unless_writable()?;
        refuse_unless_cpu(thread)?;
        self.now().registers = registers.clone();
        Ok(())
    }

    fn read_memory(&mut self, thread: Thread, address: u64, buffer: &mut [u8]) -> usize {
        if thread != FIRST_CPU {
            buffer.fill(thread as u8);
            return buffer.len();
        }
        let memory = &self.now().memory;
        let available =
            usize::try_from(address).ok().and_then(|start| memory.get(start..)).unwrap_or_default();
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        count
    }

    fn write_memory(&mut self, thread: Thread, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.refuse_unless_writable()?;
        refuse_unless_cpu(thread)?;
        let start = usize::try_from(address).map_err(|_| Refusal::new("no such memory"))?;
        let memory = Arc::make_mut(&mut self.now().memory);
        let place = memory.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or_else(|| Refusal::new("no such memory"))?.copy_from_slice(bytes);
        Ok(())
    }

    fn threads(&mut self) -> Threads {
        self.thread_lists += 1;
        let thread = |&number: &u32| SleepingThread { number, description: format!("task {number}") };
        let sleeping: Vec<_> = self.sleeping.iter().map(thread).collect();
        let running = if sleeping.is_empty() { String::new() } else { "task 1".to_owned() };
        Threads { cpus: vec![running; self.cpus as usize], sleeping }
    }

    fn selected_cpu(&mut self) -> Thread {
        self.stopped
    }

    fn set_breakpoint(&mut self, address: u64) -> Result<(), Refusal> {
        if address == 0xbad {
            return Err(Refusal::new("no breakpoint can be set at 0xbad"));
        }
        assert!(!self.breakpoints.contains(&address), "set twice");
        self.calls.push(format!("set {address:x}"));
        self.breakpoints.push(address);
        Ok(())
    }

    fn clear_breakpoint(&mut self, address: u64) {
        assert!(self.breakpoints.contains(&address), "cleared without being set");
        self.calls.push(format!("clear {address:x}"));
        self.breakpoints.retain(|known| *known != address);
    }

    fn set_conditions(&mut self, address: u64, conditions: &[Condition]) {
        assert!(self.breakpoints.contains(&address), "conditions without a breakpoint");
        self.calls.push(format!("{} conditions {address:x}", conditions.len()));
        self.conditions.remove(&address);
        if !conditions.is_empty() {
            self.conditions.insert(address, conditions.to_vec());
        }
    }

    fn set_watchpoint(&mut self, watchpoint: Watchpoint) -> Result<(), Refusal> {
        assert!(!self.watchpoints.contains(&watchpoint), "set twice");
        self.calls.push(format!("watch {:x}", watchpoint.address));
        self.watchpoints.push(watchpoint);
        Ok(())
    }

    fn clear_watchpoint(&mut self, watchpoint: Watchpoint) {
        assert!(self.watchpoints.contains(&watchpoint), "cleared without being set");
        self.calls.push(format!("unwatch {:x}", watchpoint.address));
        self.watchpoints.retain(|known| *known != watchpoint);
    }

    fn step_forward(&mut self, cpu: Thread, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
        self.stopped = if cpu < FIRST_CPU + self.cpus { cpu } else { FIRST_CPU };
        Ok(self.forward())
    }

    fn step_backward(&mut self, cpu: Thread, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
        self.stopped = if cpu < FIRST_CPU + self.cpus { cpu } else { FIRST_CPU };
        Ok(self.backward())
    }

    fn run_forward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        self.run(poll, Self::forward)
    }

    fn run_backward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        self.run(poll, Self::backward)
    }

    fn monitor(&mut self, command: &str, poll: &mut Poll<'_>) -> Result<String, Refusal> {
        match command {
            "where" => Ok(format!("instruction {}", self.position)),
            "long" => Ok("0123456789abcde\n".repeat(1000)),
            "silent" => Ok(String::new()),
            "wait" => {
                while !poll() {}
                Ok("the client has gone".to_owned())
            }
            unknown => Err(Refusal::new(format!("unknown command: {unknown}"))),
        }
    }

    fn progress(&mut self) -> Box<gdb::Progress> {
        let mut text = self.progress;
        Box::new(move || text.take().map(str::to_owned))
    }

    fn take_greeting(&mut self) -> Option<String> {
        self.greeting.take().map(str::to_owned)
    }

    fn take_message(&mut self) -> Option<String> {
        self.message.take().map(str::to_owned)
    }
}

/// The client's end of a session that runs in another thread.
pub struct Client {
    pub stream: UnixStream,
    server: JoinHandle<(SessionEnd, Toy)>,
}

impl Client {
    pub fn connect(toy: Toy) -> Self {
        let (stream, server) = UnixStream::pair().expect("a pair of sockets");
        // A missing reply fails the test instead of hanging it.
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let server = std::thread::spawn(move || {
            let mut toy = toy;
            let end = serve_stream(server, &mut toy);
            (end, toy)
        });
        Self { stream, server }
    }

    /// Connects and, like gdb, turns acknowledgements off.
    pub fn connect_without_acks(toy: Toy) -> Self {
        let mut client = Self::connect(toy);
        client.request("qSupported:multiprocess+;swbreak+;hwbreak+");
        assert_eq!(client.request("QStartNoAckMode"), "OK");
        client.send_raw(b"+");
        client
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server listens");
    }

    pub fn send(&mut self, body: &[u8]) {
        let packet = packet(body);
        self.send_raw(&packet);
    }

    pub fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).expect("the server replies");
        byte[0]
    }

    /// The next packet from the server, with repetitions expanded. Skips acknowledgements before the packet.
    pub fn reply(&mut self) -> String {
        let mut first = self.byte();
        while first == b'+' {
            first = self.byte();
        }
        assert_eq!(char::from(first), '$');
        let mut body = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                byte => body.push(byte),
            }
        }
        let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let digits = [self.byte(), self.byte()];
        assert_eq!(String::from_utf8_lossy(&digits), format!("{sum:02x}"));
        expand(&body)
    }

    pub fn request(&mut self, body: &str) -> String {
        self.send(body.as_bytes());
        self.reply()
    }

    pub fn rip(&mut self) -> u64 {
        let hex = self.request("p10");
        u64::from_str_radix(&hex, 16).expect("a number").swap_bytes()
    }

    /// Closes the connection. Returns how the session ended, and the target.
    pub fn close(self) -> (SessionEnd, Toy) {
        drop(self.stream);
        self.server.join().expect("the server survives")
    }

    /// Waits for a session that the server ends.
    pub fn ended(self) -> (SessionEnd, Toy) {
        self.server.join().expect("the server survives")
    }
}

pub fn packet(body: &[u8]) -> Vec<u8> {
    let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    [b"$", body, format!("#{sum:02x}").as_bytes()].concat()
}

/// Expands run-length encoded bytes.
fn expand(body: &[u8]) -> String {
    let mut text = Vec::new();
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'*' {
            let count = bytes.next().expect("a repeat count") - 29;
            let last = *text.last().expect("something to repeat");
            text.extend(std::iter::repeat_n(last, count.into()));
        } else {
            text.push(*byte);
        }
    }
    String::from_utf8(text).expect("replies are ASCII here")
}

pub fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
