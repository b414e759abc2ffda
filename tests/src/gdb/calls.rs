//! Function calls in a traced window: which activation of which function runs at each step, where it began and
//! where it returned. The module finds only functions of the guest's kernel, with the kernel's own list of symbols.
//!
//! From the stack pointer, the module knows which activations are still on the stack. After an interrupt, an
//! exception or a stack switch, the activation is unknown until the next call.

use std::collections::{BTreeMap, BTreeSet};

use guest_symbols::Symbols;

use super::trace::{Place, RSP, Trace, Window};

/// One run of a function.
#[derive(Clone, Debug)]
pub struct Activation {
    /// The function's first instruction.
    pub function: u64,
    /// The number of the activation that called the function; `None` if it is not known.
    pub caller: Option<usize>,
    /// The step count at which the call is executed.
    pub call: usize,
    /// The step count at which the function begins.
    pub entry: usize,
    /// The stack pointer at the entry.
    pub entry_rsp: u64,
    /// The step count after the function's return; `None` if it is not known.
    pub exit: Option<usize>,
    /// Whether the function jumped to another function, or was interrupted.
    pub irregular: bool,
}

/// A function of the kernel.
#[derive(Clone, Debug)]
pub struct Function {
    /// The function's name.
    pub name: String,
    /// The address after the function's last byte.
    pub end: u64,
    /// Bytes between the stack pointer at each instruction and the stack pointer at the function's entry.
    pub depths: BTreeMap<u64, u64>,
    /// The addresses of instructions that control reached from another instruction than the instruction directly
    /// before.
    pub leaders: BTreeSet<u64>,
    /// Whether control entered the function only by calls, and each instruction always had the same stack depth.
    pub regular: bool,
}

/// All calls in all windows.
#[derive(Default)]
pub struct Calls {
    /// The activations, in the order of their entries.
    pub activations: Vec<Activation>,
    /// The functions by the address of their first instruction.
    pub functions: BTreeMap<u64, Function>,
    /// Maps a step count to the number of the activation whose own instruction is next. Step counts at which the
    /// activation is not known are missing.
    running: BTreeMap<usize, usize>,
}

/// How control goes from one instruction to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The step goes to the next instruction, or is a jump.
    On,
    Call,
    Return,
    /// The step goes to another instruction in any other way: by a stack switch, or because of an event during the
    /// step.
    Elsewhere,
}

impl Calls {
    /// Finds the calls in all windows.
    pub fn new(trace: &Trace, symbols: &Symbols) -> Calls {
        let mut calls = Calls::default();
        for window in &trace.windows {
            calls.look_through(window, trace, symbols);
        }
        calls
    }

    /// The activation whose own instruction is next; `None` if it is not known.
    pub fn running(&self, step: usize) -> Option<&Activation> {
        self.running.get(&step).map(|&number| &self.activations[number])
    }

    /// The number of the activation whose own instruction is next; `None` if it is not known.
    pub fn running_number(&self, step: usize) -> Option<usize> {
        self.running.get(&step).copied()
    }

    fn look_through(&mut self, window: &Window, trace: &Trace, symbols: &Symbols) {
        let mut stack: Vec<usize> = Vec::new();
        for at in window.start..window.end() {
            let (here, next) = (window.at(at), window.at(at + 1));
            let way = way(here, next, &trace.code[&here.rip]);
            let from = self.function_at(here.rip, symbols);
            let to = self.function_at(next.rip, symbols);
            if let (Some(function), Some(&top)) = (from, stack.last()) {
                self.note_depth(function, top, at, here);
            }
            let is_next = next.rip > here.rip && next.rip - here.rip <= 15;
            if let Some(to) = to.filter(|to| way != Way::On || from != Some(*to) || !is_next) {
                self.functions.get_mut(&to).expect("it was just found").leaders.insert(next.rip);
            }
            self.follow(way, at, next, (from, to), &mut stack);
        }
        self.interrupt(&stack);
    }

    /// Updates the stack of activations.
    fn follow(
        &mut self,
        way: Way,
        at: usize,
        next: &Place,
        (from, to): (Option<u64>, Option<u64>),
        stack: &mut Vec<usize>,
    ) {
        match (way, to) {
            (Way::Call, Some(function)) if next.rip == function => {
                let caller = stack.last().copied();
                let activation = Activation {
                    function,
                    caller,
                    call: at,
                    entry: at + 1,
                    entry_rsp: next.gpr[RSP],
                    exit: None,
                    irregular: false,
                };
                stack.push(self.activations.len());
                self.activations.push(activation);
            }
            (Way::Return, _) => match stack.pop() {
                Some(top) if self.activations[top].entry_rsp + 8 == next.gpr[RSP] => {
                    self.activations[top].exit = Some(at + 1);
                }
                Some(top) => {
                    stack.push(top);
                    self.interrupt(stack);
                    stack.clear();
                }
                None => {}
            },
            (Way::On, to) if from == to => {}
            (Way::On, to) => {
                // The instruction jumped to another function. So the first function does not return itself, and no
                // call began the second function. Mark both functions.
                for function in [from, to].into_iter().flatten() {
                    self.functions.get_mut(&function).expect("it was just found").regular = false;
                }
                if let Some(&top) = stack.last() {
                    self.activations[top].irregular = true;
                }
            }
            (Way::Call | Way::Elsewhere, _) => {
                self.interrupt(stack);
                stack.clear();
            }
        }
    }

    fn interrupt(&mut self, stack: &[usize]) {
        for &number in stack {
            self.activations[number].irregular = true;
        }
    }

    fn note_depth(&mut self, function: u64, top: usize, at: usize, here: &Place) {
        let activation = &self.activations[top];
        if activation.function != function || activation.irregular {
            return;
        }
        self.running.insert(at, top);
        let depth = activation.entry_rsp.wrapping_sub(here.gpr[RSP]);
        let known = self.functions.get_mut(&function).expect("it was just found");
        if *known.depths.entry(here.rip).or_insert(depth) != depth {
            known.regular = false;
        }
    }

    /// Returns the address of the kernel function that contains `address`; `None` if there is no such function.
    fn function_at(&mut self, address: u64, symbols: &Symbols) -> Option<u64> {
        if address >> 63 == 0 {
            return None;
        }
        if let Some((&start, function)) = self.functions.range(..=address).next_back()
            && address < function.end
        {
            return Some(start);
        }
        let (name, offset) = symbols.name_of(address)?;
        let start = address - offset;
        let size =
            symbols.all().iter().filter(|s| s.address == start && s.name == name).map(|s| s.size).max()?;
        let function = Function {
            name: name.to_string(),
            end: start + size,
            depths: BTreeMap::new(),
            leaders: [start].into_iter().collect(),
            regular: true,
        };
        self.functions.insert(start, function);
        Some(start)
    }
}

fn way(here: &Place, next: &Place, code: &[u8; 4]) -> Way {
    let (before, after) = (here.gpr[RSP], next.gpr[RSP]);
    // Ignore a prefix for 64-bit operands, registers or segments.
    let code = if matches!(code[0], 0x40..=0x4f | 0x2e | 0x3e | 0x64 | 0x65 | 0xf2 | 0xf3) {
        &code[1..]
    } else {
        &code[..]
    };
    let is_near = next.rip > here.rip && next.rip - here.rip <= 15;
    let is_call = code[0] == 0xe8 || (code[0] == 0xff && (code[1] >> 3) & 7 == 2);
    let is_return = matches!(code[0], 0xc2 | 0xc3);
    if is_call && after == before.wrapping_sub(8) && next.top > here.rip && next.top - here.rip <= 15 {
        Way::Call
    } else if is_return && next.rip == here.top && after == before.wrapping_add(8) {
        Way::Return
    } else if is_call || is_return || after.abs_diff(before) > 4096 {
        Way::Elsewhere
    } else if after == before || is_near {
        Way::On
    } else {
        Way::Elsewhere
    }
}
