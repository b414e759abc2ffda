//! Model-specific registers (SDM vol. 4; APM vol. 2, appendix A). The [`Bus`] implements the registers of the board
//! (APIC base, x2APIC). Some registers exist only because a kernel that recognises the CPU model reads or writes
//! these registers. Such registers read as constants and ignore writes. All other registers raise #GP.

use cpu_model::registers::{cr0, cr4, efer};

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::memory::canonical;
use crate::state::{SegReg, Segment};

const TSC: u32 = 0x10;
const TSC_ADJUST: u32 = 0x3b;
const PATCH_LEVEL: u32 = 0x8b;
const MTRR_CAP: u32 = 0xfe;
const MCG_CAP: u32 = 0x179;
const SYSENTER_CS: u32 = 0x174;
const SYSENTER_ESP: u32 = 0x175;
const SYSENTER_EIP: u32 = 0x176;
const MISC_ENABLE: u32 = 0x1a0;
const MTRR_VARIABLE: u32 = 0x200;
const MTRR_VARIABLE_END: u32 = 0x20f;
const MTRR_FIXED: [u32; 11] = [0x250, 0x258, 0x259, 0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f];
const PAT: u32 = 0x277;
const MTRR_DEF_TYPE: u32 = 0x2ff;
const TSC_DEADLINE: u32 = 0x6e0;
const EFER: u32 = 0xc000_0080;
const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const CSTAR: u32 = 0xc000_0083;
const SFMASK: u32 = 0xc000_0084;
const FS_BASE: u32 = 0xc000_0100;
const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;
const TSC_AUX: u32 = 0xc000_0103;
const DEBUGCTL: u32 = 0x1d9;
const SYSCFG: u32 = 0xc001_0010;
const HWCR: u32 = 0xc001_0015;
const PATCH_LOADER: u32 = 0xc001_0020;
const DE_CFG: u32 = 0xc001_1029;

/// Registers that kernels read and adjust on processors of this CPU family. These registers read as zero and ignore
/// writes. NB_CFG, INT_PENDING, MMIO_CONF_BASE, TSEG base and mask, DC_CFG, TW_CFG, BU_CFG2, the patch level.
const INERT: [u32; 9] = [
    0xc001_001f,
    0xc001_0055,
    0xc001_0058,
    0xc001_0112,
    0xc001_0113,
    0xc001_1022,
    0xc001_1023,
    0xc001_102a,
    PATCH_LEVEL,
];
/// PerfEvtSel0 to 3 and PerfCtr0 to 3, which every AMD64 processor has (APM vol. 2, 13.2.1). The performance counters
/// count nothing: they read as zero and ignore writes, as under a hypervisor without virtual counters. Linux writes
/// a value to a counter and reads it back, and so finds out that the counters cannot be used. If writes changed the
/// counters, a kernel could set up a watchdog that waits for a counter's overflow for ever.
const PERFORMANCE_COUNTERS: std::ops::RangeInclusive<u32> = 0xc001_0000..=0xc001_0007;
/// The writable bits of DEBUGCTL: LBR, which has no effect, and BTF.
const DEBUGCTL_WRITABLE: u64 = 3;

/// The value of IA32_MTRRCAP: 8 variable ranges, fixed ranges, and write-combining.
const MTRR_CAP_VALUE: u64 = 8 | 1 << 8 | 1 << 10;
/// The value of HWCR: the TSC counts at the P0 frequency. A kernel prints a warning if this bit is clear.
const HWCR_VALUE: u64 = 1 << 24;
/// The value of DE_CFG: LFENCE is serializing.
const DE_CFG_VALUE: u64 = 1 << 1;
const PHYSICAL: u64 = (1 << cpu_model::PHYSICAL_BITS) - 1;

impl Core {
    /// The guest's time-stamp counter.
    pub(crate) fn guest_tsc(&mut self, bus: &mut dyn Bus) -> u64 {
        bus.tsc(self.steps()).wrapping_add(self.state.msrs.tsc_offset)
    }

    /// Executes RDMSR without the privilege check.
    pub(crate) fn read_msr(&mut self, bus: &mut dyn Bus, index: u32) -> Res<u64> {
        let msrs = &self.state.msrs;
        Ok(match index {
            TSC => self.guest_tsc(bus),
            TSC_ADJUST => msrs.tsc_adjust,
            SYSCFG => 0,
            _ if self.is_inert(index) => 0,
            // There are no banks that report machine checks.
            MCG_CAP => 0,
            DEBUGCTL => msrs.debugctl,
            MTRR_CAP => MTRR_CAP_VALUE,
            SYSENTER_CS => msrs.sysenter_cs,
            SYSENTER_ESP => msrs.sysenter_esp,
            SYSENTER_EIP => msrs.sysenter_eip,
            MISC_ENABLE => msrs.misc_enable,
            MTRR_VARIABLE..=MTRR_VARIABLE_END => msrs.mtrr_variable[(index - MTRR_VARIABLE) as usize],
            PAT => msrs.pat,
            MTRR_DEF_TYPE => msrs.mtrr_def_type,
            EFER => msrs.efer,
            STAR => msrs.star,
            LSTAR => msrs.lstar,
            CSTAR => msrs.cstar,
            SFMASK => msrs.sfmask,
            FS_BASE => self.segment(SegReg::Fs).base,
            GS_BASE => self.segment(SegReg::Gs).base,
            KERNEL_GS_BASE => msrs.kernel_gs_base,
            TSC_AUX => msrs.tsc_aux,
            HWCR => HWCR_VALUE,
            DE_CFG => DE_CFG_VALUE,
            TSC_DEADLINE => self.read_deadline(bus)?,
            _ => match MTRR_FIXED.iter().position(|&n| n == index) {
                Some(number) => msrs.mtrr_fixed[number],
                None => self.read_board_msr(bus, index)?,
            },
        })
    }

    /// Whether a register reads as zero and ignores writes.
    fn is_inert(&self, index: u32) -> bool {
        INERT.contains(&index)
            || PERFORMANCE_COUNTERS.contains(&index)
            || self.model.description().inert_msrs.contains(&index)
    }

    fn read_board_msr(&mut self, bus: &mut dyn Bus, index: u32) -> Res<u64> {
        let value = bus.read_msr(self.steps(), index);
        self.bus_was_used();
        value.ok_or_else(|| {
            log::debug!("read of unknown MSR {index:#x}");
            self.gp(0)
        })
    }

    fn write_board_msr(&mut self, bus: &mut dyn Bus, index: u32, value: u64) -> Res<()> {
        let done = bus.write_msr(self.steps(), index, value);
        self.bus_was_used();
        done.ok_or_else(|| {
            log::debug!("write of {value:#x} to MSR {index:#x} refused");
            self.gp(0)
        })
    }

    /// Returns the board's TSC deadline, converted from raw ticks to the guest's TSC. Zero means "disarmed" before
    /// and after the conversion.
    fn read_deadline(&mut self, bus: &mut dyn Bus) -> Res<u64> {
        Ok(match self.read_board_msr(bus, TSC_DEADLINE)? {
            0 => 0,
            raw => raw.wrapping_add(self.state.msrs.tsc_offset),
        })
    }

    /// Writes the TSC deadline. A deadline that would lie before raw tick 1 is due at once, and is stored as 1, the
    /// smallest armed value.
    fn write_deadline(&mut self, bus: &mut dyn Bus, value: u64) -> Res<()> {
        let offset = self.state.msrs.tsc_offset;
        let raw = if value == 0 {
            0
        } else if (offset as i64) >= 0 {
            value.saturating_sub(offset).max(1)
        } else {
            value.saturating_add(offset.wrapping_neg())
        };
        self.write_board_msr(bus, TSC_DEADLINE, raw)
    }

    /// Executes WRMSR without the privilege check.
    pub(crate) fn write_msr(&mut self, bus: &mut dyn Bus, index: u32, value: u64) -> Res<()> {
        match index {
            TSC => {
                let change = value.wrapping_sub(self.guest_tsc(bus));
                self.shift_tsc(change);
            }
            TSC_ADJUST => {
                let change = value.wrapping_sub(self.state.msrs.tsc_adjust);
                self.shift_tsc(change);
            }
            SYSCFG | HWCR | DE_CFG | PATCH_LOADER => ignored(index, value),
            _ if self.is_inert(index) => ignored(index, value),
            DEBUGCTL => {
                if value & !DEBUGCTL_WRITABLE != 0 {
                    return Err(self.gp(0));
                }
                self.state.msrs.debugctl = value;
            }
            SYSENTER_CS => self.state.msrs.sysenter_cs = value & 0xffff_ffff,
            SYSENTER_ESP => self.state.msrs.sysenter_esp = self.canonical_value(value)?,
            SYSENTER_EIP => self.state.msrs.sysenter_eip = self.canonical_value(value)?,
            MISC_ENABLE => self.state.msrs.misc_enable = value,
            MTRR_VARIABLE..=MTRR_VARIABLE_END => self.write_mtrr_variable(index, value)?,
            PAT => self.write_pat(value)?,
            MTRR_DEF_TYPE => self.write_mtrr_def_type(value)?,
            EFER => self.write_efer(value)?,
            STAR => self.state.msrs.star = value,
            LSTAR => self.state.msrs.lstar = self.canonical_value(value)?,
            CSTAR => self.state.msrs.cstar = self.canonical_value(value)?,
            SFMASK => self.state.msrs.sfmask = value & 0xffff_ffff,
            FS_BASE => {
                let base = self.canonical_value(value)?;
                self.set_base(SegReg::Fs, base);
            }
            GS_BASE => {
                let base = self.canonical_value(value)?;
                self.set_base(SegReg::Gs, base);
            }
            KERNEL_GS_BASE => self.state.msrs.kernel_gs_base = self.canonical_value(value)?,
            TSC_AUX => self.state.msrs.tsc_aux = value & 0xffff_ffff,
            MTRR_CAP | MCG_CAP => return Err(self.gp(0)),
            TSC_DEADLINE => self.write_deadline(bus, value)?,
            _ => match MTRR_FIXED.iter().position(|&n| n == index) {
                Some(number) => self.write_mtrr_fixed(number, value)?,
                None => self.write_board_msr(bus, index, value)?,
            },
        }
        Ok(())
    }

    fn canonical_value(&mut self, value: u64) -> Res<u64> {
        if canonical(value) { Ok(value) } else { Err(self.gp(0)) }
    }

    /// Adds a value to the guest's TSC, and the same value to IA32_TSC_ADJUST (SDM vol. 3, 18.17.3).
    fn shift_tsc(&mut self, change: u64) {
        let msrs = &mut self.state.msrs;
        msrs.tsc_offset = msrs.tsc_offset.wrapping_add(change);
        msrs.tsc_adjust = msrs.tsc_adjust.wrapping_add(change);
    }

    /// Sets the base of FS or GS, and keeps the other fields of the segment.
    pub(crate) fn set_base(&mut self, register: SegReg, base: u64) {
        let segment = Segment { base, ..*self.segment(register) };
        self.set_segment(register, segment);
    }

    fn write_efer(&mut self, value: u64) -> Res<()> {
        const KNOWN: u64 = efer::SCE | efer::LME | efer::LMA | efer::NXE;
        let old = self.state.msrs.efer;
        // LMA is read-only; writes to it are ignored.
        let new = value & !efer::LMA | old & efer::LMA;
        let paging = self.state.cr0 & cr0::PG != 0;
        if value & !KNOWN != 0 || (paging && (old ^ new) & efer::LME != 0) {
            return Err(self.gp(0));
        }
        self.state.msrs.efer = new;
        self.paging_changed();
        Ok(())
    }

    fn write_pat(&mut self, value: u64) -> Res<()> {
        if value.to_le_bytes().iter().all(|&kind| matches!(kind, 0 | 1 | 4..=7)) {
            self.state.msrs.pat = value;
            return Ok(());
        }
        Err(self.gp(0))
    }

    fn write_mtrr_fixed(&mut self, number: usize, value: u64) -> Res<()> {
        if !value.to_le_bytes().into_iter().all(memory_type) {
            return Err(self.gp(0));
        }
        self.state.msrs.mtrr_fixed[number] = value;
        Ok(())
    }

    fn write_mtrr_def_type(&mut self, value: u64) -> Res<()> {
        if value & !0xcff != 0 || !memory_type(value as u8) {
            return Err(self.gp(0));
        }
        self.state.msrs.mtrr_def_type = value;
        Ok(())
    }

    /// Writes an MTRR of a variable range. Even registers hold base and type, odd registers hold mask and valid
    /// bit.
    fn write_mtrr_variable(&mut self, index: u32, value: u64) -> Res<()> {
        let reserved = if index & 1 == 0 { 0xf00 } else { 0x7ff };
        let bad_type = index & 1 == 0 && !memory_type(value as u8);
        if value & (reserved | !PHYSICAL) != 0 || bad_type {
            return Err(self.gp(0));
        }
        self.state.msrs.mtrr_variable[(index - MTRR_VARIABLE) as usize] = value;
        Ok(())
    }

    /// Raises #GP(0) if the running code may not execute RDTSC and RDTSCP.
    pub(crate) fn check_tsc(&mut self) -> Res<()> {
        if self.state.cr4 & cr4::TSD != 0 && self.cpl != 0 { Err(self.gp(0)) } else { Ok(()) }
    }
}

fn ignored(index: u32, value: u64) {
    log::debug!("write of {value:#x} to MSR {index:#x} ignored");
}

/// Whether a byte is a memory type of the MTRRs.
fn memory_type(kind: u8) -> bool {
    matches!(kind, 0 | 1 | 4 | 5 | 6)
}
