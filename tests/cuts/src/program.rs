//! Random small guests: a mode, descriptor and page tables, handlers, code, and events from outside with their steps.

use cpu::{CpuState, Segment, SpinState, TableRegister, Turn, TurnPolicy, TurnState};

use crate::code::{Bits, OPEN, Writer};
use crate::layout::*;
use crate::loops;
use seeded::Rng;

/// The CPU mode in which the guest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Real mode.
    Real,
    /// Virtual-8086 mode.
    Virtual86,
    /// 16-bit code in protected mode.
    Protected16,
    /// 32-bit code in protected mode.
    Protected32,
    /// 16-bit code in long mode.
    Compatibility16,
    /// 32-bit code in long mode.
    Compatibility32,
    /// 64-bit mode.
    Long,
}

/// How linear addresses become physical at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// Paging is off: addresses are physical.
    Off,
    /// 32-bit paging: 4 KiB and 4 MiB pages.
    Narrow,
    /// PAE paging: 4 KiB and 2 MiB pages.
    Pae,
    /// 4-level paging.
    Long,
}

/// An event from outside, at an exact step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The interrupt line rises with this vector.
    Interrupt(u8),
    /// An NMI comes.
    Nmi,
    /// A device writes RAM. The number determines the address and the bytes.
    WriteRam(u64),
    /// The run gives turns to the processors (`Cpu::give_turns`). The number determines the turns.
    Turns(u64),
}

/// A small guest and its events.
#[derive(Clone)]
pub struct Program {
    /// The guest's mode at the start.
    pub mode: Mode,
    /// The guest's paging at the start.
    pub paging: Paging,
    /// The state of the first processor at the start.
    pub state: CpuState,
    /// The states of the other processors at the start.
    pub others: Vec<CpuState>,
    /// The policy that gives turns to several processors.
    pub policy: TurnPolicy,
    /// The state of the turns at the start; `None` if the policy itself creates this state.
    pub turns: Option<TurnState>,
    /// RAM at the start.
    pub ram: Vec<u8>,
    /// Events in the order of their steps; at most one event for each step.
    pub events: Vec<(u64, Event)>,
    /// The step counts at which the run is cut, in ascending order. The last cut is the program's end.
    pub cuts: Vec<u64>,
}

const MODES: [Mode; 10] = [
    Mode::Real,
    Mode::Virtual86,
    Mode::Protected16,
    Mode::Protected32,
    Mode::Protected32,
    Mode::Compatibility16,
    Mode::Compatibility32,
    Mode::Long,
    Mode::Long,
    Mode::Long,
];

impl Mode {
    fn bits(self) -> Bits {
        match self {
            Mode::Long => Bits::B64,
            Mode::Protected32 | Mode::Compatibility32 => Bits::B32,
            _ => Bits::B16,
        }
    }

    fn long(self) -> bool {
        matches!(self, Mode::Long | Mode::Compatibility16 | Mode::Compatibility32)
    }

    /// Returns the code size and the code selector of the handlers.
    fn handlers(self) -> (Bits, u16) {
        match self {
            Mode::Real => (Bits::B16, 0),
            Mode::Protected16 => (Bits::B16, selector::KERNEL_CS16),
            Mode::Protected32 | Mode::Virtual86 => (Bits::B32, selector::KERNEL_CS32),
            _ => (Bits::B64, selector::KERNEL_CS64),
        }
    }
}

impl Program {
    /// The program of one processor that a seed and a number determine.
    pub fn random(seed: u64, number: u64) -> Program {
        Program::of_processors(stream(seed, number), 1)
    }

    /// A program of two to four processors. The processors share memory, code, descriptors and page tables. Each
    /// processor begins at another address.
    pub fn several(seed: u64, number: u64) -> Program {
        let mut rng = stream(seed ^ 4, number);
        let count = 2 + rng.below(3) as usize;
        let policy = match rng.below(4) {
            0 => TurnPolicy::Ring,
            _ => TurnPolicy::Random { seed: rng.bits() },
        };
        let turns = rng.percent(50).then(|| turns_with_looks(&mut rng));
        let mut program =
            Program { policy, turns, ..Program::of_processors(stream(rng.bits(), number), count) };
        // Add events that give turns, because most turns of a policy are longer than the program.
        let length = program.length();
        for _ in 0..1 + rng.below(6) {
            program.events.push((1 + rng.below(length - 1), Event::Turns(rng.bits())));
        }
        program.events.sort_by_key(|event| event.0);
        program.events.dedup_by_key(|event| event.0);
        let more: Vec<u64> = program.events.iter().map(|event| event.0).collect();
        program.cuts.extend(more);
        program.cuts.sort_unstable();
        program.cuts.dedup();
        program
    }

    fn of_processors(mut rng: Rng, count: usize) -> Program {
        let mode = rng.pick(&MODES);
        let paging = match mode {
            Mode::Real => Paging::Off,
            _ if mode.long() => Paging::Long,
            Mode::Virtual86 => rng.pick(&[Paging::Narrow, Paging::Pae]),
            _ => rng.pick(&[Paging::Off, Paging::Narrow, Paging::Narrow, Paging::Pae, Paging::Pae]),
        };
        let mut image = Image { rng, ram: vec![0; RAM_BYTES as usize], mode, paging };
        image.code();
        image.tables();
        image.descriptors();
        image.interrupt_table();
        image.data();
        let state = image.state();
        let others = (1..count as u64)
            .map(|number| {
                let mut state = image.state();
                state.gpr[4] -= 0x280 * number;
                state
            })
            .collect();
        let Image { mut rng, ram, .. } = image;
        let length = if rng.percent(70) { 100 + rng.below(2000) } else { 1000 + rng.below(10_000) };
        let events = events(&mut rng, length);
        let cuts = cuts(&mut rng, length, &events);
        Program { mode, paging, state, others, policy: TurnPolicy::Ring, turns: None, ram, events, cuts }
    }

    /// The program of hot loops that a seed and a number determine.
    pub fn looping(seed: u64, number: u64) -> Program {
        let (mode, paging) = (Mode::Long, Paging::Long);
        let rng = stream(seed ^ 2, number);
        let mut image = Image { rng, ram: vec![0; RAM_BYTES as usize], mode, paging };
        image.tables();
        image.descriptors();
        image.interrupt_table();
        image.data();
        let state = image.looping_state();
        image.loops(state.segments[2].dpl() == 0);
        let Image { mut rng, ram, .. } = image;
        let length =
            if rng.percent(50) { 20_000 + rng.below(200_000) } else { 500_000 + rng.below(2_500_000) };
        let mut events = events(&mut rng, length);
        // After most events that write RAM, the program would leave its loops. So only one in eight stays.
        events.retain(|event| !matches!(event.1, Event::WriteRam(_)) || event.0 % 8 == 0);
        let cuts = cuts(&mut rng, length, &events);
        let (others, policy) = (Vec::new(), TurnPolicy::Ring);
        Program { mode, paging, state, others, policy, turns: None, ram, events, cuts }
    }

    /// Returns this program, but with its end at step `length`.
    pub fn shortened(&self, length: u64) -> Program {
        let mut program = self.clone();
        program.events.retain(|event| event.0 <= length);
        program.cuts.retain(|&cut| cut < length);
        program.cuts.push(length);
        program
    }

    /// Returns the largest number of steps that the program takes.
    pub fn length(&self) -> u64 {
        self.cuts.last().copied().unwrap_or(0)
    }
}

/// Returns a state of the turns in which a spin ends a turn. The CPU looks for a spin earlier than in a turn of a
/// policy, so that it looks for spins even in short programs.
fn turns_with_looks(rng: &mut Rng) -> TurnState {
    let next_look = Some(1 + rng.below(1000));
    let registers = rng.percent(50).then(|| rng.bits());
    let (generator, left) = (rng.bits(), 1 + rng.below(5000));
    TurnState { generator, left, spins: Some(SpinState { next_look, registers }), ..TurnState::default() }
}

/// Returns the turns that `number` determines: some tens of turns, most of them short.
pub(crate) fn turns(number: u64) -> Vec<Turn> {
    let mut rng = stream(number, 0);
    let turn = |rng: &mut Rng| {
        let longest = rng.pick(&[2, 2, 5, 30, 200]);
        // Sometimes the guest has no processor with this number.
        Turn { processor: rng.below(5) as u8, steps: 1 + rng.below(longest) as u32 }
    };
    (0..1 + rng.below(100)).map(|_| turn(&mut rng)).collect()
}

/// The generator of random numbers for the program with this seed and number.
pub(crate) fn stream(seed: u64, number: u64) -> Rng {
    let state = Rng::from_state(seed).bits() ^ number;
    Rng::from_state(Rng::from_state(state).bits())
}

fn events(rng: &mut Rng, length: u64) -> Vec<(u64, Event)> {
    let many = rng.pick(&[0, 2, 8, 30]);
    let mut steps = (0..rng.below(many + 1)).map(|_| 1 + rng.below(length - 1)).collect::<Vec<_>>();
    steps.sort_unstable();
    steps.dedup();
    let event = |rng: &mut Rng| match rng.below(5) {
        0 => Event::Nmi,
        1 => Event::WriteRam(rng.bits()),
        _ => Event::Interrupt(0x20 + rng.below(16) as u8),
    };
    steps.into_iter().map(|step| (step, event(rng))).collect()
}

/// Random cuts, some close together. Every event's step is a cut, and so is the program's end.
fn cuts(rng: &mut Rng, length: u64, events: &[(u64, Event)]) -> Vec<u64> {
    let mut cuts = events.iter().map(|event| event.0).chain([length]).collect::<Vec<_>>();
    for _ in 0..2 + rng.below(6) {
        let start = 1 + rng.below(length);
        cuts.extend((0..1 + rng.below(3)).map(|n| (start + n).min(length)));
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// A guest's RAM while the program is generated.
struct Image {
    rng: Rng,
    ram: Vec<u8>,
    mode: Mode,
    paging: Paging,
}

impl Image {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.ram[address as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn put32(&mut self, address: u64, value: u32) {
        self.put(address, &value.to_le_bytes());
    }

    fn put64(&mut self, address: u64, value: u64) {
        self.put(address, &value.to_le_bytes());
    }

    fn writer(&mut self, bits: Bits) -> Writer {
        let narrow_tables = self.paging == Paging::Narrow;
        Writer { rng: stream(self.rng.bits(), 0), bits, narrow_tables, out: Vec::new() }
    }

    fn code(&mut self) {
        let bits = self.mode.bits();
        // Code is at each page's start and end. Noise between start and end would only cost time.
        for page in (CODE..CODE_END).step_by(PAGE as usize) {
            let other = self.rng.pick(&[Bits::B16, Bits::B32, Bits::B64]);
            let bits = if self.rng.percent(90) { bits } else { other };
            for (at, length) in [(page, 0x280), (page + PAGE - 0x180, 0x180)] {
                let mut writer = self.writer(bits);
                writer.fill(length);
                let code = writer.out;
                self.put(at, &code);
            }
        }
        let (bits, _) = self.mode.handlers();
        for vector in 0..=255_u64 {
            let error_code = matches!(vector, 8 | 10..=14 | 17) && self.mode != Mode::Real;
            let mut writer = self.writer(bits);
            writer.handler(error_code);
            let mut code = writer.out;
            code.truncate(HANDLER_BYTES as usize);
            self.put(HANDLERS + vector * HANDLER_BYTES, &code);
        }
    }

    /// Writes the loops and the handlers into RAM, and fills the page tables. All pages except the data are mapped
    /// to equal physical addresses, with all rights.
    fn loops(&mut self, kernel: bool) {
        for (at, code) in loops::code(&mut self.rng, kernel) {
            self.put(at, &code);
        }
        for vector in 0..=255_u64 {
            let code = loops::handler(vector, matches!(vector, 8 | 10..=14 | 17));
            self.put(HANDLERS + vector * HANDLER_BYTES, &code);
        }
        // sysretq
        self.put(loops::SYSCALL_ENTRY, &[0x48, 0x0f, 0x07]);
        for leaf in LEAVES {
            let mut frames = (DATA / PAGE..RAM_BYTES / PAGE).collect::<Vec<_>>();
            for page in 0..RAM_BYTES / PAGE {
                // The physical frames of data pages are in a random order. So an access across a page's end uses
                // two distant parts of RAM.
                let frame = if page * PAGE < DATA {
                    page
                } else {
                    frames.swap_remove(self.rng.below(frames.len() as u64) as usize)
                };
                let unused = if self.rng.percent(20) { 0x60 } else { 0 };
                self.put64(leaf + 8 * page, frame * PAGE | OPEN & !unused);
            }
        }
        // Under both roots, the upper half of the virtual addresses maps the other address space.
        for root in ROOTS {
            self.put64(root + 8 * 256, MIDDLES[1] | 0x27);
        }
    }

    fn looping_state(&mut self) -> CpuState {
        let mut state = self.state();
        state.rip = CODE;
        state.rflags = 2 | self.rng.pick(&[0, 0x200, 0x200]);
        state.cr0 &= !(1 << 18);
        state.cr3 = ROOTS[0];
        state.cr4 = 0x630;
        state.msrs.efer = 0xd01;
        state.msrs.lstar = loops::SYSCALL_ENTRY;
        state.msrs.sfmask = self.rng.pick(&[0, 0x200, 0x700]);
        if self.rng.percent(90) {
            state.dr7 = 0x400;
        }
        state
    }

    /// Returns the page-table entry that maps `page`, mostly with all rights.
    fn entry(&mut self, page: u64) -> u64 {
        let rights = match self.rng.below(40) {
            0 => OPEN & !2,
            1 => OPEN & !4,
            2 => OPEN & !1,
            3..=8 => OPEN & !0x60,
            9..=12 => OPEN & !0x40,
            _ => OPEN,
        };
        page | rights
    }

    fn tables(&mut self) {
        let narrow = self.paging == Paging::Narrow;
        let put = |image: &mut Image, table: u64, index: u64, value: u64| {
            if narrow {
                image.put32(table + 4 * index, value as u32);
            } else {
                image.put64(table + 8 * index, value);
            }
        };
        for space in 0..2 {
            let leaf = LEAVES[space];
            for page in 0..2 * RAM_BYTES / PAGE {
                let (mut to, shuffled) = (page * PAGE % RAM_BYTES, page >= RAM_BYTES / PAGE || space == 1);
                if shuffled && to >= CODE && self.rng.percent(30) {
                    to = self.rng.below(RAM_BYTES / PAGE) * PAGE;
                }
                let entry = self.entry(to);
                put(self, leaf, page, entry);
            }
            let upper = 0x27;
            // Fill the first entries of the page directory. The entries lead to a large page, to the page table of
            // the other address space, and to the directory itself as a page table.
            let directory = if narrow { ROOTS[space] } else { DIRECTORIES[space] };
            put(self, directory, 0, leaf | upper);
            put(self, directory, 1, 0xe7);
            put(self, directory, 2, LEAVES[1 - space] | upper);
            put(self, directory, 3, directory | upper);
            if !narrow {
                put(
                    self,
                    MIDDLES[space],
                    0,
                    DIRECTORIES[space] | if self.paging == Paging::Pae { 1 } else { upper },
                );
                if self.paging == Paging::Long {
                    // In some programs, the two address spaces share all tables except their roots.
                    let shared = self.rng.percent(35);
                    put(self, ROOTS[space], 0, MIDDLES[if shared { 0 } else { space }] | upper);
                }
            }
        }
    }

    fn descriptors(&mut self) {
        let accessed = if self.rng.percent(50) { 1 << 40 } else { 0 };
        let user = 3 << 45;
        let (code, data) = (0x00cf_9a00_0000_ffff_u64 | accessed, 0x00cf_9200_0000_ffff_u64 | accessed);
        let long_code = 0x00af_9a00_0000_ffff | accessed;
        let code16 = 0x008f_9a00_0000_ffff | accessed;
        let short = (CODE + self.rng.below(CODE_END - CODE)) & 0xffff;
        let free = self.rng.bits() & 0x00ff_ff00_00ff_ffff | 0x93 << 40;
        let busy_tss = 0x0000_8b00_0000_0068 | TSS << 16;
        let gate = u64::from(self.mode.handlers().1) << 16
            | (HANDLERS + self.rng.below(256) * HANDLER_BYTES) & 0xffff
            | 0xec00 << 32
            | (HANDLERS >> 16) << 48;
        let table = [
            (selector::KERNEL_CS64, long_code),
            (selector::KERNEL_DS, data),
            (selector::USER_CS32, code | user),
            (selector::USER_DS, data | user),
            (selector::USER_CS64, long_code | user),
            (selector::TSS, busy_tss),
            (selector::KERNEL_CS32, code),
            (selector::KERNEL_CS16, code16),
            (selector::KERNEL_DS16, 0x000f_9200_0000_ffff),
            (selector::USER_CS16, code16 | user),
            (selector::CALL_GATE, gate),
            (selector::OTHER_TSS, 0x0000_8900_0000_0068 | OTHER_TSS << 16),
            (selector::LDT, 0x0000_8200_0000_00ff | LDT << 16),
            (selector::SHORT_CS, 0x0040_9a00_0000_0000 | short),
            (selector::FREE, free),
        ];
        for (selector, descriptor) in table {
            self.put64(GDT + u64::from(selector & !7), descriptor);
            self.put64(LDT + u64::from(selector & !7), descriptor);
        }
        for (tss, stack) in [(TSS, STACKS[1]), (OTHER_TSS, STACKS[2])] {
            if self.mode.long() {
                self.put64(tss + 4, stack);
                self.put64(tss + 36, STACKS[2]);
            } else {
                self.put32(tss + 4, stack as u32);
                self.put32(tss + 8, selector::KERNEL_DS.into());
                let place = CODE + self.rng.below(0x200);
                self.put32(tss + 28, ROOTS[0] as u32);
                self.put32(tss + 32, place as u32);
                self.put32(tss + 36, 2);
                self.put32(tss + 56, stack as u32);
                for (at, selector) in [(72, 0x10), (76, 0x40), (80, 0x10), (84, 0x10)] {
                    self.put32(tss + at, selector);
                }
            }
        }
    }

    fn interrupt_table(&mut self) {
        let (_, code) = self.mode.handlers();
        for vector in 0..=255_u64 {
            let handler = HANDLERS + vector * HANDLER_BYTES;
            self.put32(vector * 4, (handler as u32 & 0xffff) | ((HANDLERS >> 16) as u32) << 28);
            let open = if self.rng.percent(85) { 0x60_00 } else { 0 };
            let kind = match (self.mode, self.rng.below(4)) {
                (Mode::Protected16, _) => 0x8600,
                (_, 0) => 0x8f00,
                _ => 0x8e00,
            };
            if vector == 8 && self.rng.percent(20) && !self.mode.long() {
                self.put64(IDT + 8 * vector, u64::from(selector::OTHER_TSS) << 16 | 0x8500 << 32);
                continue;
            }
            let stack = if self.mode.long() && self.rng.percent(10) { 1 } else { 0 };
            let low = handler & 0xffff
                | u64::from(code) << 16
                | (kind | open | stack) << 32
                | (handler >> 16) << 48;
            if self.mode.long() {
                self.put64(IDT + 16 * vector, low);
                self.put64(IDT + 16 * vector + 8, 0);
            } else {
                self.put64(IDT + 8 * vector, low);
            }
        }
    }

    fn data(&mut self) {
        for at in (STACKS[0] - 0x400..STACKS[0] + 0x100).step_by(8).chain((DATA..DATA + 0x1000).step_by(16)) {
            let value = self.writer(self.mode.bits()).value();
            self.put64(at, value);
        }
    }

    fn state(&mut self) -> CpuState {
        let mode = self.mode;
        let mut state = CpuState::reset();
        let user = match mode {
            Mode::Real => false,
            Mode::Virtual86 => true,
            _ => self.rng.percent(40),
        };
        for register in 0..16 {
            state.gpr[register] = self.writer(mode.bits()).value();
        }
        state.gpr[4] = STACKS[0];
        state.rip = CODE + self.rng.below((CODE_END - CODE) / PAGE) * PAGE;
        state.rflags = 2 | self.rng.pick(&[0, 0x200, 0x3200, 0x3000, 0x200, 0x4_0200, 0x0cd5]);
        if self.rng.percent(8) {
            state.rflags |= 0x100;
        }
        self.control_registers(&mut state);
        self.segments(&mut state, user);
        state.gdtr = TableRegister { base: GDT, limit: 0x9f };
        state.idtr = match mode {
            Mode::Real => TableRegister { base: 0, limit: 0x3ff },
            _ => TableRegister { base: IDT, limit: 0xfff },
        };
        state.tr = Segment { selector: selector::TSS, base: TSS, limit: 0x7ff, attributes: 0x8b };
        if self.rng.percent(20) {
            for register in 0..4 {
                state.dr[register] = self.writer(mode.bits()).value() & 0x3_ffff;
            }
            state.dr7 = 0x400 | self.rng.bits() & 0xffff_00ff;
        }
        state.msrs.star = 0x0018_0008 << 32 | CODE;
        state.msrs.lstar = CODE + 0x40;
        state.msrs.cstar = CODE + PAGE;
        state.msrs.sfmask = self.rng.pick(&[0, 0x200, 0x4_7700]);
        state.msrs.sysenter_cs = self.rng.pick(&[8, 0x40, 0]);
        state.msrs.sysenter_esp = STACKS[1];
        state.msrs.sysenter_eip = CODE + 0x80;
        state
    }

    fn control_registers(&mut self, state: &mut CpuState) {
        let paged = self.paging != Paging::Off;
        let protected = self.mode != Mode::Real;
        let write_protect = if self.rng.percent(60) { 1 << 16 } else { 0 };
        let alignment = if self.rng.percent(30) { 1 << 18 } else { 0 };
        state.cr0 = 0x30 | alignment | u64::from(protected) | if paged { 1 << 31 | write_protect } else { 0 };
        let space = usize::from(self.rng.percent(20));
        state.cr3 = if self.paging == Paging::Pae { MIDDLES[space] } else { ROOTS[space] };
        let pae = !matches!(self.paging, Paging::Narrow | Paging::Off);
        let prevention = if self.rng.percent(10) { self.rng.pick(&[1 << 20, 1 << 21]) } else { 0 };
        state.cr4 = 0x610
            | if pae { 0x20 } else { 0 }
            | if paged { prevention } else { 0 }
            | self.rng.pick(&[0, 8, 0x1_0000]);
        state.msrs.efer = match self.paging {
            Paging::Long => self.rng.pick(&[0xd01, 0xd01, 0x501]),
            Paging::Pae => self.rng.pick(&[0x800, 0]),
            _ => 0,
        };
        if self.paging == Paging::Pae {
            state.pdptes = [DIRECTORIES[space] | 1, 0, 0, 0];
        }
    }

    fn segments(&mut self, state: &mut CpuState, user: bool) {
        let level = if user { 3 << 5 } else { 0 };
        let flat = Segment { selector: 0, base: 0, limit: u32::MAX, attributes: 0xc093 | level };
        let (code_selector, data_selector) = match (self.mode, user) {
            (Mode::Real | Mode::Virtual86, _) => (0, 0),
            (Mode::Long, false) => (selector::KERNEL_CS64, selector::KERNEL_DS),
            (Mode::Long, true) => (selector::USER_CS64, selector::USER_DS),
            (Mode::Protected32 | Mode::Compatibility32, false) => {
                (selector::KERNEL_CS32, selector::KERNEL_DS)
            }
            (Mode::Protected32 | Mode::Compatibility32, true) => (selector::USER_CS32, selector::USER_DS),
            (_, false) => (selector::KERNEL_CS16, selector::KERNEL_DS),
            (_, true) => (selector::USER_CS16, selector::USER_DS),
        };
        let size = match self.mode.bits() {
            Bits::B64 => 1 << 13,
            Bits::B32 => 1 << 14,
            Bits::B16 => 0,
        };
        let mut code = Segment { selector: code_selector, attributes: 0x809b | size | level, ..flat };
        let mut data = Segment { selector: data_selector, ..flat };
        if self.mode.bits() == Bits::B16 {
            data.attributes &= !(1 << 14);
        }
        match self.mode {
            Mode::Virtual86 => {
                state.rflags |= 1 << 17 | if self.rng.percent(70) { 0x3000 } else { 0 };
                code = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0xf3 };
                data = code;
            }
            Mode::Real => {
                code.limit = 0xffff;
                data.limit = self.rng.pick(&[0xffff, 0xffff, u32::MAX]);
            }
            _ => {}
        }
        // Use a code segment that ends inside the code, or does not begin at 0.
        if self.mode != Mode::Long && self.mode != Mode::Virtual86 {
            if self.rng.percent(25) {
                code.limit = (state.rip + self.rng.below(0x400)) as u32;
            }
            if self.rng.percent(15) {
                let base = self.rng.below(CODE / 16) * 16;
                code.base = base;
                code.selector = if self.mode == Mode::Real { (base >> 4) as u16 } else { code.selector };
                state.rip -= base;
            }
        }
        state.segments = [data, code, data, data, data, data];
        for register in [0, 3, 4, 5] {
            match self.rng.below(12) {
                0 => state.segments[register].base = self.rng.below(CODE),
                1 if self.mode != Mode::Virtual86 => {
                    state.segments[register].limit = self.rng.below(RAM_BYTES) as u32;
                }
                _ => {}
            }
        }
    }
}
