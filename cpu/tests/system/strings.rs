//! Compares string instructions with a model that handles one element at a time: registers, memory, flags,
//! ports and steps. Each case runs twice: in one piece, and cut after each step.

use cpu::{Counts, CpuState, SegReg, Stop};

use crate::harness::*;

const CF: u64 = 1;
const ZF: u64 = 0x40;
const TF: u64 = 0x100;
const DF: u64 = 0x400;
const RF: u64 = 1 << 16;
const PORT: u64 = 0x3f8;
/// Address and length of the memory that a case may change.
const AREA: u64 = DATA;
const AREA_BYTES: usize = 0x1_1000;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSI: usize = 6;
const RDI: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Movs,
    Stos,
    Lods,
    Scas,
    Cmps,
    Ins,
    Outs,
}

use Verb::*;

impl Verb {
    const ALL: [Verb; 7] = [Movs, Stos, Lods, Scas, Cmps, Ins, Outs];

    /// The opcode for one-byte elements. The opcode for longer elements is the next number.
    fn opcode(self) -> u8 {
        match self {
            Movs => 0xa4,
            Stos => 0xaa,
            Lods => 0xac,
            Scas => 0xae,
            Cmps => 0xa6,
            Ins => 0x6c,
            Outs => 0x6e,
        }
    }

    /// The registers that hold the addresses of the instruction's operands.
    fn pointers(self) -> &'static [usize] {
        match self {
            Movs | Cmps => &[RSI, RDI],
            Stos | Scas | Ins => &[RDI],
            Lods | Outs => &[RSI],
        }
    }

    fn compares(self) -> bool {
        matches!(self, Scas | Cmps)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Repeat {
    Once = 0,
    WhileNotEqual = 0xf2,
    WhileEqual = 0xf3,
}

#[derive(Clone, Copy, Debug)]
struct Form {
    verb: Verb,
    repeat: Repeat,
    /// Bytes of an element.
    element: u64,
    mode_bits: u32,
    address_bits: u32,
}

impl Form {
    fn all() -> Vec<Form> {
        let mut forms = Vec::new();
        for verb in Verb::ALL {
            for repeat in [Repeat::Once, Repeat::WhileNotEqual, Repeat::WhileEqual] {
                for (mode_bits, address_bits) in [(64, 64), (64, 32), (32, 32), (32, 16)] {
                    let has_quads = mode_bits == 64 && !matches!(verb, Ins | Outs);
                    for element in [1, 2, 4, 8].into_iter().filter(|&bytes| bytes < 8 || has_quads) {
                        forms.push(Form { verb, repeat, element, mode_bits, address_bits });
                    }
                }
            }
        }
        forms
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.repeat != Repeat::Once {
            bytes.push(self.repeat as u8);
        }
        if self.address_bits != self.mode_bits {
            bytes.push(0x67);
        }
        match self.element {
            2 => bytes.push(0x66),
            8 => bytes.push(0x48),
            _ => {}
        }
        bytes.push(self.verb.opcode() + u8::from(self.element > 1));
        bytes
    }

    /// Base of the data segments: one page with 32-bit addresses, and [`AREA`] with 16-bit addresses.
    fn base(&self) -> u64 {
        match (self.mode_bits, self.address_bits) {
            (64, _) => 0,
            (_, 32) => 0x1000,
            _ => AREA,
        }
    }

    fn address_mask(&self) -> u64 {
        u64::MAX >> (64 - self.address_bits)
    }

    fn element_mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.element)
    }
}

/// The start state of a case, which the model then changes.
#[derive(Clone)]
struct Model {
    gpr: [u64; 16],
    rflags: u64,
    memory: Vec<u8>,
    written: Vec<(u16, u8, u32)>,
    steps: u64,
    finished: bool,
}

impl Model {
    fn element_at(&self, form: &Form, pointer: usize) -> usize {
        let base = form.base();
        (base + (self.gpr[pointer] & form.address_mask()) - AREA) as usize
    }

    fn load(&self, form: &Form, pointer: usize) -> u64 {
        let at = self.element_at(form, pointer);
        let mut bytes = [0; 8];
        bytes[..form.element as usize].copy_from_slice(&self.memory[at..at + form.element as usize]);
        u64::from_le_bytes(bytes)
    }

    fn store(&mut self, form: &Form, pointer: usize, value: u64) {
        let at = self.element_at(form, pointer);
        self.memory[at..at + form.element as usize]
            .copy_from_slice(&value.to_le_bytes()[..form.element as usize]);
    }

    /// Writes a register of `bits` bits. A 32-bit write clears the upper bits, a narrower write keeps them.
    fn set(&mut self, register: usize, bits: u64, value: u64) {
        let kept = if bits < 32 { self.gpr[register] >> bits << bits } else { 0 };
        self.gpr[register] = kept | value & u64::MAX >> (64 - bits);
    }

    fn compare(&mut self, left: u64, right: u64) {
        self.rflags &= !(CF | ZF);
        self.rflags |= if left < right { CF } else { 0 } | if left == right { ZF } else { 0 };
    }

    fn one_element(&mut self, form: &Form) {
        let accumulator = self.gpr[RAX] & form.element_mask();
        match form.verb {
            Movs => self.store(form, RDI, self.load(form, RSI)),
            Stos => self.store(form, RDI, accumulator),
            Lods => self.set(RAX, 8 * form.element, self.load(form, RSI)),
            Scas => self.compare(accumulator, self.load(form, RDI)),
            Cmps => self.compare(self.load(form, RSI), self.load(form, RDI)),
            Ins => self.store(form, RDI, 0x1111_0000 | PORT),
            Outs => {
                let value = self.load(form, RSI) as u32;
                self.written.push((PORT as u16, form.element as u8, value));
            }
        }
        let distance = if self.rflags & DF == 0 { form.element } else { form.element.wrapping_neg() };
        for &pointer in form.verb.pointers() {
            self.set(pointer, form.address_bits.into(), self.gpr[pointer].wrapping_add(distance));
        }
    }

    fn step(&mut self, form: &Form) {
        self.steps += 1;
        if form.repeat == Repeat::Once {
            self.one_element(form);
            self.finished = true;
            return;
        }
        let address_bits = form.address_bits.into();
        // Processors write these registers back even if the count is zero.
        let written_first: &[usize] = match form.verb {
            Movs => &[RCX, RSI, RDI],
            Stos => &[RCX, RDI],
            _ => &[RCX],
        };
        written_first.iter().for_each(|&register| self.set(register, address_bits, self.gpr[register]));
        if self.gpr[RCX] & form.address_mask() == 0 {
            self.finished = true;
            return;
        }
        self.one_element(form);
        self.set(RCX, address_bits, self.gpr[RCX].wrapping_sub(1));
        let equal = self.rflags & ZF != 0;
        let ends = form.verb.compares() && equal != (form.repeat == Repeat::WhileEqual);
        self.finished = ends || self.gpr[RCX] & form.address_mask() == 0;
    }
}

/// The properties that distinguish a case from others of its form.
#[derive(Clone, Copy, Debug)]
struct Case {
    count: u64,
    down: bool,
    /// If true, all compared elements but the fourth are equal. If false, only the fourth element is equal.
    equal_first: bool,
    accumulator: u64,
}

/// The value of all bytes of an element that compares as equal.
const EQUAL: u8 = 0x44;

/// Offsets of the first elements of source and target. Both operands cross a page's end. With 16-bit addresses, the
/// source crosses the wrap-around of addresses instead.
fn first_elements(form: &Form, case: &Case) -> (u64, u64) {
    let aligned = 2 * form.element;
    // An odd offset puts some element on both pages, unless elements are bytes.
    let odd = aligned + 1;
    match (form.address_bits == 16, case.down) {
        (true, false) => (0x1_0000 - aligned, 0x5000 - odd),
        (true, true) => (form.element, 0x5000 + odd),
        (false, false) => (0x3000 - odd, 0x5000 - odd),
        (false, true) => (0x3000 + odd, 0x5000 + odd),
    }
}

fn memory(form: &Form, case: &Case) -> Vec<u8> {
    if !form.verb.compares() {
        return (0..AREA_BYTES).map(|n| (n * 7 + n / 256 * 3 + 1) as u8).collect();
    }
    let (others, fourth) = if case.equal_first { (EQUAL, EQUAL + 1) } else { (EQUAL - 1, EQUAL) };
    let mut memory = vec![EQUAL; AREA_BYTES];
    memory[0x4000..0x6000].fill(others);
    let (_, first) = first_elements(form, case);
    let distance = 3 * form.element;
    let at = if case.down { first - distance } else { first + distance };
    memory[at as usize..][..form.element as usize].fill(fourth);
    memory
}

fn beginning(form: &Form, case: &Case, state: &CpuState) -> Model {
    let base = AREA - form.base();
    let (source, target) = first_elements(form, case);
    // Bits above the address width must be ignored.
    let above = match (form.address_bits, form.mode_bits) {
        (32, 64) => 0xdead_beef << 32,
        (16, _) => 0x5555_0000,
        _ => 0,
    };
    let mut gpr = state.gpr;
    gpr[RAX] = if form.mode_bits == 64 { case.accumulator } else { case.accumulator & 0xffff_ffff };
    gpr[RDX] = 0x9999_0000 | PORT;
    for (register, value) in [(RCX, case.count), (RSI, base + source), (RDI, base + target)] {
        gpr[register] = above | value;
    }
    let rflags = state.rflags | if case.down { DF } else { 0 };
    Model { gpr, rflags, memory: memory(form, case), written: Vec::new(), steps: 0, finished: false }
}

/// A machine in 64-bit mode and one in 32-bit mode, with their start states.
struct Bench {
    machines: [Machine; 2],
    states: [CpuState; 2],
}

impl Bench {
    fn new() -> Bench {
        let machines = [Machine::long(), Machine::protected()];
        let states = [machines[0].state.clone(), machines[1].state.clone()];
        Bench { machines, states }
    }

    /// Sets up a case in a machine and in the model.
    fn begin(&mut self, form: &Form, case: &Case) -> (&mut Machine, Model) {
        let number = usize::from(form.mode_bits == 32);
        let (m, state) = (&mut self.machines[number], &self.states[number]);
        let model = beginning(form, case, state);
        m.put(CODE, &form.bytes());
        m.put(AREA, &model.memory);
        m.bus.ports.clear();
        m.state = CpuState { gpr: model.gpr, rflags: model.rflags, ..state.clone() };
        m.counts = Counts::default();
        for data in [SegReg::Ds, SegReg::Es] {
            m.state.segments[data as usize].base = form.base();
        }
        (m, model)
    }
}

fn compare(m: &Machine, form: &Form, model: &Model, what: &str) {
    let length = form.bytes().len() as u64;
    assert_eq!(m.state.gpr, model.gpr, "{what}");
    assert_eq!(m.counts.steps, model.steps, "{what}");
    assert_eq!(m.state.rip, CODE + if model.finished { length } else { 0 }, "{what}");
    let mask = CF | ZF | DF;
    assert_eq!(m.state.rflags & mask, model.rflags & mask, "{what}");
    let mut memory = vec![0; AREA_BYTES];
    m.ram().read_bytes(AREA, &mut memory);
    assert!(memory == model.memory, "{what}: memory differs");
    assert_eq!(m.bus.ports, model.written, "{what}");
}

/// Runs a case in three pieces for each cut: up to the cut, one step, and the rest.
fn try_case(bench: &mut Bench, form: &Form, case: &Case) {
    let mut cut = 0;
    loop {
        let (m, mut model) = bench.begin(form, case);
        let what = format!("{form:x?} {case:x?}, cut behind {cut} steps");
        while !model.finished {
            let piece = match model.steps {
                0 if cut > 0 => cut,
                steps if steps == cut => 1,
                _ => u64::MAX,
            };
            let until = model.steps.saturating_add(piece);
            while model.steps < until && !model.finished {
                model.step(form);
            }
            let steps = model.steps - m.counts.steps;
            assert_eq!(m.run_steps(steps), Stop::Budget, "{what}");
            compare(m, form, &model, &what);
        }
        if model.steps <= cut {
            return;
        }
        cut += 1;
    }
}

#[test]
fn string_instructions_take_one_element_after_the_other() {
    let mut bench = Bench::new();
    for form in Form::all() {
        for down in [false, true] {
            for count in if form.repeat == Repeat::Once { &[3][..] } else { &[0, 1, 2, 7] } {
                for equal_first in [false, true].into_iter().filter(|&first| first || form.verb.compares()) {
                    let accumulators = [u64::from(EQUAL) * 0x0101_0101_0101_0101, 0x8877_6655_4433_2211];
                    let differ = matches!(form.verb, Stos | Lods);
                    for &accumulator in &accumulators[..1 + usize::from(differ)] {
                        let case = Case { count: *count, down, equal_first, accumulator };
                        try_case(&mut bench, &form, &case);
                    }
                }
            }
        }
    }
}

/// A machine that is about to fill `count` bytes of [`DATA`] with the byte in AL.
fn filling(count: u64) -> Machine {
    let mut m = Machine::long();
    m.state.gpr[RAX] = 0xf4;
    m.state.gpr[RCX] = count;
    m.state.gpr[RDI] = DATA;
    m.put(CODE, &[0xf3, 0xaa]);
    m
}

#[test]
fn tf_traps_behind_every_iteration() {
    for count in 1..4 {
        let mut m = filling(count);
        m.state.rflags |= TF;
        assert_eq!(m.run_to_handler(), 1);
        let next = if count == 1 { CODE + 2 } else { CODE };
        assert_eq!((m.stack64(0), m.state.gpr[RCX]), (next, count - 1));
        assert_eq!(m.state.dr6 >> 14 & 1, 1);
        assert_eq!(m.counts.steps, 3, "an iteration, the delivery, HLT");
    }
}

/// The breakpoint is the guest's own, in a debug register.
#[test]
fn an_instruction_breakpoint_that_was_passed_does_not_hit_between_iterations() {
    let mut m = filling(3);
    m.put(CODE + 2, &[0xf4]);
    m.state.dr[0] = CODE;
    m.state.dr7 |= 1;
    m.state.rflags |= RF;
    assert_eq!(m.run_steps(2), Stop::Budget);
    assert_eq!((m.state.gpr[RCX], m.state.rflags & RF), (1, RF));
    assert_eq!(m.run(), Stop::Halted);
    assert_eq!((m.state.rip, m.state.rflags & RF), (CODE + 3, 0));
}

/// STI holds interrupts back for one instruction, and the first iteration counts as this instruction.
#[test]
fn an_interrupt_comes_behind_the_first_iteration_in_a_shadow() {
    let mut m = filling(5);
    m.put(CODE, &[0xfb, 0xf3, 0xaa]);
    m.bus.signals.interrupt = true;
    m.bus.vector = 0x40;
    assert_eq!(m.run_to_handler(), 0x40);
    assert_eq!((m.stack64(0), m.state.gpr[RCX]), (CODE + 1, 4));
}

#[test]
fn an_instruction_that_writes_over_itself_ends() {
    for count in [2, 5] {
        let mut m = filling(count);
        m.state.gpr[RDI] = CODE;
        assert_eq!(m.run(), Stop::Halted);
        assert_eq!((m.state.rip, m.state.gpr[RCX], m.counts.steps), (CODE + 1, count - 1, 2));
    }
}

/// The string reaches a page that is not present. The first element that is not entirely before this page faults,
/// and has no effect.
#[test]
fn a_repetition_faults_where_a_page_is_missing() {
    const MISSING: u64 = DATA + 0x5000;
    for verb in [Movs, Stos] {
        for &missing in verb.pointers() {
            for (element, before_end) in
                [1, 2, 4, 8].into_iter().flat_map(|element| [(element, 32), (element, 31)])
            {
                let repeat = Repeat::WhileEqual;
                let form = Form { verb, repeat, element, mode_bits: 64, address_bits: 64 };
                let mut m = Machine::long();
                m.page(MISSING, 1, 0);
                m.put(CODE, &form.bytes());
                m.state.gpr[RAX] = 0x8877_6655_4433_2211;
                m.state.gpr[RCX] = 100;
                (m.state.gpr[RSI], m.state.gpr[RDI]) = (DATA, DATA + 0x1000);
                m.state.gpr[missing] = MISSING - before_end;
                let before = m.state.clone();
                assert_eq!(m.run_to_handler(), 14);
                let done = before_end / element;
                let what = format!("{form:x?}, {missing}, {before_end} bytes before the end");
                assert_eq!(m.state.cr2, MISSING, "{what}");
                assert_eq!(m.state.gpr[RCX], 100 - done, "{what}");
                assert_eq!(m.counts.steps, done + 2, "{what}: elements, the delivery, HLT");
                for &pointer in verb.pointers() {
                    assert_eq!(m.state.gpr[pointer], before.gpr[pointer] + done * element, "{what}");
                }
                assert_eq!(m.ram().load_u64(MISSING), 0, "{what}: behind the end");
            }
        }
    }
}
