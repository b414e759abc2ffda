//! Page walks. A walk for the CPU sets accessed and dirty bits; a walk for a debugger changes nothing.

use cpu_model::registers::cr0;
use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};

use super::paging::{ACCESSED, Access, DIRTY, PageFault, Path, Privilege, Translation, executes_checked};
use super::root;
use super::tlb::{Level, Mmu};
use crate::state::CpuState;

/// A walk's results besides the translation.
#[derive(Default)]
pub(crate) struct Findings {
    /// RAM pages that were not known to be page tables before. From now on, stores to these pages must take the
    /// slow path.
    pub tables: Vec<u64>,
    /// RAM offsets of entries in which the walk set accessed or dirty bits, and whose page contains decoded code.
    pub code: Vec<u64>,
}

impl Mmu {
    /// Translates a linear address by walking the tables, and sets accessed and dirty bits for the access. The caller
    /// must handle the contents of `found`.
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

    /// Guest-physical address of a linear address, without access checks or side effects.
    pub(crate) fn peek(ram: &GuestRam, state: &CpuState, address: u64) -> Option<u64> {
        if state.cr0 & cr0::PG == 0 {
            return Some(address & 0xffff_ffff);
        }
        Path::read(ram, state, address).ok().map(|path| path.gpa(address))
    }

    /// Does the same as [`Mmu::peek`] with `cr3` in place of CR3.
    pub(crate) fn peek_in(ram: &GuestRam, state: &CpuState, cr3: u64, address: u64) -> Option<u64> {
        if state.cr0 & cr0::PG == 0 {
            return Some(address & 0xffff_ffff);
        }
        Path::read_in(ram, state, cr3, address).ok().map(|path| path.gpa(address))
    }

    /// Sets accessed and dirty bits, then notes the pages that the walk read. The order matters, because setting a
    /// bit can drop all notes about page-table pages.
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
        for (number, step) in path.steps().iter().enumerate() {
            let level = match step.shift {
                root::SHIFT => Level::Root,
                12 if number == last => Level::Last,
                _ => Level::Upper,
            };
            found.tables.extend(self.note_table(ram, step.offset, level, path.narrow));
        }
        if path.steps()[0].shift == root::SHIFT {
            self.inherit(ram);
        }
    }
}
