//! Virtio entropy device that is not random at all: a ChaCha20 stream from a given seed.
//!
//! VIRTIO 1.2, section 5.4.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use vm_memory::GuestMemory;

use super::chain::{Chain, RingError};
use super::device_model::{DeviceModel, Kind, wrong_kind};
use super::queue::{Served, VirtQueue};
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

const KIND: Kind =
    Kind { virtio_type: VIRTIO_ID_RNG as u16, pci_class: 0xFF_00_00, queue_sizes: &[64], config_bytes: 0 };

/// Most bytes given for one request; the driver learns how many it got. Bounds the work of a notification.
const MAX_REQUEST_BYTES: u64 = 64 << 10;
const CHUNK_BYTES: usize = 256;

/// The device. Its whole state is the seed and how many 32-bit words were drawn.
pub struct Rng {
    generator: Box<ChaCha20Rng>,
}

impl Rng {
    /// A generator at the start of the stream of `seed`.
    pub fn new(seed: [u8; 32]) -> Rng {
        Rng { generator: Box::new(ChaCha20Rng::from_seed(seed)) }
    }

    fn fill<M: GuestMemory>(&mut self, mem: &M, chain: &Chain) -> Result<Served, RingError> {
        let mut buffer = chain.writable(mem);
        let length = buffer.remaining().min(MAX_REQUEST_BYTES);
        let mut left = length as usize;
        while left > 0 {
            let mut chunk = [0; CHUNK_BYTES];
            let part = &mut chunk[..left.min(CHUNK_BYTES)];
            self.generator.fill_bytes(part);
            buffer.write(part)?;
            left -= part.len();
        }
        Ok(Served::Used(length as u32))
    }
}

impl DeviceModel for Rng {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        _agreed: u64,
        _index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        queue.serve(mem, |chain| self.fill(mem, chain))
    }

    fn state(&self) -> DeviceStateV1 {
        // The stream has 2^68 words, of which no guest lives to draw 2^64.
        let word_position = self.generator.get_word_pos() as u64;
        DeviceStateV1::Rng { seed: self.generator.get_seed(), word_position }
    }

    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError> {
        if let DeviceStateV1::Rng { .. } = state { Ok(()) } else { Err(wrong_kind()) }
    }

    fn install(&mut self, state: &DeviceStateV1) {
        if let DeviceStateV1::Rng { seed, word_position } = state {
            *self = Rng::new(*seed);
            self.generator.set_word_pos(u128::from(*word_position));
        }
    }
}
