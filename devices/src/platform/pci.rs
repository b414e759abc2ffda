//! The PCI bus as the board's expansion bus.

use vm_memory::GuestMemory;

use super::bus::ExpansionBus;
use crate::pci::{PciBus, PciBusStateV1};
use crate::restore::RestoreError;

impl ExpansionBus for PciBus {
    type State = PciBusStateV1;

    fn io_read(&mut self, port: u16, data: &mut [u8]) -> bool {
        PciBus::io_read(self, port, data)
    }

    fn io_write<M: GuestMemory>(&mut self, mem: &M, port: u16, data: &[u8]) -> bool {
        PciBus::io_write(self, mem, port, data)
    }

    fn mmio_read<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &mut [u8]) -> bool {
        PciBus::mmio_read(self, mem, gpa, data)
    }

    fn mmio_write<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &[u8]) -> bool {
        PciBus::mmio_write(self, mem, gpa, data)
    }

    fn take_msis(&mut self) -> Vec<(u64, u32)> {
        PciBus::take_msis(self).into_iter().map(|msi| (msi.address, msi.data)).collect()
    }

    fn irq_levels(&self) -> u32 {
        PciBus::irq_levels(self)
    }

    fn isa_levels(&self) -> u32 {
        PciBus::isa_levels(self)
    }

    fn state(&self) -> PciBusStateV1 {
        PciBus::state(self)
    }

    fn restore(&mut self, state: &PciBusStateV1) -> Result<(), RestoreError> {
        PciBus::restore(self, state)
            .map_err(|error| RestoreError { chip: "PCI bus", what: error.to_string().into() })
    }
}
