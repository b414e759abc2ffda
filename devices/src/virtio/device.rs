//! The devices behind the transport, as one closed set: what each must answer, and the dispatch.

use vm_memory::GuestMemory;

use super::chain::RingError;
use super::queue::VirtQueue;
use super::state::DeviceStateV1;
use super::{Block, Console, Rng};
use crate::pci::StateError;

/// What never changes about a kind of device.
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

/// A device model. It knows requests and its configuration, not how the guest reaches them.
pub(crate) trait Model {
    /// See [`Kind`].
    fn kind(&self) -> &'static Kind;
    /// Device-specific features.
    fn features(&self) -> u64;
    /// The configuration, [`Kind::config_bytes`] long (or longer, then cut off).
    fn config(&self) -> Vec<u8>;
    /// A driver's write to the configuration; the range lies inside it.
    fn write_config(&mut self, _offset: usize, _data: &[u8]) {}
    /// Serves one queue; see [`VirtQueue::serve`] for the result.
    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError>;
    /// Saved form.
    fn state(&self) -> DeviceStateV1;
    /// Whether [`Model::install`] can take this state.
    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError>;
    /// Puts back a state that passed [`Model::check`].
    fn install(&mut self, state: &DeviceStateV1);
}

/// Any virtio device that can be plugged into the bus.
pub enum VirtioDevice {
    /// A disk.
    Block(Block),
    /// A console with one port.
    Console(Console),
    /// A source of random numbers.
    Rng(Rng),
}

macro_rules! each {
    ($device:expr, $model:ident => $result:expr) => {
        match $device {
            VirtioDevice::Block($model) => $result,
            VirtioDevice::Console($model) => $result,
            VirtioDevice::Rng($model) => $result,
        }
    };
}

impl Model for VirtioDevice {
    fn kind(&self) -> &'static Kind {
        each!(self, model => model.kind())
    }

    fn features(&self) -> u64 {
        each!(self, model => model.features())
    }

    fn config(&self) -> Vec<u8> {
        each!(self, model => model.config())
    }

    fn write_config(&mut self, offset: usize, data: &[u8]) {
        each!(self, model => model.write_config(offset, data))
    }

    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        each!(self, model => model.serve(mem, index, queue))
    }

    fn state(&self) -> DeviceStateV1 {
        each!(self, model => model.state())
    }

    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError> {
        each!(self, model => model.check(state))
    }

    fn install(&mut self, state: &DeviceStateV1) {
        each!(self, model => model.install(state))
    }
}

impl From<Block> for VirtioDevice {
    fn from(block: Block) -> VirtioDevice {
        VirtioDevice::Block(block)
    }
}

impl From<Console> for VirtioDevice {
    fn from(console: Console) -> VirtioDevice {
        VirtioDevice::Console(console)
    }
}

impl From<Rng> for VirtioDevice {
    fn from(rng: Rng) -> VirtioDevice {
        VirtioDevice::Rng(rng)
    }
}

/// The error for a state of another kind of device.
pub(crate) fn wrong_kind() -> StateError {
    StateError::new("the saved device is of another kind")
}
