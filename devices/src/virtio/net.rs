//! Virtio network device: Ethernet frames in and out.
//!
//! When the driver sends, it may leave checksums and TCP segmentation to the device. [`SentFrame`] describes the
//! unfinished work. The program at the other end of the network connection completes the work. In received frames,
//! no checksum and no segmentation is left to the driver. Received frames wait inside the device until the driver
//! has buffers for them.
//!
//! Sent frames are collected for the owner and are not part of the machine's state. So the owner must take the frames
//! before it saves the state. The number and a hash of all sent frames are part of the state.
//!
//! VIRTIO 1.2, section 5.1.

use std::collections::VecDeque;

use twox_hash::XxHash3_128;
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net;
use vm_memory::GuestMemory;

use super::chain::{Chain, RingError};
use super::device_model::{DeviceModel, Kind, wrong_kind};
use super::feature::feature;
use super::queue::{Served, VirtQueue};
use super::sent_frame::{HEADER_BYTES, SentFrame};
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

const KIND: Kind = Kind {
    virtio_type: VIRTIO_ID_NET as u16,
    pci_class: 0x02_00_00,
    queue_sizes: &[256, 256],
    config_bytes: 12,
};

const F_CSUM: u64 = feature(virtio_net::VIRTIO_NET_F_CSUM);
const F_MTU: u64 = feature(virtio_net::VIRTIO_NET_F_MTU);
const F_MAC: u64 = feature(virtio_net::VIRTIO_NET_F_MAC);
const F_HOST_TSO4: u64 = feature(virtio_net::VIRTIO_NET_F_HOST_TSO4);
const F_HOST_TSO6: u64 = feature(virtio_net::VIRTIO_NET_F_HOST_TSO6);
const F_MRG_RXBUF: u64 = feature(virtio_net::VIRTIO_NET_F_MRG_RXBUF);
const F_STATUS: u64 = feature(virtio_net::VIRTIO_NET_F_STATUS);

/// Queue on which the driver offers buffers for frames.
pub(crate) const RECEIVE_QUEUE: usize = 0;

const LINK_UP: u16 = virtio_net::VIRTIO_NET_S_LINK_UP as u16;
/// The largest number of frames that wait inside the device.
const MAX_WAITING: usize = 256;
/// The shortest frame: only an Ethernet header.
const LEAST_FRAME_BYTES: usize = 14;
/// The longest frame: the largest IP packet, the Ethernet header, and a VLAN tag.
const MAX_FRAME_BYTES: usize = 65_535 + 14 + 4;
/// Offset of the number of buffers in the header of a received frame. The other fields of the header are
/// zero: no work is left to the driver.
const BUFFERS_AT: usize = 10;

/// The device.
pub struct Net {
    mac: [u8; 6],
    mtu: u16,
    segments: bool,
    /// Frames that the driver had no buffers for yet.
    waiting: VecDeque<Vec<u8>>,
    sent: Vec<SentFrame>,
    sent_count: u64,
    sent_hash: u128,
}

impl Net {
    /// Makes a device with this address, for frames that carry up to `mtu` bytes. With `segments` the driver may send
    /// longer frames, and the program at the other end of the network connection segments these frames.
    pub fn new(mac: [u8; 6], mtu: u16, segments: bool) -> Net {
        Net { mac, mtu, segments, waiting: VecDeque::new(), sent: Vec::new(), sent_count: 0, sent_hash: 0 }
    }

    /// How many more frames the device's queue of waiting frames can hold.
    pub(crate) fn room(&self) -> usize {
        MAX_WAITING - self.waiting.len()
    }

    /// Queues frames from outside. Frames beyond the room and frames of impossible length are dropped.
    pub(crate) fn queue_frames(&mut self, frames: Vec<Vec<u8>>) {
        let possible = frames.into_iter().filter(|frame| is_frame_length(frame.len()));
        self.waiting.extend(possible.take(self.room()));
    }

    pub(crate) fn take_sent(&mut self) -> Vec<SentFrame> {
        std::mem::take(&mut self.sent)
    }

    fn receive<M: GuestMemory>(
        &mut self,
        mem: &M,
        agreed: u64,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        // Without the feature F_MRG_RXBUF (mergeable buffers), a frame that does not fit into one chain is lost.
        let most = if agreed & F_MRG_RXBUF != 0 { usize::from(queue.size()) } else { 1 };
        queue.scatter(mem, most, &mut self.waiting, |chains| {
            let mut header = [0; HEADER_BYTES];
            header[BUFFERS_AT..].copy_from_slice(&(chains as u16).to_le_bytes());
            header
        })
    }

    fn transmit<M: GuestMemory>(&mut self, mem: &M, chain: &Chain) -> Result<Served, RingError> {
        let mut buffer = chain.readable(mem);
        let length = buffer.remaining().saturating_sub(HEADER_BYTES as u64) as usize;
        if !is_frame_length(length) {
            log::debug!("virtio net: dropped a frame of {length} bytes");
            return Ok(Served::Used(0));
        }
        let mut header = [0; HEADER_BYTES];
        buffer.read(&mut header)?;
        let mut bytes = vec![0; length];
        buffer.read(&mut bytes)?;
        self.note(&header);
        self.note(&bytes);
        self.sent_count += 1;
        self.sent.push(SentFrame { header, bytes });
        Ok(Served::Used(0))
    }

    /// Adds sent bytes to the chained hash.
    fn note(&mut self, bytes: &[u8]) {
        let seed = self.sent_hash as u64 ^ (self.sent_hash >> 64) as u64;
        self.sent_hash = XxHash3_128::oneshot_with_seed(seed, bytes);
    }
}

fn is_frame_length(bytes: usize) -> bool {
    (LEAST_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&bytes)
}

impl DeviceModel for Net {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn features(&self) -> u64 {
        let always = F_CSUM | F_MTU | F_MAC | F_MRG_RXBUF | F_STATUS;
        if self.segments { always | F_HOST_TSO4 | F_HOST_TSO6 } else { always }
    }

    fn config(&self) -> Vec<u8> {
        let mut config = self.mac.to_vec();
        config.extend(LINK_UP.to_le_bytes());
        config.extend(1_u16.to_le_bytes()); // max_virtqueue_pairs
        config.extend(self.mtu.to_le_bytes());
        config
    }

    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        agreed: u64,
        index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        if index == RECEIVE_QUEUE {
            self.receive(mem, agreed, queue)
        } else {
            queue.serve(mem, |chain| self.transmit(mem, chain))
        }
    }

    fn state(&self) -> DeviceStateV1 {
        DeviceStateV1::Net {
            mac: self.mac,
            mtu: self.mtu,
            segments: self.segments,
            waiting: self.waiting.iter().cloned().collect(),
            sent_count: self.sent_count,
            sent_hash: self.sent_hash.to_le_bytes(),
        }
    }

    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError> {
        let DeviceStateV1::Net { mac, mtu, segments, waiting, .. } = state else { return Err(wrong_kind()) };
        if (*mac, *mtu, *segments) != (self.mac, self.mtu, self.segments) {
            return Err(StateError::new("the network device has another address, MTU or other offloads"));
        }
        if waiting.len() > MAX_WAITING || !waiting.iter().all(|frame| is_frame_length(frame.len())) {
            return Err(StateError::new("the network device cannot hold these frames"));
        }
        Ok(())
    }

    fn install(&mut self, state: &DeviceStateV1) {
        if let DeviceStateV1::Net { mac, mtu, segments, waiting, sent_count, sent_hash } = state {
            *self = Net {
                waiting: waiting.iter().cloned().collect(),
                sent_count: *sent_count,
                sent_hash: u128::from_le_bytes(*sent_hash),
                ..Net::new(*mac, *mtu, *segments)
            };
        }
    }
}
