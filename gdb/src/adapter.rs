//! The protocol library's traits over a [`DebugTarget`].
//!
//! The library splits a movement into a request and a report. At the request, [`Adapter`] only stores the movement. For
//! the report, the session calls [`Adapter::perform`], which moves the target. Each CPU appears as a thread with a
//! name. Sleeping threads of the guest, if the target shows any, can be inspected.

use std::convert::Infallible;
use std::ops::Range;

use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps, MultiThreadSingleStep,
    MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::reverse_exec::{
    ReplayLogPosition, ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints as ext;
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};

use crate::arch::X86_64;
use crate::condition::Condition;
use crate::frame::encode_console_into;
use crate::link::Link;
use crate::registers::RegisterNumber;
use crate::registers::Registers;
use crate::stops::StopSets;
use crate::target::{
    DebugTarget, FIRST_CPU, Progress, Refusal, Stop, Thread, Threads, WatchKind, Watchpoint,
};

/// The sentence that refuses to change a sleeping thread.
pub const NOT_A_CPU: &str = "only a CPU can be changed, not a sleeping thread: select thread 1";

/// The largest number of bytes of a `monitor` answer in one packet. gdb joins the pieces.
const CONSOLE_CHUNK_BYTES: usize = 2048;

/// The protocol uses the host's error numbers. EFAULT and EINVAL have the same numbers on every host.
const EFAULT: u8 = 14;
const EINVAL: u8 = 22;

/// A movement that gdb has asked for.
#[derive(Clone)]
enum Move {
    StepForward(Thread),
    StepBackward(Thread),
    RunForward,
    RunBackward,
    Range(Thread, Range<u64>),
}

pub(crate) struct Adapter<'t> {
    target: &'t mut dyn DebugTarget,
    pub(crate) link: Link<'t>,
    stops: StopSets,
    /// The thread whose registers gdb asked for last at the current position, and its registers; `None` if gdb has not
    /// asked.
    registers: Option<(Thread, Registers)>,
    /// The threads at the current position; `None` until gdb has asked for them.
    threads: Option<Threads>,
    requested: Move,
    /// The thread that gdb has chosen (`Hc`) for requests that do not name their thread; `None` if gdb has chosen none.
    mover: Option<Thread>,
    /// The reason why the current request failed, for the error reply; `None` if it has not failed.
    refusal: Option<Refusal>,
    /// Text that gdb would not show as an error. The text is sent when gdb next listens.
    console: String,
    /// Whether gdb no longer waits for the answer to the current request.
    abandoned: bool,
}

impl<'t> Adapter<'t> {
    pub(crate) fn new(target: &'t mut dyn DebugTarget, link: Link<'t>) -> Self {
        Self {
            target,
            link,
            stops: StopSets::default(),
            registers: None,
            threads: None,
            requested: Move::RunForward,
            mover: None,
            refusal: None,
            console: String::new(),
            abandoned: false,
        }
    }

    /// Moves the target as gdb has asked, and returns the report. If the target refuses, its sentence goes to the
    /// console.
    pub(crate) fn perform(&mut self) -> MultiThreadStopReason<u64> {
        let steps_off = match self.requested {
            Move::StepForward(cpu) | Move::StepBackward(cpu) if self.stops.has_removed() => {
                self.registers_of(cpu).ok().map(|registers| registers.rip)
            }
            _ => None,
        };
        self.forget();
        match self.try_move(steps_off) {
            Ok(stop) => self.reason(stop),
            Err(refusal) => {
                log::warn!("gdb's request failed: {refusal}");
                self.print(&refusal.0);
                MultiThreadStopReason::SignalWithThread { tid: self.selected_cpu(), signal: Signal::SIGZERO }
            }
        }
    }

    /// RBP, RSP and RIP, which gdb reads after every stop, as bytes.
    pub(crate) fn frame_registers(&mut self) -> Vec<(RegisterNumber, [u8; 8])> {
        let cpu = self.target.selected_cpu();
        let Ok(registers) = self.registers_of(cpu) else { return Vec::new() };
        [RegisterNumber::RBP, RegisterNumber::RSP, RegisterNumber::RIP]
            .into_iter()
            .filter_map(|number| {
                let mut bytes = [0; 8];
                number.read(registers, &mut bytes).map(|_| (number, bytes))
            })
            .collect()
    }

    /// Takes the sentence that says why the last request failed, if there is one.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Whether the client has stopped waiting for the answer to this request. The next call returns false.
    pub(crate) fn take_abandoned(&mut self) -> bool {
        std::mem::take(&mut self.abandoned)
    }

    /// Takes the text that gdb must print while it connects, if there is one.
    pub(crate) fn take_greeting(&mut self) -> Option<String> {
        self.target.take_greeting()
    }

    /// Takes the text that gdb must print as soon as it listens.
    pub(crate) fn take_console(&mut self) -> String {
        if let Some(message) = self.target.take_message() {
            self.print(&message);
        }
        std::mem::take(&mut self.console)
    }

    /// Inserts a breakpoint with conditions. The session calls this function, because the library does not know
    /// conditions.
    pub(crate) fn add_conditional(&mut self, address: u64, hardware: bool, conditions: Vec<Condition>) {
        let set = if hardware { &mut self.stops.hardware } else { &mut self.stops.software };
        set.insert(address);
        self.stops.conditions.insert((address, hardware), conditions);
    }

    /// Tells the target that gdb shows this place to its user.
    pub(crate) fn shown(&mut self) {
        self.target.shown();
    }

    /// Removes the client's breakpoints and watchpoints from the target.
    pub(crate) fn finish(&mut self) {
        self.stops.clear(self.target);
    }

    fn try_move(&mut self, steps_off: Option<u64>) -> Result<Stop, Refusal> {
        let Self { target, link, stops, requested, .. } = self;
        stops.apply_all(*target, steps_off)?;
        let mut progress = target.progress();
        let poll = &mut sticky_poll(link, &mut *progress);
        match requested {
            Move::StepForward(cpu) => target.step_forward(*cpu, poll),
            Move::StepBackward(cpu) => target.step_backward(*cpu, poll),
            Move::RunForward => target.run_forward(poll),
            Move::RunBackward => target.run_backward(poll),
            Move::Range(cpu, range) => {
                target.step_range(*cpu, range.clone(), stops.target_breakpoints(), poll)
            }
        }
    }

    /// The CPU that gdb shows.
    pub(crate) fn selected_cpu(&mut self) -> Tid {
        tid_of(self.target.selected_cpu())
    }

    /// Stores the thread that gdb has chosen for requests that do not name their thread; `None` if gdb has chosen no
    /// thread.
    pub(crate) fn choose_mover(&mut self, thread: Option<Thread>) {
        self.mover = thread;
    }

    fn reason(&mut self, stop: Stop) -> MultiThreadStopReason<u64> {
        use MultiThreadStopReason as Reason;
        let tid = self.selected_cpu();
        match stop {
            // `DoneStep` would not do, because its packet has no room for registers.
            Stop::Step => Reason::SignalWithThread { tid, signal: Signal::SIGTRAP },
            // With this signal, gdb does not report that the program received one.
            Stop::Elsewhere => Reason::SignalWithThread { tid, signal: Signal::SIGZERO },
            Stop::Breakpoint(address) if self.is_hardware(address) => Reason::HwBreak(tid),
            Stop::Breakpoint(_) => Reason::SwBreak(tid),
            Stop::Watchpoint { kind, address } => Reason::Watch { tid, kind: to_ext(kind), addr: address },
            Stop::Interrupted => Reason::SignalWithThread { tid, signal: Signal::SIGINT },
            Stop::HistoryStart => Reason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::Begin },
            Stop::HistoryEnd => Reason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::End },
        }
    }

    fn is_hardware(&self, address: u64) -> bool {
        self.stops.hardware.contains(&address) && !self.stops.software.contains(&address)
    }

    /// Drops the cached data of the position that the target leaves.
    fn forget(&mut self) {
        self.registers = None;
        self.threads = None;
    }

    fn threads(&mut self) -> &Threads {
        self.threads.get_or_insert_with(|| self.target.threads())
    }

    fn registers_of(&mut self, thread: Thread) -> Result<&mut Registers, Refusal> {
        let known = match self.registers.take() {
            Some((known, registers)) if known == thread => registers,
            _ => self.target.read_registers(thread)?,
        };
        let (_, registers) = self.registers.insert((thread, known));
        Ok(registers)
    }

    fn set_registers(&mut self, thread: Thread, registers: &Registers) -> Result<(), Refusal> {
        // Read registers back even after success, because a register may not keep all bits of a value.
        self.forget();
        self.target.write_registers(thread, registers)
    }

    fn refused<T>(&mut self, result: Result<T, Refusal>) -> TargetResult<T, Self> {
        result.map_err(|refusal| {
            log::warn!("gdb was refused: {refusal}");
            self.refusal = Some(refusal);
            TargetError::NonFatal
        })
    }

    fn print(&mut self, text: &str) {
        self.console.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.console.push('\n');
        }
    }
}

/// Returns a poll function. The function returns true once the client has sent ^C or has gone, and from then on always.
/// Each call also sends the progress text, if `progress` returns one.
fn sticky_poll(link: &mut Link<'_>, progress: &mut Progress) -> impl FnMut() -> bool {
    let mut asked = false;
    move || {
        if let Some(text) = progress() {
            let mut packet = Vec::new();
            encode_console_into(&mut packet, &text);
            // Ignore errors: a later read finds out that the client has gone.
            let _ = link.send(&packet);
        }
        asked = asked || link.wants_stop();
        asked
    }
}

/// Number of polls between two signs of life, which are packets with an empty text. gdb notices a ^C when it reads a
/// packet.
const POLLS_PER_SIGN: u32 = 4;

/// As [`sticky_poll`], for `monitor` commands. gdb complains if it hears nothing for two seconds, so the poll sends a
/// sign of life from time to time.
///
/// At ^C gdb sends nothing. gdb stops listening for the answer and continues with its next request. Without a ^C, gdb
/// sends no request during a command. So a request that arrives after a sign of life ends the command and sets
/// `abandoned`.
fn patient_poll<'l>(
    link: &'l mut Link<'_>,
    progress: &'l mut Progress,
    abandoned: &'l mut bool,
) -> impl FnMut() -> bool + 'l {
    let (mut asked, mut polls) = (false, 0_u32);
    // The number of requests that had arrived at the first sign of life. Some clients send several requests at once.
    let mut before = None;
    move || {
        progress();
        asked = asked || link.wants_stop();
        if before.is_some_and(|before| link.waiting_packets() > before) {
            (asked, *abandoned) = (true, true);
        }
        polls += 1;
        if polls.is_multiple_of(POLLS_PER_SIGN) && !asked {
            before.get_or_insert(link.waiting_packets());
            // Ignore errors: a later read finds out that the client has gone.
            let _ = link.send(b"$O#4f");
        }
        asked
    }
}

/// The target's number of a thread. No thread has the number 0.
fn number_of(thread: Tid) -> Thread {
    Thread::try_from(thread.get()).unwrap_or(0)
}

fn tid_of(thread: Thread) -> Tid {
    Tid::new(thread as usize).unwrap_or(Tid::MIN)
}

/// The text that gdb shows for a thread beside its number.
fn described(threads: &Threads, thread: Thread) -> String {
    let cpu = thread.checked_sub(FIRST_CPU).map(|cpu| cpu as usize);
    if let Some((cpu, running)) = cpu.and_then(|cpu| Some((cpu, threads.cpus.get(cpu)?))) {
        let running = if running.is_empty() { String::new() } else { format!(", {running}") };
        return format!("vCPU {cpu}{running}");
    }
    let sleeping = threads.sleeping.iter().find(|sleeping| sleeping.number == thread);
    sleeping.map(|sleeping| sleeping.description.clone()).unwrap_or_default()
}

fn to_ext(kind: WatchKind) -> ext::WatchKind {
    match kind {
        WatchKind::Write => ext::WatchKind::Write,
        WatchKind::Read => ext::WatchKind::Read,
        WatchKind::Access => ext::WatchKind::ReadWrite,
    }
}

fn from_ext(kind: ext::WatchKind) -> WatchKind {
    match kind {
        ext::WatchKind::Write => WatchKind::Write,
        ext::WatchKind::Read => WatchKind::Read,
        ext::WatchKind::ReadWrite => WatchKind::Access,
    }
}

impl Target for Adapter<'_> {
    type Arch = X86_64;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, X86_64, Infallible> {
        BaseOps::MultiThread(self)
    }

    fn guard_rail_implicit_sw_breakpoints(&self) -> bool {
        true
    }

    // With `true`, the library would announce fork events to a gdb that has not asked for them.
    fn use_fork_stop_reason(&self) -> bool {
        false
    }

    fn use_vfork_stop_reason(&self) -> bool {
        false
    }

    fn use_vforkdone_stop_reason(&self) -> bool {
        false
    }

    fn support_breakpoints(&mut self) -> Option<ext::BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Adapter<'_> {
    fn read_registers(&mut self, registers: &mut Registers, thread: Tid) -> TargetResult<(), Self> {
        let known = self.registers_of(number_of(thread)).cloned();
        *registers = self.refused(known)?;
        Ok(())
    }

    fn write_registers(&mut self, registers: &Registers, thread: Tid) -> TargetResult<(), Self> {
        let written = self.set_registers(number_of(thread), registers);
        self.refused(written)
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, address: u64, buffer: &mut [u8], thread: Tid) -> TargetResult<usize, Self> {
        match self.target.read_memory(number_of(thread), address, buffer) {
            0 => Err(TargetError::Errno(EFAULT)),
            count => Ok(count.min(buffer.len())),
        }
    }

    fn write_addrs(&mut self, address: u64, bytes: &[u8], thread: Tid) -> TargetResult<(), Self> {
        if bytes.is_empty() {
            // An empty write is gdb's way to check whether the server knows the packet.
            return Ok(());
        }
        let written = self.target.write_memory(number_of(thread), address, bytes);
        if let Err(refusal) = &written {
            // gdb 13 says only that it cannot access the memory, so print the reason, too.
            self.print(&refusal.0);
        }
        self.forget();
        self.refused(written)
    }

    fn list_active_threads(&mut self, report: &mut dyn FnMut(Tid)) -> Result<(), Infallible> {
        let threads = self.threads();
        let cpus = (FIRST_CPU..).zip(&threads.cpus).map(|(number, _)| number);
        let sleeping = threads.sleeping.iter().map(|thread| thread.number);
        cpus.chain(sleeping).filter_map(|number| Tid::new(number as usize)).for_each(report);
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl ThreadExtraInfo for Adapter<'_> {
    fn thread_extra_info(&self, thread: Tid, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let text = self.threads.as_ref().map(|threads| described(threads, number_of(thread)));
        let text = text.unwrap_or_default();
        let count = text.len().min(buffer.len());
        buffer[..count].copy_from_slice(&text.as_bytes()[..count]);
        Ok(count)
    }
}

impl SingleRegisterAccess<Tid> for Adapter<'_> {
    fn read_register(
        &mut self,
        thread: Tid,
        number: RegisterNumber,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let read = self.registers_of(number_of(thread)).map(|registers| number.read(registers, buffer));
        self.refused(read)?.ok_or(TargetError::Errno(EINVAL))
    }

    fn write_register(
        &mut self,
        thread: Tid,
        number: RegisterNumber,
        value: &[u8],
    ) -> TargetResult<(), Self> {
        let thread = number_of(thread);
        let changed = self
            .registers_of(thread)
            .cloned()
            .map(|mut registers| number.write(&mut registers, value).map(|()| registers));
        let registers = self.refused(changed)?.ok_or(TargetError::Errno(EINVAL))?;
        let written = self.set_registers(thread, &registers);
        self.refused(written)
    }
}

impl MultiThreadResume for Adapter<'_> {
    fn resume(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Infallible> {
        self.requested = Move::RunForward;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        // To continue is the default. If another thread steps, its step decides when the movement ends.
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSchedulerLocking for Adapter<'_> {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Infallible> {
        // Scheduler locking changes nothing: the other CPUs execute their recorded instructions anyway.
        Ok(())
    }
}

impl MultiThreadSingleStep for Adapter<'_> {
    fn set_resume_action_step(&mut self, thread: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        self.requested = Move::StepForward(number_of(thread));
        Ok(())
    }
}

impl MultiThreadRangeStepping for Adapter<'_> {
    fn set_resume_action_range_step(&mut self, thread: Tid, start: u64, end: u64) -> Result<(), Infallible> {
        let cpu = number_of(thread);
        self.requested = if start == end { Move::StepForward(cpu) } else { Move::Range(cpu, start..end) };
        Ok(())
    }
}

impl ReverseStep<Tid> for Adapter<'_> {
    fn reverse_step(&mut self, _: Tid) -> Result<(), Infallible> {
        // If gdb has chosen no thread, the library names the first thread. The selected CPU is used instead.
        let cpu = self.mover.unwrap_or_else(|| self.target.selected_cpu());
        self.requested = Move::StepBackward(cpu);
        Ok(())
    }
}

impl ReverseCont<Tid> for Adapter<'_> {
    fn reverse_cont(&mut self) -> Result<(), Infallible> {
        self.requested = Move::RunBackward;
        Ok(())
    }
}

impl ext::Breakpoints for Adapter<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<ext::SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<ext::HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<ext::HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

// The protocol demands that repeated insertion or removal does no harm. So ignore whether an insertion or removal
// changed the set.

impl ext::SwBreakpoint for Adapter<'_> {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.stops.conditions.remove(&(address, false));
        self.stops.software.insert(address);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.stops.conditions.remove(&(address, false));
        self.stops.software.remove(&address);
        Ok(true)
    }
}

impl ext::HwBreakpoint for Adapter<'_> {
    fn add_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.stops.conditions.remove(&(address, true));
        self.stops.hardware.insert(address);
        Ok(true)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.stops.conditions.remove(&(address, true));
        self.stops.hardware.remove(&address);
        Ok(true)
    }
}

impl ext::HwWatchpoint for Adapter<'_> {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: ext::WatchKind,
    ) -> TargetResult<bool, Self> {
        // The range must not be empty or pass the end of the address space.
        let is_range = length.checked_sub(1).and_then(|last| address.checked_add(last)).is_some();
        if is_range {
            self.stops.watchpoints.insert(Watchpoint { address, length, kind: from_ext(kind) });
        }
        Ok(is_range)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: ext::WatchKind,
    ) -> TargetResult<bool, Self> {
        self.stops.watchpoints.remove(&Watchpoint { address, length, kind: from_ext(kind) });
        Ok(true)
    }
}

impl MonitorCmd for Adapter<'_> {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut output: ConsoleOutput<'_>,
    ) -> Result<(), Infallible> {
        let command = String::from_utf8_lossy(command);
        self.forget();
        let mut progress = self.target.progress();
        let answer = {
            let mut poll = patient_poll(&mut self.link, &mut *progress, &mut self.abandoned);
            self.target.monitor(command.trim(), &mut poll)
        };
        self.print(&answer.unwrap_or_else(|refusal| refusal.0));
        let text = self.take_console();
        for chunk in text.as_bytes().chunks(CONSOLE_CHUNK_BYTES) {
            output.write_raw(chunk);
            output.flush();
        }
        Ok(())
    }
}
