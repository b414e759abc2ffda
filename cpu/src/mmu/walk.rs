//! Page-table walks: those of the CPU, which set accessed and dirty bits, and those of a debugger, which change nothing.

use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};

use super::paging::{ACCESSED, Access, DIRTY, PageFault, Path, Privilege, Translation, executes_checked};
use super::root;
use super::tlb::{Level, Mmu};
use crate::registers::cr0;
use crate::state::CpuState;

/// What a walk found beside the translation.
#[derive(Default)]
pub(crate) struct Findings {
    /// RAM pages that became page tables: stores to them must be seen from now on.
    pub tables: Vec<u64>,
    /// RAM offsets of entries whose accessed or dirty bits it set although decoded code came from their page.
    pub code: Vec<u64>,
}

impl Mmu {
    /// Translates a linear address by walking the tables, setting accessed and dirty bits as the access
    /// demands. `found` receives what the caller must look after.
    pub(crate) fn walk(
        &mut self,
        ram: &GuestRam,
        state: &CpuState,
        address: u64,
        access: Access,
        privilege: Privilege,
        found: &mut Findings,
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
        self.commit(ram, &path, access, found);
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

    /// Sets accessed and dirty bits, and then notes the pages that were read: setting bits can drop what was noted.
    fn commit(&mut self, ram: &GuestRam, path: &Path, access: Access, found: &mut Findings) {
        let last = path.steps().len() - 1;
        for (number, step) in path.steps().iter().enumerate() {
            let dirty = if number == last && access == Access::Write { DIRTY } else { 0 };
            let value = step.value | ACCESSED | dirty;
            if value == step.value {
                continue;
            }
            if path.narrow {
                ram.store_u32(step.offset, value as u32);
            } else {
                ram.store_u64(step.offset, value);
            }
            let page = step.offset / PAGE_SIZE;
            ram.flags().set(page, PageFlags::DIRTY);
            if ram.flags().has(page, PageFlags::CODE) {
                found.code.push(step.offset);
            }
            self.bits_set(ram, step.offset);
        }
        for step in path.steps() {
            let level = match step.shift {
                root::SHIFT => Level::Root,
                12 => Level::Last,
                _ => Level::Upper,
            };
            found.tables.extend(self.note_table(ram, step.offset, level, path.narrow));
        }
        if path.steps()[0].shift == root::SHIFT {
            self.inherit(ram);
        }
    }
}
