//! The guest's memory for the package `guest-symbols`, which reads it through page tables.

use guest_symbols::GuestView;

use crate::run::Machine;
use crate::unit::Unit;

impl<U: Unit> GuestView for Machine<U> {
    fn cr3(&self) -> u64 {
        self.cpu().core().state.cr3
    }

    fn processor(&self) -> u64 {
        self.cpu().seat() as u64
    }

    fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
        let core = self.cpu().core();
        // With PAE, the CPU holds copies of the topmost entries of the current tables, and the entries in memory may
        // differ.
        if cr3 == core.state.cr3 { core.peek(address, to) } else { core.peek_in(cr3, address, to) }
    }

    fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
        let core = self.cpu().core();
        if cr3 == core.state.cr3 { core.peek_address(address) } else { core.peek_address_in(cr3, address) }
    }
}
