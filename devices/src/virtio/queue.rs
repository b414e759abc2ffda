//! A virtqueue: ring positions and addresses (stored by the crate `virtio-queue`), its interrupt vector, and the loop
//! that serves it.
//!
//! The loop reads the available index once. So a notification processes at most as many chains as the ring has
//! entries, even if a hostile driver lets the device overwrite the ring. The loop decides once whether to
//! interrupt, from the used index before and after. Between two notifications the loop keeps only the available
//! index and the used index, so a saved state misses nothing.
//!
//! VIRTIO 1.2, section 2.7.

use std::collections::VecDeque;
use std::num::Wrapping;
use std::sync::atomic::Ordering::Relaxed;

use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use super::chain::{Chain, RingError};
use super::state::QueueStateV1;
use super::summary::QueueSummary;
use crate::pci::error::StateError;

/// Vector number that means "no interrupt".
pub(crate) const NO_VECTOR: u16 = 0xFFFF;

/// The vector, unless it means "no interrupt".
pub(crate) fn existing(vector: u16) -> Option<u16> {
    (vector != NO_VECTOR).then_some(vector)
}

const AVAIL_F_NO_INTERRUPT: u16 = VRING_AVAIL_F_NO_INTERRUPT as u16;

/// The result when a device serves a chain.
pub(crate) enum Served {
    /// The device is done with the chain, and has written this many bytes.
    Used(u32),
    /// The device cannot use the chain yet; the chain and all later chains stay available.
    NotYet,
}

/// Whether chains have room for a packet.
enum Room {
    Enough,
    /// Even the maximum number of chains has too little room.
    TooLittle,
    /// The available chains have too little room, but more chains may come.
    NotYet,
}

/// The part of the ring that an address register points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingPart {
    Descriptors,
    Available,
    Used,
}

/// A virtqueue and its interrupt vector.
pub(crate) struct VirtQueue {
    ring: Queue,
    /// MSI-X vector, or [`NO_VECTOR`].
    pub vector: u16,
    scratch: Chain,
}

impl VirtQueue {
    /// Makes a disabled queue of at most `max_size` entries, a power of two.
    pub fn new(max_size: u16) -> VirtQueue {
        let ring = Queue::new(max_size).expect("devices offer power-of-two queue sizes");
        VirtQueue { ring, vector: NO_VECTOR, scratch: Chain::default() }
    }

    /// Resets the queue to its state after power-on.
    pub fn reset(&mut self) {
        self.ring.reset();
        self.vector = NO_VECTOR;
    }

    /// Size chosen by the driver.
    pub fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Whether the driver enabled the queue.
    pub fn enabled(&self) -> bool {
        self.ring.ready()
    }

    /// The address of a part of the ring.
    pub fn address(&self, part: RingPart) -> u64 {
        match part {
            RingPart::Descriptors => self.ring.desc_table(),
            RingPart::Available => self.ring.avail_ring(),
            RingPart::Used => self.ring.used_ring(),
        }
    }

    /// Sets the size. A size that is not a power of two within the maximum is ignored. This and the next functions
    /// ignore any change to an enabled queue.
    pub fn set_size(&mut self, size: u16) {
        if self.enabled() || self.ring.try_set_size(size).is_err() {
            log::debug!("virtqueue: ignored size {size}");
        }
    }

    /// Sets one half of an address. A misaligned address is ignored.
    pub fn set_address_half(&mut self, part: RingPart, high: bool, value: u32) {
        let shift = if high { 32 } else { 0 };
        let address = self.address(part) & !(0xFFFF_FFFF << shift) | u64::from(value) << shift;
        let address = GuestAddress(address);
        let result = match part {
            _ if self.enabled() => return log::debug!("virtqueue: {part:?} address of an enabled queue"),
            RingPart::Descriptors => self.ring.try_set_desc_table_address(address),
            RingPart::Available => self.ring.try_set_avail_ring_address(address),
            RingPart::Used => self.ring.try_set_used_ring_address(address),
        };
        if result.is_err() {
            log::debug!("virtqueue: ignored misaligned {part:?} address {:#x}", address.0);
        }
    }

    /// Enables the queue with the negotiated notification rules.
    pub fn enable(&mut self, event_idx: bool) {
        self.ring.set_event_idx(event_idx);
        self.ring.set_ready(true);
    }

    /// Hands available chains to `serve` until none is left or `serve` returns [`Served::NotYet`]. Returns whether the
    /// driver wants an interrupt. After an error the ring must not be used.
    pub fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        mut serve: impl FnMut(&Chain) -> Result<Served, RingError>,
    ) -> Result<bool, RingError> {
        let mut chain = std::mem::take(&mut self.scratch);
        let used_before = self.ring.next_used();
        let result = self.serve_available(mem, &mut chain, &mut serve);
        self.scratch = chain;
        result?;
        self.ask_for_notification(mem)?;
        self.interrupt_wanted(mem, used_before)
    }

    fn serve_available<M: GuestMemory>(
        &mut self,
        mem: &M,
        chain: &mut Chain,
        serve: &mut impl FnMut(&Chain) -> Result<Served, RingError>,
    ) -> Result<(), RingError> {
        for _ in 0..self.available(mem)? {
            let mut heads = self.ring.iter(mem).map_err(|_| RingError::AvailableIndex)?;
            let Some(descriptors) = heads.next() else { return Ok(()) };
            chain.parse(mem, descriptors)?;
            match serve(chain)? {
                Served::Used(length) => {
                    self.ring.add_used(mem, chain.head, length).map_err(|_| RingError::RingOutsideRam)?
                }
                Served::NotYet => {
                    self.ring.go_to_previous_position();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Writes packets into available chains, each into at most `most` chains, until no packet or no chain is left.
    /// `header` makes the packet's header from its number of chains. A packet that does not fit into `most` chains is
    /// dropped. Returns whether the driver wants an interrupt. After an error the ring must not be used.
    pub fn scatter<M: GuestMemory, const HEADER: usize>(
        &mut self,
        mem: &M,
        most: usize,
        packets: &mut VecDeque<Vec<u8>>,
        header: impl Fn(usize) -> [u8; HEADER],
    ) -> Result<bool, RingError> {
        let used_before = self.ring.next_used();
        let mut chains = Vec::new();
        while let Some(packet) = packets.front() {
            let room = self.gather(mem, most, (HEADER + packet.len()) as u64, &mut chains)?;
            match room {
                Room::Enough => self.write_across(mem, &chains, [&header(chains.len()), packet])?,
                Room::TooLittle => {
                    log::debug!("virtio: dropped a packet that the driver's buffers do not hold")
                }
                Room::NotYet => break,
            }
            packets.pop_front();
        }
        if packets.is_empty() {
            self.ask_for_notification(mem)?
        } else {
            self.ask_for_more(mem)?
        }
        self.interrupt_wanted(mem, used_before)
    }

    /// Takes available chains until they have room for this many bytes. If there is not enough room, the chains
    /// stay available.
    fn gather<M: GuestMemory>(
        &mut self,
        mem: &M,
        most: usize,
        bytes: u64,
        chains: &mut Vec<Chain>,
    ) -> Result<Room, RingError> {
        chains.clear();
        let (mut room, available) = (0, usize::from(self.available(mem)?));
        while room < bytes && chains.len() < available.min(most) {
            let mut heads = self.ring.iter(mem).map_err(|_| RingError::AvailableIndex)?;
            let Some(descriptors) = heads.next() else { break };
            let mut chain = Chain::default();
            chain.parse(mem, descriptors)?;
            room += chain.writable(mem).remaining();
            chains.push(chain);
        }
        if room >= bytes {
            return Ok(Room::Enough);
        }
        chains.iter().for_each(|_| self.ring.go_to_previous_position());
        Ok(if chains.len() == most { Room::TooLittle } else { Room::NotYet })
    }

    /// Writes the parts of a packet into chains that have room for it, and marks the chains as used.
    fn write_across<M: GuestMemory>(
        &mut self,
        mem: &M,
        chains: &[Chain],
        mut parts: [&[u8]; 2],
    ) -> Result<(), RingError> {
        for chain in chains {
            let (mut buffer, mut used) = (chain.writable(mem), 0);
            for part in &mut parts {
                let (now, later) = part.split_at(part.len().min(buffer.remaining() as usize));
                buffer.write(now)?;
                used += now.len() as u32;
                *part = later;
            }
            self.ring.add_used(mem, chain.head, used).map_err(|_| RingError::RingOutsideRam)?;
        }
        Ok(())
    }

    /// Number of chains that the driver has made available and the device has not taken.
    fn available<M: GuestMemory>(&self, mem: &M) -> Result<u16, RingError> {
        let size = usize::from(self.size());
        let parts = [
            (RingPart::Descriptors, 16 * size, Permissions::Read),
            (RingPart::Available, 6 + 2 * size, Permissions::Read),
            (RingPart::Used, 6 + 8 * size, Permissions::Write),
        ];
        if parts
            .iter()
            .any(|&(part, bytes, access)| !mem.check_range(GuestAddress(self.address(part)), bytes, access))
        {
            return Err(RingError::RingOutsideRam);
        }
        let index = self.ring.avail_idx(mem, Relaxed).map_err(|_| RingError::RingOutsideRam)?;
        let count = (index - Wrapping(self.ring.next_avail())).0;
        if count <= self.size() { Ok(count) } else { Err(RingError::AvailableIndex) }
    }

    /// With event index, writes the available entry that the device waits for. Without event index the device
    /// never suppresses notifications, so there is nothing to write.
    fn ask_for_notification<M: GuestMemory>(&mut self, mem: &M) -> Result<(), RingError> {
        if self.ring.event_idx_enabled() {
            self.ring.enable_notification(mem).map_err(|_| RingError::RingOutsideRam)?;
        }
        Ok(())
    }

    /// With event index, asks for a notification of the next entry, because the available chains have too little
    /// room (section 2.7.10).
    fn ask_for_more<M: GuestMemory>(&self, mem: &M) -> Result<(), RingError> {
        if !self.ring.event_idx_enabled() {
            return Ok(());
        }
        let index = self.ring.avail_idx(mem, Relaxed).map_err(|_| RingError::RingOutsideRam)?;
        let event = self.address(RingPart::Used) + 4 + 8 * u64::from(self.size());
        mem.store(index.0.to_le(), GuestAddress(event), Relaxed).map_err(|_| RingError::RingOutsideRam)
    }

    fn interrupt_wanted<M: GuestMemory>(&self, mem: &M, used_before: u16) -> Result<bool, RingError> {
        let (new, old) = (Wrapping(self.ring.next_used()), Wrapping(used_before));
        if new == old {
            return Ok(false);
        }
        let available = self.address(RingPart::Available);
        if !self.ring.event_idx_enabled() {
            return Ok(load_u16(mem, available)? & AVAIL_F_NO_INTERRUPT == 0);
        }
        // Section 2.7.7.2: interrupt if the entry that the driver waits for is among those just added.
        let used_event = Wrapping(load_u16(mem, available + 4 + 2 * u64::from(self.size()))?);
        Ok(new - used_event - Wrapping(1) < new - old)
    }

    /// The queue's registers, decoded.
    pub fn summary(&self) -> QueueSummary {
        let has_event_index = self.ring.event_idx_enabled();
        QueueSummary { registers: self.state(), vector: existing(self.vector), has_event_index }
    }

    /// The saved state. The negotiated features determine whether event index is on.
    pub fn state(&self) -> QueueStateV1 {
        QueueStateV1 {
            size: self.ring.size(),
            enabled: self.ring.ready(),
            descriptors: self.ring.desc_table(),
            available: self.ring.avail_ring(),
            used: self.ring.used_ring(),
            next_available: self.ring.next_avail(),
            next_used: self.ring.next_used(),
            vector: self.vector,
        }
    }

    /// A queue of the same maximum size with saved contents.
    pub fn restored(&self, state: &QueueStateV1, event_idx: bool) -> Result<VirtQueue, StateError> {
        let ring = Queue::try_from(QueueState {
            max_size: self.ring.max_size(),
            next_avail: state.next_available,
            next_used: state.next_used,
            event_idx_enabled: state.enabled && event_idx,
            size: state.size,
            ready: state.enabled,
            desc_table: state.descriptors,
            avail_ring: state.available,
            used_ring: state.used,
        })
        .map_err(|e| StateError::new(format!("virtqueue: {e}")))?;
        Ok(VirtQueue { ring, vector: state.vector, scratch: Chain::default() })
    }
}

/// The caller has checked that the ring lies in RAM, so `address` does not overflow.
fn load_u16<M: GuestMemory>(mem: &M, address: u64) -> Result<u16, RingError> {
    mem.load::<u16>(GuestAddress(address), Relaxed).map(u16::from_le).map_err(|_| RingError::RingOutsideRam)
}
