//! Random accesses, random rings and random saved states. There must be no panic and no endless work, and a restored
//! copy must always agree.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::driver::{INDIRECT, NEXT, WRITE};
use super::*;
use crate::layout::PCI_MMIO_START;

const ROUNDS: u64 = 60;
const STEPS: u32 = 400;

struct Fuzz {
    random: ChaCha8Rng,
    pc: Pc,
    rings: Vec<Ring>,
}

impl Fuzz {
    fn new(seed: u64) -> Fuzz {
        let mut pc = pc();
        let mut rings = Vec::new();
        for slot in 1..=3 {
            rings.extend(Driver::start(&mut pc, slot, !0, seed.is_multiple_of(2)).1);
        }
        Fuzz { random: ChaCha8Rng::seed_from_u64(seed), pc, rings }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most) as usize + 1];
        self.random.fill_bytes(&mut bytes);
        if self.chance(50) {
            // Small numbers reach valid registers more often than large numbers.
            bytes.iter_mut().skip(1).for_each(|byte| *byte = 0);
        }
        bytes
    }

    fn width(&mut self) -> usize {
        [1, 2, 4, 4, 8, 3][self.below(6) as usize]
    }

    fn step(&mut self) {
        match self.below(20) {
            0 => self.config_access(),
            1..=4 => self.device_access(),
            5..=9 => self.random_chain(),
            10..=15 => self.kick(),
            16 => self.corrupt_ring(),
            17 => self.console(),
            18 => drop(self.pc.bus.take_msis()),
            _ => self.restart(),
        }
    }

    fn config_access(&mut self) {
        let (slot, register) = (self.below(5) as usize, self.below(256) as usize);
        self.pc.config_address(slot, register);
        let data = self.bytes(4);
        let mem = self.pc.mem();
        let port = 0xCF8 + self.below(8) as u16;
        self.pc.bus.io_read(port, &mut data.clone());
        self.pc.bus.io_write(&mem, port, &data);
        if self.chance(90) {
            // Usually switches memory access and DMA on again, which the random write may have switched off.
            self.pc.config_write(slot, 4, &[6, 0]);
        }
    }

    fn device_access(&mut self) {
        let slot = 1 + self.below(3);
        let region = [0, 0, 0, 0x1000, 0x2000, 0x3000, 0x8000, 0x8800][self.below(8) as usize];
        let gpa = PCI_MMIO_START + slot * 0x1_0000 + region + self.below(0x48);
        let width = self.width();
        let mut data = self.bytes(8);
        data.resize(width, 0);
        let mem = self.pc.mem();
        if self.chance(30) {
            self.pc.bus.mmio_read(&mem, gpa, &mut data);
        } else {
            self.pc.bus.mmio_write(&mem, gpa, &data);
        }
    }

    fn address(&mut self) -> u64 {
        match self.below(20) {
            0 => self.random.next_u64(),
            1 => u64::MAX - self.below(64),
            2 => Pc::RAM_BYTES - self.below(4096),
            3 => self.ring().used,
            4 => self.ring().available,
            5 => self.ring().descriptors,
            _ => self.below(Pc::RAM_BYTES - (1 << 20)),
        }
    }

    fn length(&mut self) -> u32 {
        match self.below(12) {
            0 => self.random.next_u32(),
            1 => 0,
            2..=4 => 512 * self.below(300) as u32,
            _ => self.below(64) as u32,
        }
    }

    fn ring(&mut self) -> Ring {
        let index = self.below(self.rings.len() as u64) as usize;
        self.rings[index].clone()
    }

    fn random_chain(&mut self) {
        let index = self.below(self.rings.len() as u64) as usize;
        if self.chance(40) {
            return self.block_request();
        }
        let table = self.address() & !0xF;
        let count = 1 + self.below(4) as u16;
        let first = self.below(60) as u16;
        let indirect = table < Pc::RAM_BYTES - 4096 && self.chance(30);
        for i in 0..count {
            let buffer = (self.address(), self.length());
            let mut flags = if self.chance(50) { WRITE } else { 0 };
            if i + 1 < count || self.chance(3) {
                flags |= NEXT;
            }
            if self.chance(3) {
                flags |= INDIRECT;
            }
            let next = if self.chance(3) { self.random.next_u32() as u16 } else { first + i + 1 };
            if indirect {
                self.rings[index].set_descriptor(&self.pc, table, i, buffer, flags, i + 1);
            } else {
                let descriptors = self.rings[index].descriptors;
                self.rings[index].set_descriptor(&self.pc, descriptors, first + i, buffer, flags, next);
            }
        }
        if indirect {
            let descriptors = self.rings[index].descriptors;
            let whole = (table, 16 * u32::from(count));
            self.rings[index].set_descriptor(&self.pc, descriptors, first, whole, INDIRECT, 0);
        }
        self.rings[index].publish(&self.pc, first);
    }

    /// Makes a nearly valid request, so that the block device accepts its header.
    fn block_request(&mut self) {
        let kind = [0, 1, 4, 8, 11, 13, 99][self.below(7) as usize];
        let sector = self.below(DISK_SECTORS + 10);
        let header = 0x8000 + 16 * self.below(64);
        self.pc.store(header, &u32::to_le_bytes(kind));
        self.pc.store(header + 8, &sector.to_le_bytes());
        let data = (0x9000 + self.below(0x1000), 16 * self.below(200) as u32, matches!(kind, 0 | 8));
        let mut chain = vec![(header, 16, false), data, (0x8800, 1, true)];
        if self.chance(10) {
            chain.remove(self.below(3) as usize);
        }
        self.rings[0].add(&self.pc, &chain);
    }

    fn kick(&mut self) {
        let index = self.below(self.rings.len() as u64) as usize;
        let doorbell = self.rings[index].doorbell;
        let mem = self.pc.mem();
        // The guest may have moved the BAR away.
        self.pc.bus.mmio_write(&mem, doorbell, &[0, 0]);
    }

    fn corrupt_ring(&mut self) {
        let ring = self.ring();
        let base = [ring.available, ring.used, ring.descriptors][self.below(3) as usize];
        let at = base + self.below(140);
        let data = self.bytes(4);
        self.pc.store(at, &data);
    }

    fn console(&mut self) {
        let (mem, input, size) = (self.pc.mem(), self.bytes(200), self.below(1000) as u16);
        let mut console = self.pc.bus.console_mut().unwrap();
        console.push_input(&mem, &input);
        console.resize(size, 25);
        console.take_output();
    }

    /// Lets a new driver take over a device, so that a dead device works again.
    fn restart(&mut self) {
        let slot = 1 + self.below(3) as usize;
        let base = PCI_MMIO_START as u32 + slot as u32 * 0x1_0000;
        self.pc.config_write(slot, 0x10, &base.to_le_bytes());
        self.pc.config_write(slot, 0x14, &(base + 0x8000).to_le_bytes());
        self.pc.free = 0x10_0000 + slot as u64 * 0x1_0000;
        let msix = self.chance(50);
        let (_, rings) = Driver::start(&mut self.pc, slot, !0, msix);
        let first = [0, 1, 3][slot - 1];
        self.rings.splice(first..first + rings.len(), rings);
    }

    fn used_entries(&self) -> u64 {
        self.rings.iter().map(|ring| u64::from(self.pc.load_u16(ring.used + 2))).sum()
    }
}

/// A bus with the disk contents of another bus.
fn bus_like(pc: &mut Pc) -> PciBus {
    let disk = pc.bus.block_backend_mut::<MemoryDisk>(BLOCK_SLOT).unwrap().clone();
    let mut bus = bus();
    *bus.block_backend_mut(BLOCK_SLOT).unwrap() = disk;
    bus
}

#[test]
fn random_guests_do_no_harm_and_can_be_saved_anywhere() {
    let mut used = 0;
    for seed in 0..ROUNDS {
        let mut fuzz = Fuzz::new(seed);
        for _ in 0..STEPS / 2 {
            fuzz.step();
        }
        let bus = bus_like(&mut fuzz.pc);
        let pc = fuzz.pc.copy_onto(bus);
        let mut copy = Fuzz { random: fuzz.random.clone(), pc, rings: fuzz.rings.clone() };
        for step in 0..STEPS / 2 {
            fuzz.step();
            copy.step();
            assert_eq!(copy.pc.bus.state(), fuzz.pc.bus.state(), "seed {seed}, step {step}");
            assert_eq!(copy.pc.bus.irq_levels(), fuzz.pc.bus.irq_levels(), "seed {seed}, step {step}");
        }
        assert!(copy.pc.ram_bytes() == fuzz.pc.ram_bytes(), "seed {seed}");
        used += fuzz.used_entries();
    }
    // Enough random chains must pass the checks and reach the devices.
    assert!(used > 500, "only {used} chains were used");
}

#[test]
fn random_damage_to_saved_states_is_an_error_or_harmless() {
    let mut restored = 0;
    for seed in 0..ROUNDS {
        let mut fuzz = Fuzz::new(1000 + seed);
        for _ in 0..50 {
            fuzz.step();
        }
        let good = postcard::to_allocvec(&fuzz.pc.bus.state()).unwrap();
        for _ in 0..50 {
            let mut bad = good.clone();
            for _ in 0..1 + fuzz.below(3) {
                let at = fuzz.below(bad.len() as u64) as usize;
                bad[at] = fuzz.random.next_u32() as u8;
            }
            let Ok(state) = postcard::from_bytes(&bad) else { continue };
            if fuzz.pc.bus.restore(&state).is_ok() {
                restored += 1;
                assert_eq!(fuzz.pc.bus.state(), state, "seed {seed}");
                (0..20).for_each(|_| fuzz.step());
            }
        }
    }
    assert!(restored > 50, "only {restored} damaged states could be restored");
}
