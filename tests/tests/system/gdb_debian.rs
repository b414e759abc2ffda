//! Runs a long session of an unmodified gdb on a recorded boot of Debian. The session moves in both directions by
//! instruction, by line, by function, and to breakpoints and watchpoints. Between these movements, the session also
//! uses `tt goto`, searches and scratch forks. The test compares each position with a replay in single steps
//! without time travel.

use std::path::Path;

use cpu::WatchKind;
use guest_symbols::{Symbols, elf};
use machine::Machine;
use machine::position::{Count, Instructions};
use machine::script::Script;
use recording::Recording;
use recording::pace::CheckpointOptions;
use tests::gdb::calls::{Activation, Calls};
use tests::gdb::lines::Lines;
use tests::gdb::session::GdbScript;
use tests::gdb::trace::{Place, RAX, RDI, RSP, Trace, Variable, WATCHED, Wanted, Window};
use tests::guests::{BUSYBOX, CLOUD, DEBIAN, Guest, linux_options};
use tests::random::Random;
use tests::record::{open, record_with_checkpoints};
use tests::run::last_lines;

const SEED: u64 = 2;
/// The step count of the recording's end. At this time systemd starts services.
const END: Instructions = Instructions(1_500_000_000);
/// The beginnings of the windows, as shares of the recording.
const WINDOWS: [f64; 4] = [0.55, 0.83, 0.93, 0.98];
const WINDOW_STEPS: usize = 120_000;
/// Functions whose calls the reference finds in the whole recording.
const RARE: [&str; 2] = ["begin_new_exec", "__x64_sys_mount"];
/// Number of random actions in each window.
const ACTIONS: usize = 30;

/// The numbers of the watched variables in a window.
const COUNTED: usize = 0;
const READ: usize = 1;
const STACK: [usize; 3] = [2, 3, 4];

struct Debian {
    recording: Recording<Instructions>,
    symbols: Symbols,
}

fn record_boot(directory: &Path) -> Debian {
    let parameters = "root=/dev/vda mitigations=off cryptomgr.notests";
    let mut options = linux_options(&CLOUD, &BUSYBOX, parameters, 512);
    options.disk = Some(DEBIAN.path());
    let path = directory.join("debian.ttvm");
    let dense = CheckpointOptions {
        interval_ns: 0,
        min_steps: 40_000_000,
        page_rest_steps: 40_000,
        ..CheckpointOptions::default()
    };
    let mut script = Script::silent().with_limit(END);
    let (machine, _) = record_with_checkpoints(&Guest::new(&options), &path, &mut script, dense);
    assert!(script.text().contains("systemd[1]: "), "systemd does not run:\n{}", last_lines(&script));
    let symbols = Symbols::of_guest(&machine).expect("the kernel runs");
    Debian { recording: open(&path), symbols }
}

/// The watched variables of each window: per-CPU variables, and words on the running process's kernel stack.
fn variables(symbols: &Symbols, machine: &Machine<Instructions>) -> [Variable; WATCHED] {
    let address = |name: &str| symbols.address_of(name).unwrap_or_else(|| panic!("the kernel has no {name}"));
    let word = |address: u64| {
        let mut bytes = [0; 8];
        assert_eq!(machine.cpu().core().peek(address, &mut bytes), 8, "{address:#x}");
        u64::from_le_bytes(bytes)
    };
    let base = word(address("__per_cpu_offset"));
    let of_cpu = |name: &str| base.wrapping_add(address(name));
    let stack = word(of_cpu("cpu_current_top_of_stack"));
    let value = |address, bytes| Variable { address, bytes, kind: None };
    [
        Variable { address: of_cpu("__preempt_count"), bytes: 4, kind: Some(WatchKind::Access) },
        Variable { address: of_cpu("current_task"), bytes: 8, kind: Some(WatchKind::Read) },
        value(stack - 0x180, 8),
        value(stack - 0x1f8, 1),
        value(stack - 0x240, 3),
    ]
}

fn trace(debian: &Debian, random: &mut Random) -> Trace {
    let end = debian.recording.log.last_moment().count.number() as f64;
    let mut windows: Vec<_> = WINDOWS.map(|share| ((end * share) as usize, WINDOW_STEPS)).to_vec();
    // A window that ends at the recording's end.
    windows.push((end as usize - 20_000, 20_000));
    let forks: Vec<_> =
        windows.iter().map(|(start, length)| start + 1 + random.below(*length as u64 / 2) as usize).collect();
    let rare = RARE.map(|name| debian.symbols.address_of(name).unwrap_or_else(|| panic!("no {name}")));
    let wanted = Wanted {
        windows: &windows,
        variables: &|machine| variables(&debian.symbols, machine),
        forks: &forks,
        rare: &rare,
    };
    Trace::new(&debian.recording, &wanted)
}

/// The reference for movements by lines and functions. The reference computes the targets of such movements from
/// the trace, as step counts.
struct Reference<'a> {
    trace: &'a Trace,
    calls: &'a Calls,
    lines: &'a Lines,
}

impl Reference<'_> {
    fn rip(&self, step: usize) -> u64 {
        self.trace.window_of(step).expect("it lies in a window").at(step).rip
    }

    /// The number of the activation that executes this instruction, and the activation. `None` if the activation is
    /// interrupted, or if gdb cannot find its frame.
    fn activation(&self, at: usize) -> Option<(usize, &Activation)> {
        let activation = self.calls.running(at)?;
        let is_known = !activation.irregular && self.lines.has(activation.function);
        is_known.then(|| (self.calls.running_number(at).expect("it was just found"), activation))
    }

    /// If a line begins at this step count, returns the number of the activation, the activation, and an index. The
    /// index counts the lines that the activation has executed. Otherwise returns `None`.
    fn line(&self, at: usize) -> Option<(usize, &Activation, usize)> {
        let (number, activation) = self.activation(at)?;
        let visit = self.lines.visits[&number].binary_search(&at).ok()?;
        Some((number, activation, visit))
    }

    fn called_by(&self, caller: usize, calls: std::ops::Range<usize>) -> Option<&Activation> {
        self.calls.activations.iter().find(|a| a.caller == Some(caller) && calls.contains(&a.call))
    }

    fn returned_to(&self, at: usize) -> Option<&Activation> {
        self.calls.activations.iter().find(|a| a.exit == Some(at))
    }

    /// Returns the step count after the return from an activation; `None` if no line of the caller begins at this
    /// step count.
    fn behind(&self, activation: &Activation) -> Option<usize> {
        activation.exit.filter(|&exit| self.line(exit).is_some())
    }

    fn next(&self, at: usize) -> Option<usize> {
        let (number, activation, visit) = self.line(at)?;
        match self.lines.visits[&number].get(visit + 1) {
            // If a line jumps to its own beginning, gdb does not stop there, and the reference does not know the
            // target.
            Some(&after) => (self.rip(after) != self.rip(at)).then_some(after),
            None => self.behind(activation),
        }
    }

    fn step(&self, at: usize) -> Option<usize> {
        let after = self.next(at)?;
        let (number, ..) = self.line(at)?;
        match self.called_by(number, at..after) {
            Some(called) if self.lines.has(called.function) => Some(called.entry),
            _ => Some(after),
        }
    }

    fn until(&self, at: usize) -> Option<usize> {
        let (number, activation, visit) = self.line(at)?;
        let end = self.lines.end_of(activation.function, self.rip(at), self.calls);
        let later = &self.lines.visits[&number][visit + 1..];
        later.iter().copied().find(|&step| self.rip(step) >= end).or_else(|| self.behind(activation))
    }

    fn reverse_next(&self, at: usize) -> Option<usize> {
        let (number, activation, visit) = self.line(at)?;
        let before = self.lines.visits[&number][visit.checked_sub(1)?];
        // `reverse-next` does not stop at a function's first instruction, because the function's frame is not set up
        // there.
        let stops = self.rip(before) != self.rip(at) && self.rip(before) != activation.function;
        stops.then_some(before)
    }

    fn reverse_step(&self, at: usize) -> Option<usize> {
        self.line(at)?;
        match self.returned_to(at) {
            Some(called) if self.lines.has(called.function) => {
                let number = self.calls.running_number(called.entry)?;
                let last = *self.lines.visits[&number].last()?;
                (!called.irregular && self.rip(last) != called.function).then_some(last)
            }
            _ => self.reverse_next(at),
        }
    }

    fn nexti(&self, at: usize) -> Option<usize> {
        let (number, _) = self.activation(at)?;
        match self.called_by(number, at..at + 1) {
            Some(called) => called.exit,
            None => self.activation(at + 1).map(|_| at + 1),
        }
    }

    fn reverse_nexti(&self, at: usize) -> Option<usize> {
        self.activation(at)?;
        match self.returned_to(at) {
            Some(called) => Some(called.call),
            None => self.activation(at - 1).map(|_| at - 1),
        }
    }

    /// gdb stops after a return only if it finds the same frame of the caller as before the call. If no debug
    /// information describes the caller's frame, gdb may find two different frames, and then runs on.
    fn finish(&self, at: usize) -> Option<usize> {
        let exit = self.activation(at)?.1.exit?;
        self.activation(exit).map(|_| exit)
    }

    fn reverse_finish(&self, at: usize) -> Option<usize> {
        let (_, activation) = self.activation(at)?;
        Some(activation.call).filter(|&call| self.trace.window_of(call).is_some())
    }
}

/// The session: the script so far, and the step count `at` at which gdb must be.
struct Session<'a> {
    reference: Reference<'a>,
    script: GdbScript,
    random: Random,
    at: usize,
    window: &'a Window,
    marks: usize,
    /// How often each kind of action was taken.
    taken: std::collections::BTreeMap<&'static str, usize>,
}

/// Returns the expected output of gdb's command [`SHOW`] at a position.
fn shown(step: usize, place: &Place) -> String {
    let Place { rip, gpr, flags, .. } = place;
    format!("at {step} {rip:x} {:x} {:x} {:x} {flags:x}\n", gpr[RAX], gpr[RSP], gpr[RDI])
}

const SHOW: &str = "printf \"at %lu %lx %lx %lx %lx %x\\n\", $_tt_position(), $rip, $rax, $rsp, $rdi, (unsigned int) $eflags";

impl<'a> Session<'a> {
    fn command(&mut self, command: impl Into<String>) {
        self.script.command(command);
    }

    /// Adds a movement, and gdb's expected output after it.
    fn moves(&mut self, command: impl Into<String>, to: usize) {
        self.command(command);
        self.at = to;
        self.show();
    }

    fn show(&mut self) {
        let trace = self.reference.trace;
        let expected = match trace.window_of(self.at) {
            Some(window) => shown(self.at, window.at(self.at)),
            None => format!("at {} ", self.at),
        };
        self.script.ask(SHOW, expected);
    }

    fn goto(&mut self, step: usize) {
        self.moves(format!("tt goto insn:{step}"), step);
    }

    fn place(&self) -> &'a Place {
        self.window.at(self.at)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit.max(1) as u64) as usize
    }

    /// Returns a random step count in the window, not near the window's ends.
    fn anywhere(&mut self) -> usize {
        let room = (self.window.places.len() - 1) / 8;
        self.window.start + room + self.below(self.window.places.len() - 2 * room)
    }

    /// Returns a random step count that is not far before or after the session's position.
    fn elsewhere(&mut self, backward: bool) -> usize {
        let room = if backward { self.at - self.window.start } else { self.window.end() - self.at };
        let distance = 1 + self.below(room.min(20_000) - 1);
        if backward { self.at - distance } else { self.at + distance }
    }

    /// Returns the first step count before or after the session's position at which a condition is true; `None` if
    /// the window has none.
    fn find(&self, backward: bool, holds: impl Fn(usize, &Place) -> bool) -> Option<usize> {
        let holds = |&step: &usize| holds(step, self.window.at(step));
        if backward {
            (self.window.start..self.at).rev().find(holds)
        } else {
            (self.at + 1..=self.window.end()).find(holds)
        }
    }

    fn is_repeated(&self, step: usize) -> bool {
        let rip = self.window.at(step).rip;
        step < self.window.end() && self.window.at(step + 1).rip == rip
            || step > self.window.start && self.window.at(step - 1).rip == rip
    }

    /// Returns the step count of an instruction near the session's position. The instruction is not a repeated
    /// string instruction.
    fn instruction(&mut self, backward: bool) -> usize {
        loop {
            let step = self.elsewhere(backward);
            if !self.is_repeated(step) {
                return step;
            }
        }
    }
}

fn run_word(backward: bool) -> &'static str {
    if backward { "reverse-continue" } else { "continue" }
}

/// A function that returns the target of a movement from a step count; `None` if the reference does not know the
/// target.
type Leads<'a> = fn(&Reference<'a>, usize) -> Option<usize>;

/// The kinds of actions. An action returns `false` if it was not possible at the session's position.
impl<'a> Session<'a> {
    fn steps(&mut self, backward: bool) -> bool {
        let count = 1 + self.below(60);
        let to = if backward { self.at - count } else { self.at + count };
        let word = if backward { "reverse-stepi" } else { "stepi" };
        self.moves(format!("{word} {count}"), to);
        true
    }

    fn breakpoints(&mut self, backward: bool) -> bool {
        let kinds = ["break", "hbreak", "tbreak"];
        let mut addresses = Vec::new();
        for _ in 0..=self.below(2) {
            let step = self.instruction(backward);
            let rip = self.window.at(step).rip;
            let kind = kinds[self.below(kinds.len())];
            self.command(format!("{kind} *{rip:#x}"));
            addresses.push(rip);
        }
        let delete = ["delete", "delete breakpoints"][self.below(2)];
        let hit = self.find(backward, |_, place| addresses.contains(&place.rip));
        self.moves(run_word(backward), hit.expect("it was taken from there"));
        self.command(delete);
        true
    }

    fn counted_breakpoint(&mut self, backward: bool) -> bool {
        let step = self.instruction(backward);
        let rip = self.window.at(step).rip;
        let mut hits = 0;
        let wanted = 1 + self.below(3);
        let steps: Vec<usize> = if backward {
            (self.window.start..self.at).rev().collect()
        } else {
            (self.at + 1..=self.window.end()).collect()
        };
        let to = steps.into_iter().find(|&step| {
            hits += usize::from(self.window.at(step).rip == rip);
            hits == wanted
        });
        let Some(to) = to else { return false };
        self.command(format!("break *{rip:#x}"));
        if wanted > 1 {
            self.command(format!("ignore $bpnum {}", wanted - 1));
        }
        self.moves(run_word(backward), to);
        self.command("delete");
        true
    }

    fn conditional(&mut self, backward: bool) -> bool {
        let step = self.instruction(backward);
        let Place { rip, gpr, top, .. } = *self.window.at(step);
        let (condition, to) = match self.below(3) {
            0 => (
                format!("$rdi == {:#x}", gpr[RDI]),
                self.find(backward, |_, place| place.rip == rip && place.gpr[RDI] == gpr[RDI]),
            ),
            1 => (
                format!("*(unsigned long *) $rsp == {top:#x} && $rsp == {:#x}", gpr[RSP]),
                self.find(backward, |_, place| {
                    place.rip == rip && place.top == top && place.gpr[RSP] == gpr[RSP]
                }),
            ),
            _ => (
                format!("($rax & 0xff) < {:#x}", (gpr[RAX] & 0xff) + 1),
                self.find(backward, |_, place| place.rip == rip && place.gpr[RAX] & 0xff <= gpr[RAX] & 0xff),
            ),
        };
        let to = to.expect("it holds where it was taken from");
        self.command(format!("break *{rip:#x} if {condition}"));
        self.moves(run_word(backward), to);
        self.command("delete");
        true
    }

    /// Finds the next write that changes a variable. Returns the step count before the write in a search backward,
    /// and the step count after the write in a search forward. Returns `None` if the window has no such write.
    fn change(&self, variable: usize, backward: bool) -> Option<usize> {
        let value = |step: usize| self.window.at(step).values[variable];
        if backward {
            self.find(true, |step, _| value(step) != value(step + 1))
        } else {
            self.find(false, |step, _| value(step) != value(step - 1))
        }
    }

    fn watch(&mut self, backward: bool) -> bool {
        let variable = [COUNTED, STACK[0], STACK[1], STACK[2]][self.below(4)];
        let Some(to) = self.change(variable, backward) else { return false };
        self.command(format!("watch {}", self.window.variables[variable].expression()));
        self.moves(run_word(backward), to);
        if let Some(to) = self.change(variable, backward) {
            self.moves(run_word(backward), to);
        }
        // gdb's step also stops if the watched variable changes.
        if let Some(to) = self.change(variable, true)
            && self.at - to < 50
        {
            self.moves("reverse-stepi 50", to);
        }
        self.command("delete");
        true
    }

    /// Runs to the next access of a variable that the single-stepped replay saw.
    fn access(&mut self, backward: bool) -> bool {
        let (variable, word) = [(COUNTED, "awatch"), (READ, "rwatch")][self.below(2)];
        let found = if backward {
            self.find(true, |_, place| place.accesses[variable])
        } else {
            // The search includes the instruction at the session's position.
            (self.at..self.window.end())
                .find(|&step| self.window.at(step).accesses[variable])
                .map(|step| step + 1)
        };
        let Some(to) = found else { return false };
        // If the variable differs from gdb's last value after a read, gdb takes the read for a write.
        if variable == READ && self.window.at(to).values[READ] != self.place().values[READ] {
            return false;
        }
        self.command(format!("{word} {}", self.window.variables[variable].expression()));
        self.moves(run_word(backward), to);
        self.command("delete");
        true
    }

    fn watch_and_break(&mut self, backward: bool) -> bool {
        let step = self.instruction(backward);
        let rip = self.window.at(step).rip;
        let change = self.change(STACK[0], backward);
        let hit = self.find(backward, |_, place| place.rip == rip);
        let nearest = |a: usize, b: usize| if backward { a.max(b) } else { a.min(b) };
        let to = match (change, hit) {
            (Some(change), Some(hit)) => nearest(change, hit),
            (change, hit) => change.or(hit).expect("it was taken from there"),
        };
        self.command(format!("watch {}", self.window.variables[STACK[0]].expression()));
        self.command(format!("hbreak *{rip:#x}"));
        self.moves(run_word(backward), to);
        self.command("delete");
        true
    }

    /// Returns a step count from which the reference knows the target of the movement `leads`; `None` if the search
    /// finds no such step count.
    fn place_for(&mut self, leads: impl Fn(&Reference<'a>, usize) -> Option<usize>) -> Option<usize> {
        let first = self.anywhere();
        let room = (self.window.places.len() - 1) / 8;
        (first..self.window.end() - room).find(|&step| leads(&self.reference, step).is_some())
    }

    /// Moves by lines and functions, as long as the reference knows the targets.
    fn by_lines(&mut self, backward: bool) -> bool {
        let ways: [(&'static str, Leads<'a>); 5] = if backward {
            [
                ("reverse-step", Reference::reverse_step),
                ("reverse-next", Reference::reverse_next),
                ("reverse-nexti", Reference::reverse_nexti),
                ("reverse-finish", Reference::reverse_finish),
                ("reverse-step", Reference::reverse_step),
            ]
        } else {
            [
                ("step", Reference::step),
                ("next", Reference::next),
                ("nexti", Reference::nexti),
                ("finish", Reference::finish),
                ("until", Reference::until),
            ]
        };
        let mut done = false;
        for _ in 0..4 {
            // Choose the movement that was made least often, so that the session makes all movements equally often.
            let often =
                |(word, _): &&(&'static str, Leads<'a>)| self.taken.get(word).copied().unwrap_or_default();
            let &(word, leads) = ways.iter().min_by_key(often).expect("there are some");
            if leads(&self.reference, self.at).is_none() {
                let Some(step) = self.place_for(leads) else { break };
                self.goto(step);
            }
            let to = leads(&self.reference, self.at).expect("it was just asked");
            *self.taken.entry(word).or_default() += 1;
            self.moves(word, to);
            done = true;
        }
        done
    }

    /// Moves to an instruction of the running function, or out of the function.
    fn until_place(&mut self, _backward: bool) -> bool {
        let known =
            |reference: &Reference<'_>, step: usize| reference.finish(step).filter(|exit| exit - step > 20);
        let Some(step) = self.place_for(known) else { return false };
        self.goto(step);
        let exit = self.reference.finish(step).expect("it was just asked");
        let (number, activation) = self.reference.activation(step).expect("it was just asked");
        let later: Vec<usize> = (step + 1..exit)
            .filter(|&later| {
                self.reference.calls.running_number(later) == Some(number) && !self.is_repeated(later)
            })
            .collect();
        assert!(activation.exit == Some(exit));
        let Some(&chosen) = later.get(self.random.below(later.len().max(1) as u64) as usize) else {
            return false;
        };
        let rip = self.window.at(chosen).rip;
        let to = self.find(false, |_, place| place.rip == rip).expect("it was taken from there");
        // The first hit may be in another activation.
        if self.reference.calls.running_number(to) != Some(number) {
            return false;
        }
        let word = ["until", "advance"][self.below(2)];
        self.moves(format!("{word} *{rip:#x}"), to);
        true
    }

    /// Moves by one of the commands `tt back-to` and `tt forward-to`.
    fn back_to(&mut self, backward: bool) -> bool {
        let word = if backward { "tt back-to last-" } else { "tt forward-to next-" };
        match self.below(4) {
            0 => {
                let Some(to) = self.change(STACK[0], backward) else { return false };
                self.moves(format!("{word}change {}", self.window.variables[STACK[0]].expression()), to);
            }
            1 => {
                let step = self.instruction(backward);
                let rip = self.window.at(step).rip;
                let to = self.find(backward, |_, place| place.rip == rip).expect("it was taken from there");
                self.moves(format!("{word}call {rip:#x}"), to);
            }
            2 => {
                let enters = |step: usize| {
                    let (here, next) = (self.window.at(step), self.window.at(step + 1));
                    here.rip >> 63 == 0
                        && next.rip >> 63 == 1
                        && self.reference.trace.code[&here.rip][..2] == [0x0f, 5]
                };
                let to = if backward {
                    self.find(true, |step, _| enters(step))
                } else {
                    (self.at..self.window.end()).find(|&step| enters(step)).map(|step| step + 1)
                };
                let Some(to) = to else { return false };
                self.moves(format!("{word}syscall"), to);
            }
            _ => {
                let variable = &self.window.variables[READ];
                let found = if backward {
                    self.find(true, |_, place| place.accesses[READ])
                } else {
                    (self.at..self.window.end())
                        .find(|&step| self.window.at(step).accesses[READ])
                        .map(|step| step + 1)
                };
                let Some(to) = found else { return false };
                self.moves(format!("{word}read {}", variable.expression()), to);
            }
        }
        true
    }

    /// Asks for a list of hits, goes to one of the hits, and searches from there. List and search do not move the
    /// session.
    fn ask(&mut self, backward: bool) -> bool {
        let step = self.instruction(backward);
        let rip = self.window.at(step).rip;
        let (from, to) = if backward { (step, self.at) } else { (self.at, step) };
        let hits: Vec<usize> = (from..to).filter(|&step| self.window.at(step).rip == rip).collect();
        if hits.is_empty() || hits.len() > 500 {
            return false;
        }
        self.command(format!("tt traps break:{rip:#x} insn:{from} insn:{to}"));
        self.show();
        let number = self.below(hits.len());
        self.moves(format!("tt goto hit:{number}"), hits[number]);
        let before = self.find(true, |_, place| place.rip == rip);
        let after = self.find(false, |_, place| place.rip == rip);
        if let (Some(before), Some(after)) = (before, after) {
            let answer = format!("before: insn:{before} at {rip:#x}\nafter: insn:{after} at {rip:#x}");
            self.script.ask(format!("tt search break:{rip:#x}"), answer);
            self.show();
        }
        true
    }

    fn mark(&mut self, _backward: bool) -> bool {
        let here = self.at;
        self.marks += 1;
        let name = format!("m{}", self.marks);
        self.command(format!("tt mark {name}"));
        let place = self.anywhere();
        self.goto(place);
        self.steps(true);
        self.moves(format!("tt goto mark:{name}"), here);
        true
    }

    /// Makes a scratch fork at the position of a fork in the reference, and steps in this fork.
    fn fork(&mut self, backward: bool) -> bool {
        let Some((&root, fork)) = self.window.forks.iter().next() else { return false };
        self.goto(root);
        self.command(format!("set var $rax = {:#x}", fork.rax));
        self.command(format!("set var *(unsigned long *) {:#x} = {:#x}", fork.wrote.0, fork.wrote.1));
        self.script.ask(SHOW, shown(root, &fork.places[0]));
        let mut at = 1 + self.below(100);
        self.command(format!("stepi {at}"));
        self.script.ask(SHOW, shown(root + at, &fork.places[at]));
        self.script.ask("reverse-stepi", "it only goes forward");
        let chosen = at + 1 + self.below(150);
        let rip = fork.places[chosen].rip;
        if let Some(hit) = (at + 1..fork.places.len()).find(|&step| fork.places[step].rip == rip) {
            self.command(format!("hbreak *{rip:#x}"));
            self.command("continue");
            at = hit;
            self.script.ask(SHOW, shown(root + at, &fork.places[at]));
            self.command("delete");
        }
        if backward {
            self.moves("tt back", root);
        } else {
            let place = self.anywhere();
            self.goto(place);
        }
        true
    }

    /// Lets gdb call two functions of the guest's kernel. Returns `false`, without a call, if the guest runs user code.
    fn call(&mut self, _backward: bool) -> bool {
        let here = self.at;
        // A call by gdb uses the current stack, and a program's stack may have no room. So gdb calls functions only
        // while the kernel runs.
        if self.place().rip >> 63 == 0 {
            return false;
        }
        self.script.ask("print ((unsigned long (*)(unsigned long)) int_sqrt)(1000000)", "= 1000\n");
        self.script.ask("print ((unsigned long (*)(unsigned long, unsigned long)) gcd)(84, 36)", "= 12\n");
        self.moves("tt back", here);
        true
    }
}

type Action<'a> = fn(&mut Session<'a>, bool) -> bool;

impl<'a> Session<'a> {
    const ACTIONS: [(&'static str, Action<'a>); 16] = [
        ("stepi", Session::steps),
        ("break", Session::breakpoints),
        ("ignore", Session::counted_breakpoint),
        ("condition", Session::conditional),
        ("watch", Session::watch),
        ("access", Session::access),
        ("both", Session::watch_and_break),
        ("lines", Session::by_lines),
        ("more lines", Session::by_lines),
        ("even more lines", Session::by_lines),
        ("until", Session::until_place),
        ("tt", Session::back_to),
        ("search", Session::ask),
        ("mark", Session::mark),
        ("fork", Session::fork),
        ("call", Session::call),
    ];

    /// Does `ACTIONS` actions in a window, each kind in turn. Skips an action that is not possible at the session's
    /// position.
    fn look_around(&mut self, window: &'a Window) {
        self.window = window;
        for number in 0..ACTIONS {
            let near_edge = self.at < window.start + 2000 || self.at + 2000 > window.end();
            if !window.contains(self.at) || near_edge || self.below(4) == 0 {
                let place = self.anywhere();
                self.goto(place);
            }
            let backward = self.below(2) == 0;
            let (name, action) = Session::ACTIONS[number % Session::ACTIONS.len()];
            if action(self, backward) {
                *self.taken.entry(name).or_default() += 1;
            }
        }
    }

    /// Makes long movements, backward and forward. The reference for these movements is a replay without time
    /// travel, and not single steps, because single steps would take too long.
    fn travel(&mut self, symbols: &Symbols) {
        let trace = self.reference.trace;
        let address = |name: &str| symbols.address_of(name).expect("it was traced");
        let (mount, exec) = (address("__x64_sys_mount"), address("begin_new_exec"));
        let last_before = |rip: u64, at: usize| trace.rare[&rip].iter().rev().find(|&&hit| hit < at).copied();
        let first_after = |rip: u64, at: usize| trace.rare[&rip].iter().find(|&&hit| hit > at).copied();
        let here = trace.windows[3].start + 500;
        self.goto(here);
        let back = last_before(exec, here).max(last_before(mount, here)).expect("programs were started");
        self.command("hbreak *begin_new_exec");
        self.command("break *__x64_sys_mount");
        self.moves("reverse-continue", back);
        let again = last_before(exec, back).max(last_before(mount, back)).expect("several of them");
        self.moves("reverse-continue", again);
        self.command("delete");
        let earlier = last_before(exec, again).expect("several of them");
        self.moves("tt back-to last-call begin_new_exec", earlier);
        self.command("tbreak *begin_new_exec");
        self.moves("continue", first_after(exec, earlier).expect("it comes from there"));
        let percent = (trace.end as f64 * 0.625) as usize;
        self.moves("tt goto 62.5%", percent);
        let window = &trace.windows[2];
        let place = window.start + window.places.len() / 2;
        let branches = window.at(place).branches;
        let first = (window.start..=place).find(|&step| window.at(step).branches == branches);
        self.moves(format!("tt goto branch:{branches}"), first.expect("it is one of them"));
    }

    /// Goes to both ends of the recording, and tries to step beyond each end.
    fn ends(&mut self) {
        let end = self.reference.trace.end;
        self.moves("tt goto end", end);
        self.script.ask("stepi", "! This is the end of the recording");
        self.moves("reverse-stepi 100", end - 100);
        self.moves("continue", end);
        self.moves("reverse-stepi", end - 1);
        self.moves("tt goto start", 0);
        self.script.ask("reverse-stepi", "! This is the start of the recording");
        self.moves("stepi 10", 10);
        self.moves("reverse-continue", 0);
    }
}

#[test]
fn a_long_session_on_debian_agrees_with_single_stepping() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let debian = record_boot(directory.path());
    let mut random = Random::new(SEED);
    let trace = trace(&debian, &mut random);
    let calls = Calls::new(&trace, &debian.symbols);
    let lines = Lines::new(&trace, &calls);
    assert!(lines.functions() > 50, "gdb has too little to step through: {}", lines.functions());
    let kernel = directory.path().join("vmlinux.sym");
    std::fs::write(&kernel, elf::file(&debian.symbols)).expect("the folder is ours");
    let symbols = [kernel, lines.write(&calls, directory.path())];

    let reference = Reference { trace: &trace, calls: &calls, lines: &lines };
    let window = &trace.windows[0];
    let mut script = GdbScript::default();
    // Single steps must follow the CPU, as in the trace. gdb_steps.rs compares steps that follow their thread.
    script.command("tt step-interrupts on");
    let taken = Default::default();
    let mut session = Session { reference, script, random, at: 0, window, marks: 0, taken };
    for window in &trace.windows[..WINDOWS.len()] {
        session.look_around(window);
    }
    session.travel(&debian.symbols);
    session.ends();
    println!("{} commands, seed {SEED}: {:?}", session.script.len(), session.taken);
    assert!(session.script.len() >= 150, "{}", session.script.len());
    let every = ["step", "next", "nexti", "finish", "until", "watch", "access", "fork", "call"];
    let missing: Vec<_> = every.iter().filter(|kind| !session.taken.contains_key(*kind)).collect();
    assert!(missing.is_empty(), "nothing of the kinds {missing:?} was done: {:?}", session.taken);
    let transcript = session.script.run(&debian.recording, directory.path(), &symbols);
    session.script.check(&transcript);
}
