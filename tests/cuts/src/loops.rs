//! Programs of hot loops that resemble compiled code: nested, with functions, branches and accesses that walk
//! through pages. In these programs, the CPU reuses its caches of often executed code for up to millions of steps.
//! Meanwhile the loops' own stores change their code and their pages' entries, and faults leave the loops in the
//! middle.
//!
//! Instructions are drawn from all instructions that user-mode code may execute ([`silicon::catalogue`]). Some
//! registers have roles that no drawn instruction changes, so that the loops stay loops:
//!
//! ```text
//! RBX RBP RSI RDI R12   bases of memory accesses: set at each outer loop's head, and advanced by the loops
//! R13 R14               counters of the inner and the outer loop
//! R15                   where a fault's handler returns to: the innermost loop's end
//! ```

use std::sync::OnceLock;

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};
use silicon::case::spell;
use silicon::catalogue::{Catalogue, offered};

use crate::layout::*;
use seeded::Rng;

const BASES: [u8; 5] = [3, 5, 6, 7, 12];
/// Number of bytes that stay free at the end of a code region. The last part of a loop always fits in these bytes.
const RESERVE: usize = 0x180;
/// The address at which the upper half of the canonical addresses begins.
const UPPER: u64 = 0xffff_8000_0000_0000;
/// The address to which SYSCALL jumps. The address belongs to the handler of a vector that no program uses.
pub const SYSCALL_ENTRY: u64 = HANDLERS + 0xf0 * HANDLER_BYTES;

/// All instructions that [`silicon::catalogue`] offers, and the integer instructions among them.
fn catalogues() -> &'static [Catalogue; 2] {
    static CATALOGUES: OnceLock<[Catalogue; 2]> = OnceLock::new();
    CATALOGUES.get_or_init(|| {
        let integer = |code: Code| {
            use CpuidFeature::*;
            let vector = [FPU, FPU287, FPU387, MMX, SSE, SSE2, SSE3, SSSE3, SSE4_1, SSE4_2, AES, PCLMULQDQ];
            code.cpuid_features().iter().all(|feature| !vector.contains(feature))
        };
        [Catalogue::collect(|_| true), Catalogue::collect(integer)]
    })
}

/// Writes the loops.
pub struct LoopWriter {
    rng: Rng,
    /// Whether privileged instructions are allowed.
    kernel: bool,
    /// Whether inner loops also change code and page-table entries, and accesses go through the alias ([`ALIAS`]).
    /// Otherwise only outer loops change code and entries. In a wild program these changes take most of the time.
    wild: bool,
    /// The written bytes, from `start` on.
    code: Vec<u8>,
    start: u64,
    /// The number of bytes that the writer may fill.
    room: usize,
    info: InstructionInfoFactory,
    functions: Vec<u64>,
    /// Addresses of immediate operands in the code. Stores change these operands.
    immediates: Vec<u64>,
}

/// All code of a program: functions in the last page, loops from [`CODE`] on.
pub fn code(rng: &mut Rng, kernel: bool) -> Vec<(u64, Vec<u8>)> {
    let wild = rng.percent(10);
    let writer = |rng: &mut Rng, start: u64, end: u64| LoopWriter {
        rng: Rng::from_state(rng.bits()),
        kernel,
        wild,
        code: Vec::new(),
        start,
        room: (end - start) as usize,
        info: InstructionInfoFactory::new(),
        functions: Vec::new(),
        immediates: Vec::new(),
    };
    let mut leaves = writer(rng, CODE_END - PAGE, CODE_END);
    for _ in 0..1 + leaves.rng.below(4) {
        let at = leaves.here();
        leaves.function();
        leaves.functions.push(at);
    }
    let mut loops = writer(rng, CODE, CODE_END - PAGE);
    loops.functions = leaves.functions.clone();
    loops.immediates = leaves.immediates.clone();
    loops.program();
    vec![(CODE, loops.code), (CODE_END - PAGE, leaves.code)]
}

/// Returns the code of an exception handler. After a fault, the handler returns to the end of the innermost loop.
/// After any other vector, the handler returns to the interrupted instruction.
pub fn handler(vector: u64, error_code: bool) -> Vec<u8> {
    let mut code = Vec::new();
    if error_code {
        // Remove the error code from the stack by LEA, which does not change the flags.
        code.extend([0x48, 0x8d, 0x64, 0x24, 8]);
    }
    if vector < 0x20 && !matches!(vector, 1..=3) {
        // mov [rsp], r15
        code.extend([0x4c, 0x89, 0x3c, 0x24]);
    }
    code.extend([0x48, 0xcf]);
    code
}

impl LoopWriter {
    fn here(&self) -> u64 {
        self.start + self.code.len() as u64
    }

    fn full(&self) -> bool {
        self.code.len() + RESERVE > self.room
    }

    fn put(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    fn encode(&mut self, instruction: &Instruction) -> bool {
        let mut encoder = Encoder::new(64);
        let fine = encoder.encode(instruction, self.here()).is_ok();
        if fine {
            self.code.extend(encoder.take_buffer());
        }
        fine
    }

    /// Writes the whole program: outer loops one after the other, and a jump from the end of the last loop to the
    /// first loop.
    fn program(&mut self) {
        for _ in 0..1 + self.rng.below(5) {
            self.outer();
        }
        let back = self.start.wrapping_sub(self.here() + 5) as u32;
        self.put(&[0xe9]);
        self.put(&back.to_le_bytes());
    }

    fn outer(&mut self) {
        self.load(4, STACKS[0]);
        for base in BASES {
            let place = self.place();
            self.load(base, place);
        }
        if self.rng.percent(50) {
            // fninit; push 0x1f80; ldmxcsr [rsp]; pop rax: masks the exceptions that earlier loops have unmasked.
            self.put(&[0xdb, 0xe3, 0x68, 0x80, 0x1f, 0, 0, 0x0f, 0xae, 0x14, 0x24, 0x58]);
        }
        let rounds = 1 + self.rng.below(12);
        self.load(14, rounds);
        let head = self.here();
        if self.rng.percent(15) {
            self.change_code();
        }
        if self.rng.percent(15) {
            self.change_entry();
        }
        for _ in 0..1 + self.rng.below(3) {
            self.inner();
        }
        self.count_down(14, head);
    }

    fn inner(&mut self) {
        let rounds = if self.rng.percent(70) { 1 + self.rng.below(40) } else { 1 + self.rng.below(400) };
        self.load(13, rounds);
        let head = self.here();
        // lea r15, [the loop's end]
        self.put(&[0x4c, 0x8d, 0x3d, 0, 0, 0, 0]);
        let continuation = self.code.len();
        let most = if self.rng.percent(80) { 9 } else { 30 };
        for _ in 0..1 + self.rng.below(most) {
            if self.full() {
                break;
            }
            self.element();
        }
        let distance = (self.code.len() - continuation) as u32;
        self.code[continuation - 4..continuation].copy_from_slice(&distance.to_le_bytes());
        if self.rng.percent(60) {
            self.move_on();
        }
        self.count_down(13, head);
    }

    /// Writes DEC or SUB, which set different flags.
    fn count_down(&mut self, counter: u8, head: u64) {
        if self.rng.percent(50) {
            self.put(&[0x49, 0xff, 0xc8 | counter & 7]);
        } else {
            self.put(&[0x49, 0x83, 0xe8 | counter & 7, 1]);
        }
        self.branch_back(head);
    }

    /// Writes `jnz head`, in its short form if the distance fits into a byte.
    fn branch_back(&mut self, head: u64) {
        let short = head.wrapping_sub(self.here() + 2) as i64;
        if short >= -128 {
            self.put(&[0x75, short as u8]);
        } else {
            let near = head.wrapping_sub(self.here() + 6) as u32;
            self.put(&[0x0f, 0x85]);
            self.put(&near.to_le_bytes());
        }
    }

    fn function(&mut self) {
        for _ in 0..1 + self.rng.below(8) {
            if self.full() {
                break;
            }
            self.operation();
        }
        self.put(&[0xc3]);
    }

    /// Writes `mov register, value`.
    fn load(&mut self, register: u8, value: u64) {
        self.put(&[0x48 | register >> 3, 0xb8 | register & 7]);
        self.put(&value.to_le_bytes());
    }

    /// Returns an address for a base register: in the data, often near a page's end, sometimes in the alias.
    fn place(&mut self) -> u64 {
        let end = DATA + (1 + self.rng.below(4)) * PAGE;
        let place = end - if self.rng.percent(40) { self.rng.below(200) } else { self.rng.below(PAGE) };
        let place = if self.rng.percent(75) { place & !15 } else { place };
        match self.rng.below(10) {
            0 if self.wild => place + ALIAS,
            1 => place + UPPER,
            _ => place,
        }
    }

    fn free(&mut self) -> u8 {
        self.rng.pick(&[0, 1, 2, 8, 9, 10, 11])
    }

    /// Writes an instruction that increases a base register: `add` or `lea`.
    fn move_on(&mut self) {
        let (base, distance) = (self.rng.pick(&BASES), self.rng.pick(&[1, 4, 8, 8, 8, 16, 64, 0xf8]));
        if self.rng.percent(50) {
            self.put(&[0x48 | base >> 3, 0x83, 0xc0 | base & 7, distance]);
        } else {
            self.put(&[0x48 | (base >> 3) * 5, 0x8d, 0x40 | (base & 7) << 3 | base & 7]);
            if base & 7 == 4 {
                self.put(&[0x24]);
            }
            self.put(&[distance]);
        }
    }

    fn element(&mut self) {
        match self.rng.below(100) {
            0..=49 => self.operation(),
            50..=59 => self.neighbours(),
            60..=69 => self.skip(),
            70..=76 => self.call(),
            77..=82 => self.push_and_pop(),
            83..=85 => self.keep_flags(),
            86..=88 => self.immediate(),
            89..=91 if self.wild => self.change_code(),
            92..=94 if self.wild => self.change_entry(),
            89..=94 => self.operation(),
            95 | 96 => self.move_on(),
            97 => self.jump_indirectly(),
            _ if self.kernel => self.privileged(),
            _ => self.put(&[0x0f, 0x05]),
        }
    }

    /// Writes a conditional branch over some instructions.
    fn skip(&mut self) {
        if self.rng.percent(60) {
            self.operation();
        }
        let condition = self.rng.below(16) as u8;
        self.put(&[0x0f, 0x80 | condition, 0, 0, 0, 0]);
        let from = self.code.len();
        for _ in 0..1 + self.rng.below(4) {
            self.operation();
        }
        self.patch(from);
    }

    /// Sets the target of the branch that ends at `from` to the current end of the code.
    fn patch(&mut self, from: usize) {
        let distance = (self.code.len() - from) as u32;
        self.code[from - 4..from].copy_from_slice(&distance.to_le_bytes());
    }

    fn call(&mut self) {
        if self.functions.is_empty() {
            return self.operation();
        }
        let target = self.functions[self.rng.below(self.functions.len() as u64) as usize];
        if self.rng.percent(60) {
            let distance = target.wrapping_sub(self.here() + 5) as u32;
            self.put(&[0xe8]);
            self.put(&distance.to_le_bytes());
        } else {
            self.load(0, target);
            self.put(&[0xff, 0xd0]);
        }
    }

    fn push_and_pop(&mut self) {
        let (from, to) = (self.rng.below(16) as u8, self.free());
        self.put(&[0x40 | from >> 3, 0x50 | from & 7]);
        for _ in 0..self.rng.below(3) {
            self.operation();
        }
        self.put(&[0x40 | to >> 3, 0x58 | to & 7]);
    }

    fn keep_flags(&mut self) {
        if self.rng.percent(50) {
            self.put(&[0x9c]);
            self.operation();
            self.put(&[0x9d]);
        } else {
            self.put(&[0x9f]);
            self.operation();
            self.put(&[0x9e]);
        }
    }

    /// Writes arithmetic with an immediate that a store may change later.
    fn immediate(&mut self) {
        let (which, register) = (self.rng.below(8) as u8, self.free());
        let value = self.rng.bits() as u32;
        self.put(&[0x48 | register >> 3, 0x81, 0xc0 | which << 3 | register & 7]);
        self.immediates.push(self.here());
        self.put(&value.to_le_bytes());
    }

    fn change_code(&mut self) {
        if self.immediates.is_empty() {
            return self.immediate();
        }
        let at = self.immediates[self.rng.below(self.immediates.len() as u64) as usize] + self.rng.below(4);
        let at = at + if self.rng.percent(20) { ALIAS } else { 0 };
        if self.rng.percent(50) {
            // Write a store of the same byte each time, so that only the first store changes the code.
            self.put(&[0xc6, 0x04, 0x25]);
            self.put(&(at as u32).to_le_bytes());
            let value = self.rng.bits() as u8;
            self.put(&[value]);
        } else {
            self.put(&[0x88, 0x04, 0x25]);
            self.put(&(at as u32).to_le_bytes());
        }
    }

    /// Writes code that changes the page-table entry of a page with data: the entry's rights, its target, its
    /// accessed and dirty bits.
    fn change_entry(&mut self) {
        if self.rng.percent(10) {
            return self.change_root();
        }
        let page = if self.rng.percent(50) {
            DATA / PAGE + self.rng.below((RAM_BYTES - DATA) / PAGE)
        } else {
            (ALIAS + DATA) / PAGE + self.rng.below((RAM_BYTES - DATA) / PAGE)
        };
        let bits = self.rng.pick(&[1_u32, 2, 2, 4, 0x20, 0x40, 0x60, 0x1000, 0x1000, 0x2_0000]);
        self.change(LEAVES[0] + 8 * page, bits);
    }

    /// Writes code that changes an entry of a root table. The entry gets other rights, or points to the other set
    /// of tables. The two sets of tables map the same code.
    fn change_root(&mut self) {
        let root = self.rng.pick(&ROOTS);
        let (half, bits) = self.rng.pick(&[(0, 0x1000), (256, 0x1000), (256, 1), (256, 2), (256, 0x20)]);
        self.change(root + 8 * half, bits);
    }

    fn change(&mut self, entry: u64, bits: u32) {
        // xor qword [the entry], bits
        self.put(&[0x48, 0x81, 0x34, 0x25]);
        self.put(&(entry as u32).to_le_bytes());
        self.put(&bits.to_le_bytes());
    }

    /// Writes accesses to addresses near each other, through a copy of a base register. Some instructions change the
    /// copy between two accesses.
    fn neighbours(&mut self) {
        let (base, copy) = (self.rng.pick(&BASES), self.free());
        // mov copy, base
        self.put(&[0x48 | base >> 3 << 2 | copy >> 3, 0x89, 0xc0 | (base & 7) << 3 | copy & 7]);
        for _ in 0..3 + self.rng.below(6) {
            let distance = self.rng.below(64) as u8;
            let by_copy = |opcode: u8, register: u8, wide: u8| {
                [
                    0x40 | wide | register >> 3 << 2 | copy >> 3,
                    opcode,
                    0x40 | (register & 7) << 3 | copy & 7,
                    distance,
                ]
            };
            match self.rng.below(12) {
                // mov, add, cmp with a register that is not the copy.
                0..=7 => {
                    let register = self.free();
                    let register = if register == copy { copy ^ 1 } else { register };
                    let register = if has_role_number(register) { 0 } else { register };
                    let opcode = self.rng.pick(&[0x8b, 0x8b, 0x89, 0x01, 0x03, 0x3b, 0x8a, 0x88]);
                    let wide = self.rng.pick(&[0, 8, 8]);
                    self.put(&by_copy(opcode, register, wide));
                }
                8 => self.put(&[0x48 | copy >> 3, 0x83, 0xc0 | copy & 7, distance]),
                // Adds to the lower 32 bits of the copy, which clears the upper half.
                9 => self.put(&[0x40 | copy >> 3, 0x83, 0xc0 | copy & 7, distance]),
                10 => self.put(&by_copy(0x8d, copy, 8)),
                _ => self.put(&[0x48 | copy >> 3, 0xff, 0xc0 | copy & 7]),
            }
        }
    }

    fn jump_indirectly(&mut self) {
        // lea rax, [the address after the skipped instruction]; jmp rax
        self.put(&[0x48, 0x8d, 0x05, 0, 0, 0, 0]);
        let from = self.code.len();
        self.put(&[0xff, 0xe0]);
        self.operation();
        self.patch(from);
    }

    fn privileged(&mut self) {
        match self.rng.below(8) {
            0 => self.put(&[0xfa]),
            1 => self.put(&[0xfb]),
            2 => {
                // mov eax, a root; mov cr3, rax
                self.put(&[0xb8]);
                let root = self.rng.pick(&ROOTS);
                self.put(&(root as u32).to_le_bytes());
                self.put(&[0x0f, 0x22, 0xd8]);
            }
            3 => self.put(&[0x0f, 0x01, 0xf8]),
            4 => {
                // invlpg [a base]
                let base = self.rng.pick(&[3, 6, 7]);
                self.put(&[0x0f, 0x01, 0x38 | base]);
            }
            // out 8, al; in eax, 16; or rdtsc. The board's digest and its answers depend on the step count.
            5 => self.put(&[0xe6, 8]),
            6 => self.put(&[0xe5, 16]),
            _ => self.put(&[0x0f, 0x31]),
        }
    }

    /// Writes a random instruction. A memory operand is relative to one of the base registers (`BASES`).
    fn operation(&mut self) {
        loop {
            let catalogue = &catalogues()[usize::from(self.rng.percent(65))];
            let (_, forms) = &catalogue.entries[self.rng.below(catalogue.entries.len() as u64) as usize];
            let form = &forms[self.rng.below(forms.len() as u64) as usize];
            let bytes = spell(&mut self.rng, form);
            let mut instruction =
                Decoder::with_ip(64, &bytes[..15], self.here(), DecoderOptions::NONE).decode();
            if !offered(&instruction) || instruction.flow_control() != FlowControl::Next {
                continue;
            }
            let string = instruction.is_string_instruction();
            if !self.keeps_roles(&instruction, string) {
                continue;
            }
            if string && (instruction.has_rep_prefix() || instruction.has_repne_prefix()) {
                let rounds = self.rng.below(40);
                self.load(1, rounds);
            }
            let accesses = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
            if accesses {
                self.aim(&mut instruction);
                if self.encode(&instruction) {
                    return;
                }
            } else {
                let length = instruction.len();
                self.put(&bytes[..length]);
                return;
            }
        }
    }

    /// Returns whether the instruction changes no register with a role. The pointer registers that a string
    /// instruction advances are allowed to change.
    fn keeps_roles(&mut self, instruction: &Instruction, string: bool) -> bool {
        use Mnemonic::*;
        // These instructions load the whole x87 and vector state from random bytes. After that, most x87 and vector
        // instructions fault.
        if matches!(instruction.mnemonic(), Fxrstor | Fxrstor64 | Frstor | Fldenv | Enter | Leave) {
            return false;
        }
        // These instructions almost always fault, at once or later. The rest of the loop is then never executed.
        let far = matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc)
            && instruction.op0_kind() == OpKind::Memory
            && instruction.op1_kind() == OpKind::Register;
        let faults = far || matches!(instruction.mnemonic(), Div | Idiv | Ldmxcsr | Fldcw);
        if faults && !self.rng.percent(if self.wild { 50 } else { 5 }) {
            return false;
        }
        let info = self.info.info(instruction);
        info.used_registers().iter().all(|used| {
            let register = used.register().full_register();
            let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            let moved = string && matches!(register, Register::RSI | Register::RDI);
            reads || moved || !has_role(register)
        })
    }

    /// Gives the memory operand a base register with a role, a displacement, and sometimes an index register.
    fn aim(&mut self, instruction: &mut Instruction) {
        use Register::*;
        let base = self.rng.pick(&[RBX, RBP, RSI, RDI, R12]);
        instruction.set_segment_prefix(None);
        instruction.set_memory_base(base);
        instruction.set_memory_index(None);
        instruction.set_memory_index_scale(1);
        if self.rng.percent(15) {
            // Use R13, the inner loop's counter, because its values are small enough for an index.
            instruction.set_memory_index(R13);
            instruction.set_memory_index_scale(self.rng.pick(&[1, 4, 8, 8]));
        }
        // Most vector operands must be at a multiple of their size.
        let step = instruction.memory_size().size().clamp(8, 16) as u64;
        let near = self.rng.percent(90);
        let distance = if near { self.rng.below(8) * step } else { self.rng.below(0x400) };
        let distance = if self.rng.percent(30) { distance.wrapping_neg() } else { distance };
        instruction.set_memory_displ_size(if near { 1 } else { 8 });
        instruction.set_memory_displacement64(distance);
    }
}

fn has_role_number(register: u8) -> bool {
    matches!(register, 3..=7 | 12..)
}

fn has_role(register: Register) -> bool {
    use Register::*;
    matches!(register, RBX | RBP | RSI | RDI | RSP | R12 | R13 | R14 | R15)
}
