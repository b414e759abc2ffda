//! The checks at the start of an instruction (SDM vol. 3, 23.25): Did the operating system enable the registers? Are
//! memory operands aligned? Are x87 errors pending?

use cpu_model::registers::{cr0, cr4};

use crate::bus::Bus;
use crate::core::Core;
use crate::exception;
use crate::exception::{Break, Res};
use crate::op::Op;

impl Core {
    /// Raises #UD or #NM if XMM registers may not be used.
    #[inline(always)]
    pub(crate) fn require_sse(&mut self) -> Res<()> {
        let blocked = self.state.cr0 & (cr0::EM | cr0::TS) | !self.state.cr4 & cr4::OSFXSR;
        if blocked == 0 { Ok(()) } else { Err(self.sse_blocked()) }
    }

    #[cold]
    #[inline(never)]
    fn sse_blocked(&mut self) -> Break {
        if self.state.cr0 & cr0::EM != 0 || self.state.cr4 & cr4::OSFXSR == 0 {
            self.ud()
        } else {
            self.fault(exception::NM)
        }
    }

    /// Raises the fault if MMX registers may not be used, or if an x87 exception is pending.
    #[inline(always)]
    pub(crate) fn require_mmx(&mut self) -> Res<()> {
        let blocked = self.state.cr0 & (cr0::EM | cr0::TS) != 0 || self.state.fpu.exception_pending();
        if blocked { Err(self.mmx_blocked()) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn mmx_blocked(&mut self) -> Break {
        if self.state.cr0 & cr0::EM != 0 {
            self.ud()
        } else if self.state.cr0 & cr0::TS != 0 {
            self.fault(exception::NM)
        } else {
            self.fault(exception::MF)
        }
    }

    /// Makes the checks for MMX and for XMM registers, for instructions that move data between the two kinds of
    /// registers.
    #[inline(always)]
    pub(crate) fn require_sse_and_mmx(&mut self) -> Res<()> {
        self.require_sse()?;
        self.require_mmx()
    }

    /// An XMM register.
    #[inline(always)]
    pub(crate) fn xmm(&self, register: u8) -> u128 {
        self.frame.xmm[usize::from(register & 15)]
    }

    /// Writes a whole XMM register.
    #[inline(always)]
    pub(crate) fn set_xmm(&mut self, register: u8, value: u128) {
        self.frame.xmm[usize::from(register & 15)] = value;
    }

    /// An XMM register as a byte vector. The code casts the register's memory to bytes, so that the compiler uses
    /// vector instructions. Splitting the integer with shifts would prevent this.
    #[inline(always)]
    pub(crate) fn xmm_bytes(&self, register: u8) -> [u8; 16] {
        let slot = &self.frame.xmm[usize::from(register & 15)];
        if cfg!(target_endian = "little") { *bytemuck::cast_ref(slot) } else { slot.to_le_bytes() }
    }

    /// Writes an XMM register as a byte vector.
    #[inline(always)]
    pub(crate) fn set_xmm_bytes(&mut self, register: u8, value: [u8; 16]) {
        let slot = &mut self.frame.xmm[usize::from(register & 15)];
        if cfg!(target_endian = "little") {
            *bytemuck::cast_mut(slot) = value;
        } else {
            *slot = u128::from_le_bytes(value);
        }
    }

    /// Replaces the low quadword of an XMM register.
    #[inline(always)]
    pub(crate) fn set_xmm_low64(&mut self, register: u8, value: u64) {
        let slot = &mut self.frame.xmm[usize::from(register & 15)];
        *slot = *slot >> 64 << 64 | u128::from(value);
    }

    /// Replaces the low doubleword of an XMM register.
    #[inline(always)]
    pub(crate) fn set_xmm_low32(&mut self, register: u8, value: u32) {
        let slot = &mut self.frame.xmm[usize::from(register & 15)];
        *slot = *slot >> 32 << 32 | u128::from(value);
    }

    /// An MMX register. The caller has passed [`Core::require_mmx`], and calls `enter_mmx` once nothing can fault any
    /// more.
    #[inline(always)]
    pub(crate) fn mm(&self, register: u8) -> u64 {
        self.state.fpu.mm(register)
    }

    /// Writes an MMX register and enters MMX operation.
    #[inline(always)]
    pub(crate) fn set_mm(&mut self, register: u8, value: u64) {
        self.state.fpu.enter_mmx();
        self.state.fpu.set_mm(register, value);
    }

    /// Loads the op's 16-byte memory operand, which must be aligned.
    #[inline(always)]
    pub(crate) fn load_aligned(&mut self, bus: &mut dyn Bus, op: &Op) -> Res<u128> {
        let address = self.linear(op, 16)?;
        self.require_aligned(address, 16)?;
        self.load_u128(bus, address)
    }

    /// Loads the op's 16-byte memory operand at any address.
    #[inline(always)]
    pub(crate) fn load_unaligned(&mut self, bus: &mut dyn Bus, op: &Op) -> Res<u128> {
        let address = self.linear(op, 16)?;
        self.load_u128(bus, address)
    }

    /// Loads the op's 8-byte memory operand.
    #[inline(always)]
    pub(crate) fn load_quad(&mut self, bus: &mut dyn Bus, op: &Op) -> Res<u64> {
        let address = self.linear(op, 8)?;
        self.load_u64(bus, address)
    }

    /// Loads the op's 4-byte memory operand.
    #[inline(always)]
    pub(crate) fn load_double(&mut self, bus: &mut dyn Bus, op: &Op) -> Res<u32> {
        let address = self.linear(op, 4)?;
        self.load_u32(bus, address)
    }

    /// Stores to the op's 16-byte memory operand, which must be aligned.
    #[inline(always)]
    pub(crate) fn store_aligned(&mut self, bus: &mut dyn Bus, op: &Op, value: u128) -> Res<()> {
        let address = self.linear_write(op, 16)?;
        self.require_aligned(address, 16)?;
        self.store_u128(bus, address, value)
    }

    /// Stores to the op's 16-byte memory operand at any address.
    #[inline(always)]
    pub(crate) fn store_unaligned(&mut self, bus: &mut dyn Bus, op: &Op, value: u128) -> Res<()> {
        let address = self.linear_write(op, 16)?;
        self.store_u128(bus, address, value)
    }

    /// Stores to the op's 8-byte memory operand.
    #[inline(always)]
    pub(crate) fn store_quad(&mut self, bus: &mut dyn Bus, op: &Op, value: u64) -> Res<()> {
        let address = self.linear_write(op, 8)?;
        self.store_u64(bus, address, value)
    }

    /// Stores to the op's 4-byte memory operand.
    #[inline(always)]
    pub(crate) fn store_double(&mut self, bus: &mut dyn Bus, op: &Op, value: u32) -> Res<()> {
        let address = self.linear_write(op, 4)?;
        self.store_u32(bus, address, value)
    }

    /// Raises #GP(0) for a misaligned operand. A non-canonical address is checked first, and raises #SS if the
    /// operand is in the stack segment.
    #[inline(always)]
    pub(crate) fn require_aligned(&mut self, address: u64, size_bytes: u64) -> Res<()> {
        if address & (size_bytes - 1) == 0 { Ok(()) } else { Err(self.gp(0)) }
    }
}
