//! Virtio entropy device with a deterministic source: a ChaCha20 stream from a given seed.
//!
//! VIRTIO 1.2, section 5.4.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use vm_memory::GuestMemory;

use super::chain::{Chain, RingError};
use super::device_model::{DeviceModel, Kind, wrong_kind};
use super::queue::{Served, VirtQueue};
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

const KIND: Kind =
    Kind { virtio_type: VIRTIO_ID_RNG as u16, pci_class: 0xFF_00_00, queue_sizes: &[64], config_bytes: 0 };

/// The largest number of bytes for one request. The limit bounds the work of a notification; the driver
/// learns how many bytes it got.
const MAX_REQUEST_BYTES: u64 = 64 << 10;
const CHUNK_BYTES: usize = 256;

/// The device. The device's whole state is the seed and the number of 32-bit words drawn.
pub struct Rng {
    generator: Box<ChaCha20Rng>,
}

impl Rng {
    /// Makes a generator at the start of the stream of `seed`.
    pub fn new(seed: [u8; 32]) -> Rng {
        Rng { generator: Box::new(ChaCha20Rng::from_seed(seed)) }
    }

    /// Starts the stream of a new seed, which `other` computes from the current seed.
    pub fn reseed(&mut self, other: impl FnOnce(&[u8; 32]) -> [u8; 32]) {
        *self = Rng::new(other(&self.generator.get_seed()));
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
        // The stream has 2^68 words, but no guest runs long enough to draw 2^64.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded() -> Rng {
        Rng::new(std::array::from_fn(|n| n as u8))
    }

    fn word_position(rng: &Rng) -> u64 {
        match rng.state() {
            DeviceStateV1::Rng { word_position, .. } => word_position,
            other => panic!("the state of another device: {other:?}"),
        }
    }

    fn draw(rng: &mut Rng, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        rng.generator.fill_bytes(&mut bytes);
        bytes
    }

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = seeded();
        assert_eq!(hexadecimal(&draw(&mut rng, 32)[..16]), "39fd2b7dd9c5196a8dbd0377b8dc4a49");
        let mut digest = twox_hash::XxHash3_128::with_seed(0);
        let mut positions = Vec::new();
        // Some sizes end inside words, inside blocks of 16 words, or inside the generator's buffer.
        for count in [1, 3, 4, 5, 63, 64, 65, 255, 256, 257, 4099, 65536] {
            digest.write(&draw(&mut rng, count));
            positions.push(word_position(&rng));
        }
        assert_eq!(positions, [9, 10, 11, 13, 29, 45, 62, 126, 190, 255, 1280, 17664]);
        assert_eq!(format!("{:x}", digest.finish_128()), "6e2dba38cd5e690431cf908ca853c4ed");
    }

    #[test]
    fn a_stream_goes_on_where_its_state_says() {
        for (word_position, bytes) in [
            (0, "39fd2b7dd9c5196a8dbd0377b8dc4a49"),
            (5, "bcde6accb2cc7d4cd8ea24922b23cce7"),
            (0xf_ffff_fffe, "912c4e8800301a42d838fb09536e2e3a"),
            (u64::MAX - 1, "85239fa2e7fcdd89aeb862627b1cc727"),
        ] {
            let mut rng = seeded();
            let seed = rng.generator.get_seed();
            rng.install(&DeviceStateV1::Rng { seed, word_position });
            assert_eq!(hexadecimal(&draw(&mut rng, 16)), bytes, "at {word_position:#x}");
        }
    }
}
