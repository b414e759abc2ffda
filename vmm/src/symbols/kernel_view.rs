//! The kernel's address space in a machine that stands still, also while a program runs that must not see it.
//!
//! Kernels that isolate page tables (PTI) run programs on tables which hold next to nothing of the kernel. The root of
//! those lies one page above the root of the kernel's own (`arch/x86/entry/calling.h`, `PTI_USER_PGTABLE_BIT`). The
//! walk follows the Intel SDM, volume 3, section 4.5: four levels, no rights, no side effects.

use super::Memory;
use crate::machine::Machine;
use crate::timeline::address_space;

/// What the root of a program's tables has and that of the kernel's own has not, where both exist.
pub const USER_ROOT_BIT: u64 = 1 << 12;
const PRESENT: u64 = 1;
/// In an entry above the last level: it maps a page and not a table.
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PAGE_BYTES: u64 = 4096;

/// Virtual memory of a machine, through one set of page tables.
pub struct KernelView<'a> {
    machine: &'a Machine<crate::position::Instructions>,
    /// The root of other tables than the current ones.
    root: Option<u64>,
}

impl<'a> KernelView<'a> {
    /// Through the current tables.
    pub fn current(machine: &'a Machine<crate::position::Instructions>) -> KernelView<'a> {
        KernelView { machine, root: None }
    }

    /// Through what would be the kernel's tables if the current ones were a program's.
    pub fn behind_user(machine: &'a Machine<crate::position::Instructions>) -> Option<KernelView<'a>> {
        let root = address_space(machine);
        (root & USER_ROOT_BIT != 0).then_some(KernelView { machine, root: Some(root & !USER_ROOT_BIT) })
    }

    /// Through the current tables, and then through what would be the kernel's behind a program's: what is found in
    /// neither is not there.
    pub fn all(machine: &'a Machine<crate::position::Instructions>) -> impl Iterator<Item = KernelView<'a>> {
        [KernelView::current(machine)].into_iter().chain(KernelView::behind_user(machine))
    }

    fn walk(&self, root: u64, address: u64) -> Option<u64> {
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let mut entry = [0; 8];
            let at = table + (address >> shift & 0x1ff) * 8;
            if self.machine.read_physical(at, &mut entry) != entry.len() {
                return None;
            }
            let entry = u64::from_le_bytes(entry);
            if entry & PRESENT == 0 {
                return None;
            }
            let large = entry & LARGE != 0 && (shift == 30 || shift == 21);
            if large || shift == 12 {
                let within = (1 << shift) - 1;
                return Some(entry & ADDRESS & !within | address & within);
            }
            table = entry & ADDRESS;
        }
        None
    }
}

impl Memory for KernelView<'_> {
    fn read(&self, address: u64, to: &mut [u8]) -> usize {
        let Some(root) = self.root else {
            return self.machine.cpu().core().peek(address, to);
        };
        let mut done = 0;
        while done < to.len() {
            let at = address.wrapping_add(done as u64);
            let room = (PAGE_BYTES - at % PAGE_BYTES).min((to.len() - done) as u64) as usize;
            let Some(physical) = self.walk(root, at) else { break };
            let count = self.machine.read_physical(physical, &mut to[done..done + room]);
            done += count;
            if count < room {
                break;
            }
        }
        done
    }
    fn physical(&self, address: u64) -> Option<u64> {
        match self.root {
            Some(root) => self.walk(root, address),
            None => self.machine.cpu().core().peek_address(address),
        }
    }
}
