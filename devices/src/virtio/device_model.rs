//! The interface between the transport and the device models.

use vm_memory::GuestMemory;

use super::chain::RingError;
use super::queue::VirtQueue;
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

/// The constant properties of a kind of device.
pub(crate) struct Kind {
    /// Device type (VIRTIO 1.2, chapter 5).
    pub virtio_type: u16,
    /// PCI class, subclass and programming interface.
    pub pci_class: u32,
    /// Maximum size of each queue.
    pub queue_sizes: &'static [u16],
    /// Length of the device-specific configuration.
    pub config_bytes: u32,
}

/// A device model. The model knows requests and its configuration, but not how the guest accesses them.
pub(crate) trait DeviceModel {
    /// The constant properties of this kind of device.
    fn kind(&self) -> &'static Kind;
    /// Device-specific features.
    fn features(&self) -> u64;
    /// The configuration, at least [`Kind::config_bytes`] long. The transport cuts off the rest.
    fn config(&self) -> Vec<u8>;
    /// Handles a driver's write to the configuration. The range lies inside the configuration.
    fn write_config(&mut self, _offset: usize, _data: &[u8]) {}
    /// Serves one queue, with the negotiated features. See [`VirtQueue::serve`] for the result.
    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        agreed: u64,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError>;
    /// The saved state.
    fn state(&self) -> DeviceStateV1;
    /// Whether [`DeviceModel::install`] can take this state.
    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError>;
    /// Installs a state that passed [`DeviceModel::check`].
    fn install(&mut self, state: &DeviceStateV1);
}

/// The error for a state of another kind of device.
pub(crate) fn wrong_kind() -> StateError {
    StateError::new("the saved device is of another kind")
}
