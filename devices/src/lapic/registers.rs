//! The local APIC's register map: memory mapped (xAPIC) and by MSR (x2APIC).
//!
//! A register's number is its byte offset in the page divided by 16, which is also its MSR number minus 0x800.

use super::*;

/// Version 0x14, seven LVT entries (the highest is number 6), no EOI broadcast suppression.
const VERSION: u32 = 0x0006_0014;

const ID_REGISTER: u32 = 0x02;
const VERSION_REGISTER: u32 = 0x03;
const TPR: u32 = 0x08;
const APR: u32 = 0x09;
const PPR: u32 = 0x0A;
const EOI: u32 = 0x0B;
const RRD: u32 = 0x0C;
const LDR: u32 = 0x0D;
const DFR: u32 = 0x0E;
const SVR: u32 = 0x0F;
const ISR: u32 = 0x10;
const TMR: u32 = 0x18;
const IRR: u32 = 0x20;
const ESR: u32 = 0x28;
const LVT_CMCI_REGISTER: u32 = 0x2F;
const ICR: u32 = 0x30;
const ICR_HIGH: u32 = 0x31;
const LVT_FIRST: u32 = 0x32;
const LVT_LAST: u32 = 0x37;
const INITIAL_COUNT: u32 = 0x38;
const CURRENT_COUNT: u32 = 0x39;
const DIVIDE: u32 = 0x3E;
const SELF_IPI: u32 = 0x3F;

const SVR_WRITABLE: u32 = 0x3FF;
/// Writable bits of the ICR. Delivery status (bit 12) is read only, and zero because sending takes no time.
const ICR_WRITABLE: u32 = 0x000C_CFFF;
const DIVIDE_WRITABLE: u32 = 0x0B;
/// Writable bits of the entries of the local vector table, in the order of `RegisterFile::lvt`.
const LVT_WRITABLE: [u32; 7] = [0x107FF, 0x700FF, 0x107FF, 0x107FF, 0x1A7FF, 0x1A7FF, 0x100FF];
/// Bits that may be written as one in x2APIC mode but do not change: delivery status, remote IRR.
const LVT_READ_ONLY: u32 = 0x5000;

impl LocalApic {
    /// Reads the 32-bit register that contains byte `offset` of the page.
    pub fn read(&mut self, offset: u64, now_ns: u64) -> u32 {
        let register = (offset >> 4) as u32;
        if matches!(register, EOI | APR | RRD) || offset & 0x0C != 0 {
            // The register is write-only or always zero, or `offset` lies between two registers.
            return 0;
        }
        self.read_register(register, now_ns).unwrap_or_else(|| {
            self.report_error(ESR_ILLEGAL_REGISTER);
            0
        })
    }

    /// Writes the 32-bit register at byte `offset` of the page. Registers are 16 bytes apart; writes between
    /// them do nothing.
    pub fn write(&mut self, offset: u64, value: u32, now_ns: u64) {
        if offset & 0x0F != 0 {
            return;
        }
        match (offset >> 4) as u32 {
            ICR => {
                self.s.icr = self.s.icr & !0xFFFF_FFFF | u64::from(value & ICR_WRITABLE);
                self.send_ipi(value, (self.s.icr >> 56) as u32);
            }
            ICR_HIGH => self.s.icr = self.s.icr & 0xFFFF_FFFF | u64::from(value & 0xFF00_0000) << 32,
            LDR => self.s.ldr = value & 0xFF00_0000,
            DFR => self.s.dfr = value | 0x0FFF_FFFF,
            // Read-only registers.
            ID_REGISTER | VERSION_REGISTER | APR | PPR | RRD | ISR..ESR | CURRENT_COUNT => {}
            register => {
                if !self.write_register(register, value, now_ns) {
                    self.report_error(ESR_ILLEGAL_REGISTER);
                }
            }
        }
    }

    pub(super) fn read_x2apic(&mut self, register: u32, now_ns: u64) -> Result<u64, GeneralProtection> {
        match register {
            ICR => Ok(self.s.icr),
            // These registers are write-only, or absent in x2APIC mode.
            EOI | DFR | ICR_HIGH | SELF_IPI => Err(GeneralProtection),
            LDR => Ok(u64::from(self.x2apic_ldr())),
            _ => self.read_register(register, now_ns).map(u64::from).ok_or(GeneralProtection),
        }
    }

    pub(super) fn write_x2apic(
        &mut self,
        register: u32,
        value: u64,
        now_ns: u64,
    ) -> Result<(), GeneralProtection> {
        let low = value as u32;
        if register == ICR {
            if low & !ICR_WRITABLE & !(1 << 12) != 0 {
                return Err(GeneralProtection);
            }
            self.s.icr = value & !(1 << 12);
            self.send_ipi(low, (value >> 32) as u32);
            return Ok(());
        }
        if value & !u64::from(x2apic_accepted_bits(register)) != 0 {
            return Err(GeneralProtection);
        }
        if register == SELF_IPI {
            self.send_ipi(0x4_0000 | low, 0);
            return Ok(());
        }
        if self.write_register(register, low, now_ns) { Ok(()) } else { Err(GeneralProtection) }
    }

    /// Reads a register that is the same in both modes. Returns `None` if there is no such register.
    fn read_register(&mut self, register: u32, now_ns: u64) -> Option<u32> {
        let value = match register {
            ID_REGISTER if self.mode() == Mode::X2Apic => u32::from(self.id),
            ID_REGISTER => u32::from(self.id) << 24,
            VERSION_REGISTER => VERSION,
            TPR => u32::from(self.s.tpr),
            PPR => u32::from(self.ppr()),
            LDR => self.s.ldr,
            DFR => self.s.dfr,
            SVR => self.s.svr,
            ISR..TMR => self.s.in_service.word((register - ISR) as usize),
            TMR..IRR => self.s.trigger_mode.word((register - TMR) as usize),
            IRR..ESR => self.s.requested.word((register - IRR) as usize),
            ESR => self.s.esr,
            ICR => self.s.icr as u32,
            ICR_HIGH => (self.s.icr >> 32) as u32,
            INITIAL_COUNT => self.s.timer.initial,
            CURRENT_COUNT => self.timer().current_count(now_ns),
            DIVIDE => u32::from(self.s.timer.divide),
            _ => self.s.lvt[lvt_index(register)?],
        };
        Some(value)
    }

    /// Writes a register that is the same in both modes. Returns false if there is no such register.
    fn write_register(&mut self, register: u32, value: u32, now_ns: u64) -> bool {
        match register {
            TPR => self.s.tpr = value as u8,
            EOI => self.end_of_interrupt(),
            SVR => self.write_spurious_vector(value & SVR_WRITABLE),
            // A write to ESR latches the errors since the last write to ESR, and clears these errors.
            ESR => self.s.esr = std::mem::take(&mut self.s.errors),
            INITIAL_COUNT => self.timer().set_initial_count(value, now_ns),
            DIVIDE => self.timer().set_divide(value & DIVIDE_WRITABLE, now_ns),
            _ => match lvt_index(register) {
                Some(index) => self.write_lvt(index, value),
                None => return false,
            },
        }
        true
    }

    fn write_spurious_vector(&mut self, value: u32) {
        self.s.svr = value;
        if !self.is_software_enabled() {
            for entry in &mut self.s.lvt {
                *entry |= LVT_MASKED;
            }
        }
    }

    /// Writes a vector table entry. The entries of a software-disabled APIC stay masked.
    fn write_lvt(&mut self, index: usize, value: u32) {
        let forced = if self.is_software_enabled() { 0 } else { LVT_MASKED };
        let entry = value & LVT_WRITABLE[index] | forced;
        if index == LVT_TIMER {
            self.timer().change_mode(entry);
        }
        self.s.lvt[index] = entry;
    }
}

fn lvt_index(register: u32) -> Option<usize> {
    match register {
        LVT_CMCI_REGISTER => Some(0),
        LVT_FIRST..=LVT_LAST => Some((register - LVT_FIRST) as usize + 1),
        _ => None,
    }
}

/// The bits that a write in x2APIC mode may set. Any other bit raises #GP.
fn x2apic_accepted_bits(register: u32) -> u32 {
    match register {
        TPR | SELF_IPI => 0xFF,
        SVR => SVR_WRITABLE,
        DIVIDE => DIVIDE_WRITABLE,
        INITIAL_COUNT => u32::MAX,
        // EOI and ESR may only be written with zero; registers that do not exist raise #GP anyway.
        _ => lvt_index(register).map_or(0, |index| LVT_WRITABLE[index] | LVT_READ_ONLY),
    }
}
