//! Observers receive the same happenings (fetches, loads, stores, branches and so on) from the interpreter and the
//! translator, wherever a run is cut. The guest cannot see the observers.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use cpu::{
    AddressKind, At, Calls, Core, Counts, CpuState, Happening, InstructionFilter, Met, Observer, Parts,
    Place, Places, Stop, SystemCalls, Tier, Vectors, Wants,
};
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};

use crate::harness::*;
use crate::random;

const TIERS: [Tier; 5] = [
    Tier::Interpreter,
    Tier::Translator { after: 0, parts: Parts::ALL },
    Tier::Translator { after: 3, parts: Parts::ALL },
    Tier::Translator { after: 0, parts: Parts::NONE },
    Tier::Inverted,
];
const STEPS: u64 = 700;
/// Bytes of RAM that are compared.
const COMPARED: usize = 0xa_0000;
/// A page that is not mapped.
const ABSENT: u64 = 0x9_0000;
/// A second mapping of [`DATA`].
const ALIAS: u64 = 0x20_0000;

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    at: At,
    what: Happening,
    /// RIP, RAX and RSP of the CPU when the observer received the happening.
    registers: [u64; 3],
    /// The linear and the physical address of RIP.
    code: [u64; 2],
    /// Whether [`is_selected`] holds for the instruction at RIP.
    selected: bool,
}

/// The condition of the instruction filter in the tests. About every eighth instruction fulfils it.
fn is_selected(instruction: &Instruction) -> bool {
    instruction.op0_register().full_register() == Register::RCX || instruction.len() == 7
}

#[derive(Default)]
struct Log {
    wants: Wants,
    seen: Vec<Seen>,
    /// Stops the run at every happening whose number is a multiple of this value.
    stops_at_every: Option<usize>,
}

impl Observer for Log {
    fn wants(&self) -> Wants {
        self.wants.clone()
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        let registers = [core.rip, core.reg64(0), core.reg64(4)];
        let linear = core.rip.wrapping_add(core.frame.seg_base[1]);
        let linear = if core.is_64bit() { linear } else { linear & 0xffff_ffff };
        let code = [linear, core.peek_address(linear).unwrap_or(u64::MAX)];
        let mut bytes = [0; 15];
        let known = core.peek(linear, &mut bytes);
        let bits = core.code_size.bits();
        let instruction = Decoder::with_ip(bits, &bytes[..known], core.rip, DecoderOptions::NONE).decode();
        let selected = is_selected(&instruction);
        self.seen.push(Seen { at, what: *happening, registers, code, selected });
        match self.stops_at_every {
            Some(every) if self.seen.len().is_multiple_of(every) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn everything() -> Wants {
    Wants {
        fetches: Places::All,
        instructions: None,
        loads: Places::All,
        stores: Places::All,
        branches: true,
        calls: Calls::All,
        jumps_to: Arc::new((CODE..CODE + 0x1000).collect()),
        system_calls: SystemCalls::All,
        deliveries: Vectors::All,
    }
}

/// The outcome of a run.
struct Outcome {
    seen: Vec<Seen>,
    state: CpuState,
    counts: Counts,
    memory: Vec<u8>,
    stop: Stop,
}

fn memory(m: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; COMPARED];
    m.ram().read_bytes(0, &mut bytes);
    bytes
}

/// A small linear congruential generator, so that the cases are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Runs a machine under an observer. With a seed, cuts the run at random steps.
fn run(make: &dyn Fn() -> Machine, tier: Tier, log: Option<Log>, cuts: Option<u64>) -> Outcome {
    let mut m = make();
    m.cpu.set_tier(tier);
    m.load();
    let stops = log.as_ref().is_some_and(|log| log.stops_at_every.is_some());
    m.cpu.set_observer(log.map(|log| Box::new(log) as Box<dyn Observer>));
    let mut cuts = cuts.map(Random);
    let stop = loop {
        let piece = cuts.as_mut().map_or(STEPS, |random| 1 + random.below(40));
        let until = STEPS.min(m.cpu.steps() + piece);
        match m.cpu.run(&mut m.bus, until, u64::MAX) {
            Stop::Budget if m.cpu.steps() < STEPS => {}
            Stop::Met(Met::Observer) if stops => {}
            stop => break stop,
        }
    };
    let seen = m.cpu.set_observer(None).map_or_else(Vec::new, |observer| taken_back(observer).seen);
    Outcome { seen, state: m.cpu.state(), counts: m.cpu.counts(), memory: memory(&m), stop }
}

fn taken_back(observer: Box<dyn Observer>) -> Box<Log> {
    let observer: Box<dyn Any> = observer;
    observer.downcast().expect("it is the one that was attached")
}

/// Code that loads, stores, branches, calls, faults and makes system calls, at level 0.
fn program(seed: u64) -> Machine {
    let random = &mut Random(seed);
    let mut m = Machine::long();
    m.page(ABSENT, 1, 0);
    m.put64(TABLES + 0x3000 + 8 * (ALIAS >> 12), DATA | 7);
    m.put64(TABLES + 0x3000 + 8 * ((ALIAS >> 12) + 1), (DATA + 0x1000) | 7);
    for at in 0..0x400 {
        m.put64(DATA + 8 * at, random.below(u64::MAX) << 32 ^ random.below(u64::MAX));
    }
    // Faulting instructions are three bytes long, and the handlers skip them.
    m.code_at(64, handler(6), handler(6), |a| {
        a.add(qword_ptr(rsp), 3).unwrap();
        a.iretq().unwrap();
    });
    for vector in [13, 14] {
        m.code_at(64, handler(vector), handler(vector), |a| {
            a.pop(r11).unwrap();
            a.add(qword_ptr(rsp), 3).unwrap();
            a.iretq().unwrap();
        });
    }
    for vector in [1, 2, 0x80] {
        m.put(handler(vector), &[0x48, 0xcf]);
    }
    let system_call = CODE + 0x800;
    m.code_at(64, system_call, system_call, |a| {
        a.push(r11).unwrap();
        a.popfq().unwrap();
        a.jmp(rcx).unwrap();
    });
    m.state.msrs.star = 0x0018_0008_0002_0000;
    m.state.msrs.lstar = system_call;
    m.state.cr4 |= 0x600;
    m.state.gpr[6] = if random.below(3) == 0 { ALIAS } else { DATA };
    m.state.gpr[7] = DATA + 0x800;
    m.state.gpr[8] = ABSENT + 8;
    m.state.gpr[9] = 1 << 47;
    m.bus.signals.nmi = random.below(3) == 0;
    if random.below(8) == 0 {
        m.state.rflags |= 1 << 8;
    }
    let leaf = CODE + 0x900;
    m.code_at(64, leaf, leaf, |a| {
        a.push(rbx).unwrap();
        a.push(rbp).unwrap();
        a.mov(rbx, qword_ptr(rsi + 8)).unwrap();
        a.mov(qword_ptr(rdi + 16), rbx).unwrap();
        a.pop(rbp).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    m.code(64, |a| {
        let (mut again, mut end) = (a.create_label(), a.create_label());
        a.mov(r12d, 6).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(leaf).unwrap();
        for _ in 0..10 {
            instruction(a, random, leaf);
        }
        a.dec(r12d).unwrap();
        a.jnz(again).unwrap();
        // A single-step trap wakes the CPU.
        a.set_label(&mut end).unwrap();
        a.hlt().unwrap();
        a.jmp(end).unwrap();
    });
    m
}

fn instruction(a: &mut CodeAssembler, random: &mut Random, leaf: u64) {
    let offset = random.below(0x1ff0) as i32 & if random.below(2) == 0 { !7 } else { !0 };
    let near = random.below(0x700) as i32;
    match random.below(24) {
        0 => a.mov(rax, qword_ptr(rsi + offset)).unwrap(),
        1 => a.mov(qword_ptr(rdi + near), rax).unwrap(),
        2 => a.add(dword_ptr(rdi + near), eax).unwrap(),
        3 => a.xchg(word_ptr(rdi + near), bx).unwrap(),
        4 => a.cmpxchg(qword_ptr(rsi + near), rdx).unwrap(),
        5 => a.movdqu(xmm1, xmmword_ptr(rsi + offset)).unwrap(),
        6 => a.movdqu(xmmword_ptr(rdi + near), xmm1).unwrap(),
        7 => {
            a.push(qword_ptr(rsi + near)).unwrap();
            a.pop(qword_ptr(rdi + near)).unwrap();
        }
        8 | 9 => a.call(leaf).unwrap(),
        10 => {
            a.push(rsi).unwrap();
            a.push(rdi).unwrap();
            a.mov(ecx, random.below(9) as u32).unwrap();
            a.add(rdi, near).unwrap();
            if random.below(2) == 0 {
                a.rep().movsq().unwrap();
            } else {
                a.rep().stosb().unwrap();
            }
            a.pop(rdi).unwrap();
            a.pop(rsi).unwrap();
        }
        11 => a.int(0x80).unwrap(),
        12 => a.syscall().unwrap(),
        13 => {
            a.ud2().unwrap();
            a.nop().unwrap();
        }
        14 => a.mov(rax, qword_ptr(r8)).unwrap(),
        15 => a.add(qword_ptr(r8), rax).unwrap(),
        16 => {
            // MOVSQ has already loaded when its store faults.
            a.xchg(rdi, r8).unwrap();
            a.movsq().unwrap();
            a.nop().unwrap();
            a.xchg(rdi, r8).unwrap();
        }
        17 => a.fxsave(ptr(rdi + (near & !15))).unwrap(),
        18 => {
            let mut over = a.create_label();
            a.test(eax, 1 << random.below(8)).unwrap();
            a.jz(over).unwrap();
            a.inc(qword_ptr(rsi + near)).unwrap();
            a.set_label(&mut over).unwrap();
            a.lea(rax, qword_ptr(rax + rax * 2 + near)).unwrap();
        }
        19 => {
            a.lodsq().unwrap();
            a.sub(rsi, 8).unwrap();
        }
        20 => {
            let mut on = a.create_label();
            a.lea(rdx, qword_ptr(on)).unwrap();
            a.jmp(rdx).unwrap();
            a.set_label(&mut on).unwrap();
            a.xadd(byte_ptr(rdi + near), al).unwrap();
        }
        // Branches that fault before and after their memory access.
        21 => a.jmp(qword_ptr(r8)).unwrap(),
        22 => a.call(r9).unwrap(),
        _ => a.imul_3(rax, rax, 77).unwrap(),
    }
}

fn is_in(places: &Places, address: u64, physical: u64, length: u64) -> bool {
    let holds = |place: &Place| {
        let first = if place.space == AddressKind::Linear { address } else { physical };
        first <= *place.addresses.end() && *place.addresses.start() < first + length
    };
    match places {
        Places::None => false,
        Places::All => true,
        Places::In(named) => named.iter().any(holds),
    }
}

/// Whether `wants` asks for a happening.
fn is_wanted(wants: &Wants, seen: &Seen) -> bool {
    match &seen.what {
        Happening::Fetch => {
            let is_chosen = wants.instructions.is_some() && seen.selected;
            is_chosen || is_in(&wants.fetches, seen.code[0], seen.code[1], 1)
        }
        Happening::Load { address, physical, value } => {
            is_in(&wants.loads, *address, *physical, value.len() as u64)
        }
        Happening::Store { address, physical, after, .. } => {
            is_in(&wants.stores, *address, *physical, after.len() as u64)
        }
        Happening::Branch { .. } => wants.branches,
        Happening::Call { .. } | Happening::Return { .. } => wants.calls == Calls::All,
        Happening::Jump { to } => wants.jumps_to.contains(to),
        Happening::SystemCall { number } => match &wants.system_calls {
            SystemCalls::All => true,
            SystemCalls::Numbered(numbers) => numbers.contains(number),
        },
        Happening::Delivery { vector, .. } => match &wants.deliveries {
            Vectors::All => true,
            Vectors::Numbered(numbers) => numbers.contains(vector),
        },
    }
}

fn place(space: AddressKind, first: u64, bytes: u64) -> Place {
    Place { space, addresses: first..=first + bytes - 1 }
}

/// Sets of happenings that an observer asks for, of all kinds. Some sets are chosen from the happenings of an
/// earlier run.
fn choices(random: &mut Random, all: &[Seen]) -> Vec<Wants> {
    let rips: Vec<u64> = all.iter().map(|seen| seen.at.rip).collect();
    let mut rip = || rips[random.below(rips.len() as u64) as usize];
    let points = (0..3).map(|_| place(AddressKind::Linear, rip(), 1)).collect();
    let range = vec![place(AddressKind::Physical, rip(), 17), place(AddressKind::Linear, rip(), 5)];
    let jumps = all.iter().filter_map(|seen| match seen.what {
        Happening::Jump { to } => Some(to),
        _ => None,
    });
    // About every second target of a jump.
    let jumps = jumps.filter(|to| to & 4 == 0).collect();
    let (linear, physical) = (AddressKind::Linear, AddressKind::Physical);
    let of = |places: &[Place]| Places::In(places.to_vec());
    let none = Wants::default();
    vec![
        Wants { fetches: Places::In(points), ..none.clone() },
        Wants { fetches: Places::In(range.clone()), stores: of(&[place(linear, DATA, 24)]), ..none.clone() },
        Wants { instructions: Some(InstructionFilter::new(is_selected)), ..none.clone() },
        Wants {
            instructions: Some(InstructionFilter::new(is_selected)),
            fetches: Places::In(range),
            calls: Calls::All,
            ..none.clone()
        },
        Wants { loads: of(&[place(linear, DATA + 0x100, 0x80)]), ..none.clone() },
        Wants {
            stores: of(&[place(physical, DATA + 0x900, 3), place(physical, DATA + 8, 8)]),
            ..none.clone()
        },
        Wants { loads: of(&[place(linear, ALIAS, 0x1000)]), stores: Places::All, ..none.clone() },
        Wants { stores: of(&[place(linear, KERNEL_STACK - 64, 64)]), ..none.clone() },
        Wants { loads: of(&[place(linear, IDT, 0x1000)]), deliveries: Vectors::All, ..none.clone() },
        Wants { deliveries: Vectors::Numbered([14, 0x80].into()), ..none.clone() },
        Wants { calls: Calls::All, ..none.clone() },
        Wants { calls: Calls::UpperHalf, deliveries: Vectors::All, ..none.clone() },
        Wants { jumps_to: Arc::new(jumps), ..none.clone() },
        Wants { system_calls: SystemCalls::All, ..none.clone() },
        Wants { branches: true, ..none.clone() },
        none,
    ]
}

fn same(found: &Outcome, expected: &Outcome, what: &str) {
    assert_eq!(found.counts, expected.counts, "{what}");
    assert!(found.state == expected.state, "{what}: {:#x?}\nnot {:#x?}", found.state, expected.state);
    assert!(found.memory == expected.memory, "{what}: memory differs");
    assert_eq!(found.stop, expected.stop, "{what}");
}

fn same_seen(found: &[Seen], expected: &[Seen], what: &str) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    let at = differs.unwrap_or(found.len().min(expected.len()));
    assert!(found == expected, "{what}: number {at} is\n{:x?}\nnot\n{:x?}", found.get(at), expected.get(at));
}

/// Checks that observers receive the same happenings on every tier and under any cuts. One observer wants all
/// happenings, and one observer wants each set in [`choices`]. Returns the number of received happenings for each
/// set.
fn check(make: &dyn Fn() -> Machine, seed: u64) -> Vec<usize> {
    let unseen = run(make, Tier::Interpreter, None, None);
    let log = |wants: &Wants| Some(Log { wants: wants.clone(), ..Log::default() });
    let all = run(make, Tier::Interpreter, log(&everything()), None);
    same(&all, &unseen, &format!("seed {seed} observed"));
    let random = &mut Random(seed);
    let mut choices = choices(random, &all.seen);
    choices.push(everything());
    let mut counts = Vec::new();
    for wants in choices {
        let expected: Vec<Seen> = all.seen.iter().filter(|seen| is_wanted(&wants, seen)).cloned().collect();
        for tier in TIERS {
            for cuts in [None, Some(seed ^ random.below(1 << 30))] {
                let what = format!("seed {seed}, {tier:?}, cuts {cuts:?}, {wants:x?}");
                let found = run(make, tier, log(&wants), cuts);
                same(&found, &unseen, &what);
                same_seen(&found.seen, &expected, &what);
            }
        }
        counts.push(expected.len());
    }
    counts
}

#[test]
fn all_tiers_report_the_same_however_they_are_cut() {
    let mut counts = Vec::new();
    for seed in 0..16 {
        let found = check(&|| program(seed), seed);
        counts.resize(found.len(), 0);
        counts.iter_mut().zip(found).for_each(|(count, more)| *count += more);
    }
    let nothing = counts.iter().filter(|&&count| count == 0).count();
    assert_eq!(nothing, 1, "only the choice of nothing sees nothing: {counts:?}");
}

#[test]
fn random_system_code_is_reported_alike() {
    for seed in 0..24 {
        check(&|| random::machine(seed), seed);
    }
}

/// Caches that were filled before an observer came, or for an earlier observer, are correct for the new one.
#[test]
fn observers_may_come_and_go() {
    for seed in 0..8 {
        let make = || program(seed);
        let everything = Log { wants: everything(), ..Log::default() };
        let all = run(&make, Tier::Interpreter, Some(everything), None);
        for wants in choices(&mut Random(seed), &all.seen) {
            for tier in TIERS {
                let what = format!("seed {seed}, {tier:?}, {wants:x?}");
                let mut m = make();
                m.cpu.set_tier(tier);
                m.load();
                let mut seen = Vec::new();
                for (until, observed) in [(150, false), (250, true), (300, false), (STEPS, true)] {
                    let log = Log { wants: wants.clone(), ..Log::default() };
                    m.cpu.set_observer(observed.then(|| Box::new(log) as Box<dyn Observer>));
                    m.cpu.run(&mut m.bus, until, u64::MAX);
                    if let Some(observer) = m.cpu.set_observer(None) {
                        seen.extend(taken_back(observer).seen);
                    }
                }
                assert!(
                    m.cpu.state() == all.state && m.cpu.counts() == all.counts && memory(&m) == all.memory,
                    "{what}"
                );
                let observed =
                    |seen: &&Seen| matches!(seen.at.step, 150..250 | 300..) && is_wanted(&wants, seen);
                let expected: Vec<Seen> = all.seen.iter().filter(observed).cloned().collect();
                same_seen(&seen, &expected, &what);
            }
        }
    }
}

#[test]
fn an_observer_stops_the_run_behind_the_step() {
    for seed in 0..10 {
        let make = || program(seed);
        let all = run(&make, Tier::Interpreter, Some(Log { wants: everything(), ..Log::default() }), None);
        for tier in TIERS {
            let log = Log { wants: everything(), stops_at_every: Some(3), ..Log::default() };
            let found = run(&make, tier, Some(log), None);
            same(&found, &all, &format!("seed {seed}, {tier:?}"));
            same_seen(&found.seen, &all.seen, &format!("seed {seed}, {tier:?}"));
        }
    }
    let mut m = program(1);
    m.load();
    let fetches = Places::In(vec![place(AddressKind::Linear, CODE + 0x900, 1)]);
    let wants = Wants { fetches, ..Wants::default() };
    m.cpu.set_observer(Some(Box::new(Log { wants, stops_at_every: Some(1), ..Log::default() })));
    let mut calls = 0;
    while m.cpu.run(&mut m.bus, STEPS, u64::MAX) == Stop::Met(Met::Observer) {
        assert_eq!(m.cpu.rip(), CODE + 0x901, "behind the PUSH");
        calls += 1;
    }
    assert!(calls > 0);
}

/// Follows a run in single steps without an observer, and derives the happenings from registers and memory before and
/// after each step.
#[test]
fn what_is_reported_is_what_single_steps_show() {
    for seed in 0..12 {
        let make = || program(seed);
        let all = run(
            &make,
            Tier::Translator { after: 0, parts: Parts::ALL },
            Some(Log { wants: everything(), ..Log::default() }),
            None,
        );
        let mut m = make();
        m.load();
        let mut seen = all.seen.iter().peekable();
        let (mut system_calls, mut conditional) = (0, 0);
        let (mut calls, mut returns) = (0, 0);
        loop {
            let (before, mut known) = (m.cpu.state(), memory(&m));
            let steps = m.cpu.steps();
            let stop = m.cpu.run(&mut m.bus, STEPS.min(steps + 1), u64::MAX);
            let after = m.cpu.state();
            if m.cpu.steps() == steps {
                assert_eq!(stop, all.stop);
                break;
            }
            let of_step: Vec<&Seen> =
                std::iter::from_fn(|| seen.next_if(|seen| seen.at.step == steps)).collect();
            let what = format!("seed {seed}, step {steps}: {of_step:x?}");
            let has = |kind: fn(&Happening) -> bool| of_step.iter().any(|seen| kind(&seen.what));
            assert!(of_step.iter().all(|seen| seen.at.rip == before.rip), "{what}");
            assert_eq!(
                of_step.iter().position(|seen| seen.what == Happening::Fetch),
                (!after_interrupt(&m, &before, &after)).then_some(0),
                "{what}"
            );
            for seen in &of_step {
                match &seen.what {
                    Happening::Load { physical, value, .. } => {
                        let at = *physical as usize;
                        assert_eq!(known[at..at + value.len()], **value, "{what}");
                    }
                    Happening::Store { physical, before, after, .. } => {
                        let at = *physical as usize..*physical as usize + after.len();
                        assert_eq!(Some(&known[at.clone()]), before.as_deref(), "{what}");
                        known[at].copy_from_slice(after);
                    }
                    Happening::Branch { to, taken, conditional: by_condition } => {
                        assert_eq!(*to, after.rip, "{what}");
                        let falls = *by_condition && behind(&m, before.rip) == after.rip;
                        assert_eq!(*taken, !falls, "{what}");
                        assert!(!has(|what| matches!(what, Happening::Delivery { .. })), "{what}");
                        conditional += u64::from(*by_condition);
                    }
                    Happening::Call { to, back } => {
                        assert_eq!((*to, *back), (after.rip, behind(&m, before.rip)), "{what}");
                        assert_eq!(m.ram().load_u64(after.gpr[4]), *back, "{what}");
                        calls += 1;
                    }
                    Happening::Jump { to } => {
                        assert_eq!(*to, after.rip, "{what}");
                        assert!(has(|what| matches!(what, Happening::Branch { taken: true, .. })), "{what}");
                    }
                    Happening::Return { to } => {
                        assert_eq!((*to, before.gpr[4] + 8), (after.rip, after.gpr[4]), "{what}");
                        returns += 1;
                    }
                    Happening::SystemCall { number } => {
                        assert_eq!(*number, before.gpr[0]);
                        system_calls += 1;
                    }
                    Happening::Fetch | Happening::Delivery { .. } => {}
                }
            }
            let tables = TABLES as usize..TABLES as usize + 0xb000;
            let mut now = memory(&m);
            now[tables.clone()].fill(0);
            known[tables].fill(0);
            assert!(now == known, "{what}: other memory changed");
            let jumps = has(|what| matches!(what, Happening::Branch { .. } | Happening::Delivery { .. }));
            let on = [before.rip, behind(&m, before.rip)].contains(&after.rip);
            assert!(jumps || on, "{what}: goes on at {:#x}", after.rip);
            let conditionals = m.cpu.branches() - m.counts.branches;
            assert_eq!(conditional, conditionals, "{what}");
            assert_eq!(system_calls, m.cpu.system_calls(), "{what}");
        }
        assert_eq!(seen.next(), None);
        assert!(system_calls > 0 || conditional > 0);
        assert!(calls > 0 && returns > 0, "{calls} {returns}");
    }
}

/// Whether a step was the delivery of an NMI or of a single-step trap.
fn after_interrupt(m: &Machine, before: &CpuState, after: &CpuState) -> bool {
    let pushed = m.ram().load_u64(after.gpr[4]);
    [1, 2].into_iter().any(|vector| after.rip == handler(vector)) && pushed == before.rip
}

/// RIP after the instruction at an address.
fn behind(m: &Machine, rip: u64) -> u64 {
    let mut bytes = [0; 15];
    m.ram().read_bytes(rip, &mut bytes);
    Decoder::with_ip(64, &bytes, rip, DecoderOptions::NONE).decode().next_ip()
}
