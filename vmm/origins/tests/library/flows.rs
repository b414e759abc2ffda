//! Random programs that move known bytes through registers and memory. The generator writes down for each instruction
//! which bytes it moves, and follows each value back and forward by its own list. ttvm must find the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use history::timeline::Timeline;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::position::Instructions;
use origins::{Answer, EndKind, Location, Onward, OnwardEnd, PassageKind, WhereTo, WhoSet};
use tiny_guest::STIRRED;
use tiny_guest::long_mode::{ALIAS, STACK, record};

/// The number of programs. The next constants are the approximate number of instructions in each program, and the
/// number of places at which the test follows values. The last constant is the number of values at each place.
const PROGRAMS: u64 = 8;
const OPERATIONS: usize = 260;
const PLACES: usize = 4;
const VALUES: usize = 14;
/// The number of slots of 16 bytes in memory.
const SLOTS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Byte {
    General(usize, u64),
    Vector(usize, u64),
    Memory(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Byte(Byte),
    Constant,
    Computed,
    Outside,
    Unfollowed,
    /// Zeros or sign bits that fill a register.
    Zeros,
    Signs,
}

/// The bytes that an instruction writes, each with its source.
type Moves = Vec<(Byte, From)>;

/// A seeded generator of numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Numbers of the registers that programs use. RSP is the stack, RBP and R15 point to the slots.
const USED: [usize; 13] = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14];
const R64: [AsmRegister64; 16] =
    [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
const R32: [AsmRegister32; 16] =
    [eax, ecx, edx, ebx, esp, ebp, esi, edi, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d];
const R16: [AsmRegister16; 16] =
    [ax, cx, dx, bx, sp, bp, si, di, r8w, r9w, r10w, r11w, r12w, r13w, r14w, r15w];
const R8: [AsmRegister8; 16] =
    [al, cl, dl, bl, spl, bpl, sil, dil, r8b, r9b, r10b, r11b, r12b, r13b, r14b, r15b];
const XMM: [AsmRegisterXmm; 8] = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7];

fn general(register: usize, first: u64, bytes: u64) -> Vec<Byte> {
    (first..first + bytes).map(|byte| Byte::General(register, byte)).collect()
}

fn vector(register: usize, first: u64, bytes: u64) -> Vec<Byte> {
    (first..first + bytes).map(|byte| Byte::Vector(register, byte)).collect()
}

fn memory(address: u64, bytes: u64) -> Vec<Byte> {
    (address..address + bytes).map(Byte::Memory).collect()
}

fn copy(to: Vec<Byte>, from: Vec<Byte>) -> Moves {
    assert_eq!(to.len(), from.len());
    to.into_iter().zip(from.into_iter().map(From::Byte)).collect()
}

fn all(to: Vec<Byte>, from: From) -> Moves {
    to.into_iter().map(|byte| (byte, from)).collect()
}

/// A write of a part of a general register: 4 bytes clear the upper half.
fn to_general(register: usize, from: &[From]) -> Moves {
    let mut moves: Moves =
        general(register, 0, from.len() as u64).into_iter().zip(from.iter().copied()).collect();
    if from.len() == 4 {
        moves.extend(all(general(register, 4, 4), From::Zeros));
    }
    moves
}

fn bytes(from: Vec<Byte>) -> Vec<From> {
    from.into_iter().map(From::Byte).collect()
}

struct Program {
    a: CodeAssembler,
    moves: Vec<Moves>,
    numbers: Numbers,
    stack: u64,
}

/// Adds an instruction with the bytes that it moves.
macro_rules! add {
    ($program:expr, $emit:expr, $moves:expr) => {{
        $emit?;
        let moves: Moves = $moves;
        $program.moves.push(moves);
        assert_eq!($program.moves.len() + 1, $program.a.instructions().len());
    }};
}

impl Program {
    fn register(&mut self) -> usize {
        USED[self.numbers.below(USED.len() as u64) as usize]
    }

    fn two(&mut self) -> (usize, usize) {
        let first = self.register();
        loop {
            let second = self.register();
            if second != first {
                return (first, second);
            }
        }
    }

    /// A place in a slot: its physical address, and an operand that addresses this place through one of two mappings.
    fn slot(&mut self, length: u64) -> (u64, AsmMemoryOperand) {
        let offset = 16 * self.numbers.below(SLOTS) + self.numbers.below(16 / length) * length;
        let base = if self.numbers.below(2) == 0 { rbp } else { r15 };
        (STIRRED + offset, base + offset as i32)
    }

    fn begin(&mut self) -> Result<(), IcedError> {
        add!(self, self.a.mov(rbp, STIRRED), Vec::new());
        add!(self, self.a.mov(r15, STIRRED + ALIAS), Vec::new());
        for register in USED {
            self.load_constant(register)?;
        }
        // Half of the slots keep the contents that they have at the start.
        for slot in 0..SLOTS {
            let (from, offset) = (self.register(), 16 * slot);
            let moves = copy(memory(STIRRED + offset, 8), general(from, 0, 8));
            add!(self, self.a.mov(qword_ptr(rbp + offset as i32), R64[from]), moves);
        }
        Ok(())
    }

    fn load_constant(&mut self, register: usize) -> Result<(), IcedError> {
        let number = self.numbers.next() | 1 << 40;
        add!(self, self.a.mov(R64[register], number), all(general(register, 0, 8), From::Constant));
        Ok(())
    }

    fn operation(&mut self) -> Result<(), IcedError> {
        let (to, from) = self.two();
        let x = self.numbers.below(8) as usize;
        let y = (x + 1 + self.numbers.below(7) as usize) % 8;
        let length = [1, 2, 4, 8, 8, 8, 8, 8][self.numbers.below(8) as usize];
        match self.numbers.below(37) {
            0 => self.load_constant(to)?,
            1 => {
                let number = self.numbers.next() as u32;
                add!(self, self.a.mov(R32[to], number), to_general(to, &[From::Constant; 4]));
            }
            2..=3 => {
                let moves = to_general(to, &bytes(general(from, 0, length)));
                let a = &mut self.a;
                add!(
                    self,
                    match length {
                        1 => a.mov(R8[to], R8[from]),
                        2 => a.mov(R16[to], R16[from]),
                        4 => a.mov(R32[to], R32[from]),
                        _ => a.mov(R64[to], R64[from]),
                    },
                    moves
                );
            }
            4..=7 => {
                let (address, place) = self.slot(length);
                let moves = copy(memory(address, length), general(from, 0, length));
                let a = &mut self.a;
                add!(
                    self,
                    match length {
                        1 => a.mov(byte_ptr(place), R8[from]),
                        2 => a.mov(word_ptr(place), R16[from]),
                        4 => a.mov(dword_ptr(place), R32[from]),
                        _ => a.mov(qword_ptr(place), R64[from]),
                    },
                    moves
                );
            }
            8..=11 => {
                let (address, place) = self.slot(length);
                let moves = to_general(to, &bytes(memory(address, length)));
                let a = &mut self.a;
                add!(
                    self,
                    match length {
                        1 => a.mov(R8[to], byte_ptr(place)),
                        2 => a.mov(R16[to], word_ptr(place)),
                        4 => a.mov(R32[to], dword_ptr(place)),
                        _ => a.mov(R64[to], qword_ptr(place)),
                    },
                    moves
                );
            }
            12 => {
                let mut moves = copy(general(to, 0, 1), general(from, 0, 1));
                moves.extend(all(general(to, 1, 7), From::Zeros));
                add!(self, self.a.movzx(R32[to], R8[from]), moves);
            }
            13 => {
                let (address, place) = self.slot(4);
                let mut moves = copy(general(to, 0, 4), memory(address, 4));
                moves.extend(all(general(to, 4, 4), From::Signs));
                add!(self, self.a.movsxd(R64[to], dword_ptr(place)), moves);
            }
            14..=15 => {
                self.stack -= 8;
                let stack = self.stack;
                add!(self, self.a.push(R64[from]), copy(memory(stack, 8), general(from, 0, 8)));
            }
            16..=17 if self.stack < STACK => {
                let stack = self.stack;
                self.stack += 8;
                add!(self, self.a.pop(R64[to]), copy(general(to, 0, 8), memory(stack, 8)));
            }
            18 => {
                let mut moves = copy(general(to, 0, 8), general(from, 0, 8));
                moves.extend(copy(general(from, 0, 8), general(to, 0, 8)));
                add!(self, self.a.xchg(R64[to], R64[from]), moves);
            }
            19 => {
                let (address, place) = self.slot(8);
                let mut moves = copy(general(to, 0, 8), memory(address, 8));
                moves.extend(copy(memory(address, 8), general(to, 0, 8)));
                add!(self, self.a.xchg(qword_ptr(place), R64[to]), moves);
            }
            20 => {
                let mut moves = copy(vector(x, 0, 8), general(from, 0, 8));
                moves.extend(all(vector(x, 8, 8), From::Zeros));
                add!(self, self.a.movq(XMM[x], R64[from]), moves);
            }
            21 => add!(self, self.a.movq(R64[to], XMM[x]), copy(general(to, 0, 8), vector(x, 0, 8))),
            22 => {
                let (address, place) = self.slot(16);
                add!(
                    self,
                    self.a.movups(XMM[x], xmmword_ptr(place)),
                    copy(vector(x, 0, 16), memory(address, 16))
                );
            }
            23 => {
                let (address, place) = self.slot(16);
                add!(
                    self,
                    self.a.movdqa(xmmword_ptr(place), XMM[x]),
                    copy(memory(address, 16), vector(x, 0, 16))
                );
            }
            24 => add!(self, self.a.movaps(XMM[x], XMM[y]), copy(vector(x, 0, 16), vector(y, 0, 16))),
            25 => {
                let (address, place) = self.slot(8);
                match self.numbers.below(4) {
                    0 => add!(
                        self,
                        self.a.movhps(XMM[x], qword_ptr(place)),
                        copy(vector(x, 8, 8), memory(address, 8))
                    ),
                    1 => add!(
                        self,
                        self.a.movhps(qword_ptr(place), XMM[x]),
                        copy(memory(address, 8), vector(x, 8, 8))
                    ),
                    2 => add!(
                        self,
                        self.a.movlps(XMM[x], qword_ptr(place)),
                        copy(vector(x, 0, 8), memory(address, 8))
                    ),
                    _ => add!(self, self.a.movss(XMM[x], XMM[y]), copy(vector(x, 0, 4), vector(y, 0, 4))),
                }
            }
            26 => match self.numbers.below(3) {
                0 => add!(self, self.a.punpcklqdq(XMM[x], XMM[y]), copy(vector(x, 8, 8), vector(y, 0, 8))),
                1 => add!(self, self.a.movhlps(XMM[x], XMM[y]), copy(vector(x, 0, 8), vector(y, 8, 8))),
                _ => {
                    let parts =
                        [vector(y, 8, 4), vector(y, 12, 4), vector(y, 0, 4), vector(y, 4, 4)].concat();
                    add!(self, self.a.pshufd(XMM[x], XMM[y], 0x4e), copy(vector(x, 0, 16), parts));
                }
            },
            27 => {
                let reversed = general(to, 0, 8).into_iter().rev().collect();
                add!(self, self.a.bswap(R64[to]), copy(general(to, 0, 8), reversed));
            }
            28 => add!(self, self.a.imul_3(R64[to], R64[from], 77), all(general(to, 0, 8), From::Computed)),
            29 => add!(self, self.a.xor(R32[to], R32[to]), to_general(to, &[From::Constant; 4])),
            30 => match self.numbers.below(2) {
                0 => add!(
                    self,
                    self.a.lea(R64[to], ptr(R64[from])),
                    copy(general(to, 0, 8), general(from, 0, 8))
                ),
                _ => add!(self, self.a.lea(R64[to], R64[from] + 8), all(general(to, 0, 8), From::Computed)),
            },
            31 => {
                // The stack pointer is never zero.
                add!(self, self.a.test(rsp, rsp), Vec::new());
                match self.numbers.below(2) {
                    0 => add!(
                        self,
                        self.a.cmovne(R64[to], R64[from]),
                        copy(general(to, 0, 8), general(from, 0, 8))
                    ),
                    _ => add!(self, self.a.cmove(R64[to], R64[from]), Vec::new()),
                }
            }
            32 => {
                let (address, place) = self.slot(8);
                let place = qword_ptr(place);
                add!(self, self.a.mov(rax, place), copy(general(0, 0, 8), memory(address, 8)));
                let from = if from == 0 { 9 } else { from };
                if self.numbers.below(2) == 0 {
                    let moves = copy(memory(address, 8), general(from, 0, 8));
                    add!(self, self.a.cmpxchg(place, R64[from]), moves);
                } else {
                    add!(self, self.a.not(rax), all(general(0, 0, 8), From::Computed));
                    let moves = copy(general(0, 0, 8), memory(address, 8));
                    add!(self, self.a.cmpxchg(place, R64[from]), moves);
                }
            }
            33 => {
                let (address, place) = self.slot(8);
                let mut moves = copy(general(from, 0, 8), memory(address, 8));
                moves.extend(all(memory(address, 8), From::Computed));
                add!(self, self.a.xadd(qword_ptr(place), R64[from]), moves);
            }
            34 => self.string()?,
            35 => match self.numbers.below(4) {
                0 => {
                    let moves = [0, 2].map(|register| to_general(register, &[From::Outside; 4])).concat();
                    add!(self, self.a.rdtsc(), moves);
                }
                1 => add!(self, self.a.in_(eax, 0x80), to_general(0, &[From::Outside; 4])),
                2 => {
                    let moves =
                        [0, 1, 2, 3].map(|register| to_general(register, &[From::Outside; 4])).concat();
                    add!(self, self.a.cpuid(), moves);
                }
                _ => {
                    self.stack -= 8;
                    let stack = self.stack;
                    add!(self, self.a.pushfq(), all(memory(stack, 8), From::Unfollowed));
                }
            },
            36 => {
                let mut behind = self.a.create_label();
                self.stack -= 8;
                let stack = self.stack;
                add!(self, self.a.call(behind), all(memory(stack, 8), From::Constant));
                self.a.set_label(&mut behind)?;
                self.stack += 8;
                add!(self, self.a.pop(R64[to]), copy(general(to, 0, 8), memory(stack, 8)));
            }
            _ => add!(self, self.a.mov(R64[to], R64[from]), copy(general(to, 0, 8), general(from, 0, 8))),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), IcedError> {
        let (from, to) =
            (16 * self.numbers.below(SLOTS / 2), 16 * (SLOTS / 2 + self.numbers.below(SLOTS / 2)));
        let (from, to) = (STIRRED + from, STIRRED + to);
        add!(self, self.a.mov(rsi, from + ALIAS), all(general(6, 0, 8), From::Constant));
        add!(self, self.a.mov(rdi, to), all(general(7, 0, 8), From::Constant));
        let pointers = |registers: &[usize]| -> Moves {
            registers.iter().flat_map(|register| all(general(*register, 0, 8), From::Computed)).collect()
        };
        match self.numbers.below(5) {
            0 => {
                let mut moves = copy(memory(to, 8), memory(from, 8));
                moves.extend(pointers(&[6, 7]));
                add!(self, self.a.movsq(), moves);
            }
            1 => {
                add!(self, self.a.mov(ecx, 16), to_general(1, &[From::Constant; 4]));
                let mut moves = copy(memory(to, 16), memory(from, 16));
                moves.extend(pointers(&[1, 6, 7]));
                add!(self, self.a.rep().movsb(), moves);
            }
            2 => {
                add!(self, self.a.mov(ecx, 2), to_general(1, &[From::Constant; 4]));
                let mut moves = copy(memory(to, 16), memory(from, 16));
                moves.extend(pointers(&[1, 6, 7]));
                add!(self, self.a.rep().movsq(), moves);
            }
            3 => {
                let mut moves = copy(memory(to, 8), general(0, 0, 8));
                moves.extend(pointers(&[7]));
                add!(self, self.a.stosq(), moves);
            }
            _ => {
                let mut moves = copy(general(0, 0, 8), memory(from, 8));
                moves.extend(pointers(&[6]));
                add!(self, self.a.lodsq(), moves);
            }
        }
        Ok(())
    }
}

/// The chain that the generator expects: the numbers of the writing instructions, and the kind of the end.
fn expected(moves: &[Moves], mut wanted: Vec<Byte>, mut before: usize) -> (Vec<usize>, EndKind) {
    let mut links = Vec::new();
    loop {
        let writer = |byte: &Byte| {
            (0..before).rev().find(|number| moves[*number].iter().any(|(written, _)| written == byte))
        };
        let writers: Vec<Option<usize>> = wanted.iter().map(writer).collect();
        if writers.iter().any(|one| *one != writers[0]) {
            return (links, EndKind::Parts);
        }
        let Some(number) = writers[0] else { return (links, EndKind::Start) };
        links.push(number);
        let sources: BTreeMap<Byte, From> = moves[number].iter().copied().collect();
        let sources: Vec<From> = wanted.iter().map(|byte| sources[byte]).collect();
        let copied = sources.iter().filter_map(|from| match from {
            From::Byte(byte) => Some(*byte),
            _ => None,
        });
        let copied: Vec<Byte> = copied.collect();
        let others: Vec<From> = sources.into_iter().filter(|from| !matches!(from, From::Byte(_))).collect();
        if others.iter().all(|from| matches!(from, From::Zeros | From::Signs)) && !copied.is_empty() {
            (wanted, before) = (copied, number);
            continue;
        }
        let kind = match others.iter().find(|from| **from != From::Zeros) {
            _ if !copied.is_empty() => EndKind::Computed,
            None | Some(From::Constant) => EndKind::Constant,
            Some(From::Outside) => EndKind::Outside,
            Some(From::Unfollowed) => EndKind::Unfollowed,
            _ => EndKind::Computed,
        };
        return (links, kind);
    }
}

/// A value to follow: its notation, and its bytes.
fn value(numbers: &mut Numbers) -> (String, Vec<Byte>) {
    let names = |register: usize| format!("{:?}", iced_x86::Register::from(R64[register])).to_lowercase();
    match numbers.below(4) {
        0 => {
            let register = USED[numbers.below(USED.len() as u64) as usize];
            (names(register), general(register, 0, 8))
        }
        1 => {
            let register = [0, 1, 2, 3][numbers.below(4) as usize];
            let name = ["eax", "ecx", "edx", "ebx"][register];
            (name.to_string(), general(register, 0, 4))
        }
        2 => {
            let register = numbers.below(8) as usize;
            (format!("xmm{register}"), vector(register, 0, 8))
        }
        _ => {
            let length = 1 << numbers.below(4);
            let address = STIRRED + 16 * numbers.below(SLOTS) + numbers.below(16 / length) * length;
            let notation = [address, address + ALIAS][numbers.below(2) as usize];
            (format!("{notation:#x}:{length}"), memory(address, length))
        }
    }
}

/// A random program, its recording, and the addresses of its instructions.
struct Recorded {
    moves: Vec<Moves>,
    numbers: Numbers,
    addresses: Vec<u64>,
    timeline: Timeline,
    seed: u64,
}

impl Recorded {
    fn with(directory: &Path, seed: u64) -> Recorded {
        let a = CodeAssembler::new(64).unwrap();
        let mut program = Program { a, moves: Vec::new(), numbers: Numbers(seed), stack: STACK };
        let write = |a: &mut CodeAssembler| {
            std::mem::swap(&mut program.a, a);
            program.begin()?;
            (0..OPERATIONS).try_for_each(|_| program.operation())?;
            std::mem::swap(&mut program.a, a);
            Ok(())
        };
        let (recording, _, addresses) = record(directory, "flows.ttvm", write, Vec::new());
        let Program { moves, numbers, .. } = program;
        assert_eq!(moves.len() + 1, addresses.len(), "seed {seed}");
        Recorded { moves, numbers, addresses, timeline: Timeline::open_with(&recording, 1).unwrap(), seed }
    }

    /// The place before an instruction.
    fn before(&mut self, number: usize) -> Instructions {
        let address = self.addresses[number];
        self.timeline.seek(Instructions(0), &mut || false).unwrap();
        self.timeline.set_breakpoints(vec![address]);
        self.timeline.run_forward(&mut || false).unwrap();
        self.timeline.set_breakpoints(Vec::new());
        assert_eq!(self.timeline.registers().rip, address, "seed {}", self.seed);
        self.timeline.position()
    }

    fn rip(&self, number: usize) -> String {
        format!("{:#x}", self.addresses[number])
    }
}

#[test]
fn values_of_random_programs_are_followed_to_their_origin() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let (mut flows, mut links) = (0, 0);
    for seed in 0..PROGRAMS {
        let directory = tempfile::tempdir().unwrap();
        let mut program = Recorded::with(directory.path(), seed);
        let count = program.moves.len();
        for place in 0..PLACES {
            let before =
                if place == 0 { count } else { 20 + program.numbers.below(count as u64 - 20) as usize };
            let at = program.before(before);
            for _ in 0..VALUES {
                let (notation, bytes) = value(&mut program.numbers);
                let location: Location = notation.parse().unwrap();
                let question = WhoSet { location: &location, processor: None, at, limit: 1000 };
                let answer: Answer = question.run(&mut program.timeline, &mut || false).unwrap();
                let (writers, kind) = expected(&program.moves, bytes, before);
                let rips: Vec<String> = writers.iter().map(|number| program.rip(*number)).collect();
                let found: Vec<&String> = answer.links.iter().map(|link| &link.rip).collect();
                let is_right = answer.end.kind == kind && found.iter().copied().eq(&rips);
                assert!(
                    is_right,
                    "seed {seed}, {notation} at {at}: expected {rips:?} and {kind:?}, found\n{answer}"
                );
                flows += 1;
                links += found.len();
                *kinds.entry(format!("{kind:?}")).or_default() += 1;
            }
        }
    }
    println!("{flows} flows of {links} links: {kinds:?}");
    assert!(flows >= 300);
}

/// The way forward that the generator expects: the numbers of the copying instructions, and the bytes that hold the value
/// before instruction `until`.
fn expected_onward(
    moves: &[Moves],
    value: Vec<Byte>,
    before: usize,
    until: usize,
) -> (Vec<usize>, BTreeSet<Byte>) {
    let (mut copies, mut held) = (Vec::new(), BTreeSet::from_iter(value));
    for (number, moved) in moves.iter().enumerate().take(until).skip(before) {
        let copied: Vec<Byte> = moved
            .iter()
            .filter_map(|(to, from)| matches!(from, From::Byte(from) if held.contains(from)).then_some(*to))
            .collect();
        moved.iter().for_each(|(to, _)| {
            held.remove(to);
        });
        if !copied.is_empty() {
            copies.push(number);
        }
        held.extend(copied);
        if held.is_empty() {
            break;
        }
    }
    (copies, held)
}

/// The addresses in memory that an answer names at its end.
fn memory_left(answer: &Onward) -> BTreeSet<u64> {
    let parts = answer.left.iter().filter_map(|span| {
        let first = u64::from_str_radix(span.physical.as_ref()?.strip_prefix("0x")?, 16).ok()?;
        Some(first..first + span.bytes as u64)
    });
    parts.flatten().collect()
}

#[test]
fn values_of_random_programs_are_followed_to_all_their_copies() {
    let (mut flows, mut copies, mut gone) = (0, 0, 0);
    for seed in 100..100 + PROGRAMS {
        let directory = tempfile::tempdir().unwrap();
        let mut program = Recorded::with(directory.path(), seed);
        let count = program.moves.len();
        for _ in 0..PLACES {
            let before = 20 + program.numbers.below(count as u64 - 20) as usize;
            let end = before + program.numbers.below((count - before) as u64) as usize;
            let (at, until) = (program.before(before), program.before(end));
            for _ in 0..VALUES {
                let (notation, bytes) = value(&mut program.numbers);
                let location: Location = notation.parse().unwrap();
                let question =
                    WhereTo { with_registers: true, limit: 1000, ..crate::onward_from(&location, at, until) };
                let answer = question.run(&mut program.timeline, &mut || false).unwrap();
                let (expected, held) = expected_onward(&program.moves, bytes, before, end);
                let expected: Vec<String> = expected.iter().map(|number| program.rip(*number)).collect();
                let copied = answer.passages.iter().filter(|passage| passage.kind == PassageKind::Copied);
                let mut found: Vec<&String> = copied.map(|passage| &passage.rip).collect();
                // A repeated instruction may copy parts of the value in several steps.
                found.dedup();
                let memory: BTreeSet<u64> = held
                    .iter()
                    .filter_map(|byte| match byte {
                        Byte::Memory(address) => Some(*address),
                        _ => None,
                    })
                    .collect();
                let left: usize = answer.left.iter().map(|span| span.bytes).sum();
                let is_gone = answer.end == OnwardEnd::Gone;
                let is_right = found.iter().copied().eq(&expected)
                    && is_gone == held.is_empty()
                    && (answer.has_more_left || left == held.len() && memory_left(&answer) == memory);
                assert!(
                    is_right,
                    "seed {seed}, {notation} at {at}: expected {expected:?} and {held:?}, found\n{answer}"
                );
                flows += 1;
                copies += found.len();
                gone += usize::from(is_gone);
            }
        }
    }
    println!("{flows} flows of {copies} copies, {gone} overwritten");
    assert!(flows >= 300 && copies > 300 && gone > 100);
}
