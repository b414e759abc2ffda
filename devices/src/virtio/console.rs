//! Virtio console with one port: bytes in, bytes out, and the size of the terminal.
//!
//! The guest's output is collected for the owner and is not part of the machine's state. So the owner must take the
//! output before it saves the state. Multiple ports are not modelled.
//!
//! VIRTIO 1.2, section 5.3.

use std::collections::VecDeque;

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use vm_memory::GuestMemory;

use super::chain::{Chain, RingError};
use super::device_model::{DeviceModel, Kind, wrong_kind};
use super::feature::feature;
use super::queue::{Served, VirtQueue};
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

const KIND: Kind = Kind {
    virtio_type: VIRTIO_ID_CONSOLE as u16,
    pci_class: 0x07_80_00,
    queue_sizes: &[256, 256],
    config_bytes: 12,
};

const F_SIZE: u64 = feature(0);
const F_EMERG_WRITE: u64 = feature(2);

/// Queue on which the driver offers buffers for input.
pub(crate) const RECEIVE_QUEUE: usize = 0;

const EMERGENCY_WRITE: usize = 8;
/// The largest number of output bytes kept for an owner that does not take output. Later output is dropped.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
const CHUNK_BYTES: usize = 4096;

/// The device.
pub struct Console {
    columns: u16,
    rows: u16,
    input: VecDeque<u8>,
    output: Vec<u8>,
}

impl Console {
    /// Makes a console whose terminal has this size in characters.
    pub fn new(columns: u16, rows: u16) -> Console {
        Console { columns, rows, input: VecDeque::new(), output: Vec::new() }
    }

    pub(crate) fn queue_input(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    pub(crate) fn pending_input(&self) -> usize {
        self.input.len()
    }

    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Sets the size. Returns whether the size changed.
    pub(crate) fn resize(&mut self, columns: u16, rows: u16) -> bool {
        let changed = (self.columns, self.rows) != (columns, rows);
        (self.columns, self.rows) = (columns, rows);
        changed
    }

    fn receive<M: GuestMemory>(&mut self, mem: &M, chain: &Chain) -> Result<Served, RingError> {
        if self.input.is_empty() {
            return Ok(Served::NotYet);
        }
        let mut buffer = chain.writable(mem);
        let length = buffer.remaining().min(self.input.len() as u64) as usize;
        let bytes: Vec<u8> = self.input.drain(..length).collect();
        buffer.write(&bytes)?;
        Ok(Served::Used(length as u32))
    }

    fn transmit<M: GuestMemory>(&mut self, mem: &M, chain: &Chain) -> Result<Served, RingError> {
        let mut buffer = chain.readable(mem);
        while buffer.remaining() > 0 && self.output.len() < MAX_OUTPUT_BYTES {
            let mut chunk = [0; CHUNK_BYTES];
            let length = buffer.remaining().min(CHUNK_BYTES as u64) as usize;
            buffer.read(&mut chunk[..length])?;
            self.output.extend_from_slice(&chunk[..length]);
        }
        if buffer.remaining() > 0 {
            log::debug!("virtio console: dropped {} bytes of output", buffer.remaining());
        }
        Ok(Served::Used(0))
    }
}

impl DeviceModel for Console {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn features(&self) -> u64 {
        F_SIZE | F_EMERG_WRITE
    }

    fn config(&self) -> Vec<u8> {
        let mut config = Vec::with_capacity(KIND.config_bytes as usize);
        config.extend(self.columns.to_le_bytes());
        config.extend(self.rows.to_le_bytes());
        config.extend(1_u32.to_le_bytes());
        config.extend(0_u32.to_le_bytes());
        config
    }

    fn write_config(&mut self, offset: usize, data: &[u8]) {
        // The emergency write works before the driver has set up the device. Only the low byte is a character.
        if offset == EMERGENCY_WRITE && self.output.len() < MAX_OUTPUT_BYTES {
            self.output.extend(data.first());
        }
    }

    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        _agreed: u64,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        if index == RECEIVE_QUEUE {
            queue.serve(mem, |chain| self.receive(mem, chain))
        } else {
            queue.serve(mem, |chain| self.transmit(mem, chain))
        }
    }

    fn state(&self) -> DeviceStateV1 {
        let input = self.input.iter().copied().collect();
        DeviceStateV1::Console { columns: self.columns, rows: self.rows, input }
    }

    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError> {
        if let DeviceStateV1::Console { .. } = state { Ok(()) } else { Err(wrong_kind()) }
    }

    fn install(&mut self, state: &DeviceStateV1) {
        if let DeviceStateV1::Console { columns, rows, input } = state {
            *self = Console::new(*columns, *rows);
            self.queue_input(input);
        }
    }
}
