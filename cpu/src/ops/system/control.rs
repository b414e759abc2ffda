//! Control and debug registers (SDM vol. 3, 2.5 and 18.2; consistency rules in vol. 2, MOV).

use iced_x86::{Code, Mnemonic};

use super::{operand, read16};
use crate::bus::Bus;
use crate::core::{Core, cr0, cr4, efer};
use crate::decode::Insn;
use crate::flags;
use crate::mmu::PHYSICAL_BITS;
use crate::op::{Op, Res};

const CR0_KNOWN: u64 =
    cr0::PE | cr0::MP | cr0::EM | cr0::TS | cr0::NE | cr0::WP | cr0::AM | cr0::NW | cr0::CD | cr0::PG;

/// What CPUID can announce. VME, PVI and MCE are not among it: setting them is #GP.
const CR4_KNOWN: u64 = cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::PGE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::UMIP
    | cr4::FSGSBASE
    | cr4::PCIDE
    | cr4::OSXSAVE
    | cr4::SMEP
    | cr4::SMAP;

/// Physical address bits that do not exist.
const BEYOND_PHYSICAL: u64 = !((1 << PHYSICAL_BITS) - 1);

/// DR6: bits that software can change, and those that read as one.
const DR6_WRITABLE: u64 = 0xe00f;
const DR6_ONES: u64 = 0xffff_0ff0;
const DR6_BD: u64 = 1 << 13;
/// DR7: the same.
const DR7_WRITABLE: u64 = 0xffff_23ff;
const DR7_ONES: u64 = 0x400;
const DR7_GD: u64 = 1 << 13;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let ends = Op::ENDS_BLOCK;
    let number = |n: u32| insn.raw.op_register(n).number() as u8;
    Some(match insn.code() {
        Code::Mov_r32_cr | Code::Mov_r64_cr if control_exists(number(1)) => {
            Op::new(mov_from_cr).r0(number(0)).aux(number(1)).with(ends)
        }
        Code::Mov_cr_r32 | Code::Mov_cr_r64 if control_exists(number(0)) => {
            Op::new(mov_to_cr).r0(number(1)).aux(number(0)).with(ends)
        }
        Code::Mov_r32_dr | Code::Mov_r64_dr if number(1) < 8 => {
            Op::new(mov_from_dr).r0(number(0)).aux(number(1)).with(ends)
        }
        Code::Mov_dr_r32 | Code::Mov_dr_r64 if number(0) < 8 => {
            Op::new(mov_to_dr).r0(number(1)).aux(number(0)).with(ends)
        }
        _ => match insn.mnemonic() {
            Mnemonic::Clts => Op::new(clts).with(ends),
            Mnemonic::Lmsw => operand(insn, Op::new(lmsw), 0).with(ends),
            Mnemonic::Smsw => operand(insn, Op::new(smsw).aux(insn.size(0) as u8), 0),
            _ => return None,
        },
    })
}

fn control_exists(number: u8) -> bool {
    matches!(number, 0 | 2 | 3 | 4 | 8)
}

/// The source of a MOV to a control or debug register: 32 bits outside 64-bit mode.
fn source(core: &Core, op: &Op) -> u64 {
    if core.is_64bit() { core.reg64(op.r0) } else { u64::from(core.reg32(op.r0)) }
}

fn give(core: &mut Core, op: &Op, value: u64) {
    if core.is_64bit() {
        core.set_reg64(op.r0, value);
    } else {
        core.set_reg32(op.r0, value as u32);
    }
}

fn check_privilege(core: &mut Core) -> Res<()> {
    core.require_cpl0()?;
    if core.rflags & flags::VM != 0 { Err(core.gp(0)) } else { Ok(()) }
}

fn mov_from_cr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = match op.aux {
        0 => core.state.cr0,
        2 => core.state.cr2,
        3 => core.state.cr3,
        4 => core.state.cr4,
        _ => {
            let value = bus.cr8();
            core.bus_was_used();
            value
        }
    };
    give(core, op, value);
    Ok(())
}

fn mov_to_cr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = source(core, op);
    match op.aux {
        0 => core.write_cr0(value),
        2 => {
            core.state.cr2 = value;
            Ok(())
        }
        3 => core.write_cr3(value),
        4 => core.write_cr4(value),
        _ => {
            if value > 15 {
                return Err(core.gp(0));
            }
            bus.set_cr8(core.steps(), value);
            core.bus_was_used();
            Ok(())
        }
    }
}

impl Core {
    /// Writes CR0 with all its consequences: modes, paging, LMA, PDPTEs.
    pub(crate) fn write_cr0(&mut self, value: u64) -> Res<()> {
        let old = self.state.cr0;
        let inconsistent = value >> 32 != 0
            || (value & cr0::PG != 0 && value & cr0::PE == 0)
            || (value & cr0::NW != 0 && value & cr0::CD == 0);
        if inconsistent {
            return Err(self.gp(0));
        }
        let new = value & CR0_KNOWN | cr0::ET;
        let (enables, disables) = (new & !old & cr0::PG != 0, old & !new & cr0::PG != 0);
        let wants_long = self.state.msrs.efer & efer::LME != 0;
        let pae = self.state.cr4 & cr4::PAE != 0;
        let refused = if enables && wants_long {
            !pae || self.state.segments[1].long()
        } else {
            disables && (self.is_64bit() || self.state.cr4 & cr4::PCIDE != 0)
        };
        if refused {
            return Err(self.gp(0));
        }
        let pae_paging = new & cr0::PG != 0 && pae && !wants_long;
        if pae_paging && (old ^ new) & (cr0::PG | cr0::CD | cr0::NW) != 0 {
            self.load_pdptes(self.state.cr3)?;
        }
        if enables && wants_long {
            self.state.msrs.efer |= efer::LMA;
        } else if disables {
            self.state.msrs.efer &= !efer::LMA;
        }
        self.state.cr0 = new;
        self.paging_changed();
        self.mode_changed();
        Ok(())
    }

    fn write_cr3(&mut self, value: u64) -> Res<()> {
        if self.long_mode() {
            // With PCIDs bit 63 says "keep translations", which makes no difference here; it is not stored.
            let pcids = self.state.cr4 & cr4::PCIDE != 0;
            let value = if pcids { value & !(1 << 63) } else { value };
            if value & BEYOND_PHYSICAL != 0 {
                return Err(self.gp(0));
            }
            self.state.cr3 = value;
        } else {
            let value = value & 0xffff_ffff;
            if self.state.cr0 & cr0::PG != 0 && self.state.cr4 & cr4::PAE != 0 {
                self.load_pdptes(value)?;
            }
            self.state.cr3 = value;
        }
        self.paging_changed();
        Ok(())
    }

    fn write_cr4(&mut self, value: u64) -> Res<()> {
        let old = self.state.cr4;
        let enables_pcids = value & !old & cr4::PCIDE != 0;
        let refused = value & (!CR4_KNOWN | self.model.hidden_cr4()) != 0
            || (self.long_mode() && value & cr4::PAE == 0)
            || (enables_pcids && (!self.long_mode() || self.state.cr3 & 0xfff != 0));
        if refused {
            return Err(self.gp(0));
        }
        let pae_paging = self.state.cr0 & cr0::PG != 0 && value & cr4::PAE != 0 && !self.long_mode();
        if pae_paging && (old ^ value) & (cr4::PAE | cr4::PSE | cr4::PGE | cr4::SMEP) != 0 {
            self.load_pdptes(self.state.cr3)?;
        }
        self.state.cr4 = value;
        self.paging_changed();
        Ok(())
    }

    /// Loads the four PDPTEs of PAE paging; reserved bits in a present one raise #GP(0). What lies outside
    /// RAM reads as absent.
    pub(crate) fn load_pdptes(&mut self, cr3: u64) -> Res<()> {
        const RESERVED: u64 = 0x1e6 | BEYOND_PHYSICAL;
        let table = cr3 & 0xffff_ffe0;
        let mut entries = [0; 4];
        for (entry, number) in entries.iter_mut().zip(0..) {
            let offset = self.ram.layout().offset_of(table + number * 8);
            *entry = offset.map_or(0, |offset| self.ram.load_u64(offset));
            if *entry & 1 != 0 && *entry & RESERVED != 0 {
                return Err(self.gp(0));
            }
        }
        self.state.pdptes = entries;
        Ok(())
    }
}

fn clts(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    check_privilege(core)?;
    core.state.cr0 &= !cr0::TS;
    Ok(())
}

/// LMSW can set PE but not clear it.
fn lmsw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = u64::from(read16(core, bus, op)?) & 0xf;
    let old = core.state.cr0;
    core.write_cr0(old & !0xe | value | old & cr0::PE)
}

/// To a register SMSW gives as much of CR0 as fits, to memory 16 bits.
fn smsw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.check_umip()?;
    let value = core.state.cr0;
    super::write16(core, bus, op, value)
}

/// Privilege, the DE rule for DR4 and DR5, and general detection. Gives the register's true number.
fn check_debug(core: &mut Core, op: &Op) -> Res<u8> {
    let mut number = op.aux;
    if matches!(number, 4 | 5) {
        if core.state.cr4 & cr4::DE != 0 {
            return Err(core.ud());
        }
        number += 2;
    }
    check_privilege(core)?;
    if core.state.dr7 & DR7_GD != 0 {
        // A fault, so RF is pushed set; delivery clears GD and RF.
        core.state.dr6 |= DR6_BD;
        core.rflags |= flags::RF;
        return Err(core.fault(crate::exception::DB));
    }
    Ok(number)
}

fn mov_from_dr(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let number = check_debug(core, op)?;
    let value = match number {
        6 => core.state.dr6,
        7 => core.state.dr7,
        n => core.state.dr[usize::from(n & 3)],
    };
    give(core, op, value);
    Ok(())
}

fn mov_to_dr(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let number = check_debug(core, op)?;
    let value = source(core, op);
    if number >= 6 && value >> 32 != 0 {
        return Err(core.gp(0));
    }
    match number {
        6 => core.state.dr6 = value & DR6_WRITABLE | DR6_ONES,
        7 => core.state.dr7 = value & DR7_WRITABLE | DR7_ONES,
        n => core.state.dr[usize::from(n & 3)] = value,
    }
    core.debug_registers_changed();
    Ok(())
}
