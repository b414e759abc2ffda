//! Writes to control registers (SDM vol. 3, 2.5 and 4.4.1; consistency rules in vol. 2, MOV).

use cpu_model::PHYSICAL_BITS;
use cpu_model::registers::{cr0, cr4, efer};

use crate::core::Core;
use crate::exception::Res;

const CR0_KNOWN: u64 =
    cr0::PE | cr0::MP | cr0::EM | cr0::TS | cr0::NE | cr0::WP | cr0::AM | cr0::NW | cr0::CD | cr0::PG;

/// Bits of a 64-bit word above the `PHYSICAL_BITS` bits of a physical address.
const BEYOND_PHYSICAL: u64 = !((1 << PHYSICAL_BITS) - 1);

impl Core {
    /// Writes CR0, and makes all changes that follow: to modes, paging, LMA and PDPTEs.
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

    pub(crate) fn write_cr3(&mut self, value: u64) -> Res<()> {
        if self.long_mode() {
            // With CR4.PCIDE, bit 63 of the value means "keep translations". This CPU ignores the bit and does not
            // store it.
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

    pub(crate) fn write_cr4(&mut self, value: u64) -> Res<()> {
        let old = self.state.cr4;
        let enables_pcids = value & !old & cr4::PCIDE != 0;
        let refused = value & !self.model.description().cr4 != 0
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

    /// Loads the four PDPTEs of PAE paging. Reserved bits in a present entry raise #GP(0). Entries outside RAM read as
    /// absent.
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
