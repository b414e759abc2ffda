//! Functions that a program leaves otherwise than by their return: by `longjmp`, by an exception, or from a signal's handler.
//! A run to a return address ends there, where the program lands. A successful `exec` ends such a run, too.
//!
//! The jump itself cannot be waited for. What the program does next where it lands can: it calls a function or returns, and
//! that accesses a return address on the stack from above. Watching the stack makes a run slow, so a long run goes on without
//! that: it looks at the stack whenever the kernel returns to the program. The landing is then looked for, in steps from the last
//! place that was certainly before it.

use cpu::{AddressKind, CodeSize, Traps, WatchKind, Watchpoint};
use gdb::{Poll, Refusal, Stop};

use super::level::{LONGEST_BYTES, Level};
use super::{GdbTarget, refused};
use history::timeline::{Cause, Filter, Stops, TravelStop};
use machine::Machine;
use machine::position::Instructions;

/// Bytes of the stack in which return addresses are looked for.
const STACK_BYTES: usize = 4096;
const WORD_BYTES: u64 = 8;
/// Return addresses that are watched.
const MOST_WATCHED: usize = 8;
/// Instructions during which they are watched.
const WATCHED_STEPS: u64 = 500_000;
/// The lengths of calls through a register or memory, and their opcode.
const INDIRECT_CALL_BYTES: [u64; 5] = [2, 3, 4, 6, 7];
const INDIRECT: u8 = 0xff;
/// The length of a call to a fixed address, and its opcode.
const CALL_BYTES: u64 = 5;
const CALL: u8 = 0xe8;
/// Instructions between the one that sets the stack pointer and the jump.
const STEPS_TO_JUMP: u32 = 64;
const RSP: u8 = 4;

/// The words on the stack, from the stack pointer on.
pub(super) struct StackWords {
    from: u64,
    words: Vec<u64>,
}

impl StackWords {
    /// Those of the code that runs.
    pub fn of(machine: &Machine<Instructions>) -> StackWords {
        let core = machine.cpu().core();
        let from = core.reg64(RSP);
        let mut bytes = vec![0; STACK_BYTES];
        let read = core.peek(from, &mut bytes).min(bytes.len());
        let (words, _) = bytes[..read].as_chunks::<8>();
        StackWords { from, words: words.iter().map(|word| u64::from_le_bytes(*word)).collect() }
    }

    pub fn contain(&self, word: u64) -> bool {
        self.words.contains(&word)
    }
}

/// The functions of a program that a run is to return from, by the places of their return addresses.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    thread: Level,
    /// The page tables of the program.
    tables: u64,
    /// Where the innermost function returns to.
    returns_to: u64,
    /// Where the return addresses are, from the innermost on.
    places: Vec<u64>,
}

impl Frames {
    /// Of the thread that runs, in which a function `returns_to` an address. `None` in the kernel.
    pub fn of(
        thread: &Level,
        words: &StackWords,
        returns_to: u64,
        machine: &Machine<Instructions>,
    ) -> Option<Frames> {
        if !thread.is_program || machine.cpu().core().code_size != CodeSize::Bits64 {
            return None;
        }
        let first = words.words.iter().position(|&word| word == returns_to)?;
        let behind_calls = words.words.iter().enumerate().skip(first + 1);
        let behind_calls = behind_calls.filter(|(_, word)| is_behind_call(machine, **word));
        let numbers = [first].into_iter().chain(behind_calls.map(|(number, _)| number));
        let places = numbers.take(MOST_WATCHED).map(|number| words.from + number as u64 * WORD_BYTES).collect();
        Some(Frames { thread: thread.clone(), tables: thread.tables(machine), returns_to, places })
    }

    /// Stops where the kernel returns to the program, and the functions have certainly been left.
    fn seldom(&self) -> Stops {
        let frames = self.clone();
        let are_left = Filter::new(move |machine| {
            frames.thread.executes_another(frames.tables, machine) || frames.are_left(machine)
        });
        let traps = Traps { returns: true, ..Traps::default() };
        Stops { traps, trap_filter: Some(are_left), ..Stops::default() }
    }

    /// Stops at the first call or return behind the landing, too.
    fn at_once(&self, points: &Stops) -> Stops {
        let mut stops = self.seldom();
        for &place in self.places.iter().filter(|place| !is_watched(points, **place)) {
            let point = Watchpoint {
                space: AddressKind::Linear,
                address: place,
                length: WORD_BYTES,
                kind: WatchKind::Access,
            };
            let frames = self.clone();
            stops.watches.push(point.into());
            stops.watch_filters.insert(place, Filter::new(move |machine| frames.are_left_at(place, machine)));
        }
        stops
    }

    /// The innermost return address, and where it is.
    fn innermost(&self) -> (u64, u64) {
        (self.returns_to, self.places[0])
    }

    /// Whether the program has certainly left the innermost function.
    fn are_left(&self, machine: &Machine<Instructions>) -> bool {
        let (returns_to, place) = self.innermost();
        let is_above = self.is_above(machine) && machine.cpu().rip() != returns_to;
        (is_above || word_at(machine, place).is_some_and(|word| word != returns_to)) && self.runs(machine)
    }

    /// Whether the stack pointer is above the innermost return address, on the same stack.
    fn is_above(&self, machine: &Machine<Instructions>) -> bool {
        let (_, place) = self.innermost();
        machine.cpu().core().reg64(RSP).wrapping_sub(place).wrapping_sub(1) < STACK_BYTES as u64
    }

    /// Whether a call or a return has just accessed this place, and the innermost function was left already.
    fn are_left_at(&self, place: u64, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        let (rip, stack) = (core.rip, core.reg64(RSP));
        let is_innermost = self.places.first() == Some(&place);
        let is_call = stack == place && (!is_innermost || word_at(machine, place) != Some(self.returns_to));
        let is_return = stack == place + WORD_BYTES
            && word_at(machine, place) == Some(rip)
            && !(is_innermost && rip == self.returns_to);
        (is_call || is_return) && self.runs(machine)
    }

    fn runs(&self, machine: &Machine<Instructions>) -> bool {
        self.thread.is_program_of_thread(machine)
    }

    fn is_inside(&self, machine: &Machine<Instructions>) -> bool {
        let (returns_to, place) = self.innermost();
        machine.cpu().core().reg64(RSP) <= place
            && word_at(machine, place) == Some(returns_to)
            && self.runs(machine)
    }
}

impl GdbTarget<'_> {
    /// Runs on to the return address of a function, or to where the program has left it otherwise.
    pub(super) fn run_to_return(&mut self, frames: &Frames, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        let points = self.points();
        let begun = self.timeline.position();
        let thread = &frames.thread;
        let mut stop =
            self.pass_run(thread, frames.at_once(&points), &points, Some(WATCHED_STEPS), poll)?;
        if stop == TravelStop::Reached {
            stop = self.pass_run(thread, frames.seldom(), &points, None, poll)?;
        }
        let is_landing = match stop {
            TravelStop::Hit(Cause::Return) => {
                if thread.executes_another(frames.tables, self.timeline.machine()) {
                    return Ok(self.another_program(thread));
                }
                true
            }
            TravelStop::Hit(Cause::Watch { address, .. }) => {
                frames.places.contains(&address) && !is_watched(&points, address)
            }
            _ => false,
        };
        if !is_landing {
            return self.end_of_pass(thread, stop);
        }
        let landed = self.go_back_to_landing(frames, begun, poll);
        self.timeline.set_stops(points);
        landed
    }

    /// The thread runs another program now.
    pub(super) fn another_program(&mut self, thread: &Level) -> Stop {
        let name = thread.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!("The thread {name} executes another program, which begins here."));
        self.timeline.settle_meanwhile();
        Stop::Elsewhere
    }

    /// Behind the first call or return since functions were left otherwise than by a return: goes back to where the program
    /// landed, behind `begun`.
    fn go_back_to_landing(
        &mut self,
        frames: &Frames,
        begun: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let left = self.timeline.snapshot().map_err(refused)?;
        let end = self.timeline.position();
        let stop = match self.timeline.forked_at() {
            None => self.find_landing(frames, begun, poll)?,
            Some(_) => Stop::Step,
        };
        if stop != Stop::Step || self.timeline.position() >= end {
            self.timeline.return_to(&left).map_err(refused)?;
        }
        if stop == Stop::Interrupted {
            return Ok(stop);
        }
        let name = frames.thread.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!(
            "The thread {name} left the function without its return: by longjmp, an exception or the like. It landed here."
        ));
        self.timeline.settle_meanwhile();
        Ok(Stop::Elsewhere)
    }

    fn find_landing(
        &mut self,
        frames: &Frames,
        begun: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let of_run = frames.clone();
        let is_inside = Filter::new(move |machine: &Machine<Instructions>| {
            machine.moment().count <= begun || of_run.is_inside(machine)
        });
        let traps = Traps { returns: true, ..Traps::default() };
        self.timeline.set_stops(Stops { traps, trap_filter: Some(is_inside), ..Stops::default() });
        match self.timeline.run_backward(poll).map_err(refused)? {
            TravelStop::Interrupted => return Ok(Stop::Interrupted),
            TravelStop::Hit(Cause::Return) if self.timeline.position() >= begun => {
                self.timeline.set_stops(Stops::default());
                self.timeline.step_forward().map_err(refused)?;
            }
            _ => {
                self.timeline.seek(begun, poll).map_err(refused)?;
            }
        }
        let here = self.level();
        let mut from = here.rip;
        let mut jumped = false;
        let mut is_inside = |machine: &Machine<Instructions>| {
            let core = machine.cpu().core();
            jumped = core.rip.wrapping_sub(from).wrapping_sub(1) >= LONGEST_BYTES;
            from = core.rip;
            !(frames.runs(machine) && frames.is_above(machine))
        };
        let stop = self.steps_of_thread(&here, &mut is_inside, poll)?;
        if stop != Stop::Step || jumped {
            return Ok(stop);
        }
        // The stack pointer is set before the jump.
        let here = self.level();
        let (mut from, mut steps) = (here.rip, 0);
        let mut is_before = |machine: &Machine<Instructions>| {
            let rip = machine.cpu().rip();
            let jumped = rip.wrapping_sub(from).wrapping_sub(1) >= LONGEST_BYTES;
            (from, steps) = (rip, steps + 1);
            !jumped && steps < STEPS_TO_JUMP
        };
        self.steps_of_thread(&here, &mut is_before, poll)
    }
}

/// Whether one of the user's watchpoints touches a word.
fn is_watched(points: &Stops, place: u64) -> bool {
    points.watches.iter().any(|watch| {
        let Watchpoint { address, length, .. } = watch.point;
        address < place + WORD_BYTES && place < address.saturating_add(length)
    })
}

fn word_at(machine: &Machine<Instructions>, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = machine.cpu().core().peek(address, &mut bytes);
    (read == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// Whether the instruction before an address calls a function.
fn is_behind_call(machine: &Machine<Instructions>, address: u64) -> bool {
    let code = |back: u64| {
        let mut bytes = [0; 2];
        let read = machine.cpu().core().peek(address.wrapping_sub(back), &mut bytes);
        (read == bytes.len()).then_some(bytes)
    };
    code(CALL_BYTES).is_some_and(|[opcode, _]| opcode == CALL)
        || INDIRECT_CALL_BYTES.iter().any(|&back| code(back).is_some_and(is_indirect_call))
}

/// Whether these are the first bytes of a call through a register or memory (`FF /2`).
fn is_indirect_call([opcode, operand]: [u8; 2]) -> bool {
    opcode == INDIRECT && operand >> 3 & 7 == 2
}
