//! Code that x87, MMX and the state-saving instructions share. The MMX registers are the mantissas of the physical
//! x87 registers. This module also converts the x87 part of the FXSAVE image (SDM vol. 1, 8.1, 9.2 and 10.5; vol.
//! 2, FXSAVE).

use crate::state::FpuState;

/// The field TOP of the status word.
const TOP: u16 = 7 << 11;
/// Error summary: an unmasked exception is pending.
const ES: u16 = 1 << 7;
/// Busy; since the 80387 a copy of ES.
const BUSY: u16 = 1 << 15;
/// The six exception flags in the status word, and their masks in the control word.
const EXCEPTIONS: u16 = 0x3f;
/// Bytes of the x87 part of an image: everything below the XMM registers, including MXCSR and its mask.
pub const IMAGE_BYTES: usize = 160;

impl FpuState {
    /// State after FNINIT, and after an XRSTOR that initialises the component.
    pub fn initial() -> FpuState {
        FpuState {
            mantissas: [0; 8],
            sign_exponents: [0; 8],
            control: 0x37f,
            status: 0,
            valid: 0,
            opcode: 0,
            instruction_pointer: 0,
            data_pointer: 0,
            instruction_selector: 0,
            data_selector: 0,
        }
    }

    /// The number of the physical register at the top of the x87 stack.
    #[inline]
    pub fn top(&self) -> usize {
        usize::from((self.status & TOP) >> 11)
    }

    /// Whether an unmasked exception waits for the next waiting x87 or MMX instruction.
    #[inline(always)]
    pub fn exception_pending(&self) -> bool {
        self.status & ES != 0
    }

    /// Computes ES and B from the exception flags and masks. Processors do the same when the status word or the
    /// control word is loaded.
    pub fn update_summary(&mut self) {
        let pending = self.status & !self.control & EXCEPTIONS != 0;
        self.status = self.status & !(ES | BUSY) | if pending { ES | BUSY } else { 0 };
    }

    /// Does the first action of every MMX instruction but EMMS: TOP becomes 0 and all registers become valid.
    #[inline(always)]
    pub fn enter_mmx(&mut self) {
        self.clear_top();
        self.valid = 0xff;
    }

    /// Sets TOP to 0. MMX registers do not move.
    #[inline(always)]
    pub fn clear_top(&mut self) {
        self.status &= !TOP;
    }

    /// Executes EMMS: TOP becomes 0 and all registers become empty.
    pub fn leave_mmx(&mut self) {
        self.status &= !TOP;
        self.valid = 0;
    }

    /// The value of an MMX register.
    #[inline(always)]
    pub fn mm(&self, register: u8) -> u64 {
        self.mantissas[usize::from(register & 7)]
    }

    /// Writes an MMX register: sign and exponent become all ones.
    #[inline(always)]
    pub fn set_mm(&mut self, register: u8, value: u64) {
        self.mantissas[usize::from(register & 7)] = value;
        self.sign_exponents[usize::from(register & 7)] = 0xffff;
    }

    /// Writes bytes 0 to 23 and 32 to 159 of an FXSAVE image: everything but MXCSR and its mask. `wide` selects the
    /// form with REX.W, which has 64-bit pointers and no selectors.
    pub fn write_image(&self, image: &mut [u8; IMAGE_BYTES], wide: bool) {
        image[0..2].copy_from_slice(&self.control.to_le_bytes());
        image[2..4].copy_from_slice(&self.status.to_le_bytes());
        image[4] = self.valid;
        image[5] = 0;
        image[6..8].copy_from_slice(&(self.opcode & 0x7ff).to_le_bytes());
        image[8..16].copy_from_slice(&pointer(self.instruction_pointer, self.instruction_selector, wide));
        image[16..24].copy_from_slice(&pointer(self.data_pointer, self.data_selector, wide));
        for st in 0..8 {
            let physical = (self.top() + st) & 7;
            let slot = &mut image[32 + 16 * st..48 + 16 * st];
            slot[..8].copy_from_slice(&self.mantissas[physical].to_le_bytes());
            slot[8..10].copy_from_slice(&self.sign_exponents[physical].to_le_bytes());
            slot[10..].fill(0);
        }
    }

    /// The state that an FXSAVE image describes.
    pub fn from_image(image: &[u8; IMAGE_BYTES], wide: bool) -> FpuState {
        let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
        let (instruction_pointer, instruction_selector) = pointer_from(&image[8..16], wide);
        let (data_pointer, data_selector) = pointer_from(&image[16..24], wide);
        let mut state = FpuState {
            control: word(0) & 0x1f3f | 0x40,
            status: word(2),
            valid: image[4],
            opcode: word(6) & 0x7ff,
            // Processors keep 48 bits of a 64-bit instruction pointer.
            instruction_pointer: ((instruction_pointer as i64) << 16 >> 16) as u64,
            instruction_selector,
            data_pointer,
            data_selector,
            ..FpuState::initial()
        };
        for st in 0..8 {
            let physical = (state.top() + st) & 7;
            let at = 32 + 16 * st;
            state.mantissas[physical] = image_u64(image, at);
            state.sign_exponents[physical] = word(at + 8);
        }
        state.update_summary();
        state
    }
}

fn image_u64(image: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&image[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The image's bytes of a pointer: a 64-bit offset, or a 32-bit offset and then the selector.
fn pointer(offset: u64, selector: u16, wide: bool) -> [u8; 8] {
    let value = if wide { offset } else { offset & 0xffff_ffff | u64::from(selector) << 32 };
    value.to_le_bytes()
}

fn pointer_from(bytes: &[u8], wide: bool) -> (u64, u16) {
    let value = image_u64(bytes, 0);
    if wide { (value, 0) } else { (value & 0xffff_ffff, (value >> 32) as u16) }
}
