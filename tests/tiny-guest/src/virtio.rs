//! A driver for virtio devices, for guests that run in 64-bit mode (VIRTIO 1.2, sections 2.7 and 4.1).
//!
//! Each queue has its descriptors and rings at fixed addresses, so a test knows the place of each byte. The driver uses
//! no interrupts.

use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::config::{MachineOptions, NetworkConfig};
use machine::inputs::Event;
use machine::position::Instructions;
use recording::Recording;

use crate::long_mode;

/// The PCI slot of the disk.
pub const DISK: u64 = 1;
/// The slot of the console.
pub const CONSOLE: u64 = 2;
/// The slot of the entropy device.
pub const ENTROPY: u64 = 3;
/// The slot of the network card.
pub const NETWORK: u64 = 4;
/// The size of the disk in sectors.
pub const DISK_SECTORS: u64 = 32;
/// The number of entries of each queue.
pub const ENTRIES: u64 = 16;
/// The feature with which a request's buffers may be in a table of their own.
pub const INDIRECT: u32 = 1 << 28;
/// The page directory that maps the last gigabyte below 4 GiB, and the place of the first queue.
const DIRECTORY: u64 = long_mode::TABLES as u64 + 0x8000;
const QUEUES: u64 = long_mode::TABLES as u64 + 0x1_0000;
/// The beginning of the last gigabyte below 4 GiB, where all registers are.
const REGISTERS: u64 = 0xc000_0000;
const PAGE_BYTES: u64 = 2 << 20;
/// The offset in a device's configuration space of the structure that gives access to the device's registers.
pub const CONFIG_ACCESS: u64 = 0x84;
/// The offset of the MSI-X capability in a device's configuration space. The device must have a configuration.
pub const MESSAGES: u64 = 0x98;
/// Offsets of a device's registers.
const DEVICE_CONFIG: u64 = 0x2000;
const DOORBELLS: u64 = 0x3000;

/// The address of the first register of the device in a slot.
pub const fn registers(slot: u64) -> u64 {
    REGISTERS + (slot << 16)
}

/// The address of the device's configuration, such as the disk's size in sectors.
pub const fn configuration(slot: u64) -> u64 {
    registers(slot) + DEVICE_CONFIG
}

/// The contents of the disk. No byte is zero.
pub fn disk_byte(place: u64) -> u8 {
    (place % 251 + place / 512 * 7) as u8 | 1
}

/// The queue of a device.
#[derive(Clone, Copy)]
pub struct Queue {
    /// The device's slot.
    pub slot: u64,
    /// The queue's number.
    pub number: u64,
}

/// A buffer of a request.
#[derive(Clone, Copy)]
pub struct Buffer {
    /// The physical address.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the device writes the buffer.
    pub is_writable: bool,
}

/// A buffer that the device reads.
pub fn read(address: u64, bytes: u64) -> Buffer {
    Buffer { address, bytes, is_writable: false }
}

/// A buffer that the device writes.
pub fn written(address: u64, bytes: u64) -> Buffer {
    Buffer { address, bytes, is_writable: true }
}

impl Queue {
    /// The queue with this number of the device in this slot.
    pub const fn of(slot: u64, number: u64) -> Queue {
        Queue { slot, number }
    }

    /// The address of the table of descriptors.
    pub const fn descriptors(self) -> u64 {
        QUEUES + (2 * self.slot + self.number) * 0x1000
    }

    /// The address of the ring in which the driver makes requests available.
    pub const fn available(self) -> u64 {
        self.descriptors() + 0x400
    }

    /// The address of the ring of used requests.
    pub const fn used(self) -> u64 {
        self.descriptors() + 0x800
    }

    /// A place for a table of a request's buffers.
    const fn indirect(self) -> u64 {
        self.descriptors() + 0xc00
    }

    /// The address of the register that tells the device about new requests.
    pub const fn doorbell(self) -> u64 {
        registers(self.slot) + DOORBELLS + 4 * self.number
    }
}

/// Maps the registers of all chips and devices. Changes RAX.
pub fn map_registers(a: &mut CodeAssembler) -> Result<(), IcedError> {
    store(a, long_mode::TABLES as u64 + 0x1000 + 3 * 8, DIRECTORY | 3)?;
    // The devices, the I/O APIC and the local APIC.
    for base in [REGISTERS, 0xfec0_0000, 0xfee0_0000] {
        let entry = (base - REGISTERS) / PAGE_BYTES;
        store(a, DIRECTORY + 8 * entry, base | 0x83)?;
    }
    Ok(())
}

/// Writes a number to eight bytes of memory. Changes RAX.
fn store(a: &mut CodeAssembler, address: u64, value: u64) -> Result<(), IcedError> {
    a.mov(rax, value)?;
    a.mov(qword_ptr(address), rax)
}

/// Starts a device with these features of the ring, and these queues. Changes RAX, RDX and R12.
pub fn start(a: &mut CodeAssembler, slot: u64, features: u32, queues: &[u64]) -> Result<(), IcedError> {
    // Enable memory and bus mastering in the PCI command register.
    config_write(a, slot, 4, 6)?;
    a.mov(r12, registers(slot))?;
    for status in [0, 1, 3] {
        a.mov(byte_ptr(r12 + 0x14), status)?;
    }
    for (half, value) in [(0, features as i32), (1, 1)] {
        a.mov(dword_ptr(r12 + 8), half)?;
        a.mov(dword_ptr(r12 + 0xc), value)?;
    }
    a.mov(byte_ptr(r12 + 0x14), 11)?;
    for &number in queues {
        let queue = Queue::of(slot, number);
        a.mov(word_ptr(r12 + 0x16), number as i32)?;
        a.mov(word_ptr(r12 + 0x18), ENTRIES as i32)?;
        let parts = [(0x20, queue.descriptors()), (0x28, queue.available()), (0x30, queue.used())];
        for (register, address) in parts {
            a.mov(dword_ptr(r12 + register), address as i32)?;
            a.mov(dword_ptr(r12 + register + 4), 0)?;
        }
        a.mov(word_ptr(r12 + 0x1c), 1)?;
    }
    a.mov(byte_ptr(r12 + 0x14), 15)
}

/// Writes four bytes of a device's configuration space. Changes RAX and RDX.
pub fn config_write(a: &mut CodeAssembler, slot: u64, register: u64, value: u32) -> Result<(), IcedError> {
    a.mov(edx, 0xcf8)?;
    a.mov(eax, (0x8000_0000 | slot << 11 | register) as u32)?;
    a.out(dx, eax)?;
    a.mov(edx, 0xcfc)?;
    a.mov(eax, value)?;
    a.out(dx, eax)
}

/// Writes the descriptors of a request to a table, from descriptor `first` on. Changes RAX.
pub fn describe(a: &mut CodeAssembler, table: u64, first: u64, buffers: &[Buffer]) -> Result<(), IcedError> {
    for (number, buffer) in (first..).zip(buffers) {
        let is_last = number + 1 == first + buffers.len() as u64;
        let flags = u64::from(!is_last) | if buffer.is_writable { 2 } else { 0 };
        store(a, table + 16 * number, buffer.address)?;
        store(a, table + 16 * number + 8, buffer.bytes | flags << 32 | (number + 1) << 48)?;
    }
    Ok(())
}

/// Makes the requests that begin with these descriptors available. The driver has already made `before` requests.
/// Changes RAX.
pub fn publish(a: &mut CodeAssembler, queue: Queue, before: u64, heads: &[u64]) -> Result<(), IcedError> {
    for (number, head) in (before..).zip(heads) {
        a.mov(word_ptr(queue.available() + 4 + 2 * (number % ENTRIES)), *head as i32)?;
    }
    a.mov(word_ptr(queue.available() + 2), before as i32 + heads.len() as i32)
}

/// Makes one request available, with its descriptors from number 0 on. Changes RAX.
pub fn request(
    a: &mut CodeAssembler,
    queue: Queue,
    before: u64,
    buffers: &[Buffer],
) -> Result<(), IcedError> {
    describe(a, queue.descriptors(), 0, buffers)?;
    publish(a, queue, before, &[0])
}

/// Makes one request available whose buffers are in a table of their own. Changes RAX.
pub fn indirect_request(
    a: &mut CodeAssembler,
    queue: Queue,
    before: u64,
    buffers: &[Buffer],
) -> Result<(), IcedError> {
    describe(a, queue.indirect(), 0, buffers)?;
    store(a, queue.descriptors(), queue.indirect())?;
    store(a, queue.descriptors() + 8, 16 * buffers.len() as u64 | 4 << 32)?;
    publish(a, queue, before, &[0])
}

/// Writes the header of a request to the disk: the kind of request (0 reads, 1 writes), and the first sector. Changes
/// RAX.
pub fn header(a: &mut CodeAssembler, address: u64, kind: u64, sector: u64) -> Result<(), IcedError> {
    store(a, address, kind)?;
    store(a, address + 8, sector)
}

/// One instruction that tells the device about new requests. R13 has the address of the queue's doorbell.
pub fn notify(a: &mut CodeAssembler, queue: Queue) -> Result<(), IcedError> {
    a.mov(word_ptr(r13), queue.number as i32)
}

/// Loads the address of a queue's doorbell into R13, for [`notify`].
pub fn to_doorbell(a: &mut CodeAssembler, queue: Queue) -> Result<(), IcedError> {
    a.mov(r13, queue.doorbell())
}

/// Records a run of the given instructions, as [`long_mode::record`] does, in a machine with all devices.
/// `change` changes the contents of the disk. Returns the recording, and the address of each instruction.
pub fn record(
    directory: &Path,
    name: &str,
    change: impl FnOnce(&mut [u8]),
    code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    script: Vec<(u64, Event)>,
) -> (Recording<Instructions>, Vec<u64>) {
    let disk = directory.join(format!("{name}-disk"));
    let mut contents: Vec<u8> = (0..DISK_SECTORS * 512).map(disk_byte).collect();
    change(&mut contents);
    std::fs::write(&disk, contents).unwrap();
    let network = NetworkConfig { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, segments: false };
    let devices = |options| MachineOptions { disk: Some(disk), network: Some(network), ..options };
    let (recording, _, addresses) = long_mode::record_on(directory, name, devices, code, script);
    (recording, addresses)
}
