//! A guest's activity as a trace for Perfetto: the running threads, system calls, interrupts and exceptions with their
//! durations, and the console's lines.
//!
//! All cores search the recording for these events at once. The results become packets in the order of the run. On a
//! thread's track, slices nest: for example, an interrupt in a page fault in a system call. When a thread returns to
//! its program, all its slices end. A slice ends at one of two addresses in the kernel's code. One is the return from
//! `do_syscall_64` to its caller, the other is the IRET by which all interrupts return.
//!
//! With several processors, each processor has a track with its turns. The trace computes the turns from the ends of
//! turns, and from the time that passes while all processors are halted. An interrupt ends this time, and every
//! interrupt is in the trace. The idle tasks, which all have the number 0, have a track for each processor.
//!
//! Times are guest time. Thread switches are not slices but ftrace events, as Perfetto requires.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cpu::SystemCalls;
use cpu::Traps;
use guest_symbols::NoKernel;
use guest_symbols::tasks::Thread;
use schemars::JsonSchema;
use serde::Serialize;
use syscalls::x86_64::Sysno;

use crate::guest_kernel::{GuestKernel, GuestKernels};
use crate::perfetto::{
    DebugAnnotation, FtraceEvent, FtraceEventBundle, Packets, ProcessDescriptor, SchedSwitch,
    ThreadDescriptor, TracePacket, TrackDescriptor, TrackEvent, kind,
};
use crate::saved_registers::SavedRegisters;
use history::timeline::{Breakpoint, Cause, Hit, Poll, Stops, Timeline};
use machine::error::Error;
use machine::new_file::NewFile;
use machine::position::{Count, Instructions, Moment};
use machine::{Machine, Processor};

/// The kernel's function that switches threads. The function's arguments are the two threads.
const SWITCH: &str = "__switch_to";
/// The instruction that returns from interrupts and exceptions.
const RETURN: &str = "native_irq_return_iret";
/// The largest size of a console line in bytes. Longer lines are cut.
const MAX_LINE_BYTES: usize = 4096;

/// The number of events of each kind in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Counts {
    /// The number of entered system calls.
    pub system_calls: u64,
    /// The number of system calls whose return is in the trace.
    pub system_calls_returned: u64,
    /// The number of exceptions, including page faults.
    pub exceptions: u64,
    /// The number of page faults.
    pub page_faults: u64,
    /// The number of interrupts, which have vectors from 32 on.
    pub interrupts: u64,
    /// The number of switches from one thread to another.
    pub switches: u64,
    /// The number of lines on the console.
    pub console_lines: u64,
    /// The number of threads with any of these events.
    pub threads: u64,
    /// The number of turns of processors, if the machine has several processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
}

/// Writes the trace of a part of a recording to a new path. An error leaves no file behind. `progress` is called with
/// the position several times.
pub fn write(
    timeline: &mut Timeline,
    (from, to): (Instructions, Instructions),
    path: &Path,
    poll: &mut Poll<'_>,
    mut progress: impl FnMut(Instructions),
) -> Result<Counts, Error> {
    let turns = Turns::begin(timeline, from, poll)?;
    let kernels = kernels(timeline, (from, to), poll)?;
    let places: Vec<Places> = kernels.all().iter().map(Places::of).collect();
    let mut file = NewFile::begin(path)?;
    let unwritten = |source| Error::file("write", path)(source);
    let mut stops = Places::stops(&places);
    stops.traps.turns = turns.is_some();
    let packets = Packets::new(BufWriter::new(file.file()));
    let mut trace = Trace::new(packets, turns).map_err(unwritten)?;
    timeline.set_stops(stops);
    let look = |machine: &Machine<Instructions>, hit| {
        let here = kernels.number_at(machine).map(|number| (&kernels.all()[number], &places[number]));
        Note::of(machine, hit, here)
    };
    let mut add = |notes: Vec<Note>| {
        notes.last().iter().for_each(|note| progress(note.at));
        notes.into_iter().try_for_each(|note| trace.add(note)).map_err(unwritten)
    };
    if timeline.each_hit(from..to, usize::MAX, &look, &mut add, poll)?.is_some() {
        return Err(Error::Interrupted);
    }
    timeline.seek(to, poll)?.unless_interrupted()?;
    let counts = trace.finish(timeline.machine().moment()).map_err(unwritten)?;
    file.finish()?;
    Ok(counts)
}

/// Finds the kernels at the beginning of the trace. If no kernel has started at the beginning, finds the kernels at the
/// recording's end.
fn kernels(
    timeline: &mut Timeline,
    (from, to): (Instructions, Instructions),
    poll: &mut Poll<'_>,
) -> Result<GuestKernels, Error> {
    timeline.seek(from, poll)?.unless_interrupted()?;
    if timeline.symbols().is_err() {
        timeline.seek(timeline.end(), poll)?.unless_interrupted()?;
    }
    let kernels = GuestKernels::of(timeline, to.max(timeline.position()), poll)?;
    if kernels.all().is_empty() {
        let why = format!("there is nothing to trace: {NoKernel} at the recording's end");
        return Err(Error::Position(why));
    }
    Ok(kernels)
}

/// The addresses in a kernel at which a trace records events. An address is `None` if the kernel lacks the symbol.
struct Places {
    switch: Option<u64>,
    interrupt_return: Option<u64>,
    call_return: Option<u64>,
}

const NO_PLACES: Places = Places { switch: None, interrupt_return: None, call_return: None };

impl Places {
    fn of(kernel: &GuestKernel) -> Places {
        Places {
            switch: kernel.symbols.address_of(SWITCH),
            interrupt_return: kernel.symbols.address_of(RETURN),
            call_return: kernel.call_return,
        }
    }

    fn stops(all: &[Places]) -> Stops {
        let addresses =
            all.iter().flat_map(|kernel| [kernel.switch, kernel.interrupt_return, kernel.call_return]);
        let addresses: BTreeSet<u64> = addresses.flatten().collect();
        Stops {
            breakpoints: addresses.into_iter().map(Breakpoint::at).collect(),
            traps: Traps {
                system_calls: SystemCalls::All,
                vectors: (0..=u8::MAX).collect(),
                ..Traps::default()
            },
            console: Some(Vec::new()),
            ..Stops::default()
        }
    }
}

/// An event, with its moment, its processor and its thread.
struct Note {
    at: Instructions,
    /// The moment right after the event.
    moment: Moment<Instructions>,
    /// The number of the processor on which the event happened. The next field is the processor that runs after the
    /// event.
    processor: usize,
    next: usize,
    thread: Option<Thread>,
    what: What,
}

enum What {
    SystemCall(u64),
    /// A system call returned. The result is `None` if it could not be read.
    SystemCallReturns(Option<i64>),
    Vector {
        vector: u8,
        interrupted: Option<Interrupted>,
        address: u64,
    },
    /// An interrupt or an exception returned.
    InterruptReturns {
        to_program: bool,
    },
    Switch {
        next: Thread,
        state: char,
    },
    Console(Vec<u8>),
    /// An event that the trace does not show.
    Nothing,
}

/// The code that an interrupt or an exception interrupted.
#[derive(Clone, Copy)]
struct Interrupted {
    rip: u64,
    is_program: bool,
}

impl Note {
    /// Describes a hit. `here` is the kernel that runs at the hit.
    fn of(machine: &Machine<Instructions>, hit: Hit, here: Option<(&GuestKernel, &Places)>) -> Note {
        let (moment, next) = (machine.moment(), machine.cpu().seat());
        let note =
            |thread, what| Note { at: hit.before, moment, processor: hit.processor, next, thread, what };
        if hit.cause == Cause::Turn {
            return note(None, What::Nothing);
        }
        let processor = machine.processor_at(hit.processor);
        let processor = &processor.unwrap_or_else(|| machine.running_processor());
        let (thread, places) =
            here.map_or((None, &NO_PLACES), |(kernel, places)| (kernel.thread(processor), places));
        let what = match hit.cause {
            Cause::SystemCall(number) => What::SystemCall(number),
            Cause::Vector(vector) => {
                let (interrupted, address) = (interrupted(processor, vector), processor.state().cr2);
                What::Vector { vector, interrupted, address }
            }
            Cause::Console(bytes) => {
                let text = machine.console().text();
                What::Console(text[text.len().saturating_sub(bytes)..].to_vec())
            }
            Cause::Breakpoint(at) if Some(at) == places.call_return => {
                let result = SavedRegisters::at_return(processor).map(|saved| saved.result as i64);
                What::SystemCallReturns(result)
            }
            Cause::Breakpoint(at) if Some(at) == places.interrupt_return => {
                What::InterruptReturns { to_program: stack_word(processor, 8).is_some_and(|cs| cs & 3 == 3) }
            }
            Cause::Breakpoint(at) if Some(at) == places.switch => {
                here.map_or(What::Nothing, |(kernel, _)| switch(processor, kernel))
            }
            Cause::Breakpoint(_) | Cause::Watch { .. } | Cause::Return | Cause::Turn => What::Nothing,
        };
        note(thread, what)
    }
}

/// Reads the word at `offset` above the stack pointer.
pub(crate) fn stack_word(processor: &Processor<'_, Instructions>, offset: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let rsp = processor.state().gpr[4];
    (processor.peek(rsp.wrapping_add(offset), &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// The interrupted code, from the state that the processor has just saved on the stack. Returns `None` outside of
/// 64-bit mode.
fn interrupted(processor: &Processor<'_, Instructions>, vector: u8) -> Option<Interrupted> {
    const WITH_ERROR_CODE: [u8; 9] = [8, 10, 11, 12, 13, 14, 17, 21, 30];
    if processor.code_size() != cpu::CodeSize::Bits64 {
        return None;
    }
    let frame = if WITH_ERROR_CODE.contains(&vector) { 8 } else { 0 };
    let (rip, cs) = (stack_word(processor, frame)?, stack_word(processor, frame + 8)?);
    Some(Interrupted { rip, is_program: cs & 3 == 3 })
}

/// The thread switch at the beginning of `__switch_to`, between the threads in its arguments.
fn switch(processor: &Processor<'_, Instructions>, kernel: &GuestKernel) -> What {
    let gpr = processor.state().gpr;
    let (previous, next) = (kernel.thread_at(processor, gpr[7]), kernel.thread_at(processor, gpr[6]));
    match (previous, next) {
        (Some((_, state)), Some((next, _))) => What::Switch { next, state },
        _ => What::Nothing,
    }
}

/// A slice that has begun on a thread's track.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    SystemCall,
    Vector,
}

/// The numbers of tracks, by kind.
mod track {
    pub const CONSOLE: u64 = 1;
    /// The track of events whose thread is not known.
    pub const MACHINE: u64 = 2;
    pub fn process(pid: u32) -> u64 {
        1 << 32 | u64::from(pid)
    }
    pub fn thread(id: u32) -> u64 {
        2 << 32 | u64::from(id)
    }
    /// The idle task of one of several processors.
    pub fn idle(processor: usize) -> u64 {
        3 << 32 | processor as u64
    }
    pub fn processor(number: usize) -> u64 {
        4 << 32 | number as u64
    }
}

/// The turns of several processors up to the last traced event.
struct Turns {
    processors: usize,
    /// The processor that runs at the last traced moment. `None` if all processors are halted at this moment.
    running: Option<usize>,
    last: Moment<Instructions>,
}

impl Turns {
    /// The turn at the beginning of a trace; `None` if the machine has one processor.
    fn begin(
        timeline: &mut Timeline,
        from: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Turns>, Error> {
        let processors = timeline.machine().processors();
        if processors == 1 {
            return Ok(None);
        }
        timeline.seek(from, poll)?.unless_interrupted()?;
        let (machine, last) = (timeline.machine(), timeline.machine().moment());
        let processor = machine.running_processor();
        let running = (!processor.is_halted()).then(|| processor.number());
        Ok(Some(Turns { processors, running, last }))
    }

    /// The time that has passed since the last moment while all processors were halted.
    fn idle_ns(&self, now: Moment<Instructions>) -> u64 {
        let (steps, ns) = (now.count.saturating_since(self.last.count), now.time_ns - self.last.time_ns);
        ns.saturating_sub(steps)
    }
}

/// A trace that is being written.
struct Trace<W: Write> {
    packets: Packets<W>,
    counts: Counts,
    /// The last written name of each track.
    named: BTreeMap<u64, String>,
    open: BTreeMap<u64, Vec<Open>>,
    line: Vec<u8>,
    turns: Option<Turns>,
}

impl<W: Write> Trace<W> {
    fn new(packets: Packets<W>, turns: Option<Turns>) -> io::Result<Trace<W>> {
        let (named, open) = (BTreeMap::new(), BTreeMap::new());
        let counts = Counts { turns: turns.as_ref().map(|_| 0), ..Counts::default() };
        let mut trace = Trace { packets, counts, named, open, line: Vec::new(), turns };
        if let Some(Turns { processors, running, last }) = trace.turns {
            (0..processors).try_for_each(|number| trace.processor_track(number))?;
            running.map_or(Ok(()), |number| trace.begin_turn(number, last.time_ns))?;
        }
        Ok(trace)
    }

    fn add(&mut self, note: Note) -> io::Result<()> {
        self.follow_turn(&note)?;
        let Note { at, moment: Moment { time_ns, .. }, processor, next: _, thread, what } = note;
        match what {
            What::Nothing => Ok(()),
            What::Console(bytes) => self.console(at, time_ns, &bytes),
            What::SystemCall(number) => {
                self.counts.system_calls += 1;
                let name = Sysno::new(number as usize).map(|call| call.name().to_string());
                let name = name.unwrap_or_else(|| format!("system call {number}"));
                let track = self.thread_track(thread.as_ref(), processor)?;
                self.close_all(track, time_ns)?;
                self.begin(track, time_ns, Open::SystemCall, "syscall", name, vec![position(at)])
            }
            What::SystemCallReturns(result) => {
                let track = self.thread_track(thread.as_ref(), processor)?;
                self.end_system_call(track, time_ns, result)
            }
            What::Vector { vector, interrupted, address } => {
                let track = self.thread_track(thread.as_ref(), processor)?;
                self.vector(at, time_ns, track, vector, interrupted, address)
            }
            What::InterruptReturns { to_program } => {
                let track = self.thread_track(thread.as_ref(), processor)?;
                if to_program {
                    return self.close_all(track, time_ns);
                }
                match self.open.get(&track).and_then(|open| open.last()) {
                    Some(Open::Vector) => self.end(track, time_ns, Vec::new()),
                    _ => Ok(()),
                }
            }
            What::Switch { next, state } => {
                thread.map_or(Ok(()), |previous| self.switch(time_ns, processor, &previous, &next, state))
            }
        }
    }

    /// Ends and begins turns up to an event.
    fn follow_turn(&mut self, note: &Note) -> io::Result<()> {
        let Some(turns) = &mut self.turns else { return Ok(()) };
        let (idle_ns, running) = (turns.idle_ns(note.moment), turns.running.replace(note.next));
        turns.last = note.moment;
        let steps = note.moment.count.saturating_since(note.at);
        let begun_ns = note.moment.time_ns.saturating_sub(steps);
        if idle_ns > 0 || running != Some(note.processor) {
            // All processors were halted, and this event is the first after that time.
            running.map_or(Ok(()), |number| self.end_turn(number, begun_ns.saturating_sub(idle_ns)))?;
            self.begin_turn(note.processor, begun_ns)?;
        }
        if note.next != note.processor {
            self.end_turn(note.processor, note.moment.time_ns)?;
            self.begin_turn(note.next, note.moment.time_ns)?;
        }
        Ok(())
    }

    fn begin_turn(&mut self, processor: usize, time_ns: u64) -> io::Result<()> {
        self.counts.turns = self.counts.turns.map(|turns| turns + 1);
        let (track, name) = (track::processor(processor), Some("turn".to_string()));
        self.event(track, time_ns, kind::BEGIN, "turn", name, Vec::new())
    }

    fn end_turn(&mut self, processor: usize, time_ns: u64) -> io::Result<()> {
        self.event(track::processor(processor), time_ns, kind::END, "", None, Vec::new())
    }

    fn vector(
        &mut self,
        at: Instructions,
        time_ns: u64,
        track: u64,
        vector: u8,
        interrupted: Option<Interrupted>,
        address: u64,
    ) -> io::Result<()> {
        let is_interrupt = vector >= FIRST_INTERRUPT;
        *(if is_interrupt { &mut self.counts.interrupts } else { &mut self.counts.exceptions }) += 1;
        let mut annotations = vec![position(at)];
        annotations.extend(interrupted.map(|here| pointer("interrupted at", here.rip)));
        if vector == PAGE_FAULT {
            self.counts.page_faults += 1;
            annotations.push(pointer("address", address));
        }
        if interrupted.is_some_and(|here| here.is_program) {
            self.close_all(track, time_ns)?;
        }
        let category = if is_interrupt { "interrupt" } else { "exception" };
        let name = vector_name(vector);
        // If the thread is not known, the trace has no event for the end of the handler. An NMI's handler ends with
        // another IRET, which is not traced. In both cases, the interrupt is an event without a duration.
        if track == track::MACHINE || vector == NMI {
            return self.instant(track, time_ns, category, name, annotations);
        }
        self.begin(track, time_ns, Open::Vector, category, name, annotations)
    }

    fn switch(
        &mut self,
        time_ns: u64,
        processor: usize,
        previous: &Thread,
        next: &Thread,
        state: char,
    ) -> io::Result<()> {
        self.counts.switches += 1;
        let track = self.thread_track(Some(previous), processor)?;
        self.thread_track(Some(next), processor)?;
        if matches!(state, 'X' | 'Z') {
            self.close_all(track, time_ns)?;
        }
        let switch = SchedSwitch {
            prev_comm: Some(previous.name.clone()),
            prev_pid: Some(previous.id as i32),
            prev_state: Some(state_bits(state)),
            next_comm: Some(next.name.clone()),
            next_pid: Some(next.id as i32),
        };
        let event =
            FtraceEvent { timestamp: Some(time_ns), pid: Some(previous.id), sched_switch: Some(switch) };
        let bundle = FtraceEventBundle { cpu: Some(processor as u32), event: vec![event] };
        self.packets.add(TracePacket { ftrace_events: Some(bundle), ..TracePacket::default() })
    }

    fn console(&mut self, at: Instructions, time_ns: u64, bytes: &[u8]) -> io::Result<()> {
        for &byte in bytes {
            if byte == b'\n' || self.line.len() == MAX_LINE_BYTES {
                self.console_line(Some(at), time_ns)?;
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
        Ok(())
    }

    fn console_line(&mut self, at: Option<Instructions>, time_ns: u64) -> io::Result<()> {
        self.counts.console_lines += 1;
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
        self.named_track(track::CONSOLE, "console", |name| TrackDescriptor {
            uuid: Some(track::CONSOLE),
            name: Some(name),
            ..TrackDescriptor::default()
        })?;
        self.instant(track::CONSOLE, time_ns, "console", text, at.map(position).into_iter().collect())
    }

    /// Describes the track of one of several processors to Perfetto.
    fn processor_track(&mut self, number: usize) -> io::Result<()> {
        self.named_track(track::processor(number), &format!("processor {number}"), |name| TrackDescriptor {
            uuid: Some(track::processor(number)),
            name: Some(name),
            ..TrackDescriptor::default()
        })
    }

    /// The track of the idle task of one of several processors.
    fn idle_track(&mut self, processor: usize, name: &str) -> io::Result<u64> {
        let track = track::idle(processor);
        self.counts.threads += u64::from(!self.named.contains_key(&track));
        self.named_track(track, name, |name| TrackDescriptor {
            uuid: Some(track),
            parent_uuid: Some(track::processor(processor)),
            name: Some(name),
            ..TrackDescriptor::default()
        })?;
        Ok(track)
    }

    /// The track of a thread on a processor. Describes the track to Perfetto if the thread is new or has a new name.
    fn thread_track(&mut self, thread: Option<&Thread>, processor: usize) -> io::Result<u64> {
        let Some(thread) = thread else {
            self.named_track(track::MACHINE, "before the first process", |name| TrackDescriptor {
                uuid: Some(track::MACHINE),
                name: Some(name),
                ..TrackDescriptor::default()
            })?;
            return Ok(track::MACHINE);
        };
        if thread.id == 0 && self.turns.is_some() {
            return self.idle_track(processor, &thread.name);
        }
        let (process, track) = (track::process(thread.process), track::thread(thread.id));
        if thread.id == thread.process {
            self.named_track(process, &thread.name, |name| TrackDescriptor {
                uuid: Some(process),
                process: Some(ProcessDescriptor {
                    pid: Some(thread.process as i32),
                    process_name: Some(name),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        self.counts.threads += u64::from(!self.named.contains_key(&track));
        self.named_track(track, &thread.name, |name| TrackDescriptor {
            uuid: Some(track),
            parent_uuid: Some(process),
            thread: Some(ThreadDescriptor {
                pid: Some(thread.process as i32),
                tid: Some(thread.id.into()),
                thread_name: Some(name),
            }),
            ..TrackDescriptor::default()
        })?;
        Ok(track)
    }

    fn named_track(
        &mut self,
        track: u64,
        name: &str,
        descriptor: impl FnOnce(String) -> TrackDescriptor,
    ) -> io::Result<()> {
        if self.named.get(&track).is_some_and(|known| known == name) {
            return Ok(());
        }
        self.named.insert(track, name.to_string());
        let descriptor = descriptor(name.to_string());
        self.packets.add(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn begin(
        &mut self,
        track: u64,
        time_ns: u64,
        open: Open,
        category: &str,
        name: String,
        annotations: Vec<DebugAnnotation>,
    ) -> io::Result<()> {
        self.open.entry(track).or_default().push(open);
        self.event(track, time_ns, kind::BEGIN, category, Some(name), annotations)
    }

    /// Ends the newest slice on a track.
    fn end(&mut self, track: u64, time_ns: u64, annotations: Vec<DebugAnnotation>) -> io::Result<()> {
        if self.open.get_mut(&track).and_then(Vec::pop).is_none() {
            return Ok(());
        }
        self.event(track, time_ns, kind::END, "", None, annotations)
    }

    fn end_system_call(&mut self, track: u64, time_ns: u64, result: Option<i64>) -> io::Result<()> {
        let Some(open) = self.open.get(&track) else { return Ok(()) };
        let Some(call) = open.iter().rposition(|open| *open == Open::SystemCall) else { return Ok(()) };
        for _ in call + 1..open.len() {
            self.end(track, time_ns, Vec::new())?;
        }
        self.counts.system_calls_returned += 1;
        self.end(track, time_ns, result.map(|value| number("result", value)).into_iter().collect())
    }

    fn close_all(&mut self, track: u64, time_ns: u64) -> io::Result<()> {
        while self.open.get(&track).is_some_and(|open| !open.is_empty()) {
            self.end(track, time_ns, Vec::new())?;
        }
        Ok(())
    }

    fn instant(
        &mut self,
        track: u64,
        time_ns: u64,
        category: &str,
        name: String,
        annotations: Vec<DebugAnnotation>,
    ) -> io::Result<()> {
        self.event(track, time_ns, kind::INSTANT, category, Some(name), annotations)
    }

    fn event(
        &mut self,
        track: u64,
        time_ns: u64,
        kind: i32,
        category: &str,
        name: Option<String>,
        annotations: Vec<DebugAnnotation>,
    ) -> io::Result<()> {
        let event = TrackEvent {
            categories: [category]
                .iter()
                .filter(|text| !text.is_empty())
                .map(|text| text.to_string())
                .collect(),
            r#type: Some(kind),
            track_uuid: Some(track),
            name,
            debug_annotations: annotations,
        };
        let packet =
            TracePacket { timestamp: Some(time_ns), track_event: Some(event), ..TracePacket::default() };
        self.packets.add(packet)
    }

    /// Ends all slices at the end of the trace.
    fn finish(mut self, end: Moment<Instructions>) -> io::Result<Counts> {
        let time_ns = end.time_ns;
        if !self.line.is_empty() {
            self.console_line(None, time_ns)?;
        }
        let tracks: Vec<u64> = self.open.keys().copied().collect();
        tracks.into_iter().try_for_each(|track| self.close_all(track, time_ns))?;
        if let Some(turns) = &self.turns {
            let (running, end_ns) = (turns.running, time_ns.saturating_sub(turns.idle_ns(end)));
            running.map_or(Ok(()), |number| self.end_turn(number, end_ns))?;
        }
        self.packets.finish()?;
        Ok(self.counts)
    }
}

const PAGE_FAULT: u8 = 14;
const NMI: u8 = 2;
const FIRST_INTERRUPT: u8 = 32;

/// The purpose of an interrupt vector in Linux (`arch/x86/include/asm/irq_vectors.h`).
fn vector_name(vector: u8) -> String {
    let name = match vector {
        0 => "divide error",
        1 => "debug",
        NMI => "NMI",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range",
        6 => "invalid opcode",
        7 => "device not available",
        8 => "double fault",
        10 => "invalid TSS",
        11 => "segment not present",
        12 => "stack fault",
        13 => "general protection",
        PAGE_FAULT => "page fault",
        16 => "x87 error",
        17 => "alignment check",
        18 => "machine check",
        19 => "SIMD error",
        0x80 => "int 80h",
        0xec => "local timer",
        0xf6 => "IRQ work",
        0xfb => "function call",
        0xfd => "reschedule",
        0xfe => "APIC error",
        0xff => "spurious interrupt",
        _ if vector >= FIRST_INTERRUPT => return format!("interrupt {vector:#x}"),
        _ => return format!("exception {vector}"),
    };
    name.to_string()
}

/// A thread's state in ftrace's encoding: the bits of `TASK_REPORT`.
fn state_bits(letter: char) -> i64 {
    let states = ['S', 'D', 'T', 't', 'X', 'Z', 'P', 'I'];
    states.iter().position(|&state| state == letter).map_or(0, |number| 1 << number)
}

fn position(at: Instructions) -> DebugAnnotation {
    let position = Some(at.position().short());
    DebugAnnotation { name: Some("position".into()), string_value: position, ..DebugAnnotation::default() }
}

fn pointer(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), pointer_value: Some(value), ..DebugAnnotation::default() }
}

fn number(name: &str, value: i64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), int_value: Some(value), ..DebugAnnotation::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "caller";
    const END: Moment<Instructions> = Moment { count: Instructions(10_000), time_ns: 1_000 };

    fn thread(id: u32, name: &str) -> Thread {
        Thread { id, process: 7, name: name.to_string(), task: 0 }
    }

    /// The traced events, a line each: the time, the kind (`B`egin, `E`nd, `I`nstant), the name and the
    /// annotations.
    fn events(notes: Vec<(u64, u32, What)>) -> (Vec<String>, Counts) {
        let mut bytes = Vec::new();
        let mut trace = Trace::new(Packets::new(&mut bytes), None).unwrap();
        for (time_ns, id, what) in notes {
            trace.add(note(time_ns, Some(thread(id, CALLER)), what)).unwrap();
        }
        let counts = trace.finish(END).unwrap();
        let packets = crate::perfetto::read(&bytes);
        let events =
            packets.iter().filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)));
        let line = |(time, event): (u64, &TrackEvent)| {
            let kind = ["", "B", "E", "I"][event.r#type.unwrap() as usize];
            let id = event.track_uuid.unwrap() & 0xffff_ffff;
            let mut line = format!("{time} {kind} {id}");
            line += &event.name.iter().map(|name| format!(" {name}")).collect::<String>();
            for said in &event.debug_annotations {
                let number = said.int_value.map(|value| value.to_string());
                let pointer = said.pointer_value.map(|value| format!("{value:#x}"));
                let value = number.or(pointer).or(said.string_value.clone()).unwrap();
                line += &format!(" {}={value}", said.name.as_ref().unwrap());
            }
            line
        };
        (events.map(line).collect(), counts)
    }

    #[test]
    fn a_system_call_ends_with_its_result_and_all_within_it_without() {
        let fault = What::Vector {
            vector: PAGE_FAULT,
            interrupted: Some(Interrupted { rip: 0xffff_ffff_8100_0000, is_program: false }),
            address: 0x7000,
        };
        let (lines, counts) = events(vec![
            (1, 8, What::SystemCall(0)),
            (2, 9, What::SystemCall(1)),
            (3, 8, fault),
            (4, 8, What::SystemCallReturns(Some(-2))),
            (5, 9, What::SystemCallReturns(Some(4096))),
            // The result could not be read from memory.
            (6, 8, What::SystemCall(3)),
            (7, 8, What::SystemCallReturns(None)),
            // The call was entered before the trace began.
            (8, 8, What::SystemCallReturns(Some(5))),
            (9, 9, What::SystemCall(60)),
        ]);
        let expected = [
            "1 B 8 read position=insn:10",
            "2 B 9 write position=insn:20",
            "3 B 8 page fault position=insn:30 interrupted at=0xffffffff81000000 address=0x7000",
            "4 E 8",
            "4 E 8 result=-2",
            "5 E 9 result=4096",
            "6 B 8 close position=insn:60",
            "7 E 8",
            "9 B 9 exit position=insn:90",
            "1000 E 9",
        ];
        assert_eq!(lines, expected);
        let expected = Counts {
            system_calls: 4,
            system_calls_returned: 3,
            exceptions: 1,
            page_faults: 1,
            threads: 2,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn what_an_interrupt_interrupted_goes_on_and_a_program_ends_all() {
        let interrupt = |is_program| What::Vector {
            vector: 0xec,
            interrupted: Some(Interrupted { rip: 0x1000, is_program }),
            address: 0,
        };
        let (lines, counts) = events(vec![
            (1, 8, What::SystemCall(0)),
            (2, 8, interrupt(false)),
            (3, 8, What::InterruptReturns { to_program: false }),
            // The track has no open interrupt, because this interrupt began before the trace.
            (4, 8, What::InterruptReturns { to_program: false }),
            (5, 8, interrupt(false)),
            (6, 8, What::InterruptReturns { to_program: true }),
            (7, 8, What::SystemCall(999)),
            (8, 8, interrupt(true)),
            (9, 8, What::InterruptReturns { to_program: true }),
            // A call that never returns.
            (10, 8, What::SystemCall(15)),
            (11, 8, What::SystemCall(1)),
        ]);
        let expected = [
            "1 B 8 read position=insn:10",
            "2 B 8 local timer position=insn:20 interrupted at=0x1000",
            "3 E 8",
            "5 B 8 local timer position=insn:50 interrupted at=0x1000",
            "6 E 8",
            "6 E 8",
            "7 B 8 system call 999 position=insn:70",
            "8 E 8",
            "8 B 8 local timer position=insn:80 interrupted at=0x1000",
            "9 E 8",
            "10 B 8 rt_sigreturn position=insn:100",
            "11 E 8",
            "11 B 8 write position=insn:110",
            "1000 E 8",
        ];
        assert_eq!(lines, expected);
        assert_eq!((counts.interrupts, counts.system_calls, counts.system_calls_returned), (3, 4, 0));
    }

    /// The packets of a trace of these notes.
    fn packets(notes: Vec<Note>) -> (Vec<TracePacket>, Counts) {
        let mut bytes = Vec::new();
        let mut trace = Trace::new(Packets::new(&mut bytes), None).unwrap();
        notes.into_iter().for_each(|note| trace.add(note).unwrap());
        let counts = trace.finish(END).unwrap();
        (crate::perfetto::read(&bytes), counts)
    }

    fn note(time_ns: u64, thread: Option<Thread>, what: What) -> Note {
        let at = Instructions(time_ns * 10);
        Note { at, moment: Moment { count: at, time_ns }, processor: 0, next: 0, thread, what }
    }

    #[test]
    fn a_console_line_ends_at_a_line_feed_or_when_it_is_too_long() {
        let say = |time_ns, text: &[u8]| note(time_ns, None, What::Console(text.to_vec()));
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        let (packets, counts) = packets(vec![
            say(1, b"boot"),
            say(2, b"ing\r\n\nlast"),
            say(3, b"\n"),
            say(4, &long),
            say(5, b"\ny"),
        ]);
        let events =
            packets.iter().filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)));
        let lines: Vec<(u64, String)> =
            events.map(|(time, event)| (time, event.name.clone().unwrap())).collect();
        let expected = [
            (2, "booting".to_string()),
            (2, String::new()),
            (3, "last".to_string()),
            (4, "x".repeat(MAX_LINE_BYTES)),
            (5, "x".to_string()),
            // The last line has no line feed.
            (1_000, "y".to_string()),
        ];
        assert_eq!(lines, expected);
        assert_eq!((counts.console_lines, counts.threads), (6, 0));
        let tracks: Vec<_> = packets.iter().filter_map(|packet| packet.track_descriptor.as_ref()).collect();
        assert_eq!((tracks.len(), tracks[0].uuid, tracks[0].name.as_deref()), (1, Some(1), Some("console")));
        // The last line ends with the trace and not with a line feed, so it has no position.
        let positions = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        let counts: Vec<_> = positions.map(|event| event.debug_annotations.len()).collect();
        assert_eq!(counts, [1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn a_switch_names_both_threads_and_the_state_of_the_previous_one() {
        let (one, two) = (thread(7, "one"), thread(9, "two"));
        let switch =
            |time_ns, previous, state| note(time_ns, previous, What::Switch { next: two.clone(), state });
        let (packets, counts) = packets(vec![
            note(1, Some(one.clone()), What::SystemCall(60)),
            switch(2, Some(one.clone()), 'S'),
            // The slices of a thread that has ended are not continued.
            switch(3, Some(one.clone()), 'X'),
            switch(4, None, 'R'),
        ]);
        let bundles: Vec<_> = packets.iter().filter_map(|packet| packet.ftrace_events.as_ref()).collect();
        assert_eq!((bundles.len(), counts.switches, counts.threads), (2, 2, 2));
        let event = &bundles[0].event[0];
        assert_eq!((bundles[0].cpu, event.timestamp, event.pid), (Some(0), Some(2), Some(7)));
        let expected = SchedSwitch {
            prev_comm: Some("one".to_string()),
            prev_pid: Some(7),
            prev_state: Some(1),
            next_comm: Some("two".to_string()),
            next_pid: Some(9),
        };
        assert_eq!(event.sched_switch, Some(expected));
        assert_eq!(bundles[1].event[0].sched_switch.as_ref().unwrap().prev_state, Some(16));
        let is_end = |packet: &&TracePacket| {
            packet.track_event.as_ref().is_some_and(|event| event.r#type == Some(kind::END))
        };
        let ends: Vec<_> = packets.iter().filter(is_end).map(|packet| packet.timestamp).collect();
        assert_eq!(ends, [Some(3)]);
    }

    #[test]
    fn tracks_are_described_once_and_again_under_a_new_name() {
        let main = Thread { id: 7, process: 7, name: "sh".to_string(), task: 0 };
        let renamed = Thread { name: "ls".to_string(), ..main.clone() };
        let other = thread(8, "worker");
        let calls = [&main, &main, &renamed, &other].map(Clone::clone).into_iter();
        let notes =
            (1..).zip(calls).map(|(time_ns, thread)| note(time_ns, Some(thread), What::SystemCall(0)));
        let (packets, counts) = packets(notes.collect());
        let tracks: Vec<_> = packets.iter().filter_map(|packet| packet.track_descriptor.clone()).collect();
        let process = |name: &str| TrackDescriptor {
            uuid: Some((1 << 32) + 7),
            process: Some(ProcessDescriptor { pid: Some(7), process_name: Some(name.to_string()) }),
            ..TrackDescriptor::default()
        };
        let thread = |id: u32, name: &str| TrackDescriptor {
            uuid: Some((2 << 32) + u64::from(id)),
            parent_uuid: Some((1 << 32) + 7),
            thread: Some(ThreadDescriptor {
                pid: Some(7),
                tid: Some(id.into()),
                thread_name: Some(name.to_string()),
            }),
            ..TrackDescriptor::default()
        };
        let expected = [process("sh"), thread(7, "sh"), process("ls"), thread(7, "ls"), thread(8, "worker")];
        assert_eq!(tracks, expected);
        assert_eq!(counts.threads, 2);
        // The first packet begins the sequence, and all packets belong to it.
        let flags: Vec<_> = packets.iter().map(|packet| packet.sequence_flags).collect();
        assert!(flags[0] == Some(1) && flags[1..].iter().all(Option::is_none));
        assert!(packets.iter().all(|packet| packet.trusted_packet_sequence_id == Some(1)));
    }

    #[test]
    fn events_that_nothing_ends_are_instants() {
        let vector = |vector, is_program| What::Vector {
            vector,
            interrupted: Some(Interrupted { rip: 0x1000, is_program }),
            address: 0,
        };
        let (packets, counts) = packets(vec![
            note(1, None, vector(32, false)),
            note(2, None, vector(31, false)),
            note(3, Some(thread(7, "sh")), vector(NMI, false)),
            note(4, Some(thread(7, "sh")), vector(3, true)),
            note(5, None, What::Nothing),
            note(6, Some(thread(7, "sh")), What::InterruptReturns { to_program: false }),
        ]);
        let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        let events: Vec<_> = events
            .map(|event| {
                let category = event.categories.join(",");
                (event.r#type.unwrap(), category, event.name.clone().unwrap_or_default(), event.track_uuid)
            })
            .collect();
        let (interrupt, exception) = ("interrupt".to_string(), "exception".to_string());
        let (machine, thread) = (Some(track::MACHINE), Some(track::thread(7)));
        let expected = [
            (kind::INSTANT, interrupt, "interrupt 0x20".to_string(), machine),
            (kind::INSTANT, exception.clone(), "exception 31".to_string(), machine),
            (kind::INSTANT, exception.clone(), "NMI".to_string(), thread),
            (kind::BEGIN, exception, "breakpoint".to_string(), thread),
            (kind::END, String::new(), String::new(), thread),
        ];
        assert_eq!(events, expected);
        assert_eq!((counts.interrupts, counts.exceptions, counts.page_faults), (1, 3, 0));
    }

    #[test]
    fn vectors_and_states_have_the_kernels_names_and_bits() {
        let names = [
            (0, "divide error"),
            (1, "debug"),
            (2, "NMI"),
            (3, "breakpoint"),
            (4, "overflow"),
            (5, "bound range"),
            (6, "invalid opcode"),
            (7, "device not available"),
            (8, "double fault"),
            (9, "exception 9"),
            (10, "invalid TSS"),
            (11, "segment not present"),
            (12, "stack fault"),
            (13, "general protection"),
            (14, "page fault"),
            (15, "exception 15"),
            (16, "x87 error"),
            (17, "alignment check"),
            (18, "machine check"),
            (19, "SIMD error"),
            (20, "exception 20"),
            (31, "exception 31"),
            (32, "interrupt 0x20"),
            (0x80, "int 80h"),
            (0xec, "local timer"),
            (0xf6, "IRQ work"),
            (0xfb, "function call"),
            (0xfd, "reschedule"),
            (0xfe, "APIC error"),
            (0xff, "spurious interrupt"),
        ];
        assert!(names.iter().all(|&(vector, name)| vector_name(vector) == name));
        // `include/linux/sched.h`: __TASK_STOPPED is 4, EXIT_DEAD is 16, TASK_PARKED is 64, and so on.
        let bits =
            [('R', 0), ('S', 1), ('D', 2), ('T', 4), ('t', 8), ('X', 16), ('Z', 32), ('P', 64), ('I', 128)];
        assert!(bits.iter().all(|&(letter, bits)| state_bits(letter) == bits));
    }

    /// Three processors. A line for each turn's beginning (`+`) and end (`-`): the time and the processor.
    #[test]
    fn turns_follow_from_their_ends_and_from_idle_time() {
        let moment = |count, time_ns| Moment { count: Instructions(count), time_ns };
        let begin = Turns { processors: 3, running: Some(1), last: moment(100, 100) };
        let mut bytes = Vec::new();
        let mut trace = Trace::new(Packets::new(&mut bytes), Some(begin)).unwrap();
        let idle = Thread { id: 0, process: 0, name: "swapper/2".to_string(), task: 0 };
        let timer = || What::Vector { vector: 0xec, interrupted: None, address: 0 };
        for (count, time_ns, processor, next, thread, what) in [
            // The end of a turn, with another event in the same step.
            (200, 200, 1, 2, Some(thread(7, "sh")), What::SystemCall(0)),
            (250, 250, 2, 0, None, What::Nothing),
            // All processors halt after 300 steps, for 5,000 ns. Then an interrupt wakes the processor 2.
            (301, 5_301, 2, 2, Some(idle.clone()), timer()),
            // All processors halt again, and the same processor wakes.
            (401, 6_401, 2, 2, Some(idle.clone()), timer()),
            (410, 6_410, 2, 2, Some(idle.clone()), What::Switch { next: thread(9, "ls"), state: 'R' }),
        ] {
            let (at, moment) = (Instructions(count - 1), moment(count, time_ns));
            trace.add(Note { at, moment, processor, next, thread, what }).unwrap();
        }
        // At the end, after instruction 450, all processors are halted.
        let counts = trace.finish(moment(450, 7_000)).unwrap();
        let packets = crate::perfetto::read(&bytes);
        let events =
            packets.iter().filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)));
        let turn = |(time, event): (u64, &TrackEvent)| {
            let track = event.track_uuid.unwrap();
            let sign = if event.r#type == Some(kind::BEGIN) { '+' } else { '-' };
            (track >> 32 == 4).then(|| format!("{time}{sign}{}", track & 0xffff_ffff))
        };
        let turns: Vec<_> = events.filter_map(turn).collect();
        let expected =
            ["100+1", "200-1", "200+2", "250-2", "250+0", "300-0", "5300+2", "5400-2", "6400+2", "6450-2"];
        assert_eq!((turns, counts.turns), (expected.map(str::to_string).to_vec(), Some(5)));
        // Each processor has a track. The track of an idle task is a child of its processor's track.
        let tracks = packets.iter().filter_map(|packet| packet.track_descriptor.as_ref());
        let names: Vec<_> = tracks
            .filter_map(|track| Some((track.uuid?, track.name.as_deref()?, track.parent_uuid)))
            .collect();
        let (idle, above) = (3 << 32 | 2, 4 << 32);
        let processors = [(0, "processor 0"), (1, "processor 1"), (2, "processor 2")];
        let processors = processors.map(|(number, name)| (above + number, name, None));
        assert_eq!(names, [&processors[..], &[(idle, "swapper/2", Some(above + 2))]].concat());
        let switch = packets.iter().find_map(|packet| packet.ftrace_events.as_ref()).unwrap();
        assert_eq!((switch.cpu, counts.threads), (Some(2), 3));
    }

    /// The machine's state before an event says what the event interrupts.
    #[test]
    fn the_interrupted_code_is_on_the_stack_below_an_error_code() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, ..) = tiny_guest::linux::programs::record(directory.path(), "r.ttvm", true);
        let mut timeline = Timeline::open(&recording).unwrap();
        let end = timeline.end();
        let mut seen = BTreeSet::new();
        for vector in [3, PAGE_FAULT, 32] {
            let traps = Traps { vectors: [vector].into_iter().collect(), ..Traps::default() };
            timeline.set_stops(Stops { traps, ..Stops::default() });
            let hits = timeline.hits(Instructions(0), end, 20, &mut history::never).unwrap().found;
            timeline.set_stops(Stops::default());
            for hit in hits {
                timeline.seek(hit.before, &mut history::never).unwrap();
                let state = timeline.machine().running_processor().state().clone();
                timeline.step_forward().unwrap();
                let here = interrupted(&timeline.machine().running_processor(), vector).unwrap();
                let is_program = state.segments[1].selector & 3 == 3;
                // The address after INT3 is saved.
                let rip = state.rip + u64::from(vector == 3);
                assert_eq!((here.rip, here.is_program), (rip, is_program), "{vector} at {}", hit.before);
                seen.insert((vector, is_program));
            }
        }
        // The guest's breakpoints are in its kernel, and its timer interrupts the program.
        assert_eq!(seen, BTreeSet::from([(3, false), (PAGE_FAULT, false), (PAGE_FAULT, true), (32, true)]));
        // No interrupt has a frame of 64 bits before the switch to 64-bit mode.
        timeline.seek(Instructions(0), &mut history::never).unwrap();
        assert!(interrupted(&timeline.machine().running_processor(), 32).is_none());
    }

    /// Traces a whole recording of a guest that looks like Linux.
    #[test]
    fn events_of_a_guest_are_read_from_its_registers_and_its_stack() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _, kernel) = tiny_guest::linux::record(directory.path(), "r.ttvm", 2, None);
        let mut timeline = Timeline::open(&recording).unwrap();
        let (whole, path) = ((Instructions(0), timeline.end()), directory.path().join("trace"));
        write(&mut timeline, whole, &path, &mut history::never, |_| {}).unwrap();
        let packets = crate::perfetto::read(&std::fs::read(&path).unwrap());
        let events: Vec<&TrackEvent> =
            packets.iter().filter_map(|packet| packet.track_event.as_ref()).collect();
        let told = |event: &&TrackEvent| {
            let value =
                |said: &DebugAnnotation| said.int_value.or(said.pointer_value.map(|value| value as i64));
            let names = event.debug_annotations.iter().filter(|said| value(said).is_some());
            let texts =
                names.map(|said| format!(" {}={:x}", said.name.as_ref().unwrap(), value(said).unwrap()));
            format!("{}{}", event.name.as_deref().unwrap_or("end"), texts.collect::<String>())
        };
        let told: Vec<String> = events.iter().map(told).collect();
        let breakpoint = kernel.address_of("do_syscall_64") + 5;
        let fault = breakpoint + 5;
        let within = |name: &str, result: &str| {
            [
                name.to_string(),
                format!("breakpoint interrupted at={breakpoint:x}"),
                "end".to_string(),
                format!("page fault interrupted at={fault:x} address=7fff0000"),
                "end".to_string(),
                "call".to_string(),
                format!("end result={result}"),
            ]
        };
        let expected = [within("read", "fffffffffffffffe"), within("write", "5")].concat();
        assert_eq!(told, expected);
        let switches: Vec<_> = packets
            .iter()
            .filter_map(|packet| packet.ftrace_events.as_ref()?.event[0].sched_switch.clone())
            .map(|switch| (switch.prev_pid.unwrap(), switch.prev_state.unwrap(), switch.next_pid.unwrap()))
            .collect();
        // The thread 5 runs, and the thread 6 sleeps as far as its structure says.
        assert_eq!(switches, [(5, 0, 6), (6, 1, 5), (5, 0, 6), (6, 1, 5)]);
    }
}
