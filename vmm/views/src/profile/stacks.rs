//! Follows the calls on all stacks of the guest's kernel, and counts instructions by the path of calls.
//!
//! An [`Observer`] is told of the kernel's calls and returns. A call adds a frame to its stack, and a return removes all
//! frames below the new stack pointer. So frames end too if the kernel leaves several functions at once. A jump to the
//! first instruction of another function replaces the function of the innermost frame. The instructions between two such
//! events belong to the innermost function of the current stack.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use cpu::{At, Calls, Core, Happening, Observer, Wants};
use rustc_hash::FxHashMap;

/// The number of bits by which a stack pointer is shifted to get its stack. The kernel's stacks have 16 KiB.
const STACK_SHIFT: u32 = 14;
/// The largest number of paths. The instructions of further paths count for the path that they continue.
const MOST_PATHS: usize = 1 << 20;
const RSP: u8 = 4;

/// The path without functions: programs, and code of the kernel that no call has entered.
pub const OUTSIDE: u32 = 0;

/// Functions that called one another: a path of calls from an outermost function.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The number of the path without the last function.
    pub before: u32,
    /// The address of the last function.
    pub function: u64,
    /// The number of instructions that the last function executed itself.
    pub own: u64,
}

/// A function that has not returned.
struct Frame {
    /// The address of the word with the return address.
    slot: u64,
    /// The return address.
    back: u64,
    path: u32,
}

/// The observer.
pub struct Stacks {
    /// All paths. Each path comes after the path that it continues.
    pub paths: Vec<Path>,
    /// The number of calls of each function.
    pub calls: FxHashMap<u64, u64>,
    /// Whether there were too many paths.
    pub is_cut: bool,
    /// The first addresses of the kernel's functions.
    functions: Arc<BTreeSet<u64>>,
    longer: FxHashMap<(u32, u64), u32>,
    stacks: Vec<Vec<Frame>>,
    numbers: FxHashMap<u64, usize>,
    /// The current stack of each processor, as its number and its shifted address.
    current: Vec<(usize, u64)>,
    /// The number of steps that are counted.
    counted: u64,
}

impl Stacks {
    /// An observer of a part that begins at a step. `functions` has the first addresses of the kernel's functions.
    pub fn from(step: u64, functions: BTreeSet<u64>) -> Stacks {
        Stacks {
            functions: Arc::new(functions),
            paths: vec![Path { before: OUTSIDE, function: 0, own: 0 }],
            calls: FxHashMap::default(),
            is_cut: false,
            longer: FxHashMap::default(),
            stacks: vec![Vec::new()],
            numbers: FxHashMap::default(),
            current: Vec::new(),
            counted: step,
        }
    }

    /// Counts the steps before a place for the innermost function on a processor.
    pub fn count(&mut self, processor: usize, until: u64) {
        let stack = self.current.get(processor).and_then(|(number, _)| self.stacks[*number].last());
        let path = stack.map_or(OUTSIDE, |frame| frame.path);
        self.paths[path as usize].own += until - self.counted;
        self.counted = until;
    }

    /// The stack of a processor.
    fn select(&mut self, processor: usize, rsp: u64) -> &mut Vec<Frame> {
        let key = rsp >> STACK_SHIFT;
        if self.current.len() <= processor {
            self.current.resize(processor + 1, (0, 0));
        }
        if self.current[processor].1 != key {
            let next = self.stacks.len();
            let number = *self.numbers.entry(key).or_insert(next);
            if number == next {
                self.stacks.push(Vec::new());
            }
            self.current[processor] = (number, key);
        }
        &mut self.stacks[self.current[processor].0]
    }

    /// The path that continues a path with a function.
    fn longer(&mut self, before: u32, function: u64) -> u32 {
        if let Some(known) = self.longer.get(&(before, function)) {
            return *known;
        }
        if self.paths.len() >= MOST_PATHS {
            self.is_cut = true;
            return before;
        }
        let number = self.paths.len() as u32;
        self.paths.push(Path { before, function, own: 0 });
        self.longer.insert((before, function), number);
        number
    }

    fn call(&mut self, processor: usize, rsp: u64, to: u64, back: u64) {
        let stack = self.select(processor, rsp);
        while stack.last().is_some_and(|frame| frame.slot <= rsp) {
            stack.pop();
        }
        let before = stack.last().map_or(OUTSIDE, |frame| frame.path);
        let path = self.longer(before, to);
        *self.calls.entry(to).or_default() += 1;
        self.select(processor, rsp).push(Frame { slot: rsp, back, path });
    }

    /// A jump to the first instruction of another function, which replaces the function. At such a jump, the stack pointer
    /// points to the return address. At all other jumps of this kind, for example in the code that returns from an
    /// interrupt, it points elsewhere.
    fn jumped(&mut self, processor: usize, rsp: u64, to: u64) {
        let stack = self.select(processor, rsp);
        while stack.last().is_some_and(|frame| frame.slot < rsp) {
            stack.pop();
        }
        let Some(frame) = stack.pop_if(|frame| frame.slot == rsp) else { return };
        let Path { before, function, .. } = self.paths[frame.path as usize];
        let path = if function == to { frame.path } else { self.longer(before, to) };
        *self.calls.entry(to).or_default() += 1;
        self.select(processor, rsp).push(Frame { path, ..frame });
    }

    /// A return. If a function has changed its return address, the return is a jump to another function. So the thunk
    /// works that Linux calls to jump to the address in a register (`arch/x86/lib/retpoline.S`).
    fn returned(&mut self, processor: usize, rsp: u64, to: u64) {
        let stack = self.select(processor, rsp);
        let mut left = None;
        while stack.last().is_some_and(|frame| frame.slot < rsp) {
            left = stack.pop();
        }
        // Linux' code for exceptions moves the return address down before it returns.
        left = left.or_else(|| stack.pop_if(|frame| frame.back == to));
        let jumps = left.is_some_and(|left| left.back != to);
        let Some(thunk) = stack.pop_if(|_| jumps) else { return };
        let Path { before, function, .. } = self.paths[thunk.path as usize];
        if let Some(count) = self.calls.get_mut(&function) {
            *count -= 1;
        }
        *self.calls.entry(to).or_default() += 1;
        let path = self.longer(before, to);
        self.select(processor, rsp).push(Frame { path, ..thunk });
    }
}

impl Observer for Stacks {
    fn wants(&self) -> Wants {
        Wants { calls: Calls::UpperHalf, jumps_to: self.functions.clone(), ..Wants::default() }
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        let (processor, rsp) = (core.processor, core.reg64(RSP));
        self.count(processor, at.step + 1);
        match *happening {
            Happening::Call { to, back } => self.call(processor, rsp, to, back),
            Happening::Return { to } => self.returned(processor, rsp, to),
            Happening::Jump { to } => self.jumped(processor, rsp, to),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: u64 = 0xffff_c900_0000_3f00;

    /// The instructions of each function with its callers, from the outermost on.
    fn paths(stacks: &Stacks) -> Vec<(Vec<u64>, u64)> {
        let name = |number: usize| {
            let (mut at, mut path) = (number, Vec::new());
            while at != OUTSIDE as usize {
                path.insert(0, stacks.paths[at].function);
                at = stacks.paths[at].before as usize;
            }
            (path, stacks.paths[number].own)
        };
        (0..stacks.paths.len()).map(name).collect()
    }

    #[test]
    fn instructions_belong_to_the_innermost_function() {
        let mut stacks = Stacks::from(100, BTreeSet::new());
        stacks.count(0, 110);
        stacks.call(0, STACK, 1, 0x11);
        stacks.count(0, 130);
        stacks.call(0, STACK - 16, 2, 0x12);
        stacks.count(0, 135);
        stacks.returned(0, STACK - 8, 0x12);
        stacks.count(0, 136);
        // The kernel leaves two functions at once.
        stacks.call(0, STACK - 16, 3, 0x13);
        stacks.call(0, STACK - 32, 4, 0x14);
        stacks.count(0, 140);
        stacks.returned(0, STACK + 8, 0x11);
        stacks.count(0, 150);
        let expected =
            vec![(vec![], 20), (vec![1], 21), (vec![1, 2], 5), (vec![1, 3], 0), (vec![1, 3, 4], 4)];
        assert_eq!(paths(&stacks), expected);
        assert_eq!(stacks.calls.values().sum::<u64>(), 4);
    }

    #[test]
    fn each_stack_has_its_own_functions() {
        let mut stacks = Stacks::from(0, BTreeSet::new());
        let other = STACK + (1 << STACK_SHIFT);
        stacks.call(0, STACK, 1, 0x11);
        stacks.count(0, 3);
        // The scheduler changes the stack, and returns to a function there.
        stacks.call(0, other, 2, 0x12);
        stacks.count(0, 10);
        stacks.returned(0, other + 8, 0x12);
        stacks.call(0, STACK - 8, 3, 0x13);
        stacks.count(0, 12);
        assert_eq!(paths(&stacks)[1..], [(vec![1], 3), (vec![2], 7), (vec![1, 3], 2)]);
    }

    #[test]
    fn a_thunk_is_replaced_by_the_function_to_which_it_jumps() {
        let mut stacks = Stacks::from(0, BTreeSet::new());
        stacks.call(0, STACK, 1, 0x11);
        stacks.call(0, STACK - 8, 0x100, 0x12);
        stacks.call(0, STACK - 16, 0x104, 0x105);
        stacks.returned(0, STACK - 8, 2);
        stacks.count(0, 9);
        stacks.returned(0, STACK, 0x12);
        stacks.count(0, 10);
        let with_steps: Vec<_> = paths(&stacks).into_iter().filter(|(_, own)| *own > 0).collect();
        assert_eq!(with_steps, [(vec![1], 1), (vec![1, 2], 9)]);
        assert_eq!((stacks.calls[&0x100], stacks.calls[&2]), (0, 1));
    }

    #[test]
    fn a_call_at_a_functions_end_may_be_a_jump() {
        let mut stacks = Stacks::from(0, BTreeSet::from([2]));
        stacks.call(0, STACK, 1, 0x11);
        stacks.count(0, 4);
        stacks.jumped(0, STACK, 2);
        stacks.count(0, 10);
        stacks.jumped(0, STACK - 8, 5);
        stacks.returned(0, STACK + 8, 0x11);
        stacks.count(0, 11);
        assert_eq!(paths(&stacks), [(vec![], 1), (vec![1], 4), (vec![2], 6)]);
        // The code for exceptions moves its return address.
        stacks.call(0, STACK, 3, 0x13);
        stacks.returned(0, STACK - 24, 0x13);
        stacks.count(0, 20);
        assert_eq!(paths(&stacks)[0], (vec![], 10));
    }
}
