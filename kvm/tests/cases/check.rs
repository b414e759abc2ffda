//! Runs one case on one engine and reports deviations from the expected end.

use cpu::{CpuState, Stop};

use crate::case::{Case, Outcome, Token, has_error_code};
use crate::expected::{Expected, RF, flags, named_flags};
use crate::fields::{COMPARED, get, set};
use crate::machine::{DATA, DATA_BYTES, Engine, HANDLERS, MMIO, Machine, RAM_BYTES};

const ARITHMETIC: u64 = 0x8d5;
const TF_AND_IF: u64 = 0x300;
/// The result of a run.
pub struct Report {
    /// The deviations, in words.
    pub mismatches: Vec<String>,
    /// Instructions that the software CPU executed in KVM's place.
    pub emulated: u64,
}

/// Runs a case.
pub fn run(case: &Case, engine: Engine) -> Report {
    let mut machine = Machine::new(case.mode, &case.code);
    prepare(case, &mut machine);
    let before = machine.state.clone();
    let mut data = data_of(&machine);
    let expected = Expected::of(case, engine);
    let mismatches = match machine.run(engine) {
        Err(_) if expected.outcome == Outcome::Nothing => Vec::new(),
        Ok(stop) => {
            let mut check = Check { expected, machine: &machine, before, mismatches: Vec::new() };
            check.all(case, stop, &mut data);
            check.mismatches
        }
        Err(why) => vec![why],
    };
    Report { mismatches, emulated: machine.emulated }
}

fn prepare(case: &Case, machine: &mut Machine) {
    for token in &case.start {
        match token {
            Token::Register { name, mask, value } => {
                let old = get(&machine.state, name).unwrap_or_else(|| unknown(case, name));
                set(&mut machine.state, name, old & !mask | value & mask);
            }
            Token::Flags(letters) => {
                let (mask, value) = flags(letters);
                machine.state.rflags = machine.state.rflags & !mask | value;
            }
            Token::Memory(address, bytes) => {
                let bytes: Vec<u8> = bytes.iter().map(|byte| byte.unwrap_or(0)).collect();
                match address.checked_sub(MMIO) {
                    Some(at) => machine.board.device[at as usize..][..bytes.len()].copy_from_slice(&bytes),
                    None => machine.ram.write_bytes(*address, &bytes),
                }
            }
            Token::Interrupt(vector) => machine.board.interrupt = Some(*vector),
            Token::Outcome(_) | Token::Undefined { .. } | Token::Access(_) | Token::NoAccess => {
                panic!("case \"{}\": a start has no outcome and no accesses", case.name)
            }
        }
    }
}

fn unknown(case: &Case, name: &str) -> ! {
    panic!("case \"{}\": there is no register {name}", case.name)
}

fn data_of(machine: &Machine) -> Vec<Option<u8>> {
    (DATA..DATA + DATA_BYTES).map(|at| Some(machine.ram.load_u8(at))).collect()
}

struct Check<'a> {
    expected: Expected,
    machine: &'a Machine,
    before: CpuState,
    mismatches: Vec<String>,
}

impl Check<'_> {
    fn all(&mut self, case: &Case, stop: Stop, data: &mut [Option<u8>]) {
        let (found, state) = end_of(self.machine, stop);
        if found != self.expected.outcome {
            let expected = self.expected.outcome;
            let changed = self.changed(&state);
            self.mismatches.push(format!("expected {expected:x?}, found {found:x?} with {changed}"));
            return;
        }
        self.accesses();
        self.memory(data);
        // After a triple fault the processor's registers are not defined.
        if found != Outcome::Shutdown {
            self.rip(case, found, &state);
            self.flags(found, &state);
            self.registers(case, &state);
        }
    }

    /// Describes everything in `state` that has changed since the start.
    fn changed(&self, state: &CpuState) -> String {
        let names = COMPARED.iter().chain(&["rip"]);
        let found = names.filter(|name| get(state, name) != get(&self.before, name));
        let words = found.map(|name| format!("{name}={:x}", get(state, name).unwrap_or_default()));
        words.collect::<Vec<_>>().join(" ")
    }

    fn differ(&mut self, what: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) {
        self.mismatches.push(format!("{what}: expected {expected}, found {found}"));
    }

    fn accesses(&mut self) {
        let found: Vec<String> = self.machine.board.accesses.iter().map(ToString::to_string).collect();
        if found != self.expected.accesses {
            let expected = self.expected.accesses.join(" ");
            self.differ("accesses", expected, found.join(" "));
        }
    }

    fn memory(&mut self, data: &mut [Option<u8>]) {
        for (address, bytes) in std::mem::take(&mut self.expected.memory) {
            for (at, byte) in (address..).zip(bytes) {
                match at.checked_sub(DATA).filter(|offset| *offset < DATA_BYTES) {
                    Some(offset) => data[offset as usize] = byte,
                    None => self.one_byte(at, byte),
                }
            }
        }
        for (at, byte) in (DATA..).zip(data.iter()) {
            self.one_byte(at, *byte);
        }
    }

    fn one_byte(&mut self, at: u64, byte: Option<u8>) {
        let found = self.machine.ram.load_u8(at);
        if let Some(expected) = byte.filter(|expected| *expected != found) {
            self.differ(&format!("[{at:#x}]"), format!("{expected:02x}"), format!("{found:02x}"));
        }
    }

    /// Checks RIP. By default, faults are at the first instruction, and every other end is after the last.
    fn rip(&mut self, case: &Case, outcome: Outcome, state: &CpuState) {
        if self.expected.registers.contains_key("rip") {
            return self.register(case, "rip", 0, state);
        }
        let code = case.mode.code();
        let behind = code + (case.code.len() + case.mode.last_instruction().len()) as u64;
        let fault = matches!(outcome, Outcome::Vector(vector, _) if vector < 32);
        self.register(case, "rip", if fault { code } else { behind }.into(), state);
    }

    fn registers(&mut self, case: &Case, state: &CpuState) {
        for name in COMPARED {
            let before = get(&self.before, name).unwrap_or_else(|| unknown(case, name));
            self.register(case, name, before, state);
        }
        let cr8 = self.expected.registers.remove("cr8").map_or(0, |values| values[0].1 as u64);
        if cr8 != self.machine.board.cr8 {
            self.differ("the board's cr8", format!("{cr8:x}"), format!("{:x}", self.machine.board.cr8));
        }
        let others: Vec<String> = self.expected.registers.keys().cloned().collect();
        others.iter().filter(|name| *name != "rflags").for_each(|name| self.register(case, name, 0, state));
    }

    /// Compares one register and removes it from the list of expectations.
    fn register(&mut self, case: &Case, name: &str, unchanged: u128, state: &CpuState) {
        let found = get(state, name).unwrap_or_else(|| unknown(case, name));
        let values = self.expected.registers.remove(name).unwrap_or_else(|| vec![(u128::MAX, unchanged)]);
        let undefined = self.expected.undefined(name);
        for (mask, value) in values.into_iter().map(|(mask, value)| (mask & !undefined, value)) {
            if found & mask != value & mask {
                self.differ(name, format!("{:x}", value & mask), format!("{:x}", found & mask));
            }
        }
    }

    /// Checks the flags. Faults push RF set (SDM vol. 3, 18.3.1.1); aborts may push it set or clear.
    fn flags(&mut self, outcome: Outcome, state: &CpuState) {
        let (mut mask, mut value) = (u64::MAX, self.before.rflags);
        match outcome {
            Outcome::Vector(0 | 5..=7 | 10..=14 | 16..=21, _) => value |= RF,
            Outcome::Vector(8, _) => mask &= !RF,
            _ => {}
        }
        if self.machine.state.cr0 & 1 == 0 {
            mask &= 0xffff;
        }
        if let Some(letters) = &self.expected.flags {
            let (named, set) = flags(letters);
            mask = mask & !ARITHMETIC | named;
            value = value & !named | set;
        }
        for (named, set) in self.expected.registers.remove("rflags").unwrap_or_default() {
            mask |= named as u64;
            value = value & !named as u64 | set as u64;
        }
        mask &= !(self.expected.undefined("rflags") as u64);
        if state.rflags & mask != value & mask {
            self.differ("rflags", named_flags(value & mask), named_flags(state.rflags & mask));
        }
        let handler = self.machine.state.rflags;
        if matches!(outcome, Outcome::Vector(..)) && handler & TF_AND_IF != 0 {
            self.differ("the handler's TF and IF", "0", format!("{:x}", handler & TF_AND_IF));
        }
    }
}

/// How the run ended, and the program's state there. If the run ended in a handler, the program's state is the
/// interrupted state, which the CPU pushed onto the handler's stack.
fn end_of(machine: &Machine, stop: Stop) -> (Outcome, CpuState) {
    let mut state = machine.state.clone();
    if stop == Stop::Shutdown {
        return (Outcome::Shutdown, state);
    }
    // HLT is one byte long.
    let at = state.rip.wrapping_sub(1).wrapping_sub(HANDLERS);
    if at >= 0x1000 || !at.is_multiple_of(16) {
        return (Outcome::Halt, state);
    }
    let vector = (at / 16) as u8;
    let (protected, long) = (state.cr0 & 1 != 0, state.msrs.efer & 0x400 != 0);
    let size = match (protected, long) {
        (false, _) => 2,
        (true, false) => 4,
        (true, true) => 8,
    };
    let stack = state.gpr[4].wrapping_add(if long { 0 } else { state.segments[2].base });
    let word = |number: u64| {
        let address = stack.wrapping_add(number * size);
        assert!(address < RAM_BYTES - 8, "a handler runs on a stack at {stack:#x}");
        machine.ram.load_u64(address) & (u64::MAX >> (64 - 8 * size))
    };
    let code = (protected && has_error_code(vector)).then(|| word(0) as u32);
    let first = u64::from(code.is_some());
    state.rip = word(first);
    state.rflags = word(first + 2);
    state.segments[1].selector = word(first + 1) as u16;
    let inward = protected && state.segments[1].selector & 3 != 0;
    if long || inward {
        state.gpr[4] = word(first + 3);
        state.segments[2].selector = word(first + 4) as u16;
    } else {
        state.gpr[4] = state.gpr[4].wrapping_add((first + 3) * size);
    }
    (Outcome::Vector(vector, code), state)
}
