//! The state that an instruction can read and change, in the form that native code loads and stores.

use cpu::{CpuState, FpuState};

use seeded::Operands;

/// The arithmetic flags.
pub const FLAGS: u64 = 0x8d5;
/// Bytes of the FXSAVE image that hold state.
const IMAGE_BYTES: usize = 416;

/// Registers. The native side reads `image`, `gpr` and `flags` and writes them back.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    /// An FXSAVE64 image.
    pub image: [u8; 512],
    /// RAX to R15. Instructions under test must not use RSP and R15.
    pub gpr: [u64; 16],
    /// Arithmetic flags.
    pub flags: u64,
    /// The caller's MXCSR.
    pub caller_mxcsr: u64,
}

impl State {
    /// Random registers: all exceptions masked, none pending, FSW and tags arbitrary.
    pub fn random(random: &mut Operands) -> State {
        let mut image = [0; 512];
        for at in (0..IMAGE_BYTES).step_by(8) {
            image[at..at + 8].copy_from_slice(&quad(random).to_le_bytes());
        }
        if random.below(4) == 0 {
            // Some registers get equal values, so that comparisons also find equal operands.
            let copy: [u8; 128] = image[160..288].try_into().unwrap();
            image[288..416].copy_from_slice(&copy);
        }
        image[0..2].copy_from_slice(&0x37f_u16.to_le_bytes());
        let status = (random.bits() & 0x7f7f) as u16;
        image[2..4].copy_from_slice(&status.to_le_bytes());
        image[5] = 0;
        image[7] &= 7;
        // The x87 pointers are canonical addresses, because hardware may truncate others.
        for at in [8, 16] {
            image[at + 5] &= 0x7f;
            image[at + 6..at + 8].fill(0);
        }
        let mxcsr = if random.below(3) == 0 { 0x1fa0 } else { 0x1f80 | random.bits() as u32 & 0xe07f };
        image[24..28].copy_from_slice(&mxcsr.to_le_bytes());
        image[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
        for st in 0..8 {
            image[32 + 16 * st + 10..48 + 16 * st].fill(0);
        }
        let mut gpr = std::array::from_fn(|_| quad(random));
        if random.below(2) == 0 {
            // RAX and RDX are the lengths of the strings in PCMPESTRI and PCMPESTRM.
            gpr[0] = random.below(40).wrapping_sub(20);
            gpr[2] = random.below(40).wrapping_sub(20);
        }
        State { image, gpr, flags: random.bits() & FLAGS, caller_mxcsr: 0x1f80 }
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.image[at..at + 2].try_into().unwrap())
    }

    fn quad(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.image[at..at + 8].try_into().unwrap())
    }

    /// XMM register `n`.
    pub fn xmm(&self, n: usize) -> u128 {
        u128::from_le_bytes(self.image[160 + 16 * n..176 + 16 * n].try_into().unwrap())
    }

    /// MXCSR.
    pub fn mxcsr(&self) -> u32 {
        self.quad(24) as u32
    }

    /// Copies the registers into our CPU's state.
    pub fn enter(&self, cpu: &mut CpuState) {
        cpu.gpr = self.gpr;
        cpu.rflags = cpu.rflags & !FLAGS | self.flags;
        cpu.mxcsr = self.mxcsr();
        cpu.xmm = std::array::from_fn(|n| self.xmm(n));
        let status = self.word(2);
        let top = usize::from(status >> 11 & 7);
        cpu.fpu = FpuState {
            control: self.word(0),
            status,
            valid: self.image[4],
            opcode: self.word(6),
            instruction_pointer: self.quad(8),
            data_pointer: self.quad(16),
            instruction_selector: 0,
            data_selector: 0,
            mantissas: std::array::from_fn(|r| self.quad(32 + 16 * ((r + 8 - top) & 7))),
            sign_exponents: std::array::from_fn(|r| self.word(40 + 16 * ((r + 8 - top) & 7))),
        };
    }

    /// Copies the registers from our CPU's state.
    pub fn leave(&mut self, cpu: &CpuState) {
        self.gpr = cpu.gpr;
        self.flags = cpu.rflags & FLAGS;
        let fpu = &cpu.fpu;
        let top = usize::from(fpu.status >> 11 & 7);
        let image = &mut self.image;
        image[0..2].copy_from_slice(&fpu.control.to_le_bytes());
        image[2..4].copy_from_slice(&fpu.status.to_le_bytes());
        image[4] = fpu.valid;
        image[6..8].copy_from_slice(&fpu.opcode.to_le_bytes());
        image[8..16].copy_from_slice(&fpu.instruction_pointer.to_le_bytes());
        image[16..24].copy_from_slice(&fpu.data_pointer.to_le_bytes());
        image[24..28].copy_from_slice(&cpu.mxcsr.to_le_bytes());
        for st in 0..8 {
            let (at, register) = (32 + 16 * st, (top + st) & 7);
            image[at..at + 8].copy_from_slice(&fpu.mantissas[register].to_le_bytes());
            image[at + 8..at + 10].copy_from_slice(&fpu.sign_exponents[register].to_le_bytes());
        }
        for n in 0..16 {
            image[160 + 16 * n..176 + 16 * n].copy_from_slice(&cpu.xmm[n].to_le_bytes());
        }
    }

    /// The differences, one per line: name, before, processor, ours.
    pub fn differences(before: &State, theirs: &State, ours: &State) -> Vec<String> {
        let mut lines = Vec::new();
        let mut note = |name: String, b: u128, t: u128, o: u128| {
            if t != o {
                lines.push(format!("  {name}: was {b:#x}, processor {t:#x}, ours {o:#x}"));
            }
        };
        for n in 0..16 {
            note(format!("xmm{n}"), before.xmm(n), theirs.xmm(n), ours.xmm(n));
            note(format!("gpr{n}"), before.gpr[n].into(), theirs.gpr[n].into(), ours.gpr[n].into());
        }
        for at in (0..160).step_by(8) {
            note(
                format!("image[{at}]"),
                before.quad(at).into(),
                theirs.quad(at).into(),
                ours.quad(at).into(),
            );
        }
        note("flags".into(), before.flags.into(), theirs.flags.into(), ours.flags.into());
        lines
    }
}

/// A random quadword. The lanes are binary64 or binary32 numbers, integers, or random bits.
pub fn quad(random: &mut Operands) -> u64 {
    match random.below(8) {
        0 => random.bits(),
        1 | 2 => random.f64(),
        3 | 4 => u64::from(random.f32()) | u64::from(random.f32()) << 32,
        5 => random.pick(&[0, 1, 2, 7, 15, 16, 31, 32, 63, 64, u64::MAX, 1 << 63, 0x8000_0000]),
        6 => lanes(random, 16),
        _ => lanes(random, 8),
    }
}

/// Small and extreme integers in each lane. Zeros are frequent, to end strings.
fn lanes(random: &mut Operands, bits: u64) -> u64 {
    let mask = (1 << bits) - 1;
    let sign = 1 << (bits - 1);
    (0..64 / bits).fold(0, |value, _| {
        let lane = match random.below(6) {
            0 => random.pick(&[0, 1, sign, sign - 1, mask]),
            1 => random.bits() & mask,
            _ => random.below(6),
        };
        value << bits | lane
    })
}
