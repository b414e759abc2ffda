//! Page-table walks: of the CPU, which set accessed and dirty bits, and of those who only look.

use guest_ram::{GuestRam, PAGE_SIZE};

use super::paging::{ACCESSED, Access, DIRTY, PageFault, Path, Privilege, Translation, executes_checked};
use super::tlb::Mmu;
use crate::registers::cr0;
use crate::state::CpuState;

impl Mmu {
    /// Translates a linear address by walking the tables, setting accessed and dirty bits as the access
    /// demands. `newly_flagged` receives RAM pages that became page tables.
    pub(crate) fn walk(
        &mut self,
        ram: &GuestRam,
        state: &CpuState,
        address: u64,
        access: Access,
        privilege: Privilege,
        newly_flagged: &mut Vec<u64>,
    ) -> Result<Translation, PageFault> {
        if state.cr0 & cr0::PG == 0 {
            let gpa = address & 0xffff_ffff;
            return Ok(Translation { gpa, writable: true, executable: true, entry_offset: u64::MAX });
        }
        let fault_base = u32::from(access == Access::Write) << 1
            | u32::from(privilege.user) << 2
            | u32::from(access == Access::Execute && executes_checked(state)) << 4;
        let path = Path::read(ram, state, address).map_err(|bits| PageFault(fault_base | bits))?;
        path.check(state, access, privilege).map_err(|()| PageFault(fault_base | 1))?;
        self.commit(ram, &path, access, newly_flagged);
        Ok(path.translation(state, address, access, privilege))
    }

    /// Guest-physical address of a linear one, without rights and without side effects.
    pub(crate) fn peek(ram: &GuestRam, state: &CpuState, address: u64) -> Option<u64> {
        if state.cr0 & cr0::PG == 0 {
            return Some(address & 0xffff_ffff);
        }
        Path::read(ram, state, address).ok().map(|path| path.gpa(address))
    }

    /// As [`Mmu::peek`], from another root than the one in CR3.
    pub(crate) fn peek_in(ram: &GuestRam, state: &CpuState, cr3: u64, address: u64) -> Option<u64> {
        if state.cr0 & cr0::PG == 0 {
            return Some(address & 0xffff_ffff);
        }
        Path::read_in(ram, state, cr3, address).ok().map(|path| path.gpa(address))
    }

    /// Sets accessed and dirty bits and notes the pages that were read.
    fn commit(&mut self, ram: &GuestRam, path: &Path, access: Access, newly_flagged: &mut Vec<u64>) {
        for (number, step) in path.steps().iter().enumerate() {
            let last = number + 1 == path.steps().len();
            let mut value = step.value | ACCESSED;
            if last && access == Access::Write {
                value |= DIRTY;
            }
            if value != step.value {
                if path.narrow {
                    ram.store_u32(step.offset, value as u32);
                } else {
                    ram.store_u64(step.offset, value);
                }
                ram.flags().set(step.offset / PAGE_SIZE, guest_ram::PageFlags::DIRTY);
            }
            let last_level = last && step.shift == 12;
            newly_flagged.extend(self.note_table(ram, step.offset, last_level, path.narrow));
        }
    }
}
