//! The functions of a program that must return before a run ends. A function is identified by the place of its
//! return address on the stack. This module detects when the program has left these functions.

use cpu::{AddressKind, SegReg, Traps, WatchKind, Watchpoint};

use super::level::Level;
use history::timeline::{Filter, Stops};
use machine::Machine;
use machine::position::Instructions;

/// The number of bytes of the stack that are searched for return addresses.
const STACK_BYTES: usize = 4096;
const WORD_BYTES: u64 = 8;
/// The largest number of watched return addresses.
const MOST_WATCHED: usize = 8;
/// The lengths in bytes of calls through a register or memory. The next constant is their opcode.
const INDIRECT_CALL_BYTES: [u64; 5] = [2, 3, 4, 6, 7];
const INDIRECT: u8 = 0xff;
/// The length in bytes of a call to a fixed address. The next constant is its opcode.
const CALL_BYTES: u64 = 5;
const CALL: u8 = 0xe8;
const RSP: u8 = 4;

/// The words on the stack, from the stack pointer on.
pub(super) struct StackWords {
    from: u64,
    words: Vec<u64>,
}

impl StackWords {
    /// The words on a thread's stack.
    pub fn of(thread: &Level, machine: &Machine<Instructions>) -> StackWords {
        let from = thread.stack;
        let mut bytes = vec![0; STACK_BYTES];
        let read = thread.read(machine, from, &mut bytes).min(bytes.len());
        let (words, _) = bytes[..read].as_chunks::<8>();
        StackWords { from, words: words.iter().map(|word| u64::from_le_bytes(*word)).collect() }
    }

    pub fn contain(&self, word: u64) -> bool {
        self.words.contains(&word)
    }
}

/// The functions of a program that must return before a run ends. A function is identified by the place of its
/// return address on the stack.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    thread: Level,
    /// The root of the program's page tables.
    tables: u64,
    /// The return address of the innermost function.
    returns_to: u64,
    /// The addresses of the return addresses, the innermost first.
    places: Vec<u64>,
}

impl Frames {
    /// The functions of the running thread. The innermost function returns to the address `returns_to`. If `is_entry`
    /// is true, the program has just entered this function. `None` in the kernel.
    pub fn of(
        thread: &Level,
        words: &StackWords,
        (returns_to, is_entry): (u64, bool),
        machine: &Machine<Instructions>,
    ) -> Option<Frames> {
        if !thread.is_program || !is_64_bit(thread, machine) {
            return None;
        }
        // Earlier calls may have left the same word on the stack. The words of earlier calls are nearer to
        // the top of the stack.
        let last = words.words.iter().rposition(|&word| word == returns_to)?;
        let first = if is_entry && words.words[0] == returns_to { 0 } else { last };
        let behind_calls = words.words.iter().enumerate().skip(first + 1);
        let behind_calls = behind_calls.filter(|(_, word)| is_behind_call(thread, machine, **word));
        let numbers = [first].into_iter().chain(behind_calls.map(|(number, _)| number));
        let places =
            numbers.take(MOST_WATCHED).map(|number| words.from + number as u64 * WORD_BYTES).collect();
        Some(Frames { thread: thread.clone(), tables: thread.tables(machine), returns_to, places })
    }

    /// The thread of these functions.
    pub fn thread(&self) -> &Level {
        &self.thread
    }

    /// Whether the thread has executed another program.
    pub fn executes_another(&self, machine: &Machine<Instructions>) -> bool {
        self.thread.executes_another(self.tables, machine)
    }

    /// Whether [`Self::at_once`] watches this place on the stack, and no watchpoint in `points` covers the place.
    pub fn are_watched_at(&self, place: u64, points: &Stops) -> bool {
        self.places.contains(&place) && !is_watched(points, place)
    }

    /// The stops for a fast run. The machine stops when the kernel returns to the program and the program has
    /// certainly left the functions.
    pub fn seldom(&self) -> Stops {
        let frames = self.clone();
        let are_left =
            Filter::new(move |machine| frames.executes_another(machine) || frames.are_left(machine));
        let traps = Traps { returns: true, ..Traps::default() };
        Stops { traps, trap_filter: Some(are_left), ..Stops::default() }
    }

    /// The stops for a slow run. The machine also stops at the first call or return after the program has left the
    /// functions by a jump.
    pub fn at_once(&self, points: &Stops) -> Stops {
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

    /// The innermost return address, and its place on the stack.
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
    pub fn is_above(&self, machine: &Machine<Instructions>) -> bool {
        let (_, place) = self.innermost();
        machine.cpu().core().reg64(RSP).wrapping_sub(place).wrapping_sub(1) < STACK_BYTES as u64
    }

    /// Whether a call or a return has just accessed this place on the stack, after the program left the innermost
    /// function.
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

    pub fn runs(&self, machine: &Machine<Instructions>) -> bool {
        self.thread.is_program_of_thread(machine)
    }

    pub fn is_inside(&self, machine: &Machine<Instructions>) -> bool {
        let (returns_to, place) = self.innermost();
        machine.cpu().core().reg64(RSP) <= place
            && word_at(machine, place) == Some(returns_to)
            && self.runs(machine)
    }
}

/// Whether a program's thread executes 64-bit code.
fn is_64_bit(thread: &Level, machine: &Machine<Instructions>) -> bool {
    let processor = machine.processor_at(thread.processor);
    processor.is_some_and(|processor| processor.state().segments[SegReg::Cs as usize].long())
}

/// Whether one of the user's watchpoints covers a part of the word at `place`.
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
fn is_behind_call(thread: &Level, machine: &Machine<Instructions>, address: u64) -> bool {
    let code = |back: u64| {
        let mut bytes = [0; 2];
        let read = thread.read(machine, address.wrapping_sub(back), &mut bytes);
        (read == bytes.len()).then_some(bytes)
    };
    code(CALL_BYTES).is_some_and(|[opcode, _]| opcode == CALL)
        || INDIRECT_CALL_BYTES.iter().any(|&back| code(back).is_some_and(is_indirect_call))
}

/// Whether these are the first bytes of a call through a register or memory (`FF /2`).
fn is_indirect_call([opcode, operand]: [u8; 2]) -> bool {
    opcode == INDIRECT && operand >> 3 & 7 == 2
}
