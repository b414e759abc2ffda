//! Tests which page tables the views use.

use super::{Pages, kernel, tables};
use crate::{GuestView, KernelView, NoKernel, Symbols, USER_ROOT_BIT};

const KERNEL_ROOT: u64 = 0x10_0000;
/// A process context identifier in CR3, beside the root.
const PCID: u64 = 0x86;

/// A guest with memory only for one root of page tables.
struct Rooted {
    cr3: u64,
    root: u64,
    memory: Pages,
}

impl GuestView for Rooted {
    fn cr3(&self) -> u64 {
        self.cr3
    }

    fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
        if cr3 & !PCID == self.root { self.memory.read(cr3, address, to) } else { 0 }
    }

    fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
        self.memory.physical(cr3, address).filter(|_| cr3 & !PCID == self.root)
    }
}

#[test]
fn the_kernel_is_found_behind_a_programs_tables() {
    let shape = super::Shape::Linux6_1;
    let mut memory = Pages::default();
    memory.write(super::TABLES, &tables(&kernel(shape), shape));
    let mut guest = Rooted { cr3: KERNEL_ROOT, root: KERNEL_ROOT, memory };
    for (cr3, found) in [
        (KERNEL_ROOT, true),
        (KERNEL_ROOT | PCID, true),
        (KERNEL_ROOT | USER_ROOT_BIT | PCID, true),
        (2 * KERNEL_ROOT, false),
        (2 * KERNEL_ROOT | USER_ROOT_BIT, false),
    ] {
        guest.cr3 = cr3;
        assert_eq!(
            Symbols::of_guest(&guest).map(|symbols| symbols.all().len() > 64),
            if found { Ok(true) } else { Err(NoKernel) },
            "{cr3:#x}"
        );
        assert_eq!(KernelView::behind_user(&guest).is_some(), cr3 & USER_ROOT_BIT != 0, "{cr3:#x}");
    }
}
