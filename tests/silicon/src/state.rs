//! The input and the result of an instruction. The form is the same for the processor and the software CPU.

use serde::{Deserialize, Serialize};

/// An FXSAVE64 image (SDM vol. 1, table 10-2 and figure 13-1: the legacy region of the XSAVE area).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct FxImage(pub [u8; 512]);

impl FxImage {
    const X87: usize = 32;
    const XMM: usize = 160;

    /// An image whose bytes are all zero.
    pub const ZERO: FxImage = FxImage([0; 512]);

    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("the length is N")
    }
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// x87 control word.
    pub fn control(&self) -> u16 {
        u16::from_le_bytes(self.part(0))
    }
    /// x87 status word.
    pub fn status(&self) -> u16 {
        u16::from_le_bytes(self.part(2))
    }
    /// Returns the abridged tag word. A set bit means that the physical register with the bit's number is not
    /// empty.
    pub fn tags(&self) -> u8 {
        self.0[4]
    }
    /// Last x87 opcode.
    pub fn opcode(&self) -> u16 {
        u16::from_le_bytes(self.part(6))
    }
    /// Last x87 instruction pointer.
    pub fn instruction_pointer(&self) -> u64 {
        u64::from_le_bytes(self.part(8))
    }
    /// Last x87 data pointer.
    pub fn data_pointer(&self) -> u64 {
        u64::from_le_bytes(self.part(16))
    }
    /// MXCSR.
    pub fn mxcsr(&self) -> u32 {
        u32::from_le_bytes(self.part(24))
    }
    /// Returns the mantissa of ST(n). If TOP is zero, this mantissa is the contents of MMn.
    pub fn mantissa(&self, n: usize) -> u64 {
        u64::from_le_bytes(self.part(Self::X87 + 16 * n))
    }
    /// Sign and exponent of ST(n).
    pub fn sign_exponent(&self, n: usize) -> u16 {
        u16::from_le_bytes(self.part(Self::X87 + 16 * n + 8))
    }
    /// XMMn.
    pub fn xmm(&self, n: usize) -> u128 {
        u128::from_le_bytes(self.part(Self::XMM + 16 * n))
    }
    /// Copies from another image the parts that instructions do not set: reserved bytes, MXCSR_MASK, the upper parts of
    /// the x87 slots, and the software bytes.
    pub fn take_uncompared(&mut self, from: &FxImage) {
        let (to, from) = (&mut self.0, &from.0);
        to[5] = from[5];
        to[28..32].copy_from_slice(&from[28..32]);
        for n in 0..8 {
            to[32 + 16 * n + 10..48 + 16 * n].copy_from_slice(&from[32 + 16 * n + 10..48 + 16 * n]);
        }
        to[416..].copy_from_slice(&from[416..]);
    }

    /// Returns the number of the register on top of the x87 stack.
    pub fn top(&self) -> usize {
        usize::from(self.status() >> 11 & 7)
    }

    /// Sets the x87 control word.
    pub fn set_control(&mut self, value: u16) {
        self.put(0, &value.to_le_bytes());
    }
    /// Sets the x87 status word.
    pub fn set_status(&mut self, value: u16) {
        self.put(2, &value.to_le_bytes());
    }
    /// Sets the abridged tag word.
    pub fn set_tags(&mut self, value: u8) {
        self.0[4] = value;
    }
    /// Sets the last x87 opcode.
    pub fn set_opcode(&mut self, value: u16) {
        self.put(6, &value.to_le_bytes());
    }
    /// Sets the last x87 instruction pointer.
    pub fn set_instruction_pointer(&mut self, value: u64) {
        self.put(8, &value.to_le_bytes());
    }
    /// Sets the last x87 data pointer.
    pub fn set_data_pointer(&mut self, value: u64) {
        self.put(16, &value.to_le_bytes());
    }
    /// Sets MXCSR.
    pub fn set_mxcsr(&mut self, value: u32) {
        self.put(24, &value.to_le_bytes());
    }
    /// Sets ST(n).
    pub fn set_st(&mut self, n: usize, mantissa: u64, sign_exponent: u16) {
        self.put(Self::X87 + 16 * n, &mantissa.to_le_bytes());
        self.put(Self::X87 + 16 * n + 8, &sign_exponent.to_le_bytes());
    }
    /// Sets XMMn.
    pub fn set_xmm(&mut self, n: usize, value: u128) {
        self.put(Self::XMM + 16 * n, &value.to_le_bytes());
    }
}

/// The registers that user-mode code sees.
#[derive(Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// x87, MMX and SSE.
    pub fx: FxImage,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// Flags. TF is never set.
    pub rflags: u64,
}

impl Registers {
    /// All zero.
    pub const ZERO: Registers = Registers { fx: FxImage::ZERO, gpr: [0; 16], rip: 0, rflags: 0 };
}

/// An exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Vector.
    pub vector: u8,
    /// The error code; zero for vectors without an error code.
    pub code: u32,
    /// The faulting address of a page fault; zero for other exceptions.
    pub address: u64,
}

/// An instruction's result.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The registers after the instruction, or the registers that an exception reported.
    pub registers: Registers,
    /// The exception that the instruction raised; `None` if it raised none.
    pub fault: Option<Fault>,
}
