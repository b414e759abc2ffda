//! The virtio device models, as one enum.

use vm_memory::GuestMemory;

use super::block::Block;
use super::chain::RingError;
use super::console::Console;
use super::device_model::{DeviceModel, Kind};
use super::net::Net;
use super::queue::VirtQueue;
use super::rng::Rng;
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

/// Any virtio device that can be plugged into the bus.
pub enum VirtioDevice {
    /// A disk.
    Block(Block),
    /// A console with one port.
    Console(Console),
    /// A network card.
    Net(Net),
    /// A source of random numbers.
    Rng(Rng),
}

macro_rules! each {
    ($device:expr, $model:ident => $result:expr) => {
        match $device {
            VirtioDevice::Block($model) => $result,
            VirtioDevice::Console($model) => $result,
            VirtioDevice::Net($model) => $result,
            VirtioDevice::Rng($model) => $result,
        }
    };
}

impl DeviceModel for VirtioDevice {
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
        agreed: u64,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        each!(self, model => model.serve(mem, agreed, index, queue))
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

impl From<Net> for VirtioDevice {
    fn from(net: Net) -> VirtioDevice {
        VirtioDevice::Net(net)
    }
}

impl From<Rng> for VirtioDevice {
    fn from(rng: Rng) -> VirtioDevice {
        VirtioDevice::Rng(rng)
    }
}
