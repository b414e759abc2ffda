//! A small virtio-pci driver. The driver walks configuration space to find devices and structures, negotiates
//! features, builds rings in guest RAM and rings doorbells.

use guest_ram::{GuestMemory, GuestRam};
use vm_memory::{Bytes, GuestAddress};

use crate::pci::{Msi, PciBus};

pub const F_INDIRECT_DESC: u64 = 1 << 28;
pub const F_EVENT_IDX: u64 = 1 << 29;
pub const F_VERSION_1: u64 = 1 << 32;
pub const F_RING_RESET: u64 = 1 << 40;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// RAM, bus and an allocator that never frees.
pub struct Pc {
    pub ram: GuestRam,
    pub bus: PciBus,
    pub free: u64,
}

impl Pc {
    pub const RAM_BYTES: u64 = 4 << 20;

    pub fn new(bus: PciBus) -> Pc {
        Pc { ram: GuestRam::new(Pc::RAM_BYTES).unwrap(), bus, free: 0x1_0000 }
    }

    /// A copy of the machine. RAM is copied. `bus` (with the same devices) is restored from the saved state, which is
    /// serialized and parsed on the way.
    pub fn copy_onto(&self, mut bus: PciBus) -> Pc {
        let saved = postcard::to_allocvec(&self.bus.state()).unwrap();
        bus.restore(&postcard::from_bytes(&saved).unwrap()).unwrap();
        let copy = Pc { free: self.free, ..Pc::new(bus) };
        copy.ram.write_bytes(0, &self.ram_bytes());
        copy
    }

    pub fn ram_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.ram.size_bytes() as usize];
        self.ram.read_bytes(0, &mut bytes);
        bytes
    }

    pub fn mem(&self) -> GuestMemory {
        self.ram.memory().clone()
    }

    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let address = self.free.next_multiple_of(64);
        self.free = address + bytes;
        assert!(self.free <= Pc::RAM_BYTES);
        address
    }

    pub fn config_address(&mut self, slot: usize, register: usize) {
        let address = 0x8000_0000 | (slot as u32) << 11 | (register as u32 & 0xFC);
        assert!(self.bus.io_write(self.ram.memory(), 0xCF8, &address.to_le_bytes()));
    }

    pub fn config_read<const N: usize>(&mut self, slot: usize, register: usize) -> [u8; N] {
        self.config_address(slot, register);
        let mut data = [0; N];
        assert!(self.bus.io_read(0xCFC + (register as u16 & 3), &mut data));
        data
    }

    pub fn config_u8(&mut self, slot: usize, register: usize) -> u8 {
        self.config_read::<1>(slot, register)[0]
    }

    pub fn config_u16(&mut self, slot: usize, register: usize) -> u16 {
        u16::from_le_bytes(self.config_read(slot, register))
    }

    pub fn config_u32(&mut self, slot: usize, register: usize) -> u32 {
        u32::from_le_bytes(self.config_read(slot, register))
    }

    pub fn config_write(&mut self, slot: usize, register: usize, data: &[u8]) {
        self.config_address(slot, register);
        assert!(self.bus.io_write(self.ram.memory(), 0xCFC + (register as u16 & 3), data));
    }

    pub fn read<const N: usize>(&mut self, gpa: u64) -> [u8; N] {
        let mut data = [0; N];
        assert!(self.bus.mmio_read(self.ram.memory(), gpa, &mut data), "nothing at {gpa:#x}");
        data
    }

    pub fn write(&mut self, gpa: u64, data: &[u8]) {
        assert!(self.bus.mmio_write(self.ram.memory(), gpa, data), "nothing at {gpa:#x}");
    }

    pub fn store(&self, gpa: u64, data: &[u8]) {
        self.ram.memory().write_slice(data, GuestAddress(gpa)).unwrap();
    }

    pub fn load(&self, gpa: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.ram.memory().read_slice(&mut data, GuestAddress(gpa)).unwrap();
        data
    }

    pub fn load_u16(&self, gpa: u64) -> u16 {
        self.ram.load_u16(gpa)
    }

    /// Data of the messages since the last call.
    pub fn messages(&mut self) -> Vec<u32> {
        let msis = self.bus.take_msis();
        assert!(msis.iter().all(|msi: &Msi| msi.address == MSI_ADDRESS), "{msis:?}");
        msis.iter().map(|msi| msi.data).collect()
    }
}

/// No messages.
pub const NONE: [u32; 0] = [];

/// The address of the vectors' messages.
pub const MSI_ADDRESS: u64 = 0xFEE0_1000;

/// One device as its driver knows it: guest-physical addresses of the structures.
#[derive(Clone, Debug)]
pub struct Driver {
    pub slot: usize,
    pub common: u64,
    pub notify: u64,
    pub notify_stride: u64,
    pub isr: u64,
    pub config: Option<u64>,
    pub pci_cfg: usize,
    pub msix: usize,
    pub msix_table: u64,
    pub features: u64,
}

impl Driver {
    /// Walks the capability list. Enables memory decoding and bus mastering.
    pub fn probe(pc: &mut Pc, slot: usize) -> Driver {
        let mut driver = Driver {
            slot,
            common: 0,
            notify: 0,
            notify_stride: 0,
            isr: 0,
            config: None,
            pci_cfg: 0,
            msix: 0,
            msix_table: 0,
            features: 0,
        };
        assert_ne!(pc.config_u16(slot, 6) & 0x10, 0, "no capability list");
        let mut at = usize::from(pc.config_u8(slot, 0x34));
        while at != 0 {
            driver.capability(pc, at);
            at = usize::from(pc.config_u8(slot, at + 1));
        }
        pc.config_write(slot, 4, &6_u16.to_le_bytes());
        driver
    }

    fn capability(&mut self, pc: &mut Pc, at: usize) {
        match pc.config_u8(self.slot, at) {
            0x09 => self.virtio_capability(pc, at),
            0x11 => {
                self.msix = at;
                let table = pc.config_u32(self.slot, at + 4);
                self.msix_table = self.bar(pc, table & 7) + u64::from(table & !7);
            }
            id => panic!("unexpected capability {id:#x}"),
        }
    }

    fn virtio_capability(&mut self, pc: &mut Pc, at: usize) {
        let bar = u32::from(pc.config_u8(self.slot, at + 4));
        let address = self.bar(pc, bar) + u64::from(pc.config_u32(self.slot, at + 8));
        match pc.config_u8(self.slot, at + 3) {
            1 => self.common = address,
            2 => {
                self.notify = address;
                self.notify_stride = u64::from(pc.config_u32(self.slot, at + 16));
            }
            3 => self.isr = address,
            4 => self.config = Some(address),
            5 => self.pci_cfg = at,
            kind => panic!("unexpected structure {kind}"),
        }
    }

    pub fn bar(&self, pc: &mut Pc, index: u32) -> u64 {
        u64::from(pc.config_u32(self.slot, 0x10 + 4 * index as usize) & !0xF)
    }

    pub fn status(&self, pc: &mut Pc) -> u8 {
        pc.read::<1>(self.common + 0x14)[0]
    }

    pub fn set_status(&self, pc: &mut Pc, status: u8) {
        pc.write(self.common + 0x14, &[status]);
    }

    pub fn offered(&self, pc: &mut Pc) -> u64 {
        (0..2).fold(0, |all, half: u32| {
            pc.write(self.common, &half.to_le_bytes());
            all | u64::from(u32::from_le_bytes(pc.read(self.common + 4))) << (32 * half)
        })
    }

    pub fn accept(&self, pc: &mut Pc, features: u64) {
        for half in 0..2_u32 {
            pc.write(self.common + 8, &half.to_le_bytes());
            pc.write(self.common + 0xC, &((features >> (32 * half)) as u32).to_le_bytes());
        }
    }

    /// Resets, acknowledges, and negotiates version 1 and the offered features of `wanted`.
    pub fn negotiate(&mut self, pc: &mut Pc, wanted: u64) {
        self.set_status(pc, 0);
        self.set_status(pc, 1);
        self.set_status(pc, 3);
        self.features = self.offered(pc) & (wanted | F_VERSION_1);
        self.accept(pc, self.features);
        self.set_status(pc, 11);
        assert_eq!(self.status(pc), 11, "the features were refused");
    }

    /// Enables MSI-X. Vector n has data `0x40 + n`; the configuration gets vector 0.
    pub fn use_msix(&self, pc: &mut Pc) {
        let vectors = (pc.config_u16(self.slot, self.msix + 2) & 0x7FF) + 1;
        pc.config_write(self.slot, self.msix + 2, &0xC000_u16.to_le_bytes());
        for vector in 0..vectors {
            let entry = self.msix_table + 16 * u64::from(vector);
            pc.write(entry, &MSI_ADDRESS.to_le_bytes());
            pc.write(entry + 8, &(0x40 + u32::from(vector)).to_le_bytes());
            pc.write(entry + 12, &0_u32.to_le_bytes());
        }
        pc.config_write(self.slot, self.msix + 2, &0x8000_u16.to_le_bytes());
        pc.write(self.common + 0x10, &0_u16.to_le_bytes());
    }

    /// Sets up a queue of `size` entries. With MSI-X the queue gets vector `index + 1`.
    pub fn queue(&self, pc: &mut Pc, index: u16, size: u16) -> Ring {
        let bytes = u64::from(size);
        let descriptors = pc.allocate(16 * bytes);
        let available = pc.allocate(6 + 2 * bytes);
        let used = pc.allocate(6 + 8 * bytes);
        pc.write(self.common + 0x16, &index.to_le_bytes());
        pc.write(self.common + 0x18, &size.to_le_bytes());
        pc.write(self.common + 0x1A, &(index + 1).to_le_bytes());
        for (register, address) in [(0x20, descriptors), (0x28, available), (0x30, used)] {
            pc.write(self.common + register, &(address as u32).to_le_bytes());
            pc.write(self.common + register + 4, &((address >> 32) as u32).to_le_bytes());
        }
        let notify_off = u16::from_le_bytes(pc.read(self.common + 0x1E));
        pc.write(self.common + 0x1C, &1_u16.to_le_bytes());
        Ring {
            index,
            size,
            descriptors,
            available,
            used,
            doorbell: self.notify + u64::from(notify_off) * self.notify_stride,
            event_idx: self.features & F_EVENT_IDX != 0,
            next_descriptor: 0,
            next_available: 0,
            kicked: 0,
            next_used: 0,
        }
    }

    /// Starts a device the usual way: negotiation, MSI-X if wanted, all queues with 64 entries, ready.
    pub fn start(pc: &mut Pc, slot: usize, features: u64, msix: bool) -> (Driver, Vec<Ring>) {
        let mut driver = Driver::probe(pc, slot);
        driver.negotiate(pc, features);
        if msix {
            driver.use_msix(pc);
        }
        let queues = u16::from_le_bytes(pc.read(driver.common + 0x12));
        let rings = (0..queues).map(|index| driver.queue(pc, index, 64)).collect();
        driver.set_status(pc, 15);
        (driver, rings)
    }
}

/// A buffer of a chain: address, length, whether the device writes it.
pub type Buffer = (u64, u32, bool);

/// A split ring from the driver's side. Descriptors are handed out round-robin; tests stay below the ring's size.
#[derive(Clone, Debug)]
pub struct Ring {
    pub index: u16,
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub doorbell: u64,
    pub event_idx: bool,
    pub next_descriptor: u16,
    pub next_available: u16,
    pub kicked: u16,
    pub next_used: u16,
}

impl Ring {
    pub fn set_descriptor(&self, pc: &Pc, table: u64, index: u16, buffer: (u64, u32), flags: u16, next: u16) {
        let mut bytes = buffer.0.to_le_bytes().to_vec();
        bytes.extend(buffer.1.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        pc.store(table + 16 * u64::from(index), &bytes);
    }

    fn fill(&self, pc: &Pc, table: u64, indices: &[u16], buffers: &[Buffer]) {
        for (i, &(address, length, writable)) in buffers.iter().enumerate() {
            let next = indices.get(i + 1).copied();
            let flags = if writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
            self.set_descriptor(pc, table, indices[i], (address, length), flags, next.unwrap_or(0));
        }
    }

    fn take_descriptors(&mut self, count: usize) -> Vec<u16> {
        let first = self.next_descriptor;
        self.next_descriptor = (first + count as u16) % self.size;
        (0..count as u16).map(|i| (first + i) % self.size).collect()
    }

    /// Makes a direct chain available; returns its head.
    pub fn add(&mut self, pc: &Pc, buffers: &[Buffer]) -> u16 {
        let indices = self.take_descriptors(buffers.len());
        self.fill(pc, self.descriptors, &indices, buffers);
        self.publish(pc, indices[0]);
        indices[0]
    }

    /// Makes a chain in an indirect table available; returns its head.
    pub fn add_indirect(&mut self, pc: &mut Pc, buffers: &[Buffer]) -> u16 {
        let table = pc.allocate(16 * buffers.len() as u64);
        let indices: Vec<u16> = (0..buffers.len() as u16).collect();
        self.fill(pc, table, &indices, buffers);
        let head = self.take_descriptors(1)[0];
        let length = 16 * buffers.len() as u32;
        self.set_descriptor(pc, self.descriptors, head, (table, length), INDIRECT, 0);
        self.publish(pc, head);
        head
    }

    /// Puts a head into the available ring.
    pub fn publish(&mut self, pc: &Pc, head: u16) {
        let entry = self.available + 4 + 2 * u64::from(self.next_available % self.size);
        pc.store(entry, &head.to_le_bytes());
        self.next_available = self.next_available.wrapping_add(1);
        pc.store(self.available + 2, &self.next_available.to_le_bytes());
    }

    /// Rings the doorbell if the device wants a notification. Returns whether the doorbell rang.
    pub fn kick(&mut self, pc: &mut Pc) -> bool {
        let (old, new) = (self.kicked, self.next_available);
        self.kicked = new;
        let wanted = if self.event_idx {
            let event = pc.load_u16(self.used + 4 + 8 * u64::from(self.size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            pc.load_u16(self.used) & 1 == 0
        };
        if wanted {
            pc.write(self.doorbell, &self.index.to_le_bytes());
        }
        wanted
    }

    /// Asks for an interrupt once the device has used the entry with this number (event index only).
    pub fn set_used_event(&self, pc: &Pc, number: u16) {
        pc.store(self.available + 4 + 2 * u64::from(self.size), &number.to_le_bytes());
    }

    /// Takes the next used entry: head and length.
    pub fn pop(&mut self, pc: &Pc) -> Option<(u16, u32)> {
        if pc.load_u16(self.used + 2) == self.next_used {
            return None;
        }
        let entry = self.used + 4 + 8 * u64::from(self.next_used % self.size);
        self.next_used = self.next_used.wrapping_add(1);
        let bytes = pc.load(entry, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        Some((word(0) as u16, word(4)))
    }
}
