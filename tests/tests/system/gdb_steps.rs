//! Tests that steps follow their thread. gdb steps in a program that timer ticks interrupt, and in processes that
//! preempt each other. The test makes many random steps forward and backward, in programs and in the kernel. The
//! test compares these steps with the steps of the same thread in a trace, which has all single steps of the
//! machine.
//!
//! `TTVM_STEPS=10000 cargo test --release -p tests gdb_steps` is the long form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpu::{AddressKind, Hit, Trap, Traps, WatchKind, Watchpoint};
use gdb::DebugTarget;
use gdb_server::GdbTarget;
use guest_symbols::tasks::Tasks;
use history::timeline::{Stops, Timeline};
use machine::Machine;
use machine::config::{MachineOptions, Processors};
use machine::position::Instructions;
use machine::script::Script;
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository, with_files};
use tests::random::Random;
use tests::record::{open, record};
use tests::traveller::Traveller;

/// The default number of compared steps.
const STEPS: u64 = 400;
/// Number of compared steps in one traced stretch.
const STEPS_PER_STRETCH: u64 = 60;
/// The number of steps in a traced stretch.
const STRETCH: u64 = 60_000;
const RSP: u8 = 4;

/// Compiles a program, and returns an initial RAM disk with the program as `/steps`.
fn with_program(directory: &Path, source: &str) -> (PathBuf, PathBuf) {
    let root = directory.join("root");
    std::fs::create_dir(&root).expect("the folder is ours");
    let program = root.join("steps");
    let source = files().join(source);
    let compiled =
        Command::new("gcc").args(["-O0", "-g", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(compiled.expect("gcc must be installed: run scripts/setup").success());
    let initrd = directory.join("initrd.gz");
    with_files(&BUSYBOX, &root, &initrd);
    (program, initrd)
}

fn files() -> PathBuf {
    repository().join("tests/tests/system/steps")
}

/// Records a guest that runs a program. Then gdb runs a script at the recording's end, with the symbols of program
/// and kernel. Returns gdb's output.
fn said_of_program(source: &str, script: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let (program, initrd) = with_program(directory.path(), source);
    let options = linux_options(&CLOUD, &BUSYBOX, "ttvm.run=/steps", 128);
    let guest = Guest::new(&MachineOptions { initrd: Some(initrd), ..options });
    let path = directory.path().join("steps.ttvm");
    let mut console = Script::silent();
    record(&guest, &path, &mut console);
    assert!(console.text().contains("all have ended"), "{}", console.text());
    let commands = [
        format!("add-symbol-file {}", program.display()),
        "tt symbols".to_string(),
        format!("source {}", files().join(script).display()),
    ];
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        gdb.arg("-x").arg(repository().join("gdb/commands/tt.py"));
        batch::attach(&mut gdb, socket, &commands);
        gdb
    })
}

#[test]
fn steps_of_gdb_stay_in_their_process() {
    let said = said_of_program("steps.c", "in_gdb.py");
    let count = |line: &str| said.lines().filter(|said| *said == line).count();
    for (line, times) in [
        ("next {'main': 400} 233", 1),
        ("enough for ticks True", 1),
        ("finish work True True", 3),
        ("nexts {'work': 3} True", 3),
        ("reverse-next work True", 3),
        ("end __switch_to", 1),
        ("breakpoint in a handler asm_sysvec_apic_timer_interrupt", 1),
        ("into asm_sysvec_apic_timer_interrupt", 1),
    ] {
        assert_eq!(count(line), times, "'{line}' in {said}");
    }
    assert!(
        said.contains("reverse-finish work True") && !said.contains("reverse-finish work False"),
        "{said}"
    );
}

/// The program leaves functions by `longjmp`, signals, `fork`, `exec` and the ends of threads.
#[test]
fn steps_of_gdb_follow_what_leaves_without_a_return() {
    const EXPECTED: &str = "
near
next -> jumps near
next -> if (setjmp(near_by) == 0)
says so True
reverse-next -> jumps near
next -> if (setjmp(near_by) == 0)
next -> landed near
reverse-next -> if (setjmp(near_by) == 0)
reverse-next -> jumps near
back at the call True
next -> x++;
finish -> if (setjmp(near_by) == 0)
next -> landed near
reverse-next -> x++;
far
next -> jumps far
next -> if (setjmp(far_out) == 0)
reverse-next -> calls passes
reverse-next -> calls passes
reverse-next -> calls lands_far
reverse-next -> part = 1;
signal
next {'is_interrupted'} 14
reverse-next {'is_interrupted'} 0
step {'is_interrupted'} 14
reverse-step {'is_interrupted'} 0
next -> in the handler
finish -> __restore_rt
next -> was interrupted
reverse-next -> in the handler
reverse-next -> is long
next -> was long
next -> is left by a handler
next -> if (sigsetjmp(out_of_handler, 1) == 0)
next -> left by a handler
reverse-next -> is left by a handler
processes
next -> if (child == 0) {
is the parent True
reverse-next -> _Fork
says so True
next -> _start
says so True
next -> ends
next -> __switch_to
says so True
next -> the thread ends
next -> start_thread
no fork True
";
    let said = said_of_program("leaving.c", "leaving.py");
    let first: Vec<&str> = EXPECTED.lines().skip(1).collect();
    let is_told = |line: &&str| {
        ["says so", "back at the call", "is the parent", "no fork"]
            .iter()
            .any(|begin| line.starts_with(begin))
            || ["near", "far", "signal", "processes"].contains(line)
            || ["next ", "step ", "finish ", "reverse-"].iter().any(|begin| line.starts_with(begin))
    };
    let told: Vec<&str> = said.lines().filter(is_told).collect();
    assert_eq!(told, first, "{said}");
}

/// The kinds of CPU steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Instruction,
    /// The delivery of an interrupt, a fault or a breakpoint exception.
    Event,
    Return,
}

/// The machine between two CPU steps, and the next step.
#[derive(Clone, Copy, Debug)]
struct Row {
    task: u64,
    is_program: bool,
    rip: u64,
    rsp: u64,
    kind: Kind,
    /// The first bytes of the instruction.
    code: [u8; 3],
    /// The value on top of the stack.
    top: u64,
    /// For the return of a handler, the row of the event that called the handler. For an event, the row after the
    /// return of its handler. `None` for other rows, or if the trace does not have that row.
    twin: Option<usize>,
}

impl Row {
    fn of(machine: &Machine<Instructions>, tasks: Option<&Tasks>) -> Row {
        let core = machine.cpu().core();
        let (mut code, mut top) = ([0; 3], [0; 8]);
        core.peek(core.rip, &mut code);
        core.peek(core.reg64(RSP), &mut top);
        Row {
            task: tasks.map_or(0, |tasks| tasks.running(machine).expect("the kernel runs")),
            is_program: core.cpl == 3,
            rip: core.rip,
            rsp: core.reg64(RSP),
            kind: Kind::Instruction,
            code,
            top: u64::from_le_bytes(top) & mask(machine),
            twin: None,
        }
    }

    fn is_same_place(&self, other: &Row) -> bool {
        (self.task, self.is_program, self.rip, self.rsp)
            == (other.task, other.is_program, other.rip, other.rsp)
    }

    fn is_call(&self) -> bool {
        self.code[0] == 0xe8
            || self.code[0] == 0xff && self.code[1] & 0x38 == 0x10
            || self.code[0] == 0x41 && self.code[1] == 0xff && self.code[2] & 0x38 == 0x10
    }

    fn is_return(&self) -> bool {
        self.code[0] == 0xc3
    }
}

/// The mask for a value on the stack: 64 bits in 64-bit mode, else 32 bits.
fn mask(machine: &Machine<Instructions>) -> u64 {
    if machine.cpu().core().code_size == cpu::CodeSize::Bits64 { u64::MAX } else { u32::MAX.into() }
}

/// Single steps of the whole machine.
struct Trace {
    from: Instructions,
    rows: Vec<Row>,
}

impl Trace {
    fn take(timeline: &mut Timeline, tasks: Option<&Tasks>, from: Instructions) -> Trace {
        timeline.set_stops(Stops::default());
        timeline.seek(from, &mut || false).unwrap_or_else(|error| panic!("{error}"));
        let traps = Traps { vectors: (0..=u8::MAX).collect(), returns: true, ..Traps::default() };
        timeline.set_stops(Stops { traps, ..Stops::default() });
        let mut rows = vec![Row::of(timeline.machine(), tasks)];
        // For each thread, the numbers of the rows at which it was interrupted, until the handler returns.
        let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        while (rows.len() as u64) < STRETCH && timeline.position() < timeline.end() {
            timeline.step_forward().unwrap_or_else(|error| panic!("{error}"));
            // The step may have ended the processor's turn. So read the state of the processor that executed the
            // step, not of the next processor.
            let after = timeline.look_as_stepped(|machine| Row::of(machine, tasks));
            let machine = timeline.machine();
            let now = Row::of(machine, tasks);
            let number = rows.len() - 1;
            let last = rows.last_mut().expect("there is one");
            let hits = machine.cpu().hits();
            let vector = hits.iter().find_map(|hit| match hit {
                Hit::Trap(Trap::Vector(vector)) => Some(*vector),
                _ => None,
            });
            let is_return = hits.contains(&Hit::Trap(Trap::Return));
            if let Some(vector) = vector {
                let width = u64::from(mask(machine).count_ones() / 8);
                let code = if [8, 10, 11, 12, 13, 14, 17, 21, 29, 30].contains(&vector) { width } else { 0 };
                let mut saved = [0; 8];
                timeline.look_as_stepped(|machine| machine.cpu().core().peek(after.rsp + code, &mut saved));
                let saved = u64::from_le_bytes(saved) & mask(timeline.machine());
                if saved == last.rip || vector == 3 {
                    last.kind = Kind::Event;
                    open.entry(after.task).or_default().push(number);
                }
            }
            let mut twin = None;
            if is_return {
                last.kind = Kind::Return;
                let task = last.task;
                let top = open.get(&task).and_then(|open| open.last().copied());
                let leads_there = |&event: &usize| {
                    let at = &rows[event];
                    at.is_program == after.is_program
                        && (after.is_program || at.rsp.abs_diff(after.rsp) <= 16)
                };
                if let Some(event) = top.filter(leads_there) {
                    open.get_mut(&task).expect("it has some").pop();
                    rows[event].twin = Some(number + 1);
                    twin = Some(event);
                }
            }
            rows[number].twin = rows[number].twin.or(twin);
            rows.push(now);
        }
        // After a handler's return, other processors may run before the interrupted thread goes on. So take the
        // thread's next row.
        for event in 0..rows.len() {
            if rows[event].kind == Kind::Event
                && let Some(behind) = rows[event].twin
            {
                rows[event].twin = (behind..rows.len()).find(|&row| rows[row].task == rows[event].task);
            }
        }
        Trace { from, rows }
    }

    /// Whether the row's thread is at the row's position already at the earlier step count `found`. The condition
    /// is true if only other threads execute steps between `found` and the row.
    fn stands_at(&self, found: u64, row: usize) -> bool {
        let other = found.wrapping_sub(self.from.0) as usize;
        let task = self.rows[row].task;
        (1..row).contains(&other)
            && self.rows[other - 1].task == task
            && self.rows[other..row].iter().all(|row| row.task != task)
    }

    fn place(&self, row: usize) -> Instructions {
        self.from + row as u64
    }

    /// Whether the step count `found` is the position of a row of the trace. If an instruction faults, the step
    /// counts before the fault and after its handler are the same position. The reason is that a breakpoint at the
    /// instruction has only one hit.
    fn is_place(&self, found: u64, row: usize) -> bool {
        let other = found.wrapping_sub(self.from.0) as usize;
        let are_twins = |event: usize, behind: usize| {
            let event = self.rows.get(event);
            event.is_some_and(|at| at.twin == Some(behind) && at.is_same_place(&self.rows[behind]))
        };
        other == row || are_twins(other, row) || other < self.rows.len() && are_twins(row, other)
    }

    /// Returns the row of the thread after its next instruction, or `None` if the trace does not have this row.
    fn next(&self, mut row: usize) -> Option<usize> {
        let task = self.rows.get(row)?.task;
        loop {
            let at = &self.rows[row];
            if at.kind != Kind::Event {
                return (row + 1..self.rows.len()).find(|&other| self.rows[other].task == task);
            }
            let behind = at.twin?;
            if !self.rows[behind].is_same_place(at) {
                return Some(behind);
            }
            row = behind;
        }
    }

    /// Returns the row of the thread before its previous instruction, or `None` if the trace does not have this
    /// row.
    fn previous(&self, mut row: usize) -> Option<usize> {
        let task = self.rows[row].task;
        loop {
            let before = (0..row).rev().find(|&other| self.rows[other].task == task)?;
            let at = &self.rows[before];
            match at.kind {
                Kind::Return => match at.twin {
                    Some(event) if self.rows[event].is_same_place(&self.rows[row]) => row = event,
                    Some(event) => return Some(event),
                    // The instruction returns from a handler that began before the trace, or from a
                    // system call.
                    None if self.is_of_system_call(before) => return Some(before),
                    None => return None,
                },
                _ => return Some(before),
            }
        }
    }

    /// Whether the return at this row is SYSRET.
    fn is_of_system_call(&self, row: usize) -> bool {
        matches!(self.rows[row].code, [0x0f, 0x07, _] | [0x48, 0x0f, 0x07])
    }

    /// Whether the step before this row was a function's return.
    fn is_behind_return(&self, row: usize) -> bool {
        row > 0 && self.rows[row - 1].is_return()
    }

    /// The first row of the same thread after `row` for which `holds` returns true; `None` if the trace has none.
    fn first_behind(&self, row: usize, holds: impl Fn(&Row) -> bool) -> Option<usize> {
        let task = self.rows[row].task;
        (row + 1..self.rows.len()).find(|&other| self.rows[other].task == task && holds(&self.rows[other]))
    }
}

/// A kind of step of gdb. For each step, gdb lets the server make single steps and run to breakpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Forward,
    Backward,
    OverCall,
    BackOverCall,
    Finish,
}

const ALL: [Step; 5] = [Step::Forward, Step::Backward, Step::OverCall, Step::BackOverCall, Step::Finish];

/// A run to a breakpoint: the breakpoint's address, and the row at which the run must end.
struct Run {
    address: u64,
    end: usize,
}

impl Step {
    /// The two parts of a step from a row: a single step to a row, and then a run to a breakpoint. `None` if the target
    /// is not known, or if this kind of step is not possible at the row.
    fn expected(self, trace: &Trace, row: usize) -> Option<(Option<usize>, Option<Run>)> {
        let rows = &trace.rows;
        match self {
            Step::Forward => Some((Some(trace.next(row)?), None)),
            Step::Backward => Some((Some(trace.previous(row)?), None)),
            Step::OverCall => {
                let inside = trace.next(row).filter(|_| rows[row].is_call())?;
                let (address, rsp) = (rows[inside].top, rows[inside].rsp);
                let end = trace.first_behind(inside, |at| at.rip == address && at.rsp > rsp)?;
                Some((Some(inside), Some(Run { address, end })))
            }
            Step::BackOverCall => {
                let inside = trace.previous(row).filter(|&before| rows[before].is_return())?;
                let (task, rsp) = (rows[inside].task, rows[inside].rsp);
                let is_call = |&at: &usize| {
                    rows[at].task == task && rows[at].is_call() && rows[at].rsp.wrapping_sub(8) == rsp
                };
                let call = (0..inside).rev().find(is_call)?;
                let address = rows[trace.next(call)?].rip;
                let is_entry =
                    |&at: &usize| rows[at].task == task && rows[at].rip == address && rows[at].rsp >= rsp;
                let end = (0..inside).rev().find(is_entry)?;
                Some((Some(inside), Some(Run { address, end })))
            }
            Step::Finish => {
                let rsp = rows[row].rsp;
                let mut at = row;
                // Look for the return of the row's frame, on the same stack.
                while !(rows[at].is_return() && rows[at].rsp >= rsp && rows[at].rsp - rsp < 4000) {
                    at = trace.next(at)?;
                    if at > row + 5000 || rows[at].is_program != rows[row].is_program {
                        return None;
                    }
                }
                let address = rows[at].top;
                let end = trace.first_behind(row, |at| at.rip == address && at.rsp > rsp)?;
                Some((None, Some(Run { address, end })))
            }
        }
    }

    /// Makes the step: first a single step, if `steps` is true, and then the run to a breakpoint. Returns the stops
    /// as text.
    fn make(self, target: &mut GdbTarget<'_>, steps: bool, run: Option<&Run>) -> String {
        let poll = &mut || false;
        let is_back = matches!(self, Step::Backward | Step::BackOverCall);
        let mut stops = Vec::new();
        if steps {
            let cpu = target.selected_cpu();
            stops.push(if is_back {
                target.step_backward(cpu, poll)
            } else {
                target.step_forward(cpu, poll)
            });
        }
        if let Some(run) = run {
            target.set_breakpoint(run.address).expect("it can be set");
            stops.push(if is_back { target.run_backward(poll) } else { target.run_forward(poll) });
            target.clear_breakpoint(run.address);
        }
        format!("{stops:?}")
    }
}

/// Records a shell, with programs that begin and end, pipes, signals, faults and waits.
fn record_shell(path: &Path) {
    let commands = [
        "n=0; trap 'n=$((n + 1))' USR1; i=0; while [ $((i += 1)) -lt 100 ]; do kill -USR1 $$; done; echo begin $n",
        "for i in 1 2 3 4 5; do ls /proc | while read name; do :; done; (sleep 0.01; echo $i) & wait; done",
        "yes | head -n 20000 | wc -l",
        "poweroff -f",
    ];
    let guest = Guest::linux(&CLOUD, &BUSYBOX, "", 128);
    record(&guest, path, &mut Script::shell(&commands));
}

#[test]
fn random_steps_are_those_of_the_thread_alone() {
    let wanted = steps_wanted();
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("shell.ttvm");
    record_shell(&path);
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_stops(Stops { console: Some(b"\n$ ".to_vec()), ..Stops::default() });
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let tasks = Tasks::of_guest(timeline.machine()).expect("it is known");
    let place = tasks.place_of_current(timeline.machine()).expect("it is there");
    // Use the positions of thread switches after the programs begin, because errors in steps are likely near a
    // switch.
    let space = AddressKind::Linear;
    let switch = Watchpoint { space, address: place, length: 8, kind: WatchKind::Write };
    timeline.set_stops(Stops { watches: vec![switch.into()], ..Stops::default() });
    let from = Instructions(timeline.end().0 / 10 * 8);
    let hits = timeline.hits(from, timeline.end() - STRETCH, 100_000, &mut || false);
    let switches: Vec<_> = hits.unwrap_or_else(|error| panic!("{error}")).found;
    assert!(switches.len() > 200, "{}", switches.len());

    let places: Vec<_> = switches.iter().map(|switch| switch.before).collect();
    let of_kind = compare(&mut timeline, Some(&tasks), &places, wanted);
    assert!(of_kind.len() >= 7 || wanted < STEPS, "{of_kind:?}");
}

/// In this test, the threads wait for each other, and move between several processors.
#[test]
fn random_steps_stay_in_their_thread_across_processors() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("processors.ttvm");
    let commands = [
        "for i in 1 2 3; do (n=0; while [ $((n += 1)) -lt 300 ]; do echo $n; done | while read m; do :; done) & done; wait",
        "for i in 1 2 3 4 5 6; do (yes | head -n 2000 | sort | wc -l) & done; wait",
        "poweroff -f",
    ];
    let guest = Guest::new(&MachineOptions {
        processors: Processors::new(4).expect("it is a number of processors"),
        ..linux_options(&CLOUD, &BUSYBOX, "", 128)
    });
    record(&guest, &path, &mut Script::shell(&commands));
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.seek(timeline.end(), &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let tasks = Tasks::of_guest(timeline.machine()).expect("it is known");
    timeline.set_stops(Stops { traps: Traps { turns: true, ..Traps::default() }, ..Stops::default() });
    let from = Instructions(timeline.end().0 / 10 * 8);
    let hits = timeline.hits(from, timeline.end() - STRETCH, 100_000, &mut || false);
    let turns: Vec<_> = hits.unwrap_or_else(|error| panic!("{error}")).found;
    assert!(turns.len() > 500, "{}", turns.len());
    let places: Vec<_> = turns.iter().map(|turn| turn.before).collect();
    let of_kind = compare(&mut timeline, Some(&tasks), &places, steps_wanted());
    assert!(of_kind.len() >= 7 || steps_wanted() < STEPS, "{of_kind:?}");
}

/// If ttvm does not know the guest's kernel, ttvm recognizes a thread only by the stack pointer.
#[test]
fn random_steps_of_an_unknown_kernel_pass_interrupts() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let traveller = Traveller::record(directory.path());
    let mut timeline = Timeline::open(&open(&traveller.path)).unwrap_or_else(|error| panic!("{error}"));
    let traps = Traps { vectors: (32..=u8::MAX).collect(), ..Traps::default() };
    timeline.set_stops(Stops { traps, ..Stops::default() });
    let hits = timeline.hits(Instructions(0), timeline.end(), 10_000, &mut || false);
    let hits = hits.unwrap_or_else(|error| panic!("{error}")).found;
    let is_inside = |at: &Instructions| at.0 > STRETCH && *at + STRETCH < timeline.end();
    let places: Vec<_> = hits.iter().map(|hit| hit.before).filter(is_inside).collect();
    assert!(places.len() > 5, "{}", places.len());
    let of_kind = compare(&mut timeline, None, &places, STEPS / 2);
    assert!(of_kind.len() >= 2, "{of_kind:?}");
}

fn steps_wanted() -> u64 {
    let wanted = std::env::var("TTVM_STEPS").ok();
    wanted.map_or(STEPS, |text| text.parse().expect("TTVM_STEPS is a number of steps"))
}

/// Makes random steps near some of these positions, and compares the steps' targets with a trace. Returns the
/// number of steps of each kind, in the kernel and in programs.
fn compare(
    timeline: &mut Timeline,
    tasks: Option<&Tasks>,
    places: &[Instructions],
    wanted: u64,
) -> BTreeMap<(String, bool), u64> {
    let seed = std::env::var("TTVM_SEED").map_or(1, |text| text.parse().expect("a number"));
    let mut random = Random::new(seed);
    let (mut made, mut of_kind) = (0, BTreeMap::new());
    while made < wanted {
        let place = places[random.below(places.len() as u64) as usize];
        let trace = Trace::take(timeline, tasks, place - random.below(STRETCH));
        let special: Vec<usize> = (1..trace.rows.len())
            .filter(|&row| {
                let (before, at) = (&trace.rows[row - 1], &trace.rows[row]);
                before.kind != Kind::Instruction || before.task != at.task
            })
            .collect();
        timeline.set_stops(Stops::default());
        let mut target = GdbTarget::new(timeline);
        let (mut done, mut tries) = (0, 0);
        while done < STEPS_PER_STRETCH && tries < 20 * STEPS_PER_STRETCH {
            tries += 1;
            let mut row = random.below(trace.rows.len() as u64) as usize;
            if random.below(2) == 0 && !special.is_empty() {
                let near = special[random.below(special.len() as u64) as usize];
                row = (near + random.below(5) as usize).saturating_sub(2).min(trace.rows.len() - 1);
            }
            let step = ALL[random.below(ALL.len() as u64) as usize];
            // Look for the next call, because few instructions are calls.
            row = match step {
                Step::OverCall => (row..trace.rows.len()).find(|&row| trace.rows[row].is_call()),
                Step::BackOverCall => (row..trace.rows.len()).find(|&row| trace.is_behind_return(row)),
                _ => Some(row),
            }
            .unwrap_or(row);
            let Some((steps, run)) = step.expected(&trace, row) else { continue };
            let begin = trace.place(row);
            target.monitor(&format!("goto insn:{begin}"), &mut || false).expect("it is a place");
            let said = step.make(&mut target, steps.is_some(), run.as_ref());
            let end = run.map(|run| run.end).or(steps).expect("it leads somewhere");
            let answer = target.monitor("position", &mut || false).expect("it has one");
            let found: u64 = answer.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
            let is_parked = step == Step::Forward && trace.stands_at(found, end);
            assert!(
                trace.is_place(found, end) || is_parked,
                "{found} instead of {}, seed {seed}, step {made}: {step:?} from {begin}, {:x?}: {said}, instead of {:x?}",
                trace.place(end),
                trace.rows[row],
                trace.rows[end]
            );
            *of_kind.entry((format!("{step:?}"), trace.rows[row].is_program)).or_insert(0) += 1;
            (done, made) = (done + 1, made + 1);
        }
    }
    println!("{of_kind:?}");
    of_kind
}
