//! A guest that branches for ever, in every possible way, and never repeats a state. The software CPU runs it as the
//! reference.

use cpu::{Counts, Cpu, CpuState, EmptyBus, Segment, Stop, TableRegister};
use guest_ram::GuestRam;
use iced_x86::code_asm::*;

/// RAM: tables, code, stack and data.
pub const RAM_BYTES: usize = 256 << 10;
const CODE: u64 = 0x1000;
const TABLES: u64 = 0x8000;
const STACK: u64 = 0x10000;
const DATA: u64 = 0x20000;
/// Source and target of copies, and target of fills.
const COPY: u64 = DATA + 0x1000;
const FILL: u64 = DATA + 0x2000;

/// RBX holds the pseudo-random sequence. No instruction leaves a flag undefined.
fn program() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut round = a.create_label();
    let mut next_random = a.create_label();
    let mut leaf = a.create_label();
    let mut even = a.create_label();
    let mut joined = a.create_label();
    let (mut inner, mut skipped) = (a.create_label(), a.create_label());
    let (mut outer, mut middle) = (a.create_label(), a.create_label());
    let (mut until_equal, mut rare) = (a.create_label(), a.create_label());

    a.set_label(&mut round)?;
    a.call(next_random)?;
    a.test(al, 1)?;
    a.jz(even)?;
    a.add(r8, rax)?;
    a.call(leaf)?;
    a.jmp(joined)?;
    a.set_label(&mut even)?;
    a.xor(r8, rbx)?;
    a.set_label(&mut joined)?;

    // A LOOP of 0 to 15 rounds, with a store inside.
    a.mov(ecx, eax)?;
    a.and(ecx, 15)?;
    a.jrcxz(skipped)?;
    a.set_label(&mut inner)?;
    a.xor(qword_ptr(rcx * 8 + DATA), rbx)?;
    a.add(rdx, rcx)?;
    a.loop_(inner)?;
    a.set_label(&mut skipped)?;

    // Copies and fills of 0 to 7 words.
    a.movzx(ecx, ah)?;
    a.and(ecx, 7)?;
    a.mov(esi, DATA as u32)?;
    a.mov(edi, COPY as u32)?;
    a.rep().movsq()?;
    a.mov(ecx, eax)?;
    a.and(ecx, 3)?;
    a.mov(edi, FILL as u32)?;
    a.mov(rax, rbx)?;
    a.rep().stosd()?;

    // Nested loops with a call, and saved flags.
    a.mov(r9d, 3)?;
    a.set_label(&mut outer)?;
    a.mov(r10d, 4)?;
    a.set_label(&mut middle)?;
    a.add(r11, r10)?;
    a.dec(r10d)?;
    a.jnz(middle)?;
    a.pushfq()?;
    a.pop(r12)?;
    a.call(leaf)?;
    a.dec(r9d)?;
    a.jnz(outer)?;

    // LOOPNE over the stored words, then a place that is rarely reached.
    a.mov(ecx, 6)?;
    a.set_label(&mut until_equal)?;
    a.cmp(qword_ptr(rcx * 8 + DATA), rdx)?;
    a.loopne(until_equal)?;
    a.test(bx, 0x1ff)?;
    a.jnz(rare)?;
    a.inc(r13)?;
    a.sti()?;
    a.nop()?;
    a.cli()?;
    a.set_label(&mut rare)?;
    a.jmp(round)?;

    // Advances RBX, and derives a random value in RAX.
    a.set_label(&mut next_random)?;
    a.lea(rbx, rbx + rbx * 4 + 0x3039)?;
    a.mov(rax, rbx)?;
    a.bswap(rax)?;
    a.movq(xmm0, rbx)?;
    a.paddq(xmm1, xmm0)?;
    a.ret()?;

    a.set_label(&mut leaf)?;
    a.lea(r14, r14 + r8 + 1)?;
    a.cmp(r14, r11)?;
    a.cmova(r15, r14)?;
    a.ret()?;
    a.assemble(CODE)
}

/// 64-bit mode, privilege level 0, the first 2 MiB mapped.
fn start() -> CpuState {
    let mut state = CpuState::reset();
    let flat = |selector, attributes| Segment { selector, base: 0, limit: u32::MAX, attributes };
    state.segments = [flat(0x10, 0xc093); 6];
    state.segments[1] = flat(8, 0xa09b);
    state.tr = Segment { selector: 0x40, base: 0x6000, limit: 0x67, attributes: 0x8b };
    state.idtr = TableRegister::default();
    state.gdtr = TableRegister::default();
    (state.cr0, state.cr3, state.cr4) = (0x8005_0033, TABLES, 0x620);
    state.msrs.efer = 0xd01;
    state.gpr = [0; 16];
    (state.gpr[3], state.gpr[4]) = (0x1234_5678_9abc_def1, STACK);
    state.rip = CODE;
    state
}

/// RAM with the program in it.
pub fn ram() -> GuestRam {
    let ram = GuestRam::new(RAM_BYTES as u64).expect("it is little");
    ram.write_bytes(CODE, &program().expect("every instruction exists"));
    // All three entries are present, writable, accessed and dirty. The last entry maps a 2 MiB page.
    for (table, entry) in [(0, TABLES + 0x1067), (0x1000, TABLES + 0x2067), (0x2000, 0xe3)] {
        ram.store_u64(TABLES + table, entry);
    }
    ram
}

/// The whole state at one place of the run.
#[derive(Clone)]
pub struct Snapshot {
    pub state: CpuState,
    pub counts: Counts,
    pub ram: Vec<u8>,
}

impl Snapshot {
    pub fn put_ram(&self, ram: &GuestRam) {
        ram.write_bytes(0, &self.ram);
    }
}

/// Seeded numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    /// A number from 1 to `limit`, where all orders of magnitude are equally frequent.
    pub fn magnitude(&mut self, limit: u64) -> u64 {
        let bits = self.below(u64::from(limit.ilog2()) + 1);
        self.below((2 << bits).min(limit)) + 1
    }
}

/// The software CPU on its way through the run.
pub struct Reference {
    cpu: Cpu,
}

impl Reference {
    pub fn new() -> Reference {
        let mut cpu = Cpu::new(ram());
        cpu.set_state(&start());
        Reference { cpu }
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut ram = vec![0; RAM_BYTES];
        self.cpu.ram().read_bytes(0, &mut ram);
        Snapshot { state: self.cpu.state(), counts: self.cpu.counts(), ram }
    }

    /// Runs this many steps, or a few more, to a place where a guest can be stopped.
    pub fn advance(&mut self, steps: u64) {
        self.run(steps);
        while self.in_shadow() || self.at_repetition() {
            self.run(1);
        }
    }

    /// Runs to a place where no guest can be stopped: after STI.
    pub fn advance_to_shadow(&mut self) {
        while !self.in_shadow() {
            self.run(1);
        }
    }

    fn run(&mut self, steps: u64) {
        let until = self.cpu.steps() + steps;
        assert_eq!(self.cpu.run(&mut EmptyBus::default(), until, u64::MAX), Stop::Budget);
    }

    fn in_shadow(&self) -> bool {
        self.cpu.state().interrupt_shadow
    }

    /// Whether the next instruction is a repeated one, which may be half done.
    fn at_repetition(&self) -> bool {
        self.cpu.ram().load_u8(self.cpu.rip()) == 0xf3
    }
}
