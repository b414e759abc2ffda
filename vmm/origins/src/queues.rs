//! The virtio devices of the guest: their registers, and their queues in memory (VIRTIO 1.2, section 2.7).

use devices::virtio::{DeviceStateV1, QueueStateV1, VirtioFunctionStateV1};
use guest_ram::GuestRam;

/// The base address registers in configuration space, and the bits of a base address that are an address.
const FIRST_BAR: usize = 0x10;
const BARS: usize = 6;
const BAR_ADDRESS: u32 = !0xf;
/// Flags of a virtqueue's descriptor.
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: u64 = 16;
/// The number of bytes of a virtio device's registers in memory.
pub const REGISTER_BYTES: u64 = 0x4000;
/// The offset of the sector in the header of a request to a virtio disk, and the header's length.
const REQUEST_SECTOR: u64 = 8;
pub const REQUEST_HEADER: u64 = 16;
/// The largest number of descriptors in one chain. Larger chains are a mistake of the guest.
const MOST_DESCRIPTORS: usize = 1 << 15;

/// The name of a device of the host.
const PASSED_THROUGH: &str = "passed-through device";

/// A buffer of a request.
pub struct Buffer {
    /// Guest-physical address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub length: u32,
    flags: u16,
    next: u16,
}

impl Buffer {
    /// Whether the device writes the buffer. The device reads all other buffers.
    pub fn is_writable(&self) -> bool {
        self.flags & WRITABLE != 0
    }
}

/// The function, with its slot, whose registers are at an address.
pub fn function_at(
    functions: &[VirtioFunctionStateV1],
    address: u64,
) -> Option<(usize, &VirtioFunctionStateV1)> {
    let numbered = functions.iter().enumerate().map(|(index, function)| (index + 1, function));
    let base = |function: &VirtioFunctionStateV1| bases(function).filter(|base| *base <= address).max();
    // The sizes of a passed-through function's parts are not known.
    let is_in = |function: &VirtioFunctionStateV1, base: u64| {
        address - base < REGISTER_BYTES || name(&function.device) == PASSED_THROUGH
    };
    numbered
        .filter_map(|found| Some((base(found.1)?, found)))
        .max_by_key(|(base, _)| *base)
        .filter(|(base, (_, function))| is_in(function, *base))
        .map(|found| found.1)
}

/// The addresses of the function's registers in memory.
pub fn bases(function: &VirtioFunctionStateV1) -> impl Iterator<Item = u64> {
    (0..BARS).filter_map(|number| {
        let at = FIRST_BAR + 4 * number;
        let bytes: [u8; 4] = function.config.get(at..at + 4)?.try_into().ok()?;
        let value = u32::from_le_bytes(bytes);
        Some(u64::from(value & BAR_ADDRESS)).filter(|base| *base != 0 && value & 1 == 0)
    })
}

/// The name of a device in texts.
pub fn name(device: &DeviceStateV1) -> &'static str {
    match device {
        DeviceStateV1::Block { .. } => "virtio disk",
        DeviceStateV1::Console { .. } => "virtio console",
        DeviceStateV1::Rng { .. } => "virtio entropy device",
        DeviceStateV1::Net { .. } => "virtio network card",
        _ => PASSED_THROUGH,
    }
}

/// The requests in a queue that the driver has made available, and that the device has not taken.
pub fn waiting<'a>(ram: &'a GuestRam, queue: &'a QueueStateV1) -> impl Iterator<Item = Vec<Buffer>> + 'a {
    let behind = available(ram, queue).unwrap_or(queue.next_available);
    let count = behind.wrapping_sub(queue.next_available).min(queue.size);
    (0..count).map_while(move |number| {
        let slot = queue.next_available.wrapping_add(number) % queue.size;
        let head = u16_at(ram, queue.available.checked_add(4 + 2 * u64::from(slot))?)?;
        Some(chain(ram, queue, head))
    })
}

/// The number of requests that the driver has made available so far, modulo 2^16.
pub fn available(ram: &GuestRam, queue: &QueueStateV1) -> Option<u16> {
    u16_at(ram, queue.available.checked_add(2)?)
}

/// The first sector of a request to a virtio disk.
pub fn sector(ram: &GuestRam, request: &[Buffer]) -> Option<u64> {
    let mut sector = [0; 8];
    let at = request.first()?.address.checked_add(REQUEST_SECTOR)?;
    (ram.read_physical(at, &mut sector) == sector.len()).then(|| u64::from_le_bytes(sector))
}

fn u16_at(ram: &GuestRam, address: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    (ram.read_physical(address, &mut bytes) == 2).then(|| u16::from_le_bytes(bytes))
}

/// The buffers of the chain that begins with descriptor `head`.
fn chain(ram: &GuestRam, queue: &QueueStateV1, head: u16) -> Vec<Buffer> {
    match buffer(ram, queue.descriptors, head) {
        Some(first) if first.flags & INDIRECT != 0 => chain_in(ram, first.address, 0),
        _ => chain_in(ram, queue.descriptors, head),
    }
}

fn chain_in(ram: &GuestRam, table: u64, first: u16) -> Vec<Buffer> {
    let (mut index, mut found) = (first, Vec::new());
    while found.len() < MOST_DESCRIPTORS {
        let Some(next) = buffer(ram, table, index) else { break };
        let (flags, behind) = (next.flags, next.next);
        found.push(next);
        if flags & NEXT == 0 {
            break;
        }
        index = behind;
    }
    found
}

fn buffer(ram: &GuestRam, table: u64, index: u16) -> Option<Buffer> {
    let mut bytes = [0; DESCRIPTOR_BYTES as usize];
    let at = table.checked_add(u64::from(index) * DESCRIPTOR_BYTES)?;
    (ram.read_physical(at, &mut bytes) == bytes.len()).then_some(())?;
    Some(Buffer {
        address: u64::from_le_bytes(bytes[..8].try_into().ok()?),
        length: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
        flags: u16::from_le_bytes(bytes[12..14].try_into().ok()?),
        next: u16::from_le_bytes(bytes[14..].try_into().ok()?),
    })
}

#[cfg(test)]
mod tests;
