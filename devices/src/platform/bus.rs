//! The board's interface to the expansion (PCI) bus.

use serde::Serialize;
use serde::de::DeserializeOwned;
use vm_memory::GuestMemory;

use crate::restore::RestoreError;

/// The bus behind ports 0xCF8 to 0xCFF and behind every guest-physical address that no chip answers.
///
/// Functions for accesses return whether the bus has answered. If the bus has not answered, reads give all ones. After
/// every call the board takes messages and levels, so the bus never calls the board.
pub trait ExpansionBus {
    /// Plain data with everything that the guest can find out about the bus and its devices.
    type State: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Reads a configuration port.
    fn io_read(&mut self, port: u16, data: &mut [u8]) -> bool;
    /// Writes a configuration port.
    fn io_write<M: GuestMemory>(&mut self, mem: &M, port: u16, data: &[u8]) -> bool;
    /// Reads a guest-physical address.
    fn mmio_read<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &mut [u8]) -> bool;
    /// Writes a guest-physical address.
    fn mmio_write<M: GuestMemory>(&mut self, mem: &M, gpa: u64, data: &[u8]) -> bool;
    /// Takes the message-signalled interrupts sent since the last call: address and data, oldest first.
    fn take_msis(&mut self) -> Vec<(u64, u32)>;
    /// Levels of the four interrupt pins; bit n goes to I/O APIC pin 16 + n.
    fn irq_levels(&self) -> u32;
    /// Levels of the ISA lines that the bus drives; bit n is line n. No chip of the board uses these lines.
    fn isa_levels(&self) -> u32;
    /// The state.
    fn state(&self) -> Self::State;
    /// Restores a saved state.
    fn restore(&mut self, state: &Self::State) -> Result<(), RestoreError>;
}

/// A board without expansion bus.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoExpansion;

impl ExpansionBus for NoExpansion {
    type State = ();

    fn io_read(&mut self, _port: u16, _data: &mut [u8]) -> bool {
        false
    }

    fn io_write<M: GuestMemory>(&mut self, _mem: &M, _port: u16, _data: &[u8]) -> bool {
        false
    }

    fn mmio_read<M: GuestMemory>(&mut self, _mem: &M, _gpa: u64, _data: &mut [u8]) -> bool {
        false
    }

    fn mmio_write<M: GuestMemory>(&mut self, _mem: &M, _gpa: u64, _data: &[u8]) -> bool {
        false
    }

    fn take_msis(&mut self) -> Vec<(u64, u32)> {
        Vec::new()
    }

    fn irq_levels(&self) -> u32 {
        0
    }

    fn isa_levels(&self) -> u32 {
        0
    }

    fn state(&self) {}

    fn restore(&mut self, _state: &()) -> Result<(), RestoreError> {
        Ok(())
    }
}
